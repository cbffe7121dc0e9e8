"""The score of a whole mask, by a model that was not trained on its image, and whether the mask is shifted.

The score follows Lad and Mueller, "Estimating label quality and errors in semantic segmentation data via any model"
(arXiv:2307.05080): the softmin, at temperature 0.1, of the probability that the model gives to the label of each pixel.
"""

import math

import numpy as np

from unet.config import IGNORE_INDEX

TEMPERATURE = 0.1
MAX_SHIFT = 16  # the largest shift in pixels that is tried, at a reduced size
LONGEST_SIDE = 384  # of the reduced size, in pixels
SMALLEST_SHIFT = 2  # pixels at the reduced size
SMALLEST_GAIN = 0.005  # gain of the mean probability; a smaller one is rounding, or of no importance
REMEDIED = 0.03  # share of the disagreement that the shift has to remove; right masks gain less than 0.005


def mask_score(probabilities: np.ndarray, mask: np.ndarray) -> float | None:
    """The softmin of the probability of each pixel's label, in 0..1, low where the mask looks wrong.

    Args:
        probabilities: (classes, H, W).
        mask: (H, W) class indices; ignored pixels do not count.

    Returns None if all pixels are ignored.
    """
    label_probs = label_probabilities(probabilities, mask)[mask != IGNORE_INDEX].astype(np.float64)
    if not len(label_probs):
        return None
    weights = np.exp((1 - label_probs) / TEMPERATURE)
    return float((weights * label_probs).sum() / weights.sum())


def label_probabilities(probabilities: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The probability (H, W) of each pixel's label; of class 0 for ignored pixels."""
    labels = np.where(mask == IGNORE_INDEX, 0, mask)
    return np.take_along_axis(probabilities, labels[None], axis=0)[0]


def best_shift(probabilities: np.ndarray, mask: np.ndarray) -> tuple[int, int] | None:
    """The rows and columns by which a mask (H, W) has to be moved to fit best; None if it fits well unmoved.

    The mean probability of the labels at each shift is a correlation. Beyond the border of the image the probabilities
    at the border are repeated, so that each shift counts the same pixels.
    """
    stride = math.ceil(max(mask.shape) / LONGEST_SIDE)
    small = mask[::stride, ::stride]
    padding = ((MAX_SHIFT, MAX_SHIFT), (MAX_SHIFT, MAX_SHIFT))
    sides = tuple(side + 2 * MAX_SHIFT for side in small.shape)
    is_known = small != IGNORE_INDEX
    if not is_known.any():
        return None
    spectrum = np.zeros((sides[0], sides[1] // 2 + 1), np.complex128)
    for index, class_probabilities in enumerate(probabilities[:, ::stride, ::stride]):
        area = np.fft.rfft2((small == index).astype(np.float64), sides)
        padded = np.pad(class_probabilities.astype(np.float64), padding, mode="edge")
        spectrum += np.conj(area) * np.fft.rfft2(padded)
    agreement = np.fft.irfft2(spectrum, sides)[: 2 * MAX_SHIFT + 1, : 2 * MAX_SHIFT + 1] / is_known.sum()
    row, column = np.unravel_index(int(agreement.argmax()), agreement.shape)
    rows = int(row) - MAX_SHIFT
    columns = int(column) - MAX_SHIFT
    unmoved = agreement[MAX_SHIFT, MAX_SHIFT]
    is_better = agreement[row, column] - unmoved >= max(SMALLEST_GAIN, REMEDIED * (1 - unmoved))
    distance = max(abs(rows), abs(columns))
    # if the farthest shift is the best, the agreement has no peak
    if not SMALLEST_SHIFT <= distance < MAX_SHIFT or not is_better:
        return None
    return rows * stride, columns * stride
