"""Polygons in the world (GeoJSON), drawn on the grids of images with a place.

One file for all images beside the folder of images, or a file for each image in masks/, labels/ or annotations/.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import DrawnMask, check_memory
from data_utils.image_io.placed_masks import Grid, grid_of
from data_utils.image_io.rasterize import fill_polygon
from data_utils.sources.annotations.layout import check_unpaired, folder_in, number_classes, wanted_splits
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.folder import IMAGE_FOLDERS, MASK_FOLDERS, children, files_by_stem, natural
from data_utils.sources.records import AnnotationSummary, Records
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line

SUFFIX = ".geojson"
LONGITUDE_LATITUDE = 4326  # EPSG: what coordinates are where the file does not say it
ONLY_CLASS = "polygon"  # of polygons without --label-column
FARTHEST = 2**31  # pixels from an image, beyond which nothing is drawn


class Shape(NamedTuple):
    """A polygon, or several that belong together: rings (n, 2) as (x, y), and the class that a column says."""

    rings: tuple[np.ndarray, ...]
    label: str


class Shapes(NamedTuple):
    """What a file holds: shapes in the CRS of an EPSG number."""

    shapes: tuple[Shape, ...]
    epsg: int


def read_shapes(file: str, column: str | None) -> Shapes:
    """The polygons of a GeoJSON file, labeled by a column. Raises DataError for what is none."""
    try:
        changed = os.stat(file).st_mtime_ns
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from error
    return _read_shapes(file, column, changed)


@lru_cache(maxsize=16)
def _read_shapes(file: str, column: str | None, changed: int) -> Shapes:
    try:
        content = read_json(file, most_bytes=MOST_BYTES_OF_DATA)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as GeoJSON ({one_line(error)})") from error
    features = content.get("features")
    if not isinstance(features, list):
        raise DataError(f'{file}: has no list "features", so it is no GeoJSON of polygons')
    shapes = []
    for number, feature in enumerate(features, 1):
        where = f"{file}: feature {number}"
        if not isinstance(feature, dict):
            raise DataError(f"{where} is no object")
        rings = tuple(_rings(feature.get("geometry"), where))
        if rings:
            shapes.append(Shape(rings, _label(feature.get("properties"), column, where)))
    return Shapes(tuple(shapes), _epsg(content.get("crs"), file))


def _label(properties: Any, column: str | None, where: str) -> str:
    if column is None:
        return ONLY_CLASS
    if not isinstance(properties, dict) or properties.get(column) is None:
        names = ", ".join(properties) if isinstance(properties, dict) and properties else "none"
        raise DataError(f"{where} has no value in the column {column}, its columns are {names}; give --label-column")
    value = properties[column]
    if not isinstance(value, str | int | float):
        raise DataError(f"{where} has {json.dumps(value)[:40]} in the column {column}, expected a name or a number")
    return str(value)


def _rings(geometry: Any, where: str) -> Iterator[np.ndarray]:
    """The rings of a polygon or of several; nothing of an empty geometry."""
    if geometry is None:
        return
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise DataError(f"{where} is of type {kind!r}, expected Polygon or MultiPolygon")
    polygons = geometry.get("coordinates")
    if kind == "Polygon":
        polygons = [polygons]
    if not isinstance(polygons, list) or not all(isinstance(polygon, list) for polygon in polygons):
        raise DataError(f"{where} has coordinates that are no lists of rings")
    for polygon in polygons:
        for ring in polygon:
            yield _checked_ring(ring, where)


def _checked_ring(ring: Any, where: str) -> np.ndarray:
    """Corners (n, 2); a height is left out."""
    try:
        corners = np.array([position[:2] for position in ring], np.float64)
    except (TypeError, ValueError, IndexError):
        raise DataError(f"{where} has a ring that is no list of positions") from None
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
        raise DataError(f"{where} has a ring of fewer than 3 positions, or with numbers that are not finite")
    return corners


def _epsg(crs: Any, file: str) -> int:
    """The EPSG number of the `crs` of a file."""
    if crs is None:
        return LONGITUDE_LATITUDE
    properties = crs.get("properties") if isinstance(crs, dict) else None
    name = str(properties.get("name")) if isinstance(properties, dict) else str(crs)[:80]
    if name.upper().endswith("CRS84"):
        return LONGITUDE_LATITUDE
    code = name.rpartition(":")[2]
    if "EPSG" not in name.upper() or not code.isdecimal() or len(code) > 6:
        raise DataError(f"{file}: its crs is {name[:80]!r}, expected an EPSG number; bring it to EPSG:4326")
    return int(code)


@lru_cache(maxsize=64)
def _transformer(source: int, target: int, where: str) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A function from coordinates in one CRS to those in another. DataError where pyproj is missing or knows no way."""
    try:
        from pyproj import Transformer
    except ImportError as error:
        raise DataError(
            f"{where} is in EPSG:{source}, the image in EPSG:{target}; to bring one to the other: pip install -r"
            " requirements-geo.txt"
        ) from error
    try:
        return Transformer.from_crs(source, target, always_xy=True).transform
    except Exception as error:
        raise DataError(f"{where}: no way from EPSG:{source} to EPSG:{target} ({one_line(error)})") from error


