"""What a model says of one mask: its score, the areas on which both do not agree, and whether the mask is shifted.

The score follows Lad and Mueller, "Estimating label quality and errors in semantic segmentation data via any model"
(arXiv:2307.05080): the softmin, at temperature 0.1, of the probability that the model gives to the label of each pixel.
Areas are compared as Rottmann and Reese do in "Automated detection of label errors in semantic segmentation datasets
via deep learning and uncertainty quantification" (arXiv:2207.06104): an area that the model is sure of and the mask
does not have at all, or the other way round.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unet.config import IGNORE_INDEX

TEMPERATURE = 0.1
MAX_SHIFT = 16  # the largest shift in pixels that is tried, at a reduced size
LONGEST_SIDE = 384  # of the reduced size, in pixels
SMALLEST_SHIFT = 2  # pixels at the reduced size
SMALLEST_GAIN = 0.005  # gain of the mean probability; a smaller one is rounding, or of no importance
ROUNDING = 1e-9  # of a mean probability
REMEDIED = 0.03  # share of the disagreement that the shift has to remove; right masks gain less than 0.005
UNSEEN = 0.1  # an area is missing from the other picture if a smaller share of it is there
MOST_OF = 0.5  # share of an area: an area is not reported if so much of it was reported before
SMALLEST_AREA = 16  # pixels; smaller ones are no objects
SMALLEST_SHARE = 2e-4  # share of the image; smaller areas are no objects either
WIDEST_BORDER = 1 / 50  # share of the shorter side; a disagreement in a strip so narrow is no area
HIGHEST = 0.999  # a probability; the logit of 1 is no number
PRIOR_LOGIT = 3.0  # before any area is seen, a mask is expected to agree on nineteen of twenty

Pixels = tuple[np.ndarray, np.ndarray]  # rows and columns


@dataclass(eq=False, slots=True)
class Area:
    """A connected area of a class in one of two pictures, the mask or the prediction, and whether the other has it.

    Args:
        in_mask: whether it is one of the mask; else it is one of the prediction.
        label: the class's name.
        pixels: its size.
        probability: the mean probability, in 0..1, of what the model sees there.
        agrees: whether the other picture has the class in a tenth of the area or more.
        text: a description of the problem, if the other picture does not agree.
        confidence: how likely the mask is wrong if it does not agree; `rate_areas` sets it.
    """

    in_mask: bool
    label: str
    pixels: int
    probability: float
    agrees: bool = True
    text: str | None = None
    confidence: float = 0.0


def mask_score(probabilities: np.ndarray, mask: np.ndarray) -> float | None:
    """The softmin of the probability of each pixel's label, in 0..1, low where the mask looks wrong.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices; ignored pixels do not count.

    Returns None if all pixels are ignored.
    """
    label_probs = _label_probabilities(probabilities, mask)[mask != IGNORE_INDEX].astype(np.float64)
    if not len(label_probs):
        return None
    weights = np.exp((1 - label_probs) / TEMPERATURE)
    return float((weights * label_probs).sum() / weights.sum())


def _label_probabilities(probabilities: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The probability (H, W) of each pixel's label; of class 0 for ignored pixels."""
    labels = np.where(mask == IGNORE_INDEX, 0, mask)
    return np.take_along_axis(probabilities, labels[None], axis=0)[0]


def best_shift(probabilities: np.ndarray, mask: np.ndarray) -> tuple[int, int] | None:
    """The rows and columns by which a mask (H, W) has to be moved to fit best; None if it fits well unmoved.

    The mean probability of the labels at each shift is a correlation. Beyond the border of the image the probabilities
    at the border are repeated, so that each shift counts the same pixels.
    """
    from scipy.signal import correlate

    stride = math.ceil(max(mask.shape) / LONGEST_SIDE)
    small = mask[::stride, ::stride]
    known = np.count_nonzero(small != IGNORE_INDEX)
    if not known:
        return None
    agreement = np.zeros((2 * MAX_SHIFT + 1, 2 * MAX_SHIFT + 1))
    for index, class_probabilities in enumerate(probabilities[:, ::stride, ::stride]):
        padded = np.pad(class_probabilities.astype(np.float64), MAX_SHIFT, mode="edge")
        agreement += correlate(padded, (small == index).astype(np.float64), mode="valid", method="fft") / known
    unmoved, best = agreement[MAX_SHIFT, MAX_SHIFT], agreement.max()
    shifts = np.argwhere(agreement > best - ROUNDING) - MAX_SHIFT
    rows, columns = shifts[0].tolist()
    # if several shifts or a far one are the best, the agreement has no peak
    too_far = min(MAX_SHIFT, min(small.shape) / 4)
    has_peak = len(shifts) == 1 and SMALLEST_SHIFT <= max(abs(rows), abs(columns)) < too_far
    if not has_peak or best - unmoved < max(SMALLEST_GAIN, REMEDIED * (1 - unmoved)):
        return None
    return rows * stride, columns * stride


