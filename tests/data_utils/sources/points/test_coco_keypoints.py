"""Keypoints of COCO: which files they are found in, what their visibility says, and how they are written."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.points import (
    COCO_CATEGORY,
    COCO_CONTENT,
    COCO_OBJECT,
    NAMES,
    SIZE,
    coco_content,
    coco_text,
    point_table,
    reading_error,
    write_annotated_dots,
    write_points,
)

from data_utils.config import DataConfig
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.load import find_in_folder, load_records
from data_utils.sources.points import files
from data_utils.sources.points.coco_keypoints import find_keypoints


def test_visibility_of_keypoints_is_present_or_unknown(tmp_path):
    content = coco_content(["a.png"], np.ones((1, 3, 2)))
    content["annotations"][0]["keypoints"] = [1, 2, 0, 3, 4, 1, 5, 6, 2]
    content["annotations"].append({"id": 9, "image_id": 7, "category_id": 1, "keypoints": [0] * 9})  # nothing labeled
    content["images"].append({"id": 8, "file_name": "b.png"})
    (tmp_path / "a.json").write_text(json.dumps(content))
    table = files.read(tmp_path / "a.json")
    assert table.states.tolist() == [[UNKNOWN, PRESENT, PRESENT], [UNKNOWN] * 3]
    assert table.positions[0, 1:].tolist() == [[3, 4], [5, 6]]


def test_keypoints_beside_outlines_are_read_where_they_are_asked_for_or_alone(tmp_path):
    write_annotated_dots(tmp_path, "coco")
    file = tmp_path / "annotations" / "person_keypoints_train2017.json"
    content = json.loads(file.read_text())
    for entry in content["annotations"]:
        entry["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    objects = [{key: entry[key] for key in entry if key != "keypoints"} for entry in content["annotations"]]
    outlines = file.with_name("instances_train2017.json")
    changes = {"annotations": objects, "categories": [{"id": 1, "name": "mouse"}], "info": {"keypoints": "none"}}
    outlines.write_text(json.dumps(content | changes))
    config = DataConfig(str(tmp_path), val_fraction=0.5)
    assert load_records(config)[0].metadata.landmarks is None
    assert load_records(replace(config, task="landmarks"))[0].metadata.landmarks.names == NAMES
    outlines.unlink()
    assert load_records(config)[0].metadata.landmarks.names == NAMES


def test_files_of_one_split_are_joined(tmp_path):
    (tmp_path / "annotations").mkdir()
    for part in ("train_a", "train_b", "val"):
        content = coco_content([f"{part}.png"], np.ones((1, 3, 2)))
        (tmp_path / "annotations" / f"keypoints_{part}.json").write_text(json.dumps(content))
    tables = find_keypoints(tmp_path, (), explicit=False)
    assert {split: table.images for split, table in tables.items()} == {
        "train": ("train_a.png", "train_b.png"),
        "val": ("val.png",),
    }


def test_keypoints_with_outlines_in_a_file_of_any_objects_are_found_on_demand(tmp_path):
    # one of two objects has an outline
    content = coco_content(["a.png", "b.png"], np.ones((2, 3, 2)))
    content["annotations"][1]["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    assert find_keypoints(tmp_path, (), explicit=False) == {}
    assert find_keypoints(tmp_path, (), explicit=True)["train"].names == NAMES


def test_images_of_keypoints_lie_in_the_folder_that_is_named_as_their_file_ends(tmp_path):
    (tmp_path / "person_keypoints_train2017.json").write_text(json.dumps(COCO_CONTENT))
    (tmp_path / "images" / "train2017").mkdir(parents=True)
    Image.new("L", SIZE[::-1]).save(tmp_path / "images" / "train2017" / "a.png")
    splits = find_in_folder(tmp_path, (), DataConfig(str(tmp_path), task="landmarks"))
    assert splits["train"]()[0]["image"] == str(tmp_path / "images" / "train2017" / "a.png")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations": [COCO_OBJECT | {"keypoints": [1, 2, 2] * 4}]}, "has 12 numbers, expected x, y and v of 3"),
        ({"annotations": [COCO_OBJECT | {"keypoints": [[1, 2, 2]] * 2}]}, "has 2 numbers, expected x, y and v of 3"),
        ({"annotations": [COCO_OBJECT | {"keypoints": [1, 2, 3] * 3}]}, "v of 'nose' is 3, expected"),
        ({"annotations": [COCO_OBJECT | {"keypoints": [1, 1e300, 2] * 3}]}, "is not within"),
        ({"annotations": [COCO_OBJECT, COCO_OBJECT]}, "keypoints of 2 objects; several animals"),
        ({"categories": [COCO_CATEGORY | {"keypoints": ["nose", "nose", "ear"]}]}, "'mouse' names its keypoints"),
    ],
    ids=["many", "nested", "visibility of 3", "far", "two objects", "one name"],
)
def test_keypoints_that_are_no_points_of_one_object_are_refused(tmp_path, changes, message):
    assert message in reading_error(tmp_path / "a.json", coco_text(**changes))


def test_names_of_keypoints_are_those_of_the_category_that_an_object_has(tmp_path):
    cat = COCO_CATEGORY | {"id": 2, "name": "cat", "keypoints": ["paw"]}
    other = COCO_OBJECT | {"category_id": 3, "keypoints": [7, 7, 2]}
    text = coco_text(
        categories=[cat, COCO_CATEGORY, {"id": 3, "name": "box"}],  # no object is a cat, and a box names no keypoints
        annotations=[COCO_OBJECT, other],
    )
    (tmp_path / "a.json").write_text(text)
    table = files.read(tmp_path / "a.json")
    assert table.names == NAMES
    assert [entry.size for entry in table.entries] == [SIZE]


def test_keypoints_without_names_are_numbered(tmp_path):
    face = COCO_CATEGORY | {"keypoints": []}  # as MMPose's faces
    (tmp_path / "annotations.json").write_text(coco_text(categories=[face]))
    assert find_keypoints(tmp_path, (), explicit=False)["train"].names == ("1", "2", "3")


def test_written_points_are_keypoints_of_one_object_of_coco_whose_score_is_their_mean_confidence(tmp_path):
    positions = np.array([[[2.0, 9.0], [5.0, 4.0], [1.0, 90.0]]])
    points = ("coco", "abc", ("one.png",), positions, np.array([[PRESENT, PRESENT, ABSENT]]))
    content = json.loads(write_points(tmp_path, point_table(*points)).read_text())
    (entry,) = content["annotations"]
    assert entry["keypoints"] == [2, 9, 2, 5, 4, 2, 0, 0, 0]
    assert entry["bbox"] == [2, 4, 3, 5]  # about the points that are there
    assert entry["area"] == 15
    assert (entry["num_keypoints"], entry["iscrowd"]) == (2, 0)
    assert entry["image_id"] == content["images"][0]["id"]
    assert "score" not in entry
    confidence = np.array([[0.25, 0.5, 0.75]])
    predicted = point_table(*points, confidence=confidence, presence=np.ones((1, 3)))
    (entry,) = json.loads(write_points(tmp_path, predicted).read_text())["annotations"]
    assert entry["score"] == 0.5
    assert entry["keypoint_confidence"] == confidence[0].tolist()
