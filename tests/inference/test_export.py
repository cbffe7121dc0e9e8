"""Models for other programs: each format gives the logits of predict.py on any size, or is not written.

Modules: inference/export/__main__.py, inference/export/graph.py, inference/export/hub.py, inference/export/onnx.py,
inference/export/opener.py, inference/export/openvino.py, inference/export/proof.py, inference/export/torch.py,
inference/export/export_format.py, inference/export/export_formats.py,
inference/onnx_network.py.
"""

import json
import socket
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from conftest import ROOT, launch, predict
from huggingface_hub import ModelCard
from networks import export
from PIL import Image

from data_utils.image_io.resize import resize_image
from inference import Predictor
from inference.export import __main__ as command
from inference.export import export_format as export_format_module
from inference.export import opener, proof
from inference.export.export_format import ExportFormat, Options, export_proved
from inference.export.export_formats import EXPORT_FORMATS
from inference.export.graph import ExportedNetwork, ProbabilityNetwork, resized, resized_bytes
from inference.export.hub import Hub
from inference.export.onnx import Onnx
from inference.export.opener import text_of, turn_network_off
from inference.onnx_network import OnnxNetwork
from runtime.errors import ModelError, SettingsError, WriteError
from unet import Preprocess, UNet, UNetConfig

PREPROCESS = Preprocess(
    scale=0.5,
    mean=(90.0,) * 3,
    std=(50.0,) * 3,
    class_names=("a", "b", "c"),
    class_values=((1, 2, 3), (4, 5, 6), (7, 8, 9)),
)


UNIT_RANGE = Preprocess(image_size=(40, 56), mean=(200.0,), std=(3.0,), detect_unit_range=True, pixel_types=("uint16",))
COLORS = Preprocess(mean=(90.0, 100.0, 80.0), std=(50.0, 60.0, 40.0))
PREPROCESS_OF_POINTS = Preprocess(scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3)
LITE0 = {"model_type": "efficientnet_lite0", "num_channels": 3, "_name_or_path": "lite0"}
POINTS = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}


def network(norm: str, upsample: str) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 3, 4, 2, norm, upsample, preprocess=PREPROCESS)).eval()


@pytest.mark.parametrize(
    ("norm", "upsample"),
    [("batch", "transpose"), ("group", "transpose"), ("instance", "bilinear"), ("batch", "bilinear_aligned")],
)
def test_logits_are_torchs_on_every_size(norm, upsample, tmp_path):
    model = network(norm, upsample)
    Onnx().write(model, tmp_path / "model.onnx", Options())
    exported = OnnxNetwork(tmp_path / "model.onnx")
    assert exported.config == model.config
    stored = onnx.load(tmp_path / "model.onnx")
    for value in (stored.graph.input[0], stored.graph.output[0]):
        names = [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        assert (names[0], *names[2:]) == ("batch", "height", "width")
    texts = {entry.key: entry.value for entry in stored.metadata_props}
    assert texts["decoding"] == "the class of a pixel is the index of its largest logit"
    for shape in ((1, 47, 55), (3, 64, 64), (2, 8, 8), (1, 101, 9), (1, 5, 40), (1, 1, 1), (1, 15, 16), (1, 3, 300)):
        images = torch.rand(shape[0], 3, *shape[1:]) * 255
        with torch.inference_mode():
            expected, got = model(images), exported(images)
        assert got.shape == expected.shape
        # float32, sums in another order: measured 6e-8 of 0.4, and 1.1e-5 of 1.4 where a norm sees few pixels
        assert (got - expected).abs().max() < (5e-7 if norm == "batch" else 5e-5)


def test_the_command_writes_a_file_that_predict_and_python_take(tmp_path):
    network("batch", "transpose").save_pretrained(tmp_path / "model")
    file, image = tmp_path / "model.onnx", tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (93, 71, 3), dtype=np.uint8)).save(image)
    result = launch("-m", "inference.export", tmp_path / "model", file)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.onnx", "a.png"}
    assert "its logits agree with torch's" in result.stdout
    expected = Predictor.from_pretrained(tmp_path / "model")(image)
    for predictor in (Predictor(str(file)), Predictor.from_pretrained(file)):
        np.testing.assert_allclose(predictor(image).probabilities, expected.probabilities, rtol=0, atol=1e-6)  # 6e-8
    raw = np.asarray(Image.open(image), np.float32).transpose(2, 0, 1)[None]  # at twice the network's size
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (logits,) = onnxruntime.InferenceSession(file, options).run(["logits"], {"images": raw})
    np.testing.assert_array_equal(logits[0].argmax(0), expected.mask)
    for model, output in ((tmp_path / "model", "one"), (file, "two")):
        result = predict(model, [image], tmp_path / output)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "one" / "a.png").read_bytes() == (tmp_path / "two" / "a.png").read_bytes()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    ("size", "target"), [((97, 131), (48, 65)), ((15, 15), (7, 7)), ((1, 1), (1, 1)), ((40, 30), (64, 9))]
)
def test_the_graph_resizes_as_predict_py_does(channels, size, target):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*size, channels), dtype=np.uint8)
    expected = resize_image(image, target).transpose(2, 0, 1)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    np.testing.assert_array_equal(resized_bytes(pixels, target)[0], expected)
    image = rng.normal(1000, 300, (*size, channels)).astype(np.float32)
    expected = resize_image(image, target).transpose(2, 0, 1)
    np.testing.assert_array_equal(resized(torch.from_numpy(image).permute(2, 0, 1)[None], target)[0], expected)


