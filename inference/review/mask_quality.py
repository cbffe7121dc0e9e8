"""What a model that has not trained on an image says of its mask: a score, and what looks wrong.

The score is that of Lad and Mueller, "Estimating label quality and errors in semantic segmentation data via any model"
(arXiv:2307.05080): the softmin, at temperature 0.1, of the probability that the model gives to the label of each pixel.
Objects are looked for by connected component, as Rottmann and Reese do in "Automated detection of label errors in
semantic segmentation datasets via deep learning and uncertainty quantification" (arXiv:2207.06104): an area that the
model is sure of and the mask does not have at all, or the other way round.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unet.config import IGNORE_INDEX

TEMPERATURE = 0.1
SHIFTED = "shifted"  # the kind of finding that says that a mask has to be moved
SURE = 0.7  # mean probability of an area from which on it is reported
UNSEEN = 0.1  # an area of which a smaller share is in the other picture is not there at all
MOST_OF = 0.5  # an area of a class is another class where the model sees that one in so much of it
SMALLEST_AREA = 16  # pixels; smaller ones are no objects
SMALLEST_SHARE = 2e-4  # nor are those of a smaller share of the image
WIDEST_BORDER = 1 / 50  # of the shorter side: a strip that narrow where mask and prediction disagree is no area
FARTHEST = 16  # pixels that a mask is moved by, at the size at which it is looked at
LONGEST_SIDE = 384  # of that size
SMALLEST_SHIFT = 2  # pixels at that size
SMALLEST_GAIN = 0.005  # of the mean probability: less is rounding, or nothing to speak of
REMEDIED = 0.2  # share of the disagreement that the shift has to remove


class Finding(NamedTuple):
    """What looks wrong.

    kind: `missing`, `not seen`, `another class` or `shifted`.
    text: in words.
    confidence: how sure the model is, in 0..1.
    """

    kind: str
    text: str
    confidence: float

    def in_slice(self, number: int) -> "Finding":
        """The same of a slice of a volume."""
        return self._replace(text=f"slice {number}: {self.text}")


def mask_score(probabilities: np.ndarray, mask: np.ndarray) -> float | None:
    """The softmin of the probability of each pixel's label, in 0..1, low where the mask looks wrong.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices; ignored pixels do not count.

    Returns None where nothing counts.
    """
    counted = label_probabilities(probabilities, mask)[mask != IGNORE_INDEX].astype(np.float64)
    if not len(counted):
        return None
    weights = np.exp((1 - counted) / TEMPERATURE)
    return float((weights * counted).sum() / weights.sum())


def label_probabilities(probabilities: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(H, W): the probability of each pixel's label, that of class 0 where it is ignored."""
    labels = np.where(mask == IGNORE_INDEX, 0, mask).astype(np.int64)
    return np.take_along_axis(probabilities, labels[None], axis=0)[0]


def find_problems(probabilities: np.ndarray, mask: np.ndarray, names: Sequence[str]) -> list[Finding]:
    """What looks wrong in a mask (H, W), the surest first. Class 0 is taken for what lies around objects."""
    prediction = probabilities.argmax(axis=0)
    reported = np.zeros(mask.shape, bool)
    findings = _areas_of_mask(probabilities, prediction, mask, names, reported)
    findings += _missing_areas(probabilities, prediction, mask, names, reported)
    findings.sort(key=_confidence, reverse=True)
    shift = best_shift(probabilities, mask)
    if shift is not None:
        rows, columns = shift
        text = f"the mask fits better when it is moved by {rows:+d} rows and {columns:+d} columns"
        findings.append(Finding(SHIFTED, text, 1.0))
    return findings


def _areas_of_mask(
    probabilities: np.ndarray, prediction: np.ndarray, mask: np.ndarray, names: Sequence[str], reported: np.ndarray
) -> list[Finding]:
    """Connected areas of the mask that the model takes for another class, or does not see; they become `reported`."""
    findings = []
    for index, name in enumerate(names):
        for inside, place in _components(mask == index):
            pixels = len(inside[0])
            predicted_pixels = np.bincount(prediction[inside], minlength=len(names))
            likely = int(predicted_pixels.argmax())
            if likely not in (0, index) and predicted_pixels[likely] >= MOST_OF * pixels:
                confidence = float(probabilities[likely][inside].mean())
                finding = Finding("another class", f"{name} {place} looks like {names[likely]}", confidence)
            elif index and predicted_pixels[index] < UNSEEN * pixels:
                confidence = float(1 - probabilities[index][inside].mean())
                finding = Finding("not seen", f"{name} {place} is not seen in the image", confidence)
            else:
                continue
            if finding.confidence >= SURE:
                findings.append(finding)
                reported[inside] = True
    return findings


