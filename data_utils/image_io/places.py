"""The place of a TIFF in the world: its grid, and its coordinate reference system (CRS), as GDAL reads them."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import tifffile

from data_utils.image_io.gdal import open_directory

# the tags of the GeoTIFF standard, https://docs.ogc.org/is/19-008r4/19-008r4.html
PIXEL_SCALE = 33550
TIE_POINT = 33922
TRANSFORMATION = 34264
KEY_DIRECTORY = 34735
DOUBLE_PARAMETERS = 34736
ASCII_PARAMETERS = 34737
NODATA = 42113  # GDAL's: the value of pixels without data, as text

PLACE_TAGS = (PIXEL_SCALE, TIE_POINT, TRANSFORMATION, KEY_DIRECTORY, DOUBLE_PARAMETERS, ASCII_PARAMETERS)
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # rows and columns themselves
GRID_TOLERANCE = 1e-3  # pixels by which two grids may differ

Transform = tuple[float, float, float, float, float, float]


class Crs(NamedTuple):
    """A coordinate reference system.

    Args:
        epsg: its number in the EPSG registry; None if it is defined in another way.
        definition: its definition, WKT.
    """

    epsg: int | None
    definition: str = ""

    def same(self, other: "Crs") -> bool:
        """Whether both are the same system, by their numbers, or else by their definitions."""
        if self.epsg is not None or other.epsg is not None:
            return self.epsg == other.epsg
        return self.definition == other.definition

    def __str__(self) -> str:
        return "a CRS without EPSG number" if self.epsg is None else f"EPSG:{self.epsg}"


class Place(NamedTuple):
    """The place of a raster's pixels in the world.

    Args:
        transform: (a, b, c, d, e, f): the corner of row r and column q lies at x = aq + br + c, y = dq + er + f.
        crs: None if the file names none.
        tags: the tags of the place, as tifffile writes them to another file.
    """

    transform: Transform
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

    def offset_to(self, other: "Place") -> tuple[float, float]:
        """Where the first corner of another raster lies: (column, row) of this one."""
        return self.to_pixels(other.transform[2], other.transform[5])

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


def read_place(file: Path, page: tifffile.TiffPage) -> Place | None:
    """The place of a page of a file; None if it has none, or one that is no plain grid.

    Raises DataError if it has one, and rasterio is not installed.
    """
    if not has_place_tags(page):
        return None
    with ExitStack() as stack:
        data_set = open_directory(file, page.index, stack)
        a, b, c, d, e, f = map(float, data_set.transform[:6])
        crs = data_set.crs
    transform = (a, b, c, d, e, f)
    has_area = a * e - b * d != 0
    if transform == IDENTITY or not has_area or not all(map(math.isfinite, transform)):
        return None
    named_crs = Crs(crs.to_epsg(), crs.to_wkt()) if crs else None
    return Place(transform, named_crs, tuple(place_tags(page)))


def place_tags(page: tifffile.TiffPage, codes: Sequence[int] = PLACE_TAGS) -> list[tuple[Any, ...]]:
    """Code, type, count and value of tags, and that they are written once, as tifffile writes them."""
    tags: list[tuple[Any, ...]] = []
    for code in codes:
        if code in page.tags:
            tag = page.tags[code]
            if isinstance(tag.value, str):
                tags.append((code, "s", 0, tag.value.encode("ascii", "replace"), True))
            else:
                tags.append((code, tag.dtype, tag.count, tag.value, True))
    return tags


def has_place_tags(page: tifffile.TiffPage) -> bool:
    """Whether a TIFF page has tags with its place."""
    return any(code in page.tags for code in (PIXEL_SCALE, TRANSFORMATION, KEY_DIRECTORY))
