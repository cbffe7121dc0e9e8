"""Masks whose values stand in rows, in folders of their own."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (12, 20)


def save(path: Path, pixels: np.ndarray, palette: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    if palette:
        picture.putpalette([value % 256 for value in range(7, 775)])
    picture.save(path)


def rows(*values: int) -> np.ndarray:
    """(H, W) uint8 with the values in rows, one after the other."""
    return np.resize(np.repeat(np.array(values, np.uint8), SIZE[1]), SIZE)
