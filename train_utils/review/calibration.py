"""review.py --calibrate: one temperature for the model of a run, from its validation images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference.review.temperature import TemperatureFit, calibrate
from runtime.console import track
from runtime.errors import DataError
from runtime.files import replace_files
from tasks.calibration import calibration_error, count_confidences, no_counts, reliability_curve
from tasks.confusion import score_text
from train_utils.reporting.charts import reliability_plot
from train_utils.reporting.rendering import write_html
from train_utils.review.reviewed_run import ReviewedRun, open_reviewed_run, predicted_slices
from unet.config import IGNORE_INDEX
from unet.model import UNet

PAGE = "calibration.html"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The gain of a model's temperature on the validation images of its run.

    Args:
        before, after: (bins, 3), the counts of `tasks.calibration` without and with it.
    """

    name: str
    temperature: float
    before: Tensor
    after: Tensor

    def sentence(self) -> str:
        """A line on the temperature and its gain."""
        before = score_text(calibration_error(self.before))
        after = score_text(calibration_error(self.after))
        return (
            f"{self.name}: temperature {self.temperature:.3f}, expected calibration error {before} before and"
            f" {after} after, on the validation images that it was fitted on"
        )


def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> Calibration:
    """Fit a temperature on the validation images of a run, and put it into its model.

    The last layer is divided by the temperature, so that every program that opens the model, and every export, uses it.
    config.json records the temperature. Raises DataError if the model cannot be calibrated.
    """
    run = open_reviewed_run(folder, dataset, device)
    fit = TemperatureFit()
    before = no_counts()
    for probabilities, truth in _predictions(run, f"calibrating {folder}"):
        fit.add(probabilities, truth)
        before = before + confidence_counts(probabilities, truth)
    if not fit.pixels:
        raise DataError("no validation image has labeled pixels")
    temperature = fit.temperature()
    after = no_counts()
    for probabilities, truth in _predictions(run, f"measuring {folder}"):
        after = after + confidence_counts(calibrate(probabilities, temperature), truth)
    apply_temperature(folder / "model", temperature)
    return Calibration(run.name, temperature, before, after)


def apply_temperature(folder: Path, temperature: float) -> None:
    """Divide the logits of the model in a folder by a temperature, and record it, multiplied by an earlier one."""
    network = UNet.from_pretrained(folder)
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter /= temperature
    network.config = replace(network.config, temperature=network.config.temperature * temperature)
    with replace_files(folder) as temporary:
        network._save_pretrained(temporary)  # the model card stays


def write_calibration(folder: Path, calibrations: Sequence[Calibration]) -> None:
    """Write the page with the curves of each model before and after. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    models = []
    for calibration in calibrations:
        curves = {}
        for title, counts in (("before", calibration.before), ("after", calibration.after)):
            curves[title] = reliability_plot(reliability_curve(counts))
        models.append({"sentence": calibration.sentence(), "curves": curves})
    write_html(folder / PAGE, "calibration.html.jinja", {}, models=models)


def _predictions(run: ReviewedRun, activity: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Probabilities (classes, H, W) and mask (H, W) of each slice of the validation images that can be read."""
    for index in track(range(len(run.info.val)), len(run.info.val), activity):
        if index not in run.info.val.bad:
            yield from predicted_slices(run, index)


def confidence_counts(probabilities: np.ndarray, truth: np.ndarray) -> Tensor:
    """The counts of `count_confidences` for probabilities (classes, H, W) and their mask (H, W)."""
    confidence = torch.from_numpy(probabilities.max(axis=0))
    is_right = torch.from_numpy(probabilities.argmax(axis=0) == truth)
    return count_confidences(confidence, is_right, torch.from_numpy(truth != IGNORE_INDEX))
