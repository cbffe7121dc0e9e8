"""Numbered objects: a label image, and a table with a row for each object."""

import codecs
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_utils.image_io.volumes import read_volume_header
from runtime.console import counted, say
from runtime.documents import TableWriter
from runtime.files import replace_file
from tasks.drawing import SHADES, outline_objects, palette, shade_objects
from tasks.geotiff_writer import write_geotiff
from tasks.job import MASK, Job, MaskFile
from tasks.object_labels import label_numbers
from tasks.objects.loss import Objects
from tasks.objects.object_tables import (
    IMAGE_COLUMNS,
    VOLUME_COLUMNS,
    WrittenObjects,
    image_cells,
    table_rows,
    volume_cells,
)
from tasks.objects.reader import ObjectReader
from tasks.polygons import Properties
from tasks.prediction import Decoded
from tasks.prediction_files import PredictedImage, Values, save_values
from tasks.prediction_format import LegendEntry, MaskFormat
from unet.config import UNetConfig

TABLE = ".objects.csv"
JOINED = "objects.csv"  # the table of all images
LARGE_MASK = ".tif"  # the extension of a mask with more objects than a PNG can number
MOST_IN_PNG = 2**16 - 1


class ObjectFormat(MaskFormat):
    """The number of each pixel's object.

    Args:
        shades: the color of each number; None if colors are computed from the whole label image.
        in_pieces: whether the objects of true masks are their connected pieces.
    """

    extensions = (TABLE,)
    joined_files = (JOINED,)

    def __init__(self, names: Sequence[str], shades: np.ndarray | None = None, *, in_pieces: bool = False) -> None:
        self.reader: ObjectReader = ObjectReader(in_pieces=in_pieces)
        self.names = tuple(names)
        self.object_classes = self.names[1:]
        self.colors = palette(SHADES + 1)
        self._shades = shades

    @classmethod
    def from_config(cls, config: UNetConfig) -> "ObjectFormat":
        task = Objects.from_config(config)
        return cls(task.classes.names, in_pieces=task.in_pieces)

    @property
    def channel_names(self) -> Sequence[str]:
        return (*self.names, "depth")

    @property
    def has_one_class(self) -> bool:
        return len(self.names) == 2  # with the background

    def with_objects(self, decoded: Decoded) -> "ObjectFormat":
        shades = np.zeros(len(decoded.objects) + 1, np.uint8)
        shades[1:] = [detected.shade for detected in decoded.objects]
        return ObjectFormat(self.names, shades, in_pieces=self.reader.in_pieces)

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        return label_numbers(labels)

    def shades(self, labels: np.ndarray) -> np.ndarray:
        if self._shades is None:
            return shade_objects(label_numbers(labels))
        return self._shades[label_numbers(labels)]

    def overlay(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return outline_objects(image, self.shades(labels))

    def legend(self) -> None:
        return None

    def legend_entries(self, labels: np.ndarray) -> list[LegendEntry]:
        numbers = np.unique(label_numbers(labels))
        count = int((numbers > 0).sum())
        return [LegendEntry(None, counted(count, "object"))]

    def mask_file(self, job: Job) -> Path:
        large = job.file(LARGE_MASK)
        if job.volume is None and large.exists() and not job.file(MASK).exists():
            return large
        return job.file(MASK)

    def files(self, job: Job, extensions: Sequence[str]) -> list[Path]:
        files = [job.file(extension) for extension in extensions]
        large = job.file(LARGE_MASK)
        if job.volume is None and large not in files:
            files.append(large)
        return files

    def written_mask(self, job: Job) -> MaskFile:
        if self.has_one_class or job.volume is not None:
            return super().written_mask(job)
        return WrittenObjects(self.mask_file(job), job.file(TABLE), tuple(self.object_classes))

    def areas(self, labels: np.ndarray) -> Sequence[np.ndarray]:
        return [label_numbers(labels)]

    def area_properties(self, layer: int, number: int, decoded: Decoded) -> Properties:
        return {"number": number, "class": self.names[decoded.objects[number - 1].class_index]}

    def write_mask(self, image: PredictedImage) -> None:
        job, count = image.job, len(image.decoded.objects)
        most = MOST_IN_PNG
        if job.place is not None:
            most -= 1  # a raster needs a number for no data
        dtype = "uint16" if count <= most else "uint32"

        def numbers(labels: np.ndarray) -> np.ndarray:
            return label_numbers(labels).astype(dtype)

        values = Values(image.decoded.labels, numbers, image.raster_missing, np.iinfo(dtype).max)
        if job.place is not None or job.volume is not None:
            save_values(job, job.file(MASK), values)
            return
        other_file = job.file(LARGE_MASK)  # an earlier call may have written it
        if count <= MOST_IN_PNG:
            save_values(job, job.file(MASK), values)
        else:
            other_file = job.file(MASK)
            height, width = image.decoded.labels.shape
            with replace_file(job.file(LARGE_MASK)) as file:
                write_geotiff(file, (1, height, width), lambda _, *window: values.read(*window), None)
        other_file.unlink(missing_ok=True)

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write one table of the objects of all images, an image at a time."""
        columns: list[str] = []
        if any(job.volume is None for job in jobs):
            columns += IMAGE_COLUMNS
        if any(job.volume is not None for job in jobs):
            columns += VOLUME_COLUMNS
        written_jobs = []
        for job in jobs:
            if self.mask_file(job).exists() and job.file(TABLE).exists():
                written_jobs.append(job)
        objects = 0
        with replace_file(folder / JOINED) as file:
            text = codecs.getwriter("utf-8")(file, "surrogateescape")
            table = TableWriter(text)
            titles = list(dict.fromkeys(columns))
            table.writerow(["image", *titles])
            for job in written_jobs:
                job_columns = VOLUME_COLUMNS if job.volume is not None else IMAGE_COLUMNS
                for row in table_rows(job.file(TABLE), job_columns):
                    table.writerow([job.relative_name, *(row.get(title, "") for title in titles)])
                    objects += 1
        say(f"{folder / JOINED} lists {counted(objects, 'object')} in {counted(len(written_jobs), 'image')}")

    def write_table(self, image: PredictedImage) -> None:
        volume = image.job.volume
        columns: Sequence[str] = IMAGE_COLUMNS
        header = None
        if volume is not None:
            columns = VOLUME_COLUMNS
            header = read_volume_header(volume, image.job.name)
        text = io.StringIO()
        table = TableWriter(text)
        table.writerow(columns)
        for detected in image.decoded.objects:
            name = self.names[detected.class_index]
            cells = image_cells(detected) if header is None else volume_cells(detected, header)
            table.writerow([detected.number, name, detected.size, *cells, f"{detected.score:.4f}"])
        with replace_file(image.job.file(TABLE)) as file:
            file.write(text.getvalue().encode())
