"""Numbered objects: a label image, and a table with a row for each object."""

import codecs
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tifffile

from data_utils.image_io.geotiff_writer import GeoTiffWriter
from data_utils.image_io.places import Place
from data_utils.image_io.volumes import VolumeHeader
from data_utils.image_io.writers import MASK_LEVEL, PngWriter
from data_utils.targets.objects import ObjectReader
from data_utils.targets.reader import MaskReader
from data_utils.visualize_objects import COLORS, outline_objects, shade_objects
from inference.decoding.decoder import Decoder
from inference.outputs.jobs import MASK, ImageJob, Job, MaskFile, RasterJob, VolumeJob
from inference.outputs.object_masks import AnnotatedObjects, WrittenObjects
from inference.outputs.object_tables import IMAGE_COLUMNS, VOLUME_COLUMNS, image_cells, table_rows, volume_cells
from inference.outputs.prediction_format import LegendEntry, MaskFormat, MaskSink, Properties
from inference.outputs.rasters import MaskRaster, RasterSink
from runtime.console import counted, say
from runtime.documents import TableWriter
from runtime.files import replace_file, replace_path
from tasks.matching import label_numbers
from tasks.objects import Objects
from unet.config import UNetConfig

TABLE = ".objects.csv"
JOINED = "objects.csv"  # the table of all images
LARGE_MASK = ".tif"  # the extension of a mask with more objects than a PNG can number
MOST_IN_PNG = 2**16 - 1
STRIP = 64  # rows of a TIFF that are compressed together


