"""Polygons in the world (GeoJSON, GeoPackage), rendered on the grids of images with a place.

One file for all images beside the folder of images, or a file for each image in masks/, labels/ or annotations/.
"""

import json
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import RenderedMask, check_memory, format_remedy
from data_utils.image_io.gdal import is_gdal_error, load_rasterio
from data_utils.image_io.places import Crs, Grid, crs_name, read_grid
from data_utils.mask_values import number_type
from data_utils.sources.annotations.documents import reading
from data_utils.sources.annotations.layout import folder_in, number_classes
from data_utils.sources.folder import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    DataFolder,
    files_by_stem,
    files_in,
    holds_files,
    names_in,
    natural_order,
    split_folders,
)
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.records import FileRow, Metadata, Records, Sources, SplitOpeners, split_openers
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line

MAX_PIXEL_DISTANCE = 2**31  # pixels from an image, beyond which nothing is rendered
GEOPACKAGE = ".gpkg"
SUFFIXES = (".geojson", GEOPACKAGE)
LONGITUDE_LATITUDE = "EPSG:4326"  # the CRS of a GeoJSON file that names none
ONLY_CLASS = "polygon"  # the class of polygons without --label-column
OUT_OF_REACH = "CPLE_AppDefinedError"  # the error of GDAL for a corner that a CRS does not reach
GEOJSON_AS_IT_IS = {  # GDAL changes no coordinate to the CRS that it is told
    "driver": "GeoJSON",
    "geometry_type": "Unknown",
    "crs": LONGITUDE_LATITUDE,
    "layer_options": {"SIGNIFICANT_FIGURES": "17"},
}
ANY_KIND = ("Unknown", "GeometryCollection")  # types of layers that may hold polygons


class Shape(NamedTuple):
    """A polygon, or several that belong together: closed rings (n, 2) as (x, y), and the class from a column."""

    rings: tuple[np.ndarray, ...]
    label: str


