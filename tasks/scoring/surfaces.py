"""Scores of volumes: Dice and IoU of each case and class, distances between surfaces in mm."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.confusion import mean_of_present
from tasks.scoring.boundary import edge_distances, hausdorff, masks_of_classes, numbers
from tasks.tables import Column, Table, as_text
from tasks.task import Scores

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


def volume_entry(scores: Scores, surfaces: SurfaceScores | None) -> dict[str, Any]:
    """What metrics.json holds of a volume beside the brief scores; None for a class without a score."""
    values = scores.values
    has_classes = "dice" in values
    entry: dict[str, Any] = {}
    if has_classes:
        entry = {"dice": values["dice"], "iou": values["iou"]}
    if surfaces is not None:
        entry |= {"hd95_mm": numbers(surfaces.hd95), "missed": surfaces.missed.tolist()}
        for mm, dice in zip(TOLERANCES, surfaces.dice.T, strict=True):
            entry[f"surface_dice_{mm}mm"] = numbers(dice)
    if has_classes:
        first = int(scores.has_background)
        entry["mean_dice"] = mean_of_present(values["dice"][first:])
    return entry


def surface_scores(
    pred: np.ndarray, truth: np.ndarray, num_classes: int, spacing: tuple[float, float, float]
) -> SurfaceScores:
    """The scores of class indices (D, H, W), spacing (z, y, x) in mm; voxels that the truth ignores are of no class.

    A surface is the voxels of a class with one of six neighbors outside the class; beyond the volume is background.
    Hausdorff distance: the larger of the 95th percentiles in both directions, as in Metrics Reloaded (Maier-Hein et
    al., Nature Methods 2024). Surface Dice: the share of both surfaces that lies within a tolerance of the other one
    (Nikolov et al. 2018, arXiv:1809.04430).
    """
    hd95 = np.full(num_classes, np.nan)
    dice = np.full((num_classes, len(TOLERANCES)), np.nan)
    missed = np.zeros(num_classes, bool)
    for index, true, predicted in masks_of_classes(pred, truth, num_classes):
        if index == 0:
            continue
        if not (true.any() and predicted.any()):
            missed[index] = True
            dice[index] = 0
            continue
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
    first = int(has_background)
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
        scored_cases = [case for case in cases if case["dice"][index] is not None]
        report["dice_cases"].append(len(scored_cases))
    if "missed" in cases[0]:
        report["hd95_missed"] = []
        for index in classes:
            report["hd95_missed"].append(sum(case["missed"][index] for case in cases))
    return report


def case_table(report: dict[str, Any]) -> str:
    """The result of `case_report` as plain text: a line for each class, then the classes without a distance."""
    columns = [Column(key, title) for key, title in TITLES.items() if key in report]
    means: dict[str, Any] = {}
    for column in columns:
        means[column.key] = report[f"mean_{column.key}"]
    means["dice_cases"] = report["cases"]
    columns.append(Column("dice_cases", "cases", ""))
    rows = []
    for index, name in enumerate(report["classes"]):
        row = {}
        for column in columns:
            row[column.key] = report[column.key][index]
        rows.append((name, row))
    notes = []
    for name, count in zip(report["classes"], report.get("hd95_missed", ()), strict=False):
        if count:
            notes.append(
                f"{name}: no distance in {count} of {report['cases']} cases: only one of truth and prediction has it"
            )
    return as_text(Table("Cases", "of cases", columns, rows, (MEAN, means), "\n".join(notes)))
