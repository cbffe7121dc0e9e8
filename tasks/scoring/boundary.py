"""How well predicted edges fit: the boundaries of classes in images, and their surfaces in volumes.

The Hausdorff distance is the larger of the 95th percentiles of the distances in both directions, as in Metrics Reloaded
(Maier-Hein et al., Nature Methods 2024).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.confusion import foreground, mean_of_present, ratios
from tasks.tables import Column, Table, as_text
from tasks.task import Scores
from unet.config import IGNORE_INDEX

DILATION_RATIO = 0.02  # width of the boundary whose IoU is computed, as a share of the diagonal (Cheng et al.)
PERCENTILE = 95
TOLERANCES = (1, 2)  # distances in mm within which surfaces count as the same
ROUNDING = 1e-4  # mm; headers hold float32, so that two surfaces 1 mm apart may be 1.0000001 mm apart
MEAN = "mean without background"
TITLES = {"dice": "Dice", "iou": "IoU", "hd95_mm": "HD95 (mm)"}
TITLES |= {f"surface_dice_{mm}mm": f"surface Dice {mm} mm" for mm in TOLERANCES}


class BoundaryScores(NamedTuple):
    """The boundaries of one image or the surfaces of one volume, class by class.

    Args:
        hits, union: (num_classes,) int64, of an image: pixels in the intersection and the union of both boundaries.
        distances: (num_classes,) float64 Hausdorff distance in pixels, of a volume in mm; NaN where truth or prediction
            lacks the class, and for the background of a volume.
        dice: (num_classes, len(TOLERANCES)) float64 surface Dice of a volume: NaN where both lack the class, and for
            the background; 0 where one does.
        missed: (num_classes,) bool, whether only one of both has the class, so that there is no distance.
    """

    hits: np.ndarray
    union: np.ndarray
    distances: np.ndarray
    dice: np.ndarray
    missed: np.ndarray

    def to_json(self) -> dict[str, list[float | None]]:
        """The scores of each class of an image, None for a class without one."""
        return {"boundary_iou": ratios(self.hits, self.union), "hd95": numbers(self.distances)}


def boundary_scores(
    pred: np.ndarray,
    truth: np.ndarray,
    num_classes: int,
    spacing: Sequence[float] | None = None,
    background: int | None = 0,
) -> BoundaryScores:
    """The scores of class indices (H, W) or (D, H, W); pixels that the truth ignores belong to no class.

    Boundary IoU: Cheng et al., Boundary IoU: Improving Object-Centric Image Segmentation Evaluation (CVPR 2021); a
    boundary is as wide as 2% of the image's diagonal, and the border of the image is a boundary too. A surface is the
    voxels of a class with one of six neighbors outside the class; beyond the volume is background. Surface Dice: the
    share of both surfaces that lies within a tolerance of the other one (Nikolov et al. 2018, arXiv:1809.04430).

    Args:
        spacing: (z, y, x) in mm, of a volume.
        background: the class of a volume that has no surface.
    """
    width = max(1, round(DILATION_RATIO * float(np.hypot(*truth.shape[-2:]))))
    hits = np.zeros(num_classes, np.int64)
    union = np.zeros(num_classes, np.int64)
    distances = np.full(num_classes, np.nan)
    dice = np.full((num_classes, len(TOLERANCES)), np.nan)
    missed = np.zeros(num_classes, bool)
    for index, true, predicted in _masks_of_classes(pred, truth, num_classes):
        if spacing is None:
            true_boundary = _boundary(true, width)
            predicted_boundary = _boundary(predicted, width)
            hits[index] = (true_boundary & predicted_boundary).sum()
            union[index] = (true_boundary | predicted_boundary).sum()
        elif index == background:
            continue
        if not (true.any() and predicted.any()):
            missed[index] = True
            dice[index] = 0
            continue
        ways = _edge_distances(true, predicted, spacing)
        distances[index] = max(np.percentile(way, PERCENTILE) for way in ways)
        dice[index] = [(np.concatenate(ways) <= mm + ROUNDING).mean() for mm in TOLERANCES]
    return BoundaryScores(hits, union, distances, dice, missed)


def _masks_of_classes(
    pred: np.ndarray, truth: np.ndarray, num_classes: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Index, true and predicted mask of each class that one of two arrays of class indices has.

    The masks are those of the smallest box that holds the class in both, and of a pixel around it. Pixels that the
    truth ignores belong to no class.
    """
    from scipy.ndimage import find_objects

    pred = np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred).astype(np.uint8)
    truth = truth.astype(np.uint8, copy=False)
    # the numbers from 1 are objects; of 8 bits, IGNORE_INDEX becomes 0
    boxes = [find_objects(indices + np.uint8(1), max_label=num_classes) for indices in (truth, pred)]
    for index, pair in enumerate(zip(*boxes, strict=True)):
        present = [box for box in pair if box is not None]
        if not present:
            continue
        sides = []
        for slices in zip(*present, strict=True):
            start = min(side.start for side in slices)
            stop = max(side.stop for side in slices)
            sides.append(slice(start, stop))
        box = tuple(sides)
        yield index, np.pad(truth[box] == index, 1), np.pad(pred[box] == index, 1)


