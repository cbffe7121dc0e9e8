"""The answer of a pixel to what object it is of: class, depth and certainty in one whole number.

The lowest eight bits hold the class, and 0 is background; the next eight the depth within an object; the next eight how
certain the pixel is to be no background. Depth and certainty are whole numbers from 0 to LEVELS.
"""

from typing import TypeVar

import numpy as np
from torch import Tensor

Numbers = TypeVar("Numbers", np.ndarray, Tensor)

LEVELS = 255
BYTE = 255
DEPTH_SHIFT = 8
CERTAINTY_SHIFT = 16


def pack_answers(classes: Numbers, depths: Numbers, certainties: Numbers) -> Numbers:
    """The answers of pixels, of integers of at least 32 bits."""
    return classes | (depths << DEPTH_SHIFT) | (certainties << CERTAINTY_SHIFT)


def answer_classes(answers: Numbers) -> Numbers:
    """The class of each pixel, 0 for background."""
    return answers & BYTE


def answer_depths(answers: Numbers) -> Numbers:
    """The depth of each pixel within an object, 0 to LEVELS."""
    return (answers >> DEPTH_SHIFT) & BYTE


def answer_certainties(answers: Numbers) -> Numbers:
    """How certain each pixel is to be no background, 0 to LEVELS."""
    return answers >> CERTAINTY_SHIFT