@pytest.mark.slow
def test_a_program_of_torch_takes_raw_images_of_any_size(tmp_path):
    model = network("batch", "transpose")
    export_proved(EXPORT_FORMATS["torch"], model, tmp_path / "model.pt2", Options())
    texts = {"config.json": "", "description.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=texts).module()
    assert UNetConfig.from_json(json.loads(texts["config.json"])) == model.config
    assert "largest logit" in json.loads(texts["description.json"])["decoding"]
    predictor = Predictor(model)
    for size in ((97, 131), (15, 15), (1, 2)):
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
        with torch.inference_mode():
            logits = program(torch.from_numpy(image).permute(2, 0, 1)[None].float())
        np.testing.assert_array_equal(logits[0].argmax(0), predictor.mask(image))
    with pytest.raises(SettingsError, match=r"model\.zip: the name must end in \.pt2"):
        export_proved(EXPORT_FORMATS["torch"], model, tmp_path / "model.zip", Options())


KINDS = {
    "instance": UNetConfig(3, 3, 4, 3, "instance", "bilinear", preprocess=PREPROCESS),
    "lite0": UNetConfig(3, 3, 4, 5, encoder=LITE0),
    "volumes": UNetConfig(1, 3, 4, 2, "instance", dims=3),
    "flat volumes": UNetConfig(1, 3, 4, 2, "batch", dims=3, kernels=((1, 3, 3),) * 3, strides=((1, 2, 2), (2, 2, 2))),
    "unit range": UNetConfig(1, 2, 4, 2, preprocess=UNIT_RANGE),
    "landmarks": UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS),
}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_the_network_that_is_exported_computes_all_that_predict_py_does(config):
    torch.manual_seed(0)
    model = UNet(config).eval()
    sizes = ((2, 37, 53), (1, 3, 40), (1, 1, 1)) if config.dims == 2 else ((2, 9, 19, 26), (1, 8, 5, 5), (1, 3, 3, 5))
    batches = [proof.images_of(config, size) for size in sizes]
    if config.preprocess.detect_unit_range:
        batches.append(np.ones_like(batches[0]))
        batches.append(np.concatenate([batches[0][:1], batches[-1][:1]]))  # each image has its own range
    layers = [type(module) for module in model.modules()]
    expected_batches = proof.expected_logits(model, batches)
    assert [type(module) for module in model.modules()] == layers
    for images, expected in zip(batches, expected_batches, strict=True):
        with torch.inference_mode():
            answer = ExportedNetwork(model)(torch.from_numpy(images.astype(np.float32)))
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-4)


def test_an_image_of_a_unit_range_is_left_as_it_is_where_nothing_is_to_be_prepared():
    torch.manual_seed(0)
    model = UNet(KINDS["unit range"]).eval()
    images = torch.rand(2, 1, 9, 12)
    with torch.inference_mode():
        answer = ExportedNetwork(model)(images, torch.tensor(False))
        torch.testing.assert_close(answer, model(images), rtol=1e-4, atol=1e-4)


