"""Scoring predicted points against true ones, at the image's own size."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import read_volume_header, volume_stem
from data_utils.sources.annotations.layout import without_image_roots
from data_utils.sources.points.files import read_written
from data_utils.sources.points.find import read_truth
from data_utils.sources.points.nnlandmark import case_name
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.points.table import PointTable
from data_utils.sources.records import Record
from data_utils.sources.spelling import composed
from data_utils.targets.points import PointReader
from inference.outputs.jobs import InputPages, Job, PointRow, VolumeJob
from inference.scoring.truth import ScoreError
from runtime.console import counted
from runtime.errors import DataError
from tasks.landmarks import Landmarks
from tasks.point_scores import ERROR, STATE, LandmarkScores
from tasks.points import PRESENT, PointTarget


class PointScore(NamedTuple):
    """The scores of an image."""

    scores: LandmarkScores

    @property
    def boundary(self) -> None:
        """Points have none."""
        return None

    @property
    def areas(self) -> None:
        """Points have none."""
        return None

    def to_json(self, name: str) -> dict[str, Any]:
        """The entry of metrics.json for this image; a point that has no error has None."""
        errors = {}
        for point, values in zip(self.scores.names, self.scores.by_image[0].tolist(), strict=True):
            errors[point] = values[ERROR] if values[STATE] == PRESENT else None
        return {"image": name} | self.scores.brief() | {"errors": errors}


class PointTruthScorer:
    """Takes a prediction, to score it against the true points of an image.

    Attributes:
        problem: the reason why it cannot be scored.
    """

    problem: Exception | None = None

    def __init__(self, task: Landmarks, target: PointTarget) -> None:
        self.target = target
        self.scores = task.new_scores(1)

    def add(self, prediction: np.ndarray) -> None:
        """Score a prediction (K, n + 2)."""
        batch = self.target.map(lambda array: torch.from_numpy(array)[None])
        self.scores.add(torch.from_numpy(prediction)[None], batch, 0)

    def score(self) -> PointScore:
        """The score of the prediction that was added."""
        return PointScore(self.scores)


@dataclass(frozen=True)
class PointScorer:
    """Scores the points of images and volumes against true ones."""

    task: Landmarks
    extension: str

    @contextmanager
    def open(self, job: Job, size: tuple[int, int]) -> Iterator[PointTruthScorer]:
        """The scorer of the prediction of an image of `size`."""
        yield PointTruthScorer(self.task, self._target(job, size))

    def score(self, job: Job) -> PointScore:
        """The score of points that were written before. Raises ScoreError if they cannot be scored."""
        try:
            table = read_written(job.file(self.extension), self.task.layout).with_names(self.task.names)
            return self.score_mask(job, read_prediction(table, job))
        except (OSError, ValueError) as error:
            raise ScoreError(str(error)) from error

    def score_mask(self, job: Job, prediction: np.ndarray) -> PointScore:
        """The score of a prediction (K, n + 2)."""
        assert job.size is not None
        truth = PointTruthScorer(self.task, self._target(job, job.size))
        truth.add(prediction)
        return truth.score()

    def _target(self, job: Job, size: tuple[int, ...]) -> PointTarget:
        """The true points of a job, in its own pixels."""
        all_landmarks = tuple(range(len(self.task.names)))
        reader = PointReader(self.task, all_landmarks)
        record: Record = {"image": str(job.image), "target": self._source(job), "name": job.name}
        if isinstance(job, VolumeJob):
            return reader.read_volume(record, read_volume_header(job.volume, job.name))
        height, width = size
        return reader.read(record, (height, width))

    def _source(self, job: Job) -> PointSource:
        """The true points of a job."""
        assert isinstance(job.truth, PointRow)
        table = read_true_points(job.truth.table, self.task)
        return table.source(job.truth.row)


def read_prediction(table: PointTable, job: Job) -> np.ndarray:
    """The prediction (K, n + 2) of a job, read from the table that was written for it."""
    positions = table.positions[0]
    if isinstance(job, VolumeJob):
        header = read_volume_header(job.volume, job.name)
        size: tuple[int, ...] = header.size
        voxels = to_voxels(positions, table.space, header)
    else:
        assert job.size is not None
        height, width = size = job.size
        voxels = to_pixels(table.source(0), (height, width), job.name)
    shares = (voxels + 0.5) / np.array(size)
    presence: list[float] = []
    for point in table.points(0):
        presence.append(point.certainty.presence if point.certainty else float(point.state == PRESENT))
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


@dataclass(frozen=True)
class TruePoints:
    """The file or folder of true points."""

    path: Path
    task: Landmarks

    def with_truths(self, inputs: Sequence[InputPages]) -> list[Job]:
        """The jobs of all pages of the inputs, each with the row of its true points in the table of all images.

        Raises DataError for inputs that the table does not list.
        """
        table = read_true_points(self.path, self.task)
        rows: dict[str, list[int]] = {}
        for row, image in enumerate(table.images):
            rows.setdefault(_stem(image), []).append(row)
        jobs: list[Job] = []
        missing: list[str] = []
        image_by_row: dict[int, Path] = {}
        for pages in inputs:
            for job in pages.jobs:
                stem = _stem(str(job.image))
                candidates = rows.get(stem) or rows.get(case_name(stem), [])
                folders = without_image_roots(pages.stem.parent.parts)
                found = _find_row(table.images, candidates, job.image, folders)
                if found is None or image_by_row.setdefault(found, job.image) != job.image:
                    missing.append(str(job.image))
                else:
                    jobs.append(replace(job, truth=PointRow(self.path, found)))
        if missing:
            raise DataError(
                f"--truth {self.path}: lists no points of {counted(len(missing), 'input')}, the first is {missing[0]};"
                " images are found by their names and folders"
            )
        return jobs


def _stem(image: str) -> str:
    return composed(volume_stem(image.replace("\\", "/").rpartition("/")[2]))


def _find_row(images: Sequence[str], rows: Sequence[int], path: Path, folders: Sequence[str]) -> int | None:
    """The row of an image among `rows` of its name; None where its folders are others or those of several rows.

    A table may list an image by more folders than it has below the folder that was given, or by fewer.

    Args:
        images: the listed image of each row.
        folders: the folders of the input below the given one.
    """
    shared_parts: dict[int, tuple[int, bool]] = {}
    for row in rows:
        *listed_folders, name = images[row].replace("\\", "/").removeprefix("./").split("/")
        shared = _shared_end(listed_folders, path.resolve().parent.parts)
        is_absolute = bool(re.match(r"/|\\|[a-zA-Z]:", images[row]))  # maybe of another machine
        if folders or is_absolute:
            is_below = _shared_end(listed_folders, folders) == len(folders)
        else:
            is_below = not without_image_roots(listed_folders)
        if is_below or 0 < shared == len(listed_folders):
            shared_parts[row] = shared, name == path.name
    best = [row for row, parts in shared_parts.items() if parts == max(shared_parts.values())]
    return best[0] if len(best) == 1 else None


def _shared_end(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of parts at the end of two paths that agree."""
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        count += 1
    return count
