"""Files of polygons in the world: GeoJSON and GeoPackage."""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.gdal import is_gdal_error, load_rasterio
from data_utils.sources.annotations.documents import reading
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line

GEOJSON = ".geojson"
GEOPACKAGE = ".gpkg"
SUFFIXES = (GEOJSON, GEOPACKAGE)
LONGITUDE_LATITUDE = 4326  # EPSG: the CRS of a GeoJSON file that names none
ONLY_CLASS = "polygon"  # the class of polygons without --label-column
EPSG = "EPSG:"
OUT_OF_REACH = "CPLE_AppDefinedError"  # the error of GDAL for a corner that a CRS does not reach
GEOJSON_AS_IT_IS = {  # GDAL changes no coordinate to the CRS that it is told
    "driver": "GeoJSON",
    "geometry_type": "Unknown",
    "crs": f"{EPSG}{LONGITUDE_LATITUDE}",
    "layer_options": {"SIGNIFICANT_FIGURES": "17"},
}
ANY_KIND = ("Unknown", "GeometryCollection")  # types of layers that may hold polygons


class Shape(NamedTuple):
    """A polygon, or several that belong together: rings (n, 2) as (x, y), and the class from a column."""

    rings: tuple[np.ndarray, ...]
    label: str


class Shapes(NamedTuple):
    """The shapes of a file, and their CRS, an EPSG number or a text (WKT); None if it is the CRS of the images."""

    shapes: tuple[Shape, ...]
    crs: int | str | None


class PlacedShapes(NamedTuple):
    """Shapes in the CRS of an image.

    Args:
        boxes: (N, 4), (left, top, right, bottom) of each; infinite for one that this CRS does not reach.
    """

    shapes: tuple[Shape, ...]
    boxes: np.ndarray


def read_shapes(file: str, column: str | None) -> Shapes:
    """The polygons of a file, labeled by a column. Raises DataError for a file without polygons."""
    return _read_shapes(file, column, _change_time(file))


def shapes_in(file: str, column: str | None, target: int | None) -> PlacedShapes:
    """The polygons of a file in the CRS of the EPSG number `target`; unchanged if `target` is None.

    Raises DataError if the polygons cannot be converted.
    """
    return _shapes_in(file, column, _change_time(file), target)


