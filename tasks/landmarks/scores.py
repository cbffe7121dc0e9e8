"""Scores of landmarks: the errors of positions, and how often presence is predicted right."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from data_utils.point_states import ABSENT, FOUND, PRESENT
from runtime.device import upload
from tasks.confusion import ratio
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.target import PointTarget
from tasks.tables import Column, Table
from tasks.task import Scores

RADII = {"px": (1.0, 2.0, 3.0, 5.0), "mm": (2.0, 2.5, 3.0, 4.0)}  # in percent of the longer side, or in mm
OUTLIER_DISTANCE = 10.0  # in the unit of RADII; larger errors are outliers
COLUMNS = 5  # of each point of an image
STATE, ERROR, SIDE, DIAGONAL, PRESENCE = range(COLUMNS)


class LandmarkScores(Scores):
    """Every score from the errors of all points of all images.

    Args:
        unit: the unit of the errors, "px" or "mm".
        sums: (1,) int64, the number of known points.
        by_image: (images, K, COLUMNS) float64: state, error, longer side and diagonal of the image in the unit, and the
            predicted probability that the point is present; zeros for unknown points.
    """

    compared = Column("closeness", "closeness")
    beside_image = ("closeness", "mean_radial_error")
    recorded_by_name = ("mean_radial_error",)

    def __init__(self, names: Sequence[str], unit: str, sums: Tensor, by_image: Tensor) -> None:
        super().__init__(sums, by_image)
        self.names = tuple(names)
        self.unit = unit

    def add(self, prediction: Tensor, target: PointTarget, index: int) -> None:
        """Count the `PredictedPoints` of an image, (1, K, n + 2)."""
        points = PredictedPoints.from_prediction(prediction[0])
        unit = target.unit[0]
        size = upload(target.size[0], unit.device)
        positions = points.shares * size - 0.5
        errors = ((positions - target.points[0]) * unit).square().sum(dim=1).sqrt()
        lengths = size * unit
        states = target.states[0]
        is_known = (states == ABSENT) | (states == PRESENT)
        values = torch.stack(
            [
                states.to(errors.dtype),
                errors * (states == PRESENT),
                lengths.max().expand_as(errors),
                lengths.square().sum().sqrt().expand_as(errors),
                points.presence,
            ],
            dim=1,
        )
        self.sums += is_known.sum()
        self.by_image[index] += (values * is_known[:, None]).to(self.by_image.dtype)

    def merge(self, other: Scores) -> None:
        super().merge(other)
        self.by_image = torch.cat([self.by_image, other.by_image])

    @property
    def values(self) -> dict[str, float | None]:
        """The scores of all landmarks; a score without points to compute it from is None."""
        return {"closeness": _mean(self._closeness()[self._is_known]), **self._point_scores(self.by_image)}

    def by_name(self) -> dict[str, dict[str, Any]]:
        by_name = {}
        for landmark, name in enumerate(self.names):
            by_name[name] = self._point_scores(self.by_image[:, landmark, None])
        return by_name

    @property
    def recorded(self) -> Sequence[str]:
        return [key for key in self.values if key not in ("present", "absent")]

    @property
    def image_entries(self) -> list[dict[str, Any]]:
        """The entries, with a closeness that knows whether any image has absent points."""
        entries = []
        for entry, closeness, is_known in zip(self.entries, self._closeness(), self._is_known, strict=True):
            entries.append(entry | {"closeness": _mean(closeness[is_known])})
        return entries

    @property
    def image_comparison(self) -> list[float]:
        comparisons = []
        for closeness, is_known in zip(self._closeness(), self._is_known, strict=True):
            comparisons.append(_mean(closeness[is_known]) or 0.0)
        return comparisons

    def _point_scores(self, by_image: Tensor) -> dict[str, float | None]:
        """The scores of some landmarks (images, landmarks, COLUMNS), by key."""
        points = by_image.flatten(0, 1)
        present = points[points[:, STATE] == PRESENT]
        absent = points[points[:, STATE] == ABSENT]
        errors = present[:, ERROR]
        relative = errors if self.unit == "mm" else 100 * errors / present[:, SIDE]
        names = ("mean_radial_error", "radial_error_std", "median_radial_error")
        values: dict[str, float | None] = dict.fromkeys(names)
        if len(errors):
            values["mean_radial_error"] = errors.mean().item()
            values["radial_error_std"] = errors.std(correction=0).item()
            values["median_radial_error"] = errors.quantile(0.5).item()
        for radius in RADII[self.unit]:
            values[f"sdr/{radius_name(radius, self.unit)}"] = _mean((relative <= radius).double())
        found_count = int((present[:, PRESENCE] >= FOUND).sum())
        invented_count = int((absent[:, PRESENCE] >= FOUND).sum())
        values["outliers"] = float((relative > OUTLIER_DISTANCE).sum())
        values["presence_precision"] = ratio(found_count, found_count + invented_count)
        values["presence_recall"] = ratio(found_count, len(present))
        values["presence_auroc"] = auroc(present[:, PRESENCE], absent[:, PRESENCE])
        values["present"] = float(len(present))
        values["absent"] = float(len(absent))
        return values

    def report(self) -> dict[str, Any]:
        return {"unit": self.unit, **self.values, "by_landmark": self.by_name()}

    @property
    def headline(self) -> Sequence[Column]:
        columns = [
            Column("mean_radial_error", f"mean radial error ({self.unit})", ".2f"),
            Column("median_radial_error", f"median radial error ({self.unit})", ".2f"),
        ]
        if self.values["presence_auroc"] is not None:  # some points are absent
            columns.append(Column("presence_auroc", "AUROC of presence"))
        return columns

    def score_tables(self) -> list[Table]:
        rows = list(self.by_name().items())
        return [Table("Landmarks", "landmark", score_columns(self.unit), rows, ("all", self.values))]

    @property
    def _is_known(self) -> Tensor:
        """(images, K) bool: the points whose presence or absence is known."""
        states = self.by_image[..., STATE]
        return (states == PRESENT) | (states == ABSENT)

    def _closeness(self) -> Tensor:
        """(images, K): 1 - error / diagonal, at least 0, for present points; 1 for absent points; NaN for unknown ones.

        A present point that is not found has closeness 0, and so has an absent point that is found. If no point of the
        data is absent, presence is not scored: only positions matter then, and a single point whose presence the model
        doubts would outweigh the errors of all others.
        """
        states = self.by_image[..., STATE]
        errors = self.by_image[..., ERROR]  # 0 for absent points
        closeness = (1 - errors / self.by_image[..., DIAGONAL]).clamp_min(0)
        if not (states == ABSENT).any():
            return closeness
        is_found = self.by_image[..., PRESENCE] >= FOUND
        return closeness * (is_found == (states == PRESENT))


def radius_name(radius: float, unit: str) -> str:
    """The name of a success detection rate's radius in keys: 2mm, or 1_percent of the longer side."""
    return f"{radius:g}mm" if unit == "mm" else f"{radius:g}_percent"


