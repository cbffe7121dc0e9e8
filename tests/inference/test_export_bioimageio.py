"""Packages of bioimage.io: what they say, and that both of their weights give the probabilities of predict.py.

Modules: inference/export/bioimageio.py.
"""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from conftest import launch
from PIL import Image

from data_utils.visualize import palette
from inference import Predictor
from inference.export import bioimageio as module
from inference.export.bioimageio import (
    BioImageIo,
    answer_names,
    answer_text,
    card_of,
    checked_license,
    cover,
    input_tensor,
    output_tensor,
    overlap_text,
    resource,
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


def test_a_package_says_whose_it_is_and_what_it_takes(package):
    content = yaml.safe_load((package / "rdf.yaml").read_text())
    assert [author["name"] for author in content["authors"]] == ["A. Person", "Another"]
    assert content["license"] == "MIT"
    (image,), (answer,) = content["inputs"], content["outputs"]
    assert image["axes"][1]["channel_names"] == ["red", "green", "blue"]
    assert image["data"]["range"] == [0, 255]
    assert answer["axes"][1]["channel_names"] == ["sky", "land_and_sea"]
    assert content["config"]["unet_accelerate"]["config"] == yaml.safe_load(
        yaml.safe_dump(small_model().config.to_json())
    )
    for entry in (image["test_tensor"], answer["test_tensor"], *content["weights"].values()):
        assert hashlib.sha256((package / entry["source"]).read_bytes()).hexdigest() == entry["sha256"]
    torchscript, onnx = content["weights"]["torchscript"], content["weights"]["onnx"]
    assert torchscript["pytorch_version"] == torch.__version__.split("+")[0]  # without the name of a build
    assert onnx["opset_version"] == 17
    assert onnx["parent"] == "torchscript"
    assert Image.open(package / content["covers"][0]).size == (800, 400)
    assert "overlap by" in (package / content["documentation"]).read_text()


@pytest.mark.parametrize("size", [(97, 131), (15, 15), (1, 2)])
def test_both_weights_give_the_probabilities_of_predict_py(package, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    expected = Predictor(small_model())(pixels)
    images = pixels.transpose(2, 0, 1)[None].astype(np.float32)
    (by_onnxruntime,) = onnxruntime.InferenceSession(package / "weights.onnx").run(None, {"images": images})
    with torch.inference_mode():
        by_torch = torch.jit.load(package / "weights.pt")(torch.from_numpy(images)).numpy()
    for probabilities in (by_onnxruntime, by_torch):
        np.testing.assert_allclose(probabilities[0], expected.probabilities, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(probabilities[0].argmax(0), expected.mask)


def test_the_card_and_the_first_picture_of_the_run_are_in_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "import_package", lambda *names: None)
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("---\ntags: [unet]\n---\n\n# U-Net on cells/1\n\nMean IoU 0.9.\n")
    (tmp_path / "run" / "predictions").mkdir()
    Image.new("RGB", (80, 40), "red").save(tmp_path / "run" / "predictions" / "a.png")
    BioImageIo().write(small_model(), tmp_path / "cells.zip", OWNED._replace(folder=folder))
    with ZipFile(tmp_path / "cells.zip") as archive:
        assert archive.namelist() == [
            "README.md",
            "cover.jpg",
            "rdf.yaml",
            "test_image.npy",
            "test_probabilities.npy",
            "weights.onnx",
            "weights.pt",
        ]
        assert "Mean IoU 0.9." in archive.read("README.md").decode()
        assert yaml.safe_load(archive.read("rdf.yaml"))["name"] == "U-Net on cells_1"
        red, green, _ = Image.open(archive.open("cover.jpg")).getpixel((400, 200))
    assert red > 200
    assert green < 50


def test_volumes_say_their_spacing_and_how_they_are_prepared(tmp_path):
    for name in ("test_image.npy", "test_probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    config = UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS)
    image = input_tensor(config, tmp_path)
    assert [axis.get("scale") for axis in image["axes"]] == [None, None, 2.0, 0.5, 0.5]
    assert image["data"] == {"type": "float32"}  # voxels may have any value
    assert image["preprocessing"] == [{"id": "zero_mean_unit_variance", "kwargs": {"axes": ["z", "y", "x"]}}]
    sizes = [axis.get("size") for axis in output_tensor(config, tmp_path)["axes"][2:]]
    assert sizes == [{"tensor_id": "image", "axis_id": axis} for axis in "zyx"]
    assert output_tensor(config, tmp_path)["data"] == {"type": "float32", "range": [0, 1]}
    config = UNetConfig(1, 2, 4, 2, dims=3, preprocess=CT)
    clipping = {"id": "clip", "kwargs": {"min": -100.0, "max": 300.0}}
    assert input_tensor(config, tmp_path)["preprocessing"] == [clipping]


@pytest.mark.parametrize(
    ("dims", "kind", "tag", "doi"),
    [
        (2, "images", "unet2d", "10.1007/978-3-319-24574-4_28"),
        (3, "volumes", "unet3d", "10.1007/978-3-319-46723-8_49"),
    ],
)
def test_a_package_cites_the_paper_of_its_network(dims, kind, tag, doi, tmp_path):
    for name in ("weights.onnx", "weights.pt", "test_image.npy", "test_probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    config = UNetConfig(1, 2, 4, 2, dims=dims, preprocess=Preprocess(**NAMES))
    content = resource(config, "CT", ["A. Person"], "MIT", tmp_path)
    assert [paper["doi"] for paper in content["cite"]] == [doi]
    assert tag in content["tags"]
    assert content["description"] == f"A U-Net for {kind}: the probability of other, liver"
    assert content["name"] == "U-Net CT"  # a name has five letters at least
    names = [resource(config, title, ["A. Person"], "MIT", tmp_path)["name"] for title in ("Cell", "Cells")]
    assert names == ["U-Net Cell", "Cells"]


@pytest.mark.parametrize(
    ("channels", "names"),
    [
        (1, ["intensity"]),
        (3, ["red", "green", "blue"]),
        (4, ["channel_0", "channel_1", "channel_2", "channel_3"]),
    ],
)
def test_each_channel_of_the_images_has_a_name(channels, names, tmp_path):
    (tmp_path / "test_image.npy").write_bytes(b"")
    image = input_tensor(UNetConfig(channels, 2, 4, 2), tmp_path)
    assert image["axes"][1] == {"type": "channel", "channel_names": names}


@pytest.mark.parametrize(
    ("pixel_types", "data"),
    [
        ((), {"type": "float32", "range": [0, 255]}),
        (("uint16", "uint8"), {"type": "float32", "range": [0, 65535]}),
        (("float32",), {"type": "float32"}),
    ],
)
def test_values_of_images_lie_in_the_range_of_their_type(pixel_types, data, tmp_path):
    (tmp_path / "test_image.npy").write_bytes(b"")
    image = input_tensor(UNetConfig(1, 2, 4, 2, preprocess=Preprocess(pixel_types=pixel_types)), tmp_path)
    assert image["data"] == data
    assert image["preprocessing"] == []


def test_axes_of_volumes_have_names_and_the_size_of_a_voxel_where_it_is_known(tmp_path):
    for name in ("test_image.npy", "test_probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    config = UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS)
    sides = [("z", 2.0), ("y", 0.5), ("x", 0.5)]
    for axes in (input_tensor(config, tmp_path)["axes"], output_tensor(config, tmp_path)["axes"]):
        assert [(axis["id"], axis["scale"], axis["unit"]) for axis in axes[2:]] == [
            (*side, "millimeter") for side in sides
        ]
    plain = UNetConfig(1, 2, 4, 2, dims=3, preprocess=Preprocess(**NAMES))
    size = {"min": 1, "step": 1}
    assert input_tensor(plain, tmp_path)["axes"][2:] == [{"type": "space", "id": name, "size": size} for name in "zyx"]


def test_a_long_title_and_a_long_list_of_classes_are_cut(tmp_path):
    for name in ("weights.onnx", "weights.pt", "test_image.npy", "test_probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    names = tuple(f"class {number}" for number in range(90))
    config = UNetConfig(1, 90, 4, 2, preprocess=Preprocess(class_names=names, class_values=tuple(range(90))))
    content = resource(config, "x" * 200, ["A. Person"], "MIT", tmp_path)
    assert (len(content["name"]), len(content["description"])) == (128, 512)
    assert content["config"]["unet_accelerate"]["decoding"] == "the class of a pixel is the index of its largest logit"


@pytest.mark.parametrize("preprocess", [SCANS, CT], ids=["scans", "ct"])
def test_what_is_expected_of_raw_volumes_is_clipped_or_standardized(preprocess):
    torch.manual_seed(0)
    model = UNet(UNetConfig(1, 2, 4, 2, dims=3, preprocess=preprocess)).eval()
    voxels = np.random.default_rng(0).normal(100, 300, (1, 1, 5, 9, 14)).astype(np.float32)
    standardized = (voxels - voxels.mean()) / voxels.std()
    prepared = standardized if preprocess.standardize else voxels.clip(-100, 300)
    (answer,) = BioImageIo().expected(model, [voxels])
    with torch.inference_mode():
        torch.testing.assert_close(answer, model(torch.from_numpy(prepared)).softmax(1), rtol=0, atol=1e-5)


def test_tiles_are_to_overlap_by_what_a_pixel_depends_on():
    plain = UNetConfig(3, 2, 4, 2)
    half = UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS)
    assert int(overlap_text(half).split()[0]) == 2 * int(overlap_text(plain).split()[0])
    of_one_size = UNetConfig(3, 2, 4, 2, preprocess=Preprocess(image_size=(40, 56)))
    volumes = UNetConfig(1, 2, 4, 2, dims=3)
    assert overlap_text(of_one_size) == overlap_text(volumes) == overlap_text(plain)
    assert overlap_text(UNetConfig(3, 2, 4, 2, norm="group")) == "half a tile"


@pytest.mark.parametrize(
    ("kernel", "stride", "text"),
    [((1, 3, 3), (1, 2, 2), r"0 x [1-9]\d* pixels"), ((3, 1, 1), (2, 1, 1), r"[1-9]\d* x 0 pixels")],
)
def test_tiles_of_volumes_are_to_overlap_by_each_axis(kernel, stride, text):
    axes = {"kernels": (kernel,) * 2, "strides": (stride,)}
    config = UNetConfig(1, 2, 4, 1, dims=3, preprocess=Preprocess(**NAMES), **axes)
    assert re.fullmatch(text, overlap_text(config))


def test_a_model_of_objects_answers_a_depth_too_and_regions_no_place_without_any():
    objects = {"name": "objects", "classes": ["background", "round-cell"], "smallest": 1}
    assert answer_text(UNetConfig(3, 3, task=objects)) == "the probability of background, round_cell, depth"
    regions = {"name": "regions", "regions": [["whole", [1, 2]], ["core", [2]]]}
    preprocess = Preprocess(class_names=("whole", "core"))
    assert answer_names(UNetConfig(3, 2, task=regions, preprocess=preprocess)) == ["whole", "core"]


def test_a_card_has_its_first_line_as_title_and_the_rest_as_description(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Cells\n\nFinds cells.\n\n## Data\n\nMine.\n")
    assert card_of(UNetConfig(1, 2), tmp_path) == ("Cells", "Finds cells.\n\n## Data\n\nMine.")


def test_a_model_without_card_or_run_shows_the_middle_of_a_test_image_beside_its_answer(tmp_path):
    config = UNetConfig(1, 2, dims=3, preprocess=Preprocess(**NAMES))
    for folder in (None, tmp_path):
        assert card_of(config, folder) == ("U-Net", "A U-Net that gives the probability of other, liver.")
    answer = torch.zeros(2, 5, 20, 20)
    answer[1, 2] = 1  # the middle slice is of the second class
    image = np.zeros((1, 5, 20, 20), np.float32)
    image[:, 2, :10] = 9
    picture = np.asarray(cover(image, answer, tmp_path / "model"))
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
    picture = cover(np.zeros((1, 20, 20), np.float32), torch.zeros(2, 20, 20), Path("model"))
    assert picture.getpixel((400, 200))[0] > 200
    assert picture.getpixel((400, 200))[2] < 50
    assert picture.getpixel((150, 200)) == picture.getpixel((650, 200)) == (255, 255, 255)
    monkeypatch.chdir(tmp_path / "model")
    assert cover(np.zeros((1, 20, 20), np.float32), torch.zeros(2, 20, 20), Path()).tobytes() == picture.tobytes()


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


def test_a_package_hints_at_what_onnx_does_not_take(monkeypatch):
    monkeypatch.setattr(module, "version", lambda package: "2.13.9")
    encoder = {"model_type": "efficientnet_lite0", "num_channels": 3, "_name_or_path": "lite0"}
    swin = "encoders with window attention (Swin) cannot be exported"
    assert BioImageIo().hint(UNetConfig(3, 3, 4, 5, encoder=encoder)) == swin
    assert BioImageIo().hint(UNetConfig(3, 2, 4, 2)) == ""


def test_a_model_stays_as_it_is_when_its_program_is_written(tmp_path):
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module.write_torchscript(model, tmp_path / "weights.pt")
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_what_no_package_can_be_made_of_is_one_line(tmp_path, monkeypatch):
    points = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}
    resized = UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS, task=points))
    with pytest.raises(ModelError, match="the model resizes images, and answers at that size"):
        export_proved(BioImageIo(), resized, tmp_path / "a.zip", OWNED)
    clipped_config = UNetConfig(1, 2, 4, 2, dims=3, preprocess=Preprocess(clip=(0.0, 1.0), standardize=True))
    assert "clips volumes and then standardizes them" in BioImageIo().problem(clipped_config)
    for options, line in {
        Options(license="MIT"): "needs --author NAME",
        Options(author=("A",)): "needs --license ID",
        Options(author=("A", "B/C"), license="MIT"): "--author B/C: a name cannot have a slash",
        Options(author=("A",), license="mine"): "--license mine: is none of spdx.org/licenses",
    }.items():
        with pytest.raises(SettingsError, match=line):
            checked_license(options)
    monkeypatch.setattr(module, "version", lambda package: "2.14.4")
    assert "does not go with pydantic 2.14.4: pip install -r" in BioImageIo().hint(small_model().config)
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setattr(module, "preprocessing", lambda config: [])
    with pytest.raises(ModelError, match=r"bioimageio\.core cannot open the model: its test did not pass"):
        export_proved(BioImageIo(), model, tmp_path / "other.zip", OWNED)
    assert [path.name for path in tmp_path.iterdir()] == ["liver.zip"]
