"""The calibration of a run's model: one temperature, fitted on validation images.

Modules: train_utils/review/calibration.py.
"""

import numpy as np
import pytest
import torch

from train_utils.review.calibration import (
    TEMPERATURES,
    apply_temperature,
    best_temperature,
    cross_entropies,
    known_pixels,
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


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def toy(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (3, 100, 100), and labels that are drawn by their probabilities."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(3, 100, 100))
    below = softmax(logits).cumsum(axis=0)
    return logits, (rng.random((100, 100)) > below).sum(axis=0).astype(np.uint8)


def all_pixels(probabilities: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labeled pixels of an image."""
    return known_pixels(probabilities, mask, mask.size)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.7])
def test_the_temperature_is_the_number_that_logits_were_multiplied_by(factor):
    logits, mask = toy(0)
    mask[0] = 255
    entropies = cross_entropies(*all_pixels(softmax(factor * logits).astype(np.float32), mask))
    assert best_temperature(entropies) == pytest.approx(factor, rel=0.05)
    logs = np.log(np.take_along_axis(softmax(logits), np.minimum(mask, 2)[None].astype(int), 0))[0][mask != 255]
    assert TEMPERATURES[24] == 1
    assert cross_entropies(*all_pixels(softmax(logits), mask))[24] == pytest.approx(-logs.sum())


def test_a_model_that_is_never_right_gets_the_highest_temperature_and_one_that_always_is_the_lowest():
    _, mask = toy(0)
    probabilities = np.zeros((3, 100, 100), np.float32)
    np.put_along_axis(probabilities, mask[None].astype(int), 1, axis=0)
    assert best_temperature(cross_entropies(*all_pixels(probabilities, mask))) == 0.125
    assert best_temperature(cross_entropies(*all_pixels(probabilities, (mask + 1) % 3))) == 8
