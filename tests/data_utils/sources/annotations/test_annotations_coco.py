"""Data sets of COCO files: classes by category id, splits of one file or several, changes that are noticed.

Modules: data_utils/sources/annotations/coco.py, data_utils/sources/annotations/coco_file.py.
"""

import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.annotations import error_of, loaded, masks
from support.coco_files import (
    CATEGORIES,
    OBJECTS,
    SIZE,
    box,
    entry,
    labels_of,
    write_coco,
    write_crowded_splits,
    write_splits,
)
from support.data_sets import load_info, unnoticed_changes
from support.in_process import run_train
from support.launches import TINY

from data_utils import pack
from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from data_utils.sources.annotations import coco
from runtime.errors import DataError


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_splits(tmp_path)


def test_classes_are_numbered_by_category_id_in_all_splits(folder):
    train, val = loaded(folder)
    assert train.metadata.classes == val.metadata.classes == ((0, "background"), (1, "ant"), (2, "cat"), (3, "bee"))
    info = load_dataset_info(DataConfig(str(folder)))
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")
    assert info.reader.class_pixels[2] == (masks(train)["2.png"] == 2).sum() + (masks(val)["2.png"] == 2).sum()


def test_objects_are_kept_with_what_rendering_needs(folder):
    file = folder / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    for annotation in content["annotations"]:
        annotation["attributes"] = {"note": "seen by two"}
    file.write_text(json.dumps(content))
    train, _ = loaded(folder)
    assert b"seen by two" not in pickle.dumps([record["target"] for record in train])


def test_classes_have_other_names_where_the_flag_gives_them(folder):
    info = load_dataset_info(DataConfig(str(folder), classes="0=nothing,1=a,2=b,3=c"))
    assert info.reader.class_map.names == ("nothing", "a", "b", "c")
    assert "belong to no class" in error_of(folder, classes="0=nothing,1=a")


def test_crowds_are_reported_apart_from_the_objects(tmp_path):
    crowded = write_crowded_splits(tmp_path)
    info = load_dataset_info(DataConfig(str(crowded)))
    assert info.reader.class_map.ignore_value == 255
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")
    assert any(line.startswith("2 of 4 annotated objects are crowds (iscrowd 1)") for line in info.warnings)
    assert "         2  ant\n         0  cat" in check_data(DataConfig(str(crowded)))[0]


def test_an_image_of_nothing_but_crowds_beside_others_is_no_other_encoding(tmp_path):
    objects = [entry(1, 1, 3, [box(10, 8, 4, 4)]), entry(2, 2, 3, [box(1, 1, 9, 9)], iscrowd=1)]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, categories=[{"id": 3, "name": "ant"}])
    info = load_info(tmp_path)
    assert info.reader.class_map.ignore_value == 255
    assert not any("none holds both" in warning for warning in info.warnings)


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
        ([ROBOFLOW[0], {"id": 1, "name": "cell"}], {}, ["cells", "cell"]),
        (ROBOFLOW, {"train": 0, "valid": 1}, ["cells", "cell"]),
        (ROBOFLOW, {"train": 1, "valid": 0}, ["cells", "cell"]),
        ([ROBOFLOW[1], {"id": 2, "name": "cells"}], {}, ["cell", "cells"]),
    ],
    ids=["above another", "above one of two", "above none", "used in training", "used in validation", "not number 0"],
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
    assert train.annotations.instances == {"cell": 1}


def test_an_object_called_background_has_a_number_of_its_own(tmp_path):
    objects = [entry(1, 1, 2, [box(1, 1, 20, 20)]), entry(2, 1, 1, [box(5, 5, 3, 3)])]
    categories = [{"id": 1, "name": "Background"}, {"id": 2, "name": "cell"}]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 1, categories)
    (record,) = coco.load(tmp_path, coco.find(tmp_path, ()), allow_unpaired=False)["train"]()
    numbers, values = record["target"].render_objects()
    assert numbers[6, 6] == 2
    assert values.tolist() == [0, 1, 0]