def compare_areas(
    probabilities: np.ndarray, mask: np.ndarray, names: Sequence[str], background: int | None = 0
) -> Iterator[Area]:
    """The connected areas of a mask and of the prediction, each compared with the other picture.

    The background of objects has no areas. Unlabeled pixels have none either.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices.
        names: the names of the classes.
        background: the index of the class that is taken for the background; None if none is.
    """
    prediction = probabilities.argmax(axis=0)
    is_told = np.zeros(mask.shape, bool)  # pixels of the mask's areas where another class was reported
    for in_mask, picture, other in ((True, mask, prediction), (False, prediction, mask)):
        for index, inside in _class_areas(picture, len(names), background):
            classes = other[inside][other[inside] != IGNORE_INDEX]
            if not len(classes):
                continue
            found = int(np.bincount(classes).argmax())
            seen = found if in_mask else index
            probability = float(probabilities[seen][inside].mean())
            area = Area(in_mask, names[index], len(inside[0]), probability)
            # with many classes, one of less than a tenth may still be the most frequent one
            area.agrees = found == index or bool((classes == index).mean() >= UNSEEN)
            row, column = int(inside[0].mean()), int(inside[1].mean())
            title = f"{area.label} of {area.pixels:,} pixels at row {row}, column {column}"
            if in_mask and not area.agrees:
                is_told[inside] = found != background
                problem = "is not seen in the image" if found == background else f"looks like {names[found]}"
                area.text = f"{title} {problem}"
            elif not area.agrees and is_told[inside].mean() < MOST_OF:
                there = "" if found == background else f", which has {names[found]} there"
                area.text = f"{title} is missing in the mask{there}"
            yield area


def _class_areas(picture: np.ndarray, classes: int, background: int | None) -> Iterator[tuple[int, Pixels]]:
    """The class and the pixels of each connected area of a mask or a prediction (H, W), except the background."""
    for index in np.unique(picture).tolist():
        if index < classes and index != background:
            for inside in _components(picture == index):
                yield index, inside


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


def area_share(probabilities: np.ndarray, mask: np.ndarray, background: int | None = 0) -> float:
    """The share, in 0..1, of areas where a model and a mask (H, W) disagree in the pixels of all objects of either.

    A pixel of an area counts by the difference between the probabilities of the model's prediction and of the label.
    """
    prediction = probabilities.argmax(axis=0)
    areas = disagreeing_areas(prediction, mask)
    if not areas.any():
        return 0.0
    surplus = probabilities.max(axis=0) - _label_probabilities(probabilities, mask)
    objects = ((prediction != background) | (mask != background)) & (mask != IGNORE_INDEX)
    return float(surplus[areas].sum() / objects.sum())


def rate_areas(areas: Sequence[Area]) -> None:
    """Set the confidence of all areas of a review: the model's probability, times how often masks agree on such areas.

    A model sees cars more reliably than signs, and large ones more reliably than small ones. A logistic regression says
    from class, size and probability of an area whether the mask agrees (Rottmann and Reese: meta classification). Each
    kind of area, a class in a picture, has its own coefficients, added to the shared ones; all have a normal prior of
    variance 1, so that few areas change them little.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, logit

    if not areas:
        return
    kinds: dict[tuple[bool, str], int] = {}
    kind_of = np.array([kinds.setdefault((area.in_mask, area.label), len(kinds)) for area in areas])
    agrees = np.array([area.agrees for area in areas], np.float64)
    probability = np.array([area.probability for area in areas])
    columns = [np.ones(len(areas))]
    for values in (np.log([area.pixels for area in areas]), logit(probability.clip(1 - HIGHEST, HIGHEST))):
        columns.append((values - values.mean()) / (values.std() or 1.0))
    inputs = np.stack(columns, axis=1)
    prior = np.zeros((1 + len(kinds), len(columns)))  # the first row is for all kinds, then a row for each
    prior[0, 0] = PRIOR_LOGIT

    def logits_of(coefficients: np.ndarray) -> np.ndarray:
        return (inputs * (coefficients[0] + coefficients[1 + kind_of])).sum(axis=1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The negative logarithm of the posterior, and its gradient."""
        coefficients = flat.reshape(prior.shape)
        logits = logits_of(coefficients)
        distance = coefficients - prior
        value = (np.logaddexp(0, logits) - agrees * logits).sum() + 0.5 * (distance**2).sum()
        errors = inputs * (expit(logits) - agrees)[:, None]
        gradient = distance.copy()
        gradient[0] += errors.sum(axis=0)
        np.add.at(gradient, 1 + kind_of, errors)
        return value, gradient.ravel()

    best = minimize(loss, prior.ravel(), jac=True, method="L-BFGS-B").x
    agreement = expit(logits_of(best.reshape(prior.shape)))
    for area, confidence in zip(areas, (agreement * probability).tolist(), strict=True):
        area.confidence = confidence
