"""True and predicted objects matched by their overlap, and the scores that follow from the matches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasks.confusion import mean_of_present, ratio
from tasks.tables import Column, Table
from tasks.target import Target
from tasks.task import Scores
from unet.config import IGNORE_INDEX

CLASS_BITS = 8  # the lowest bits of a label, which hold the class of its object
THRESHOLDS = tuple(number / 100 for number in range(50, 100, 5))  # the least IoU of a match
SIZES = (64, 256, 1024, 4096)  # limits, in pixels, of the ranges of sizes in which objects are counted
PRECISION = 2**32  # IoU is summed in whole parts of 1 / PRECISION, so that the order of adding does not matter
SUMS = len(THRESHOLDS) + 6 + 2 * (len(SIZES) + 1)  # the numbers in a row of `ObjectSums`
PIXELS_AT_ONCE = 2**24  # more pixels at a time take more memory and no less time


def pack_labels(numbers: Any, classes: Any) -> Any:
    """Labels of pixels, int64 arrays or tensors: the number of the object, with its class in the lowest bits."""
    if isinstance(numbers, Tensor):
        return (numbers.long() << CLASS_BITS) | classes.long()
    return (numbers.astype(np.int64) << CLASS_BITS) | classes.astype(np.int64)


def label_numbers(labels: Any) -> Any:
    """The number of each label's object; 0 for no object."""
    return labels >> CLASS_BITS


