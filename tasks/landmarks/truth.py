"""Scoring predicted points against true ones, at the image's own size."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from data_utils.image_io.volumes import read_volume_header
from data_utils.point_states import PRESENT
from data_utils.sources.points.find import read_truth
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.points.table import PointTable
from data_utils.sources.records import Record
from runtime.errors import DataError
from tasks.job import Job, PointRow
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.scores import ERROR, STATE
from tasks.scoring.masks import Score


def score_points(task: Landmarks, job: Job, size: tuple[int, ...], prediction: np.ndarray) -> Score:
    """The score of a prediction (K, n + 2) for the image or volume of a job; a point that has no error has None."""
    assert isinstance(job.truth, PointRow)
    source = read_true_points(job.truth.table, task).source(job.truth.row)
    record: Record = {"image": str(job.image), "target": source, "name": job.name}
    reader = PointReader(task, tuple(range(len(task.names))))
    if job.volume is not None:
        target = reader.read_volume(record, read_volume_header(job.volume, job.name))
    else:
        target = reader.read(record, (size[0], size[1]))
    scores = task.new_scores(1)
    truth = target.map(torch.from_numpy).as_batch()
    scores.add(torch.from_numpy(prediction)[None], truth, 0)
    errors = dict.fromkeys(scores.names)
    for point, values in zip(scores.names, scores.by_image[0].tolist(), strict=True):
        if values[STATE] == PRESENT:
            errors[point] = values[ERROR]
    return Score(scores, scores.brief() | {"errors": errors})


def read_prediction(table: PointTable, job: Job) -> np.ndarray:
    """The prediction (K, n + 2) of a job, read from the table that was written for it."""
    positions = table.positions[0]
    assert job.size is not None
    if job.volume is not None:
        voxels = to_voxels(positions, table.space, read_volume_header(job.volume, job.name))
    else:
        voxels = to_pixels(table.source(0), (job.size[0], job.size[1]), job.name)
    shares = (voxels + 0.5) / np.array(job.size)
    presence: list[float] = []
    for point in table.points(0):
        if point.certainty:
            presence.append(point.certainty.presence)
        else:
            presence.append(float(point.state == PRESENT))
    return np.column_stack([shares, presence, presence])


@lru_cache(maxsize=2)  # each process reads it once
def read_true_points(path: Path, task: Landmarks) -> PointTable:
    """The true points of all images, with the model's names. Raises DataError if no file has them.

    An empty cell has the same meaning as in training.
    """
    table = read_truth(path, task.absent)
    if not set(table.names) & set(task.names):
        raise DataError(f"--truth {path}: has none of the model's points {', '.join(task.names)}")
    return table.with_names(task.names)