def _change_time(file: str) -> int:
    """When a file was changed; it tells versions of the file apart in the cache."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from error


@lru_cache(maxsize=16)
def _shapes_in(file: str, column: str | None, changed: int, target: int | None) -> PlacedShapes:
    shapes, crs = _read_shapes(file, column, changed)
    if crs is not None and target is not None and crs != target:
        shapes = _transform(shapes, crs, target, file)
    boxes = np.full((len(shapes), 4), np.inf)
    for box, shape in zip(boxes, shapes, strict=True):
        corners = np.concatenate(shape.rings)
        if np.isfinite(corners).all():
            box[:2] = corners.min(axis=0)
            box[2:] = corners.max(axis=0)
    return PlacedShapes(shapes, boxes)


@lru_cache(maxsize=16)
def _read_shapes(file: str, column: str | None, changed: int) -> Shapes:
    if Path(file).suffix.lower() == GEOPACKAGE:
        return _read_geopackage(file, column)
    return _read_geojson(file, column)


def _read_geojson(file: str, column: str | None) -> Shapes:
    with reading(file, "GeoJSON"):
        content = read_json(file, most_bytes=MOST_BYTES_OF_DATA)
    features = content.get("features")
    if not isinstance(features, list):
        raise DataError(f'{file}: has no list "features", so it is no GeoJSON of polygons')
    return Shapes(_shapes_of(features, column, file), _epsg(content.get("crs"), file))


def _shapes_of(features: Sequence[Any], column: str | None, file: str) -> tuple[Shape, ...]:
    """The shapes of the features of a file. Raises DataError for one that is no polygon, or has no class."""
    shapes = []
    for number, feature in enumerate(features, 1):
        location = f"{file}: feature {number}"
        if not isinstance(feature, dict):
            raise DataError(f"{location} is no object")
        rings = tuple(_rings(feature.get("geometry"), location))
        if rings:
            shapes.append(Shape(rings, _label(feature.get("properties"), column, location)))
    return tuple(shapes)


def _label(properties: Any, column: str | None, location: str) -> str:
    """The class of a feature, from a column. Raises DataError, with `location`, if it is missing or not a class."""
    if column is None:
        return ONLY_CLASS
    if not isinstance(properties, dict) or properties.get(column) is None:
        names = "none"
        if isinstance(properties, dict) and properties:
            names = ", ".join(properties)
        raise DataError(f"{location} has no value in the column {column}, its columns are {names}; give --label-column")
    value = properties[column]
    if not isinstance(value, str | int | float):
        value_text = json.dumps(value, default=str)[:40]
        raise DataError(f"{location} has {value_text} in the column {column}, expected a name or a number")
    return str(value)


def _rings(geometry: Any, location: str) -> Iterator[np.ndarray]:
    """The rings of a polygon or of several; nothing for an empty geometry."""
    if geometry is None:
        return
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise DataError(f"{location} is of type {kind!r}, expected Polygon or MultiPolygon")
    polygons = geometry.get("coordinates")
    if kind == "Polygon":
        polygons = [polygons]
    if not isinstance(polygons, list) or not all(isinstance(polygon, list) for polygon in polygons):
        raise DataError(f"{location} has coordinates that are no lists of rings")
    for polygon in polygons:
        for ring in polygon:
            yield _ring_corners(ring, location)


def _ring_corners(ring: Any, location: str) -> np.ndarray:
    """The corners (n, 2) of a ring; heights are dropped. Raises DataError if they are not corners of a ring."""
    try:
        corners = np.array([position[:2] for position in ring], np.float64)
    except (TypeError, ValueError, KeyError):
        raise DataError(f"{location} has a ring that is no list of positions") from None
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
        raise DataError(f"{location} has a ring of fewer than 3 positions, or with numbers that are not finite")
    return corners


def _epsg(crs: Any, file: str) -> int:
    """The EPSG number of the `crs` of a file."""
    if crs is None:
        return LONGITUDE_LATITUDE
    name = str(crs)[:80]
    if isinstance(crs, dict) and isinstance(crs.get("properties"), dict):
        name = str(crs["properties"].get("name"))
    if name.upper().endswith("CRS84"):
        return LONGITUDE_LATITUDE
    code = name.rpartition(":")[2]
    if "EPSG" not in name.upper() or not code.isdecimal() or len(code) > 6:
        raise DataError(f"{file}: its crs is {name[:80]!r}, expected an EPSG number; bring it to EPSG:4326")
    return int(code)


def _transform(shapes: Sequence[Shape], source: int | str, target: int, file: str) -> tuple[Shape, ...]:
    """The shapes in another CRS; corners are infinite in a shape that it does not reach.

    Raises DataError if there is no way from one CRS to the other.
    """
    rasterio = load_rasterio(f"{file}, which is not in the CRS of the image,")
    from rasterio.warp import transform

    if not shapes:
        return ()
    rings: list[np.ndarray] = []
    for shape in shapes:
        rings.extend(shape.rings)
    corners = np.concatenate(rings)
    try:
        systems = [rasterio.CRS.from_user_input(crs) for crs in (source, target)]
        moved_corners = np.stack(transform(*systems, *corners.T), axis=1)
    except Exception as error:
        if not is_gdal_error(error):
            raise
        if type(error).__name__ != OUT_OF_REACH:
            name = "a CRS without EPSG number"
            if isinstance(source, int):
                name = f"{EPSG}{source}"
            raise DataError(f"{file}: no way from {name} to EPSG:{target} ({one_line(error)})") from error
        if len(shapes) > 1:
            half = len(shapes) // 2
            return _transform(shapes[:half], source, target, file) + _transform(shapes[half:], source, target, file)
        moved_corners = np.full_like(corners, np.inf)
    moved = iter(np.split(moved_corners, np.cumsum([len(ring) for ring in rings])[:-1]))
    return tuple(Shape(tuple(islice(moved, len(shape.rings))), shape.label) for shape in shapes)


def _read_geopackage(file: str, column: str | None) -> Shapes:
    """The polygons of a GeoPackage, which GDAL brings to GeoJSON."""
    try:
        import pyogrio
        from pyogrio import raw
    except ImportError as error:
        raise DataError(f"{file} needs pyogrio to be read: pip install pyogrio") from error
    logging.getLogger("pyogrio").addHandler(logging.NullHandler())  # the error has GDAL's message
    content = BytesIO()
    try:
        layer = _only_layer(pyogrio.list_layers(file), file)
        names = pyogrio.read_info(file, layer=layer)["fields"].tolist()
        columns = [column] if column in names else []
        meta, _, geometries, values = raw.read(file, layer=layer, columns=columns, force_2d=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers that are not finite are an error below
            raw.write(content, geometries, values, columns, **GEOJSON_AS_IT_IS)
    except DataError:
        raise
    except Exception as error:  # damaged files raise errors of many kinds
        raise DataError(f"{file} cannot be read as a GeoPackage ({one_line(error)})") from error
    features = json.loads(content.getvalue())["features"]
    for number, (feature, geometry) in enumerate(zip(features, geometries, strict=True), 1):
        if feature["geometry"] is None and geometry is not None:
            raise DataError(f"{file}: feature {number} has numbers that are not finite")
        feature["properties"] = dict.fromkeys(names) | feature["properties"]
    crs = meta["crs"]
    if isinstance(crs, str) and crs.startswith(EPSG) and crs[len(EPSG) :].isdecimal():
        crs = int(crs[len(EPSG) :])
    return Shapes(_shapes_of(features, column, file), crs)


def _only_layer(layers: np.ndarray, file: str) -> str:
    """The layer that holds polygons, given (name, type) of each. Raises DataError if there is none, or several."""
    names = []
    for name, kind in layers.tolist():
        if kind is not None and ("Polygon" in kind or kind in ANY_KIND):
            names.append(str(name))
    if len(names) != 1:
        raise DataError(f"{file}: holds {len(names)} layers of polygons, expected one ({', '.join(names)})")
    return names[0]
