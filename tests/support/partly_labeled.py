"""Images that are labeled for some of their classes: masks in bands, and what the records of a folder say."""

from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from support.data_sets import load_info

SIZE = (12, 16)
CLASSES = "0=background,1=car,2=dog,3=person"


def write_bands(folder: Path, names: list[str], values: tuple[int, ...] = (0, 1, 2, 3)) -> Path:
    """Images of these names below images/, and their masks, a band of rows for each value."""
    rng = np.random.default_rng(0)
    mask = np.repeat(np.array(values, np.uint8), SIZE[0] // len(values))[:, None].repeat(SIZE[1], axis=1)
    for name in names:
        for kind, pixels in (("images", rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)), ("masks", mask)):
            file = folder / kind / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return folder


def labels_by_name(folder: Path, **settings) -> dict[str, tuple[str, ...] | None]:
    """The classes that each image of both splits is labeled for, by its name."""
    labels_of_image = {}
    for records in load_records(DataConfig(str(folder), **settings)):
        for i in range(len(records)):
            assert records[i].get("labeled") == records.label_set(i)
            labels_of_image[records.name(i)] = records.label_set(i)
    return labels_of_image


def banded_info(folder: Path, **settings) -> DatasetInfo:
    """What is known of images of four classes in bands, of which a third is validated on."""
    return load_info(folder, val_fraction=0.34, classes=CLASSES, **settings)
