"""review.py --calibrate: one temperature for all logits of a model, so that it is as sure as it is right.

Logits divided by a temperature above 1 are less sure; the predictions stay the same. The temperature is the one with
the least cross-entropy on the validation images (Guo et al., ICML 2017, arXiv:1706.04599).
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from runtime.console import track
from runtime.errors import DataError
from runtime.files import replace_files
from tasks.calibration import calibration_error, count_confidences, no_counts
from tasks.confusion import score_text
from train_utils.review.reviews import open_reviewed_run, predicted_slices
from unet.config import IGNORE_INDEX
from unet.model import UNet

# the temperatures that are tried: 1/8 to 8, each 9% above the one before
TEMPERATURES = 2 ** np.linspace(-3, 3, 49)
PIXELS = 20_000  # about so many pixels of an image are counted, spread over it
MOST_PIXELS = 5_000_000  # of all images
SLICES = 100  # of a volume, about
SMALLEST_PROBABILITY = 1e-30  # the logarithm of 0 is no number

Sample = tuple[np.ndarray, np.ndarray]  # probabilities (classes, n) and labels (n,) of some pixels of an image


def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> str:
    """Fit a temperature on the validation images of a run, and put it into its model; a sentence on what it gains.

    The last layer is divided by the temperature, so that every program that opens the model, and every export, uses it.
    config.json records the temperature. Raises DataError if the model cannot be calibrated.
    """
    run = open_reviewed_run(folder, dataset, device)
    val = run.info.val
    indices = [index for index in range(len(val)) if index not in val.bad]
    slices = max(1, len(indices))
    if run.has_volumes:
        slices *= SLICES
    pixels = min(PIXELS, max(1, MOST_PIXELS // slices))
    samples: list[Sample] = []
    for index in track(indices, len(indices), f"calibrating {run.name}"):
        for probabilities, mask in predicted_slices(run, index):
            samples.append(known_pixels(probabilities, mask, pixels))
    if not any(len(labels) for _, labels in samples):
        raise DataError("no validation image has labeled pixels")
    temperature = best_temperature(np.sum([cross_entropies(*sample) for sample in samples], axis=0))
    softened = [(soften(probabilities, temperature), labels) for probabilities, labels in samples]
    apply_temperature(folder / "model", temperature)
    return (
        f"{run.name}: temperature {temperature:.3f}, expected calibration error {error_text(samples)} before and"
        f" {error_text(softened)} after, on the validation images that it was fitted on"
    )


def known_pixels(probabilities: np.ndarray, mask: np.ndarray, count: int) -> Sample:
    """About `count` labeled pixels of probabilities (classes, H, W) and their mask (H, W) of class indices."""
    known = np.flatnonzero(mask.ravel() != IGNORE_INDEX)
    known = known[:: max(1, len(known) // count)]
    return probabilities.reshape(len(probabilities), -1)[:, known], mask.ravel()[known]


def cross_entropies(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(49,): the summed cross-entropy of a sample at each of TEMPERATURES."""
    # the logits, up to a constant for each pixel
    logits = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY))
    label_logits = logits[labels, np.arange(len(labels))]
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


def soften(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities (classes, n) of logits that are divided by a temperature."""
    powers = np.maximum(probabilities.astype(np.float64), SMALLEST_PROBABILITY) ** (1 / temperature)
    return powers / powers.sum(axis=0)


def error_text(samples: Iterable[Sample]) -> str:
    """The expected calibration error of samples, in digits."""
    counts = no_counts()
    for probabilities, labels in samples:
        confidence = torch.from_numpy(probabilities.max(axis=0))
        is_right = torch.from_numpy(probabilities.argmax(axis=0) == labels)
        counts += count_confidences(confidence, is_right, torch.ones_like(is_right))
    return score_text(calibration_error(counts))


def apply_temperature(folder: Path, temperature: float) -> None:
    """Divide the logits of the model in a folder by a temperature, and record it, multiplied by an earlier one."""
    network = UNet.from_pretrained(folder)
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter /= temperature
    network.config = replace(network.config, temperature=network.config.temperature * temperature)
    with replace_files(folder) as temporary:
        network._save_pretrained(temporary)  # the model card stays
