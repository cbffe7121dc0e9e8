"""review.py --calibrate: one temperature for all logits of a model, so that it is as sure as it is right.

Logits divided by a temperature above 1 are less sure; the answers stay the same. The temperature is the one with the
least cross-entropy on the validation images (Guo et al., ICML 2017, arXiv:1706.04599). The cross-entropy is added up
for a row of temperatures at once, so that images are read once.
"""

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
from train_utils.review.runs import open_reviewed_run, predicted_slices
from unet.config import IGNORE_INDEX
from unet.model import UNet

TEMPERATURES = torch.logspace(-3, 3, 121, base=2, dtype=torch.float64)  # 1/8 to 8, each 3.5% above the one before
UNCHANGED = 60  # TEMPERATURES[60] is 1
PIXELS = 20_000  # about so many pixels of an image are counted, spread over it
SMALLEST_PROBABILITY = 1e-30  # the logarithm of 0 is no number


def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> str:
    """Fit a temperature on the validation images of a run, and put it into its model; a sentence on what it gains.

    The last layer is divided by the temperature, so that every program that opens the model, and every export, uses it.
    config.json records the temperature. Raises DataError if the model cannot be calibrated.
    """
    run = open_reviewed_run(folder, dataset, device)
    indices = [index for index in range(len(run.info.val)) if index not in run.info.val.bad]
    entropies = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    counts = torch.stack([no_counts()] * len(TEMPERATURES))
    for index in track(indices, len(indices), f"calibrating {folder}"):
        for probabilities, mask in predicted_slices(run, index):
            slice_entropies, slice_counts = try_temperatures(probabilities, mask)
            entropies += slice_entropies
            counts += slice_counts
    if not counts.any():
        raise DataError("no validation image has labeled pixels")
    best = int(entropies.argmin())
    temperature = TEMPERATURES[best].item()
    apply_temperature(folder / "model", temperature)
    before, after = (score_text(calibration_error(counts[number])) for number in (UNCHANGED, best))
    return (
        f"{run.name}: temperature {temperature:.3f}, expected calibration error {before} before and {after} after, on"
        " the validation images that it was fitted on"
    )


def try_temperatures(probabilities: np.ndarray, mask: np.ndarray) -> tuple[Tensor, Tensor]:
    """What an image would be predicted like at each of TEMPERATURES, counted in about PIXELS of its labeled pixels.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices.

    Returns:
        The summed cross-entropies, (121,), and the counts of `count_confidences`, (121, bins, 3).
    """
    known = np.flatnonzero(mask.ravel() != IGNORE_INDEX)
    known = known[:: max(1, len(known) // PIXELS)]
    labels = torch.from_numpy(mask.ravel()[known].astype(np.int64))
    known_probs = torch.from_numpy(probabilities.reshape(len(probabilities), -1)[:, known]).double()  # (classes, n)
    logits = known_probs.clamp_min(SMALLEST_PROBABILITY).log()  # up to a constant for each pixel
    is_right = logits.argmax(dim=0) == labels
    entropies, counts = [], []
    for temperature in TEMPERATURES:
        logs = (logits / temperature).log_softmax(dim=0)
        entropies.append(-logs.gather(0, labels[None]).sum())
        counts.append(count_confidences(logs.amax(dim=0).exp(), is_right, torch.ones_like(is_right)))
    return torch.stack(entropies), torch.stack(counts)


def apply_temperature(folder: Path, temperature: float) -> None:
    """Divide the logits of the model in a folder by a temperature, and record it, multiplied by an earlier one."""
    network = UNet.from_pretrained(folder)
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter /= temperature
    network.config = replace(network.config, temperature=network.config.temperature * temperature)
    with replace_files(folder) as temporary:
        network._save_pretrained(temporary)  # the model card stays