@dataclass(frozen=True)
class PolygonMask(RenderedMask):
    """The polygons of a file on the grid of an image; later ones lie over earlier ones.

    Args:
        file: the file of the polygons.
        image: the path of the image.
        column: the column with the class; None if all have one class.
        values: the mask value of each class.
        is_shared: whether the file is that of all images.
    """

    file: str
    image: str
    column: str | None
    values: dict[str, int]
    is_shared: bool

    def render(self) -> np.ndarray:
        height, width = _grid(self.image).size
        return self.render_part((0, height), (0, width))

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        size = (rows[1] - rows[0], columns[1] - columns[0])
        first = np.array([columns[0], rows[0]], float)
        shapes = list(self._shapes_near(_grid(self.image), first, size))
        return self._draw(shapes, size, number_type(self.values.values()))

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        grid = _grid(self.image)
        shapes = list(self._shapes_near(grid, np.zeros(2), grid.size))
        numbered = [(geometry, number) for number, (geometry, _) in enumerate(shapes, 1)]
        return self._draw(numbered, grid.size, np.int32), np.array([0, *(value for _, value in shapes)])

    def _draw(self, shapes: list[tuple[dict[str, Any], int]], size: tuple[int, int], dtype: Any) -> np.ndarray:
        """The number of the last shape that holds a pixel's center, (H, W) of `dtype`; 0 for none."""
        check_memory(size[0] * size[1] * np.dtype(dtype).itemsize, "the mask")
        mask = np.zeros(size, dtype)
        if shapes:
            load_rasterio(self.file)
            from rasterio.features import rasterize

            rasterize(shapes, out=mask)
        return mask

    def objects(self) -> Counter[int]:
        """All of the file or, if it is that of all images, those whose center lies in this image."""
        grid = _grid(self.image)
        shapes, boxes = read_shapes(self.file, self.column, grid.place.crs)
        chosen = list(range(len(shapes)))
        if self.is_shared:
            with np.errstate(invalid="ignore"):  # shapes outside the CRS have infinite boxes
                centers = np.stack(grid.place.to_pixels(*boxes.reshape(-1, 2, 2).mean(axis=1).T), axis=1)
            chosen = np.flatnonzero(((centers >= 0) & (centers < grid.size[::-1])).all(axis=1)).tolist()
        return Counter(self.values[shapes[index].label] for index in chosen)

    def _shapes_near(
        self, grid: Grid, first: np.ndarray, size: tuple[int, int]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """The geometry and the value of each shape in a part of the image, of `size` (H, W).

        Corners are in pixels from `first`, the (column, row) where the part begins. Of rings that lie in each other,
        every second one is a hole.
        """
        shapes, boxes = read_shapes(self.file, self.column, grid.place.crs)
        x = boxes[:, [0, 2, 0, 2]]
        y = boxes[:, [1, 1, 3, 3]]
        with np.errstate(invalid="ignore"):  # shapes outside the CRS have infinite boxes
            corners = np.stack(grid.place.to_pixels(x, y), axis=2) - first
        is_near = (np.abs(corners) < MAX_PIXEL_DISTANCE).all(axis=(1, 2))
        is_near &= (corners.max(axis=1) > 0).all(axis=1) & (corners.min(axis=1) < size[::-1]).all(axis=1)
        for index in np.flatnonzero(is_near).tolist():
            rings = []
            for ring in shapes[index].rings:
                rings.append((np.stack(grid.place.to_pixels(*ring.T), axis=1) - first).tolist())
            yield {"type": "Polygon", "coordinates": rings}, self.values[shapes[index].label]


def _grid(image: str) -> Grid:
    grid = read_grid(image)
    if grid is None:
        raise DataError(f"{image}: has no place in the world, so polygons cannot be drawn on it; give a GeoTIFF")
    return grid


def find_polygons(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its images with polygons; empty if there are none, or masks.

    Raises DataError for --label-column without polygons.
    """
    splits: dict[str, tuple[Path, Path]] = {}
    column = folder.config.label_column
    folders = {} if folder.has_masks else split_folders(folder.root, folder.named_splits)
    for name, split_folder in folders.items():
        images = folder_in(split_folder, IMAGE_FOLDERS)
        holders = filter(None, (split_folder, folder.root, folder_in(split_folder, MASK_FOLDERS)))
        holder = next((each for each in holders if holds_files(each, SUFFIXES)), None)
        if images is None or holder is None:
            splits = {}
            break
        splits[name] = images, holder
    if column and not splits:
        remedy = format_remedy(names_in(folder.root)) or "; leave it out"
        raise DataError(
            f"--label-column {column} is a column of polygons, but {folder.root} holds no .geojson or .gpkg beside its"
            f" images{remedy}"
        )
    return split_openers(splits, _open, folder.config)


def _open(images: Path, folder: Path, config: DataConfig) -> Records:
    """The images of a split, with the only file of polygons in a folder above them, or with one for each image."""
    image_files = files_by_stem(images, "images")
    is_shared = folder in images.parents
    if is_shared:
        first, *others = files_in(folder, SUFFIXES)
        if others:
            raise DataError(f"{folder}: holds {', '.join((first, *others))}; keep one, or one for each image in masks/")
        polygons = dict.fromkeys(image_files, first)
    else:
        polygons = files_by_stem(folder, "polygons", SUFFIXES)
    stems = [stem for stem in image_files if stem in polygons]
    labels: set[str] = set()
    files = sorted({polygons[stem] for stem in stems})
    for file in files:
        shapes, _ = read_shapes(str(folder / file), config.label_column)
        labels.update(shape.label for shape in shapes)
    if files and not labels:
        raise DataError(f"{folder}: its files of polygons hold no polygon")
    classes, values = number_classes(natural_order(labels), str(folder))
    kind = "GeoPackage" if any(file.lower().endswith(GEOPACKAGE) for file in files) else "GeoJSON"
    metadata = Metadata(classes, annotations=kind)
    sources = partial(polygon_sources, column=config.label_column, values=values, is_shared=is_shared)
    return pair((images, folder), Cases(image_files, polygons), metadata, config.allow_unpaired, sources)


def polygon_sources(row: FileRow, column: str | None, values: dict[str, int], is_shared: bool) -> Sources:
    """An image, and the mask of its polygons."""
    return row.images[0], PolygonMask(row.targets[0], row.images[0], column, values, is_shared)


def read_shapes(file: str, column: str | None, target: Crs | None = None) -> tuple[Sequence[Shape], np.ndarray]:
    """The polygons of a file, labeled by a column, in the CRS `target`, or else in their own.

    Beside them are their boxes, (N, 4): left, top, right and bottom; infinite for a polygon that this CRS does not
    reach. Raises DataError for a file without polygons, and for polygons that cannot be brought there.
    """
    with reading(file, "polygons"):
        changed = os.stat(file).st_mtime_ns
    return _read_shapes(file, column, target, changed)


@lru_cache(maxsize=16)
def _read_shapes(file: str, column: str | None, target: Crs | None, changed: int) -> tuple[Sequence[Shape], np.ndarray]:
    """What `read_shapes` returns; `changed`, the time of the last change, tells versions of a file apart."""
    shapes, crs = _stored_shapes(file, column, changed)
    if shapes and target is not None and crs is not None:
        shapes = _transform(shapes, crs, target, file)
    boxes = np.empty((len(shapes), 4))
    for box, shape in zip(boxes, shapes, strict=True):
        corners = np.concatenate(shape.rings)
        box[:2] = corners.min(axis=0)
        box[2:] = corners.max(axis=0)
    return shapes, boxes


@lru_cache(maxsize=16)
def _stored_shapes(file: str, column: str | None, changed: int) -> tuple[list[Shape], str | None]:
    """The polygons as a file has them, and their CRS, a name as EPSG:4326 or WKT; None if it is that of the images."""
    if file.lower().endswith(GEOPACKAGE):
        features, crs = _read_geopackage(file, column)
    else:
        with reading(file, "GeoJSON"):
            content = read_json(file, most_bytes=MOST_BYTES_OF_DATA)
        features, crs = content.get("features"), LONGITUDE_LATITUDE
        named_crs = content.get("crs")
        if isinstance(named_crs, dict) and isinstance(named_crs.get("properties"), dict):
            crs = str(named_crs["properties"].get("name"))
        elif named_crs is not None:
            crs = str(named_crs)
    if not isinstance(features, list):
        raise DataError(f'{file}: has no list "features", so it is no GeoJSON of polygons')
    shapes = []
    for number, feature in enumerate(features, 1):
        location = f"{file}: feature {number}"
        rings = _rings(feature, location)
        if rings:
            shapes.append(Shape(rings, _label(feature.get("properties"), column, location)))
    return shapes, crs


def _rings(feature: Any, location: str) -> tuple[np.ndarray, ...]:
    """The closed rings (n, 2) of a polygon or of several, without heights; nothing for an empty geometry.

    Raises DataError, with `location`, for anything else.
    """
    rings: list[np.ndarray] = []
    try:
        geometry = feature.get("geometry")
        if geometry is None:
            return ()
        polygons = {"Polygon": [geometry["coordinates"]], "MultiPolygon": geometry["coordinates"]}[geometry["type"]]
        for ring in chain.from_iterable(polygons):
            corners = np.array([position[:2] for position in ring], np.float64)
            if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
                raise ValueError
            is_closed = len(corners) > 3 and (corners[0] == corners[-1]).all()
            rings.append(corners if is_closed else np.concatenate([corners, corners[:1]]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{location} is no Polygon or MultiPolygon of rings of 3 finite positions or more: {str(feature)[:80]}"
        ) from error
    return tuple(rings)


def _label(properties: Any, column: str | None, location: str) -> str:
    """The class of a feature, from a column. Raises DataError, with `location`, if it is missing or not a class."""
    if column is None:
        return ONLY_CLASS
    columns = properties if isinstance(properties, dict) else {}
    value = columns.get(column)
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{location} has {str(value)[:40]} in the column {column}, expected a name or a number; its columns are"
            f" {', '.join(columns) or 'none'}; give --label-column"
        )
    return str(value)


def _transform(shapes: Sequence[Shape], source: str, target: Crs, file: str) -> list[Shape]:
    """The shapes in another CRS; corners are infinite in a shape that it does not reach.

    Raises DataError if there is no way from one CRS to the other.
    """
    rasterio = load_rasterio(f"{file}, which is not in the CRS of the image,")
    from rasterio.warp import transform

    rings = list(chain.from_iterable(shape.rings for shape in shapes))
    corners = np.concatenate(rings)
    try:
        systems = [rasterio.CRS.from_user_input(crs) for crs in (source, target)]
        if systems[0] == systems[1]:
            return list(shapes)
        moved_corners = np.stack(transform(*systems, *corners.T), axis=1)
    except Exception as error:
        if not is_gdal_error(error):
            raise
        if type(error).__name__ != OUT_OF_REACH:
            raise DataError(f"{file}: no way from {source[:80]} to {crs_name(target)} ({one_line(error)})") from error
        if len(shapes) > 1:
            half = len(shapes) // 2
            return _transform(shapes[:half], source, target, file) + _transform(shapes[half:], source, target, file)
        moved_corners = np.full_like(corners, np.inf)
    moved = iter(np.split(moved_corners, np.cumsum([len(ring) for ring in rings])[:-1]))
    return [Shape(tuple(islice(moved, len(shape.rings))), shape.label) for shape in shapes]


def _read_geopackage(file: str, column: str | None) -> tuple[list[Any], str | None]:
    """The features of a GeoPackage, which GDAL brings to GeoJSON, and their CRS."""
    try:
        import pyogrio
        from pyogrio import raw
    except ImportError as error:
        raise DataError(f"{file} needs pyogrio to be read: pip install pyogrio") from error
    logging.getLogger("pyogrio").addHandler(logging.NullHandler())  # the error has GDAL's message
    content = BytesIO()
    try:
        layers = []
        for name, kind in pyogrio.list_layers(file).tolist():
            if kind is not None and ("Polygon" in kind or kind in ANY_KIND):
                layers.append(str(name))
        if len(layers) != 1:
            raise DataError(f"{file}: holds {len(layers)} layers of polygons, expected one ({', '.join(layers)})")
        names = pyogrio.read_info(file, layer=layers[0])["fields"].tolist()
        columns = [column] if column in names else []
        meta, _, geometries, values = raw.read(file, layer=layers[0], columns=columns, force_2d=True)
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
    return features, meta["crs"]