def test_a_network_that_answers_probabilities_has_those_of_each_pixel_add_up_to_one():
    torch.manual_seed(0)
    model = UNet(UNetConfig(1, 3, 4, 2, "group")).eval()
    images = torch.rand(2, 1, 9, 12)
    with torch.inference_mode():
        probabilities = ProbabilityNetwork(model)(images)
        torch.testing.assert_close(probabilities, model(images).softmax(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("target", ["onnx", "torch"])
def test_all_kinds_of_models_are_proved(config, target, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / f"model{EXPORT_FORMATS[target].suffix}"
    export_proved(EXPORT_FORMATS[target], UNet(config), path, Options())
    assert path.is_file()


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
def test_a_pipeline_opens_the_folder_without_this_project_and_gives_the_masks_of_predict_py(encoder, tmp_path):
    torch.manual_seed(0)
    UNet(UNetConfig(3, 3, 4, 5, preprocess=PREPROCESS, encoder=encoder)).save_pretrained(tmp_path / "model")
    result = launch("-m", "inference.export", tmp_path / "model", tmp_path / "hub", "--to", "hub", "--license", "mit")
    assert result.returncode == 0, result.stderr
    assert "in transformers its masks are those of predict.py" in result.stdout
    data = ModelCard.load(tmp_path / "hub" / "README.md").data
    assert (data.pipeline_tag, data.library_name, data.license) == ("image-segmentation", "transformers", "mit")
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
        UNetConfig(1, 2, 16, 2, "instance", "bilinear_aligned", block="residual"),
        UNetConfig(3, 2, 4, 5, upsample="bilinear", encoder=LITE0),
    ],
    ids=["batch", "group", "instance", "lite0"],
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


@pytest.mark.parametrize(
    "config",
    [
        UNetConfig(3, 3, 4, 2, "group", preprocess=PREPROCESS),
        UNetConfig(1, 2, 4, 2, preprocess=Preprocess((40, 56), mean=(90.0,), std=(30.0,), detect_unit_range=True)),
        UNetConfig(3, 2, 4, 5, encoder=LITE0),
    ],
    ids=["scale", "one size", "lite0"],
)
def test_the_image_processor_of_a_hub_folder_and_its_network_give_the_masks_of_predict_py(config, tmp_path):
    torch.manual_seed(0)
    model = UNet(config).eval()
    Hub().write(model, tmp_path, Options(license="mit"))
    code = code_of(tmp_path)
    theirs = code.UNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    processor = code.UNetImageProcessor.from_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (39, 55), dtype=np.uint8)
    color = rng.integers(0, 256, (64, 9, 3), dtype=np.uint8)
    color[:, :, 1] = color[:, :, 0]
    pictures = [grey, grey[:1, :1], grey // 128, color]
    if config.in_channels == 1:
        with pytest.raises(ValueError, match="the image is in color, but the model takes grey images"):
            processor.preprocess(Image.fromarray(pictures.pop()))
    paletted = Image.fromarray(255 - grey).convert("P")
    paletted.putpalette([255 - value for value in range(256) for _ in range(3)])
    for image in (paletted, *map(Image.fromarray(grey).convert, ("RGB", "RGBA", "P"))):
        same = processor.preprocess(image)
        np.testing.assert_array_equal(same["pixel_values"], processor.preprocess(Image.fromarray(grey))["pixel_values"])
    for picture in pictures:
        inputs = processor.preprocess(Image.fromarray(picture), return_tensors="pt")
        (pixels,) = Predictor(model).inputs(picture).tensors
        torch.testing.assert_close(inputs["pixel_values"][0], pixels.float())
        with torch.inference_mode():
            outputs = theirs(**inputs)
        (mask,) = processor.post_process_semantic_segmentation(outputs, [picture.shape[:2]])
        np.testing.assert_array_equal(mask, Predictor(model, tta=False).mask(picture))
    names = ["a", "b", "c"] if config.preprocess.class_names else ["class 0", "class 1"]
    assert theirs.config.id2label == dict(enumerate(names))
    assert theirs.config.label2id == {name: index for index, name in enumerate(names)}
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.pipeline_tag, card.data.library_name, card.data.license) == (
        "image-segmentation",
        "transformers",
        "mit",
    )
    assert f"Classes: {', '.join(names)}.\n" in card.text
    assert "`modeling_unet.py` holds the network" in card.text


def test_the_image_processor_of_a_hub_folder_takes_several_images_each_with_its_own_size(tmp_path):
    Hub().write(UNet(UNetConfig(1, 2, 2, 1)), tmp_path, Options())
    processor = code_of(tmp_path).UNetImageProcessor.from_pretrained(tmp_path)
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 9), dtype=np.uint8)
    for images in (list(map(Image.fromarray, pictures)), tuple(map(Image.fromarray, pictures))):
        assert np.array_equal(processor.preprocess(images)["pixel_values"], pictures[:, None])
    outputs = SimpleNamespace(logits=torch.arange(24.0).reshape(2, 3, 2, 2).flip(1))
    masks = processor.post_process_semantic_segmentation(outputs, [(2, 2), (3, 5)])
    assert [mask.tolist() for mask in masks] == [[[0] * 2] * 2, [[0] * 5] * 3]
    assert [mask.shape for mask in processor.post_process_semantic_segmentation(outputs)] == [(2, 2)] * 2


