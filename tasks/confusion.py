"""One integer confusion matrix over the whole data set, from which all scores are computed at the end."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasks.tables import Column, Table
from unet.config import IGNORE_INDEX

REPLICAS = 64  # copies of each count on a GPU, so that two warps add to different addresses; 6 MB for 150 classes
FOLDED = 4  # from this many classes without pixels on, they have no rows of their own
MEAN_COLUMNS = (Column("iou", "IoU"), Column("dice", "Dice"))
BOUNDARY_COLUMNS = (Column("boundary_iou", "bound. IoU"), Column("hd95", "HD95 (px)"))
OTHER_COLUMNS = (Column("precision", "precision"), Column("recall", "recall"))
PIXELS_COLUMN = Column("pixels", "pixels", ",")
ERROR_COLUMNS = (Column("missed", "missed", ","), Column("false", "wrongly found", ","))
PIXELS_AT_ONCE = 2**22  # each pixel takes tens of bytes while it is counted


def confusion_matrix(preds: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """Count pixels of two index tensors of one shape: (num_classes, num_classes) int64, rows truth, columns prediction.

    Matrices add up over images, batches and processes; ignored pixels are counted nowhere.
    """
    counts = torch.zeros(num_classes**2 + 1, dtype=torch.int64, device=preds.device)
    for pred_pixels, mask_pixels in in_parts(preds, masks):
        truth = mask_pixels.long()
        # ignored pixels go to one cell beyond the matrix, which is cheaper than selecting the valid pixels
        cells = torch.where(truth == IGNORE_INDEX, num_classes**2, truth * num_classes + pred_pixels)
        counts += sums_by_cell(cells, num_classes**2 + 1)
    return counts[:-1].view(num_classes, num_classes)


def in_parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The pixels of tensors of one shape, some at a time."""
    return zip(*(tensor.flatten().split(PIXELS_AT_ONCE) for tensor in tensors), strict=True)


def sums_by_cell(cells: Tensor, size: int, values: Tensor | None = None) -> Tensor:
    """(size,) int64: the sum of whole numbers (N,) in each of the cells 0..size - 1; without values, their count.

    The host does not wait for the device.

    Args:
        cells: (N,) int64, the cell of each value.
    """
    if cells.device.type != "cpu":  # `bincount` would read the largest cell on the host
        ones = torch.ones_like(cells, dtype=torch.int32)
        return replicated_sums(cells, size, ones if values is None else values)
    if values is None:
        return torch.bincount(cells, minlength=size)
    return torch.zeros(size, dtype=torch.int64).scatter_add_(0, cells, values)


def replicated_sums(cells: Tensor, size: int, values: Tensor) -> Tensor:
    """`sums_by_cell` on a GPU: each sum has REPLICAS partial sums, since neighboring pixels often share a cell."""
    replicas = torch.arange(len(cells), device=cells.device) % REPLICAS
    sums = torch.zeros(size * REPLICAS, dtype=values.dtype, device=cells.device)
    sums.scatter_add_(0, cells * REPLICAS + replicas, values)
    return sums.view(size, REPLICAS).sum(dim=1)  # int64


class ClassCounts(NamedTuple):
    """Pixels of each class, (num_classes,) int64 each.

    Args:
        hits: pixels of the class in both truth and prediction.
        truth, predicted: pixels of the class in the truth, and in the prediction.
    """

    hits: Tensor
    truth: Tensor
    predicted: Tensor

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> "ClassCounts":
        """The counts of a confusion matrix."""
        return cls(matrix.diagonal(), matrix.sum(dim=1), matrix.sum(dim=0))

    @property
    def union(self) -> Tensor:
        """Pixels of each class in truth or prediction."""
        return self.truth + self.predicted - self.hits


def class_scores(counts: ClassCounts) -> dict[str, Any]:
    """IoU, Dice, precision and recall of each class, their means, and pixel accuracy.

    A class that occurs in neither truth nor prediction has no score (None) and is left out of the means. If nothing was
    counted, every score is None. IoU = TP / (TP + FP + FN), Dice = 2 TP / (2 TP + FP + FN).
    """
    hits, truth, predicted = (pixels.cpu().double() for pixels in counts)
    iou = ratios(hits, truth + predicted - hits)
    dice = ratios(2 * hits, truth + predicted)
    return {
        "mean_iou": mean_of_present(iou),
        "mean_dice": mean_of_present(dice),
        "pixel_accuracy": ratio(hits.sum().item(), truth.sum().item()),
        "iou": iou,
        "dice": dice,
        "precision": ratios(hits, predicted),
        "recall": ratios(hits, truth),
    }


def image_iou(counts: ClassCounts) -> Tensor:
    """The mean IoU of one image, as in `class_scores`, but a scalar on the device; 0 if nothing was counted."""
    present = counts.union > 0
    return (counts.hits / counts.union.clamp_min(1)).sum() / present.sum().clamp_min(1)


def ratios(numerator: Tensor | np.ndarray, denominator: Tensor | np.ndarray) -> list[float | None]:
    """Quotients of numbers (N,); None for each denominator 0."""
    return list(map(ratio, numerator.tolist(), denominator.tolist()))


def ratio(numerator: float, denominator: float) -> float | None:
    """A quotient; None if the denominator is 0."""
    if not denominator:
        return None
    return numerator / denominator


def mean_of_present(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    present = [value for value in values if value is not None]
    return ratio(sum(present), len(present))


def foreground(classes: int, background: int | None) -> list[int]:
    """The indices of the classes but that of the background, if there is one."""
    return [index for index in range(classes) if index != background]


def class_table(
    title: str, first: str, names: Sequence[str], values: dict[str, Any], counts: ClassCounts, *, errors: bool = False
) -> Table:
    """A row for each class, and the means. From FOLDED classes without pixels on, they are named in the note alone.

    Args:
        title, first: of the `Table`.
        values: a list over the classes by metric, and `mean_...` of some; `boundary_iou` and `hd95` add two columns.
        errors: whether there are columns of the missed and the wrongly found pixels.
    """
    columns = [*MEAN_COLUMNS, *(BOUNDARY_COLUMNS if "hd95" in values else ()), *OTHER_COLUMNS, PIXELS_COLUMN]
    if errors:
        columns += ERROR_COLUMNS
    values = values | {
        "pixels": counts.truth.tolist(),
        "missed": (counts.truth - counts.hits).tolist(),
        "false": (counts.predicted - counts.hits).tolist(),
    }
    absent = [name for name, union in zip(names, counts.union.tolist(), strict=True) if not union]
    if len(absent) < FOLDED:
        absent = []
    rows = []
    for index, name in enumerate(names):
        if name not in absent:
            rows.append((name, {column.key: values[column.key][index] for column in columns}))
    means = {}
    for column in columns:
        if f"mean_{column.key}" in values:
            means[column.key] = values[f"mean_{column.key}"]
    note = ""
    if absent:
        note = f"{len(absent)} classes occur neither in the masks nor in the predictions: {', '.join(absent)}."
    return Table(title, first, columns, rows, ("mean", means), note)


def score_text(value: float | None) -> str:
    """A score with four decimals; n/a for None."""
    if value is None:
        return "n/a"
    return f"{value:.4f}"
