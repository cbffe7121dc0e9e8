"""Masks of images with a place: TIFFs of the same grid."""

import numpy as np

from data_utils.image_io.geotiff_writer import GeoTiffWriter

USUAL = 255  # what pixels without data hold, if it is no class
LARGEST = 65535


class MaskRaster:
    """The open TIFF of a mask; pixels without data hold `nodata`."""

    def __init__(self, writer: GeoTiffWriter) -> None:
        self.writer = writer

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows of mask values, (n, W), or (n, W, 3) of colors."""
        bands = rows[None] if rows.ndim == 2 else np.moveaxis(rows, 2, 0)
        self.writer.write(bands)

    def without(self, rows: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Rows of mask values that say where there is no data, (n, W) bool."""
        nodata = self.writer.nodata
        assert nodata is not None
        value_type = np.promote_types(rows.dtype, np.min_scalar_type(int(nodata)))
        mask = missing if rows.ndim == 2 else missing[:, :, None]
        return np.where(mask, value_type.type(nodata), rows).astype(value_type)


def free_value(values: set[int]) -> int:
    """A mask value that no class has: 255, else the largest one below it, else the largest of 16 bits."""
    for value in (*range(USUAL, -1, -1), *range(LARGEST, USUAL, -1)):
        if value not in values:
            return value
    raise AssertionError("there are at most 255 classes")