def test_images_that_an_export_is_checked_on_are_like_those_of_the_training():
    deep = Preprocess(mean=(30_000.0, 500.0), std=(100.0, 50.0), pixel_types=("uint16",))
    images = proof.images_of(UNetConfig(2, 2, preprocess=deep), (2, 97, 131))
    assert images.shape == (2, 2, 97, 131)
    assert images.dtype == np.uint16
    assert images.mean(axis=(0, 2, 3)) == pytest.approx([30_000, 500], rel=0.1)
    assert 50 < images[:, 0].std() < 200
    assert 25 < images[:, 1].std() < 100
    first = images[0, 0].astype(float)
    for one, other in ((first[:-1], first[1:]), (first[:, :-1], first[:, 1:])):  # neighbors are alike
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.3
    plain = proof.images_of(UNetConfig(3, 2), (1, 15, 15))
    assert plain.shape == (1, 3, 15, 15)
    assert plain.dtype == np.uint8
    assert 80 < plain.mean() < 170
    signed = proof.images_of(UNetConfig(1, 2, preprocess=Preprocess(pixel_types=("int16",), mean=(0.0,))), (1, 15, 15))
    assert signed.dtype == np.int16
    assert signed.min() == 0
    bright = proof.images_of(UNetConfig(1, 2, preprocess=Preprocess(mean=(250.0,), std=(30.0,))), (1, 40, 40))
    assert (bright.max(), bright.min() > 60) == (255, True)  # none is beyond the range, and begins again at 0
    real = Preprocess(pixel_types=("float32",), mean=(0.5,), std=(0.1,))
    assert proof.images_of(UNetConfig(1, 2, preprocess=real), (1, 15, 15)).dtype == np.float32
    scans = Preprocess(mean=(50.0,), std=(10.0,), pixel_types=("int16",))
    volume = proof.images_of(UNetConfig(1, 2, dims=3, preprocess=scans), (2, 5, 20, 30))
    assert volume.shape == (2, 1, 5, 20, 30)
    assert volume.dtype == np.float32
    assert (volume.mean(), volume.std()) == (pytest.approx(50, abs=1), pytest.approx(10, abs=1))
    sizes = [[images.shape for images in proof.checked_images(UNetConfig(1, 2, 4, 2, dims=dims))] for dims in (2, 3)]
    assert [len(shapes) for shapes in sizes] == [7, 5]
    assert sizes[0][4] == (3, 1, 23, 130)
    assert sizes[1][1] == (2, 1, 9, 19, 26)


class Empty(ExportFormat):
    """A format of an empty file."""

    runtime = "nothing"
    openers = ("onnx", "torch")

    def hint(self, config: UNetConfig) -> str:
        return "take another" if config.norm == "batch" else ""

    def write(self, model: UNet, path: Path, options: Options) -> None:
        assert not model.training
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        path.touch()


def test_what_opens_a_file_is_asked_by_each_name_and_a_refusal_has_the_hint_of_its_format(tmp_path, monkeypatch):
    calls = []

    def check_answers(opener: str, runtime: str, path: Path, batches: list, expected: list) -> None:
        assert path.is_file()
        calls.append((opener, runtime, len(batches), [len(answer) for answer in expected]))
        if len(calls) > 2:
            raise ModelError("its answers differ")

    monkeypatch.setattr(export_format_module, "check_answers", check_answers)
    model = UNet(UNetConfig(1, 2, 2, 1, dims=3)).half().train()
    export_proved(Empty(), model, tmp_path / "a", Options())
    assert calls == [(name, "nothing", 5, [1, 2, 1, 1, 3]) for name in ("onnx", "torch")]
    with pytest.raises(ModelError, match=r"^its answers differ; take another$"):
        export_proved(Empty(), model, tmp_path / "b", Options())
    with pytest.raises(ModelError, match=r"^its answers differ$"):
        export_proved(Empty(), UNet(UNetConfig(1, 2, 2, 1, "group", dims=3)), tmp_path / "b", Options())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(ModelError, match=r"^no_such_package is not installed: pip install x$"):
        export_format_module.import_package("no_such_package", "pip install x")