def test_images_of_16_bits_are_read_at_their_own_size(tmp_path):
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path, height=None, width=None)
    for number in (1, 2, 3):
        Image.fromarray(np.full(SIZE, 1000 * number, np.uint16)).save(tmp_path / f"{number}.png")
    train, val = loaded(tmp_path)
    masks_by_name = masks(train) | masks(val)
    assert masks_by_name["1.png"].shape == SIZE
    assert masks_by_name["1.png"].sum() == 81
    assert load_dataset_info(DataConfig(str(tmp_path))).normalization.pixel_types == ("uint16",)


def test_a_category_may_be_called_by_a_number(tmp_path):
    categories = [{"id": 1, "name": 5, "supercategory": ["x"]}]
    write_coco(tmp_path / "annotations.json", [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path, categories=categories)
    assert loaded(tmp_path)[0].metadata.classes == ((0, "background"), (1, "5"))


def test_a_split_may_have_no_annotations(tmp_path):
    write_coco(tmp_path / "train/annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path / "train")
    write_coco(tmp_path / "val/annotations.json", None, tmp_path / "val", 2)
    assert not any(mask.any() for mask in masks(loaded(tmp_path)[1]).values())


def test_records_reach_loader_processes_in_few_bytes(folder):
    train, _ = loaded(folder)
    copy = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(masks(copy)["2.png"], masks(train)["2.png"])
    assert len(pickle.dumps(train[2]["target"])) < 600
    assert not any(isinstance(value, list | dict) and len(value) > 3 for value in vars(train).values())


def test_another_object_is_noticed(folder):
    before = load_dataset_info(DataConfig(str(folder))).reader.class_pixels
    digest = loaded(folder)[0].digest
    objects = [*OBJECTS, entry(16, 3, 7, [box(0, 0, 8, 8)])]
    write_coco(folder / "annotations/instances_train2017.json", objects)
    assert loaded(folder)[0].digest != digest
    assert load_dataset_info(DataConfig(str(folder))).reader.class_pixels[2] == before[2] + 64


def test_a_category_of_the_other_split_is_noticed(folder):
    load_dataset_info(DataConfig(str(folder)))
    digest = loaded(folder)[0].digest
    categories = [*CATEGORIES, {"id": 1, "name": "first"}]  # it moves the values of all others by one
    write_coco(folder / "annotations/instances_val2017.json", [], None, 2, categories)
    assert loaded(folder)[0].digest != digest
    assert load_dataset_info(DataConfig(str(folder))).reader.class_pixels[3] > 0


def test_another_name_of_a_category_is_noticed(folder):
    file = folder / "annotations/instances_val2017.json"
    digests = set()
    for name in ("first", "another"):  # both stand before all others
        write_coco(file, [], None, 2, [*CATEGORIES, {"id": 1, "name": name}])
        digests.add(loaded(folder)[0].digest)
    assert len(digests) == 2


def test_another_picture_is_noticed(folder):
    train, _ = loaded(folder)
    digest = train.digest
    assert train.digest is digest  # it is computed once
    Image.new("RGB", SIZE[::-1], (1, 2, 3)).save(train[0]["target"].image)
    assert loaded(folder)[0].digest != digest


def test_a_change_of_each_file_is_noticed(folder):
    files = [Path(record["image"]) for split in loaded(folder) for record in split]
    files += (folder / "annotations").glob("instances_*.json")
    assert len(files) == 7
    assert unnoticed_changes(files, lambda: [split.digest for split in loaded(folder)]) == []


def test_another_name_of_an_image_is_noticed(folder):
    digest = loaded(folder)[0].digest
    file = folder / "annotations/instances_train2017.json"
    time = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace('"3.png"', '"4.png"'))
    os.utime(file, ns=(time, time))
    (folder / "train2017/3.png").rename(folder / "train2017/4.png")
    assert loaded(folder)[0].digest != digest


def test_the_report_counts_images_with_objects_and_objects_of_each_class(folder):
    report, count = check_data(DataConfig(str(folder)))
    assert count == 0
    assert "annotations: COCO; 3 images with objects, 2 without\nobjects of each class\n" in report
    assert {"         2  ant", "         2  cat", "         2  bee"} <= {*report.splitlines()}


def test_the_report_counts_one_file_once_where_a_part_is_held_out(tmp_path):
    write_coco(tmp_path / "annotations.json", OBJECTS, tmp_path / "images")
    report, _ = check_data(DataConfig(str(tmp_path)))
    assert "annotations: COCO; 2 images with objects, 1 without" in report
    assert "         2  ant" in report.splitlines()


def test_a_packed_data_set_is_the_same(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
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


def test_training_keeps_the_names_of_the_classes(folder, tmp_path):
    flags = [*TINY, "--tracker", "none", "--max-steps", "2", "--batch-size", "2"]
    run = run_train(tmp_path / "run", "--dataset", folder, *flags)
    assert run.exit_code == 0, run.output
    assert run.config["preprocess"]["class_names"] == ["background", "ant", "cat", "bee"]
    assert run.config["preprocess"]["class_values"] == [0, 1, 2, 3]
    assert any("eval/iou/cat" in record for record in run.records)


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


def test_images_of_a_file_with_all_categories_are_labeled_for_all(folder):
    assert {*labels_of(loaded(folder)[0]).values()} == {None}


def test_images_of_a_file_with_fewer_categories_are_labeled_for_these(folder):
    file = folder / "annotations/instances_val2017.json"
    write_coco(file, [], None, 2, [c for c in CATEGORIES if c["id"] != 7])
    train, val = loaded(folder)
    assert labels_of(train) == {f"{i}.png": None for i in (1, 2, 3)}
    assert labels_of(val) == {f"{i}.png": ("ant", "bee") for i in (1, 2)}
    assert list(val.metadata.label_sets.values()) == [f"{file}: its categories"]


def test_images_of_a_file_without_categories_are_labeled_for_all(folder):
    write_coco(folder / "annotations/instances_val2017.json", [], None, 2, [])
    assert labels_of(loaded(folder)[1]) == {"1.png": None, "2.png": None}


PEOPLE = [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}]


@pytest.fixture(params=[("train_cars", "train_people"), ("cars", "people")], ids=["train_*", "any names"])
def joined(request, tmp_path) -> tuple[Path, Path, Path]:
    """A data set and its two files: two people have drawn different things, with ids from 1, and share one image."""
    cars, people = (tmp_path / f"annotations/instances_{name}.json" for name in request.param)
    write_coco(cars, [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path / "images", 1, [{"id": 1, "name": "car"}])
    objects = [entry(1, 1, 1, [box(12, 12, 5, 5)]), entry(2, 2, 2, [box(2, 2, 4, 4)])]
    write_coco(people, objects, tmp_path / "images", 2, PEOPLE)
    return tmp_path, cars, people


def test_files_of_one_split_are_joined(joined):
    root, _, _ = joined
    train, val = loaded(root)
    assert train.metadata.classes == ((0, "background"), (1, "car"), (2, "person"), (3, "dog"))
    masks_by_name = masks(train) | masks(val)
    assert np.unique(masks_by_name["1.png"]).tolist() == [0, 1, 2]
    assert np.unique(masks_by_name["2.png"]).tolist() == [0, 3]


def test_images_of_joined_files_are_labeled_for_the_categories_of_their_files(joined):
    root, _, _ = joined
    train, val = loaded(root)
    assert labels_of(train) | labels_of(val) == {"1.png": None, "2.png": ("dog", "person")}


def test_images_of_joined_files_keep_their_labels_where_one_is_missing(joined):
    root, _, _ = joined
    (root / "images/1.png").unlink()
    records = coco.load(root, coco.find(root, ()), allow_unpaired=True)["train"]()
    assert labels_of(records) == {"2.png": ("dog", "person")}


def test_an_image_of_joined_files_has_the_size_that_the_first_one_says(joined):
    root, cars, people = joined
    for file, scale in ((cars, 2), (people, 1)):
        content = json.loads(file.read_text())
        content["images"][0] |= {"height": scale * SIZE[0], "width": scale * SIZE[1]}
        file.write_text(json.dumps(content))
    records = coco.load(root, coco.find(root, ()), allow_unpaired=False)["train"]()
    assert [record["target"].render().shape for record in records] == [(48, 80), SIZE]


def test_an_object_needs_neither_an_id_nor_a_word_on_crowds(tmp_path):
    objects = [{"image_id": 1, "category_id": 3, "segmentation": [box(1, 1, 9, 9)]}]
    write_coco(tmp_path / "annotations.json", objects, tmp_path, 1)
    (record,) = coco.load(tmp_path, coco.find(tmp_path, ()), allow_unpaired=False)["train"]()
    assert record["target"].render().sum() == 81


@pytest.mark.parametrize("changed", [1, 2], ids=["first file", "second file"])
def test_a_change_of_each_of_the_joined_files_is_noticed(joined, changed):
    root, file = joined[0], joined[changed]
    digest = loaded(root)[0].digest
    file.write_text(file.read_text().replace('"id": 1', '"id":  1'))
    assert loaded(root)[0].digest != digest


def test_a_category_that_one_of_the_joined_files_does_not_list_is_named(joined):
    root, _, people = joined
    write_coco(people, [entry(1, 2, 8, [box(2, 2, 4, 4)])], None, 2, PEOPLE)
    train, val = loaded(root)
    message = f"{people}: annotation 1 of 2.png is of category '8', which the file does not list"
    with pytest.raises(DataError, match=re.escape(message)):
        masks([*train, *val])


def test_a_file_of_a_split_stands_alone_where_it_has_the_name_of_the_split(folder):
    before = masks(loaded(folder)[0])
    write_coco(folder / "annotations/instances_train_small.json", [entry(1, 1, 7, [box(1, 1, 9, 9)])], None, 1)
    np.testing.assert_equal(masks(loaded(folder)[0]), before)


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


def test_a_class_that_only_another_split_names_has_a_number_of_its_own(tmp_path):
    for name, category in (("train_cars", "car"), ("train_people", "person"), ("val_birds", "bird")):
        file = tmp_path / f"annotations/instances_{name}.json"
        write_coco(file, [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path / name, 1, [{"id": 1, "name": category}])
    train, val = loaded(tmp_path)
    assert train.metadata.classes == val.metadata.classes == ((0, "background"), (1, "car"), (2, "person"), (3, "bird"))
    assert masks(val)["1.png"].max() == 3


def test_images_are_not_labeled_for_a_category_called_background(tmp_path):
    categories = [{"id": 1, "name": "background"}, {"id": 2, "name": "cell"}, {"id": 3, "name": "nucleus"}]
    write_coco(tmp_path / "train/annotations.json", [], tmp_path / "train", 1, categories)
    write_coco(tmp_path / "val/annotations.json", [], tmp_path / "val", 1, categories[:2])
    assert labels_of(loaded(tmp_path)[1]) == {"1.png": ("cell",)}


def test_a_category_may_have_the_number_0(tmp_path):
    categories = [{"id": number, "name": name} for number, name in enumerate(("ant", "bee", "cat"))]
    objects = [entry(1, 1, 0, [box(1, 1, 9, 9)])]
    write_coco(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1, categories)
    write_coco(tmp_path / "val/annotations.json", [], tmp_path / "val", 1, categories[:2])
    train, val = loaded(tmp_path)
    assert masks(train)["1.png"].max() == 1
    assert labels_of(val) == {"1.png": ("ant", "bee")}


def test_crowds_alone_in_one_split_are_no_mistake(tmp_path):
    for split, crowd in (("train", 1), ("val", 0)):
        objects = [entry(number, 1, 3, [box(1, 1, 9, 9)], iscrowd=crowd) for number in (1, 2)]
        write_coco(tmp_path / split / "annotations.json", objects, tmp_path / split, 1)
    train, val = loaded(tmp_path)
    assert train.annotations.crowds == 2
    assert train.annotations.annotated == 1
    assert val.annotations.crowds == 0


@pytest.mark.parametrize(("used", "names"), [((0, 1), ["cells", "cell"]), ((1, 1), ["cell"])])
def test_a_project_of_joined_files_is_a_class_where_one_uses_it(tmp_path, used, names):
    for name, category in zip(("train_a", "train_b"), used, strict=True):
        objects = [entry(1, 1, category, [box(1, 1, 9, 9)])]
        write_coco(tmp_path / f"annotations/instances_{name}.json", objects, tmp_path / "images", 2, ROBOFLOW)
    assert loaded(tmp_path)[0].metadata.classes == tuple(enumerate(["background", *names]))