def _boundary(mask: np.ndarray, width: int) -> np.ndarray:
    """The pixels that `width` erosions by 3 x 3 pixels remove from a mask (H, W); beyond it is background."""
    from scipy.ndimage import distance_transform_cdt

    return mask & (distance_transform_cdt(mask, metric="chessboard") <= width)


def _edge_distances(
    true: np.ndarray, predicted: np.ndarray, spacing: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances from each edge pixel of one mask to the nearest edge pixel of the other, in both directions.

    The masks, (H, W) or (D, H, W), are not empty and do not touch the border.

    Args:
        spacing: the spacing of pixels along each axis, for distances in mm.
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    true_edge = true & ~binary_erosion(true)
    predicted_edge = predicted & ~binary_erosion(predicted)
    from_true = distance_transform_edt(~predicted_edge, sampling=spacing)[true_edge]
    from_predicted = distance_transform_edt(~true_edge, sampling=spacing)[predicted_edge]
    return from_true, from_predicted


def numbers(values: np.ndarray) -> list[float | None]:
    """Values (N,) as numbers of JSON, with None for NaN."""
    return [value if np.isfinite(value) else None for value in values.tolist()]


def boundary_report(scores: Sequence[BoundaryScores]) -> dict[str, Any]:
    """The report of all images as JSON: boundary IoU from the summed pixels of each class, mean of the distances.

    `hd95_images` counts the images with a distance, `hd95_missed` those where only truth or prediction has the class.
    """
    hits, union, distances, _, missed = (np.array(arrays) for arrays in zip(*scores, strict=True))
    counts = np.isfinite(distances).sum(axis=0)
    iou = ratios(hits.sum(axis=0), union.sum(axis=0))
    hd95 = ratios(np.nansum(distances, axis=0), counts)
    return {
        "mean_boundary_iou": mean_of_present(iou),
        "mean_hd95": mean_of_present(hd95),
        "boundary_iou": iou,
        "hd95": hd95,
        "hd95_images": counts.tolist(),
        "hd95_missed": missed.sum(axis=0).tolist(),
    }


def volume_entry(scores: Scores, surfaces: BoundaryScores | None) -> dict[str, Any]:
    """What metrics.json holds of a volume beside the brief scores; None for a class without a score."""
    values = scores.values
    has_classes = "dice" in values
    entry: dict[str, Any] = {}
    if has_classes:
        entry = {"dice": values["dice"], "iou": values["iou"]}
    if surfaces is not None:
        entry |= {"hd95_mm": numbers(surfaces.distances), "missed": surfaces.missed.tolist()}
        for mm, dice in zip(TOLERANCES, surfaces.dice.T, strict=True):
            entry[f"surface_dice_{mm}mm"] = numbers(dice)
    if has_classes:
        dice = values["dice"]
        entry["mean_dice"] = mean_of_present([dice[index] for index in foreground(len(dice), scores.background)])
    return entry


def case_report(cases: Sequence[dict[str, Any]], names: Sequence[str], *, background: int | None = 0) -> dict[str, Any]:
    """The report of all volumes as JSON: each score's mean over the cases that have it, class by class and over all.

    The background is left out. `dice_cases` counts the cases that have a Dice, `hd95_missed` the cases where only
    truth or prediction has the class: their Dice is 0, and they have no distance.
    """
    classes = foreground(len(names), background)
    report: dict[str, Any] = {"cases": len(cases), "classes": [names[index] for index in classes]}
    for key in TITLES:
        if key not in cases[0]:
            continue
        means = []
        for index in classes:
            means.append(mean_of_present([case[key][index] for case in cases]))
        report[f"mean_{key}"] = mean_of_present(means)
        report[key] = means
    dice = np.array([case["dice"] for case in cases], float)  # NaN for a class without a score
    report["dice_cases"] = np.isfinite(dice).sum(axis=0)[classes].tolist()
    if "missed" in cases[0]:
        missed = np.array([case["missed"] for case in cases])
        report["hd95_missed"] = missed.sum(axis=0)[classes].tolist()
    return report


def case_table(report: dict[str, Any]) -> str:
    """The result of `case_report` as plain text: a line for each class, then the classes without a distance."""
    columns = [Column(key, title) for key, title in TITLES.items() if key in report]
    means: dict[str, Any] = {column.key: report[f"mean_{column.key}"] for column in columns}
    means["dice_cases"] = report["cases"]
    columns.append(Column("dice_cases", "cases", ""))
    rows = []
    for index, name in enumerate(report["classes"]):
        rows.append((name, {column.key: report[column.key][index] for column in columns}))
    notes = []
    for name, count in zip(report["classes"], report.get("hd95_missed", ()), strict=False):
        if count:
            notes.append(
                f"{name}: no distance in {count} of {report['cases']} cases: only one of truth and prediction has it"
            )
    return as_text(Table("Cases", "of cases", columns, rows, (MEAN, means), "\n".join(notes)))
