"""The files of an image, a raster or a volume: masks and numbers for each pixel, probabilities, overlays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import write_volume
from data_utils.image_io.windowed import WindowedImage
from data_utils.loading.image_input import missing_pixels
from data_utils.sources.records import spread_indices
from runtime.files import replace_file
from runtime.scratch import release, row_spans, zeros
from tasks.drawing import to_rgb, value_limits
from tasks.geotiff_writer import write_geotiff
from tasks.job import PROBABILITIES, Job
from tasks.prediction import Decoded
from tasks.writers import MASK_LEVEL, OVERLAY_LEVEL, write_png

SAMPLED_ROWS = 64  # the brightness of a large image's overlay is chosen by so many rows


class PredictedImage(NamedTuple):
    """An image or volume whose prediction is written and scored.

    Args:
        size: (H, W) or (D, H, W).
        picture: the image itself, if an overlay shows it; None for a volume.
        missing: (H, W) bool, true where an image holds no data; None if it has data everywhere.
    """

    job: Job
    size: tuple[int, ...]
    decoded: Decoded
    picture: WindowedImage | None = None
    missing: np.ndarray | None = None

    @property
    def raster_missing(self) -> np.ndarray | None:
        """The pixels without data of a raster, whose files say where they are."""
        if self.job.place is None:
            return None
        return self.missing


class Values(NamedTuple):
    """What a file holds for each pixel.

    Args:
        labels: (H, W) or (D, H, W).
        convert: returns the values of some labels; colors have a last axis of 3.
        missing: (H, W) bool, the pixels that hold `nodata`; None if there are none.
        nodata: the value of pixels without data in a raster.
    """

    labels: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray] = np.asarray
    missing: np.ndarray | None = None
    nodata: int | None = None

    def read(self, *window: Any) -> np.ndarray:
        """The values in a window, which is a slice of each axis."""
        values = self.convert(self.labels[window])
        if self.missing is not None and self.nodata is not None:
            missing = self.missing[window]
            if values.ndim > 2:
                missing = missing[:, :, None]
            dtype = np.promote_types(values.dtype, np.min_scalar_type(self.nodata))
            values = np.where(missing, dtype.type(self.nodata), values)
        release(self.labels, self.missing)
        return values


def save_values(job: Job, path: Path, values: Values) -> None:
    """Write a number or color for each pixel: a PNG of an image, a TIFF of a raster, NIfTI of a volume."""
    with replace_file(path) as file:
        if job.volume is not None:
            write_volume(file, values.read(), job.volume)
            return
        height, width = values.labels.shape
        if job.place is None:
            strips = (values.read(rows) for rows in row_spans(height))
            write_png(file, (height, width), strips, MASK_LEVEL)
            return
        is_color = values.read(slice(1), slice(1)).ndim == 3

        def read(channel: int, rows: slice, columns: slice) -> np.ndarray:
            tile = values.read(rows, columns)
            if is_color:
                return tile[:, :, channel]
            return tile

        channels = 3 if is_color else 1
        shape = (channels, height, width)
        write_geotiff(file, shape, read, job.place, values.nodata, is_color=is_color)


def save_probabilities(image: PredictedImage) -> None:
    """Write probabilities (C, *spatial): an array of an image, a TIFF of a raster, NIfTI of a volume.

    In a raster they are NaN where the image holds no data.
    """
    job, probabilities, missing = image.job, image.decoded.probabilities, image.missing
    assert probabilities is not None
    with replace_file(job.file(PROBABILITIES)) as file:
        if job.volume is not None:
            write_volume(file, probabilities, job.volume)
        elif job.place is None:
            save_array(file, probabilities)
        else:

            def read(channel: int, rows: slice, columns: slice) -> np.ndarray:
                tile = probabilities[channel, rows, columns]
                if missing is not None:
                    tile = np.where(missing[rows, columns], np.float32(np.nan), tile)
                return tile

            channels, height, width = probabilities.shape
            write_geotiff(file, (channels, height, width), read, job.place, np.nan)
    release(probabilities)


def save_array(file: Any, array: np.ndarray) -> None:
    """Write an array (C, *spatial) as .npy, some rows at a time."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    for channel in array:
        for rows in row_spans(len(channel)):
            file.write(np.ascontiguousarray(channel[rows]).data)
            release(array)


def save_overlay(path: Path, image: PredictedImage, draw: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """Write the picture of an image; `draw` draws labels (n, W) on rows (n, W, 3) of the image."""
    picture, labels, name = image.picture, image.decoded.labels, image.job.name
    assert picture is not None
    height, width = labels.shape
    limits = None
    if _read(picture, slice(1), name).dtype != np.uint8:
        sampled = spread_indices(height, SAMPLED_ROWS)
        limits = value_limits(np.concatenate([_read(picture, slice(row, row + 1), name) for row in sampled]))

    def draw_rows(rows: slice) -> np.ndarray:
        strip = draw(to_rgb(_read(picture, rows, name), limits), labels[rows])
        release(labels)
        return strip

    with replace_file(path) as file:
        write_png(file, (height, width), map(draw_rows, row_spans(height)), OVERLAY_LEVEL)


def _read(picture: WindowedImage, rows: slice, name: str) -> np.ndarray:
    return read_image(picture.read(rows.start or 0, rows.stop), name)


def read_missing(picture: WindowedImage, folder: Path | None) -> np.ndarray | None:
    """The pixels of an image without data, (H, W) bool; None if all have data."""
    if not picture.may_lack_data:
        return None
    missing = zeros(picture.size, "bool", folder)
    for rows in row_spans(picture.size[0]):
        pixels = missing_pixels(picture.read(rows.start, rows.stop))
        if pixels is not None:
            missing[rows] = pixels
        release(missing)
    return missing
