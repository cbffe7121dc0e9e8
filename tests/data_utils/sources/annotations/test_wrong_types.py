"""Values of another type, anywhere in a file of annotations: the data set is read, or refused in one line.

Module: data_utils/sources/annotations/documents.py.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from support.coco_files import box
from support.labelme_files import BOX, shape

from data_utils.config import DataConfig
from runtime.errors import DataError
from train_utils.check_data import check_data

VALUES = (None, ["polygon"], True, {"a": [1]})  # each place gets one of them in turn
STEMS = "ab"
IMAGES = [{"id": number, "file_name": f"{stem}.png", "width": 40, "height": 24} for number, stem in enumerate(STEMS)]
OBJECT = {"id": 1, "image_id": 0, "category_id": 1, "iscrowd": 0}
AREAS = {
    "images": IMAGES,
    "categories": [{"id": 1, "name": "cat", "supercategory": "animal"}],
    "annotations": [
        OBJECT | {"segmentation": [box(2, 2, 9, 9)]},
        OBJECT | {"id": 2, "segmentation": {"size": [24, 40], "counts": [0, 10, 950]}},
    ],
}
POINTS = {
    "images": IMAGES,
    "categories": [{"id": 1, "name": "cat", "keypoints": ["nose", "tail"]}],
    "annotations": [OBJECT | {"keypoints": [2, 3, 2, 4, 5, 1]}],
}
SHAPES = {
    "shapes": [shape("cat", BOX, "rectangle"), shape("dog", [*BOX, [3, 9]], group_id=1)],
    "imagePath": "a.png",
    "imageData": None,
    "imageHeight": 24,
    "imageWidth": 40,
}
SETTINGS = {"path": ".", "train": "images", "val": "images", "nc": 2, "names": {0: "cat", 1: "dog"}}
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "COCO": ("result.json", AREAS),
    "keypoints": ("keypoints.json", POINTS),
    "labelme": ("images/a.json", SHAPES),
    "YOLO": ("data.yaml", SETTINGS),
}


def places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """The keys and indices that lead to each value in lists and objects."""
    yield place
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*place, key))


def with_value(content: dict[str, Any], place: tuple, value: Any) -> Any:
    """The content with another value in one place."""
    whole = [copy.deepcopy(content)]
    holder: Any = whole
    for key in (0, *place)[:-1]:
        holder = holder[key]
    holder[(0, *place)[-1]] = value
    return whole[0]


def write_images(folder: Path) -> None:
    for kind in ("images", "labels"):
        (folder / kind).mkdir()
    for stem in STEMS:
        Image.new("RGB", (40, 24)).save(folder / "images" / f"{stem}.png")


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES)
def test_values_of_other_types_are_read_or_refused_in_a_line(tmp_path, name, content):
    write_images(tmp_path)
    if name == "data.yaml":
        (tmp_path / "labels" / "a.txt").write_text("0 .1 .1 .5 .1 .5 .5\n1 .1 .1 .3 .1 .3 .3\n")
    for place, value in zip(places(content), cycle(VALUES)):
        changed = with_value(content, place, value)
        (tmp_path / name).write_text(yaml.safe_dump(changed) if name == "data.yaml" else json.dumps(changed))
        with suppress(DataError):
            check_data(DataConfig(str(tmp_path), allow_unpaired=True))
