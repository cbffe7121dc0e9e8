"""Masks of georeferenced images: TIFFs of the same grid."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from data_utils.image_io.geotiff_writer import GeoTiffWriter
from inference.outputs.jobs import RasterJob
from runtime.files import replace_file
from unet.config import MaskValue

USUAL_NODATA = 255  # the value of pixels without data, unless a class has it
LARGEST = 65535


class RasterSink(ABC):
    """The open file, or files, of a mask that say where an image holds no data."""

    @abstractmethod
    def write(self, rows: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Append the next rows of mask values, and their pixels without data, (n, W) bool."""


class MaskRaster(RasterSink):
    """The open TIFF of a mask; pixels without data hold `nodata`."""

    def __init__(self, writer: GeoTiffWriter) -> None:
        self.writer = writer

    def write(self, rows: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Append the next rows of mask values, (n, W), or (n, W, 3) of colors."""
        if missing is not None:
            rows = self._remove_missing(rows, missing)
        bands = rows[None] if rows.ndim == 2 else np.moveaxis(rows, 2, 0)
        self.writer.write(bands)

    def _remove_missing(self, rows: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Rows of mask values, with `nodata` in the pixels of `missing`, (n, W) bool."""
        nodata = self.writer.nodata
        assert nodata is not None
        value_type = np.promote_types(rows.dtype, np.min_scalar_type(int(nodata)))
        mask = missing if rows.ndim == 2 else missing[:, :, None]
        return np.where(mask, value_type.type(nodata), rows)


@contextmanager
def open_mask_raster(
    job: RasterJob, path: Path, size: tuple[int, int], values: Sequence[MaskValue]
) -> Iterator[MaskRaster]:
    """The TIFF of a mask of these values, on the grid of its image; it appears under its name when the context ends."""
    numbers = {value for value in values if isinstance(value, int)}
    channels = 1 if numbers else 3
    nodata = free_value(numbers) if numbers else 0  # black, of colors
    with (
        replace_file(path) as file,
        GeoTiffWriter(file, size, job.place, path.parent, channels, nodata, is_color=not numbers) as writer,
    ):
        yield MaskRaster(writer)


def free_value(values: set[int]) -> int:
    """A mask value that no class has: 255, else the largest one below it, else the largest of 16 bits."""
    for value in (*range(USUAL_NODATA, -1, -1), *range(LARGEST, USUAL_NODATA, -1)):
        if value not in values:
            return value
    raise AssertionError("there are at most 255 classes")