def score_columns(unit: str) -> list[Column]:
    """The columns of a table of scores."""
    columns = [
        Column("mean_radial_error", f"mean ({unit})", ".2f"),
        Column("radial_error_std", "std", ".2f"),
        Column("median_radial_error", "median", ".2f"),
    ]
    for radius in RADII[unit]:
        sign = f"{radius:g} mm" if unit == "mm" else f"{radius:g}%"
        columns.append(Column(f"sdr/{radius_name(radius, unit)}", f"<= {sign}", ".3f"))
    return [
        *columns,
        Column("outliers", "outliers", ".0f"),
        Column("presence_precision", "precision", ".3f"),
        Column("presence_recall", "recall", ".3f"),
        Column("presence_auroc", "AUROC", ".3f"),
        Column("present", "present", ".0f"),
        Column("absent", "absent", ".0f"),
    ]


def auroc(positive: Tensor, negative: Tensor) -> float | None:
    """The probability that a positive value is larger than a negative one; None if either kind is missing."""
    if not len(positive) or not len(negative):
        return None
    values = torch.cat([positive, negative])
    _, numbers, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    ranks = (ends - (counts.double() - 1) / 2)[numbers]  # equal values share the mean of their ranks
    least = len(positive) * (len(positive) + 1) / 2
    return ((ranks[: len(positive)].sum() - least) / (len(positive) * len(negative))).item()


def _mean(values: Tensor) -> float | None:
    if not len(values):
        return None
    return values.mean().item()
