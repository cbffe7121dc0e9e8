"""review.py --calibrate: one temperature for all logits of a model, so that it is as sure as it is right.

Logits divided by a temperature above 1 are less sure; the answers stay the same. The temperature is the one with the
least cross-entropy on the validation images (Guo et al., ICML 2017, arXiv:1706.04599). The cross-entropy is added up
for a row of temperatures at once, so that they are read once for all of these.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runtime.console import track
from runtime.errors import DataError
from runtime.files import replace_files
from tasks.calibration import calibration_error, count_confidences, no_counts
from tasks.confusion import score_text
from train_utils.review.runs import ReviewedRun, open_reviewed_run, predicted_slices
from unet.config import IGNORE_INDEX
from unet.model import UNet

# the temperatures that are tried: 1/8 to 8, each 9% above the one before
TEMPERATURES = 2 ** np.linspace(-3, 3, 49)
PIXELS = 20_000  # about so many pixels of an image are counted, spread over it
SMALLEST_PROBABILITY = 1e-30  # the logarithm of 0 is no number


def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> str:
    """Fit a temperature on the validation images of a run, and put it into its model; a sentence on what it gains.

    The last layer is divided by the temperature, so that every program that opens the model, and every export, uses it.
    config.json records the temperature. Raises DataError if the model cannot be calibrated.
    """
    run = open_reviewed_run(folder, dataset, device)
    entropies = np.zeros(len(TEMPERATURES))
    before = no_counts()
    for probabilities, mask in _predictions(run, "calibrating"):
        entropies += cross_entropies(probabilities, mask)
        before += confidence_counts(probabilities, mask)
    if not before.any():
        raise DataError("no validation image has labeled pixels")
    temperature = best_temperature(entropies)
    after = no_counts()
    for probabilities, mask in _predictions(run, "measuring"):
        powers = np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY) ** (1 / temperature)
        after += confidence_counts(powers / powers.sum(axis=0), mask)
    apply_temperature(folder / "model", temperature)
    return (
        f"{run.name}: temperature {temperature:.3f}, expected calibration error {score_text(calibration_error(before))}"
        f" before and {score_text(calibration_error(after))} after, on the validation images that it was fitted on"
    )


def _predictions(run: ReviewedRun, activity: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Probabilities (classes, H, W) and mask (H, W) of each slice of the validation images that can be read."""
    indices = [index for index in range(len(run.info.val)) if index not in run.info.val.bad]
    for index in track(indices, len(indices), f"{activity} {run.name}"):
        yield from predicted_slices(run, index)


def cross_entropies(probabilities: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(49,): the summed cross-entropy of an image at each of TEMPERATURES, in about PIXELS of its labeled pixels.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices.
    """
    known_pixels = np.flatnonzero(mask.ravel() != IGNORE_INDEX)
    known_pixels = known_pixels[:: max(1, len(known_pixels) // PIXELS)]
    labels = mask.ravel()[known_pixels]
    known_probs = probabilities.reshape(len(probabilities), -1)[:, known_pixels].astype(np.float64)  # (classes, n)
    # the logits, up to a constant for each pixel
    logits = np.log(np.maximum(known_probs, SMALLEST_PROBABILITY))
    label_logits = logits[labels, np.arange(len(known_pixels))]
    sums = []
    for temperature in TEMPERATURES:
        # no overflow: the largest of these is at least -ln(classes) / temperature, and at most 0
        log_sums = np.log(np.exp(logits / temperature).sum(axis=0))
        sums.append((log_sums - label_logits / temperature).sum())
    return np.array(sums)


def best_temperature(entropies: np.ndarray) -> float:
    """The temperature with the least cross-entropy: the lowest point of a parabola through the best three."""
    best = int(entropies.argmin())
    if best in (0, len(TEMPERATURES) - 1):
        return float(TEMPERATURES[best])
    left, middle, right = entropies[best - 1 : best + 2]
    steps = 0.5 * (left - right) / (left - 2 * middle + right)
    ratio = TEMPERATURES[1] / TEMPERATURES[0]
    return float(TEMPERATURES[best] * ratio**steps)


def confidence_counts(probabilities: np.ndarray, mask: np.ndarray) -> Tensor:
    """The counts of `count_confidences` for probabilities (classes, H, W) and their mask (H, W)."""
    confidence = torch.from_numpy(probabilities.max(axis=0))
    is_right = torch.from_numpy(probabilities.argmax(axis=0) == mask)
    return count_confidences(confidence, is_right, torch.from_numpy(mask != IGNORE_INDEX))


def apply_temperature(folder: Path, temperature: float) -> None:
    """Divide the logits of the model in a folder by a temperature, and record it, multiplied by an earlier one."""
    network = UNet.from_pretrained(folder)
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter /= temperature
    network.config = replace(network.config, temperature=network.config.temperature * temperature)
    with replace_files(folder) as temporary:
        network._save_pretrained(temporary)  # the model card stays
