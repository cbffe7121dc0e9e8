"""Packages of bioimage.io: what they say, and that both of their weights give the probabilities of predict.py.

Modules: inference/export/bioimageio.py.
"""

import hashlib
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from PIL import Image
from support.exports import KINDS
from support.launches import launch

from data_utils.visualize import palette
from inference import Predictor
from inference.export import bioimageio as module
from inference.export.bioimageio import (
    BioImageIo,
    answer_names,
    answer_text,
    draw_cover,
    input_entry,
    output_entry,
    overlap_text,
    rdf_content,
    read_license,
    title_and_text,
)
from inference.export.export_format import Options, export_proved
from runtime.errors import ModelError, SettingsError
from unet import Preprocess, UNet, UNetConfig

PREPROCESS = Preprocess(
    scale=0.5,
    mean=(90.0,) * 3,
    std=(50.0,) * 3,
    class_names=("sky", "land and sea"),
    class_values=(0, 255),
    pixel_types=("uint8",),
)
NAMES = {"class_names": ("other", "liver"), "class_values": (0, 1)}
SCANS = Preprocess(standardize=True, spacing=(2.0, 0.5, 0.5), **NAMES)
CT = Preprocess(clip=(-100.0, 300.0), mean=(50.0,), std=(80.0,), **NAMES)
OWNED = Options(author=["A. Person", "Another"], license="mit")


