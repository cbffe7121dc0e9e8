"""Bits of the classes of each pixel."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_utils.bits import ALL_CLASSES, pack_bits
from data_utils.target import Target, labels


@dataclass(frozen=True, eq=False)
class OverlapTarget(Target):
    """Bit k of a pixel stands for class k.

    Args:
        truth: the classes that are present.
        known: the classes whose presence or absence is known; a class in `truth` is known.
    """

    truth: Any = labels(unknown=0, dtype="int32")
    known: Any = labels(unknown=0, dtype="int32")


def pack_target(target: Target) -> np.ndarray:
    """A target of arrays, packed by `pack_bits`."""
    assert isinstance(target, OverlapTarget)
    return pack_bits(target.truth, ~target.known & ALL_CLASSES)
