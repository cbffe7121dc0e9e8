"""Scoring the mask of a volume: Dice and IoU of each case and class, distances between surfaces in mm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.image_io.class_masks import ClassChannels, ClassMasks
from data_utils.image_io.formats import RenderedMask, VolumeFile
from data_utils.image_io.volume_formats import STACK_SUFFIXES
from data_utils.image_io.volumes import VolumeHeader, read_label_volume, read_volume_header, same_grid
from inference.outputs.jobs import MaskFile, PointRow, VolumeJob
from inference.outputs.prediction_format import MaskFormat
from inference.scoring.boundary import edge_distances, enclosing_box, hausdorff, numbers
from inference.scoring.components import AreaCounter
from inference.scoring.truth import ScoreError
from runtime.errors import DataError
from runtime.redact import table_names
from tasks.confusion import mean_of_present, score_text
from tasks.target import Target
from tasks.task import Scores, Task
from unet.config import IGNORE_INDEX

TOLERANCES = (1, 2)  # distances in mm within which surfaces count as the same
MEAN = "mean without background"
TITLES = {"dice": "Dice", "iou": "IoU", "hd95_mm": "HD95 (mm)"}
TITLES |= {f"surface_dice_{mm}mm": f"surface Dice {mm} mm" for mm in TOLERANCES}


class SurfaceScores(NamedTuple):
    """The surfaces of one volume, class by class; the first class, the background, has none.

    Args:
        hd95: (num_classes,) float64 Hausdorff distance in mm, NaN where truth or prediction lacks the class.
        dice: (num_classes, len(TOLERANCES)) float64 surface Dice, NaN where both lack the class, 0 where one does.
        missed: (num_classes,) bool, whether only one of both has the class, so that there is no distance.
    """

    hd95: np.ndarray
    dice: np.ndarray
    missed: np.ndarray


class VolumeScore(NamedTuple):
    """The scores of a volume, of its surfaces if requested, and the `counts` of its areas, if it has any."""

    scores: Scores
    surfaces: SurfaceScores | None
    areas: np.ndarray | None = None

    @property
    def boundary(self) -> None:
        """Only images have boundaries in pixels."""
        return None

    def to_json(self, name: str) -> dict[str, Any]:
        """The entry of metrics.json for this volume; None for a class without a score."""
        by_class = self.scores.by_class()
        result: dict[str, Any] = {"image": name} | self.scores.brief() | by_class
        if self.surfaces is not None:
            result |= {"hd95_mm": numbers(self.surfaces.hd95), "missed": self.surfaces.missed.tolist()}
            for mm, values in zip(TOLERANCES, self.surfaces.dice.T, strict=True):
                result[f"surface_dice_{mm}mm"] = numbers(values)
        if by_class:
            first = 1 if self.scores.has_background else 0
            result["mean_dice"] = mean_of_present(by_class["dice"][first:])
        return result


@dataclass(frozen=True)
class VolumeScorer:
    """Scores the masks of volumes against their true masks."""

    output_format: MaskFormat
    task: Task
    surfaces: bool = False

    def score(self, job: VolumeJob) -> VolumeScore:
        """The score of a mask that was written before. Raises ScoreError if it cannot be scored."""
        written_volume = self.output_format.written_volume(job)
        name = written_volume.paths[0]
        try:
            values, _ = read_label_volume(written_volume, name)
            return self.score_mask(job, self.output_format.reader.target_from_volume(values, name).prediction)
        except (DataError, OSError) as error:
            raise ScoreError(str(error)) from error

    def score_mask(self, job: VolumeJob, pred: np.ndarray) -> VolumeScore:
        """The score of a prediction (D, H, W). Raises DataError if its true mask cannot be used."""
        assert job.truth is not None
        assert not isinstance(job.truth, PointRow)
        header = read_volume_header(job.volume, job.name)
        if pred.shape != header.size:
            name = self.output_format.written_volume(job).paths[0]
            raise DataError(f"{name}: differs in size from the volume; give --overwrite to predict it again")
        target = self._read_truth(job.truth, job.volume, header)
        scores = self.task.new_scores(1)
        for z, plane in enumerate(pred):
            plane_target = target.at(z).map(lambda labels: torch.from_numpy(labels)[None])
            scores.add_part(torch.from_numpy(plane).long()[None], plane_target, 0)
        scores.finish_image(0)
        areas = None
        if self.task.answers_classes:
            counter = AreaCounter(self.task.outputs)
            counter.add(pred, target.main)
            counter.finish()
            areas = counter.counts()
        surfaces = None
        if self.surfaces:
            surfaces = surface_scores(pred, target.main, self.task.outputs, header.spacing)
        return VolumeScore(scores, surfaces, areas)

    def _read_truth(self, mask: MaskFile, image: VolumeFile, header: VolumeHeader) -> Target:
        """The true mask (D, H, W) of a volume. Raises DataError if it lies on another grid."""
        volume = _as_volume(mask)._replace(grid_of=image.paths[0])
        truth = volume.paths[0]
        if truth.lower().endswith(STACK_SUFFIXES):  # the file of a stack holds no spacing
            volume = volume._replace(spacing=header.spacing)
        values, truth_header = read_label_volume(volume, truth)
        if truth_header.size != header.size:
            true_size = " x ".join(map(str, truth_header.size))
            size = " x ".join(map(str, header.size))
            raise DataError(f"{truth}: is {true_size}, but the volume {size} (z, y, x)")
        if not same_grid(truth_header, header):
            raise DataError(f"{truth}: its affine differs from the volume's; resample it to the grid of the volume")
        return self.output_format.reader.target_from_volume(values, truth)


def _as_volume(mask: MaskFile) -> VolumeFile:
    """The volume of a mask, which is one file or several."""
    if isinstance(mask, VolumeFile):
        return mask
    assert not isinstance(mask, ClassMasks | ClassChannels)
    if isinstance(mask, RenderedMask):
        raise DataError("the true objects of a volume are a label volume, and no annotations")
    return VolumeFile((str(mask.path),))


def surface_scores(
    pred: np.ndarray, truth: np.ndarray, num_classes: int, spacing: tuple[float, float, float]
) -> SurfaceScores:
    """The scores of class indices (D, H, W), spacing (z, y, x) in mm; voxels that the truth ignores are of no class.

    A surface is the voxels of a class with one of six neighbors outside the class; beyond the volume is background.
    Hausdorff distance: the larger of the 95th percentiles in both directions, as in Metrics Reloaded (Maier-Hein et
    al., Nature Methods 2024). Surface Dice: the share of both surfaces that lies within a tolerance of the other one
    (Nikolov et al. 2018, arXiv:1809.04430).
    """
    from scipy.ndimage import find_objects

    hd95 = np.full(num_classes, np.nan)
    dice = np.full((num_classes, len(TOLERANCES)), np.nan)
    missed = np.zeros(num_classes, bool)
    if (truth == IGNORE_INDEX).any():
        pred = np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred)
    # the background, index 0, and the ignored voxels, the largest index, are not among these objects
    true_boxes = find_objects(truth, max_label=num_classes - 1)
    pred_boxes = find_objects(pred, max_label=num_classes - 1)
    for index, boxes in enumerate(zip(true_boxes, pred_boxes, strict=True), 1):
        present = [box for box in boxes if box is not None]
        if len(present) == 1:
            missed[index] = True
            dice[index] = 0
        elif present:
            box = enclosing_box(present)
            true = np.pad(truth[box] == index, 1)
            predicted = np.pad(pred[box] == index, 1)
            ways = edge_distances(true, predicted, spacing)
            hd95[index] = hausdorff(ways)
            distances = np.concatenate(ways)
            dice[index] = [(distances <= mm).mean() for mm in TOLERANCES]
    return SurfaceScores(hd95, dice, missed)


def case_report(
    cases: Sequence[dict[str, Any]], names: Sequence[str], *, has_background: bool = True
) -> dict[str, Any]:
    """The report of all volumes as JSON: each score's mean over the cases that have it, class by class and over all.

    The background, the first class where there is one, is left out. `dice_cases` counts the cases that have a Dice,
    `hd95_missed` the cases where only truth or prediction has the class: their Dice is 0, and they have no distance.
    """
    first = 1 if has_background else 0
    report: dict[str, Any] = {"cases": len(cases), "classes": list(names[first:])}
    classes = range(first, len(names))
    for key in TITLES:
        if key not in cases[0]:
            continue
        means = []
        for index in classes:
            means.append(mean_of_present([case[key][index] for case in cases]))
        report[f"mean_{key}"] = mean_of_present(means)
        report[key] = means
    report["dice_cases"] = []
    for index in classes:
        report["dice_cases"].append(sum(case["dice"][index] is not None for case in cases))
    if "missed" in cases[0]:
        report["hd95_missed"] = []
        for index in classes:
            report["hd95_missed"].append(sum(case["missed"][index] for case in cases))
    return report


def case_table(report: dict[str, Any]) -> str:
    """The result of `case_report` as plain text: a line for each class, then the classes without a distance."""
    titles = {key: title for key, title in TITLES.items() if key in report}
    names = table_names(report["classes"])
    width = max(len(MEAN), *map(len, names))

    def row(first: str, cells: Sequence[str], last: str) -> str:
        columns = [f"{first:<{width}}"]
        for title, cell in zip(titles.values(), cells, strict=True):
            columns.append(f"{cell:>{max(7, len(title))}}")
        columns.append(f"{last:>6}")
        return "  ".join(columns)

    rows = [row("of cases", list(titles.values()), "cases")]
    for index, name in enumerate(names):
        values = [score_text(report[key][index]) for key in titles]
        rows.append(row(name, values, str(report["dice_cases"][index])))
    means = [score_text(report[f"mean_{key}"]) for key in titles]
    rows.append(row(MEAN, means, str(report["cases"])))
    for name, count in zip(report["classes"], report.get("hd95_missed", ()), strict=False):
        if count:
            rows.append(
                f"{name}: no distance in {count} of {report['cases']} cases: only one of truth and prediction has it"
            )
    return "\n".join(rows)
