"""True and predicted objects matched by their overlap, and the scores that follow from the matches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from tasks.confusion import mean_of_present, ratio
from tasks.object_sizes import SIZES

THRESHOLDS = tuple(number / 100 for number in range(50, 100, 5))  # the least IoU of a match
PRECISION = 2**32  # IoU is summed in whole parts of 1 / PRECISION, so that the order of adding does not matter
SUMS = len(THRESHOLDS) + 6 + 2 * (len(SIZES) + 1)  # the numbers in a row of `ObjectSums`
PIXELS_AT_ONCE = 2**24  # more pixels at a time take more memory and no less time


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