def test_a_format_hints_at_what_its_runtime_does_not_take():
    onnx_format, openvino_format = EXPORT_FORMATS["onnx"], EXPORT_FORMATS["openvino"]
    swin = "encoders with window attention (Swin) cannot be exported"
    assert (onnx_format.hint(KINDS["lite0"]), onnx_format.hint(KINDS["volumes"])) == (swin, "")
    assert openvino_format.hint(KINDS["unit range"]).endswith("just as predict.py does: take --to onnx")
    assert openvino_format.hint(KINDS["lite0"]) == openvino_format.hint(KINDS["volumes"]) == ""


def test_a_file_says_what_it_takes_and_of_which_size_its_logits_are():
    images, volumes, points = (
        EXPORT_FORMATS["onnx"].description(KINDS[kind]) for kind in ("lite0", "volumes", "landmarks")
    )
    assert images["images"] == "(batch, channels, height, width), pixel values as they are in image files"
    assert volumes["images"] == (
        "(batch, channels, depth, height, width), voxels clipped, standardized and resampled as `preprocess` in the"
        " config says"
    )
    assert images["logits"] == volumes["logits"] == "of the size of the images"
    assert points["logits"] == "of the size at which the network sees the images"
    assert EXPORT_FORMATS["onnx"].description(KINDS["instance"])["logits"] == "of the size of the images"


def test_the_command_passes_its_flags_on_and_says_what_was_proved(tmp_path, monkeypatch, capsys):
    taken = []
    model = UNet(UNetConfig(3, 2, 2, 1))
    volumes = UNet(UNetConfig(1, 2, 2, 1, dims=3))
    networks = {"runs/x/model": model, "me/liver": volumes}
    monkeypatch.setattr(UNet, "from_pretrained", networks.__getitem__)
    monkeypatch.setattr(command, "export_proved", lambda *arguments: taken.append(arguments))

    def exported(*words: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["export", *map(str, words)])
        command.main()
        return capsys.readouterr().out

    file = tmp_path / "a"
    agree = "its logits agree with torch's to 0.0001"
    assert exported("runs/x/model", file) == f"wrote {file}; in onnxruntime {agree} on 7 image sizes\n"
    assert exported("me/liver", file, "--to", "torch") == f"wrote {file}; in torch {agree} on 5 image sizes\n"
    printed = exported("runs/x/model", file, "--to", "openvino", "--mask")
    assert printed == f"wrote {file}; in OpenVINO its masks are those of predict.py on 7 image sizes\n"
    exported("runs/x/model", file, "--to", "bioimageio", "--license", "mit", "--author", "A", "--author", "B")
    folder = Path("runs/x/model")
    names = ("onnx", "torch", "openvino", "bioimageio")
    assert [arguments[0] for arguments in taken] == [EXPORT_FORMATS[name] for name in names]
    assert [arguments[1] for arguments in taken] == [model, volumes, model, model]
    assert {arguments[2] for arguments in taken} == {file}
    assert [arguments[3] for arguments in taken] == [
        Options(folder=folder),
        Options(folder=Path("me/liver")),
        Options(mask=True, folder=folder),
        Options("mit", ["A", "B"], None, folder),
    ]

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(command, "export_proved", full_disk)
    with pytest.raises(WriteError, match=r"a: cannot be written \(\[Errno 28\] No space left\)$"):
        exported("runs/x/model", file)


def test_the_answers_before_an_error_are_written_and_none_of_what_cannot_be_opened(tmp_path, monkeypatch):
    def open_model(path: str) -> opener.Answer:
        calls.append("open")
        if path == "broken":
            raise ValueError("no\nmodel")
        return answer

    def answer(images: np.ndarray) -> np.ndarray:
        if len(images) == 3:
            raise ValueError("too  large")
        return images + 1

    calls = []
    monkeypatch.setattr(opener, "turn_network_off", lambda: calls.append("off"))
    monkeypatch.setitem(opener.OPENERS, "onnx", open_model)
    np.savez(tmp_path / "images.npz", np.zeros(1), np.zeros(2), np.zeros(3), np.zeros(4))
    answers = tmp_path / "answers.npz"
    with pytest.raises(SystemExit, match=r"^no model$"):
        opener.main("onnx", "broken", str(tmp_path / "images.npz"), str(answers))
    assert not answers.exists()
    with pytest.raises(SystemExit, match=r"^too large$"):
        opener.main("onnx", "model", str(tmp_path / "images.npz"), str(answers))
    with np.load(answers) as content:
        assert [content[key].tolist() for key in content.files] == [[1], [1, 1]]
    assert calls == ["off", "open"] * 2


