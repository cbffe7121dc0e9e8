"""Blocks of scenes: images with a place are cut into windows, and the windows of one block of the world stay together.

Crops of one scene that lie beside each other are not independent, so whole blocks are held out for validation.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource
from data_utils.image_io.placed_masks import Grid, read_source_grid
from data_utils.image_io.places import Place
from data_utils.image_io.scene_windows import Box, SceneWindow
from data_utils.sources.records import Parts, Record, Records, divide
from runtime.console import listing
from runtime.errors import DataError
from runtime.parallel import map_indices

BLOCKS = 40  # of all scenes together, if they are large enough
SMALLEST_SIDE = 64  # pixels of a side of a block
LARGEST_SIDE = 4096
MOST_BLOCKS = 2**20  # blocks of an image; a damaged header may claim any size
TOUCHING_DISTANCE = 0.5  # pixels between two images that touch


def _window(record: Record, name: str, part: Sequence[int]) -> Record:
    """A window of an image; a part is its top, bottom, left and right, and (H, W) of the image."""
    if _is_whole(part):
        return record
    box = Box(*part[:4])
    size = (part[4], part[5])
    image = SceneWindow(record["image"], name, size, box)
    mask = SceneWindow(record["target"], name, size, box)
    return {**record, "image": image, "target": mask, "name": name}


def _window_name(name: str, part: Sequence[int]) -> str:
    if _is_whole(part):
        return name
    top, _, left, *_ = part
    path = Path(name)
    return str(path.with_name(f"{path.stem}_{top}_{left}{path.suffix}"))


def _is_whole(part: Sequence[int]) -> bool:
    top, bottom, left, right, height, width = part
    return (top, bottom, left, right) == (0, height, 0, width)


def cut_blocks(records: Records, config: DataConfig) -> tuple[Records, np.ndarray]:
    """The windows of images with a place, and (N,) the number of the block of each.

    Raises DataError for images without a place, and if there is only one block.
    """
    grids = _grids(records)
    side = config.val_blocks or block_side(grids, config.crop_size)
    indices: list[int] = []
    parts: list[tuple[int, ...]] = []
    blocks: list[tuple[object, int, int]] = []  # for each window its CRS, and its block in this
    # the place of the first image of each CRS: blocks are counted in its pixels
    origins: dict[object, Place] = {}
    for index, grid in enumerate(grids):
        crs = _key(grid.place)
        origin = origins.setdefault(crs, grid.place)
        if math.prod(length / side for length in grid.size) > MOST_BLOCKS:
            height, width = grid.size
            raise DataError(
                f"--val-blocks: {records.name(index)} says that it has {height} x {width} pixels, which are too many"
                f" blocks of {side}; give a larger number, or leave the image out if it is damaged"
            )
        for box in _boxes(grid.size, side):
            center = grid.place.to_world((box.left + box.right) / 2, (box.top + box.bottom) / 2)
            column, row = origin.to_pixels(*center)
            blocks.append((crs, math.floor(row / side), math.floor(column / side)))
            indices.append(index)
            parts.append((*box, *grid.size))
    number_by_block: dict[tuple[object, int, int], int] = {}
    groups = np.array([number_by_block.setdefault(block, len(number_by_block)) for block in blocks])
    if len(number_by_block) < 2:
        raise DataError(f"--val-blocks: blocks of {side} pixels hold all images together; give a smaller number")
    windows = Parts(np.array(parts), _window_name, _window)
    return divide(records, np.array(indices), windows, block_side=side), groups


def _grids(records: Records) -> list[Grid]:
    """The grid of each image. Raises DataError for one that has no place."""
    if records.dims == 3 or records.is_stream:
        raise DataError("--val-blocks cuts images with a place in the world, and these are none; leave it out")
    grids = []
    for index, grid in enumerate(map_indices(lambda i: read_source_grid(records[i]["image"]), len(records))):
        if grid is None:
            name = records.name(index)
            raise DataError(
                f"--val-blocks: {name} has no place in the world, by which blocks are cut; leave the flag out"
            )
        grids.append(grid)
    return grids


def block_side(grids: Sequence[Grid], crop_size: Sequence[int] | None) -> int:
    """The side of a block in pixels: all images make about BLOCKS of them, none is smaller than a crop."""
    pixels = sum(math.prod(grid.size) for grid in grids)
    side = round(math.sqrt(pixels / BLOCKS))
    return max(min(side, LARGEST_SIDE), SMALLEST_SIDE, *(crop_size or ()))


def _boxes(size: tuple[int, int], side: int) -> list[Box]:
    """The windows of an image (H, W), all of about one size, as near to `side` as possible."""
    height, width = size
    boxes = []
    for top, bottom in pairwise(_cuts(height, side)):
        for left, right in pairwise(_cuts(width, side)):
            boxes.append(Box(top, bottom, left, right))
    return boxes


def _cuts(length: int, side: int) -> list[int]:
    """Where a side of an image is cut, from 0 to its length."""
    parts = max(1, round(length / side))
    return np.linspace(0, length, parts + 1).round().astype(int).tolist()


# of the images of one CRS: (left, top, right, bottom) of each in pixels of one grid, and their names
Footprints = tuple[list[np.ndarray], list[str]]


def describe_neighbors(train: Records, val: Records) -> list[str]:
    """Lines on validation images that touch or overlap training images in the world; none if there is no place."""
    lines = []
    side = train.metadata.block_side
    if side:
        count = len(train) + len(val)
        lines.append(f"validation blocks: {len(val)} of {count}, of about {side} pixels a side")
    origins: dict[object, Place] = {}
    train_footprints = _footprints(train, origins)
    pairs: dict[str, list[str]] = {"overlap": [], "touch": []}
    for crs, (boxes, names) in _footprints(val, origins).items():
        other_boxes, other_names = train_footprints.get(crs, ([], []))
        others = np.reshape(other_boxes, (-1, 4))
        for box, name in zip(boxes, names, strict=True):
            # how far two boxes reach into each other along each axis
            depths = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
            depth = depths.min(axis=1)
            if len(depth) and depth.max() > -TOUCHING_DISTANCE:
                verb = "overlap" if depth.max() > TOUCHING_DISTANCE else "touch"
                pairs[verb].append(f"{name} and {other_names[int(depth.argmax())]}")
    for verb, pair_texts in pairs.items():
        if pair_texts:
            lines.append(
                f"{len(pair_texts)} of {len(val)} validation images {verb} training images in the world:"
                f" {listing(pair_texts)}"
            )
    return lines


def _footprints(records: Records, origins: dict[object, Place]) -> dict[object, Footprints]:
    """The footprints of all images with a place, by their CRS; `origins` holds the grid of each."""
    footprints: dict[object, Footprints] = {}
    if records.dims == 3 or records.is_stream:
        return footprints
    for i, placed_box in enumerate(map_indices(lambda i: _place_and_box(records[i]["image"]), len(records))):
        if placed_box is None:
            continue
        place, box = placed_box
        crs = _key(place)
        columns = np.array([box.left, box.right, box.left, box.right], float)
        rows = np.array([box.top, box.top, box.bottom, box.bottom], float)
        corners = np.stack(origins.setdefault(crs, place).to_pixels(*place.to_world(columns, rows)))
        boxes, names = footprints.setdefault(crs, ([], []))
        boxes.append(np.concatenate([corners.min(axis=1), corners.max(axis=1)]))
        names.append(records.name(i))
    return footprints


def _place_and_box(source: ImageSource) -> tuple[Place, Box] | None:
    """The place of the scene of a source, and the part of it that the source is; None if it has no place."""
    grid = read_source_grid(source.source if isinstance(source, SceneWindow) else source)
    if grid is None:
        return None
    box = source.box if isinstance(source, SceneWindow) else Box(0, grid.size[0], 0, grid.size[1])
    return grid.place, box


def _key(place: Place) -> object:
    """A key that is equal for places of one CRS."""
    return place.crs and (place.crs.epsg or place.crs.definition)
