"""Predictions: what the network says of an image or a volume, as whole arrays, and what they are written with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.windowed import WindowedImage
from tasks.job import Job


class Prediction(NamedTuple):
    """The prediction of an image or a volume, as whole arrays.

    Args:
        labels: (H, W) or (D, H, W); for landmarks (K, n + 2), see `LandmarkDecoder`.
        objects: the objects of a model of objects, in the order of their numbers.
        probabilities: (outputs, *spatial) float32; None unless wanted, like all that follow.
        uncertainty: (*spatial) uint8, the entropy of the prediction, 255 where it is the largest.
        certainty: (*spatial) or (outputs, *spatial) float32, for `Task.count_certainty`.
    """

    labels: np.ndarray
    objects: Sequence[Any] = ()
    probabilities: np.ndarray | None = None
    uncertainty: np.ndarray | None = None
    certainty: np.ndarray | None = None


class PredictedImage(NamedTuple):
    """An image or volume whose prediction is written and scored.

    Args:
        size: (H, W) or (D, H, W).
        picture: the image itself, if an overlay shows it; None for a volume.
        missing: (H, W) bool, true where an image holds no data; None if it has data everywhere.
    """

    job: Job
    size: tuple[int, ...]
    prediction: Prediction
    picture: WindowedImage | None = None
    missing: np.ndarray | None = None
