"""Blocks of scenes: images with a place are cut into windows, and the windows of one block of the world stay together.

Crops of one scene that lie beside each other are not independent, so whole blocks are held out for validation.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import Box, SceneWindow
from data_utils.image_io.places import Place, read_source_grid
from data_utils.sources.records import Record, Records, divide
from runtime.console import listing
from runtime.errors import DataError
from runtime.parallel import map_indices

BLOCKS = 40  # of all scenes together, if they are large enough
SMALLEST_SIDE = 64  # pixels of a side of a block
LARGEST_SIDE = 4096
MOST_BLOCKS = 2**20  # blocks of an image; a damaged header may claim any size
TOUCHING_DISTANCE = 0.5  # pixels between two images that touch


def cut_blocks(records: Records, config: DataConfig) -> tuple[Records, np.ndarray]:
    """The windows of images with a place, and (N,) the number of the block of each.

    Raises DataError for images without a place, and if there is only one block.
    """
    placed: list[tuple[Place, Box]] = []
    for index, each in enumerate(_places_and_boxes(records)):
        if each is None:
            name = records.name(index)
            raise DataError(
                f"--val-blocks: {name} has no place in the world, by which blocks are cut; leave the flag out"
            )
        placed.append(each)
    side = config.val_blocks or block_side([(box.bottom, box.right) for _, box in placed], config.crop_size)
    windows: list[tuple[int, ...]] = []  # of each the number of its image, and its part
    blocks: list[int] = []
    number_by_block: dict[tuple[object, int, int], int] = {}
    # the place of the first image of each CRS: blocks are counted in its pixels
    origins: dict[object, Place] = {}
    for index, (place, box) in enumerate(placed):
        height, width = box.bottom, box.right
        origin = origins.setdefault(place.crs, place)
        if height * width / side**2 > MOST_BLOCKS:
            raise DataError(
                f"--val-blocks: {records.name(index)} says that it has {height} x {width} pixels, which are too many"
                f" blocks of {side}; give a larger number, or leave the image out if it is damaged"
            )
        for (top, bottom), (left, right) in product(_cuts(height, side), _cuts(width, side)):
            column, row = origin.to_pixels(*place.to_world((left + right) / 2, (top + bottom) / 2))
            block = (place.crs, math.floor(row / side), math.floor(column / side))
            blocks.append(number_by_block.setdefault(block, len(number_by_block)))
            windows.append((index, top, bottom, left, right, height, width))
    if len(number_by_block) < 2:
        raise DataError(f"--val-blocks: blocks of {side} pixels hold all images together; give a smaller number")
    indices, parts = np.split(np.array(windows), [1], axis=1)
    cut = divide(records, indices[:, 0], parts, _window, block_side=side)
    return cut, np.array(blocks)


def block_side(sizes: Iterable[Sequence[int]], crop_size: Sequence[int] | None) -> int:
    """The side of a block in pixels: images of (H, W) make about BLOCKS of them, none is smaller than a crop."""
    pixels = sum(map(math.prod, sizes))
    side = round(math.sqrt(pixels / BLOCKS))
    return max(min(side, LARGEST_SIDE), SMALLEST_SIDE, *(crop_size or ()))


def _cuts(length: int, side: int) -> list[tuple[int, int]]:
    """The parts of a side of an image, all of about one length, as near to that of a block as possible."""
    parts = max(1, round(length / side))
    return list(pairwise(np.linspace(0, length, parts + 1).round().astype(int).tolist()))


def _window(record: Record, part: Sequence[int]) -> Record:
    """A window of an image; a part is its top, bottom, left and right, and (H, W) of the image."""
    *sides, height, width = part
    box = Box(*sides)
    if box == (0, height, 0, width):
        return record
    path = Path(record["name"])
    name = str(path.with_name(f"{path.stem}_{box.top}_{box.left}{path.suffix}"))
    image = SceneWindow(record["image"], name, (height, width), box)
    mask = SceneWindow(record["target"], name, (height, width), box)
    return {**record, "image": image, "target": mask, "name": name}


def describe_neighbors(train: Records, val: Records) -> list[str]:
    """Lines on validation images that touch or overlap training images in the world; none if there is no place."""
    lines: list[str] = []
    side = train.metadata.block_side
    if side:
        count = len(train) + len(val)
        lines.append(f"validation blocks: {len(val)} of {count}, of about {side} pixels a side")
    origins: dict[object, Place] = {}
    train_boxes = _boxes(train, origins)
    pairs: dict[str, list[str]] = {"overlap": [], "touch": []}
    for crs, val_boxes in _boxes(val, origins).items():
        names = list(train_boxes.get(crs, ()))
        others = np.reshape(list(train_boxes.get(crs, {}).values()), (-1, 4))
        for name, box in val_boxes.items():
            # how far two boxes reach into each other along each axis
            depths = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
            depth = depths.min(axis=1)
            if len(depth) and depth.max() > -TOUCHING_DISTANCE:
                verb = "overlap" if depth.max() > TOUCHING_DISTANCE else "touch"
                pairs[verb].append(f"{name} and {names[int(depth.argmax())]}")
    for verb, texts in pairs.items():
        if texts:
            lines.append(
                f"{len(texts)} of {len(val)} validation images {verb} training images in the world: {listing(texts)}"
            )
    return lines


def _boxes(records: Records, origins: dict[object, Place]) -> dict[object, dict[str, np.ndarray]]:
    """CRS -> name -> (left, top, right, bottom) of each image with a place, in pixels of the CRS's origin."""
    boxes: dict[object, dict[str, np.ndarray]] = {}
    for i, placed in enumerate(_places_and_boxes(records)):
        if placed is None:
            continue
        place, box = placed
        columns = np.array([box.left, box.right, box.left, box.right], float)
        rows = np.array([box.top, box.top, box.bottom, box.bottom], float)
        origin = origins.setdefault(place.crs, place)
        corners = np.stack(origin.to_pixels(*place.to_world(columns, rows)))
        corner_box = np.concatenate([corners.min(axis=1), corners.max(axis=1)])
        boxes.setdefault(place.crs, {})[records.name(i)] = corner_box
    return boxes


def _places_and_boxes(records: Records) -> Iterable[tuple[Place, Box] | None]:
    """The place of the scene of each image, and the part of it that the image is; None if it has no place."""

    def place_and_box(index: int) -> tuple[Place, Box] | None:
        source = records[index]["image"]
        box = None
        if isinstance(source, SceneWindow):
            box = source.box
            source = source.source
        grid = read_source_grid(source)
        if grid is None:
            return None
        return grid.place, box or Box(0, grid.size[0], 0, grid.size[1])

    return [None] * len(records) if records.is_stream else map_indices(place_and_box, len(records))
