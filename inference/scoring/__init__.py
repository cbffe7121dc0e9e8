"""Comparing predictions with the truth."""

from typing import Any

from inference.outputs.encoder import Encoder, MaskEncoder
from inference.scoring.points import PointScorer
from inference.scoring.truth import ImageScorer
from inference.scoring.volume import VolumeScorer
from tasks.landmarks import Landmarks
from tasks.task import Task


def new_image_scorer(encoder: Encoder, task: Task, boundary: bool) -> Any:
    """What scores the predictions of images, by the kind of their files."""
    if isinstance(encoder, MaskEncoder):
        return ImageScorer(encoder, task, boundary)
    assert isinstance(task, Landmarks)
    return PointScorer(task, encoder.mask_extensions[0])


def new_volume_scorer(encoder: Encoder, task: Task, surfaces: bool) -> Any:
    """What scores the predictions of volumes, by the kind of their files."""
    if isinstance(encoder, MaskEncoder):
        return VolumeScorer(encoder, task, surfaces)
    assert isinstance(task, Landmarks)
    return PointScorer(task, encoder.mask_extensions[0])
