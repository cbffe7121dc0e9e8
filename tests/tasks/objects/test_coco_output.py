"""objects.json, in which COCO's format lists the predicted objects of all images.

Modules: tasks/objects/write.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.prediction import image_job
from support.written_files import write_labels, write_object_table

from inference.requested_outputs import RequestedOutputs
from runtime.errors import DataError
from tasks.job import MASK
from tasks.objects.write import TABLE, ObjectFormat, run_lengths, write_coco

coco_masks = pytest.importorskip("pycocotools.mask")


@pytest.mark.parametrize(("top", "left"), [(0, 0), (7, 9), (3, 5)])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_run_lengths_of_an_object_are_decoded_by_pycocotools(share, top, left):
    box = np.random.default_rng(0).random((6, 8)) < share
    box[0, 0] = True
    picture = np.zeros((13, 17), np.uint8)
    picture[top : top + 6, left : left + 8] = box
    encoded = run_lengths(box, (top, left), picture.shape)
    assert encoded["size"] == [13, 17]
    assert np.array_equal(coco_masks.decode(encoded), picture)


@pytest.fixture
def images(tmp_path) -> list[tuple[str, Path, Path]]:
    """Name, label image and table of three images: of two objects, of one, and of none."""
    rows_of = {
        "a": [(1, "cell", (0, 0, 2, 2)), (3, "dirt", (0, 3, 2, 4))],
        "b": [(2, "dirt", (2, 1, 3, 4))],
        "c": [],
    }
    listed = []
    for name, rows in rows_of.items():
        table = write_object_table(tmp_path / f"{name}.csv", *rows)
        listed.append((f"sub/{name}.tif", write_labels(tmp_path / f"{name}.png"), table))
    return listed


def read_coco(folder: Path) -> dict:
    return json.loads((folder / "objects.json").read_text())


def test_a_coco_file_lists_categories_images_and_objects(tmp_path, images):
    write_coco(tmp_path, images, ("dirt", "cell"))
    content = read_coco(tmp_path)
    assert content["categories"] == [{"id": 1, "name": "dirt"}, {"id": 2, "name": "cell"}]
    assert content["images"] == [
        {"id": 1, "file_name": "sub/a.tif", "height": 3, "width": 4},
        {"id": 2, "file_name": "sub/b.tif", "height": 3, "width": 4},
        {"id": 3, "file_name": "sub/c.tif", "height": 3, "width": 4},
    ]
    annotations = content["annotations"]
    listed = [(item["id"], item["image_id"], item["category_id"], item["bbox"]) for item in annotations]
    assert listed == [(1, 1, 2, [0, 0, 2, 2]), (2, 1, 1, [3, 0, 1, 2]), (3, 2, 1, [1, 2, 3, 1])]
    assert [item["area"] for item in annotations] == [4, 4, 4]
    assert [item["iscrowd"] for item in annotations] == [0, 0, 0]
    assert [item["score"] for item in annotations] == [0.75, 0.75, 0.75]


def test_a_coco_file_leaves_out_images_without_a_mask(tmp_path):
    jobs = [
        replace(image_job(tmp_path, name), output=tmp_path / name, root=tmp_path.parent) for name in ("a", "failed")
    ]
    write_labels(tmp_path / "a.png")
    for job in jobs:  # the mask takes its place last
        write_object_table(job.file(TABLE), (1, "cell", (0, 0, 2, 2)))
    RequestedOutputs(ObjectFormat(("nothing", "cell", "dirt")), (MASK,)).write_coco(tmp_path, jobs)
    (entry,) = read_coco(tmp_path)["images"]
    assert entry["file_name"] == f"{tmp_path.name}/a.tif"


@pytest.mark.parametrize("row", [(1, "dust", (0, 0, 2, 2)), (1, "cell", (2, 2, 3, 4))], ids=["class", "place"])
def test_a_coco_file_is_not_written_of_a_table_that_is_not_of_the_mask(tmp_path, images, row):
    write_object_table(tmp_path / "c.csv", row)
    with pytest.raises(DataError, match=r"c\.csv: object 1 is not one of the mask"):
        write_coco(tmp_path, images, ("cell", "dirt"))
