"""Points: written in the format that they came in, drawn on images, and scored at the image's own size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from data_utils.image_io.formats import PointSource
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume, read_volume_header
from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.points import files
from data_utils.sources.points.find import read_truth
from data_utils.sources.points.spaces import from_pixels, from_voxels
from data_utils.sources.points.table import Certainty, ImagePoints, PointTable, join_tables
from data_utils.sources.records import Record
from runtime.errors import DataError, SettingsError
from runtime.files import replace_file
from tasks.drawing import render_points, save_picture
from tasks.job import OVERLAY, PROBABILITIES, Job
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.reader import PointReader
from tasks.landmarks.scores import ERROR, STATE
from tasks.landmarks.show import LandmarkSection
from tasks.prediction import PredictedImage
from tasks.prediction_files import save_array
from tasks.prediction_format import PredictionFormat
from tasks.task import Scores, Task

JOINED = "points"  # the stem of the table of all images
MIN_TABLE_IMAGES = 2  # a table of all images is written if there are at least so many


class PointFormat(PredictionFormat):
    """A file of points for each image, in the format that the points of training came in."""

    outputs = "files of points"
    reader: PointReader

    def __init__(self, section: LandmarkSection) -> None:
        super().__init__(section)
        self.task = self.reader.landmarks
        layout = files.FORMATS[self.task.layout]
        self.extensions = (layout.extension,)
        if layout.holds_several:
            self.joined_files = (f"{JOINED}{layout.extension}",)

    def for_file(self, file: Path) -> PointFormat:
        raise SettingsError(f"--output {file}: the points of this model are {self.extensions[0]} files; give a folder")

    def file(self, job: Job, extension: str) -> Path:
        if extension == PROBABILITIES:  # maps of volumes are written as arrays, not as volumes
            return job.output.with_name(job.output.name + PROBABILITIES)
        return super().file(job, extension)

    def write(self, image: PredictedImage, extensions: Sequence[str]) -> None:
        job, size = image.job, image.size
        if PROBABILITIES in extensions and image.prediction.probabilities is not None:
            with replace_file(self.file(job, PROBABILITIES)) as file:
                save_array(file, image.prediction.probabilities)
        points = PredictedPoints.from_prediction(image.prediction.labels)
        positions = points.positions(size)
        if OVERLAY in extensions:
            with replace_file(job.file(OVERLAY)) as file:
                save_picture(file, self._picture(image, points))
        if job.volume is None:
            written = from_pixels(positions, self.task.space, (size[0], size[1]))
        else:
            written = from_voxels(positions, self.task.space, read_volume_header(job.volume, job.name))
        image_name = _text(job.image.name)
        entry = ImagePoints(image_name, image_name, None if job.volume is not None else (size[0], size[1]))
        columns = zip(
            self.task.names, written.tolist(), points.confidence.tolist(), points.presence.tolist(), strict=True
        )
        for name, position, confidence, presence in columns:
            entry.add(name, UNKNOWN, position, Certainty(confidence, presence))
        table = PointTable(self.task.layout, written.shape[1], [entry], self.task.space)
        with replace_file(self.mask_file(job)) as file:
            file.write(files.content(table))

    def _picture(self, image: PredictedImage, points: PredictedPoints) -> np.ndarray:
        """The image, or slices of the volume, with the points drawn on it."""
        job, found = image.job, points.found_positions(image.size)
        if job.volume is not None:
            voxels, header = read_volume(job.volume, job.name)
            return render_points(voxels, found, spacing=header.spacing)
        assert image.picture is not None
        return render_points(read_image(image.picture, job.name), found)

    def true_points(self, path: Path) -> PointTable:
        """The true points of all images, with the model's names. Raises DataError if no file has them.

        An empty cell has the same meaning as in training.
        """
        table = read_truth(path, self.task.absent)
        if not set(table.names) & set(self.task.names):
            raise DataError(f"--truth {path}: has none of the model's points {', '.join(self.task.names)}")
        return table.with_names(self.task.names)

    def score(self, task: Task, image: PredictedImage, *, boundary: bool) -> Scores:
        """The scores of the points; in the entry a point that has no error has None."""
        job = image.job
        assert isinstance(job.truth, PointSource)
        record: Record = {"image": str(job.image), "target": job.truth, "name": job.name}
        if job.volume is not None:
            target = self.reader.read_volume(record, read_volume_header(job.volume, job.name))
        else:
            target = self.reader.read(record, (image.size[0], image.size[1]))
        scores = self.task.new_scores(1)
        scores.add(torch.from_numpy(image.prediction.labels)[None], target.map(torch.from_numpy).as_batch(), 0)
        errors = dict.fromkeys(scores.names)
        for point, values in zip(scores.names, scores.by_image[0].tolist(), strict=True):
            if values[STATE] == PRESENT:
                errors[point] = values[ERROR]
        scores.entries.append({"image": job.name, **scores.brief(), "errors": errors})
        return scores

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write a table of the points of all images, for formats that hold points of several images."""
        written_jobs = [job for job in jobs if self.mask_file(job).exists()]
        if len(jobs) < MIN_TABLE_IMAGES or not written_jobs or not self.joined_files:
            return
        tables = []
        for job in written_jobs:
            table = files.read_written(self.mask_file(job), self.task.layout)
            entries = [replace(entry, image=_text(job.relative_name)) for entry in table.entries]
            tables.append(replace(table, entries=entries, names=self.task.names))
        with replace_file(folder / self.joined_files[0]) as file:
            file.write(files.content(join_tables(tables)))


def _text(name: str) -> str:
    """The name of a file for a file of UTF-8: bytes of another encoding are written as numbers."""
    return name.encode(errors="backslashreplace").decode()
