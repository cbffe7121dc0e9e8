"""Scoring predicted points against true ones, at the image's own size."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from data_utils.image_io.volumes import read_volume_header, volume_stem
from data_utils.sources.annotations.layout import without_image_roots
from data_utils.sources.points.find import read_truth
from data_utils.sources.points.nnlandmark import case_name
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.points.table import PointTable
from data_utils.sources.records import Record
from data_utils.sources.spelling import composed
from data_utils.targets.points import PointReader
from inference.jobs import InputPages, Job, PointRow
from inference.scoring.score import Score
from runtime.console import counted
from runtime.errors import DataError
from tasks.landmarks import Landmarks
from tasks.point_scores import ERROR, STATE
from tasks.points import PRESENT


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
    most = max(shared_parts.values(), default=None)
    best = [row for row, parts in shared_parts.items() if parts == most]
    if len(best) != 1:
        return None
    return best[0]


def _shared_end(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of parts at the end of two paths that agree."""
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        count += 1
    return count
