"""Formats of predictions: how masks are written and scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_utils.class_map import MOST_IN_MASK
from data_utils.image_io.dicom.write import Regions
from data_utils.image_io.formats import Segments
from data_utils.image_io.volumes import read_volume, write_regions
from data_utils.targets.reader import MaskReader
from runtime.files import replace_file
from tasks.drawing import join_in_row, orthogonal_slices, save_picture, spread_voxels, to_rgb, value_limits
from tasks.job import MASK, NIFTI, OVERLAY, PROBABILITIES, STRUCTURES, UNCERTAINTY, Job
from tasks.polygons import POLYGONS, Areas, Properties, save_polygons
from tasks.prediction import UNSURE_LEVEL, PredictedImage, Prediction
from tasks.prediction_files import save_labels, save_overlay, save_probabilities
from tasks.scoring.masks import open_truth, score_masks
from tasks.section import Section
from tasks.task import Scores, Task
from unet.config import MaskValue

USUAL_NODATA = 255  # the value of pixels without data, unless a class has it


class PredictionFormat(ABC):
    """How predictions are written and scored.

    Attributes:
        section: the names and colors of what is predicted, and its pictures.
        reader: that of the section; it reads true masks or points.
        outputs: a word for the files of all images.
        writes_rasters: whether masks of georeferenced images are georeferenced TIFFs.
        extensions: the extensions of an image's files for `Job.file`, that of the mask or points first.
        class_folders: the folder of each class's masks, if each class has its own; all extensions are then of masks.
        joined_files: the names of the files that join the results of all images.
        object_classes: the classes of numbered objects, which --coco collects; empty if there are none.
        segments: what the segments of a DICOM label are to `reader`; None if masks are not written as segments.
    """

    outputs: ClassVar[str]
    writes_rasters: ClassVar[bool] = False
    extensions: Sequence[str] = (MASK,)
    class_folders: Sequence[str] = ()
    joined_files: Sequence[str] = ()
    object_classes: Sequence[str] = ()
    segments: Segments | None = None

    def __init__(self, section: Section) -> None:
        self.section = section
        self.reader = section.reader

    def for_file(self, file: Path) -> PredictionFormat:
        """The format of the only image, in this file. Raises SettingsError if such a file cannot hold it."""
        return self

    def file(self, job: Job, extension: str) -> Path:
        """The path of a file of a job."""
        return job.file(extension)

    def mask_file(self, job: Job) -> Path:
        """The path of the mask or points of a job, or of its first mask."""
        return self.file(job, self.extensions[0])

    def files(self, job: Job, extensions: Sequence[str]) -> list[Path]:
        """The paths of all files that may be written or removed for a job, given their extensions."""
        return [self.file(job, extension) for extension in extensions]

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write the file that joins the results of all images, after each image has its own file."""
        return

    @abstractmethod
    def write(self, image: PredictedImage, extensions: Sequence[str]) -> None:
        """Write the files of these extensions.

        The mask or points come last: they mean that all other files are complete.
        """

    @abstractmethod
    def score(self, task: Task, image: PredictedImage, *, boundary: bool) -> Scores:
        """The scores of a prediction against the truth of its job. Raises DataError if the truth cannot be used."""


class MaskFormat(PredictionFormat):
    """The mask of a prediction, and its picture.

    Attributes:
        written_values: the values that masks hold, if they are values of classes.
    """

    outputs = "masks"
    writes_rasters = True
    reader: MaskReader
    written_values: Sequence[MaskValue] = ()

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        """A prediction (H, W) or (D, H, W) -> mask values; colors have a last axis of 3."""
        return labels

    def areas(self, prediction: Prediction) -> Iterator[Areas]:
        """The areas of a prediction (H, W) that polygons outline; several where classes overlap."""
        properties: list[Properties] = [{"class": name} for name in self.section.names[1:]]
        yield Areas(prediction.labels, properties)

    def write(self, image: PredictedImage, extensions: Sequence[str]) -> None:
        job = image.job
        prediction = image.prediction
        for extension in extensions:
            if extension == OVERLAY:
                self._write_overlay(image)
            elif extension == PROBABILITIES:
                save_probabilities(image)
            elif extension == UNCERTAINTY and prediction.uncertainty is not None:
                most = UNSURE_LEVEL if job.place is None else UNSURE_LEVEL - 1  # a raster needs a level for no data
                levels = partial(np.minimum, np.uint8(most))
                save_labels(image, job.file(extension), prediction.uncertainty, levels, UNSURE_LEVEL)
            elif extension in POLYGONS:
                save_polygons(image, extension, self.areas(prediction))
            elif extension == STRUCTURES:
                self._write_regions(image, job.file(STRUCTURES), as_contours=True)
        if any(extension.endswith(NIFTI) for extension in extensions):
            self.write_mask(image._replace(job=replace(job, writes_segments=False, named=None)))
        if job.writes_segments:
            self._write_regions(image, self.mask_file(job))
        else:
            self.write_mask(image)

    def regions(self, labels: np.ndarray) -> Regions:
        """The segments of a prediction (D, H, W), for formats that have `segments`."""
        raise NotImplementedError

    def _write_regions(self, image: PredictedImage, path: Path, *, as_contours: bool = False) -> None:
        assert image.job.volume is not None
        with replace_file(path) as file:
            write_regions(file, self.regions(image.prediction.labels), image.job.volume, as_contours=as_contours)

    def _write_overlay(self, image: PredictedImage) -> None:
        job, labels = image.job, image.prediction.labels
        if job.volume is None:
            save_overlay(image, self.section.draw)
            return
        voxels, header = read_volume(job.volume, job.name)
        shown = spread_voxels(labels)
        limits = value_limits(np.concatenate([voxels[z] for z, _, _ in shown]))
        pictures = []
        for voxel in shown:
            slices = orthogonal_slices(voxels, voxel, header.spacing, fill=np.min(limits[0]))
            shown_labels = orthogonal_slices(labels, voxel, header.spacing)
            pictures.append(self.section.draw(to_rgb(slices, limits), shown_labels))
        with replace_file(job.file(OVERLAY)) as file:
            save_picture(file, join_in_row(pictures))

    def write_mask(self, image: PredictedImage) -> None:
        """Write the mask."""
        nodata = free_value(self.written_values)
        save_labels(image, self.mask_file(image.job), image.prediction.labels, self.mask_values, nodata)

    def score(self, task: Task, image: PredictedImage, *, boundary: bool) -> Scores:
        with open_truth(image, self.reader) as (true_size, parts):
            return score_masks(task, image, true_size, parts, boundary=boundary)


def free_value(values: Sequence[MaskValue]) -> int:
    """A mask value that no class has: 255, else the largest one below it, else the largest of 16 bits.

    For colors it is 0, black.
    """
    numbers = {value for value in values if isinstance(value, int)}
    if not numbers:
        return 0
    for value in (*range(USUAL_NODATA, -1, -1), *range(MOST_IN_MASK, USUAL_NODATA, -1)):
        if value not in numbers:
            return value
    raise AssertionError("there are at most 255 classes")