@pytest.mark.parametrize(
    ("answered", "printed", "complaint"),
    [
        (2, "", "it ended with exit code 3"),
        (1, "a warning\ntoo large\n", "too large"),
        (None, "a warning\nno model\n", "no model"),
    ],
)
def test_a_process_that_opens_a_model_leaves_its_answers_and_a_complaint(
    answered, printed, complaint, tmp_path, monkeypatch
):
    def run(command: list[str], cwd: str, env: dict[str, str], **options: bool) -> SimpleNamespace:
        *_, name, model, images, answers = command
        assert (name, model) == ("onnx", str(tmp_path / "model.onnx"))
        assert (env["HF_HUB_OFFLINE"], env["HF_MODULES_CACHE"], env["PATH"]) == ("1", cwd, "here")
        with np.load(images) as batches:
            arrays = [batches[key] + 1 for key in batches.files]
        if answered is not None:
            np.savez(answers, *arrays[:answered])
        return SimpleNamespace(stderr=printed, returncode=3)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "here")
    monkeypatch.setattr(proof.subprocess, "run", run)
    found, said = proof.opened_answers("onnx", Path("model.onnx"), [np.zeros(1), np.zeros(2)])
    assert said == complaint
    if answered is None:
        assert found is None
    else:
        assert [array.tolist() for array in found] == [[1], [1, 1]][:answered]


def test_the_first_error_of_a_test_is_told():
    error = SimpleNamespace(msg="differs")
    details = [SimpleNamespace(name="load", errors=[]), SimpleNamespace(name="run", errors=[error, None])]
    assert opener.first_error(SimpleNamespace(details=details)) == "run: differs"
    assert opener.first_error(SimpleNamespace(details=details[:1])) == "it says not why"


