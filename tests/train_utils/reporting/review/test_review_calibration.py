"""The calibration of a run's model: one temperature, fitted on validation images, and its page.

Modules: train_utils/reporting/review/calibration.py.
"""

import re
import weakref

import numpy as np
import pytest
import torch
from support.reviews import RunStandIn, cell_probabilities

from inference.review.temperature import calibrate
from runtime.errors import DataError
from train_utils.reporting.review import calibration
from train_utils.reporting.review.calibration import (
    Calibration,
    apply_temperature,
    calibrate_run,
    confidence_counts,
    write_calibration,
)
from unet import UNet, UNetConfig

CPU = torch.device("cpu")
UNSURE = torch.tensor([[10, 4, 0]])  # of ten pixels four are right, and all of confidence 0
WELL_CALIBRATED = torch.tensor([[10, 0, 0]])


class FittedRun(RunStandIn):
    """A run whose second and third images are damaged, and whose model is too sure that the left half is a cell."""

    def __init__(self) -> None:
        super().__init__("run", [cell_probabilities((0, 0, 20, 15, 0.99)), cell_probabilities((0, 0, 20, 15, 0.9))])
        self.info.val.bad[1] = "cut"
        self.truth = np.zeros((20, 30), np.int64)
        self.truth[:15, :15] = 1
        self.predicted_images: list[int] = []
        self.applied_temperatures: list[tuple] = []

    def predicted_slices(self, run: "FittedRun", index: int):
        """Stand in for `predicted_slices`."""
        self.predicted_images.append(index)
        yield self.probabilities[index // 3], self.truth


@pytest.fixture
def run(monkeypatch) -> FittedRun:
    """The run that is calibrated, whatever the folder."""
    fitted = FittedRun()
    monkeypatch.setattr(calibration, "open_reviewed_run", lambda folder, dataset, device: fitted)
    monkeypatch.setattr(calibration, "predicted_slices", fitted.predicted_slices)
    monkeypatch.setattr(calibration, "apply_temperature", lambda *args: fitted.applied_temperatures.append(args))
    return fitted


def test_a_model_is_calibrated_on_all_validation_images_that_can_be_read(run, tmp_path):
    calibrate_run(tmp_path, "data", CPU)
    assert run.predicted_images == [0, 3, 0, 3]  # once to fit, once to measure


def test_a_model_that_is_too_sure_gets_a_high_temperature(run, tmp_path):
    result = calibrate_run(tmp_path, "data", CPU)
    assert result.name == "run"
    assert result.temperature > 1.5
    assert run.applied_temperatures == [(tmp_path / "model", result.temperature)]


def test_a_model_that_is_not_sure_enough_gets_a_low_temperature(run, tmp_path):
    run.truth[:] = run.probabilities[1].argmax(axis=0)
    result = calibrate_run(tmp_path, "data", CPU)
    assert result.temperature < 0.7
    assert run.applied_temperatures == [(tmp_path / "model", result.temperature)]


def test_probabilities_of_few_images_are_in_memory(run, tmp_path, monkeypatch):
    references, counts = [], []

    def predicted_slices(run: FittedRun, index: int):
        for _ in range(9):
            probabilities = cell_probabilities((0, 0, 20, 15, 0.9))
            references.append(weakref.ref(probabilities))
            counts.append(sum(reference() is not None for reference in references))
            yield probabilities, run.truth

    monkeypatch.setattr(calibration, "predicted_slices", predicted_slices)
    calibrate_run(tmp_path, "data", CPU)
    assert len(counts) == 2 * 2 * 9
    assert max(counts) <= 3


def test_confidences_are_counted_before_the_temperature_is_applied(run, tmp_path):
    result = calibrate_run(tmp_path, "data", CPU)
    assert result.before.equal(sum(confidence_counts(probs, run.truth) for probs in run.probabilities))


def test_confidences_are_counted_with_the_temperature(run, tmp_path):
    result = calibrate_run(tmp_path, "data", CPU)
    softened = [calibrate(probs, result.temperature) for probs in run.probabilities]
    assert result.after.equal(sum(confidence_counts(probs, run.truth) for probs in softened))


def test_a_model_without_labeled_pixels_cannot_be_calibrated(run, tmp_path):
    run.truth[:] = 255
    with pytest.raises(DataError, match=r"^no validation image has labeled pixels$"):
        calibrate_run(tmp_path, "data", CPU)


def test_temperatures_divide_all_of_the_last_layer(tmp_path):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    before = [parameter.detach().clone() for parameter in network.head.parameters()]
    network.save_pretrained(tmp_path)
    for temperature in (2.0, 3.0):
        apply_temperature(tmp_path, temperature)
    calibrated = UNet.from_pretrained(tmp_path)
    assert calibrated.config.temperature == 6.0
    assert len(before) == 2
    for parameter, old in zip(calibrated.head.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old / 6)


def test_confidences_are_counted_where_the_mask_is_known():
    probabilities = np.array([[[0.75, 0.25, 0.625]], [[0.25, 0.75, 0.375]]], np.float32)
    counts = confidence_counts(probabilities, np.array([[0, 0, 255]]))
    assert counts.sum(dim=0).tolist() == [2, 1, 1.5 * 2**20]


def test_a_calibration_says_the_error_before_and_after():
    text = Calibration("runs/a", 1.5, UNSURE, WELL_CALIBRATED).sentence()
    assert text.startswith("runs/a: temperature 1.500, expected calibration error 0.4000 before and 0.0000 after, on")


def test_the_page_of_a_calibration_shows_each_model_before_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "reliability_curve", lambda counts: counts.tolist())
    monkeypatch.setattr(calibration, "reliability_plot", lambda title, points: f"<svg>{title}: {points}</svg>")
    models = [
        Calibration("runs/<a>", 1.5, UNSURE, WELL_CALIBRATED),
        Calibration("runs/b", 2.0, 2 * UNSURE, 2 * WELL_CALIBRATED),
    ]
    folder = tmp_path / "new" / "out"
    write_calibration(folder, models)
    write_calibration(folder, models)  # over the page of an earlier time
    html = (folder / "calibration.html").read_text()
    assert re.findall(r"<svg>(.*?)</svg>", html) == [
        "model 1, before: [[10, 4, 0]]",
        "model 1, after: [[10, 0, 0]]",
        "model 2, before: [[20, 8, 0]]",
        "model 2, after: [[20, 0, 0]]",
    ]
    assert re.findall(r"<h3>(.*?)</h3>", html) == ["before", "after"] * 2
    sentences = re.findall(r"<h2>(.*?)</h2>", html)
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "runs/&lt;a&gt;: temperature 1.500",
        "runs/b: temperature 2.000",
    ]
