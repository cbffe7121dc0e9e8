"""The files of an image, a raster or a volume: masks and numbers for each pixel, probabilities, overlays.

PNGs and TIFFs are written some rows at a time, however large they are.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tifffile

from data_utils.image_io.places import Place
from data_utils.image_io.rasters import NODATA
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import write_volume
from data_utils.image_io.windowed import WindowedImage
from data_utils.loading.image_input import missing_pixels
from data_utils.sources.records import spread_indices
from runtime.files import replace_file
from runtime.scratch import release, row_spans, zeros
from tasks.drawing import PICTURE_LEVEL, outline_width, to_rgb, value_limits
from tasks.job import MASK, OVERLAY, PROBABILITIES, Job
from tasks.prediction import PredictedImage

SAMPLED_ROWS = 64  # the brightness of a large image's overlay is chosen by so many rows
MASK_LEVEL = 6  # of compression
TILE = 256  # pixels of a side of a tile of a TIFF
CLASSIC_BYTES = 2**32 - 2**24  # larger TIFFs have offsets of 8 bytes


def save_labels(
    image: PredictedImage, path: Path, labels: np.ndarray, convert: Callable[[np.ndarray], np.ndarray], nodata: int
) -> None:
    """Write the labels of a prediction, or its uncertainty, as `save_values` does; a large array lies in a file before.

    Args:
        convert: returns the values of some labels; colors have a last axis of 3.
        nodata: the value of pixels without data in a raster.
    """
    missing = None if image.job.place is None else image.missing
    sample = convert(labels[:1])
    dtype = sample.dtype
    if missing is not None:
        dtype = np.promote_types(dtype, np.min_scalar_type(nodata))
    values = zeros((*labels.shape, *sample.shape[labels.ndim :]), dtype, image.job.output.parent)
    for rows in row_spans(len(labels)):
        values[rows] = convert(labels[rows])
        if missing is not None:
            values[rows][missing[rows]] = nodata
        release(values, labels, missing)
    save_values(image.job, path, values, nodata)


def save_values(job: Job, path: Path, values: np.ndarray, nodata: int) -> None:
    """Write a number or color for each pixel: a PNG or a TIFF, by the suffix of its path; NIfTI of a volume.

    Args:
        nodata: the value of pixels without data in a raster.
    """
    with replace_file(path) as file:
        if job.volume is not None:
            write_volume(file, values, job.volume)
        elif path.suffix.lower() == MASK:
            write_png(file, (values.shape[0], values.shape[1]), _strips(values), MASK_LEVEL)
        else:
            write_geotiff(file, values, job.place, nodata)
    release(values)


def _strips(values: np.ndarray) -> Iterator[np.ndarray]:
    for rows in row_spans(len(values)):
        yield values[rows]
        release(values)


def save_probabilities(image: PredictedImage) -> None:
    """Write probabilities (C, *spatial): an array of an image, a TIFF of a raster, NIfTI of a volume.

    In a raster they become NaN where the image holds no data.
    """
    job, probabilities = image.job, image.prediction.probabilities
    assert probabilities is not None
    with replace_file(job.file(PROBABILITIES)) as file:
        if job.volume is not None:
            write_volume(file, probabilities, job.volume)
        elif job.place is None:
            save_array(file, probabilities)
        else:
            if image.missing is not None:
                for rows in row_spans(len(image.missing)):
                    probabilities[:, rows][:, image.missing[rows]] = np.nan
                    release(probabilities)
            write_geotiff(file, probabilities, job.place, np.nan, has_bands=True)
    release(probabilities)


def save_array(file: Any, array: np.ndarray) -> None:
    """Write an array (C, *spatial) as .npy, some rows at a time."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    for channel in array:
        for rows in row_spans(len(channel)):
            file.write(np.ascontiguousarray(channel[rows]).data)
            release(array)


