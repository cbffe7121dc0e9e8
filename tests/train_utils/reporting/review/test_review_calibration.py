"""The calibration of a run's model: one temperature, fitted on validation images, and its page.

Modules: train_utils/reporting/review/calibration.py.
"""

import numpy as np
import pytest
import torch
from support.reviews import RunStandIn, cell_probabilities

from runtime.errors import DataError
from train_utils.reporting.review import calibration
from train_utils.reporting.review.calibration import (
    apply_temperature,
    calibrate_run,
    confidence_counts,
)
from unet import UNet, UNetConfig

CPU = torch.device("cpu")


class FittedRun(RunStandIn):
    """A run whose second and third images are damaged, and whose model is too sure that the left half is a cell."""

    def __init__(self) -> None:
        super().__init__("run", [cell_probabilities((0, 0, 20, 15, 0.99)), cell_probabilities((0, 0, 20, 15, 0.9))])
        self.info.val.bad[1] = "cut"
        self.truth = np.zeros((20, 30), np.int64)
        self.truth[:15, :15] = 1
        self.applied_temperatures: list[tuple] = []

    def predicted_slices(self, run: "FittedRun", index: int):
        """Stand in for `predicted_slices`."""
        yield self.probabilities[index // 3], self.truth


@pytest.fixture
def run(monkeypatch) -> FittedRun:
    """The run that is calibrated, whatever the folder."""
    fitted = FittedRun()
    monkeypatch.setattr(calibration, "open_reviewed_run", lambda folder, dataset, device: fitted)
    monkeypatch.setattr(calibration, "predicted_slices", fitted.predicted_slices)
    monkeypatch.setattr(calibration, "apply_temperature", lambda *args: fitted.applied_temperatures.append(args))
    return fitted


def test_a_model_that_is_too_sure_gets_a_high_temperature(run, tmp_path):
    result = calibrate_run(tmp_path, "data", CPU)
    assert result.name == "run"
    assert result.temperature > 1.5
    assert run.applied_temperatures == [(tmp_path / "model", result.temperature)]


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
