"""The answers of pixels, from which objects are found: class, depth and certainty in one whole number.

The lowest eight bits hold the class, and 0 is background; the next eight the depth within an object; the next eight the
certainty that the pixel is not background. Depth and certainty are whole numbers from 0 to LEVELS.
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
    """The answers of pixels, as integers of at least 32 bits."""
    return classes | (depths << DEPTH_SHIFT) | (certainties << CERTAINTY_SHIFT)


def answer_classes(answers: Numbers) -> Numbers:
    """The class of each pixel, 0 for background."""
    return answers & BYTE


def answer_depths(answers: Numbers) -> Numbers:
    """The depth of each pixel within an object, 0 to LEVELS."""
    return (answers >> DEPTH_SHIFT) & BYTE


def answer_certainties(answers: Numbers) -> Numbers:
    """The certainty that each pixel is not background, 0 to LEVELS."""
    return answers >> CERTAINTY_SHIFT
