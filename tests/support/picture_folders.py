"""Folders of black pictures, and what a data set makes of them."""

import io
from pathlib import Path

import pytest
from PIL import Image

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import inspect_split, total_pixels
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_header
from data_utils.sources.load import load_records
from runtime.errors import DataError


def size_of(source, name):
    """(height, width), as a header says."""
    return read_header(source, name)[0]


def check_sizes(records):
    """The sizes of all images (n, 2), which must be usable."""
    split = inspect_split(records, "reading files", Rules())
    split.raise_problems()
    return split.sizes


def pixels_of_values(records):
    """How many pixels of all masks hold each value."""
    return total_pixels([inspect_split(records, "reading files", Rules())])


def write_pictures(root: Path, *names: str, size: tuple[int, int] = (4, 6)) -> Path:
    """Black pictures of (H, W) `size` below `root`."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size[::-1]).save(root / name)
    return root


def loaded(root: Path | str, *, val_fraction: float = 0.25, **settings):
    """The training and the validation records of a data set; `settings` as in DataConfig."""
    return load_records(DataConfig(str(root), val_fraction=val_fraction, **settings))


def names(split) -> list[str]:
    """The names of records."""
    return [split[i]["name"] for i in range(len(split))]


def paired(split) -> list[tuple[str, str]]:
    """The names of the files of images and masks."""
    return [(Path(split[i]["image"]).name, Path(split[i]["target"]).name) for i in range(len(split))]


def flat_folder(root: Path, count: int = 12) -> Path:
    """A folder of pairs 0.png, 1.png, ..."""
    return write_pictures(root, *(f"{folder}/{i}.png" for folder in ("images", "masks") for i in range(count)))


def error_of(root: Path | str, **settings) -> str:
    """The line that refuses a data set."""
    with pytest.raises(DataError) as error:
        loaded(root, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def png(value: int, size=(4, 6)) -> bytes:
    """A PNG file of one grey value."""
    file = io.BytesIO()
    Image.new("L", size[::-1], value).save(file, "png")
    return file.getvalue()
