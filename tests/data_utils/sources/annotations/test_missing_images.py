"""Listed images that are not found: the line says where they were looked for.

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
def test_images_that_lie_elsewhere_are_named_with_the_folders_that_were_looked_in(write, tmp_path):
    for folder in ("images", "photos"):
        (tmp_path / folder).mkdir()
    for number in range(COUNT):
        (tmp_path / "photos" / f"face{number}.jpg").touch()
    write(tmp_path)
    line = rf"{COUNT} files without partner: face0\.jpg: listed.*; looked in {tmp_path}, images/"
    with pytest.raises(DataError, match=line):
        load_records(DataConfig(str(tmp_path)))