@dataclass(frozen=True)
class PolygonMask(DrawnMask):
    """The polygons of a file on the grid of an image; later ones lie over earlier ones.

    Args:
        file: of the polygons; empty for an image that has none.
        image: the path of the image.
        column: that says the class.
        values: class and mask value of each.
    """

    file: str
    image: str
    column: str | None
    values: tuple[tuple[str, int], ...]

    def draw(self) -> np.ndarray:
        height, width = _grid(self.image).size
        return self.draw_part((0, height), (0, width))

    def draw_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        size = (rows[1] - rows[0], columns[1] - columns[0])
        check_memory(size[0] * size[1], "the mask")
        mask = np.zeros(size, np.uint8)
        first = np.array([columns[0], rows[0]], float)
        for rings, value in self._drawable(_grid(self.image), first, size):
            fill_polygon(mask, rings, value)
        return mask

    def _drawable(self, grid: Grid, first: np.ndarray, size: tuple[int, int]) -> Iterator[tuple[list[np.ndarray], int]]:
        """The rings and the value of each shape in a part of the image, of `size` (H, W).

        Rings are in pixels from `first`, the (column, row) where the part begins.
        """
        shapes, epsg = read_shapes(self.file, self.column) if self.file else Shapes((), LONGITUDE_LATITUDE)
        value_of = dict(self.values)
        target = grid.place.crs.epsg if grid.place.crs else epsg
        if target is None:
            raise DataError(f"{self.image}: its CRS has no EPSG number, so polygons cannot be brought to it")
        transform = None if target == epsg else _transformer(epsg, target, self.file)
        height, width = size
        for shape in shapes:
            rings = []
            for ring in shape.rings:
                x, y = ring.T
                if transform is not None:
                    x, y = transform(x, y)
                rings.append(np.stack(grid.place.to_pixels(np.asarray(x), np.asarray(y)), axis=1) - first)
            corners = np.concatenate(rings)
            is_finite = np.isfinite(corners).all() and np.abs(corners).max() < FARTHEST
            low = corners.min(axis=0)
            high = corners.max(axis=0)
            if is_finite and high[0] > 0 and high[1] > 0 and low[0] < width and low[1] < height:
                yield rings, value_of[shape.label]


def _grid(image: str) -> Grid:
    grid = grid_of(image)
    if grid is None:
        raise DataError(f"{image}: has no place in the world, so polygons cannot be drawn on it; give a GeoTIFF")
    return grid


class PolygonRecords(PairedRecords):
    """Images with a place, and files of polygons."""

    values: dict[str, int]

    def __init__(self, images: Path, folder: Path, pairs: Sequence[tuple[str, str]], column: str | None) -> None:
        files = sorted({str(folder / file) for _, file in pairs if file})
        names = sorted({shape.label for file in files for shape in read_shapes(file, column).shapes}, key=natural)
        if not names:
            raise DataError(f"{folder}: its {SUFFIX} files hold no polygon")
        classes, values = number_classes(names, str(folder))
        super().__init__(images, folder, pairs, classes)
        self.column = column
        self.values = dict(zip(names, values, strict=True))

    def mask(self, image: str, annotation: str) -> PolygonMask:
        return PolygonMask(annotation, image, self.column, tuple(self.values.items()))

    @cached_property
    def annotations(self) -> AnnotationSummary:  # type: ignore[override]  # counted once it is asked for
        """How many polygons of each class the files hold."""
        counts = dict.fromkeys(self.values, 0)
        files = [self.paths(i)[1] for i in range(len(self))]
        for file in {file for file in files if file}:
            for shape in read_shapes(file, self.column).shapes:
                counts[shape.label] += 1
        annotated = sum(map(bool, files))
        return AnnotationSummary("GeoJSON", annotated, len(files) - annotated, counts)


def find_polygons(root: Path, named_splits: Sequence[str], config: DataConfig) -> dict[str, Callable[[], Records]]:
    """Split -> what opens its images with polygons; nothing where there are none."""
    wanted = wanted_splits(named_splits)
    splits = {name: folder for name, folder in children(root).items() if name in wanted} or {"train": root}
    openers: dict[str, Callable[[], Records]] = {}
    for name, folder in splits.items():
        images = folder_in(folder, IMAGE_FOLDERS)
        if images is None:
            return {}
        joined = _files_in(folder) or _files_in(root)
        annotations = folder_in(folder, MASK_FOLDERS)
        if joined:
            openers[name] = _Opener(images, joined[0].parent, joined, config)
        elif annotations is not None and _files_in(annotations):
            openers[name] = _Opener(images, annotations, [], config)
        else:
            return {}
    return openers


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == SUFFIX and path.is_file())


@dataclass(frozen=True)
class _Opener:
    """Opens the images of a split, with the only file of polygons, or with one for each image.

    Args:
        joined: files that are for all images, of which there may be one.
    """

    images: Path
    folder: Path
    joined: Sequence[Path]
    config: DataConfig

    def __call__(self) -> PolygonRecords:
        image_files = files_by_stem(self.images, "images")
        if len(self.joined) > 1:
            names = ", ".join(path.name for path in self.joined)
            raise DataError(f"{self.folder}: holds {names}; keep one, or one for each image in masks/")
        if self.joined:
            pairs = [(image, self.joined[0].name) for image in image_files.values()]
            return PolygonRecords(self.images, self.folder, pairs, self.config.label_column)
        files = files_by_stem(self.folder, "polygons", (SUFFIX,))
        unpaired = [f"{image}: image without polygons" for stem, image in image_files.items() if stem not in files]
        unpaired += [f"{file}: polygons without image" for stem, file in files.items() if stem not in image_files]
        pairs = [(image, files[stem]) for stem, image in image_files.items() if stem in files]
        check_unpaired(unpaired, len(pairs), self.config.allow_unpaired, self.images)
        return PolygonRecords(self.images, self.folder, pairs, self.config.label_column)
