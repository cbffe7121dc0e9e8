"""Scores of objects: true and predicted ones are matched by their overlap."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.target import Target
from tasks.confusion import mean_of_present, ratio
from tasks.objects.labels import label_classes
from tasks.scoring.areas import SIZES, size_labels
from tasks.tables import Column, Table
from tasks.task import Scores
from unet.config import IGNORE_INDEX

THRESHOLDS = tuple(number / 100 for number in range(50, 100, 5))  # the least IoU of a match
PRECISION = 2**32  # IoU is summed in whole parts of 1 / PRECISION, so that the order of adding does not matter
PARTS = (len(THRESHOLDS), 6, len(SIZES) + 1, len(SIZES) + 1)  # of the sums of an image, see `Matches.sums`
SUMS = sum(PARTS)
MEANS = (
    Column("ap50", "AP@0.5"),
    Column("ap75", "AP@0.75"),
    Column("ap", "AP@0.5:0.95"),
    Column("panoptic_quality", "panoptic quality"),
    Column("f1", "F1"),
    Column("count_error", "count error"),
)
COUNTS = tuple(Column(name, name, ",") for name in ("objects", "predicted", "found", "split", "merged"))
SIZE_COLUMNS = (Column("objects", "objects", ","), Column("found", "found", ","), Column("share", "share", ".1%"))


class Overlaps(NamedTuple):
    """The pixels that true and predicted labels share; label 0 is background.

    Args:
        predicted, true, pixels: (N,) int64 each: the labels of each pair, and how many pixels have both.
    """

    predicted: np.ndarray
    true: np.ndarray
    pixels: np.ndarray

    @classmethod
    def between(cls, predicted: np.ndarray, true: np.ndarray) -> "Overlaps":
        """The overlaps of two label images of one shape."""
        first = predicted.ravel()
        second = true.ravel()
        # most neighbors have the same pair, so runs of equal pairs are counted, which are much fewer
        is_start = np.ones(len(first), bool)
        is_start[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        starts = np.flatnonzero(is_start)
        return cls.join([cls(first[starts], second[starts], np.diff(starts, append=len(first)))])

    @classmethod
    def join(cls, parts: Sequence["Overlaps"]) -> "Overlaps":
        """The overlaps of an image, from the overlaps of its parts; a pair may occur in several parts."""
        predicted, true, pixels = (np.concatenate(arrays).astype(np.int64) for arrays in zip(*parts, strict=True))
        true_labels, true_indices = np.unique(true, return_inverse=True)
        pairs, indices = np.unique(predicted * len(true_labels) + true_indices, return_inverse=True)
        sums = np.bincount(indices, pixels).astype(np.int64)
        return cls(pairs // len(true_labels), true_labels[pairs % len(true_labels)], sums)


class Matches(NamedTuple):
    """The objects of an image, and the pairs of a true and a predicted object that overlap.

    Args:
        true_sizes, predicted_sizes: (T,), (P,) int64, pixels of each object.
        true, predicted: (N,) indices of the objects of each pair.
        pixels: (N,) int64, the pixels that both objects of a pair share.
    """

    true_sizes: np.ndarray
    predicted_sizes: np.ndarray
    true: np.ndarray
    predicted: np.ndarray
    pixels: np.ndarray

    @classmethod
    def from_overlaps(cls, overlaps: Overlaps) -> "Matches":
        """The objects of all labels except 0, the background."""
        true_sizes, true = _sizes(overlaps.true, overlaps.pixels)
        predicted_sizes, predicted = _sizes(overlaps.predicted, overlaps.pixels)
        are_objects = (true >= 0) & (predicted >= 0)
        return cls(true_sizes, predicted_sizes, true[are_objects], predicted[are_objects], overlaps.pixels[are_objects])

    @property
    def iou(self) -> np.ndarray:
        """(N,): the IoU of each pair."""
        return self.pixels / (self.true_sizes[self.true] + self.predicted_sizes[self.predicted] - self.pixels)

    def matched_pairs(self, threshold: float) -> np.ndarray:
        """The indices of the pairs whose IoU is at least `threshold`; no object occurs in two of these pairs.

        At thresholds of one half or more, an object can have two such partners only if it is cut into exact halves:
        then the first pair counts.
        """
        pairs = np.flatnonzero(self.iou >= threshold)
        for objects in (self.true, self.predicted):
            _, first = np.unique(objects[pairs], return_index=True)
            pairs = pairs[np.sort(first)]
        return pairs

    def count_split(self) -> int:
        """The number of true objects in which at least two predicted objects lie with most of their pixels."""
        is_inside = 2 * self.pixels > self.predicted_sizes[self.predicted]
        return int((np.bincount(self.true[is_inside]) > 1).sum())

    def count_merged(self) -> int:
        """The number of true objects with most pixels in a predicted object that holds most of another true one too."""
        is_inside = 2 * self.pixels > self.true_sizes[self.true]
        pixel_counts = np.bincount(self.predicted[is_inside])
        return int(pixel_counts[pixel_counts > 1].sum())

    def sums(self) -> list[int]:
        """What is added up over the images for a class of objects, SUMS whole numbers, in the order of PARTS.

        - The pairs that match at each of THRESHOLDS.
        - The numbers of true and predicted objects; the sum of the IoU of all pairs that match at 0.5, in parts of
          1 / PRECISION; the difference between the numbers of predicted and true objects; the true objects that are
          split, and those that are merged.
        - The true objects in each range of SIZES that have a match at 0.5.
        - All true objects in each range of SIZES.
        """
        matched = [self.matched_pairs(threshold) for threshold in THRESHOLDS]
        at_half = matched[0]
        true = len(self.true_sizes)
        predicted = len(self.predicted_sizes)
        iou = int(np.rint(self.iou[at_half] * PRECISION).astype(np.int64).sum())
        bins = len(SIZES) + 1
        true_bins = np.searchsorted(SIZES, self.true_sizes, side="right")
        found_by_size = np.bincount(true_bins[self.true[at_half]], minlength=bins)
        true_by_size = np.bincount(true_bins, minlength=bins)
        counts = [true, predicted, iou, abs(true - predicted), self.count_split(), self.count_merged()]
        return [*map(len, matched), *counts, *found_by_size.tolist(), *true_by_size.tolist()]


def _sizes(labels: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of each object, and the index of the object of each label (N,), below 0 for the background."""
    present, indices = np.unique(labels, return_inverse=True)
    sizes = np.bincount(indices, pixels, len(present)).astype(np.int64)
    first = int((present == 0).sum())  # label 0, if it occurs, comes first
    return sizes[first:], indices - first


