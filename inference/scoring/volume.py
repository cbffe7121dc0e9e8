"""Scoring the mask of a volume: Dice and IoU of each case and class, distances between surfaces in mm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volume_formats import STACK_SUFFIXES
from data_utils.image_io.volumes import VolumeHeader, read_label_volume, read_volume_header, same_grid
from data_utils.targets.reader import MaskReader
from inference.outputs.jobs import MASK, VolumeJob
from inference.scoring.boundary import PERCENTILE, numbers
from inference.scoring.truth import ScoreError
from runtime.errors import DataError
from tasks.confusion import mean_of_present
from tasks.target import Target
from tasks.task import Scores, Task
from unet.config import IGNORE_INDEX

TOLERANCES = (1, 2)  # mm, within which surfaces count as the same
TITLES = {"dice": "Dice", "iou": "IoU", "hd95_mm": "HD95 (mm)"}
TITLES |= {f"surface_dice_{mm}mm": f"surface Dice {mm} mm" for mm in TOLERANCES}


class SurfaceScores(NamedTuple):
    """The surfaces of one volume, of each class but the first, the background, which has none.

    hd95: (num_classes,) float64 Hausdorff distance in mm, NaN where truth or prediction lacks the class.
    dice: (num_classes, len(TOLERANCES)) float64 surface Dice, NaN where both lack it, 0 where one does.
    missed: (num_classes,) bool, whether one of them alone has the class, so that there is no distance.
    """

    hd95: np.ndarray
    dice: np.ndarray
    missed: np.ndarray


class VolumeScore(NamedTuple):
    """The scores of a volume, and those of its surfaces where asked for."""

    scores: Scores
    surfaces: SurfaceScores | None

    @property
    def boundary(self) -> None:
        """Only images have boundaries in pixels."""
        return None

    def to_json(self, name: str) -> dict[str, Any]:
        """What metrics.json says of this volume; a class has None where there is no score."""
        by_class = self.scores.by_class()
        result: dict[str, Any] = {"image": name} | self.scores.brief() | by_class
        if self.surfaces is not None:
            result |= {"hd95_mm": numbers(self.surfaces.hd95), "missed": self.surfaces.missed.tolist()}
            for mm, values in zip(TOLERANCES, self.surfaces.dice.T, strict=True):
                result[f"surface_dice_{mm}mm"] = numbers(values)
        if by_class:
            result["mean_dice"] = mean_of_present(by_class["dice"][1:])
        return result


@dataclass(frozen=True)
class VolumeScorer:
    """Scores the masks of volumes against their true masks."""

    reader: MaskReader
    task: Task
    surfaces: bool = False

    def score(self, job: VolumeJob) -> VolumeScore:
        """The score of a mask that was written before; ScoreError where it cannot be had."""
        written = job.file(MASK)
        try:
            values, _ = read_label_volume(VolumeFile((str(written),)), str(written))
            return self.score_mask(job, self.reader.of_label_volume(values, str(written)).main)
        except (DataError, OSError) as error:
            raise ScoreError(str(error)) from error

    def score_mask(self, job: VolumeJob, pred: np.ndarray) -> VolumeScore:
        """The score of a prediction (D, H, W); DataError where its true mask cannot be used."""
        assert job.truth is not None
        header = read_volume_header(job.volume, job.name)
        if pred.shape != header.size:
            raise DataError(f"{job.file(MASK)}: differs in size from the volume; give --overwrite to predict it again")
        target = self._read_truth(job.truth[0], header)
        scores = self.task.new_scores(1)
        for z, plane in enumerate(pred):
            of_plane = target.at(z).map(lambda labels: torch.from_numpy(labels)[None])
            scores.add(torch.from_numpy(plane).long()[None], of_plane, 0)
        if not self.surfaces:
            return VolumeScore(scores, None)
        return VolumeScore(scores, surface_scores(pred, target.main, self.task.outputs, header.spacing))

    def _read_truth(self, truth: Path, header: VolumeHeader) -> Target:
        spacing = header.spacing if str(truth).lower().endswith(STACK_SUFFIXES) else None  # whose file holds none
        values, of_truth = read_label_volume(VolumeFile((str(truth),), spacing), str(truth))
        if of_truth.size != header.size:
            sizes = (" x ".join(map(str, size)) for size in (of_truth.size, header.size))
            raise DataError("{}: is {}, but the volume {} (z, y, x)".format(truth, *sizes))
        if not same_grid(of_truth, header):
            raise DataError(f"{truth}: its affine differs from the volume's; resample it to the grid of the volume")
        return self.reader.of_label_volume(values, str(truth))


def surface_scores(
    pred: np.ndarray, truth: np.ndarray, num_classes: int, spacing: tuple[float, float, float]
) -> SurfaceScores:
    """Of class indices (D, H, W), spacing (z, y, x) in mm; voxels that the truth ignores belong to no class.

    A surface is the voxels of a class with a neighbour, of six, that is not of it; beyond the volume there is nothing.
    Hausdorff distance: the larger one of the 95th percentiles of both ways, as in Metrics Reloaded (Maier-Hein et al.,
    Nature Methods 2024). Surface Dice: the share of both surfaces that lies within a tolerance of the other one
    (Nikolov et al. 2018, arXiv:1809.04430).
    """
    from scipy.ndimage import find_objects

    hd95, dice = np.full(num_classes, np.nan), np.full((num_classes, len(TOLERANCES)), np.nan)
    missed = np.zeros(num_classes, bool)
    if (truth == IGNORE_INDEX).any():
        pred = np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred)
    # index 0, the background, is none of the objects; the ignored is the last one
    boxes = [find_objects(mask, max_label=num_classes - 1) for mask in (truth, pred)]
    for index, found in enumerate(zip(*boxes, strict=True), 1):
        present = [box for box in found if box is not None]
        if len(present) == 1:
            missed[index], dice[index] = True, 0
        elif present:
            box = tuple(
                slice(min(s.start for s in axis), max(s.stop for s in axis)) for axis in zip(*present, strict=True)
            )
            true, predicted = (np.pad(mask[box] == index, 1) for mask in (truth, pred))
            ways = _surface_distances(true, predicted, spacing)
            hd95[index] = max(np.percentile(way, PERCENTILE) for way in ways)
            both = np.concatenate(ways)
            dice[index] = [(both <= mm).mean() for mm in TOLERANCES]
    return SurfaceScores(hd95, dice, missed)


def _surface_distances(
    true: np.ndarray, predicted: np.ndarray, spacing: tuple[float, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """In mm, from each surface voxel of a mask to the nearest one of the other, both ways.

    The masks (D, H, W) are not empty and do not touch the border.
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    first, second = (mask & ~binary_erosion(mask) for mask in (true, predicted))
    return (
        distance_transform_edt(~second, sampling=spacing)[first],
        distance_transform_edt(~first, sampling=spacing)[second],
    )


