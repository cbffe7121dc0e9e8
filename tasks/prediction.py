"""The prediction of an image or a volume."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Decoded(NamedTuple):
    """The prediction of an image or a volume, as whole arrays.

    Args:
        labels: (H, W) or (D, H, W); for landmarks (K, n + 2), see `LandmarkDecoder`.
        objects: the objects of a model of objects, in the order of their numbers.
        probabilities: (outputs, *spatial) float32; None unless wanted, like all that follow.
        uncertainty: (*spatial) uint8, the entropy of the answer, 255 where it is the largest.
        certainty: (*spatial) or (outputs, *spatial) float32, for `Task.count_certainty`.
    """

    labels: np.ndarray
    objects: Sequence[Any] = ()
    probabilities: np.ndarray | None = None
    uncertainty: np.ndarray | None = None
    certainty: np.ndarray | None = None