def scores_of_sums(sums: Tensor) -> dict[str, Any]:
    """The scores that follow from `Matches.sums` (SUMS,); a score whose denominator is 0 is None.

    AP at a threshold is TP / (TP + FP + FN), as StarDist defines it; panoptic quality and F1 use the threshold 0.5. The
    count error is the sum over the images of the differences in numbers, divided by the number of true objects.
    """
    matches, counts, found_by_size, true_by_size = (part.tolist() for part in sums.split(list(PARTS)))
    true, predicted, iou, error, split, merged = counts
    found = matches[0]  # at an IoU of 0.5
    objects = true + predicted
    ap = [ratio(pairs, objects - pairs) for pairs in matches]
    return {
        "ap50": ap[0],
        "ap75": ap[THRESHOLDS.index(0.75)],
        "ap": mean_of_present(ap),
        "panoptic_quality": ratio(2 * iou / PRECISION, objects),
        "f1": ratio(2 * found, objects),
        "precision": ratio(found, predicted),
        "recall": ratio(found, true),
        "count_error": ratio(error, true),
        "objects": true,
        "predicted": predicted,
        "found": found,
        "split": split,
        "merged": merged,
        "found_by_size": found_by_size,
        "objects_by_size": true_by_size,
        "ap_by_iou": ap,
    }


