"""Folders for the Hub, which a pipeline of transformers opens: masks, image processor, card, and what is refused.

Modules: inference/export/hub.py, inference/export/templates/modeling_unet.py.
"""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from support.exports import KINDS, LITE0, POINTS, PREPROCESS, PREPROCESS_OF_POINTS
from support.launches import launch

from inference import Predictor
from inference.export.export_format import Options, export_proved
from inference.export.hub import Hub
from runtime.errors import ModelError
from unet import Preprocess, UNet, UNetConfig

COLORS = Preprocess(mean=(90.0, 100.0, 80.0), std=(50.0, 60.0, 40.0))

OPEN_TEN = """
import sys, numpy as np
from PIL import Image
from transformers import pipeline
segment = pipeline("image-segmentation", sys.argv[1], trust_remote_code=True)
for index in range(10):
    mask = np.zeros(Image.open(f"{index}.png").size[::-1], np.uint8)
    for part in segment(f"{index}.png"):
        mask[np.asarray(part["mask"]) == 255] = segment.model.config.label2id[part["label"]]
    Image.fromarray(mask).save(f"mask_{index}.png")
assert not {"unet", "inference", "runtime", "data_utils", "unet_accelerate"} & sys.modules.keys()
"""


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [None, LITE0], ids=["plain", "lite0"])
def test_a_pipeline_opens_a_hub_folder_without_this_project(encoder, tmp_path):
    torch.manual_seed(0)
    UNet(UNetConfig(3, 3, 4, 5, preprocess=PREPROCESS, encoder=encoder)).save_pretrained(tmp_path / "model")
    result = launch("-m", "inference.export", tmp_path / "model", tmp_path / "hub", "--to", "hub", "--license", "mit")
    assert result.returncode == 0, result.stderr
    assert "in transformers its masks are those of predict.py" in result.stdout
    predictor = Predictor(tmp_path / "model")
    rng = np.random.default_rng(0)
    for index in range(10):
        pixels = rng.integers(0, 256, (15 + 20 * index, 97, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    environment = {"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", OPEN_TEN, str(tmp_path / "hub")]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    for index in range(10):
        mask = np.asarray(Image.open(tmp_path / f"mask_{index}.png"))
        np.testing.assert_array_equal(mask, predictor.mask(tmp_path / f"{index}.png"))


def code_of(folder: Path) -> ModuleType:
    """The code in a folder for the Hub."""
    spec = spec_from_file_location("modeling_unet", folder / "modeling_unet.py")
    code = module_from_spec(spec)
    spec.loader.exec_module(code)
    return code


@pytest.mark.parametrize(
    "config",
    [
        UNetConfig(3, 2, 4, 2, "batch", "bilinear", block="residual", preprocess=COLORS),
        UNetConfig(1, 2, 16, 3, "group", "transpose", block="residual"),
        UNetConfig(1, 2, 1, 2, "group"),
        UNetConfig(1, 2, 16, 2, "instance", "bilinear_aligned", block="residual"),
        UNetConfig(1, 2, 4, 5, "instance", "bilinear", encoder=LITE0),
    ],
    ids=["batch", "group", "group of one channel", "instance", "lite0 of grey images"],
)
def test_the_network_of_a_hub_folder_is_ours(config, tmp_path):
    torch.manual_seed(0)
    model = UNet(config).eval()
    for weight in model.parameters():  # those of the norms too are as after a training
        weight.data += 0.1 * torch.rand_like(weight)
    Hub().write(model, tmp_path, Options())
    assert (tmp_path / "config.json").read_text().startswith('{\n  "')  # a person reads it
    code = code_of(tmp_path)
    theirs = code.UNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    for size in ((37, 53), (3, 40), (1, 1), (5, 6), (8, 5)):
        images = torch.rand(2, config.in_channels, *size) * 255
        with torch.inference_mode():
            torch.testing.assert_close(theirs(images).logits, model(images))


GREY_CONFIG = UNetConfig(1, 2, 4, 2, preprocess=Preprocess((40, 56), mean=(90.0,), std=(30.0,), detect_unit_range=True))


COLOR_CONFIGS = {
    "scale": UNetConfig(3, 3, 4, 2, "group", preprocess=PREPROCESS),
    "lite0": UNetConfig(3, 2, 4, 5, encoder=LITE0),
}


HUB_CONFIGS = {**COLOR_CONFIGS, "one size": GREY_CONFIG}


def hub_folder(config: UNetConfig, folder: Path) -> tuple[UNet, ModuleType]:
    """A model, and the code in the folder that is written of it."""
    torch.manual_seed(0)
    model = UNet(config).eval()
    Hub().write(model, folder, Options(license="mit"))
    return model, code_of(folder)


GREY = np.random.default_rng(0).integers(0, 256, (39, 55), dtype=np.uint8)


COLOR = np.random.default_rng(1).integers(0, 256, (64, 9, 3), dtype=np.uint8)


COLOR[:, :, 1] = COLOR[:, :, 0]


GREY_PICTURES = {"grey": GREY, "one pixel": GREY[:1, :1], "unit range": GREY // 128}


HUB_PICTURES = [
    *(
        pytest.param(config, GREY_PICTURES[name], id=f"{kind}, {name}")
        for kind, config in HUB_CONFIGS.items()
        for name in GREY_PICTURES
    ),
    *(pytest.param(config, COLOR, id=f"{kind}, color") for kind, config in COLOR_CONFIGS.items()),
]


@pytest.mark.parametrize(("config", "picture"), HUB_PICTURES)
def test_a_hub_folder_gives_the_masks_of_predict_py(config, picture, tmp_path):
    model, code = hub_folder(config, tmp_path)
    processor = code.UNetImageProcessor.from_pretrained(tmp_path)
    theirs = code.UNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    inputs = processor.preprocess(Image.fromarray(picture), return_tensors="pt")
    (pixels,) = Predictor(model).inputs(picture).tensors
    torch.testing.assert_close(inputs["pixel_values"][0], pixels.float())
    with torch.inference_mode():
        outputs = theirs(**inputs)
    (mask,) = processor.post_process_semantic_segmentation(outputs, [picture.shape[:2]])
    np.testing.assert_array_equal(mask, Predictor(model, tta=False).mask(picture))


def test_an_image_processor_that_is_saved_again_names_its_code(tmp_path):
    _, code = hub_folder(GREY_CONFIG, tmp_path)
    code.UNetImageProcessor.from_pretrained(tmp_path).save_pretrained(tmp_path / "copy")
    files = [folder / "preprocessor_config.json" for folder in (tmp_path, tmp_path / "copy")]
    original, copy = (json.loads(file.read_text()) for file in files)
    assert copy["auto_map"] == original["auto_map"]


def test_the_image_processor_of_a_hub_folder_refuses_colors_where_images_are_grey(tmp_path):
    _, code = hub_folder(GREY_CONFIG, tmp_path)
    processor = code.UNetImageProcessor.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the image is in color, but the model takes grey images"):
        processor.preprocess(Image.fromarray(COLOR))


@pytest.mark.parametrize("config", HUB_CONFIGS.values(), ids=HUB_CONFIGS)
def test_the_image_processor_of_a_hub_folder_takes_grey_pictures_in_any_mode(config, tmp_path):
    _, code = hub_folder(config, tmp_path)
    processor = code.UNetImageProcessor.from_pretrained(tmp_path)
    expected = processor.preprocess(Image.fromarray(GREY))["pixel_values"]
    paletted = Image.fromarray(255 - GREY).convert("P")
    paletted.putpalette([255 - value for value in range(256) for _ in range(3)])
    for image in (paletted, *map(Image.fromarray(GREY).convert, ("RGB", "RGBA", "P"))):
        np.testing.assert_array_equal(processor.preprocess(image)["pixel_values"], expected)


@pytest.mark.parametrize(
    ("config", "names"),
    [(COLOR_CONFIGS["scale"], ["a", "b", "c"]), (GREY_CONFIG, ["class 0", "class 1"])],
    ids=["named", "unnamed"],
)
def test_a_hub_folder_names_the_classes(config, names, tmp_path):
    _, code = hub_folder(config, tmp_path)
    theirs = code.UNetForSemanticSegmentation.from_pretrained(tmp_path)
    assert theirs.config.id2label == dict(enumerate(names))
    assert theirs.config.label2id == {name: index for index, name in enumerate(names)}
    assert f"Classes: {', '.join(names)}.\n" in ModelCard.load(tmp_path / "README.md").text


def test_the_card_of_a_hub_folder_says_the_task_of_a_pipeline(tmp_path):
    hub_folder(GREY_CONFIG, tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.pipeline_tag == "image-segmentation"
    assert card.data.library_name == "transformers"
    assert card.data.license == "mit"
    assert "`modeling_unet.py` holds the network" in card.text


def test_the_card_of_a_hub_folder_names_classes_in_any_letters_and_no_license_unless_one_is_given(tmp_path):
    config = UNetConfig(1, 2, 2, 1, preprocess=Preprocess(class_names=("Größe", "水")))
    Hub().write(UNet(config), tmp_path, Options())
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license is None
    assert "Classes: Größe, 水.\n" in card.text


def test_a_hub_folder_says_which_code_opens_it(tmp_path):
    _, code = hub_folder(GREY_CONFIG, tmp_path)
    entries = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    opened = {name: getattr(code, entry.removeprefix("modeling_unet.")) for name, entry in entries.items()}
    assert opened == {
        "AutoConfig": code.UNetConfig,
        "AutoModelForImageSegmentation": code.UNetForSemanticSegmentation,
        "AutoModelForSemanticSegmentation": code.UNetForSemanticSegmentation,
    }


@pytest.fixture
def grey_processor(tmp_path):
    """The image processor of a model of grey images."""
    Hub().write(UNet(UNetConfig(1, 2, 2, 1)), tmp_path, Options())
    return code_of(tmp_path).UNetImageProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_image_processor_of_a_hub_folder_takes_several_images(grey_processor, kind):
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 9), dtype=np.uint8)
    inputs = grey_processor.preprocess(kind(map(Image.fromarray, pictures)))
    assert np.array_equal(inputs["pixel_values"], pictures[:, None])


def test_the_image_processor_of_a_hub_folder_gives_each_mask_its_own_size(grey_processor):
    outputs = SimpleNamespace(logits=torch.arange(36.0).reshape(3, 3, 2, 2).flip(1))
    masks = grey_processor.post_process_semantic_segmentation(outputs, [(2, 2), (3, 5), (2, 5)])
    assert [mask.tolist() for mask in masks] == [[[0] * 2] * 2, [[0] * 5] * 3, [[0] * 5] * 2]
    assert [mask.shape for mask in grey_processor.post_process_semantic_segmentation(outputs)] == [(2, 2)] * 3


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS), "task landmarks"),
        (UNetConfig(1, 2, 4, 2, dims=3), "takes volumes"),
        (UNetConfig(1, 2, 4, 2, preprocess=Preprocess(pixel_types=("uint16",))), "1 channels of uint16"),
        (
            UNetConfig(3, 2, 4, 2, preprocess=Preprocess(pixel_types=("uint8", "uint16"))),
            "3 channels of uint8 and uint16",
        ),
        (UNetConfig(3, 2, 4, 5, encoder={"model_type": "resnet", "num_channels": 3}), "encoder of transformers"),
        (
            UNetConfig(4, 2, 4, 1, preprocess=Preprocess(pixel_types=("uint8",))),
            "takes 4 channels of uint8; a pipeline",
        ),
        (UNetConfig(4, 2, 4, 1), "takes 4 channels; a pipeline"),
        (UNetConfig(3, 2, 4, 1, kernels=((3, 3), (3, 1))), "its own kernels or strides"),
        (UNetConfig(3, 2, 4, 1, strides=((2, 1),)), "its own kernels or strides"),
        (UNetConfig(3, 2, preprocess=Preprocess(class_names=("a", "a"))), "two classes of one name"),
    ],
)
def test_a_model_that_no_pipeline_opens_is_no_hub_folder(config, line):
    assert line in Hub().problem(config)


@pytest.mark.parametrize("config", [UNetConfig(3, 2, 4, 1), UNetConfig(1, 2, 4, 1), KINDS["lite0"]])
def test_a_model_that_a_pipeline_opens_may_be_a_hub_folder(config):
    assert Hub().problem(config) is None


def test_a_hub_folder_of_a_model_of_volumes_is_refused(tmp_path):
    volumes = UNet(UNetConfig(1, 2, 4, 2, dims=3))
    with pytest.raises(ModelError, match=r"^the model takes volumes; a pipeline of transformers takes images$"):
        export_proved(Hub(), volumes, tmp_path / "hub", Options())
    assert list(tmp_path.iterdir()) == []