def save_overlay(image: PredictedImage, draw: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """Write the picture of an image; `draw` draws rows (n, W) of its prediction on rows (n, W, 3) of the image."""
    picture, labels, name = image.picture, image.prediction.labels, image.job.name
    assert picture is not None
    height, width = labels.shape
    limits = None
    if _read(picture, slice(0, 1), name).dtype != np.uint8:
        sampled = spread_indices(height, SAMPLED_ROWS)
        limits = value_limits(np.ma.concatenate([_read(picture, slice(row, row + 1), name) for row in sampled]))

    def draw_rows(rows: slice) -> np.ndarray:
        # an outline is where the rows above or below are of another area
        above = min(rows.start, outline_width(labels))
        below = min(height - rows.stop, outline_width(labels))
        strip = np.pad(to_rgb(_read(picture, rows, name), limits), ((above, below), (0, 0), (0, 0)))
        drawn = draw(strip, labels[rows.start - above : rows.stop + below])
        release(labels)
        return drawn[above : len(drawn) - below]

    with replace_file(image.job.file(OVERLAY)) as file:
        write_png(file, (height, width), map(draw_rows, row_spans(height)), PICTURE_LEVEL)


def _read(picture: WindowedImage, rows: slice, name: str) -> np.ndarray:
    return read_image(picture, name, box=picture.rows(rows.start, rows.stop))


def read_missing(picture: WindowedImage, folder: Path | None) -> np.ndarray | None:
    """The pixels of an image without data, (H, W) bool; None if all have data."""
    if not picture.may_lack_data:
        return None
    missing = zeros(picture.size, "bool", folder)
    for rows in row_spans(picture.size[0]):
        pixels = missing_pixels(picture.pixels(picture.rows(rows.start, rows.stop)))
        if pixels is not None:
            missing[rows] = pixels
        release(missing)
    return missing


def write_png(file: BinaryIO, size: tuple[int, int], strips: Iterable[np.ndarray], level: int) -> None:
    """Write a PNG of `size` (H, W) from strips of its rows: (n, W) uint8 or uint16 is grey, (n, W, 3) uint8 is color.

    The format: https://www.w3.org/TR/png-3/.
    """
    height, width = size
    compressor = zlib.compressobj(level)
    above: np.ndarray | None = None  # the row above a strip
    for rows in strips:
        if above is None:
            color_type = 2 if rows.ndim == 3 else 0
            file.write(b"\x89PNG\r\n\x1a\n")
            _write_chunk(file, b"IHDR", struct.pack(">IIBBBBB", width, height, 8 * rows.itemsize, color_type, 0, 0, 0))
            above = np.zeros((1, rows[0].nbytes), np.uint8)
        # PNG is big-endian; each row but the first is stored as its difference from the one above (filter 2)
        stored_bytes = rows.astype(rows.dtype.newbyteorder(">")).reshape(len(rows), -1).view(np.uint8)
        filtered = np.full((len(rows), 1 + stored_bytes.shape[1]), 2, np.uint8)
        np.subtract(stored_bytes, np.vstack([above, stored_bytes[:-1]]), out=filtered[:, 1:])
        above = stored_bytes[-1:].copy()
        data = compressor.compress(filtered.data)
        if data:
            _write_chunk(file, b"IDAT", data)
    _write_chunk(file, b"IDAT", compressor.flush())
    _write_chunk(file, b"IEND", b"")


def _write_chunk(file: BinaryIO, kind: bytes, data: bytes) -> None:
    checksum = zlib.crc32(kind + data)
    file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))


def write_geotiff(
    file: BinaryIO, values: np.ndarray, place: Place | None, nodata: float | None = None, *, has_bands: bool = False
) -> None:
    """Write a TIFF in compressed tiles, with a place if there is one.

    Args:
        values: (H, W) numbers, (H, W, 3) colors, or with `has_bands` (C, H, W).
        nodata: the value of pixels without data; None if there are none.
    """
    tags = list(place.tags) if place else []
    if nodata is not None:
        tags.append((NODATA, "s", 0, f"{nodata:.17g}", True))
    with tifffile.TiffWriter(file, bigtiff=values.nbytes > CLASSIC_BYTES, byteorder="<") as tiff:
        tiff.write(
            values[0] if has_bands and len(values) == 1 else values,
            photometric="rgb" if values.ndim == 3 and not has_bands else "minisblack",
            planarconfig="separate" if has_bands and len(values) > 1 else None,
            tile=(TILE, TILE),
            compression="zlib",
            compressionargs={"level": MASK_LEVEL},
            extratags=tags,
            metadata=None,
            software=False,
        )


def write_pages(file: BinaryIO, pages: Sequence[np.ndarray]) -> None:
    """Write a TIFF of grey pages (H, W)."""
    with tifffile.TiffWriter(file) as writer:
        for page in pages:  # one by one: three together could be taken for a color
            writer.write(page, photometric="minisblack", compression="zlib", contiguous=False)