class ObjectFormat(MaskFormat):
    """The number of each pixel's object.

    Args:
        shades: the color of each number; None if colors are computed from the whole label image.
        in_pieces: whether the objects of true masks are their connected pieces.
    """

    extensions = (TABLE,)
    joined_files = (JOINED,)
    has_objects = True

    def __init__(self, names: Sequence[str], shades: np.ndarray | None = None, *, in_pieces: bool = False) -> None:
        self.reader: ObjectReader = ObjectReader(in_pieces=in_pieces)
        self.names = tuple(names)
        self.colors = COLORS
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

    def for_prediction(self, decoder: Decoder) -> "ObjectFormat":
        shades = np.zeros(len(decoder.objects) + 1, np.uint8)
        shades[1:] = [detected.shade for detected in decoder.objects]
        return ObjectFormat(self.names, shades, in_pieces=self.reader.in_pieces)

    def mask_values(self, rows: np.ndarray) -> np.ndarray:
        return label_numbers(rows)

    def shades(self, rows: np.ndarray) -> np.ndarray:
        if self._shades is None:
            return shade_objects(label_numbers(rows))
        return self._shades[label_numbers(rows)]

    def overlay(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return outline_objects(image, self.shades(rows))

    def legend(self) -> None:
        return None

    def legend_entries(self, rows: np.ndarray) -> list[LegendEntry]:
        numbers = np.unique(label_numbers(rows))
        count = int((numbers > 0).sum())
        text = counted(count, "object")
        return [LegendEntry(None, text)]

    def mask_file(self, job: Job) -> Path:
        large = job.file(LARGE_MASK)
        if isinstance(job, ImageJob) and large.exists() and not job.file(MASK).exists():
            return large
        return job.file(MASK)

    def files(self, job: Job, extensions: Sequence[str]) -> list[Path]:
        files = [job.file(extension) for extension in extensions]
        large = job.file(LARGE_MASK)
        if isinstance(job, ImageJob) and large not in files:
            files.append(large)
        return files

    def written_mask(self, job: Job) -> MaskFile:
        if self.has_one_class:
            return super().written_mask(job)
        return WrittenObjects(self.mask_file(job), job.file(TABLE), tuple(self.names[1:]))

    def reader_for(self, mask: MaskFile) -> MaskReader:
        if not isinstance(mask, AnnotatedObjects | WrittenObjects):
            return self.reader
        return ObjectReader(classes=tuple(enumerate(self.names[1:], 1)), reads_labels=True)

    def areas(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return [label_numbers(rows)]

    def area_properties(self, layer: int, number: int, decoder: Decoder) -> Properties:
        return {"number": number, "class": self.names[decoder.objects[number - 1].class_index]}

    @contextmanager
    def open_mask(self, job: ImageJob, size: tuple[int, int], decoder: Decoder) -> Iterator[MaskSink]:
        if isinstance(job, RasterJob):
            path = job.file(MASK)
            with replace_file(path) as file, LabelRaster(file, job.place, path.parent, size, decoder) as raster:
                yield raster
            return
        with ExitStack() as stack:
            label_image = LabelImage(stack, job, size, decoder)
            yield label_image
        if label_image.is_large:
            job.file(MASK).unlink(missing_ok=True)  # an earlier call may have written this file
        else:
            job.file(LARGE_MASK).unlink(missing_ok=True)

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write one table of the objects of all images, an image at a time."""
        columns: list[str] = []
        if any(isinstance(job, ImageJob) for job in jobs):
            columns += IMAGE_COLUMNS
        if any(isinstance(job, VolumeJob) for job in jobs):
            columns += VOLUME_COLUMNS
        written_jobs = [job for job in jobs if self.mask_file(job).exists() and job.file(TABLE).exists()]
        objects = 0
        with replace_file(folder / JOINED) as file:
            text = codecs.getwriter("utf-8")(file, "surrogateescape")
            table = TableWriter(text)
            titles = list(dict.fromkeys(columns))
            table.writerow(["image", *titles])
            for job in written_jobs:
                job_columns = VOLUME_COLUMNS if isinstance(job, VolumeJob) else IMAGE_COLUMNS
                for row in table_rows(job.file(TABLE), job_columns):
                    table.writerow([job.relative_name, *(row.get(title, "") for title in titles)])
                    objects += 1
        say(f"{folder / JOINED} lists {counted(objects, 'object')} in {counted(len(written_jobs), 'image')}")

    def write_tables(self, files: Mapping[str, BinaryIO], decoder: Decoder, header: VolumeHeader | None) -> None:
        text = io.StringIO()
        table = TableWriter(text)
        table.writerow(IMAGE_COLUMNS if header is None else VOLUME_COLUMNS)
        for detected in decoder.objects:
            name = self.names[detected.class_index]
            cells = image_cells(detected) if header is None else volume_cells(detected, header)
            table.writerow([detected.number, name, detected.size, *cells, f"{detected.score:.4f}"])
        files[TABLE].write(text.getvalue().encode())


class LabelRaster(RasterSink):
    """The georeferenced TIFF of a label image; its numbers have 16 bits, or 32 if there are many objects."""

    def __init__(self, file: BinaryIO, place: Place, folder: Path, size: tuple[int, int], decoder: Decoder) -> None:
        self.decoder = decoder
        self._writer = GeoTiffWriter(file, size, place, folder)

    def write(self, rows: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Append rows (n, W) of numbers."""
        dtype = np.dtype(np.uint16 if len(self.decoder.objects) < MOST_IN_PNG else np.uint32)
        self._writer.nodata = 2 ** (8 * dtype.itemsize) - 1  # no object has this number
        MaskRaster(self._writer).write(rows.astype(dtype), missing)

    def __enter__(self) -> "LabelRaster":
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)


class LabelImage:
    """The file of a label image. It is opened with the first rows, when the number of objects is known."""

    def __init__(self, stack: ExitStack, job: ImageJob, size: tuple[int, int], decoder: Decoder) -> None:
        self.stack = stack
        self.job = job
        self.size = size
        self.decoder = decoder
        self.is_large = False
        self._writer: PngWriter | LabelTiff | None = None

    def write(self, rows: np.ndarray) -> None:
        """Append rows (n, W) of numbers."""
        if self._writer is None:
            self.is_large = len(self.decoder.objects) > MOST_IN_PNG
            self._writer = self._open()
        self._writer.write(rows.astype(np.uint32 if self.is_large else np.uint16))

    def _open(self) -> "PngWriter | LabelTiff":
        if self.is_large:
            path = self.stack.enter_context(replace_path(self.job.file(LARGE_MASK)))
            return self.stack.enter_context(LabelTiff(path, self.size))
        file = self.stack.enter_context(replace_file(self.job.file(MASK)))
        return self.stack.enter_context(PngWriter(file, self.size, MASK_LEVEL))


class LabelTiff:
    """A compressed TIFF of `size` (H, W) uint32, written when all rows have come."""

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        self.path = path
        self.size = size
        self._strips: list[bytes] = []  # labels compress well
        self._rows = np.zeros((0, size[1]), np.uint32)

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows."""
        self._rows = np.concatenate([self._rows, rows])
        while len(self._rows) >= STRIP:
            self._compress(STRIP)

    def _compress(self, rows: int) -> None:
        self._strips.append(zlib.compress(np.ascontiguousarray(self._rows[:rows], "<u4").data, MASK_LEVEL))
        self._rows = self._rows[rows:]

    def __enter__(self) -> "LabelTiff":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            return
        if len(self._rows):
            self._compress(len(self._rows))
        with tifffile.TiffWriter(self.path, byteorder="<") as writer:
            writer.write(
                iter(self._strips),
                shape=self.size,
                dtype="<u4",
                rowsperstrip=STRIP,
                compression="zlib",
                photometric="minisblack",
                metadata=None,
            )
