"""Points: written in the format that they came in, drawn on images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume, read_volume_header
from data_utils.sources.points import files
from data_utils.sources.points.spaces import from_pixels, from_voxels
from data_utils.sources.points.table import Certainty, ImagePoints, PointTable, join_tables
from data_utils.visualize import legend
from data_utils.visualize_points import point_colors, render_points, render_volume_points
from inference.decoding import new_decoder
from inference.decoding.landmarks import PredictedPoints
from inference.outputs.images import PredictedImage, RowSink
from inference.outputs.jobs import OVERLAY, PROBABILITIES, UNCERTAINTY, Job, VolumeJob
from inference.outputs.prediction_format import PredictionFormat
from runtime.errors import SettingsError
from runtime.files import replace_file
from tasks.landmarks import Landmarks
from tasks.points import UNKNOWN
from tasks.task import Task
from unet.config import UNetConfig

JOINED = "points"  # the stem of the table of all images
MIN_TABLE_IMAGES = 2  # a table of all images is written if there are at least so many


class PointFormat(PredictionFormat):
    """A file of points for each image, in the format that the points of training came in."""

    outputs = "files of points"
    unsupported = {UNCERTAINTY: "points have a confidence in their table"}  # noqa: RUF012

    def __init__(self, task: Landmarks) -> None:
        self.task = task
        self.names = task.names
        self.colors = point_colors(len(task.names))
        self.extension = files.FORMATS[task.layout].extension
        self.mask_extensions = (self.extension,)
        if files.FORMATS[task.layout].holds_several:
            self.joined_files = (f"{JOINED}{self.extension}",)

    @classmethod
    def from_config(cls, config: UNetConfig) -> PointFormat:
        return cls(Landmarks.from_config(config))

    def for_file(self, file: Path) -> PointFormat:
        raise SettingsError(f"--output {file}: the points of this model are {self.extension} files; give a folder")

    def mask_file(self, job: Job) -> Path:
        return job.file(self.extension)

    def file(self, job: Job, extension: str) -> Path:
        if extension == PROBABILITIES:  # maps of volumes are written as arrays, not as volumes
            return job.output.with_name(job.output.name + PROBABILITIES)
        return super().file(job, extension)

    def maps_file(self, job: Job, extensions: Sequence[str]) -> Path | None:
        """The file of a job's maps; None if `extensions` do not have it."""
        return self.file(job, PROBABILITIES) if PROBABILITIES in extensions else None

    def legend(self) -> Image.Image:
        """The meaning of the colors of overlays."""
        return legend(("landmarks", *self.names), np.vstack([[[0, 0, 0]], self.colors]))

    def table(
        self, image: str, points: PredictedPoints, positions: np.ndarray, size: tuple[int, int] | None = None
    ) -> PointTable:
        """The predicted points of an image, at `positions` (K, n) as its format counts them.

        `size` is (H, W) of an image; None for a volume.
        """
        entry = ImagePoints(image, image, size)
        columns = zip(self.names, positions.tolist(), points.confidence.tolist(), points.presence.tolist(), strict=True)
        for name, position, confidence, presence in columns:
            entry.add(name, UNKNOWN, position, Certainty(confidence, presence))
        return PointTable(self.task.layout, positions.shape[1], [entry], self.task.space)

    def write(self, job: Job, table: PointTable, picture: np.ndarray | None) -> None:
        """Write the points of a job, and the picture of them, if there is one."""
        if picture is not None:
            with replace_file(job.file(OVERLAY)) as file:
                Image.fromarray(picture).save(file, "png")
        with replace_file(job.file(self.extension)) as file:
            file.write(files.content(table))

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write a table of the points of all images, for formats that hold points of several images."""
        written_jobs = [job for job in jobs if job.file(self.extension).exists()]
        if len(jobs) < MIN_TABLE_IMAGES or not written_jobs or not self.joined_files:
            return
        tables = []
        for job in written_jobs:
            table = files.read_written(job.file(self.extension), self.task.layout)
            entries = [replace(entry, image=job.relative_name) for entry in table.entries]
            tables.append(replace(table, entries=entries, names=tuple(self.names)))
        with replace_file(folder / self.joined_files[0]) as file:
            file.write(files.content(join_tables(tables)))


@dataclass(frozen=True)
class PointImageWriter:
    """Writes the requested files of each image."""

    output_format: PointFormat
    task: Task
    extensions: tuple[str, ...]

    def write(self, image: PredictedImage, strips: Iterable[Tensor], sink: RowSink | None = None) -> None:
        """Write the points of an image from logits (K, n, w) of the network's input; `sink` gets the prediction too."""
        job = image.job
        size = image.size
        job.output.parent.mkdir(parents=True, exist_ok=True)
        prediction = read_prediction(job.name, self.task, strips, self.output_format.maps_file(job, self.extensions))
        points = PredictedPoints.from_prediction(prediction)
        pixel_positions = points.positions(size)
        picture = None
        if OVERLAY in self.extensions and image.pixels is not None:
            pixels = read_image(image.pixels.read(0, size[0]), job.name)
            picture = render_points(pixels, pixel_positions, points.is_found)
        positions = from_pixels(pixel_positions, self.output_format.task.space, size)
        table = self.output_format.table(job.image.name, points, positions, size)
        self.output_format.write(job, table, picture)
        if sink is not None:
            sink.add(prediction)


@dataclass(frozen=True)
class PointVolumeWriter:
    """Writes the requested files of each volume."""

    output_format: PointFormat
    task: Task
    extensions: tuple[str, ...]

    def write(self, job: VolumeJob, size: tuple[int, ...], strips: Iterable[Tensor]) -> np.ndarray:
        """Write the points of a volume from logits (K, n, h, w) of the network's input; returns the prediction."""
        job.output.parent.mkdir(parents=True, exist_ok=True)
        prediction = read_prediction(job.name, self.task, strips, self.output_format.maps_file(job, self.extensions))
        header = read_volume_header(job.volume, job.name)
        points = PredictedPoints.from_prediction(prediction)
        voxel_positions = points.positions(size)
        picture = None
        if OVERLAY in self.extensions:
            voxels, _ = read_volume(job.volume, job.name)
            picture = render_volume_points(voxels, header.spacing, voxel_positions, points.is_found)
        positions = from_voxels(voxel_positions, self.output_format.task.space, header)
        self.output_format.write(job, self.output_format.table(job.image.name, points, positions), picture)
        return prediction


def read_prediction(name: str, task: Task, strips: Iterable[Tensor], maps_file: Path | None) -> np.ndarray:
    """The prediction (K, n + 2) of the image `name`, whose maps (K, *spatial) go to a file, if one is given."""
    *map_strips, last = new_decoder(task).read(strips, name, probabilities=maps_file is not None)
    assert last.rows is not None, "the points are read from whole maps"
    if maps_file is not None:
        maps = [strip.probabilities for strip in map_strips if strip.probabilities is not None]
        with replace_file(maps_file) as file:
            np.save(file, np.concatenate(maps, axis=1))
    return last.rows
