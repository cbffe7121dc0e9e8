"""Sets of classes as bits of whole numbers: the present classes of a pixel, and the unknown ones."""

import numpy as np

MOST_CLASSES = 31  # the bits of an int32 without its sign
ALL_CLASSES = 2**MOST_CLASSES - 1


def pack_bits(truth: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """The bits of present classes and the bits of unknown classes, as one int64 for each pixel."""
    return truth.astype(np.int64) | (unknown.astype(np.int64) << MOST_CLASSES)


def unpack_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bits of present classes and of unknown classes, int32 each, from values of `pack_bits`."""
    numbers = values.astype(np.int64)
    return (numbers & ALL_CLASSES).astype(np.int32), (numbers >> MOST_CLASSES).astype(np.int32)
