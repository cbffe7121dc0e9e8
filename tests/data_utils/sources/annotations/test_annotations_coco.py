"""Data sets of COCO files: classes by category id, splits of one file or several, changes that are noticed.

Modules: data_utils/sources/annotations/coco.py.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.annotations import loaded, masks
from support.coco_files import (
    CATEGORIES,
    SIZE,
    box,
    entry,
    labels_of,
    write_coco,
    write_crowded_splits,
    write_splits,
)

from data_utils import pack
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from runtime.errors import DataError
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info


def test_classes_are_numbered_by_category_id_in_all_splits(tmp_path):
    folder = write_splits(tmp_path)
    train, val = loaded(folder)
    assert train.metadata.classes == val.metadata.classes == ((0, "background"), (1, "ant"), (2, "cat"), (3, "bee"))
    info = load_dataset_info(DataConfig(str(folder)))
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")
    report, count = check_data(DataConfig(str(folder)))
    assert count == 0
    assert "annotations: COCO; 3 images with objects, 2 without\nobjects of each class\n" in report
    assert {"         2  ant", "         2  cat", "         2  bee"} <= {*report.splitlines()}
    assert info.reader.class_pixels[2] == (masks(train)["2.png"] == 2).sum() + (masks(val)["2.png"] == 2).sum()


def test_crowds_are_reported_apart_from_the_objects(tmp_path):
    crowded = write_crowded_splits(tmp_path)
    info = load_dataset_info(DataConfig(str(crowded)))
    assert info.reader.class_map.ignore_value == 255
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")
    assert any(line.startswith("2 of 4 annotated objects are crowds (iscrowd 1)") for line in info.warnings)
    assert "         2  ant\n         0  cat" in check_data(DataConfig(str(crowded)))[0]


ROBOFLOW = [  # a project, which Roboflow lists as a category above the classes
    {"id": 0, "name": "cells", "supercategory": "none"},
    {"id": 1, "name": "cell", "supercategory": "cells"},
]


def write_roboflow(root: Path, categories: list[dict], **category_of_object: int) -> None:
    """Two images a split, the first with an object where the split is named by a category."""
    for split in ("train", "valid", "test"):
        number = category_of_object.get(split)
        objects = [] if number is None else [entry(0, 1, number, [box(1, 1, 9, 9)])]
        write_coco(root / split / "_annotations.coco.json", objects, root / split, 2, categories)


def test_roboflow_splits_are_train_valid_and_test(tmp_path):
    write_roboflow(tmp_path, ROBOFLOW, train=1, valid=1, test=1)
    train, val = loaded(tmp_path)
    assert len(train) == 2
    assert len(val) == 2
    assert Path(val[0]["image"]).parent.name == "valid"
    assert Path(loaded(tmp_path, val_split="test")[1][0]["image"]).parent.name == "test"


@pytest.mark.parametrize(
    ("categories", "used", "classes"),
    [
        (ROBOFLOW, {"train": 1, "valid": 1}, ["cell"]),
        ([*ROBOFLOW, {"id": 2, "name": "bud"}], {}, ["cell", "bud"]),
        (ROBOFLOW, {"train": 0, "valid": 1}, ["cells", "cell"]),
    ],
    ids=["above another", "above one of two", "used"],
)
def test_a_project_of_roboflow_is_a_class_unless_unused_above_others(tmp_path, categories, used, classes):
    write_roboflow(tmp_path, categories, **used)
    assert loaded(tmp_path)[0].metadata.classes == tuple(enumerate(["background", *classes]))


def test_a_category_called_background_is_the_background(tmp_path):
    categories = [{"id": 1, "name": "Background"}, {"id": 2, "name": "cell"}]
    objects = [entry(1, 1, 2, [box(1, 1, 20, 20)]), entry(2, 1, 1, [box(5, 5, 3, 3)])]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, categories=categories)
    train, val = loaded(tmp_path)
    assert train.metadata.classes == ((0, "background"), (1, "cell"))
    mask = (masks(train) | masks(val))["1.png"]
    assert mask[2, 2] == 1
    assert mask[6, 6] == 0
    assert sum((record["target"].objects() for record in (*train, *val)), Counter()) == {1: 1}


def test_a_packed_data_set_is_the_same(tmp_path, monkeypatch, capsys):
    folder, out = write_splits(tmp_path), tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["pack", str(folder), str(out)])
    pack.main()
    assert f"4 classes; train with --classes {out / 'classes.json'}" in capsys.readouterr().out
    for ours, packed in zip(loaded(folder), loaded(out), strict=True):
        for record, stored in zip(ours, packed, strict=True):
            assert stored["name"] == record["name"]
            np.testing.assert_array_equal(read_mask(stored["target"], ""), read_mask(record["target"], ""))
            np.testing.assert_array_equal(read_image(stored["image"]), read_image(record["image"]))
    info = load_dataset_info(DataConfig(str(out), classes=str(out / "classes.json")))
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")


def test_a_large_image_is_read_in_windows_with_its_drawn_mask(tmp_path, monkeypatch):
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, [box(20, 4, 9, 9)])], count=2)
    content = json.loads((tmp_path / "annotations.json").read_text())
    for image in content["images"]:
        image["file_name"] = f"{image['id']}.npy"
        np.save(tmp_path / image["file_name"], np.zeros((*SIZE, 3), np.uint8))
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    info = load_dataset_info(DataConfig(str(tmp_path), crop_size=(8, 8)))
    class_locations = [*info.train.class_locations.values()]
    assert class_locations
    assert info.reader.class_map.names[1] == "ant"


def test_images_of_a_file_with_fewer_categories_are_labeled_for_these(tmp_path):
    folder = write_splits(tmp_path)
    file = folder / "annotations/instances_val2017.json"
    write_coco(file, [], None, 2, [c for c in CATEGORIES if c["id"] != 7])
    train, val = loaded(folder)
    assert labels_of(train) == {f"{i}.png": None for i in (1, 2, 3)}
    assert labels_of(val) == {f"{i}.png": ("ant", "bee") for i in (1, 2)}
    assert list(val.metadata.label_sets.values()) == [f"{file}: its categories"]


PEOPLE = [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}]


@pytest.mark.parametrize("names", [("train_cars", "train_people"), ("cars", "people")], ids=["train_*", "any names"])
def test_files_of_one_split_are_joined_and_images_labeled_for_the_categories_of_theirs(tmp_path, names):
    """Two people have drawn different things, with ids from 1, and share one image."""
    cars, people = (tmp_path / f"annotations/instances_{name}.json" for name in names)
    write_coco(cars, [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path / "images", 1, [{"id": 1, "name": "car"}])
    objects = [entry(1, 1, 1, [box(12, 12, 5, 5)]), entry(2, 2, 2, [box(2, 2, 4, 4)])]
    write_coco(people, objects, tmp_path / "images", 2, PEOPLE)
    train, val = loaded(tmp_path)
    assert train.metadata.classes == ((0, "background"), (1, "car"), (2, "person"), (3, "dog"))
    masks_by_name = masks(train) | masks(val)
    assert np.unique(masks_by_name["1.png"]).tolist() == [0, 1, 2]
    assert np.unique(masks_by_name["2.png"]).tolist() == [0, 3]
    assert labels_of(train) | labels_of(val) == {"1.png": None, "2.png": ("dog", "person")}


@pytest.mark.parametrize("is_crowd", [False, True], ids=["objects", "areas that parts ignore"])
def test_a_copy_of_a_file_is_refused(tmp_path, is_crowd):
    for number, name in enumerate(("default", "default (1)")):
        objects = [entry(1, 1, 1, [box(1, 1, 9, 9)], iscrowd=int(is_crowd))]
        objects += [entry(2, 1, 1, [box(20, 1 + number, 9, 9)])]
        write_coco(tmp_path / f"annotations/instances_{name}.json", objects, tmp_path / "images", 2, PEOPLE)
    if is_crowd:
        assert sum(map(len, loaded(tmp_path))) == 2
        return
    with pytest.raises(DataError, match=r"annotation 1 of 1\.png is in another file .*keep one of them"):
        loaded(tmp_path)


@pytest.mark.parametrize(("val_split", "images"), [(None, [1, 2]), ("Test-dev", [1, 3])])
def test_splits_are_found_by_their_names_in_any_case(tmp_path, val_split, images):
    for name, count in (("Train_2017", 1), ("Val2017", 2), ("test-dev2017", 3)):
        categories = [{"id": 1, "name": "other"}] if name.startswith("test") else CATEGORIES
        write_coco(tmp_path / f"annotations/instances_{name}.json", [], tmp_path / "images" / name, count, categories)
    assert [len(split) for split in loaded(tmp_path, val_split=val_split)] == images


def test_a_split_that_is_not_read_has_no_say_in_the_classes(tmp_path):
    categories = {"train": CATEGORIES, "val": CATEGORIES, "test": [{"id": 1, "name": "other"}]}
    for name, listed in categories.items():
        write_coco(tmp_path / f"annotations/instances_{name}.json", [], tmp_path / name, 1, listed)
    assert loaded(tmp_path)[0].metadata.classes == ((0, "background"), (1, "ant"), (2, "cat"), (3, "bee"))
