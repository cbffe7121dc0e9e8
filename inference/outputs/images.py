"""Writing the prediction of an image: mask, overlay and probabilities, row by row."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from torch import Tensor

from data_utils.image_io.geotiff_writer import GeoTiffWriter
from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import Regions
from data_utils.image_io.writers import MASK_LEVEL, OVERLAY_LEVEL, NpyWriter, PngWriter
from data_utils.loading.image_input import missing_pixels
from data_utils.visualize import to_rgb, value_limits
from inference.decoding import new_decoder
from inference.decoding.decoder import Band, Decoder
from inference.outputs.jobs import OVERLAY, PROBABILITIES, UNCERTAINTY, ImageJob, RasterJob
from inference.outputs.polygons import POLYGONS, PolygonSink, open_polygons
from inference.outputs.prediction_format import MaskFormat, MaskSink
from inference.outputs.rasters import MaskRaster, RasterSink
from runtime.files import replaced_file
from runtime.parallel import AHEAD, map_ahead
from tasks.task import Task

SAMPLED_ROWS = 64  # rows of a large image by which the brightness of its overlay is chosen
ReadRows = Callable[[int, int], np.ndarray]  # rows [top, bottom) of a picture
ReadMissing = Callable[[int, int], np.ndarray | None]  # where rows hold no data, (n, W) bool; None for nowhere


class RowSink(Protocol):
    """An object that takes the rows of a prediction too, as they are written."""

    def add(self, mask: np.ndarray, missing: np.ndarray | None = None, certainty: np.ndarray | None = None) -> None:
        """Take the next rows, (n, W), and where the image holds no data in them, (n, W) bool.

        Args:
            certainty: (n, W) or (outputs, n, W), what `Decoder.certainty` gives for these rows.
        """


@dataclass(frozen=True)
class ImageWriter:
    """Writes what is asked for of each image."""

    output_format: MaskFormat
    task: Task
    extensions: tuple[str, ...]

    def write(
        self,
        job: ImageJob,
        size: tuple[int, int],
        bands: Iterable[Tensor],
        image: Regions | None,
        sink: RowSink | None,
        missing: ReadMissing | None = None,
    ) -> None:
        """Write logits (outputs, n, W) as they come.

        Args:
            size: (H, W) of the image.
            image: the image itself, where an overlay shows it.
            sink: takes the rows of the prediction too.
            missing: gives rows (n, W) that say where the image holds no data; None where all of it does.
        """
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with self._output_files(job, size, image, sink, missing) as files:
            for _ in map_ahead(files.write, bands, ahead=AHEAD):
                pass
            files.finish()

    @contextmanager
    def _output_files(
        self,
        job: ImageJob,
        size: tuple[int, int],
        image: Regions | None,
        sink: RowSink | None,
        missing: ReadMissing | None,
    ) -> Iterator["OutputFiles"]:
        """The files of an image, which come into being together, the first one last."""
        shown = None
        if image and OVERLAY in self.extensions:
            shown = _bright_rows(image, job.name)
        with ExitStack() as stack:
            decoder = new_decoder(self.task, job.output.parent)
            mask = stack.enter_context(self.output_format.open_mask(job, size, decoder))
            files = {}
            for extension in self.extensions:
                if extension not in (*self.output_format.mask_extensions, *POLYGONS):
                    files[extension] = stack.enter_context(replaced_file(job.file(extension)))
            overlay = None
            if shown:
                overlay = stack.enter_context(PngWriter(files[OVERLAY], size, OVERLAY_LEVEL))
            probabilities: NpyWriter | GeoTiffWriter | None = None
            if PROBABILITIES in files and isinstance(job, RasterJob):
                writer = GeoTiffWriter(files[PROBABILITIES], size, job.place, self.task.outputs, np.nan)
                probabilities = stack.enter_context(writer)
            elif PROBABILITIES in files:
                probabilities = NpyWriter(files[PROBABILITIES], (self.task.outputs, *size))
            uncertainty: MaskSink | None = None
            if UNCERTAINTY in files and isinstance(job, RasterJob):
                uncertainty = MaskRaster(stack.enter_context(GeoTiffWriter(files[UNCERTAINTY], size, job.place)))
            elif UNCERTAINTY in files:
                uncertainty = stack.enter_context(PngWriter(files[UNCERTAINTY], size, MASK_LEVEL))
            polygons = None
            for extension in set(POLYGONS) & set(self.extensions):
                assert isinstance(job, RasterJob)
                opened = open_polygons(job, extension, self.output_format, decoder, size[1])
                polygons = stack.enter_context(opened)
            yield OutputFiles(
                self.output_format,
                decoder,
                files,
                mask,
                overlay,
                probabilities,
                uncertainty,
                polygons,
                shown,
                sink,
                missing,
            )


class OutputFiles:
    """The open files of one image, written a band at a time."""

    def __init__(
        self,
        output_format: MaskFormat,
        decoder: Decoder,
        files: Mapping[str, BinaryIO],
        mask: MaskSink,
        overlay: PngWriter | None,
        probabilities: NpyWriter | GeoTiffWriter | None,
        uncertainty: MaskSink | None,
        polygons: PolygonSink | None,
        shown: ReadRows | None,
        sink: RowSink | None,
        missing: ReadMissing | None,
    ) -> None:
        self.output_format = output_format
        self.decoder = decoder
        self.files = files
        self.mask = mask
        self.overlay = overlay
        self.probabilities = probabilities
        self.uncertainty = uncertainty
        self.polygons = polygons
        self.shown = shown
        self.sink = sink
        self.missing = missing
        self._top = 0
        self._written = 0  # rows of the probabilities

    def write(self, logits: Tensor) -> None:
        """Append logits (outputs, n, W)."""
        noted = []
        if self.uncertainty:
            noted.append(self.decoder.uncertainty(logits))
        certainty = self.decoder.certainty(logits) if self.sink else None
        if certainty is not None:
            noted.append(certainty)
        band = self.decoder.add(logits, probabilities=self.probabilities is not None, noted=noted)
        arrays = iter(band.noted)
        if self.uncertainty:
            self.uncertainty.write(next(arrays))
        self._append(band, next(arrays, None))

    def finish(self) -> None:
        """Append the rest, when all logits were read."""
        for band in self.decoder.finish():
            self._append(band)
        if self.polygons:
            self.polygons.finish()
        self.output_format.write_tables(self.files, self.decoder, None)

    def _append(self, band: Band, certainty: np.ndarray | None = None) -> None:
        if self.probabilities and band.probabilities is not None:
            self._write_probabilities(band.probabilities)
        if band.rows is None:
            return
        top = self._top
        self._top += len(band.rows)
        missing = self.missing(top, self._top) if self.missing else None
        values = self.output_format.mask_values(band.rows)
        if isinstance(self.mask, RasterSink):
            self.mask.write(values, missing)
        else:
            self.mask.write(values)
        if self.overlay and self.shown:
            output_format = self.output_format.of_prediction(self.decoder)
            self.overlay.write(output_format.overlay(self.shown(top, self._top), band.rows))
        if self.polygons:
            self.polygons.add(band.rows, missing)
        if self.sink:
            self.sink.add(band.rows, missing, certainty)

    def _write_probabilities(self, probabilities: np.ndarray) -> None:
        """Append probabilities (C, n, W); those of a raster are NaN where the image holds no data."""
        assert self.probabilities is not None
        top = self._written
        self._written += probabilities.shape[1]
        if self.missing and isinstance(self.probabilities, GeoTiffWriter):
            missing = self.missing(top, self._written)
            if missing is not None:
                probabilities = np.where(missing, np.float32(np.nan), probabilities)
        self.probabilities.write(probabilities)


def missing_rows(regions: Regions) -> ReadMissing | None:
    """A function that says of rows of an image where it holds no data, (n, W) bool; None where all of it does."""
    if not regions.may_miss:
        return None
    return lambda top, bottom: missing_pixels(regions.read(top, bottom))


def _bright_rows(regions: Regions, name: str) -> ReadRows:
    """A function that gives rows of an image as uint8 (n, W, 3), all of them equally bright."""

    def read(top: int, bottom: int) -> np.ndarray:
        return read_image(regions.read(top, bottom), name)

    limits = None
    if read(0, 1).dtype != np.uint8:
        height = regions.size[0]
        sampled = np.unique(np.linspace(0, height - 1, SAMPLED_ROWS).astype(int))
        limits = value_limits(np.concatenate([read(row, row + 1) for row in sampled.tolist()]))
    return lambda top, bottom: to_rgb(read(top, bottom), limits)
