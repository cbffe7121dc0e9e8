"""Masks that lie on another grid than their images: each pixel of an image takes the value at its center."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import tifffile

from data_utils.image_io.formats import (
    BandSource,
    ImageSource,
    PageFile,
    RenderedMask,
    check_memory,
    page_file,
)
from data_utils.image_io.places import Place, read_place
from data_utils.image_io.reader import read_mask
from data_utils.image_io.tiff import is_tiff
from runtime.documents import check_regular
from runtime.errors import DataError
from unet.config import IGNORE_INDEX

ROWS = 256  # rows that are placed at once
ROUNDING_MARGIN = 1e-6  # pixels: centers that lie between two pixels belong to the second, whatever the rounding


@dataclass(frozen=True)
class Grid:
    """The grid of a raster: its place, and (H, W)."""

    place: Place
    size: tuple[int, int]


@dataclass(frozen=True)
class PlacedMask(RenderedMask):
    """The mask of an image on the image's grid; unknown where the mask's file ends before the image does.

    Args:
        source: the mask as it is read without regard to its place.
        name: the name of the mask in messages.
        mask_grid: the grid of the mask's file.
        image_grid: the grid of the image.
        unknown: the value of pixels beyond the mask's file.
    """

    is_drawn = False

    source: ImageSource
    name: str
    mask_grid: Grid
    image_grid: Grid
    unknown: int = IGNORE_INDEX

    def render(self) -> np.ndarray:
        height, width = self.image_grid.size
        return self.render_part((0, height), (0, width))

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        check_crs(self.image_grid.place, self.mask_grid.place, self.name)
        values = read_mask(self.source, self.name)
        if values.ndim == 3:
            raise DataError(f"{self.name}: is a color mask on another grid than its image; store it as numbers")
        size = (rows[1] - rows[0], columns[1] - columns[0])
        check_memory(size[0] * size[1] * values.itemsize, "the mask")
        placed = np.full(size, self.unknown, np.promote_types(values.dtype, np.min_scalar_type(self.unknown)))
        column_centers = np.arange(*columns) + 0.5
        for top in range(0, size[0], ROWS):
            row_centers = np.arange(rows[0] + top, min(rows[0] + top + ROWS, rows[1]))[:, None] + 0.5
            x, y = self.image_grid.place.to_world(column_centers, row_centers)
            mask_columns, mask_rows = self.mask_grid.place.to_pixels(x, y)
            column_indices = np.floor(mask_columns + ROUNDING_MARGIN)
            row_indices = np.floor(mask_rows + ROUNDING_MARGIN)
            inside = (column_indices >= 0) & (column_indices < values.shape[1])
            inside &= (row_indices >= 0) & (row_indices < values.shape[0])
            band = placed[top : top + len(row_centers)]
            band[inside] = values[row_indices[inside].astype(int), column_indices[inside].astype(int)]
        return placed


def check_crs(image: Place, mask: Place, name: str) -> None:
    """Raises DataError, with `name`, if an image and its mask have different coordinate reference systems."""
    if _may_be_one_crs(image, mask):
        return
    assert image.crs is not None
    target = "gdalwarp -r near"
    if image.crs.epsg:
        target += f" -t_srs EPSG:{image.crs.epsg}"
    raise DataError(f"{name}: mask is in {mask.crs}, its image in {image.crs}; bring it there ({target})")


def _may_be_one_crs(first: Place, second: Place) -> bool:
    """Whether two places have one coordinate reference system, as far as their files say it."""
    return first.crs is None or second.crs is None or first.crs.same(second.crs)


def read_grid(path: str, page: int = 0) -> Grid | None:
    """The grid of a page of a TIFF; None if it has no place, or cannot be read, which decoding reports."""
    if not is_tiff(path):
        return None
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        return None
    return _read_grid(path, page, changed)


@lru_cache(maxsize=4096)
def _read_grid(path: str, page: int, changed: int) -> Grid | None:
    """The grid of a file; `changed`, the time of its last change, tells versions of the file apart in the cache."""
    try:
        check_regular(path)
        with tifffile.TiffFile(path) as tiff:
            tiff_page = tiff.pages[page].aspage()
            # such a page is turned as it is decoded
            if tiff_page.tags.valueof("Orientation", default=1) != 1:
                return None
            place = read_place(Path(path), tiff_page)
            size = (int(tiff_page.imagelength), int(tiff_page.imagewidth))
    except DataError:
        raise
    except Exception:  # tifffile raises many kinds of errors at damaged files
        return None
    return None if place is None else Grid(place, size)


def placed_page(source: ImageSource) -> PageFile | None:
    """The page of a file whose place is that of a source; None for a source that has no place."""
    if isinstance(source, BandSource):
        return PageFile(source.paths[0], source.page)
    file = page_file(source)
    return file if file and file.reads_place else None


def read_source_grid(source: ImageSource) -> Grid | None:
    """The grid of a source."""
    page = placed_page(source)
    if page is None:
        return None
    return read_grid(str(page.path), page.page or 0)


def on_grid(mask: ImageSource, image: Grid, name: str) -> ImageSource:
    """The mask of an image on the image's grid; unchanged if the mask has the same grid, or no place."""
    mask_grid = read_source_grid(mask)
    if mask_grid is None:
        return mask
    is_one_grid = mask_grid.size == image.size and image.place.has_same_grid(mask_grid.place, image.size)
    if is_one_grid and _may_be_one_crs(image.place, mask_grid.place):
        return mask
    return PlacedMask(mask, name, mask_grid, image)
