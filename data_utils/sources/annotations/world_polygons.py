"""Polygons in the world (GeoJSON, GeoPackage), rendered on the grids of images with a place.

One file for all images beside the folder of images, or a file for each image in masks/, labels/ or annotations/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import RenderedMask, check_memory, is_visible_file
from data_utils.image_io.gdal import load_rasterio
from data_utils.image_io.placed_masks import Grid, read_grid
from data_utils.mask_values import number_type
from data_utils.sources.annotations.layout import check_unpaired, folder_in, number_classes
from data_utils.sources.annotations.paired import PairedRecords
from data_utils.sources.annotations.shape_files import GEOPACKAGE, SUFFIXES, read_shapes, shapes_in
from data_utils.sources.folder import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    children,
    files_by_stem,
    natural_sort_key,
    wanted_splits,
)
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
        values: class and mask value of each class.
    """

    file: str
    image: str
    column: str | None
    values: tuple[tuple[str, int], ...]

    def render(self) -> np.ndarray:
        height, width = _grid(self.image).size
        return self.render_part((0, height), (0, width))

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        size = (rows[1] - rows[0], columns[1] - columns[0])
        check_memory(size[0] * size[1], "the mask")
        mask = np.zeros(size, number_type(dict(self.values).values()))
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
        crs = grid.place.crs
        if crs is not None and crs.epsg is None:
            raise DataError(f"{self.image}: its CRS has no EPSG number, so polygons cannot be brought to it")
        shapes, boxes = shapes_in(self.file, self.column, crs.epsg if crs else None)
        value_by_label = dict(self.values)
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
                rings.append(pixels if is_closed else [*pixels, pixels[0]])
            yield rings, value_by_label[shapes[index].label]


def _grid(image: str) -> Grid:
    grid = read_grid(image)
    if grid is None:
        raise DataError(f"{image}: has no place in the world, so polygons cannot be drawn on it; give a GeoTIFF")
    return grid


class PolygonRecords(PairedRecords):
    """Images with a place, and files of polygons."""

    values: dict[str, int]

    def __init__(
        self,
        images: Path,
        folder: Path,
        pairs: Sequence[tuple[str, str]],
        column: str | None,
        unpaired: Sequence[str] = (),
    ) -> None:
        files = sorted({str(folder / file) for _, file in pairs})
        labels: set[str] = set()
        for file in files:
            labels.update(shape.label for shape in read_shapes(file, column).shapes)
        if not labels:
            raise DataError(f"{folder}: its files of polygons hold no polygon")
        names = sorted(labels, key=natural_sort_key)
        classes, values = number_classes(names, str(folder))
        super().__init__(images, folder, pairs, Metadata(classes, tuple(unpaired)))
        self.column = column
        self.values = dict(zip(names, values, strict=True))

    def mask(self, image: str, annotation: str) -> PolygonMask:
        return PolygonMask(annotation, image, self.column, tuple(self.values.items()))

    def rendering(self) -> tuple[object, ...]:
        return (*super().rendering(), self.column)

    @cached_property
    def annotations(self) -> AnnotationSummary:
        """How many polygons of each class the files hold; a file of all images tells none of them from the others."""
        counts = dict.fromkeys(self.values, 0)
        files = [self.paths(i)[1] for i in range(len(self))]
        is_common = len(set(files)) < len(files)
        annotated = 0
        for file in set(files):
            shapes = read_shapes(file, self.column).shapes
            annotated += not is_common and bool(shapes)
            for shape in shapes:
                counts[shape.label] += 1
        kind = "GeoPackage" if any(file.lower().endswith(GEOPACKAGE) for file in files) else "GeoJSON"
        empty = 0 if is_common else len(files) - annotated
        return AnnotationSummary(kind, annotated, empty, counts)


def find_polygons(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its images with polygons; empty if there are none."""
    split_names = wanted_splits(named_splits)
    splits = {name: folder for name, folder in children(root).items() if name in split_names} or {"train": root}
    openers: SplitOpeners = {}
    for name, folder in splits.items():
        images = folder_in(folder, IMAGE_FOLDERS)
        if images is None:
            return {}
        set_files = _files_in(folder) or _files_in(root)
        annotations = folder_in(folder, MASK_FOLDERS)
        if set_files:
            openers[name] = partial(_open, images, set_files[0].parent, set_files, config)
        elif annotations is not None and _files_in(annotations):
            openers[name] = partial(_open, images, annotations, [], config)
        else:
            return {}
    return openers


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_visible_file(path.name, SUFFIXES) and path.is_file())


def _open(images: Path, folder: Path, common_files: Sequence[Path], config: DataConfig) -> PolygonRecords:
    """The images of a split, with the only file of polygons, or with one for each image.

    Args:
        common_files: files in `folder` that are for all images; there may be at most one.
    """
    image_files = files_by_stem(images, "images")
    if len(common_files) > 1:
        names = ", ".join(path.name for path in common_files)
        raise DataError(f"{folder}: holds {names}; keep one, or one for each image in masks/")
    if common_files:
        pairs = [(image, common_files[0].name) for image in image_files.values()]
        return PolygonRecords(images, folder, pairs, config.label_column)
    files = files_by_stem(folder, "polygons", SUFFIXES)
    unpaired = [f"{image}: image without polygons" for stem, image in image_files.items() if stem not in files]
    unpaired += [f"{file}: polygons without image" for stem, file in files.items() if stem not in image_files]
    pairs = [(image, files[stem]) for stem, image in image_files.items() if stem in files]
    check_unpaired(unpaired, len(pairs), config.allow_unpaired, images)
    return PolygonRecords(images, folder, pairs, config.label_column, unpaired)