def _missing_areas(
    probabilities: np.ndarray, prediction: np.ndarray, mask: np.ndarray, names: Sequence[str], reported: np.ndarray
) -> list[Finding]:
    """Connected areas of the prediction of a class that the mask does not have there, unless they are `reported`."""
    findings = []
    for index, name in enumerate(names):
        if index == 0:
            continue
        for inside, place in _components(prediction == index):
            labels = mask[inside]
            is_absent = ((labels != index) & (labels != IGNORE_INDEX)).mean() >= 1 - UNSEEN
            confidence = float(probabilities[index][inside].mean())
            if not is_absent or confidence < SURE or reported[inside].mean() >= MOST_OF:
                continue
            label = int(np.bincount(labels[labels != IGNORE_INDEX]).argmax())
            instead = f", which has {names[label]} there" if label else ""
            findings.append(Finding("missing", f"{name} {place} is missing in the mask{instead}", confidence))
    return findings


def _components(area: np.ndarray) -> list[tuple[tuple[np.ndarray, np.ndarray], str]]:
    """The pixels of each connected component of an area (H, W) that is no speck, and where it is, in words."""
    from scipy.ndimage import find_objects, label

    numbers, _ = label(area)
    smallest = max(SMALLEST_AREA, SMALLEST_SHARE * area.size)
    components = []
    for number, box in enumerate(find_objects(numbers), start=1):
        rows, columns = np.nonzero(numbers[box] == number)
        if len(rows) < smallest:
            continue
        inside = (rows + box[0].start, columns + box[1].start)
        place = f"of {len(rows):,} pixels at row {int(inside[0].mean())}, column {int(inside[1].mean())}"
        components.append((inside, place))
    return components


def disagreeing_areas(prediction: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(H, W): where a prediction and a mask (H, W) disagree over an area, and not just along a border."""
    from scipy.ndimage import binary_opening

    disagrees = (prediction != mask) & (mask != IGNORE_INDEX)
    width = max(3, round(WIDEST_BORDER * min(mask.shape)))
    areas = np.zeros(mask.shape, bool)
    for inside, _ in _components(binary_opening(disagrees, np.ones((width, width), bool))):
        areas[inside] = True
    return areas


def area_share(probabilities: np.ndarray, mask: np.ndarray) -> float:
    """How large the areas are where a model and a mask (H, W) disagree, of all that either takes for an object.

    In 0..1. A pixel of an area counts as much as the model is surer of its own answer than of the label.
    """
    prediction = probabilities.argmax(axis=0)
    areas = disagreeing_areas(prediction, mask)
    if not areas.any():
        return 0.0
    surplus = probabilities.max(axis=0) - label_probabilities(probabilities, mask)
    objects = ((prediction != 0) | (mask != 0)) & (mask != IGNORE_INDEX)
    return float(surplus[areas].sum() / objects.sum())


def best_shift(probabilities: np.ndarray, mask: np.ndarray) -> tuple[int, int] | None:
    """By how many rows and columns a mask (H, W) has to be moved to fit best; None where it fits well where it is.

    The mean probability of the labels at each shift is a correlation. Beyond the border of the image the probabilities
    go on as they are at the border, so that each shift counts the same pixels.
    """
    stride = math.ceil(max(mask.shape) / LONGEST_SIDE)
    small = mask[::stride, ::stride]
    padding = ((FARTHEST, FARTHEST), (FARTHEST, FARTHEST))
    sides = tuple(side + 2 * FARTHEST for side in small.shape)
    is_known = small != IGNORE_INDEX
    if not is_known.any():
        return None
    spectrum = np.zeros((sides[0], sides[1] // 2 + 1), np.complex128)
    for index, class_probabilities in enumerate(probabilities[:, ::stride, ::stride]):
        area = np.fft.rfft2((small == index).astype(np.float64), sides)
        padded = np.pad(class_probabilities.astype(np.float64), padding, mode="edge")
        spectrum += np.conj(area) * np.fft.rfft2(padded)
    agreement = np.fft.irfft2(spectrum, sides)[: 2 * FARTHEST + 1, : 2 * FARTHEST + 1] / is_known.sum()
    row, column = np.unravel_index(int(agreement.argmax()), agreement.shape)
    rows = int(row) - FARTHEST
    columns = int(column) - FARTHEST
    unmoved = agreement[FARTHEST, FARTHEST]
    is_better = agreement[row, column] - unmoved >= max(SMALLEST_GAIN, REMEDIED * (1 - unmoved))
    if max(abs(rows), abs(columns)) < SMALLEST_SHIFT or not is_better:
        return None
    return rows * stride, columns * stride


def _confidence(finding: Finding) -> float:
    return finding.confidence