def test_what_no_pipeline_opens_is_refused_in_one_line(tmp_path):
    config = UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS)
    refusals = {
        "task landmarks": config,
        "takes volumes": UNetConfig(1, 2, 4, 2, dims=3),
        "1 channels of uint16": UNetConfig(1, 2, 4, 2, preprocess=Preprocess(pixel_types=("uint16",))),
        "encoder of transformers": UNetConfig(3, 2, 4, 5, encoder={"model_type": "resnet", "num_channels": 3}),
    }
    for line, config in refusals.items():
        assert line in Hub().problem(config)
    assert Hub().problem(UNetConfig(3, 2, 4, 1)) is None
    assert Hub().problem(UNetConfig(1, 2, 4, 1)) is Hub().problem(KINDS["lite0"]) is None
    four = UNetConfig(4, 2, 4, 1, preprocess=Preprocess(pixel_types=("uint8",)))
    assert "takes 4 channels of uint8; a pipeline" in Hub().problem(four)
    assert "takes 4 channels; a pipeline" in Hub().problem(UNetConfig(4, 2, 4, 1))
    for axes in ({"kernels": ((3, 3), (3, 1))}, {"strides": ((2, 1),)}):
        assert "its own kernels or strides" in Hub().problem(UNetConfig(3, 2, 4, 1, **axes))
    assert "two classes of one name" in Hub().problem(UNetConfig(3, 2, preprocess=Preprocess(class_names=("a", "a"))))
    volumes = UNet(refusals["takes volumes"])
    with pytest.raises(ModelError, match=r"^the model takes volumes; a pipeline of transformers takes images$"):
        export_proved(Hub(), volumes, tmp_path / "hub", Options())
    with pytest.raises(SettingsError, match=r"model_pt2: the name must end in \.pt2"):
        export_proved(EXPORT_FORMATS["torch"], volumes, tmp_path / "model_pt2", Options())
    with pytest.raises(SettingsError, match="--license is not for --to onnx"):
        export_proved(EXPORT_FORMATS["onnx"], volumes, tmp_path / "a.onnx", Options(license="mit"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_proved", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [None, True])
def test_openvino_takes_bytes_and_answers_logits_or_masks(mask, is_proved, tmp_path):
    torch.manual_seed(0)
    preprocess = Preprocess(mean=(90.0,) * 3, std=(50.0,) * 3, pixel_types=("uint8",))
    model = UNet(UNetConfig(3, 3, 4, 3, preprocess=preprocess)).eval()
    if is_proved:
        export_proved(EXPORT_FORMATS["openvino"], model, tmp_path / "ir", Options(mask=mask))
    else:
        (tmp_path / "ir").mkdir()
        EXPORT_FORMATS["openvino"].write(model, tmp_path / "ir", Options(mask=mask))
    assert {path.name for path in (tmp_path / "ir").iterdir()} == {"model.xml", "model.bin"}
    network = openvino.compile_model(tmp_path / "ir" / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    image = np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8)
    answer = network({"images": image.transpose(2, 0, 1)[None]})["mask" if mask else "logits"].copy()
    del network  # OpenVINO leaves a dead stack for signals where the first of two networks ends first
    of_proof = opener.OPENERS["openvino"](str(tmp_path / "ir"))
    np.testing.assert_array_equal(of_proof(image.transpose(2, 0, 1)[None]), answer)
    classes = answer[0] if mask else answer[0].argmax(0)
    np.testing.assert_array_equal(classes, Predictor(model).mask(image))


@pytest.mark.parametrize("pixel_types", [("uint16", "uint8"), ()], ids=["mixed", "unknown"])
def test_openvino_takes_numbers_where_not_all_images_are_known_to_have_bytes(pixel_types, tmp_path):
    preprocess = Preprocess(pixel_types=pixel_types, class_names=("a", "b"))
    model = UNet(UNetConfig(3, 2, 2, 1, preprocess=preprocess, task={"name": "overlapping"})).eval()
    EXPORT_FORMATS["openvino"].write(model, tmp_path, Options())
    network = openvino.Core().read_model(tmp_path / "model.xml")
    assert network.input(0).element_type == openvino.Type.f32
    config = json.loads(network.get_rt_info(["unet_accelerate", "config"]).value)
    assert UNetConfig.from_json(config) == model.config
    assert network.get_rt_info(["unet_accelerate", "decoding"]).value == "a pixel has each class whose logit is above 0"


class TwoFiles(Empty):
    """A format of a folder, which nothing opens."""

    is_folder = True
    openers = ()

    def write(self, model: UNet, path: Path, options: Options) -> None:
        for name in ("model.xml", "model.bin"):
            (path / name).touch()


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    model = UNet(UNetConfig(3, 3, 4, 2))
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(SettingsError, match=r"model: is a folder with other files, which would be lost"):
        export_proved(TwoFiles(), model, tmp_path / "model", Options())
    with pytest.raises(SettingsError, match="model: is a folder, and --to onnx writes a file"):
        export_proved(EXPORT_FORMATS["onnx"], model, tmp_path / "model", Options())
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    assert (tmp_path / "model" / "model.safetensors").is_file()
    (tmp_path / "ir").mkdir()
    for _ in range(2):
        export_proved(TwoFiles(), model, tmp_path / "ir", Options())
    assert {path.name for path in (tmp_path / "ir").iterdir()} == {"model.xml", "model.bin"}
    with pytest.raises(SettingsError, match="is a file, and --to openvino writes a folder"):
        export_proved(EXPORT_FORMATS["openvino"], model, tmp_path / "ir" / "model.xml", Options())


def test_a_model_is_opened_with_the_network_off(monkeypatch):
    for owner, name in ((socket, "getaddrinfo"), (socket.socket, "connect"), (socket.socket, "connect_ex")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that they come back
    turn_network_off()
    with socket.socket() as connection:
        for connect in (
            lambda: socket.getaddrinfo("localhost", 1),
            lambda: connection.connect(("127.0.0.1", 1)),
            lambda: connection.connect_ex(("127.0.0.1", 1)),
        ):
            with pytest.raises(OSError, match="a model that is checked must not need the network"):
                connect()


def test_what_a_runtime_raises_is_one_line_even_if_it_says_nothing():
    assert text_of(ValueError("no such\n  operator")) == "no such operator"
    assert text_of(NotImplementedError()) == "NotImplementedError"


def test_a_mask_is_refused_where_pixels_have_no_single_class(tmp_path):
    model = UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS_OF_POINTS, task=POINTS))
    with pytest.raises(ModelError, match=r"--mask is for models of classes, and the task is landmarks"):
        export_proved(EXPORT_FORMATS["openvino"], model, tmp_path / "ir", Options(mask=True))


def test_a_mask_may_differ_only_where_two_classes_are_equally_likely():
    logits = torch.tensor([[[[1.0, 2.0]], [[1.00001, 0.0]]]])
    proof.check_mask("transformers", torch.tensor([[[0, 0]]]), logits)
    with pytest.raises(ModelError, match=r"masks differ from predict\.py's in 1 of 2 pixels at 1 x 2"):
        proof.check_mask("transformers", torch.tensor([[[1, 1]]]), logits)
    proof.check_mask("transformers", torch.tensor([[[1, 0]]]), 1e-3 * torch.tensor([[[[1.01, 2.0]], [[1.0, 0.0]]]]))
    large = torch.tensor([[[[500.0]], [[500.04]]]])  # a ten thousandth of it is 0.05
    proof.check_mask("transformers", torch.tensor([[[0]]]), large)
    with pytest.raises(ModelError, match="in 1 of 1 pixels"):
        proof.check_mask("transformers", torch.tensor([[[0]]]), large + torch.tensor([[[[0.0]], [[0.02]]]]))
    with pytest.raises(ModelError, match="not of the size of the images"):
        proof.check_mask("transformers", torch.tensor([[[1]]]), logits)


def test_answers_may_differ_by_a_ten_thousandth_of_the_largest_logit(monkeypatch):
    expected = [torch.full((1, 2, 4, 4), 10.0), torch.zeros(1, 2, 5, 6)]
    batches = [np.zeros((1, 1, *logits.shape[2:])) for logits in expected]
    ten, zero = (logits.numpy() for logits in expected)

    def check(*answers: np.ndarray, complaint: str = "") -> None:
        monkeypatch.setattr(proof, "opened_answers", lambda *_: (list(answers) or None, complaint))
        proof.check_answers("onnx", "onnxruntime", Path("model.onnx"), batches, expected)

    check(ten + 0.0009, zero + 0.00009)
    check(ten, np.zeros((1, 5, 6), np.int64))  # a mask
    mask = np.zeros((1, 4, 4), np.int64)
    for answers, line in (
        ((ten, zero + 0.00012), r"answers differ from torch's by 1\.2e-04 at 5 x 6 pixels"),
        ((ten + 0.0012, zero), r"answers differ from torch's by 1\.2e-04 at 4 x 4 pixels"),
        ((ten, zero[:, :1]), "answers differ from torch's by inf at 5 x 6 pixels"),
        ((mask, zero[:, :1]), "answers differ from torch's by inf at 5 x 6 pixels"),
        ((mask,), "onnxruntime cannot compute images of 5 x 6 pixels: no such size"),
        ((), "onnxruntime cannot open the model: no such size"),
    ):
        with pytest.raises(ModelError, match=line):
            check(*answers, complaint="no such size")


@pytest.mark.slow
def test_a_file_whose_logits_differ_is_not_kept(tmp_path, monkeypatch):
    model = network("batch", "transpose")
    monkeypatch.setattr(proof, "TOLERANCE", 1e-9)
    with pytest.raises(ModelError, match="answers differ from torch's"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_exported_model_says_so(tmp_path, fails_with):
    with pytest.raises(ModelError, match="no such file"):
        Predictor(str(tmp_path / "none.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    result = predict(tmp_path / "bad.onnx", [tmp_path], tmp_path / "out")
    fails_with(result, "bad.onnx: cannot be loaded", 1)
    Onnx().write(network("batch", "transpose"), tmp_path / "model.onnx", Options())
    foreign = onnx.load(tmp_path / "model.onnx")
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(ModelError, match=r"must be written by `python -m inference\.export"):
        OnnxNetwork(tmp_path / "foreign.onnx")
    content = (tmp_path / "model.onnx").read_bytes()
    (tmp_path / "no_text.onnx").write_bytes(content.replace(b'"in_channels"', b'"in_ch\xffnnels"'))
    with pytest.raises(ModelError, match=r"no_text\.onnx: its metadata are no text"):
        OnnxNetwork(tmp_path / "no_text.onnx")
    result = launch("-m", "inference.export", tmp_path / "nowhere", tmp_path / "a.onnx")
    fails_with(result, f"{tmp_path / 'nowhere'}: is not a folder with config.json", 1)
    assert result.stderr.startswith("export: error: ")
    assert not (tmp_path / "a.onnx").exists()


def test_a_file_without_a_name_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["export", "model", ""])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err.endswith("argument output: it is empty\n")


@pytest.mark.slow
def test_onnxruntime_is_imported_only_when_used():
    code = "import sys, unet, inference; sys.exit('onnxruntime' in sys.modules or 'onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="pip install onnx onnxruntime"):
        OnnxNetwork(Path(tmp_path / "model.onnx"))
