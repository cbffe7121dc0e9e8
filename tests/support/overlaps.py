"""Images of discs of three classes that overlap, as several tests write them."""

from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

from support.data_sets import load_info
from tasks.overlapping.target import OverlapTarget

NAMES = ("blue", "green", "red")  # in the order of their folders
SIZE = (40, 56)


def scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) uint8, and the masks of the three classes, (3, H, W) bool."""
    rows, columns = np.indices(SIZE)
    image = rng.integers(0, 60, (*SIZE, 3))
    masks = []
    for channel in (2, 1, 0):
        center = rng.uniform(10, 30), rng.uniform(10, 46)
        mask = (rows - center[0]) ** 2 + (columns - center[1]) ** 2 < rng.uniform(7, 13) ** 2
        image[mask, channel] += 130
        masks.append(mask)
    return image.astype(np.uint8), np.stack(masks)


def true_masks(count: int, seed: int) -> list[np.ndarray]:
    """The masks of the images of `write_overlaps`, (3, H, W) bool each."""
    rng = np.random.default_rng(seed)
    return [scene(rng)[1] for _ in range(count)]


def labels_of(masks: np.ndarray) -> np.ndarray:
    """A label map of the masks: 1 where the first is, 2 where the second is too, 3 where all are."""
    nested = np.logical_and.accumulate(masks)
    return nested.sum(axis=0).astype(np.uint8)


def write_mask(folder: Path, name: str, mask: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(folder / name)


def write_overlaps(folder: Path, count: int, seed: int, layout: str = "folders") -> Path:
    """images/ and masks/ of `count` scenes; masks are class `folders`, `pages` of TIFFs, `channels` or `labels`."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for number in range(count):
        image, masks = scene(rng)
        Image.fromarray(image).save(folder / "images" / f"{number:02}.png")
        if layout == "folders":
            for name, mask in zip(NAMES, masks, strict=True):
                write_mask(folder / "masks" / name, f"{number:02}.png", mask.astype(np.uint8) * 255)
        elif layout == "pages":
            tifffile.imwrite(folder / "masks" / f"{number:02}.tif", masks.astype(np.uint8), photometric="minisblack")
        elif layout == "channels":
            np.save(folder / "masks" / f"{number:02}.npy", np.moveaxis(masks, 0, 2))
        else:
            write_mask(folder / "masks", f"{number:02}.png", labels_of(masks))
    return folder


def targets_of(folder: Path, **settings) -> list[OverlapTarget]:
    """The targets of all training records."""
    info = load_info(folder, **settings)
    return [info.reader.read(record, SIZE) for record in info.train.records]


def planes(bits: np.ndarray, classes: int = 3) -> np.ndarray:
    return np.stack([bits >> bit & 1 for bit in range(classes)]).astype(bool)