def label_classes(labels: Any) -> Any:
    """The class of each label; 0 is background."""
    return labels & ((1 << CLASS_BITS) - 1)


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
        parts = []
        for start in range(0, max(1, predicted.size), PIXELS_AT_ONCE):
            first = predicted.ravel()[start : start + PIXELS_AT_ONCE]
            second = true.ravel()[start : start + PIXELS_AT_ONCE]
            # most neighbors have the same pair, so runs of equal pairs are counted, which are much fewer
            is_start = np.ones(len(first), bool)
            is_start[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
            starts = np.flatnonzero(is_start)
            parts.append(cls(first[starts], second[starts], np.diff(starts, append=len(first))))
        return cls.join(parts)

    @classmethod
    def join(cls, parts: Sequence["Overlaps"]) -> "Overlaps":
        """The overlaps of an image, from the overlaps of its parts; a pair may occur in several parts."""
        predicted, true, pixels = (np.concatenate(arrays).astype(np.int64) for arrays in zip(*parts, strict=True))
        true_labels, true_indices = np.unique(true, return_inverse=True)
        pairs, indices = np.unique(predicted * len(true_labels) + true_indices, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, indices, pixels)
        return cls(pairs // len(true_labels), true_labels[pairs % len(true_labels)], sums)

    def within(self, is_known: np.ndarray) -> "Overlaps":
        """The overlaps of the pairs that `is_known` (N,) marks."""
        return Overlaps(*(array[is_known] for array in self))


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
        true_labels, true_indices = np.unique(overlaps.true, return_inverse=True)
        predicted_labels, predicted_indices = np.unique(overlaps.predicted, return_inverse=True)
        true_sizes = np.zeros(len(true_labels), np.int64)
        predicted_sizes = np.zeros(len(predicted_labels), np.int64)
        np.add.at(true_sizes, true_indices, overlaps.pixels)
        np.add.at(predicted_sizes, predicted_indices, overlaps.pixels)
        # label 0, if it occurs, comes first
        first_true = int((true_labels == 0).sum())
        first_predicted = int((predicted_labels == 0).sum())
        are_objects = (overlaps.true > 0) & (overlaps.predicted > 0)
        return cls(
            true_sizes[first_true:],
            predicted_sizes[first_predicted:],
            true_indices[are_objects] - first_true,
            predicted_indices[are_objects] - first_predicted,
            overlaps.pixels[are_objects],
        )

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

    def sums(self) -> "ObjectSums":
        """The counts of an image."""
        matched = [self.matched_pairs(threshold) for threshold in THRESHOLDS]
        iou = self.iou[matched[0]]
        bins = len(SIZES) + 1
        true_bins = np.searchsorted(SIZES, self.true_sizes, side="right")
        return ObjectSums(
            matches=[len(pairs) for pairs in matched],
            true=len(self.true_sizes),
            predicted=len(self.predicted_sizes),
            iou=int(np.rint(iou * PRECISION).astype(np.int64).sum()),
            error=abs(len(self.true_sizes) - len(self.predicted_sizes)),
            split=self.count_split(),
            merged=self.count_merged(),
            found_by_size=np.bincount(true_bins[self.true[matched[0]]], minlength=bins).tolist(),
            true_by_size=np.bincount(true_bins, minlength=bins).tolist(),
        )


class ObjectSums(NamedTuple):
    """What is added up over the images for a class of objects, in whole numbers.

    Args:
        matches: pairs that match at each of `THRESHOLDS`.
        true, predicted: numbers of objects.
        iou: the sum of the IoU of all pairs that match at 0.5, in parts of 1 / PRECISION.
        error: the sum over the images of the difference between the numbers of predicted and true objects.
        split, merged: as `Matches` counts them.
        found_by_size, true_by_size: true objects in each range of `SIZES`: those with a match at 0.5, and all.
    """

    matches: list[int]
    true: int
    predicted: int
    iou: int
    error: int
    split: int
    merged: int
    found_by_size: list[int]
    true_by_size: list[int]

    def to_row(self) -> list[int]:
        """All numbers in a row of length SUMS, which can be added to the rows of other images."""
        counts = [self.true, self.predicted, self.iou, self.error, self.split, self.merged]
        return [*self.matches, *counts, *self.found_by_size, *self.true_by_size]

    @classmethod
    def from_row(cls, row: Tensor) -> "ObjectSums":
        """The sums of a row (SUMS,) of `to_row`."""
        bins = len(SIZES) + 1
        matches, counts, found_by_size, true_by_size = row.split([len(THRESHOLDS), 6, bins, bins])
        true, predicted, iou, error, split, merged = counts.tolist()
        return cls(
            matches.tolist(),
            true,
            predicted,
            iou,
            error,
            split,
            merged,
            found_by_size.tolist(),
            true_by_size.tolist(),
        )

    def scores(self) -> dict[str, Any]:
        """The scores that follow from the sums; a score whose denominator is 0 is None.

        AP at a threshold is TP / (TP + FP + FN), as StarDist defines it; panoptic quality and F1 use the threshold 0.5.
        The count error is `error` divided by the number of true objects.
        """
        found = self.matches[0]  # at an IoU of 0.5
        objects = self.true + self.predicted
        ap = [ratio(matches, objects - matches) for matches in self.matches]
        return {
            "ap50": ap[0],
            "ap75": ap[THRESHOLDS.index(0.75)],
            "ap": mean_of_present(ap),
            "panoptic_quality": ratio(2 * self.iou / PRECISION, objects),
            "f1": ratio(2 * found, objects),
            "precision": ratio(found, self.predicted),
            "recall": ratio(found, self.true),
            "count_error": ratio(self.error, self.true),
            "objects": self.true,
            "predicted": self.predicted,
            "found": found,
            "split": self.split,
            "merged": self.merged,
            "found_by_size": self.found_by_size,
            "objects_by_size": self.true_by_size,
            "ap_by_iou": ap,
        }


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


class ObjectScores(Scores):
    """Scores of objects from whole numbers, which are the same on any number of processes.

    The parts of an image are kept until `finish_image`, since its objects can only be matched as a whole.

    Args:
        names: the classes of objects.
        sums: (classes * SUMS,) int64.
        by_image: (images, classes * SUMS) int64, the sums of each image.
    """

    headline = MEANS

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        self.names = tuple(names)
        self.sums = sums
        self.by_image = by_image
        self._parts: list[Overlaps] = []  # of the image that is being added

    @classmethod
    def empty(cls, names: Sequence[str], images: int, device: torch.device | str) -> "ObjectScores":
        """Empty scores for a number of images."""
        length = len(names) * SUMS
        sums = torch.zeros(length, dtype=torch.int64, device=device)
        return cls(names, sums, torch.zeros(images, length, dtype=torch.int64, device=device))

    def add(self, prediction: Tensor, target: Target, index: int) -> None:
        """Count labels of `pack_labels`; pixels that the truth ignores belong to no object."""
        self.add_part(prediction, target, index)
        self.finish_image(index)

    def add_part(self, prediction: Tensor, target: Target, index: int) -> None:
        true = target.prediction.cpu().numpy()
        overlaps = Overlaps.between(prediction.cpu().numpy(), true)
        self._parts.append(overlaps.within(label_classes(overlaps.true) != IGNORE_INDEX))

    def finish_image(self, index: int) -> None:
        if not self._parts:
            return
        overlaps = Overlaps.join(self._parts)
        self._parts = []
        row: list[int] = []
        for class_index in range(1, len(self.names) + 1):
            true = np.where(label_classes(overlaps.true) == class_index, overlaps.true, 0)
            predicted = np.where(label_classes(overlaps.predicted) == class_index, overlaps.predicted, 0)
            matches = Matches.from_overlaps(Overlaps(predicted, true, overlaps.pixels))
            row += matches.sums().to_row()
        sums = torch.tensor(row, device=self.sums.device)
        self.sums += sums
        self.by_image[index] += sums

    @property
    def classes(self) -> list[dict[str, Any]]:
        """The scores of each class, by name."""
        return [ObjectSums.from_row(row).scores() for row in self.sums.view(len(self.names), SUMS)]

    @property
    def values(self) -> dict[str, Any]:
        """The means over the classes that occur, and the counts of all."""
        classes = self.classes
        values: dict[str, Any] = {}
        for name, _, _ in MEANS:
            values[name] = mean_of_present([scores[name] for scores in classes])
        for name, _, _ in COUNTS:
            values[name] = sum(scores[name] for scores in classes)
        for name in ("found_by_size", "objects_by_size"):
            values[name] = np.sum([scores[name] for scores in classes], axis=0).tolist()
        return values

    @property
    def comparison(self) -> float:
        return self.values["ap50"] or 0.0

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
        record = {}
        for name, _, _ in MEANS:
            record[f"eval/{name}"] = values[name]
        record["eval/missed"] = values["objects"] - values["found"]
        for name in ("split", "merged"):
            record[f"eval/{name}"] = values[name]
        if len(self.names) > 1:
            for name, scores in zip(self.names, self.classes, strict=True):
                record[f"eval/ap50/{name}"] = scores["ap50"]
        return record

    def brief(self) -> dict[str, float | None]:
        values = self.values
        brief = {"ap50": values["ap50"]}
        for name, _, _ in COUNTS:
            brief[name] = values[name]
        return brief

    def report(self) -> dict[str, Any]:
        by_class = dict(zip(self.names, self.classes, strict=True))
        return {**self.values, "iou_thresholds": THRESHOLDS, "sizes": SIZES, "by_class": by_class}

    @property
    def means(self) -> dict[str, Any]:
        return self.values

    @property
    def remark(self) -> str:
        values = self.values
        return f"{values['predicted']:,} objects for {values['objects']:,}"

    @property
    def unfound(self) -> list[str]:
        unfound = []
        for name, scores in zip(self.names, self.classes, strict=True):
            if scores["objects"] and not scores["found"]:
                unfound.append(name)
        return unfound

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        rows = list(zip(self.names, self.classes, strict=True))
        values = self.values
        sizes = []
        for label, found, objects in zip(
            size_labels(), values["found_by_size"], values["objects_by_size"], strict=True
        ):
            if objects:
                sizes.append((label, {"objects": objects, "found": found, "share": found / objects}))
        by_class = Table("Objects", "class", (*MEANS, *COUNTS), rows)
        return [by_class, Table("Found by size", "pixels", SIZE_COLUMNS, sizes)]


def size_labels() -> list[str]:
    """The text of each range of sizes."""
    labels = [f"below {SIZES[0]:,}"]
    for low, high in pairwise(SIZES):
        labels.append(f"{low:,} to {high - 1:,}")
    return [*labels, f"{SIZES[-1]:,} and more"]


def found_by_size(found_counts: Sequence[int], objects: Sequence[int]) -> str:
    """For each range of sizes, how many of its objects were found, in words."""
    texts = []
    for label, found_ones, all_ones in zip(size_labels(), found_counts, objects, strict=True):
        if all_ones:
            texts.append(f"{label}: {found_ones:,} of {all_ones:,}")
    return "; ".join(texts) or "no objects"
