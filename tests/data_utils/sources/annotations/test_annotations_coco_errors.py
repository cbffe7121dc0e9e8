"""Mistakes in COCO files, each named by file and annotation in one line."""

import json
from pathlib import Path

import pytest
from support.annotations import drawing_error, error_of, loaded
from support.coco_files import OBJECTS, SIZE, box, entry, write_coco, write_splits

from data_utils.config import DataConfig
from tasks.classes.loss import Classes
from tasks.objects.loss import Objects
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_splits(tmp_path)


BAD_OBJECTS = {
    "two points": (
        entry(17, 1, 3, [[1, 1, 5, 5]]),
        "annotation 17 of 1.png: polygon 1 has 4 coordinates up to 5, expected 3 pairs",
    ),
    "text": (entry(17, 1, 3, [["a", "b"] * 3]), "annotation 17 of 1.png: polygon 1 has points that are not"),
    "NaN": (entry(17, 1, 3, [[1, 1, 5, float("nan"), 9, 9]]), "polygon 1 has 6 coordinates up to nan, expected"),
    "far": (
        entry(17, 1, 3, [[1, 1, 5, 1e12, 9, 9]]),
        "polygon 1 has 6 coordinates up to 1e+12, expected 3 pairs or more, up to 100,000",
    ),
    "box only": (entry(17, 1, 3, []), "annotation 17 of 1.png has a box but no segmentation"),
    "category": (
        entry(17, 1, 4, [box(1, 1, 5, 5)]),
        "annotation 17 of 1.png is of category 4, which the file does not",
    ),
    "size": (entry(17, 1, 3, {"size": [9, 9], "counts": [81]}), "annotation 17 of 1.png is no RLE of 24 x 40"),
    "short": (entry(17, 1, 3, {"size": [*SIZE], "counts": [3, 5]}), "run lengths that do not add up to 24 x 40"),
    "negative": (entry(17, 1, 3, {"size": [*SIZE], "counts": [-40, 1000]}), "run lengths that do not add up"),
    "no text": (entry(17, 1, 3, {"size": [*SIZE], "counts": "\u00e9~"}), "run lengths that do not add up"),
}


@pytest.mark.parametrize(("wrong", "message"), BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_an_object_that_cannot_be_drawn_is_named(folder, wrong, message):
    file = write_coco(folder / "annotations/instances_train2017.json", [*OBJECTS[2:], wrong])
    assert drawing_error(loaded(folder)[0], "1.png").startswith(f"{file}: ")
    assert message in drawing_error(loaded(folder)[0], "1.png")


def test_an_image_of_a_bad_object_is_a_bad_sample(folder):
    wrong, message = BAD_OBJECTS["two points"]
    file = write_coco(folder / "annotations/instances_train2017.json", [*OBJECTS[2:], wrong])
    assert f"1 of 3 pairs cannot be used: {file}: {message}" in error_of(folder)
    report, count = check_data(DataConfig(str(folder)))
    assert count == 1
    assert message in report
    assert [*load_dataset_info(DataConfig(str(folder), on_bad_sample="skip")).train.bad] == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", " cannot be read as JSON (Expecting property name"),
        ('{"images": []}', ": no images with masks"),
        ("{}", " is no COCO file of objects: it has no list 'categories'"),
        ('{"images": [{"id": 1}]}', ": entry 0 of 'images' has file_name None, expected text"),
    ],
)
def test_a_file_of_another_kind_is_a_one_line_error(folder, content, message):
    file = folder / "annotations/instances_train2017.json"
    file.write_text(content)
    assert f"{file}{message}" in error_of(folder)


BAD_FIELDS = {  # list, field, value -> the message
    "file name": ("images", "file_name", None, "has file_name None, expected text"),
    "category of an object": ("annotations", "category_id", {}, "has category_id {}, expected a number or text"),
    "category id": ("categories", "id", "a", "has id 'a', expected a number"),
}


@pytest.mark.parametrize(("key", "field", "value", "message"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_field_of_another_type_is_named(folder, key, field, value, message):
    file = folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content[key][1][field] = value
    file.write_text(json.dumps(content))
    assert error_of(folder) == f"{file}: entry 1 of {key!r} {message}"


def test_objects_of_images_that_are_not_listed_are_named_up_to_three(folder):
    strays = [entry(number, 99, 3, [box(1, 1, 2, 2)]) for number in range(20, 25)]
    write_coco(folder / "annotations/instances_train2017.json", strays)
    message = error_of(folder)
    assert "annotation 20 is of image 99, which it does not list; annotation 21 is of image 99, which it" in message
    assert "23" not in message.partition(";")[2]
    assert "..." in message


def test_an_id_of_two_images_or_categories_is_refused(folder):
    file = write_coco(folder / "annotations/instances_train2017.json", [])
    content = json.loads(file.read_text())
    first, *others = content["categories"]
    file.write_text(json.dumps(content | {"categories": [first, *others, first | {"name": "other"}]}))
    assert f"{len(others) + 2} categories have only {len(others) + 1} different ids" in error_of(folder)
    file.write_text(json.dumps(content | {"images": [*content["images"], content["images"][0]]}))
    assert f"{file}: 4 images have only 3 different ids" in error_of(folder)


def test_a_category_of_two_names_is_refused(folder):
    train, val = (folder / f"annotations/instances_{split}2017.json" for split in ("train", "val"))
    write_coco(train, [], categories=[{"id": 7, "name": "dog"}])
    assert f"{val}: category 7 is 'cat' here, 'dog' in {train} or another file; they must agree" in error_of(folder)


def test_more_categories_than_a_model_may_have_are_refused_unless_some_are_chosen(tmp_path):
    categories = [{"id": number, "name": f"c{number}"} for number in range(1, 301)]
    objects = [entry(1, 1, 290, [box(1, 1, 9, 9)]), entry(2, 1, 5, [box(20, 1, 9, 9)])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, categories=categories)
    assert "301 classes, expected 2 to 255; choose some with --classes NAME,..." in error_of(tmp_path)
    for task in (Classes, Objects):
        info = load_dataset_info(DataConfig(str(tmp_path), classes="c290,c1", task=task.name))
        record = next(record for record in [*info.train.records, *info.val.records] if record["name"] == "1.png")
        target = info.reader.read(record, SIZE)
        assert (target.main == 1).sum() == 81
        assert (target.main > 0).sum() == 81


def test_one_image_listed_twice_is_refused(folder):
    file = folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["images"][2]["file_name"] = "2.png"
    file.write_text(json.dumps(content))
    assert "lists 1 image more than once" in error_of(folder)
    assert "2.png" in error_of(folder)
