"""Images with dots at known places, and tables of points in the three layouts of CSV."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.sources.points import files
from data_utils.sources.points.table import PointTable
from tasks.points import ABSENT, PRESENT

NAMES = ("nose", "ear", "tail")
SIZE = (32, 44)
WIDTH = 1.5  # pixels of a dot's standard deviation
BRIGHTNESS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # the color of each point's dot


def dots(count: int, seed: int, *, absent: float = 0.0) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Noisy RGB images with a dot at each point; the places (count, 3, 2) as (x, y), and the states."""
    rng = np.random.default_rng(seed)
    height, width = SIZE
    positions = rng.uniform((3, 3), (width - 4, height - 4), (count, len(NAMES), 2))
    states = np.where(rng.random((count, len(NAMES))) < absent, ABSENT, PRESENT)
    rows, columns = np.indices(SIZE)
    images = []
    for places, image_states in zip(positions, states, strict=True):
        image = rng.uniform(0, 60, (*SIZE, 3))
        for (x, y), color, state in zip(places, BRIGHTNESS, image_states, strict=True):
            dot = np.exp(-0.5 * ((columns - x) ** 2 + (rows - y) ** 2) / WIDTH**2)
            image += 190 * (state == PRESENT) * dot[:, :, None] * color
        images.append(image.clip(0, 255).astype(np.uint8))
    return images, positions, states


def write_dots(
    folder: Path, count: int, seed: int, *, layout: str = "long", absent: float = 0.0, name: str = "points.csv"
) -> PointTable:
    """A folder of such images in images/, with a table of their points beside it."""
    images, positions, states = dots(count, seed, absent=absent)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    names = []
    for number, image in enumerate(images):
        names.append(f"frame_{number:02}.png")
        Image.fromarray(image).save(folder / "images" / names[-1])
    table = PointTable(layout, NAMES, tuple(names), positions, states, ("",) * count)
    (folder / name).write_bytes(files.content(replace(table, positions=positions.round(4))))
    return table
