"""Connected areas of a mask and of a model's prediction, each compared with the other picture.

Objects are looked for by connected component, as Rottmann and Reese do in "Automated detection of label errors in
semantic segmentation datasets via deep learning and uncertainty quantification" (arXiv:2207.06104): an area that the
model is sure of and the mask does not have at all, or the other way round.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from train_utils.review.quality import label_probabilities
from unet.config import IGNORE_INDEX

IN_MASK = "mask"
IN_PREDICTION = "prediction"
UNSEEN = 0.1  # an area is missing from the other picture if a smaller share of it is there
MOST_OF = 0.5  # share of an area: an area is not reported if so much of it was reported before
SMALLEST_AREA = 16  # pixels; smaller ones are no objects
SMALLEST_SHARE = 2e-4  # share of the image; smaller areas are no objects either
WIDEST_BORDER = 1 / 50  # share of the shorter side; a disagreement in a strip so narrow is no area

Pixels = tuple[np.ndarray, np.ndarray]  # rows and columns


class ComparedArea(NamedTuple):
    """A connected area of a class in one of two pictures, the mask or the prediction, and whether the other has it.

    Args:
        picture: IN_MASK or IN_PREDICTION.
        label: the class's name.
        pixels: its size.
        probability: the mean probability of the class that the model sees there, in 0..1.
        agrees: whether the other picture has the class in a tenth of the area or more.
        text: a description of the problem, if the other picture does not agree.
    """

    picture: str
    label: str
    pixels: int
    probability: float
    agrees: bool
    text: str | None


def compare_areas(probabilities: np.ndarray, mask: np.ndarray, names: Sequence[str]) -> Iterator[ComparedArea]:
    """The connected areas of a mask and of the prediction, each compared with the other picture.

    Class 0 is taken for the background of objects, and has no areas. Unlabeled pixels have none either.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices.
        names: the names of the classes.
    """
    prediction = probabilities.argmax(axis=0)
    is_told = np.zeros(mask.shape, bool)  # pixels of the mask's areas where another class was reported
    for index, inside, title in _class_areas(mask, names):
        answer, is_unseen = _most_frequent(prediction[inside], index)
        is_told[inside] = is_unseen and answer != 0
        problem = f"looks like {names[answer]}" if answer else "is not seen in the image"
        text = None
        if is_unseen:
            text = f"{title} {problem}"
        probability = float(probabilities[answer][inside].mean())
        yield ComparedArea(IN_MASK, names[index], len(inside[0]), probability, not is_unseen, text)
    for index, inside, title in _class_areas(prediction, names):
        labels = mask[inside][mask[inside] != IGNORE_INDEX]
        if not len(labels):
            continue
        label, is_missing = _most_frequent(labels, index)
        text = None
        if is_missing and is_told[inside].mean() < MOST_OF:
            text = f"{title} is missing in the mask"
            if label:
                text += f", which has {names[label]} there"
        probability = float(probabilities[index][inside].mean())
        yield ComparedArea(IN_PREDICTION, names[index], len(inside[0]), probability, not is_missing, text)


def _most_frequent(classes: np.ndarray, index: int) -> tuple[int, bool]:
    """The most frequent class of an area in the other picture, and whether that picture lacks class `index` there.

    With many classes, one of less than a tenth may still be the most frequent one.
    """
    most_frequent = int(np.bincount(classes).argmax())
    return most_frequent, most_frequent != index and bool((classes == index).mean() < UNSEEN)


def _class_areas(picture: np.ndarray, names: Sequence[str]) -> Iterator[tuple[int, Pixels, str]]:
    """The class, the pixels and a title of each connected area of a mask or a prediction (H, W), except class 0."""
    for index in np.unique(picture).tolist():
        if not 0 < index < len(names):
            continue
        for inside in _components(picture == index):
            row, column = int(inside[0].mean()), int(inside[1].mean())
            yield index, inside, f"{names[index]} of {len(inside[0]):,} pixels at row {row}, column {column}"


def _components(area: np.ndarray) -> Iterator[Pixels]:
    """The pixels of each connected component of an area (H, W) that is no speck."""
    from scipy.ndimage import find_objects, label

    numbers, _ = label(area)
    smallest = max(SMALLEST_AREA, SMALLEST_SHARE * area.size)
    for number, box in enumerate(find_objects(numbers), start=1):
        rows, columns = np.nonzero(numbers[box] == number)
        if len(rows) >= smallest:
            yield rows + box[0].start, columns + box[1].start


def disagreeing_areas(prediction: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Pixels where a prediction and a mask (H, W) disagree over an area, not just along a border, as (H, W) bool."""
    from scipy.ndimage import binary_opening

    disagrees = (prediction != mask) & (mask != IGNORE_INDEX)
    width = max(3, round(WIDEST_BORDER * min(mask.shape)))
    areas = np.zeros(mask.shape, bool)
    for inside in _components(binary_opening(disagrees, np.ones((width, width), bool))):
        areas[inside] = True
    return areas


def area_share(probabilities: np.ndarray, mask: np.ndarray) -> float:
    """The share, in 0..1, of areas where a model and a mask (H, W) disagree in the pixels of all objects of either.

    A pixel of an area counts by the difference between the probabilities of the model's answer and of the label.
    """
    prediction = probabilities.argmax(axis=0)
    areas = disagreeing_areas(prediction, mask)
    if not areas.any():
        return 0.0
    surplus = probabilities.max(axis=0) - label_probabilities(probabilities, mask)
    objects = ((prediction != 0) | (mask != 0)) & (mask != IGNORE_INDEX)
    return float(surplus[areas].sum() / objects.sum())
