"""Comparing predictions with the truth."""

from typing import Any

from inference.outputs.prediction_format import MaskFormat, PredictionFormat
from inference.scoring.points import PointScorer
from inference.scoring.truth import ImageScorer
from inference.scoring.volume import VolumeScorer
from tasks.landmarks import Landmarks
from tasks.task import Task


def new_image_scorer(output_format: PredictionFormat, task: Task, boundary: bool) -> Any:
    """The scorer of predictions of images, by the kind of their files."""
    if isinstance(output_format, MaskFormat):
        return ImageScorer(output_format, task, boundary)
    assert isinstance(task, Landmarks)
    return PointScorer(task, output_format.mask_extensions[0])


def new_volume_scorer(output_format: PredictionFormat, task: Task, surfaces: bool) -> Any:
    """The scorer of predictions of volumes, by the kind of their files."""
    if isinstance(output_format, MaskFormat):
        return VolumeScorer(output_format, task, surfaces)
    assert isinstance(task, Landmarks)
    return PointScorer(task, output_format.mask_extensions[0])
