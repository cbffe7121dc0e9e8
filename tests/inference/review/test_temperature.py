"""The temperature of models whose calibration is known: softmaxes of logits that were multiplied by a number.

Modules: inference/review/temperature.py.
"""

import numpy as np
import pytest

from inference.review.temperature import TEMPERATURES, TemperatureFit, calibrate


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def toy(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (3, 100, 100), and labels that are drawn by their probabilities."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(3, 100, 100))
    below = softmax(logits).cumsum(axis=0)
    return logits, (rng.random((100, 100)) > below).sum(axis=0).astype(np.uint8)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.7])
def test_the_temperature_is_the_number_that_logits_were_multiplied_by(factor):
    fit = TemperatureFit()
    for seed in range(3):
        logits, mask = toy(seed)
        mask[seed] = 255
        fit.add(softmax(factor * logits).astype(np.float32), mask)
    fit.add(np.full((3, 4, 4), 1 / 3), np.full((4, 4), 255))  # says nothing
    assert fit.pixels == 3 * 9900
    assert fit.temperature() == pytest.approx(factor, rel=0.04)
    np.testing.assert_allclose(calibrate(softmax(factor * logits), factor), softmax(logits), rtol=1e-9)
    logs = np.log(np.take_along_axis(softmax(logits), np.minimum(mask, 2)[None].astype(int), 0))[0][mask != 255]
    one = int(np.abs(TEMPERATURES - 1).argmin())
    last = TemperatureFit()
    last.add(softmax(logits), mask)
    assert last.sums[one] == pytest.approx(-logs.sum())


def test_a_model_that_is_never_right_gets_the_highest_temperature():
    _, mask = toy(0)
    probabilities = np.full((3, 100, 100), 0.495, np.float32)
    np.put_along_axis(probabilities, mask[None].astype(int), 0.01, axis=0)
    fit = TemperatureFit()
    fit.add(probabilities, mask)
    assert fit.temperature() == 8


def test_some_twenty_thousand_pixels_of_a_large_image_count():
    fit = TemperatureFit()
    fit.add(np.full((2, 300, 400), 0.5, np.float32), np.zeros((300, 400), np.uint8))
    assert fit.pixels == 20_000


@pytest.mark.parametrize(("rows", "pixels"), [(10, 4000), (60, 24_000), (110, 22_000)])
def test_pixels_of_a_large_image_count_where_it_is_labeled(rows, pixels):
    mask = np.full((300, 400), 255, np.uint8)
    mask[:rows] = 1
    fit = TemperatureFit()
    fit.add(np.full((2, 300, 400), 0.5, np.float32), mask)
    assert fit.pixels == pixels


def test_a_model_that_is_never_wrong_gets_the_lowest_temperature():
    _, mask = toy(0)
    probabilities = np.zeros((3, 100, 100), np.float32)
    np.put_along_axis(probabilities, mask[None].astype(int), 1, axis=0)
    fit = TemperatureFit()
    fit.add(probabilities, mask)
    assert fit.temperature() == 0.125
    assert np.isfinite(fit.sums).all()
    fit.add(probabilities, (mask + 1) % 3)  # is never right
    assert np.isfinite(fit.sums).all()
    assert calibrate(probabilities, 0.125).sum(axis=0) == pytest.approx(np.ones((100, 100)))
