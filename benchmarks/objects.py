"""How well and how fast the decoder of objects works where the network is perfect, for docs/objects.md.

python benchmarks/objects.py discs                   20,000 discs on 8192 x 8192 pixels: found, time and memory
python benchmarks/objects.py maps DSB/stage1_train   what tells objects apart: three kinds of maps, drawn from truth

`maps` takes every fifteenth image of a folder of one-object masks, by sorted name.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
from scipy.ndimage import distance_transform_edt, label
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.sources.annotations.one_object_masks import OneObjectMasks
from inference.decoding import finder
from inference.decoding.finder import CERTAINTY_SHIFT, DEPTH_SHIFT, LEVELS, ObjectFinder
from tasks.matching import ObjectScores, numbers_of, packed
from tasks.objects import Objects, ObjectTarget, normalized_depth

SIDE = 8192
DISCS = 20_000
TOUCHING = 3  # every third disc touches another one
BAND = 64
STEP = 15  # every so many images are scored
PEAKS = (13, 26, 51)  # of 255: a seed is so much deeper than what lies between it and deeper ones


def draw_discs(rng: np.random.Generator) -> np.ndarray:
    """(SIDE, SIDE) int32: DISCS numbered discs on a jittered grid; one of three lies at the side of another one."""
    ids = np.zeros((SIDE, SIDE), np.int32)
    cells = int(np.ceil(np.sqrt(DISCS / (1 + 1 / (TOUCHING - 1)))))
    pitch = SIDE // cells
    number = 0
    for cell in rng.permutation(cells * cells):
        row, column = divmod(int(cell), cells)
        radius = rng.uniform(9, 12)
        y = (row + 0.5) * pitch + rng.uniform(-1, 1)
        x = (column + 0.3) * pitch + rng.uniform(-1, 1)
        places = [(y, x, radius)]
        if number % TOUCHING == 0:
            other = rng.uniform(9, 12)
            places.append((y, x + radius + other - 1.5, other))
        for place_y, place_x, place_radius in places:
            if number < DISCS:
                number += stamp(ids, place_y, place_x, place_radius, number + 1)
    return ids


def stamp(ids: np.ndarray, y: float, x: float, radius: float, number: int) -> int:
    """Draw a disc where nothing is yet; 1 if there was room, else 0."""
    top, left = int(y - radius) - 1, int(x - radius) - 1
    size = int(2 * radius) + 4
    if min(top, left) < 0 or max(top, left) + size > SIDE:
        return 0
    rows, columns = np.mgrid[top : top + size, left : left + size]
    window = ids[top : top + size, left : left + size]
    is_disc = ((rows - y) ** 2 + (columns - x) ** 2 <= radius**2) & (window == 0)
    window[is_disc] = number
    return 1


def answers_of(is_object: np.ndarray, map_values: np.ndarray) -> np.ndarray:
    """What a perfect network would answer with this map, 0..1."""
    levels = np.rint(LEVELS * map_values).astype(np.int32)
    return np.where(is_object, 1 | levels << DEPTH_SHIFT | LEVELS << CERTAINTY_SHIFT, 0).astype(np.int32)


def true_depth(ids: np.ndarray) -> np.ndarray:
    """(H, W): the distance to the border of each disc, divided by 12, the largest radius."""
    edges = np.zeros(ids.shape, bool)
    for axis in (0, 1):
        differ = np.diff(ids, axis=axis) != 0
        first = [slice(None)] * 2
        second = [slice(None)] * 2
        first[axis], second[axis] = slice(None, -1), slice(1, None)
        edges[tuple(first)] |= differ
        edges[tuple(second)] |= differ
    return (distance_transform_edt(~edges) / 12).clip(0, 1) * (ids > 0)


def measure_discs() -> None:
    ids = draw_discs(np.random.default_rng(0))
    count = int(ids.max())
    touching = count - label(ids > 0)[1]
    answers = answers_of(ids > 0, true_depth(ids))
    process = psutil.Process()
    before = peak = process.memory_info().rss
    start = time.process_time()
    objects = ObjectFinder(smallest=50)
    for top in range(0, SIDE, BAND):
        objects.add(answers[top : top + BAND])
        peak = max(peak, process.memory_info().rss)
    labels = np.concatenate(list(objects.finish()))
    seconds = time.process_time() - start
    peak = max(peak, process.memory_info().rss)
    scores = score(labels, ids)
    found = int(scores.values["found"])
    print(f"{count:,} discs on {SIDE} x {SIDE} pixels, {2 * touching:,} of them in touching pairs")
    strict = scores.classes[0]["ap_by_iou"][8]
    print(f"{found:,} found at an IoU of 0.5, {len(objects.objects):,} predicted; AP@0.9 {strict:.4f}")
    memory = f"{(peak - before) / 1e6:,.0f} MB, of which the labels are {labels.nbytes / 1e6:,.0f}"
    print(f"{seconds:.1f} s of one core, {memory}")


def score(labels: np.ndarray, ids: np.ndarray) -> ObjectScores:
    """The scores of one image."""
    scores = Objects().new_scores(1)
    add(scores, labels, ids)
    return scores


def add(scores: ObjectScores, labels: np.ndarray, ids: np.ndarray) -> None:
    """Add an image to scores that were made for one."""
    mask = torch.from_numpy((ids > 0).astype(np.uint8))[None]
    target = ObjectTarget(mask, torch.from_numpy(ids.astype(np.int64))[None])
    scores.add(torch.from_numpy(labels.astype(np.int64))[None], target, 0)
    scores.sums = scores.sums  # the next image is another one: what was added is counted


def edge_map(ids: Tensor) -> Tensor:
    """(1, H, W): 0 on the pixels of objects that have a neighbor of another number, 1 in the others."""
    inside = ids > 0
    for axis in (1, 2):
        last = ids.shape[axis] - 1
        same = ids.narrow(axis, 0, last) == ids.narrow(axis, 1, last)
        inside.narrow(axis, 0, last).logical_and_(same)
        inside.narrow(axis, 1, last).logical_and_(same)
    return inside.float()


def center_map(ids: Tensor) -> Tensor:
    """(1, H, W): a Gaussian about the center of each object, as wide as half the radius of a disc of its area."""
    numbers = ids.flatten()
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in ids.shape[1:]), indexing="ij")
    areas = torch.bincount(numbers).double()
    squares = torch.zeros_like(ids, dtype=torch.float64)[0].flatten()
    for positions in (rows.flatten(), columns.flatten()):
        center = torch.bincount(numbers, positions) / areas.clamp_min(1)
        squares += (positions - center[numbers]) ** 2
    width = areas[numbers] / torch.pi / 4
    return (torch.exp(-squares / (2 * width)) * (numbers > 0)).view_as(ids).float()


def depth_map(ids: Tensor) -> Tensor:
    """(1, H, W): what the network of `--task objects` learns."""
    return normalized_depth(ids, torch.ones_like(ids, dtype=torch.bool))


MAPS: dict[str, Callable[[Tensor], Tensor]] = {"depth": depth_map, "edge": edge_map, "center": center_map}


def images_of(folder: Path) -> Iterator[np.ndarray]:
    """The numbers of the objects of some images."""
    for sample in sorted(folder.iterdir())[::STEP]:
        image = next((sample / "images").iterdir())
        yield OneObjectMasks(str(sample / "masks"), str(image)).draw()


def measure_maps(folder: Path) -> None:
    rows: dict[str, ObjectScores] = {"connected components": Objects().new_scores(1)}
    for name in MAPS:
        rows |= {f"{name}, peaks of {peak / LEVELS:.2f}": Objects().new_scores(1) for peak in PEAKS}
    for ids in images_of(folder):
        components = label(ids > 0)[0]
        add(rows["connected components"], packed(components, components > 0), ids)
        for name, draw in MAPS.items():
            answers = answers_of(ids > 0, draw(torch.from_numpy(ids.astype(np.int64))[None])[0].numpy())
            for peak in PEAKS:
                finder.PEAK = peak
                objects = ObjectFinder()
                objects.add(answers)
                labels = np.concatenate(list(objects.finish()))
                assert numbers_of(labels).max(initial=0) == len(objects.objects)
                add(rows[f"{name}, peaks of {peak / LEVELS:.2f}"], labels, ids)
    for name, scores in rows.items():
        values = scores.values
        counts = f"{values['predicted']:,} for {values['objects']:,}"
        print(f"{name:<24} AP@0.5 {values['ap50']:.4f}  AP@0.75 {values['ap75']:.4f}  {counts}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("discs", "maps"))
    parser.add_argument("folder", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "discs":
        measure_discs()
    else:
        measure_maps(arguments.folder)
