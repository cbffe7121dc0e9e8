"""The calibration of a run's model: one temperature, fitted on validation images, and its page.

Modules: train_utils/review/calibration.py.
"""

import numpy as np
import torch

from train_utils.review.calibration import (
    apply_temperature,
    confidence_counts,
)
from unet import UNet, UNetConfig


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
