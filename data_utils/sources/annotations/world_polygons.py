"""Polygons in the world (GeoJSON, GeoPackage), rendered on the grids of images with a place.

One file for all images beside the folder of images, or a file for each image in masks/, labels/ or annotations/.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import RenderedMask, check_memory, is_visible_file
from data_utils.image_io.gdal import load_rasterio
from data_utils.image_io.placed_masks import Grid, read_grid
from data_utils.mask_values import number_type
from data_utils.sources.annotations.layout import folder_in, number_classes, rendered_sources
from data_utils.sources.annotations.shape_files import GEOPACKAGE, SUFFIXES, read_shapes, shapes_in
from data_utils.sources.files import FileRecords
from data_utils.sources.folder import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    DataFolder,
    files_by_stem,
    natural_sort_key,
    split_folders,
)
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.records import AnnotationSummary, Metadata, SplitOpeners
from runtime.errors import DataError

MAX_PIXEL_DISTANCE = 2**31  # pixels from an image, beyond which nothing is rendered


@dataclass(frozen=True)
class PolygonMask(RenderedMask):
    """The polygons of a file on the grid of an image; later ones lie over earlier ones.

    Args:
        file: the file of the polygons.
        image: the path of the image.
        column: the column with the class; None if all have one class.
        values: the mask value of each class.
    """

    file: str
    image: str
    column: str | None
    values: dict[str, int]

    def render(self) -> np.ndarray:
        height, width = _grid(self.image).size
        return self.render_part((0, height), (0, width))

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        size = (rows[1] - rows[0], columns[1] - columns[0])
        check_memory(size[0] * size[1], "the mask")
        mask = np.zeros(size, number_type(self.values.values()))
        first = np.array([columns[0], rows[0]], float)
        shapes = []
        for rings, value in self._shapes_near(_grid(self.image), first, size):
            shapes.append(({"type": "Polygon", "coordinates": rings}, value))
        if shapes:
            load_rasterio(self.file)
            from rasterio.features import rasterize

            rasterize(shapes, out=mask)
        return mask

    def _shapes_near(
        self, grid: Grid, first: np.ndarray, size: tuple[int, int]
    ) -> Iterator[tuple[list[list[list[float]]], int]]:
        """The rings and the value of each shape in a part of the image, of `size` (H, W).

        Rings are in pixels from `first`, the (column, row) where the part begins. Where they lie in each other, every
        second one is a hole.
        """
        epsg = None
        if grid.place.crs is not None:
            epsg = grid.place.crs.epsg
            if epsg is None:
                raise DataError(f"{self.image}: its CRS has no EPSG number, so polygons cannot be brought to it")
        shapes, boxes = shapes_in(self.file, self.column, epsg)
        x = boxes[:, [0, 2, 0, 2]]
        y = boxes[:, [1, 1, 3, 3]]
        with np.errstate(invalid="ignore"):  # shapes outside the CRS have infinite boxes
            corners = np.stack(grid.place.to_pixels(x, y), axis=2) - first
        low = corners.min(axis=1)
        high = corners.max(axis=1)
        is_near = (np.abs(corners) < MAX_PIXEL_DISTANCE).all(axis=(1, 2))
        is_near &= (high > 0).all(axis=1) & (low < size[::-1]).all(axis=1)
        for index in np.flatnonzero(is_near).tolist():
            rings = []
            for ring in shapes[index].rings:
                pixels = (np.stack(grid.place.to_pixels(*ring.T), axis=1) - first).tolist()
                is_closed = len(pixels) > 3 and pixels[0] == pixels[-1]
                if not is_closed:
                    pixels.append(pixels[0])
                rings.append(pixels)
            yield rings, self.values[shapes[index].label]


def _grid(image: str) -> Grid:
    grid = read_grid(image)
    if grid is None:
        raise DataError(f"{image}: has no place in the world, so polygons cannot be drawn on it; give a GeoTIFF")
    return grid


def find_polygons(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its images with polygons; empty if there are none, or masks or points.

    Raises DataError for --label-column without polygons.
    """
    openers: SplitOpeners = {}
    column = folder.config.label_column
    if not folder.has_masks and not folder.points:
        openers = _split_openers(folder.root, folder.named_splits, folder.config)
    if column and not openers:
        raise DataError(
            f"--label-column {column} is a column of polygons, but {folder.root} holds no .geojson or .gpkg beside its"
            " images; leave it out"
        )
    return openers


def _split_openers(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    openers: SplitOpeners = {}
    for name, folder in split_folders(root, named_splits).items():
        images = folder_in(folder, IMAGE_FOLDERS)
        common_files = _files_in(folder) or _files_in(root)
        annotations = common_files[0].parent if common_files else folder_in(folder, MASK_FOLDERS)
        if images is None or annotations is None or not (common_files or _files_in(annotations)):
            return {}
        openers[name] = partial(_open, (images, annotations), common_files, config)
    return openers


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_visible_file(path.name, SUFFIXES) and path.is_file())


def _open(folders: tuple[Path, Path], common_files: Sequence[Path], config: DataConfig) -> FileRecords:
    """The images of a split, with the only file of polygons, or with one for each image.

    Args:
        folders: of the images and of the files of polygons.
        common_files: files that are for all images; there may be at most one.
    """
    images, folder = folders
    image_files = files_by_stem(images, "images")
    if len(common_files) > 1:
        names = ", ".join(path.name for path in common_files)
        raise DataError(f"{folder}: holds {names}; keep one, or one for each image in masks/")
    if common_files:
        polygons = dict.fromkeys(image_files, common_files[0].name)
    else:
        polygons = files_by_stem(folder, "polygons", SUFFIXES)
    stems = [stem for stem in image_files if stem in polygons]
    labels: Counter[str] = Counter()
    annotated = 0
    files = sorted({polygons[stem] for stem in stems})
    for file in files:
        shapes = read_shapes(str(folder / file), config.label_column).shapes
        labels.update(shape.label for shape in shapes)
        annotated += bool(shapes)
    if files and not labels:
        raise DataError(f"{folder}: its files of polygons hold no polygon")
    names_in_order = sorted(labels, key=natural_sort_key)
    classes, numbers = number_classes(names_in_order, str(folder))
    values = dict(zip(names_in_order, numbers, strict=True))
    kind = "GeoPackage" if any(file.lower().endswith(GEOPACKAGE) for file in files) else "GeoJSON"
    # a file of all images does not tell which of them have polygons
    empty = len(files) - annotated
    if len(files) < len(stems):
        annotated = empty = 0
    summary = AnnotationSummary(kind, annotated, empty, {name: labels[name] for name in names_in_order})
    metadata = Metadata(classes, annotations=summary)
    sources = (rendered_sources, PolygonMask, config.label_column, values)
    return pair(folders, Cases(image_files, polygons), metadata, config.allow_unpaired, *sources)
