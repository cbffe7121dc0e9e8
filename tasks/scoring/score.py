"""The score of the prediction of an image or volume."""

from typing import Any, NamedTuple

import numpy as np

from runtime.errors import DataError
from tasks.scoring.boundary import BoundaryScores
from tasks.task import Scores


class ScoreError(DataError):
    """A true mask that cannot be used; the prediction is safe."""


class Score(NamedTuple):
    """The scores of an image or volume.

    Args:
        scores: of its pixels, voxels or points.
        entry: its entry in metrics.json, without its name.
        boundary: the scores of the boundaries of an image, if requested.
        areas: the result of `count_areas`, if pixels have classes.
    """

    scores: Scores
    entry: dict[str, Any]
    boundary: BoundaryScores | None = None
    areas: np.ndarray | None = None
