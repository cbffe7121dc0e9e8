"""Packages of bioimage.io: what they say, and that both of their weights give the probabilities of predict.py.

Modules: inference/export/bioimageio.py.
"""

import hashlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from support.launches import launch

from inference import Predictor
from inference.export import bioimageio as module
from inference.export.bioimageio import (
    Owner,
    check_config,
    expected_probabilities,
    export_bioimageio,
    input_entry,
    output_entry,
    overlap_text,
    rdf_content,
    read_owner,
    write_package,
)
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
OWNER = Owner(["A. Person", "Another"], "MIT")


def small_model() -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS)).eval()


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The files of a package of a model without a run; bioimageio.core need not be there to write it."""
    folder = tmp_path_factory.mktemp("package")
    write_package(small_model(), folder / "cells.zip", OWNER, folder)
    ZipFile(folder / "cells.zip").extractall(folder)
    return folder


@pytest.fixture
def core() -> None:
    """Skips where bioimageio.core cannot be had."""
    pytest.importorskip("bioimageio.core", reason="needs bioimageio.core")
    if tuple(map(int, version("pydantic").split(".")[:2])) >= module.PYDANTIC:
        pytest.skip("needs the pydantic of requirements-dev.txt")


@pytest.fixture(scope="module")
def description(package) -> dict:
    """What a package says of its model."""
    return yaml.safe_load((package / "rdf.yaml").read_text())


def test_a_package_says_whose_it_is_what_it_takes_and_what_it_answers(description):
    assert [author["name"] for author in description["authors"]] == ["A. Person", "Another"]
    assert description["license"] == "MIT"
    (image,), (answer,) = description["inputs"], description["outputs"]
    assert image["axes"][1]["channel_names"] == ["red", "green", "blue"]
    assert image["data"]["range"] == [0, 255]
    assert answer["axes"][1]["channel_names"] == ["sky", "land_and_sea"]
    config = yaml.safe_load(yaml.safe_dump(small_model().config.to_json()))
    assert description["config"]["unet_accelerate"]["config"] == config


def test_a_package_has_the_checksums_of_its_files_and_says_how_tiles_are_to_overlap(package, description):
    (image,), (answer,) = description["inputs"], description["outputs"]
    entries = [image["test_tensor"], answer["test_tensor"], *description["weights"].values()]
    for entry in entries:
        assert hashlib.sha256((package / entry["source"]).read_bytes()).hexdigest() == entry["sha256"]
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


@pytest.fixture
def tensors(tmp_path) -> Path:
    """A folder with empty files of weights and test tensors."""
    for name in ("weights.onnx", "weights.pt", "image.npy", "probabilities.npy"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


SCANS_CONFIG = UNetConfig(1, 2, 4, 2, dims=3, preprocess=SCANS)
CT_CONFIG = UNetConfig(1, 2, 4, 2, dims=3, preprocess=CT)


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


@pytest.mark.parametrize("tensor", [input_entry, output_entry])
def test_axes_of_volumes_have_the_size_of_a_voxel(tensors, tensor):
    axes = tensor(SCANS_CONFIG, tensors)["axes"]
    assert [axis.get("scale") for axis in axes] == [None, None, 2.0, 0.5, 0.5]
    assert [axis["id"] for axis in axes[2:]] == ["z", "y", "x"]
    assert [axis["unit"] for axis in axes[2:]] == ["millimeter"] * 3


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
    content = rdf_content(config, "CT", OWNER, tensors)
    assert [paper["doi"] for paper in content["cite"]] == [doi]
    assert tag in content["tags"]
    assert content["description"] == f"A U-Net for {kind}: the probability of other, liver"


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
    (answer,) = expected_probabilities(model, [volumes])
    with torch.inference_mode():
        expected = model(torch.from_numpy(np.stack([prepare(voxels) for voxels in volumes]))).softmax(1)
    torch.testing.assert_close(answer, expected, rtol=0, atol=1e-5)


def test_tiles_are_to_overlap_by_what_a_pixel_depends_on():
    half = UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS)
    assert int(overlap_text(half).split()[0]) == 2 * int(overlap_text(UNetConfig(3, 2, 4, 2)).split()[0])


POINTS = {"name": "landmarks", "names": ["eye", "ear"], "partners": [0, 1]}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (UNetConfig(3, 2, 4, 2, preprocess=PREPROCESS, task=POINTS), "resizes images, and answers at that size"),
        (
            UNetConfig(1, 2, 4, 2, dims=3, preprocess=Preprocess(clip=(0.0, 1.0), standardize=True)),
            "clips volumes and then standardizes them",
        ),
    ],
    ids=["points at another size", "volumes that are prepared in two steps"],
)
def test_models_that_a_package_cannot_hold_are_refused(config, line):
    with pytest.raises(ModelError, match=f"^the model {line}"):
        check_config(config)


@pytest.mark.parametrize(
    ("owner", "line"),
    [
        (Owner((), "MIT"), "needs --author NAME"),
        (Owner(("A",), ""), "needs --license ID"),
        (Owner(("A", "B/C"), "MIT"), "--author B/C: a name cannot have a slash"),
        (Owner(("A",), "mine"), "--license mine: is none of spdx.org/licenses"),
    ],
    ids=["no author", "no license", "slash", "another license"],
)
def test_a_package_without_owner_or_license_is_refused(owner, line):
    with pytest.raises(SettingsError, match=line):
        read_owner(owner)


def test_a_license_is_written_as_spdx_does():
    assert read_owner(Owner(("A",), "mit")).license == "MIT"


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
    export_bioimageio(model, tmp_path / "liver.zip", OWNER, tmp_path)
    monkeypatch.setattr(module, "input_entry", lambda *arguments: input_entry(*arguments) | {"preprocessing": []})
    with pytest.raises(ModelError, match=r"bioimageio\.core cannot open the model: its test did not pass"):
        export_bioimageio(model, tmp_path / "other.zip", OWNER, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["liver.zip"]
