"""The slices of a volume whose masks look worst. An image is treated as a volume of one slice."""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from inference.review.mask_quality import mask_score

WORST_SLICES = 3  # slices that make up the score of a volume, and are shown


class ScoredSlice(NamedTuple):
    """A slice, its probabilities by a model, and the score of its mask.

    Args:
        number: its number, counted from below; the first is 0.
        probabilities: (classes, H, W).
        mask: (H, W) class indices.
    """

    number: int
    score: float
    probabilities: np.ndarray
    mask: np.ndarray


def worst_slices(slices: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[ScoredSlice]:
    """The slices with the lowest scores, the worst first; slices without labels do not count.

    Args:
        slices: probabilities (classes, H, W) and mask (H, W) of each slice, from below. Few are in memory at a time.
    """
    worst: list[ScoredSlice] = []
    for number, (probabilities, mask) in enumerate(slices):
        score = mask_score(probabilities, mask)
        if score is None or (len(worst) == WORST_SLICES and score >= worst[-1].score):
            continue
        # a copy, which does not keep the slices beside it in memory
        worst.append(ScoredSlice(number, score, probabilities.copy(), mask))
        worst.sort(key=attrgetter("score"))
        del worst[WORST_SLICES:]
    return worst
