"""Folders of noisy pictures with a bright box each, and their masks."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_folder(
    folder: Path, count: int, seed: int, *, values: tuple[int, int] = (0, 255), size: tuple[int, int] = (40, 56)
) -> Path:
    """`count` noisy RGB images with a bright box each, and its mask."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for index in range(count):
        image = rng.integers(0, 100, (*size, 3), dtype=np.uint8)
        mask = np.full(size, values[0], np.uint8)
        top, left = rng.integers(0, size[0] // 2), rng.integers(0, size[1] // 2)
        box = np.s_[top : top + size[0] // 2, left : left + size[1] // 3]
        image[box] += 120
        mask[box] = values[1]
        Image.fromarray(image).save(folder / "images" / f"cell_{index:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"cell_{index:02}.png")
    return folder


def write_splits(folder: Path, train: int, val: int, *, size: tuple[int, int] = (40, 56)) -> Path:
    """A data set: `write_folder` of so many images under train/ and val/."""
    write_folder(folder / "train", train, seed=0, size=size)
    write_folder(folder / "val", val, seed=1, size=size)
    return folder


def touch(folder: Path, *names: str) -> list[Path]:
    """Empty files below a folder."""
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return files
