"""predict.py --uncertainty and the calibration in metrics.json, against the probabilities that it writes.

Modules: tasks/prediction.py, tasks/classes/loss.py, tasks/prediction_files.py.
"""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from support.formats import class_format
from support.launches import predict
from support.prediction import write_logits

from data_utils.image_io.formats import VolumeFile
from tasks.classes.loss import Classes
from tasks.job import PROBABILITIES, UNCERTAINTY, Job
from tasks.objects.loss import Objects
from tasks.overlapping.loss import Overlapping
from tasks.prediction import decode_strips
from tasks.task import Task
from unet import UNet

VALUES = np.array([10, 200, 255])  # of the masks of the fixture `model`


def entropy_levels(probabilities: np.ndarray) -> np.ndarray:
    """The entropy of probabilities (C, ...), 255 where it is ln C."""
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(0)
    return 255 * entropy / np.log(len(probabilities))


@pytest.fixture(scope="module")
def sharp(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture `model`, sure of some pixels and unsure of others."""
    network = UNet.from_pretrained(model)
    network.head.conv.weight.data *= 600
    folder = tmp_path_factory.mktemp("sharp")
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def other(sharp, tmp_path_factory) -> Path:
    """A model that says something else."""
    network = UNet.from_pretrained(sharp)
    network.head.conv.bias.data += torch.tensor([3.0, 0.0, -1.0])
    folder = tmp_path_factory.mktemp("other")
    network.save_pretrained(folder)
    return folder


ONE_PIXEL = "sub/a"
LARGER = ["a", "b", "sub/c", "sub/d"]


@pytest.fixture(
    scope="module",
    params=[[], ["--tta"], ["--tile-size", "32"], ["--ensemble"]],
    ids=["plain", "views", "tiles", "ensemble"],
)
def unsure(request, sharp, other, photos, tmp_path_factory) -> Path:
    """A folder with masks, their uncertainty and their probabilities."""
    flags = [*request.param, *[other] * ("--ensemble" in request.param)]
    output = tmp_path_factory.mktemp("unsure")
    result = predict(sharp, [photos], output, "--uncertainty", "--probabilities", *flags)
    assert result.returncode == 0, result.stderr
    return output


@pytest.mark.parametrize("name", [ONE_PIXEL, *LARGER])
def test_entropy_of_the_averaged_probabilities_is_written_beside_each_mask(unsure, name):
    levels = np.asarray(Image.open(unsure / f"{name}{UNCERTAINTY}"))
    expected = entropy_levels(np.load(unsure / f"{name}.npy").astype(np.float64))
    assert levels.dtype == np.uint8
    assert levels.shape == expected.shape
    np.testing.assert_allclose(levels, expected, rtol=0, atol=0.51)
    assert name == ONE_PIXEL or np.ptp(levels) > 40


def test_the_calibration_of_predictions_is_that_of_their_probabilities(sharp, photos, tmp_path):
    predict(sharp, [photos], tmp_path / "truth", "--tta")
    rng = np.random.default_rng(0)
    confidences = []
    hits = []
    predict(sharp, [photos], tmp_path / "out", "--probabilities")
    for name in ("a", "b", "sub/c", "sub/d"):
        file = tmp_path / "truth" / f"{name}.png"
        mask = np.array(Image.open(file))
        wrong = rng.random(mask.shape) < 0.4
        mask[wrong] = rng.choice(VALUES, wrong.sum())
        Image.fromarray(mask).save(file)
    for name in ("a", "b", "sub/a", "sub/c", "sub/d"):
        probabilities = np.load(tmp_path / "out" / f"{name}.npy")
        truth = np.asarray(Image.open(tmp_path / "truth" / f"{name}.png"))
        confidences.append(probabilities.max(0).ravel())
        hits.append((VALUES[probabilities.argmax(0)] == truth).ravel())
    result = predict(sharp, [photos], tmp_path / "out", "--truth", tmp_path / "truth", "--overwrite")
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    confidence, is_right = np.concatenate(confidences), np.concatenate(hits)
    bins = np.ceil(confidence * 15).astype(int)
    expected = 0.0
    for number in np.unique(bins):
        in_bin = bins == number
        expected += abs(is_right[in_bin].sum() - confidence[in_bin].sum(dtype=np.float64)) / len(bins)
    calibration = metrics["calibration"]
    assert calibration["expected_calibration_error"] == pytest.approx(expected, abs=1e-5)
    assert sum(point["pixels"] for point in calibration["bins"]) == len(confidence)
    assert f"expected calibration error {expected:.4f}" in result.stdout


LOGITS = torch.tensor([[2.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]).view(3, 1, 2)


def uncertainty_of(task: Task, logits: torch.Tensor) -> np.ndarray:
    """The levels (1, 2) of two pixels."""
    return decode_strips(task, [logits], (1, 2), "a", wanted=("uncertainty",)).uncertainty


@pytest.mark.parametrize(
    ("task", "outputs"), [(Classes(("a", "b", "c")), 3), (Objects(), 2)], ids=["classes", "objects"]
)
def test_uncertainty_is_the_entropy_of_classes(task, outputs):
    """The depth of objects is left out."""
    levels = uncertainty_of(task, LOGITS)
    assert levels[0, 1] == 255
    assert abs(levels[0, 0] - entropy_levels(LOGITS[:outputs].softmax(0).numpy())[0, 0]) <= 0.51


def test_uncertainty_of_classes_that_overlap_is_that_of_the_least_sure():
    assert uncertainty_of(Overlapping(("a", "b", "c")), LOGITS).tolist() == [[255, 255]]  # of the second class
    assert uncertainty_of(Overlapping(("a", "b", "c")), torch.full((3, 1, 2), 40.0)).tolist() == [[0, 0]]


@pytest.mark.parametrize("beside", [(), (PROBABILITIES,)], ids=["alone", "beside probabilities"])
def test_the_uncertainty_of_a_volume_lies_on_its_own_grid(tmp_path, beside):
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    image = nibabel.Nifti1Image(np.zeros((5, 4, 3), np.uint8), np.diag([1.0, 1.0, 2.0, 1.0]))
    nibabel.save(image, tmp_path / "a.nii.gz")
    volume = VolumeFile((str(tmp_path / "a.nii.gz"),))
    job = Job(source=volume, size=(3, 4, 5), root=tmp_path / "out", stem=Path("a"))
    output_format = class_format(("a", "b"), (0, 7))
    write_logits(output_format, Classes(("a", "b")), job, logits, (".png", UNCERTAINTY, *beside))
    written = nibabel.load(tmp_path / "out" / "a.uncertainty.nii.gz")
    levels = np.asarray(written.dataobj).T
    assert written.header.get_zooms() == (1, 1, 2)
    assert levels.dtype == np.uint8
    np.testing.assert_allclose(levels, entropy_levels(logits.softmax(0).double().numpy()), rtol=0, atol=0.51)