def small_model() -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS)).eval()


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The files of a package of a model without a run; bioimageio.core need not be there to write it."""
    folder = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "import_package", lambda *names: None)
        BioImageIo().write(small_model(), folder / "cells.zip", OWNED)
    ZipFile(folder / "cells.zip").extractall(folder)
    return folder


@pytest.fixture
def core() -> None:
    """Skips where bioimageio.core cannot be had."""
    pytest.importorskip("bioimageio.core", reason="needs requirements-export.txt")
    if tuple(map(int, version("pydantic").split(".")[:2])) >= module.PYDANTIC:
        pytest.skip("needs the pydantic of requirements-export.txt")


@pytest.fixture(scope="module")
def description(package) -> dict:
    """What a package says of its model."""
    return yaml.safe_load((package / "rdf.yaml").read_text())


def test_a_package_says_whose_it_is(description):
    assert [author["name"] for author in description["authors"]] == ["A. Person", "Another"]
    assert description["license"] == "MIT"


def test_a_package_says_what_it_takes_as_well_as_what_it_answers(description):
    (image,), (answer,) = description["inputs"], description["outputs"]
    assert image["axes"][1]["channel_names"] == ["red", "green", "blue"]
    assert image["data"]["range"] == [0, 255]
    assert answer["axes"][1]["channel_names"] == ["sky", "land_and_sea"]


def test_a_package_holds_the_config_of_its_model(description):
    config = yaml.safe_load(yaml.safe_dump(small_model().config.to_json()))
    assert description["config"]["unet_accelerate"]["config"] == config


def test_a_package_has_the_checksums_of_its_files(package, description):
    (image,), (answer,) = description["inputs"], description["outputs"]
    entries = [image["test_tensor"], answer["test_tensor"], *description["weights"].values()]
    for entry in entries:
        assert hashlib.sha256((package / entry["source"]).read_bytes()).hexdigest() == entry["sha256"]


def test_a_package_says_what_its_weights_are_of(description):
    torchscript, onnx = description["weights"]["torchscript"], description["weights"]["onnx"]
    assert torchscript["pytorch_version"] == torch.__version__.split("+")[0]  # without the name of a build
    assert onnx["opset_version"] == 17
    assert onnx["parent"] == "torchscript"


def test_weights_for_onnxruntime_name_the_answer_and_its_axes(package):
    (answer,) = onnx.load(package / "weights.onnx").graph.output
    batch, _, *axes = [axis.dim_param for axis in answer.type.tensor_type.shape.dim]
    assert answer.name == "probabilities"
    assert [batch, *axes] == ["batch", "height", "width"]


def test_the_test_tensors_of_a_package_are_of_real_numbers(package):
    for name in ("test_image.npy", "test_probabilities.npy"):
        assert np.load(package / name).dtype == np.float32


def test_a_package_says_when_it_was_made_in_any_time_zone(description):
    time = datetime.fromisoformat(description["timestamp"])
    assert abs(datetime.now(timezone.utc) - time) < timedelta(hours=1)


def test_a_package_has_a_cover(package, description):
    assert Image.open(package / description["covers"][0]).size == (800, 400)


def test_a_package_says_how_tiles_are_to_overlap(package, description):
    assert "overlap by" in (package / description["documentation"]).read_text()


def onnx_probabilities(package: Path, images: np.ndarray) -> np.ndarray:
    """What onnxruntime answers."""
    (probabilities,) = onnxruntime.InferenceSession(package / "weights.onnx").run(None, {"images": images})
    return probabilities


def torch_probabilities(package: Path, images: np.ndarray) -> np.ndarray:
    """What torch answers."""
    with torch.inference_mode():
        return torch.jit.load(package / "weights.pt")(torch.from_numpy(images)).numpy()


@pytest.mark.parametrize("answer", [onnx_probabilities, torch_probabilities], ids=["onnx", "torch"])
@pytest.mark.parametrize("size", [(97, 131), (15, 15), (1, 2)])
def test_weights_of_a_package_give_the_probabilities_of_predict_py(package, size, answer):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    expected = Predictor(small_model())(pixels)
    (probabilities,) = answer(package, pixels.transpose(2, 0, 1)[None].astype(np.float32))
    np.testing.assert_allclose(probabilities, expected.probabilities, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(0), expected.mask)


@pytest.fixture(scope="module")
def package_of_run(tmp_path_factory) -> Path:
    """The package of a model with a card, in a run with a picture."""
    run = tmp_path_factory.mktemp("run")
    (run / "model").mkdir()
    card = "---\ntags: [unet]\n---\n\n# U-Net on cells/1\n\nMean IoU ≥ 0.9.\n"
    (run / "model" / "README.md").write_text(card, encoding="utf-8")
    (run / "predictions").mkdir()
    Image.new("RGB", (80, 40), "red").save(run / "predictions" / "a.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "import_package", lambda *names: None)
        BioImageIo().write(small_model(), run / "cells.zip", OWNED._replace(folder=run / "model"))
    return run / "cells.zip"


def test_a_package_holds_description_card_cover_tests_weights(package_of_run):
    with ZipFile(package_of_run) as archive:
        assert archive.namelist() == [
            "README.md",
            "cover.jpg",
            "rdf.yaml",
            "test_image.npy",
            "test_probabilities.npy",
            "weights.onnx",
            "weights.pt",
        ]


def test_a_package_has_the_card_of_its_model(package_of_run):
    with ZipFile(package_of_run) as archive:
        assert "Mean IoU ≥ 0.9." in archive.read("README.md").decode()
        assert yaml.safe_load(archive.read("rdf.yaml"))["name"] == "U-Net on cells_1"


def test_a_package_shows_the_first_picture_of_the_run(package_of_run):
    with ZipFile(package_of_run) as archive:
        red, green, _ = Image.open(archive.open("cover.jpg")).getpixel((400, 200))
    assert red > 200
    assert green < 50


@pytest.fixture
def tensors(tmp_path) -> Path:
    """A folder with empty files of weights and test tensors."""
    for name in ("weights.onnx", "weights.pt", "test_image.npy", "test_probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


SCANS_CONFIG = UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS)
CT_CONFIG = UNetConfig(1, 2, 4, 2, dims=3, preprocess=CT)


def test_volumes_of_a_package_may_have_any_value(tensors):
    assert input_entry(SCANS_CONFIG, tensors)["data"] == {"type": "float32"}
    assert output_entry(SCANS_CONFIG, tensors)["data"] == {"type": "float32", "range": [0, 1]}


@pytest.mark.parametrize(
    ("config", "step"),
    [
        (SCANS_CONFIG, {"id": "zero_mean_unit_variance", "kwargs": {"axes": ["z", "y", "x"]}}),
        (CT_CONFIG, {"id": "clip", "kwargs": {"min": -100.0, "max": 300.0}}),
    ],
    ids=["standardized", "clipped"],
)
def test_volumes_of_a_package_are_prepared_in_one_step(tensors, config, step):
    assert input_entry(config, tensors)["preprocessing"] == [step]


def test_probabilities_of_a_package_have_the_size_of_the_volume(tensors):
    sizes = [axis.get("size") for axis in output_entry(SCANS_CONFIG, tensors)["axes"][2:]]
    assert sizes == [{"tensor_id": "image", "axis_id": axis} for axis in "zyx"]


@pytest.mark.parametrize("tensor", [input_entry, output_entry])
def test_axes_of_volumes_have_the_size_of_a_voxel(tensors, tensor):
    axes = tensor(SCANS_CONFIG, tensors)["axes"]
    assert [axis.get("scale") for axis in axes] == [None, None, 2.0, 0.5, 0.5]
    assert [axis["id"] for axis in axes[2:]] == ["z", "y", "x"]
    assert [axis["unit"] for axis in axes[2:]] == ["millimeter"] * 3


def test_axes_of_volumes_have_a_name_alone_where_the_size_of_a_voxel_is_not_known(tensors):
    plain = UNetConfig(1, 2, 4, 2, dims=3, preprocess=Preprocess(**NAMES))
    size = {"min": 1, "step": 1}
    assert input_entry(plain, tensors)["axes"][2:] == [{"type": "space", "id": name, "size": size} for name in "zyx"]


@pytest.mark.parametrize(
    ("dims", "kind", "tag", "doi"),
    [
        (2, "images", "unet2d", "10.1007/978-3-319-24574-4_28"),
        (3, "volumes", "unet3d", "10.1007/978-3-319-46723-8_49"),
    ],
    ids=["images", "volumes"],
)
def test_a_package_cites_the_paper_of_its_network(dims, kind, tag, doi, tensors):
    config = UNetConfig(1, 2, 4, 2, dims=dims, preprocess=Preprocess(**NAMES))
    content = rdf_content(config, "CT", ["A. Person"], "MIT", tensors)
    assert [paper["doi"] for paper in content["cite"]] == [doi]
    assert tag in content["tags"]
    assert content["description"] == f"A U-Net for {kind}: the probability of other, liver"


@pytest.mark.parametrize(
    ("title", "name"), [("CT", "U-Net CT"), ("Cell", "U-Net Cell"), ("Cells", "Cells"), ("Größe", "Gr__e")]
)
def test_a_package_has_a_name_of_five_letters_at_least(title, name, tensors):
    config = UNetConfig(1, 2, 4, 2, preprocess=Preprocess(**NAMES))
    assert rdf_content(config, title, ["A. Person"], "MIT", tensors)["name"] == name


@pytest.mark.parametrize(
    ("channels", "names"),
    [
        (1, ["intensity"]),
        (3, ["red", "green", "blue"]),
        (4, ["channel_0", "channel_1", "channel_2", "channel_3"]),
    ],
)
def test_each_channel_of_the_images_has_a_name(channels, names, tensors):
    image = input_entry(UNetConfig(channels, 2, 4, 2), tensors)
    assert image["axes"][1] == {"type": "channel", "channel_names": names}


@pytest.mark.parametrize(
    ("pixel_types", "data"),
    [
        ((), {"type": "float32", "range": [0, 255]}),
        (("uint16", "uint8"), {"type": "float32", "range": [0, 65535]}),
        (("float32",), {"type": "float32"}),
    ],
)
def test_values_of_images_lie_in_the_range_of_their_type(pixel_types, data, tensors):
    image = input_entry(UNetConfig(1, 2, 4, 2, preprocess=Preprocess(pixel_types=pixel_types)), tensors)
    assert image["data"] == data
    assert image["preprocessing"] == []


def test_a_package_cuts_a_long_title_or_list_of_classes(tensors):
    names = tuple(f"class {number}" for number in range(90))
    config = UNetConfig(1, 90, 4, 2, preprocess=Preprocess(class_names=names, class_values=tuple(range(90))))
    content = rdf_content(config, "x" * 200, ["A. Person"], "MIT", tensors)
    assert len(content["name"]) == 128
    assert len(content["description"]) == 512


def test_a_package_says_how_its_probabilities_are_decoded(tensors):
    content = rdf_content(UNetConfig(1, 2, preprocess=Preprocess(**NAMES)), "Cells", ["A. Person"], "MIT", tensors)
    assert content["config"]["unet_accelerate"]["decoding"] == "the class of a pixel is the index of its largest logit"


def standardized(voxels: np.ndarray) -> np.ndarray:
    """A volume (C, D, H, W) whose channels each have the mean 0 and the standard deviation 1."""
    axes = (1, 2, 3)
    return (voxels - voxels.mean(axis=axes, keepdims=True)) / voxels.std(axis=axes, keepdims=True)


@pytest.mark.parametrize(
    ("config", "prepare"),
    [
        (SCANS_CONFIG, standardized),
        (replace(SCANS_CONFIG, in_channels=2), standardized),
        (CT_CONFIG, lambda voxels: voxels.clip(-100, 300)),
    ],
    ids=["standardized", "each channel standardized", "clipped"],
)
def test_probabilities_that_are_expected_are_those_of_prepared_volumes(config, prepare):
    torch.manual_seed(0)
    model = UNet(config).eval()
    volumes = np.random.default_rng(0).normal(100, 300, (2, config.in_channels, 5, 9, 14)).astype(np.float32)
    volumes[:, -1] *= 2
    (answer,) = BioImageIo().expected_answers(model, [volumes])
    with torch.inference_mode():
        expected = model(torch.from_numpy(np.stack([prepare(voxels) for voxels in volumes]))).softmax(1)
    torch.testing.assert_close(answer, expected, rtol=0, atol=1e-5)


def test_probabilities_of_classes_that_overlap_are_expected_of_each_alone():
    torch.manual_seed(0)
    config = UNetConfig(1, 2, 2, 1, task={"name": "overlapping"}, preprocess=Preprocess(class_names=("a", "b")))
    model = UNet(config).eval()
    (answer,) = BioImageIo().expected_answers(model, [np.full((1, 1, 4, 4), 7, np.uint8)])
    with torch.inference_mode():
        torch.testing.assert_close(answer, model(torch.full((1, 1, 4, 4), 7.0)).sigmoid())


PLAIN_CONFIG = UNetConfig(3, 2, 4, 2)


def test_tiles_are_to_overlap_by_what_a_pixel_depends_on():
    half = UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS)
    assert int(overlap_text(half).split()[0]) == 2 * int(overlap_text(PLAIN_CONFIG).split()[0])


@pytest.mark.parametrize(
    "config",
    [UNetConfig(3, 2, 4, 2, preprocess=Preprocess(image_size=(40, 56))), UNetConfig(1, 2, 4, 2, dims=3)],
    ids=["one size", "volumes"],
)
def test_tiles_are_to_overlap_as_at_scale_1_where_there_is_no_scale(config):
    assert overlap_text(config) == overlap_text(PLAIN_CONFIG)


def test_tiles_are_to_overlap_by_half_where_a_pixel_depends_on_all():
    assert overlap_text(UNetConfig(3, 2, 4, 2, norm="group")) == "half a tile"


@pytest.mark.parametrize(
    ("kernel", "stride", "text"),
    [((1, 3, 3), (1, 2, 2), r"0 x [1-9]\d* pixels"), ((3, 1, 1), (2, 1, 1), r"[1-9]\d* x 0 pixels")],
)
def test_tiles_of_volumes_are_to_overlap_by_each_axis(kernel, stride, text):
    axes = {"kernels": (kernel,) * 2, "strides": (stride,)}
    config = UNetConfig(1, 2, 4, 1, dims=3, preprocess=Preprocess(**NAMES), **axes)
    assert re.fullmatch(text, overlap_text(config))


def test_a_model_of_objects_answers_a_depth_too():
    objects = {"name": "objects", "classes": ["background", "round-cell"], "smallest": 1}
    assert answer_text(UNetConfig(3, 3, task=objects)) == "the probability of background, round_cell, depth"


def test_a_model_of_regions_answers_no_place_without_any():
    regions = {"name": "regions", "regions": [["whole", [1, 2]], ["core", [2]]]}
    preprocess = Preprocess(class_names=("whole", "core"))
    assert answer_names(UNetConfig(3, 2, task=regions, preprocess=preprocess)) == ["whole", "core"]


def test_a_card_has_its_first_line_as_title_and_the_rest_as_description(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Cells\n\nFinds cells.\n\n## Data\n\nMine.\n")
    assert title_and_text(UNetConfig(1, 2), tmp_path) == ("Cells", "Finds cells.\n\n## Data\n\nMine.")


@pytest.mark.parametrize("has_folder", [False, True], ids=["no folder", "no card in it"])
def test_a_model_without_a_card_is_described_by_its_classes(tmp_path, has_folder):
    config = UNetConfig(1, 2, dims=3, preprocess=Preprocess(**NAMES))
    title, description = title_and_text(config, tmp_path if has_folder else None)
    assert title == "U-Net"
    assert description == "A U-Net that gives the probability of other, liver."


def test_a_cover_without_a_run_is_the_middle_of_a_test_image_beside_its_answer(tmp_path):
    answer = torch.zeros(2, 5, 20, 20)
    answer[1, 2] = 1  # the middle slice is of the second class
    image = np.zeros((1, 5, 20, 20), np.float32)
    image[:, 2, :10] = 9
    picture = np.asarray(draw_cover(image, answer, tmp_path / "model"))
    assert picture.shape == (400, 800, 3)
    right = picture[:, 500:700].reshape(-1, 3)
    assert np.median(right, axis=0).tolist() == palette(2)[1].tolist()
    left = picture[:, 100:300].mean(axis=2)
    assert left[100:150].mean() > 200
    assert left[250:300].mean() < 50


def test_a_cover_is_the_first_picture_of_a_run_whole_and_on_white(tmp_path, monkeypatch):
    folder = tmp_path / "predictions" / "val"
    folder.mkdir(parents=True)
    for name in "gfeabcd":
        color = "red" if name == "a" else "blue"
        Image.new("RGB", (40, 40), color).convert("P").save(folder / f"{name}.png")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    picture = draw_cover(np.zeros((1, 20, 20), np.float32), torch.zeros(2, 20, 20), Path("model"))
    assert picture.getpixel((400, 200))[0] > 200
    assert picture.getpixel((400, 200))[2] < 50
    assert picture.getpixel((150, 200)) == picture.getpixel((650, 200)) == (255, 255, 255)
    monkeypatch.chdir(tmp_path / "model")
    assert draw_cover(np.zeros((1, 20, 20), np.float32), torch.zeros(2, 20, 20), Path()).tobytes() == picture.tobytes()


@pytest.mark.parametrize(
    "config",
    [
        UNetConfig(3, 2, 4, 2, task={"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}),
        UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS),
        UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS),
        UNetConfig(1, 2, 4, 2, dims=3, preprocess=CT),
    ],
    ids=["points", "resized", "standardized", "clipped"],
)
def test_a_package_can_be_made_of_what_is_prepared_in_one_step(config):
    assert BioImageIo().problem(config) is None


@pytest.mark.parametrize(
    ("config", "hint"),
    [(KINDS["lite0"], "encoders with window attention (Swin) cannot be exported"), (UNetConfig(3, 2, 4, 2), "")],
    ids=["encoder", "none"],
)
def test_a_package_hints_at_what_onnx_does_not_take(monkeypatch, config, hint):
    monkeypatch.setattr(module, "version", lambda package: "2.13.9")
    assert BioImageIo().hint(config) == hint


def test_a_model_stays_as_it_is_when_its_program_is_written(tmp_path):
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module.write_torchscript(model, tmp_path / "weights.pt")
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_package_of_points_at_another_size_is_refused(tmp_path):
    points = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}
    resized = UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS, task=points))
    with pytest.raises(ModelError, match="the model resizes images, and answers at that size"):
        export_proved(BioImageIo(), resized, tmp_path / "a.zip", OWNED)
    assert list(tmp_path.iterdir()) == []


def test_a_package_of_what_is_prepared_in_two_steps_is_refused():
    clipped_config = UNetConfig(1, 2, 4, 2, dims=3, preprocess=Preprocess(clip=(0.0, 1.0), standardize=True))
    assert "clips volumes and then standardizes them" in BioImageIo().problem(clipped_config)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (Options(license="MIT"), "needs --author NAME"),
        (Options(author=("A",)), "needs --license ID"),
        (Options(author=("A", "B/C"), license="MIT"), "--author B/C: a name cannot have a slash"),
        (Options(author=("A",), license="mine"), "--license mine: is none of spdx.org/licenses"),
    ],
    ids=["no author", "no license", "slash", "another license"],
)
def test_a_package_without_owner_or_license_is_refused(options, line):
    with pytest.raises(SettingsError, match=line):
        read_license(options)


def test_a_package_hints_at_the_version_of_pydantic(monkeypatch):
    monkeypatch.setattr(module, "version", lambda package: "2.14.4")
    assert "does not go with pydantic 2.14.4: pip install -r" in BioImageIo().hint(small_model().config)


@pytest.mark.slow
def test_the_command_writes_what_passes_the_test_of_bioimageio_core(core, tmp_path):
    small_model().save_pretrained(tmp_path / "model")
    flags = ["--to", "bioimageio", "--author", "A. Person", "--license", "CC-BY-4.0"]
    result = launch("-m", "inference.export", tmp_path / "model", tmp_path / "cells.zip", *flags)
    assert result.returncode == 0, result.stderr
    assert "its own test passed on 7 image sizes" in result.stdout


@pytest.mark.slow
def test_a_package_whose_volumes_are_prepared_otherwise_is_not_kept(core, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = UNet(UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS))
    export_proved(BioImageIo(), model, tmp_path / "liver.zip", OWNED)
    monkeypatch.setattr(module, "preprocessing_steps", lambda config: [])
    with pytest.raises(ModelError, match=r"bioimageio\.core cannot open the model: its test did not pass"):
        export_proved(BioImageIo(), model, tmp_path / "other.zip", OWNED)
    assert [path.name for path in tmp_path.iterdir()] == ["liver.zip"]