class ObjectScores(Scores):
    """Scores of objects from whole numbers, which are the same on any number of processes.

    The parts of an image are kept until `finish_image`, since its objects can only be matched as a whole.

    Args:
        names: the classes of objects.
        sums: (classes * SUMS,) int64.
        by_image: (images, classes * SUMS) int64, the sums of each image.
    """

    compared = MEANS[0]
    headline = MEANS
    beside_image = ("ap50", *(column.key for column in COUNTS))

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        super().__init__(sums, by_image)
        self.names = tuple(names)
        self.recorded_by_name = ("ap50",) if len(self.names) > 1 else ()
        self._parts: list[Overlaps] = []  # of the image that is being added

    def add(self, prediction: Tensor, target: Target, index: int) -> None:
        """Count labels of `pack_labels`; pixels that the truth ignores belong to no object."""
        self._parts.append(Overlaps.between(prediction.cpu().numpy(), target.prediction.cpu().numpy()))

    def finish_image(self, index: int) -> None:
        if not self._parts:
            return
        overlaps = Overlaps.join(self._parts)
        self._parts = []
        is_known = label_classes(overlaps.true) != IGNORE_INDEX
        predicted, true, pixels = (array[is_known] for array in overlaps)
        row: list[int] = []
        for class_index in range(1, len(self.names) + 1):
            true_ones = np.where(label_classes(true) == class_index, true, 0)
            predicted_ones = np.where(label_classes(predicted) == class_index, predicted, 0)
            row += Matches.from_overlaps(Overlaps(predicted_ones, true_ones, pixels)).sums()
        sums = torch.tensor(row, device=self.sums.device)
        self.sums += sums
        self.by_image[index] += sums

    def by_name(self) -> dict[str, dict[str, Any]]:
        by_name = {}
        for name, sums in zip(self.names, self.sums.view(-1, SUMS), strict=True):
            by_name[name] = scores_of_sums(sums)
        return by_name

    @property
    def values(self) -> dict[str, Any]:
        """The means over the classes that occur, and the counts of all."""
        classes = self.by_name().values()
        values: dict[str, Any] = {}
        for column in MEANS:
            values[column.key] = mean_of_present([scores[column.key] for scores in classes])
        for column in COUNTS:
            values[column.key] = sum(scores[column.key] for scores in classes)
        for name in ("found_by_size", "objects_by_size"):
            values[name] = np.sum([scores[name] for scores in classes], axis=0).tolist()
        return values

    @property
    def image_comparison(self) -> list[float]:
        comparisons = []
        for row in self.by_image:
            score = ObjectScores(self.names, row, row[None]).values["ap50"]
            if score is None:  # there was no object, and none was predicted
                score = 1.0
            comparisons.append(score)
        return comparisons

    def record(self) -> dict[str, float | None]:
        values = self.values
        counts = {"missed": values["objects"] - values["found"], "split": values["split"], "merged": values["merged"]}
        return super().record() | {f"eval/{name}": count for name, count in counts.items()}

    def report(self) -> dict[str, Any]:
        return {**self.values, "iou_thresholds": THRESHOLDS, "sizes": SIZES, "by_class": self.by_name()}

    @property
    def remark(self) -> str:
        values = self.values
        return f"{values['predicted']:,} objects for {values['objects']:,}"

    @property
    def unfound(self) -> list[str]:
        return [name for name, scores in self.by_name().items() if scores["objects"] and not scores["found"]]

    def score_tables(self) -> list[Table]:
        values = self.values
        sizes = []
        by_size = zip(size_labels(), values["found_by_size"], values["objects_by_size"], strict=True)
        for label, found, objects in by_size:
            if objects:
                sizes.append((label, {"objects": objects, "found": found, "share": found / objects}))
        by_class = Table("Objects", "class", (*MEANS, *COUNTS), list(self.by_name().items()))
        return [by_class, Table("Found by size", "pixels", SIZE_COLUMNS, sizes)]
