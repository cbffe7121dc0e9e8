"""Writing the prediction of an image: mask, overlay and probabilities, row by row."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from data_utils.image_io.geotiff_writer import GeoTiffWriter
from data_utils.image_io.reader import read_image
from data_utils.image_io.windowed import WindowedImage
from data_utils.image_io.writers import MASK_LEVEL, OVERLAY_LEVEL, NpyWriter, PngWriter
from data_utils.loading.image_input import missing_pixels
from data_utils.sources.records import spread_indices
from data_utils.visualize import to_rgb, value_limits
from inference.decoding import new_decoder
from inference.decoding.decoder import Decoder, Strip, check_finite
from inference.outputs.jobs import OVERLAY, PROBABILITIES, UNCERTAINTY, ImageJob, RasterJob
from inference.outputs.polygons import POLYGONS, PolygonSink, open_polygons
from inference.outputs.prediction_format import MaskFormat, MaskSink
from inference.outputs.rasters import MaskRaster, RasterSink
from inference.outputs.uncertainty import uncertainty_levels
from runtime.files import replace_file
from runtime.parallel import BATCHES_AHEAD, map_ahead
from tasks.task import Task

SAMPLED_ROWS = 64  # the brightness of a large image's overlay is chosen by so many rows
ReadRows = Callable[[int, int], np.ndarray]  # rows [top, bottom) of a picture
ReadMissing = Callable[[int, int], np.ndarray | None]  # pixels of rows without data, (n, W) bool; None if all have data


class PredictedImage(NamedTuple):
    """An image whose prediction is written.

    Args:
        size: (H, W).
        pixels: the image itself, if an overlay shows it.
        read_missing: returns the pixels without data of rows; None if all pixels have data.
    """

    job: ImageJob
    size: tuple[int, int]
    pixels: WindowedImage | None = None
    read_missing: ReadMissing | None = None

    def missing(self, top: int, bottom: int) -> np.ndarray | None:
        """The pixels without data of rows [top, bottom), (n, W) bool; None if all have data."""
        return None if self.read_missing is None else self.read_missing(top, bottom)


class RowSink(Protocol):
    """An object that also receives the rows of a prediction, as they are written."""

    def add(self, mask: np.ndarray, missing: np.ndarray | None = None, certainty: np.ndarray | None = None) -> None:
        """Take the next rows of a prediction.

        Args:
            mask: (n, W), the rows.
            missing: (n, W) bool, true where the image holds no data.
            certainty: (n, W) or (outputs, n, W), the result of `Decoder.certainty` for these rows.
        """


@dataclass(frozen=True)
class ImageWriter:
    """Writes the requested files of each image."""

    output_format: MaskFormat
    task: Task
    extensions: tuple[str, ...]

    def write(self, image: PredictedImage, strips: Iterable[Tensor], sink: RowSink | None = None) -> None:
        """Write logits (outputs, n, W) as they come; `sink` receives the rows of the prediction too."""
        image.job.output.parent.mkdir(parents=True, exist_ok=True)
        with self._output_files(image, sink) as files:
            for _ in map_ahead(files.write, strips, ahead=BATCHES_AHEAD):
                pass
            files.finish()

    @contextmanager
    def _output_files(self, image: PredictedImage, sink: RowSink | None) -> Iterator["StripWriter"]:
        """The open files of an image. All appear under their names when the context ends, the first one last."""
        job = image.job
        size = image.size
        folder = job.output.parent
        read_rows = None
        if image.pixels and OVERLAY in self.extensions:
            read_rows = _bright_rows(image.pixels, job.name)
        with ExitStack() as stack:
            decoder = new_decoder(self.task, folder)
            mask = stack.enter_context(self.output_format.open_mask(job, size, decoder))
            files = {}
            for extension in self.extensions:
                if extension not in (*self.output_format.mask_extensions, *POLYGONS):
                    files[extension] = stack.enter_context(replace_file(job.file(extension)))
            writers = OpenWriters(mask, files)
            if read_rows:
                writers.overlay = stack.enter_context(PngWriter(files[OVERLAY], size, OVERLAY_LEVEL))
            if PROBABILITIES in files and isinstance(job, RasterJob):
                writer = GeoTiffWriter(files[PROBABILITIES], size, job.place, folder, self.task.outputs, np.nan)
                writers.probabilities = stack.enter_context(writer)
            elif PROBABILITIES in files:
                writers.probabilities = NpyWriter(files[PROBABILITIES], (self.task.outputs, *size))
            if UNCERTAINTY in files and isinstance(job, RasterJob):
                raster = stack.enter_context(GeoTiffWriter(files[UNCERTAINTY], size, job.place, folder))
                writers.uncertainty = MaskRaster(raster)
            elif UNCERTAINTY in files:
                writers.uncertainty = stack.enter_context(PngWriter(files[UNCERTAINTY], size, MASK_LEVEL))
            for extension in set(POLYGONS) & set(self.extensions):
                assert isinstance(job, RasterJob)
                polygon_writer = open_polygons(job, extension, self.output_format, decoder, size)
                writers.polygons = stack.enter_context(polygon_writer)
            yield StripWriter(self.output_format, decoder, writers, image, read_rows, sink)


@dataclass
class OpenWriters:
    """The writers of an image's files; None for files that were not requested.

    Args:
        files: the open files by their extensions, without the mask and polygons.
    """

    mask: MaskSink
    files: Mapping[str, BinaryIO]
    overlay: PngWriter | None = None
    probabilities: NpyWriter | GeoTiffWriter | None = None
    uncertainty: MaskSink | None = None
    polygons: PolygonSink | None = None


class StripWriter:
    """Writes the open files of one image a strip at a time.

    Args:
        read_rows: returns rows of the image, for the overlay.
        sink: receives the rows of the prediction too.
    """

    def __init__(
        self,
        output_format: MaskFormat,
        decoder: Decoder,
        writers: OpenWriters,
        image: PredictedImage,
        read_rows: ReadRows | None,
        sink: RowSink | None,
    ) -> None:
        self.output_format = output_format
        self.decoder = decoder
        self.writers = writers
        self.image = image
        self.read_rows = read_rows
        self.sink = sink
        self._top = 0
        self._written = 0  # rows of the probabilities

    def write(self, logits: Tensor) -> None:
        """Append logits (outputs, n, W)."""
        extras = self.decoder.finiteness(logits)
        if self.writers.uncertainty:
            extras["uncertainty"] = uncertainty_levels(self.decoder, logits)
        certainty = self.decoder.certainty(logits) if self.sink else None
        if certainty is not None:
            extras["certainty"] = certainty
        with_probabilities = self.writers.probabilities is not None
        strip = self.decoder.add(logits, probabilities=with_probabilities, extras=extras)
        check_finite(strip, self.image.job.name)
        if self.writers.uncertainty:
            self.writers.uncertainty.write(strip.extras["uncertainty"])
        self._append(strip)

    def finish(self) -> None:
        """Append the rest, after all logits were read."""
        for strip in self.decoder.finish():
            self._append(strip)
        if self.writers.polygons:
            self.writers.polygons.finish()
        self.output_format.write_tables(self.writers.files, self.decoder, None)

    def _append(self, strip: Strip) -> None:
        if strip.probabilities is not None:
            self._write_probabilities(strip.probabilities)
        if strip.rows is None:
            return
        top = self._top
        self._top += len(strip.rows)
        missing = self.image.missing(top, self._top)
        values = self.output_format.mask_values(strip.rows)
        if isinstance(self.writers.mask, RasterSink):
            self.writers.mask.write(values, missing)
        else:
            self.writers.mask.write(values)
        if self.writers.overlay and self.read_rows:
            output_format = self.output_format.for_prediction(self.decoder)
            self.writers.overlay.write(output_format.overlay(self.read_rows(top, self._top), strip.rows))
        if self.writers.polygons:
            self.writers.polygons.add(strip.rows, missing)
        if self.sink:
            self.sink.add(strip.rows, missing, strip.extras.get("certainty"))

    def _write_probabilities(self, probabilities: np.ndarray) -> None:
        """Append probabilities (C, n, W); in a raster they are NaN where the image holds no data."""
        assert self.writers.probabilities is not None
        top = self._written
        self._written += probabilities.shape[1]
        if isinstance(self.writers.probabilities, GeoTiffWriter):
            missing = self.image.missing(top, self._written)
            if missing is not None:
                probabilities = np.where(missing, np.float32(np.nan), probabilities)
        self.writers.probabilities.write(probabilities)


def missing_reader(picture: WindowedImage) -> ReadMissing | None:
    """A function from rows of an image to their pixels without data, (n, W) bool; None if all have data."""
    if not picture.may_lack_data:
        return None
    return lambda top, bottom: missing_pixels(picture.read(top, bottom))


def _bright_rows(picture: WindowedImage, name: str) -> ReadRows:
    """A function that gives rows of an image as uint8 (n, W, 3), all of them equally bright."""

    def read(top: int, bottom: int) -> np.ndarray:
        return read_image(picture.read(top, bottom), name)

    limits = None
    if read(0, 1).dtype != np.uint8:
        sampled = spread_indices(picture.size[0], SAMPLED_ROWS)
        limits = value_limits(np.concatenate([read(row, row + 1) for row in sampled]))
    return lambda top, bottom: to_rgb(read(top, bottom), limits)
