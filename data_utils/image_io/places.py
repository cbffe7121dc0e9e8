"""The place of a TIFF in the world: its grid and the tags that name its coordinate reference system (CRS).

The tags are defined by the GeoTIFF standard, https://docs.ogc.org/is/19-008r4/19-008r4.html.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tifffile

PIXEL_SCALE = 33550
TIE_POINT = 33922
TRANSFORMATION = 34264
KEY_DIRECTORY = 34735
DOUBLE_PARAMETERS = 34736
ASCII_PARAMETERS = 34737
NODATA = 42113  # GDAL's: the value of pixels without data, as text

PLACE_TAGS = (PIXEL_SCALE, TIE_POINT, TRANSFORMATION, KEY_DIRECTORY, DOUBLE_PARAMETERS, ASCII_PARAMETERS)
MODEL_TYPE_KEY = 1024
RASTER_TYPE_KEY = 1025
GEOGRAPHIC_KEY = 2048
PROJECTED_KEY = 3072
GEOGRAPHIC_MODEL = 2
PIXEL_IS_POINT = 2
USER_DEFINED = 32767
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # rows and columns themselves
GRID_TOLERANCE = 1e-3  # pixels by which two grids may differ

Transform = tuple[float, float, float, float, float, float]


class Crs(NamedTuple):
    """A coordinate reference system.

    Args:
        epsg: its number in the EPSG registry; None if it is defined in another way.
        keys: the GeoTIFF tags that define it, or the text of another file.
    """

    epsg: int | None
    keys: tuple

    def same(self, other: "Crs") -> bool:
        """Whether both are the same system, as far as can be told without a library."""
        if self.epsg is not None or other.epsg is not None:
            return self.epsg == other.epsg
        return self.keys == other.keys

    def __str__(self) -> str:
        return "a CRS without EPSG number" if self.epsg is None else f"EPSG:{self.epsg}"


class Place(NamedTuple):
    """The place of a raster's pixels in the world.

    Args:
        transform: (a, b, c, d, e, f): the corner of row r and column q lies at x = aq + br + c, y = dq + er + f.
        crs: None if the file names none.
        tags: code, type and values of each tag, for writing the place to another file.
    """

    transform: Transform
    crs: Crs | None
    tags: tuple[tuple[int, Any], ...]

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


def read_place(page: tifffile.TiffPage) -> Place | None:
    """The place of a TIFF page; None if it has none, or one that is no plain grid."""
    values = {code: _tag_value(page, code) for code in PLACE_TAGS}
    keys = geo_keys(values[KEY_DIRECTORY])
    transform = _transform(values, keys)
    if transform is None or (transform == IDENTITY and not keys):
        return None
    tags = tuple((code, value) for code, value in values.items() if value is not None)
    return Place(transform, read_crs(values, keys), tags)


def has_place_tags(page: tifffile.TiffPage) -> bool:
    """Whether a TIFF page has tags with its place."""
    return any(code in page.tags for code in (PIXEL_SCALE, TRANSFORMATION, KEY_DIRECTORY))


def _tag_value(page: tifffile.TiffPage, code: int) -> Any:
    """The numbers of a tag as a tuple, or its text; None if it is not there, or is not of its kind."""
    value = page.tags.valueof(code)
    if code == ASCII_PARAMETERS:
        return value if isinstance(value, str) else None
    if isinstance(value, int | float):
        value = (value,)
    if not isinstance(value, tuple) or not all(isinstance(number, int | float) for number in value):
        return None
    if code == KEY_DIRECTORY and not all(isinstance(number, int) and 0 <= number < 2**16 for number in value):
        return None
    return value


def geo_keys(directory: Any) -> dict[int, int]:
    """The keys of a GeoKeyDirectory whose values stand in it."""
    keys: dict[int, int] = {}
    if not isinstance(directory, tuple):
        return keys
    for start in range(4, len(directory) - 3, 4):
        key, location, _, value = directory[start : start + 4]
        if location == 0:
            keys[key] = value
    return keys


def _transform(values: dict[int, Any], keys: dict[int, int]) -> Transform | None:
    """The grid that the values of the tags define; None if they define none, or one whose pixels have no area."""
    matrix = values[TRANSFORMATION]
    scale = values[PIXEL_SCALE]
    tie = values[TIE_POINT]
    if _are_numbers(matrix, 16):
        a, b, _, c, d, e, _, f = matrix[:8]
    elif _are_numbers(scale, 2) and _are_numbers(tie, 6):
        column, row, _, x, y, _ = tie[:6]
        a = scale[0]
        e = -scale[1]
        b = d = 0.0
        c = x - column * a
        f = y - row * e
    else:
        return None
    if keys.get(RASTER_TYPE_KEY) == PIXEL_IS_POINT:  # the tags then say where the centers of pixels are
        c -= (a + b) / 2
        f -= (d + e) / 2
    determinant = a * e - b * d
    if not math.isfinite(determinant) or determinant == 0:
        return None
    return float(a), float(b), float(c), float(d), float(e), float(f)


def _are_numbers(values: tuple | None, count: int) -> bool:
    """Whether these are at least so many numbers, and finite ones."""
    return values is not None and len(values) >= count and all(map(math.isfinite, values))


def read_crs(values: dict[int, Any], keys: dict[int, int]) -> Crs | None:
    """The CRS that the geo keys name: by a number of EPSG, or by all the tags that define it."""
    if not keys:
        return None
    code = keys.get(PROJECTED_KEY)
    if code is None and keys.get(MODEL_TYPE_KEY) == GEOGRAPHIC_MODEL:
        code = keys.get(GEOGRAPHIC_KEY)
    if code is not None and 0 < code < USER_DEFINED:
        return Crs(code, ())
    return Crs(None, (values[KEY_DIRECTORY], values[DOUBLE_PARAMETERS], values[ASCII_PARAMETERS]))
