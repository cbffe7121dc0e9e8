"""Pictures of discs, half of which touch another one, their label images, targets, and records of masks in memory."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from data_utils.sources.records import ListRows, Metadata, Records
from tasks.objects.labels import pack_labels
from tasks.objects.target import ObjectTarget


def discs(size: tuple[int, int], count: int, seed: int, radii: tuple[float, float] = (4, 8)) -> np.ndarray:
    """(H, W) uint16: numbered discs; every second one lies at the side of another."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices(size)
    ids = np.zeros(size, np.uint16)
    placed: list[tuple[float, float, float]] = []
    for index in range(count):
        radius = rng.uniform(*radii)
        y, x = rng.uniform(0, size)
        if placed and index % 2:
            other_y, other_x, other_radius = placed[rng.integers(len(placed))]
            angle = rng.uniform(0, 2 * np.pi)
            y = other_y + (radius + other_radius - 1) * np.sin(angle)
            x = other_x + (radius + other_radius - 1) * np.cos(angle)
        is_inside = ((rows - y) ** 2 + (columns - x) ** 2 <= radius**2) & (ids == 0)
        if is_inside.sum() > 2 * radius**2:
            placed.append((y, x, radius))
            ids[is_inside] = len(placed)
    return ids


def picture(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    """(H, W) uint8: bright objects, each of its own brightness, on a dark and noisy ground."""
    rng = np.random.default_rng(seed)
    brightness = np.concatenate([[40], rng.uniform(110, 200, int(ids.max()))])
    return (brightness[ids] + rng.normal(0, 6, ids.shape)).clip(0, 255).astype(np.uint8)


def write_discs(folder: Path, counts: list[int], seed: int, size: tuple[int, int] = (48, 64)) -> Path:
    """A picture of so many discs for each of the counts, in images/, and its label image in masks/."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index, count in enumerate(counts):
        ids = discs(size, count, seed + index)
        Image.fromarray(picture(ids, seed + index)).save(folder / "images" / f"{index:02}.png")
        Image.fromarray(ids).save(folder / "masks" / f"{index:02}.png")
    return folder


def target_of(ids: ArrayLike, mask: ArrayLike | None = None) -> ObjectTarget:
    """A batch of one target, from the numbers and the classes (H, W) of its pixels; by default all are of class 1."""
    numbers = np.asarray(ids, np.int64)
    classes = (numbers > 0).astype(np.uint8) if mask is None else np.asarray(mask, np.uint8)
    return ObjectTarget(torch.from_numpy(classes)[None], torch.from_numpy(numbers)[None])


def labels_of(ids: ArrayLike, classes: ArrayLike | None = None) -> Tensor:
    """A prediction (1, H, W) of objects with these numbers; by default all are of class 1."""
    numbers = np.asarray(ids)
    return torch.from_numpy(pack_labels(numbers, numbers > 0 if classes is None else np.asarray(classes)))[None]


class Masks(Records):
    """Records of masks that are arrays, and which of them were read."""

    def __init__(self, masks: list[np.ndarray], dims: int = 2) -> None:
        records = [{"image": mask, "target": mask, "name": str(number)} for number, mask in enumerate(masks)]
        super().__init__(ListRows(records), Metadata(dims=dims))
        self.read: list[int] = []

    def __getitem__(self, i: int) -> dict:
        self.read.append(i)
        return super().__getitem__(i)


def numbered(highest: int, *, broken: bool = False) -> np.ndarray:
    """A mask with a pixel of each number; a broken one has a second piece of the first number."""
    values = np.arange(highest + 1, dtype=np.uint16)
    return np.append(values, [0, 1])[None] if broken else values[None]
