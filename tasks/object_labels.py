"""Labels of objects: the number and the class of each pixel's object, as one number."""

from typing import Any

import numpy as np
from torch import Tensor

CLASS_BITS = 8  # the lowest bits of a label, which hold the class of its object


def pack_labels(numbers: Any, classes: Any) -> Any:
    """Labels of pixels, int64 arrays or tensors: the number of the object, with its class in the lowest bits."""
    if isinstance(numbers, Tensor):
        return (numbers.long() << CLASS_BITS) | classes.long()
    return (numbers.astype(np.int64) << CLASS_BITS) | classes.astype(np.int64)


def label_numbers(labels: Any) -> Any:
    """The number of each label's object; 0 for no object."""
    return labels >> CLASS_BITS


def label_classes(labels: Any) -> Any:
    """The class of each label; 0 is background."""
    return labels & ((1 << CLASS_BITS) - 1)
