"""The places of TIFFs in the world, as GDAL reads them, and masks that lie on another grid than their images."""

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile

from data_utils.image_io.formats import BandSource, ImageSource, RenderedMask, SceneWindow, check_memory, page_file
from data_utils.image_io.gdal import open_directory
from data_utils.image_io.reader import read_mask
from data_utils.image_io.tiff import PLACE_TAGS, has_place_tags, is_tiff, is_upright
from data_utils.mask_values import BEYOND_MASK
from runtime.documents import check_regular
from runtime.errors import DataError
from unet.config import IGNORE_INDEX

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # rows and columns themselves
GRID_TOLERANCE = 1e-3  # pixels by which two grids may differ
ROWS = 256  # rows that are placed at once
ROUNDING_MARGIN = 1e-6  # pixels: centers that lie between two pixels belong to the second, whatever the rounding

Crs = int | str  # a coordinate reference system: its number in the EPSG registry, or its definition (WKT)


class Place(NamedTuple):
    """The place of a raster's pixels in the world.

    Args:
        transform: (a, b, c, d, e, f): the corner of row r and column q lies at x = aq + br + c, y = dq + er + f.
        crs: None if the file names none.
        tags: the tags of the place, as tifffile writes them to another file.
    """

    transform: tuple[float, float, float, float, float, float]
    crs: Crs | None = None
    tags: tuple[tuple[Any, ...], ...] = ()

    def to_world(self, column: Any, row: Any) -> tuple[Any, Any]:
        """(x, y) of a position in pixels, from the corner of the first one."""
        a, b, c, d, e, f = self.transform
        return a * column + b * row + c, d * column + e * row + f

    def to_pixels(self, x: Any, y: Any) -> tuple[Any, Any]:
        """(column, row) of a position in the world."""
        a, b, c, d, e, f = self.transform
        determinant = a * e - b * d
        x = x - c
        y = y - f
        return (e * x - b * y) / determinant, (a * y - d * x) / determinant

    def has_same_pixels(self, other: "Place", size: Sequence[int]) -> bool:
        """Whether the pixels of both have one size and direction: their offset is the same all over `size` (H, W)."""
        height, width = size
        shifts = []
        for column, row in ((0, 0), (width, 0), (0, height)):
            pixel = self.to_pixels(*other.to_world(column, row))
            shifts.append((pixel[0] - column, pixel[1] - row))
        return all(math.dist(shifts[0], shift) < GRID_TOLERANCE * max(height, width) for shift in shifts)

    def has_same_grid(self, other: "Place", size: Sequence[int]) -> bool:
        """Whether both are one grid over `size` (H, W), to a thousandth of a pixel."""
        height, width = size
        corners = ((0, 0), (width, 0), (0, height), (width, height))
        return all(math.dist(self.to_pixels(*other.to_world(*corner)), corner) <= GRID_TOLERANCE for corner in corners)

    def may_have_crs_of(self, other: "Place") -> bool:
        """Whether both have one coordinate reference system, as far as their files say it."""
        return self.crs is None or other.crs is None or self.crs == other.crs


@dataclass(frozen=True)
class Grid:
    """The grid of a raster: its place, and (H, W)."""

    place: Place
    size: tuple[int, int]


@dataclass(frozen=True)
class PlacedMask(RenderedMask):
    """The mask of an image on the image's grid; unknown where the mask's file ends before the image does.

    Each pixel of the image takes the value at its center.

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
    unknown: int = BEYOND_MASK

    def render(self) -> np.ndarray:
        height, width = self.image_grid.size
        return self.render_part((0, height), (0, width))

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        _check_crs(self.image_grid.place, self.mask_grid.place, self.name)
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


def with_ignored(source: ImageSource) -> ImageSource:
    """A mask with `IGNORE_INDEX` beyond the file of a mask on another grid; any other mask is unchanged."""
    if isinstance(source, SceneWindow) and isinstance(source.source, PlacedMask):
        return replace(source, source=with_ignored(source.source))
    return replace(source, unknown=IGNORE_INDEX) if isinstance(source, PlacedMask) else source


def crs_name(crs: Crs | None) -> str:
    """A CRS in messages."""
    return f"EPSG:{crs}" if isinstance(crs, int) else "a CRS without EPSG number"


def _check_crs(image: Place, mask: Place, name: str) -> None:
    """Raises DataError, with `name`, if an image and its mask have different coordinate reference systems."""
    if image.may_have_crs_of(mask):
        return
    target = "gdalwarp -r near"
    if isinstance(image.crs, int):
        target += f" -t_srs {crs_name(image.crs)}"
    systems = f"mask is in {crs_name(mask.crs)}, its image in {crs_name(image.crs)}"
    raise DataError(f"{name}: {systems}; bring it there ({target})")


def read_grid(path: str, page: int = 0) -> Grid | None:
    """The grid of a page of a TIFF; None if it has no place, no plain grid, or cannot be read, which decoding reports.

    Raises DataError if it has one, and rasterio is not installed.
    """
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
        with tifffile.TiffFile(path) as tiff, ExitStack() as stack:
            tiff_page = tiff.pages[page].aspage()
            # a page that is not upright is turned as it is decoded
            if not has_place_tags(tiff_page) or not is_upright(tiff_page):
                return None
            data_set = open_directory(Path(path), tiff_page.index, stack)
            a, b, c, d, e, f = map(float, data_set.transform[:6])
            crs = data_set.crs
            place = Place((a, b, c, d, e, f), crs.to_epsg() or crs.to_wkt() if crs else None, _place_tags(tiff_page))
            size = (int(tiff_page.imagelength), int(tiff_page.imagewidth))
    except DataError:
        raise
    except Exception:  # tifffile raises many kinds of errors at damaged files
        return None
    has_area = a * e - b * d != 0
    if place.transform == IDENTITY or not has_area or not all(map(math.isfinite, place.transform)):
        return None
    return Grid(place, size)


def _place_tags(page: tifffile.TiffPage) -> tuple[tuple[Any, ...], ...]:
    """Code, type, count and value of the tags of a place, and that they are written once, as tifffile writes them."""
    tags: list[tuple[Any, ...]] = []
    for code in PLACE_TAGS:
        if code in page.tags:
            tag = page.tags[code]
            if isinstance(tag.value, str):
                tags.append((code, "s", 0, tag.value.encode("ascii", "replace"), True))
            else:
                tags.append((code, tag.dtype, tag.count, tag.value, True))
    return tuple(tags)


def read_source_grid(source: ImageSource) -> Grid | None:
    """The grid of a source; None for a source that has no place."""
    if isinstance(source, BandSource):
        return read_grid(source.paths[0], source.page)
    file = page_file(source)
    if file is None or not file.reads_place:
        return None
    return read_grid(str(file.path), file.page or 0)


def on_grid(mask: ImageSource, image: Grid, name: str) -> ImageSource:
    """The mask of an image on the image's grid; unchanged if the mask has the same grid, or no place."""
    mask_grid = read_source_grid(mask)
    if mask_grid is None:
        return mask
    is_one_grid = mask_grid.size == image.size and image.place.has_same_grid(mask_grid.place, image.size)
    if is_one_grid and image.place.may_have_crs_of(mask_grid.place):
        return mask
    return PlacedMask(mask, name, mask_grid, image)
