"""Listed images that are not found: the line says where they were looked for, and where they are.

Module: data_utils/sources/annotations/layout.py.
"""

import json
from pathlib import Path

import pytest

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from runtime.errors import DataError

COUNT = 8


def write_points(root: Path) -> None:
    lines = [f"face{i}.jpg,{i},{i}" for i in range(COUNT)]
    (root / "points.csv").write_text("\n".join(["image,nose_x,nose_y", *lines]))


def write_coco(root: Path) -> None:
    images = [{"id": i, "file_name": f"face{i}.jpg"} for i in range(COUNT)]
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "face"}]}
    (root / "annotations.json").write_text(json.dumps(content))


@pytest.mark.parametrize("write", [write_points, write_coco])
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("photos/face{}.jpg", f"; photos/ holds {COUNT} of them: move them to images/"),
        ("a/day 1/face{}.jpg", f"; a/day 1/ holds {COUNT} of them: move them to images/"),
        ("images/Face{}.JPG", "JPG is there for face"),
        ("images/face{}.png", "png is there for face"),
        ("images/other{}.png", "looked in "),
    ],
)
def test_images_that_lie_elsewhere_or_are_spelled_otherwise_are_found(write, file, line, tmp_path):
    for number in range(COUNT):
        path = tmp_path / file.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    write(tmp_path)
    with pytest.raises(DataError) as error:
        load_records(DataConfig(str(tmp_path)))
    assert f"{COUNT} files without partner: face0.jpg: listed" in str(error.value)
    assert line in str(error.value)