def case_report(cases: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Of all volumes, as JSON: of each class but the background the mean of the cases that have a score, and of those.

    `dice_cases` counts them, `hd95_missed` the cases where truth or prediction alone has the class: their Dice is 0,
    and they have no distance.
    """
    report: dict[str, Any] = {"cases": len(cases), "classes": [*names[1:]]}
    classes = range(1, len(names))
    for key in TITLES:
        if key in cases[0]:
            means = [mean_of_present([case[key][index] for case in cases]) for index in classes]
            report |= {f"mean_{key}": mean_of_present(means), key: means}
    report["dice_cases"] = [sum(case["dice"][index] is not None for case in cases) for index in classes]
    if "missed" in cases[0]:
        report["hd95_missed"] = [sum(case["missed"][index] for case in cases) for index in classes]
    return report


def case_table(report: dict[str, Any]) -> str:
    """The result of `case_report` as plain text: a line for each class, then the classes without a distance."""
    titles = {key: title for key, title in TITLES.items() if key in report}
    width = max(10, *map(len, report["classes"]))

    def row(first: str, cells: Sequence[str], last: str) -> str:
        shown = [f"{text:>{max(7, len(title))}}" for title, text in zip(titles.values(), cells, strict=True)]
        return "  ".join([f"{first:<{width}}", *shown, f"{last:>6}"])

    rows = [row("of cases", list(titles.values()), "cases")]
    for index, name in enumerate(report["classes"]):
        rows.append(row(name, [_text(report[key][index]) for key in titles], str(report["dice_cases"][index])))
    rows.append(row("mean", [_text(report[f"mean_{key}"]) for key in titles], str(report["cases"])))
    for name, count in zip(report["classes"], report.get("hd95_missed", ()), strict=False):
        if count:
            rows.append(
                f"{name}: no distance in {count} of {report['cases']} cases: only one of truth and prediction has it"
            )
    return "\n".join(rows)


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
