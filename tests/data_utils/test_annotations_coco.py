"""COCO files: masks equal to pycocotools', classes by category id, every mistake named by file and annotation.

Modules: data_utils/sources/annotations/coco.py, data_utils/sources/annotations/coco_mask.py,
data_utils/sources/annotations/find.py, data_utils/sources/annotations/layout.py.
"""

import gc
import json
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from annotations import error_of, loaded, masks
from conftest import load_info, unnoticed_changes
from in_process import run_train
from PIL import Image
from pycocotools import mask as rle_masks
from pycocotools.coco import COCO

from data_utils import pack
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.validate import check_data
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from data_utils.sources.annotations import coco
from data_utils.sources.annotations.coco_mask import encode, run_lengths
from data_utils.sources.annotations.labelme_mask import read_labelme
from data_utils.sources.annotations.layout import find_file, folder_in, holds_pictures, number_classes, read_lines
from data_utils.sources.records import Records
from runtime.errors import DataError
from tasks.overlapping import unpack_bits

SIZE = (24, 40)  # (H, W)
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "ant"}, {"id": 90, "name": "bee"}]
VALUES = {3: 1, 7: 2, 90: 3}  # by id, dense


def box(x: float, y: float, w: float, h: float) -> list[float]:
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def runs(mask: np.ndarray) -> list[int]:
    """Uncompressed RLE: lengths of alternating runs, zeros first, column by column."""
    flat = mask.ravel(order="F").astype(int)
    edges = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return lengths if flat[0] == 0 else [0, *lengths]


def disc(row: int, column: int, radius: int) -> np.ndarray:
    y, x = np.ogrid[: SIZE[0], : SIZE[1]]
    return ((y - row) ** 2 + (x - column) ** 2 <= radius**2).astype(np.uint8)


def entry(number: int, image: int, category: int, segmentation, **more) -> dict:
    return {"id": number, "image_id": image, "category_id": category, "segmentation": segmentation, "iscrowd": 0} | more


def write(
    file: Path,
    annotations: list[dict] | None,
    images: Path | None = None,
    count: int = 3,
    categories: list[dict] = CATEGORIES,
    **image_fields,
) -> Path:
    """A file of `count` images 1, 2, ... called <number>.png, and the pictures in `images`."""
    entries = [{"id": i, "file_name": f"{i}.png", "height": SIZE[0], "width": SIZE[1]} for i in range(1, count + 1)]
    content = {"images": [image | image_fields for image in entries], "categories": categories}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content if annotations is None else content | {"annotations": annotations}))
    if images is not None:
        images.mkdir(parents=True, exist_ok=True)
        for image in entries:
            pixels = np.random.default_rng(image["id"]).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / image["file_name"])
    return file


OBJECTS = [
    entry(11, 1, 3, [box(2, 2, 20, 15)]),
    entry(12, 1, 90, [[4.3, 3.1, 12.9, 5.2, 6.6, 11.4], box(15.5, 8.25, 9, 6)]),  # two parts, one object
    entry(13, 2, 7, {"size": [*SIZE], "counts": runs(disc(10, 15, 7))}),
    entry(
        14, 2, 3, {"size": [*SIZE], "counts": rle_masks.encode(np.asfortranarray(disc(12, 22, 5)))["counts"].decode()}
    ),
    entry(15, 2, 90, [box(-10, 18, 100, 30)]),  # reaches out of the image
]


@pytest.fixture
def folder(tmp_path) -> Path:
    """instances_train2017.json of three images, the last without objects, and instances_val2017.json of two."""
    write(tmp_path / "annotations/instances_train2017.json", OBJECTS, tmp_path / "train2017")
    write(tmp_path / "annotations/instances_val2017.json", [entry(1, 2, 7, [box(1, 1, 9, 9)])], tmp_path / "val2017", 2)
    (tmp_path / "annotations/captions_train2017.json").write_text("{}")
    return tmp_path


def test_masks_are_those_of_pycocotools_pixel_for_pixel(folder):
    train, val = loaded(folder)
    official = COCO(folder / "annotations/instances_train2017.json")
    masks_by_name = masks(train)
    assert [*masks_by_name] == ["1.png", "2.png", "3.png"]
    assert [*masks(val)] == ["1.png", "2.png"]
    for number in (1, 2, 3):
        expected = np.zeros(SIZE, np.uint8)
        objects = official.loadAnns(official.getAnnIds(number))
        for found in sorted(objects, key=lambda found: -int(official.annToMask(found).sum())):
            expected[official.annToMask(found) == 1] = VALUES[found["category_id"]]
        np.testing.assert_array_equal(masks_by_name[f"{number}.png"], expected)
    assert set(np.unique(masks_by_name["2.png"])) == {0, 1, 2, 3}
    assert not masks_by_name["3.png"].any()


def test_random_run_lengths_are_decoded_as_pycocotools_does(tmp_path):
    rng = np.random.default_rng(0)
    objects, expected = [], []
    for number in range(1, 31):
        mask = (rng.random(SIZE) < rng.random()).astype(np.uint8)
        counts = rle_masks.encode(np.asfortranarray(mask))["counts"].decode()
        objects.append(entry(number, number, 3, {"size": [*SIZE], "counts": counts if number % 2 else runs(mask)}))
        expected.append(mask)
    write(tmp_path / "annotations.json", objects, tmp_path, 30)
    (tmp_path / "val").mkdir()
    write(tmp_path / "val" / "annotations.json", [], tmp_path / "val", 1)
    masks_by_name = masks(loaded(tmp_path)[0])
    for number, mask in enumerate(expected, 1):
        np.testing.assert_array_equal(masks_by_name[f"{number}.png"], mask)


def test_classes_are_numbered_by_category_id_in_all_splits(folder):
    train, val = loaded(folder)
    assert train.classes == val.classes == ((0, "background"), (1, "ant"), (2, "cat"), (3, "bee"))
    info = load_dataset_info(DataConfig(str(folder)))
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")
    assert info.reader.class_pixels[2] == (masks(train)["2.png"] == 2).sum() + (masks(val)["2.png"] == 2).sum()
    other = load_dataset_info(DataConfig(str(folder), classes="0=nothing,1=a,2=b,3=c"))
    assert other.reader.class_map.names == ("nothing", "a", "b", "c")
    assert "belong to no class" in error_of(folder, classes="0=nothing,1=a")


def test_crowds_are_ignored_where_no_object_lies_on_them(tmp_path):
    crowd = {"size": [*SIZE], "counts": runs(disc(10, 15, 8))}
    objects = [entry(1, 1, 3, [box(10, 8, 4, 4)]), entry(2, 1, 7, crowd, iscrowd=1)]
    write(tmp_path / "train/annotations.json", objects, tmp_path / "train", 2)
    write(tmp_path / "val/annotations.json", objects, tmp_path / "val", 2)
    mask = masks(loaded(tmp_path)[0])["1.png"]
    assert (mask[8:12, 10:14] == 1).all()
    assert ((mask == 255) == (disc(10, 15, 8) == 1) & (mask != 1)).all()
    assert (mask == 255).any()
    info = load_dataset_info(DataConfig(str(tmp_path)))
    assert info.reader.class_map.ignore_value == 255
    assert info.reader.class_map.names == (
        "background",
        "ant",
        "cat",
        "bee",
    )
    assert any(line.startswith("2 of 4 annotated objects are crowds (iscrowd 1), and their") for line in info.warnings)
    assert "         2  ant\n         0  cat" in check_data(DataConfig(str(tmp_path)))[0]  # a crowd is no object


def test_an_image_of_nothing_but_crowds_beside_others_is_no_other_encoding(tmp_path):
    objects = [entry(1, 1, 3, [box(10, 8, 4, 4)]), entry(2, 2, 3, [box(1, 1, 9, 9)], iscrowd=1)]
    write(tmp_path / "annotations.json", objects, tmp_path, categories=[{"id": 3, "name": "ant"}])
    info = load_info(tmp_path)
    assert info.reader.class_map.ignore_value == 255
    assert not any("none holds both" in warning for warning in info.warnings)


def test_a_data_set_of_nothing_but_crowds_is_refused(tmp_path):
    crowds = [entry(number, number, 3, [box(1, 1, 9, 9)], iscrowd=1) for number in (1, 2)]
    write(tmp_path / "annotations.json", crowds, tmp_path)  # the last image has no object at all
    assert f"{tmp_path / 'annotations.json'}: every object has iscrowd 1 and would be ignored" in error_of(tmp_path)


def test_smaller_objects_lie_on_top_whatever_area_the_file_says(tmp_path):
    objects = [entry(1, 1, 3, [box(10, 10, 3, 3)], area=5000), entry(2, 1, 7, [box(5, 5, 15, 12)], area=1)]
    write(tmp_path / "annotations.json", objects, tmp_path / "images")
    train, val = loaded(tmp_path)
    mask = (masks(train) | masks(val))["1.png"]
    assert mask[11, 11] == 1
    assert mask[6, 6] == 2


ROOTS = {  # JSON file -> folder of the images
    "coco": ("annotations/instances_train2017.json", "train2017"),
    "coco in images": ("annotations/instances_train2017.json", "images/train2017"),
    "cvat": ("annotations/instances_default.json", "images"),
    "cvat subset": ("annotations/instances_default.json", "images/default"),
    "beside": ("annotations.json", ""),
    "above": ("annotations.json", "images"),
    "label studio": ("result.json", "images"),
    "fiftyone": ("labels.json", "data"),
    "roboflow": ("train/_annotations.coco.json", "train"),
    "as in VOC": ("annotations.json", "JPEGImages"),
    "capitals": ("Annotations/instances_Train.json", "Train"),
    "year apart in images": ("annotations/instances_train_2017.json", "images/train"),
    "images below a split": ("train/annotations.json", "train/images"),
    "year apart": ("annotations/instances_train_2017.json", "train"),
}


@pytest.mark.parametrize(("file", "images"), ROOTS.values(), ids=ROOTS)
def test_images_are_found_where_tools_put_them(tmp_path, file, images):
    write(tmp_path / file, [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path / images)
    train, val = loaded(tmp_path)
    masks_by_name = masks(train) | masks(val)
    assert [*sorted(masks_by_name)] == ["1.png", "2.png", "3.png"]
    assert masks_by_name["1.png"].sum() == 81
    assert all(read_image(record["image"]).shape == (*SIZE, 3) for record in [*train, *val])


@pytest.mark.parametrize(
    "name",
    [
        "images/{}.png",
        "images\\{}.png",
        "C:\\me\\images\\{}.png",
        "/data/upload/1/{}.png",
        "./sub/../{}.png",
        "{}%2Epng",
        "folder/" * 60 + "{}.png",
    ],
)
def test_file_names_of_other_machines_are_understood(tmp_path, name):
    file = write(tmp_path / "annotations.json", [], tmp_path / "images")
    content = json.loads(file.read_text())
    for image in content["images"]:
        image["file_name"] = name.format(image["id"])
    file.write_text(json.dumps(content))
    train, val = loaded(tmp_path)
    assert sorted([*masks(train), *masks(val)]) == ["1.png", "2.png", "3.png"]


def test_roboflow_splits_and_its_project_category(tmp_path):
    categories = [
        {"id": 0, "name": "cells", "supercategory": "none"},
        {"id": 1, "name": "cell", "supercategory": "cells"},
    ]
    for split in ("train", "valid", "test"):
        file = tmp_path / split / "_annotations.coco.json"
        write(file, [entry(0, 1, 1, [box(1, 1, 9, 9)])], tmp_path / split, 2, categories)
    train, val = loaded(tmp_path)
    assert train.classes == ((0, "background"), (1, "cell"))
    assert (len(train), len(val)) == (2, 2)
    assert Path(val[0]["image"]).parent.name == "valid"
    assert Path(loaded(tmp_path, val_split="test")[1][0]["image"]).parent.name == "test"
    for split in ("train", "valid"):  # no category is below it
        write(tmp_path / split / "_annotations.coco.json", [], None, 2, [categories[0], {"id": 1, "name": "cell"}])
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "cells"), (2, "cell"))
    file = tmp_path / "valid" / "_annotations.coco.json"
    write(file, [entry(0, 1, 0, [box(1, 1, 9, 9)])], None, 2, categories)  # now it is used
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "cells"), (2, "cell"))
    for split in ("train", "valid"):  # a project has the number 0
        write(tmp_path / split / "_annotations.coco.json", [], None, 2, [categories[1], {"id": 2, "name": "cells"}])
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "cell"), (2, "cells"))


def test_a_category_called_background_is_the_background(tmp_path):
    categories = [{"id": 1, "name": "Background"}, {"id": 2, "name": "cell"}]
    objects = [entry(1, 1, 2, [box(1, 1, 20, 20)]), entry(2, 1, 1, [box(5, 5, 3, 3)])]
    write(tmp_path / "annotations.json", objects, tmp_path, categories=categories)
    train, val = loaded(tmp_path)
    assert train.classes == ((0, "background"), (1, "cell"))
    mask = (masks(train) | masks(val))["1.png"]
    assert mask[2, 2] == 1
    assert mask[6, 6] == 0
    assert train.annotations.instances == {"cell": 1}
    write(tmp_path / "annotations.json", [], categories=categories[:1])
    assert f"{tmp_path / 'annotations.json'} lists no categories" in error_of(tmp_path)


def test_images_of_16_bits_and_sizes_that_the_file_leaves_out(tmp_path):
    write(tmp_path / "annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path, height=None, width=None)
    for number in (1, 2, 3):
        Image.fromarray(np.full(SIZE, 1000 * number, np.uint16)).save(tmp_path / f"{number}.png")
    train, val = loaded(tmp_path)
    masks_by_name = masks(train) | masks(val)
    assert masks_by_name["1.png"].shape == SIZE
    assert masks_by_name["1.png"].sum() == 81
    assert load_dataset_info(DataConfig(str(tmp_path))).normalization.pixel_types == ("uint16",)


BAD_OBJECTS = {
    "two points": (entry(17, 1, 3, [[1, 1, 5, 5]]), "annotation 17 of 1.png: polygon 1 has 2 points, at least 3"),
    "objects": (entry(17, 1, 3, [[{}] * 6]), "annotation 17 of 1.png: polygon 1 has points that are not pairs"),
    "odd": (entry(17, 1, 3, [[1, 1, 5, 5, 6]]), "annotation 17 of 1.png: polygon 1 has 5 coordinates, an odd number"),
    "second part": (entry(17, 1, 3, [box(1, 1, 5, 5), [1, 1]]), "annotation 17 of 1.png: polygon 2 has 1 points"),
    "text": (entry(17, 1, 3, [["a", "b"] * 3]), "annotation 17 of 1.png: polygon 1 has points that are not"),
    "NaN": (entry(17, 1, 3, [[1, 1, 5, float("nan"), 9, 9]]), "polygon 1 has a coordinate that is NaN"),
    "far": (entry(17, 1, 3, [[1, 1, 5, 1e12, 9, 9]]), "polygon 1 has a coordinate that is NaN, infinite or far"),
    "box only": (entry(17, 1, 3, []), "annotation 17 of 1.png has a box but no segmentation"),
    "null": (entry(17, 1, 3, None), "annotation 17 of 1.png has a box but no segmentation"),
    "category": (
        entry(17, 1, 4, [box(1, 1, 5, 5)]),
        "annotation 17 of 1.png is of category 4, which the file does not",
    ),
    "category as text": (
        entry(17, 1, "3", [box(1, 1, 5, 5)]),
        "annotation 17 of 1.png is of category '3', which the file does not list",
    ),
    "size": (entry(17, 1, 3, {"size": [9, 9], "counts": [81]}), "annotation 17 of 1.png is no RLE of 24 x 40"),
    "short": (entry(17, 1, 3, {"size": [*SIZE], "counts": [3, 5]}), "run lengths that do not add up to 24 x 40"),
    "long": (entry(17, 1, 3, {"size": [*SIZE], "counts": [3, 5000]}), "run lengths that do not add up to 24 x 40"),
    "fraction": (entry(17, 1, 3, {"size": [*SIZE], "counts": [0.5, 959.5]}), "run lengths that do not add up"),
    "negative": (entry(17, 1, 3, {"size": [*SIZE], "counts": [-40, 1000]}), "run lengths that do not add up"),
    "short text": (entry(17, 1, 3, {"size": [*SIZE], "counts": "35"}), "run lengths that do not add up"),
    "no text": (entry(17, 1, 3, {"size": [*SIZE], "counts": "\u00e9~"}), "run lengths that do not add up"),
    "a number": (entry(17, 1, 3, 5), "annotation 17 of 1.png is no RLE of 24 x 40"),
}


@pytest.mark.parametrize(("wrong", "message"), BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_a_bad_object_is_named_and_its_image_can_be_skipped(folder, wrong, message):
    file = write(folder / "annotations/instances_train2017.json", [*OBJECTS[2:], wrong])
    assert f"1 of 3 pairs cannot be used: {file}: " in error_of(folder)
    assert message in error_of(folder)
    report, count = check_data(DataConfig(str(folder)))
    assert count == 1
    assert message in report
    assert [*load_dataset_info(DataConfig(str(folder), on_bad_sample="skip")).train.bad] == [0]


def test_what_is_wrong_with_a_file_is_one_line(folder):
    train, val = (folder / f"annotations/instances_{split}2017.json" for split in ("train", "val"))
    good = train.read_text()
    for content, message in (
        ("{", "cannot be read as JSON (Expecting property name"),
        ("[]", "cannot be read as JSON (it holds a list, expected an object)"),
        ('{"images": []}', ": no images with annotations"),
        ("{}", "is no COCO file of objects: it has no list 'categories'"),
        ('{"images": 3}', "is no COCO file of objects: it has no list 'images'"),
        ('{"images": [{"id": 1}]}', ": entry 0 of 'images' lacks file_name"),
        ('{"images": [], "categories": ["a"]}', ": entry 0 of 'categories' lacks id, name"),
    ):
        train.write_text(content)
        assert f"{train}{'' if message[0] == ':' else ' '}{message}" in error_of(folder), content
    strays = [entry(number, 99, 3, [box(1, 1, 2, 2)]) for number in range(20, 25)]
    write(train, strays)
    message = (
        "annotation 20 is of image 99, which it does not list; annotation 21 is of image 99, which it does not list"
    )
    assert message in error_of(folder)
    assert "23" not in error_of(folder).partition(";")[2]
    assert "..." in error_of(folder)
    content = json.loads(train.read_text())
    train.write_text(json.dumps(content | {"images": [*content["images"], content["images"][0]], "annotations": []}))
    assert f"{train}: 4 images have only 3 different ids" in error_of(folder)
    write(train, [], categories=[{"id": 7, "name": "dog"}])
    assert f"category 7 is 'dog' in {train}, 'cat' in {val}; they must agree" in error_of(folder)
    write(train, [], categories=[*CATEGORIES, {"id": 91, "name": "cat"}])
    assert "two classes are called cat" in error_of(folder)
    write(train, [], categories=[{"id": i, "name": f"c{i}"} for i in range(300) if i not in VALUES] + CATEGORIES)
    assert "300 classes; a mask has room for 254" in error_of(folder)
    train.write_text(good)
    (folder / "annotations/instances_train2014.json").write_text(good)
    assert "are both the split train; keep one" in error_of(folder)


BAD_FIELDS = {  # list, field, value -> the message
    "image id": ("images", "id", [1], "has id [1], expected a number or text"),
    "file name": ("images", "file_name", None, "has file_name None, expected text"),
    "height in words": ("images", "height", "forty", "has height 'forty', expected 0 to 1,000,000 pixels"),
    "negative height": ("images", "height", -40, "has height -40, expected 0 to 1,000,000 pixels"),
    "vast width": ("images", "width", 10**6, "has width 1000000, expected 0 to 1,000,000 pixels"),
    "image of an object": ("annotations", "image_id", [1], "has image_id [1], expected a number or text"),
    "category of an object": ("annotations", "category_id", {}, "has category_id {}, expected a number or text"),
    "category id": ("categories", "id", "a", "has id 'a', expected a number"),
    "category name": ("categories", "name", None, "has name None, expected a number or text"),
}


@pytest.mark.parametrize(("key", "field", "value", "message"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_field_of_another_type_is_named(folder, key, field, value, message):
    file = folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content[key][1][field] = value
    file.write_text(json.dumps(content))
    assert error_of(folder) == f"{file}: entry 1 of {key!r} {message}"


def test_a_category_may_be_called_by_a_number(tmp_path):
    objects = [entry(1, 1, 1, [box(1, 1, 9, 9)])]
    write(tmp_path / "annotations.json", objects, tmp_path, categories=[{"id": 1, "name": 5, "supercategory": ["x"]}])
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "5"))


def test_images_that_are_not_there_are_named_or_left_out(folder):
    (folder / "train2017/2.png").unlink()
    assert (
        "instances_train2017.json: 1 files without partner: 2.png: listed, but the file is missing; --allow-un"
        in error_of(folder)
    )
    train, _ = loaded(folder, allow_unpaired=True)
    assert [*masks(train)] == ["1.png", "3.png"]
    assert len(train.unpaired) == 1
    assert train.annotations.annotated == 1
    assert train.annotations.empty == 1
    report, count = check_data(DataConfig(str(folder)))
    assert count == 1
    assert "2.png: listed, but the file is missing" in report
    for number in (1, 3):
        (folder / f"train2017/{number}.png").unlink()
    message = error_of(folder, allow_unpaired=True)  # nothing would be left
    assert "3 files without partner: 1.png: listed, but the file is missing; 2.png" in message
    assert "--allow-unpaired" not in message


def test_one_image_listed_twice_is_refused(folder):
    file = folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["images"][2]["file_name"] = "2.png"
    file.write_text(json.dumps(content))
    assert "1 images are listed more than once" in error_of(folder)
    assert "2.png" in error_of(folder)


def test_a_split_may_have_no_annotations(tmp_path):
    write(tmp_path / "train/annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path / "train")
    write(tmp_path / "val/annotations.json", None, tmp_path / "val", 2)
    assert not any(mask.any() for mask in masks(loaded(tmp_path)[1]).values())


def test_records_are_small_and_reach_loader_processes(folder):
    train, _ = loaded(folder)
    copy = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(masks(copy)["2.png"], masks(train)["2.png"])
    assert len(pickle.dumps(train[2]["target"])) < 600
    assert not any(isinstance(value, list | dict) and len(value) > 3 for value in vars(train).values())


def test_a_changed_file_is_noticed(folder):
    before = load_dataset_info(DataConfig(str(folder))).reader.class_pixels
    digest = loaded(folder)[0].digest
    write(folder / "annotations/instances_train2017.json", [*OBJECTS, entry(16, 3, 7, [box(0, 0, 8, 8)])])
    assert loaded(folder)[0].digest != digest
    assert load_dataset_info(DataConfig(str(folder))).reader.class_pixels[2] == before[2] + 64
    digest = loaded(folder)[0].digest
    one_more = [*CATEGORIES, {"id": 1, "name": "first"}]  # of the other split, which moves all values by one
    write(folder / "annotations/instances_val2017.json", [], None, 2, one_more)
    assert loaded(folder)[0].digest != digest
    assert load_dataset_info(DataConfig(str(folder))).reader.class_pixels[3] > 0
    digest = loaded(folder)[0].digest
    one_more[-1]["name"] = "another"  # before all others too
    write(folder / "annotations/instances_val2017.json", [], None, 2, one_more)
    assert loaded(folder)[0].digest != digest
    digest = loaded(folder)[0].digest
    Image.new("RGB", SIZE[::-1], (1, 2, 3)).save(loaded(folder)[0][0]["target"].image)
    assert loaded(folder)[0].digest != digest


def test_the_key_of_the_content_changes_with_each_file(folder):
    files = [Path(record["image"]) for split in loaded(folder) for record in split]
    files += (folder / "annotations").glob("instances_*.json")
    assert len(files) == 7
    assert unnoticed_changes(files, lambda: [split.digest for split in loaded(folder)]) == []
    digest = loaded(folder)[0].digest
    file = folder / "annotations/instances_train2017.json"
    time = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace('"3.png"', '"4.png"'))
    os.utime(file, ns=(time, time))
    (folder / "train2017/3.png").rename(folder / "train2017/4.png")
    assert loaded(folder)[0].digest != digest


def test_the_folders_of_images_are_those_of_all_of_them(tmp_path):
    file = write(tmp_path / "annotations.json", [], count=2)
    content = json.loads(file.read_text())
    for image, site in zip(content["images"], ("north", "south"), strict=True):
        image["file_name"] = f"{site}/{image['file_name']}"
        (tmp_path / "images" / site).mkdir(parents=True)
        (tmp_path / "images" / image["file_name"]).touch()
    file.write_text(json.dumps(content))
    records = coco.load(tmp_path, coco.find(tmp_path, ()), allow_unpaired=False)["train"]()
    assert records.image_folders() == {(str(tmp_path / "images"), site) for site in ("north", "south")}


def test_the_report_shows_what_was_found(folder):
    report, count = check_data(DataConfig(str(folder)))
    assert count == 0
    assert "annotations: COCO; 3 images with objects, 2 without\nobjects of each class\n" in report
    for line in ("         2  ant", "         2  cat", "         2  bee"):
        assert line in report.splitlines()
    held_out = folder / "flat"  # one split, of which a part is held out: counted once
    write(held_out / "annotations.json", OBJECTS, held_out / "images")
    report, _ = check_data(DataConfig(str(held_out)))
    assert "annotations: COCO; 2 images with objects, 1 without" in report
    assert "         2  ant" in report.splitlines()


def test_packed_it_is_the_same_data_set(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["pack", str(folder), str(out)])
    pack.main()
    assert f"4 classes; train with --classes {out / 'classes.json'}" in capsys.readouterr().out
    train, val = loaded(folder)
    for ours, packed in zip((train, val), loaded(out), strict=True):
        for record, stored in zip(ours, packed, strict=True):
            assert stored["name"] == record["name"]
            np.testing.assert_array_equal(read_mask(stored["target"], ""), read_mask(record["target"], ""))
            np.testing.assert_array_equal(read_image(stored["image"]), read_image(record["image"]))
    info = load_dataset_info(DataConfig(str(out), classes=str(out / "classes.json")))
    assert info.reader.class_map.names == ("background", "ant", "cat", "bee")


def test_training_keeps_the_names_of_the_classes(folder, tmp_path):
    flags = ["--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0", "--tracker", "none"]
    flags += ["--plan", "none"]
    run = run_train(tmp_path / "run", "--dataset", folder, *flags, "--max-steps", "2", "--batch-size", "2")
    assert run.exit_code == 0, run.output
    assert run.config["preprocess"]["class_names"] == ["background", "ant", "cat", "bee"]
    assert run.config["preprocess"]["class_values"] == [0, 1, 2, 3]
    assert "eval/iou/cat" in run.records[-1] or any("eval/iou/cat" in record for record in run.records)


def test_masks_beside_the_images_stay_masks(tmp_path):
    write(tmp_path / "annotations.json", OBJECTS, tmp_path / "images")
    (tmp_path / "masks").mkdir()
    for number in (1, 2, 3):
        Image.fromarray(np.full(SIZE, number % 2, np.uint8)).save(tmp_path / "masks" / f"{number}.png")
    train, val = loaded(tmp_path)
    assert isinstance(train[0]["target"], str)
    assert train.classes == ()
    assert train.annotations is None
    assert len(train) + len(val) == 3


def test_a_large_image_is_read_in_windows_with_its_drawn_mask(tmp_path, monkeypatch):
    write(tmp_path / "annotations.json", [entry(1, 1, 3, [box(20, 4, 9, 9)])], count=2)
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


def labels_of(records: Records) -> dict[str, tuple[str, ...] | None]:
    return {records.name(i): records.labeled(i) for i in range(len(records))}


def test_images_are_labeled_for_the_categories_that_their_file_lists(folder):
    train = folder / "annotations/instances_train2017.json"
    assert {*labels_of(loaded(folder)[0]).values()} == {None}
    write(folder / "annotations/instances_val2017.json", [], None, 2, [c for c in CATEGORIES if c["id"] != 7])
    train, val = loaded(folder)
    names = tuple(sorted(c["name"] for c in CATEGORIES if c["id"] != 7))
    assert labels_of(train) == {f"{i}.png": None for i in (1, 2, 3)}
    assert labels_of(val) == {f"{i}.png": names for i in (1, 2)}
    assert list(val.label_sets.values()) == [f"{folder / 'annotations/instances_val2017.json'}: its categories"]
    write(folder / "annotations/instances_val2017.json", [], None, 2, [])  # it says nothing of categories
    assert labels_of(loaded(folder)[1]) == {"1.png": None, "2.png": None}


@pytest.mark.parametrize("names", [("train_cars", "train_people"), ("cars", "people")])
def test_several_files_of_one_split_are_joined(tmp_path, names):
    """Two people have drawn different things, each with ids from 1, on images of which they share one."""
    cars, people = (tmp_path / "annotations" / f"instances_{name}.json" for name in names)
    write(cars, [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path / "images", 1, [{"id": 1, "name": "car"}])
    categories = [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}]
    write(
        people,
        [entry(1, 1, 1, [box(12, 12, 5, 5)]), entry(2, 2, 2, [box(2, 2, 4, 4)])],
        tmp_path / "images",
        2,
        categories,
    )
    train, val = loaded(tmp_path)
    assert train.classes == ((0, "background"), (1, "car"), (2, "person"), (3, "dog"))
    assert labels_of(train) | labels_of(val) == {"1.png": None, "2.png": ("dog", "person")}
    (tmp_path / "images/1.png").rename(tmp_path / "1.bak")
    records = coco.load(tmp_path, coco.find(tmp_path, ()), allow_unpaired=True)["train"]()
    assert labels_of(records) == {"2.png": ("dog", "person")}
    (tmp_path / "1.bak").rename(tmp_path / "images/1.png")
    masks_by_name = {**masks(train), **masks(val)}
    assert [np.unique(masks_by_name[f"{i}.png"]).tolist() for i in (1, 2)] == [[0, 1, 2], [0, 3]]
    for file in (cars, people):
        before = loaded(tmp_path)[0].digest
        text = file.read_text()
        file.write_text(text.replace('"id": 1', '"id":  1'))
        assert loaded(tmp_path)[0].digest != before
    write(people, [entry(1, 2, 8, [box(2, 2, 4, 4)])], None, 2, categories)
    train, val = loaded(tmp_path)
    message = f"{people}: annotation 1 of 2.png is of category '8', which the file does not list"
    with pytest.raises(DataError, match=re.escape(message)):
        {**masks(train), **masks(val)}


def test_a_file_of_a_split_stands_alone_where_it_has_the_name_of_the_split(folder):
    before = masks(loaded(folder)[0])
    write(folder / "annotations/instances_train_small.json", [entry(1, 1, 7, [box(1, 1, 9, 9)])], None, 1)
    np.testing.assert_equal(masks(loaded(folder)[0]), before)


def test_a_split_has_its_name_in_any_case_and_files_of_test_are_read_only_where_they_are_named(tmp_path):
    for name, count in (("Train_2017", 1), ("Val2017", 2), ("test-dev2017", 3)):
        categories = [{"id": 1, "name": "other"}] if name.startswith("test") else CATEGORIES
        write(tmp_path / f"annotations/instances_{name}.json", [], tmp_path / "images" / name, count, categories)
    splits = loaded(tmp_path)
    assert [len(split) for split in splits] == [1, 2]
    assert len(splits[0].classes) == 4
    assert [len(split) for split in loaded(tmp_path, val_split="Test-dev")] == [1, 3]


def test_a_class_that_only_the_files_of_another_split_name_has_a_number_of_its_own(tmp_path):
    for name, category in (("train_cars", "car"), ("train_people", "person"), ("val_birds", "bird")):
        file = tmp_path / f"annotations/instances_{name}.json"
        write(file, [entry(1, 1, 1, [box(1, 1, 9, 9)])], tmp_path / name, 1, [{"id": 1, "name": category}])
    train, val = loaded(tmp_path)
    assert train.classes == val.classes == ((0, "background"), (1, "car"), (2, "person"), (3, "bird"))
    assert masks(val)["1.png"].max() == 3


def test_a_category_called_background_is_none_that_an_image_is_labeled_for(tmp_path):
    categories = [{"id": 1, "name": "background"}, {"id": 2, "name": "cell"}, {"id": 3, "name": "nucleus"}]
    write(tmp_path / "train/annotations.json", [], tmp_path / "train", 1, categories)
    write(tmp_path / "val/annotations.json", [], tmp_path / "val", 1, categories[:2])
    assert labels_of(loaded(tmp_path)[1]) == {"1.png": ("cell",)}


def test_an_object_without_id_is_named_by_its_number(tmp_path):
    nameless = entry(0, 1, 3, [[1, 1, 5, 5]])
    del nameless["id"]
    write(tmp_path / "annotations.json", [entry(9, 2, 3, [box(1, 1, 9, 9)]), nameless], tmp_path)
    assert "annotation number 1 of 1.png: polygon 1 has 2 points" in error_of(tmp_path)


@pytest.mark.parametrize("content", ['{"images": []}', "{"])
def test_the_collector_of_garbage_is_on_after_reading(folder, content):
    (folder / "annotations/instances_val2017.json").write_text(content)
    with pytest.raises(DataError):
        loaded(folder)
    assert gc.isenabled()


def test_a_picture_may_be_smaller_than_the_file_says_by_8_times(tmp_path):
    height, width = SIZE
    size = {"height": 8 * height, "width": 8 * width}
    write(tmp_path / "annotations.json", [entry(1, 1, 3, [box(9, 9, 72, 72)])], tmp_path, **size)
    train, val = loaded(tmp_path)
    mask = (masks(train) | masks(val))["1.png"]
    assert mask.shape == (8 * height, 8 * width)
    assert mask.sum() == 72 * 72
    write(tmp_path / "annotations.json", [], tmp_path, height=9 * height, width=9 * width)
    assert "the file gives it 216 x 360 pixels (height x width), but the picture has 24 x 40" in error_of(tmp_path)
    write(tmp_path / "annotations.json", [], tmp_path, height=width, width=height)
    assert "image is 24 x 40, its mask 40 x 24 (height x width); they differ in proportions" in error_of(tmp_path)
    write(tmp_path / "annotations.json", [entry(1, 1, 3, [box(9, 9, 9, 9)])], tmp_path, height=height, width=0)
    assert masks(loaded(tmp_path)[0]).popitem()[1].shape == SIZE  # half a size is none


def test_outlines_far_outside_are_read_up_to_a_million_pixels(tmp_path):
    objects = [entry(1, 1, 3, [[0, 0, 999_000, 0, 0, 999_000]]), entry(2, 2, 3, [box(500, 500, 9, 9)])]
    write(tmp_path / "annotations.json", objects, tmp_path)
    train, val = loaded(tmp_path)
    masks_by_name = masks(train) | masks(val)
    assert masks_by_name["1.png"].all()
    assert not masks_by_name["2.png"].any()
    write(tmp_path / "annotations.json", [entry(1, 1, 3, [[0, 0, 1_000_000, 0, 0, 9]])], tmp_path)
    assert "polygon 1 has a coordinate that is NaN, infinite or far outside" in error_of(tmp_path)


@pytest.mark.parametrize("character", ["/", "p"])
def test_a_character_beside_those_of_run_lengths_is_named(character):
    assert run_lengths("0") == [0]
    assert run_lengths("o0") == [31]
    with pytest.raises(ValueError, match=f"'{character}' is no part of one here"):
        run_lengths(f"0{character}0")


@pytest.mark.parametrize("size", [(10, 100), (100, 10)])
def test_an_outline_far_around_a_long_picture_covers_it(size):
    far = 900_000
    assert rle_masks.area(encode([[-far, -far, far, -far, far, far, -far, far]], *size, "a")) == 1000


def test_an_edge_to_a_corner_far_outside_is_drawn_where_it_crosses_the_picture():
    height, width = 20, 30
    far = [[-900_000, 0], [2, 0], [602_002, 900_000]]  # to the left, and down along x = 2 + 2 y / 3
    mask = rle_masks.decode(encode([[side for corner in far for side in corner]], height, width, "a"))
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    edge = 2 + 2 * y / 3
    assert mask[x < edge - 1].all()
    assert not mask[x > edge + 1].any()


def test_a_run_of_no_pixels_is_no_mistake(tmp_path):
    whole = [0, SIZE[0] * SIZE[1]]
    write(tmp_path / "annotations.json", [entry(1, 1, 3, {"size": [*SIZE], "counts": whole})], tmp_path)
    train, val = loaded(tmp_path)
    assert (masks(train) | masks(val))["1.png"].all()


def test_a_file_is_looked_for_by_its_name_as_it_stands_first_and_with_its_folders_first(tmp_path):
    names = ("images/a%20b.png", "images/a b.png", "images/1.png", "data/sub/1.png")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    folders = [str(tmp_path / "images"), str(tmp_path / "data")]
    file_of_name = {name: find_file(name, folders) for name in ("a%20b.png", "a%20b.jpg", "sub/1.png", "1.png")}
    expected = {"a%20b.png": names[0], "a%20b.jpg": None, "sub/1.png": names[3], "1.png": names[2]}
    assert file_of_name == {name: path and str(tmp_path / path) for name, path in expected.items()}


@pytest.mark.parametrize(
    ("name", "is_picture"), [("a.PNG", True), ("._a.png", False), ("sub/a.jpg", True), ("a.txt", False)]
)
def test_a_folder_of_pictures_holds_one_that_is_not_hidden(tmp_path, name, is_picture):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert holds_pictures(tmp_path) == is_picture


def test_a_mask_has_room_for_254_classes_beside_the_background():
    names = [f"c{number}" for number in range(255)]
    classes, values = number_classes(names[:254], "a.json")
    assert values == [*range(1, 255)]
    assert classes[-1] == (254, "c253")
    with pytest.raises(DataError, match=r"a\.json: 255 classes; a mask has room for 254 beside the background"):
        number_classes(names, "a.json")


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "annotations.json").mkdir()
    assert f"{tmp_path / 'annotations.json'} cannot be read as JSON (" in error_of(tmp_path)


def test_a_class_is_known_where_an_object_of_it_lies_on_a_crowd_of_it(tmp_path):
    objects = [entry(1, 1, 3, [box(2, 2, 20, 15)], iscrowd=1), entry(2, 1, 3, [box(5, 5, 4, 4)])]
    write(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1)
    write(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    truth, unknown = unpack_bits(loaded(tmp_path)[0][0]["target"].render_classes({1: 0}))
    assert (truth[6, 6], unknown[6, 6]) == (1, 0)
    assert (truth[3, 3], unknown[3, 3]) == (0, 1)


def test_the_later_one_of_two_objects_of_one_size_lies_on_top_and_crowds_below_both(tmp_path):
    objects = [entry(1, 1, 7, [box(4, 4, 9, 9)]), entry(2, 1, 3, [box(8, 4, 9, 9)])]
    objects.append(entry(3, 1, 90, [box(2, 2, 20, 4)], iscrowd=1))
    write(tmp_path / "annotations.json", objects, tmp_path, 1)
    write(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    target = loaded(tmp_path)[0][0]["target"]
    mask = target.render()
    assert (mask[8, 5], mask[8, 10], mask[5, 10], mask[3, 3]) == (2, 1, 1, 255)
    numbers, values = target.render_objects()
    assert values.tolist() == [0, 255, 2, 1]
    assert (numbers[8, 5], numbers[8, 10], numbers[3, 3]) == (2, 3, 1)
    truth, unknown = unpack_bits(target.render_classes({1: 0, 2: 2, 3: 1}))
    assert (truth[8, 10], truth[5, 10], unknown[5, 10], unknown[3, 3]) == (5, 5, 2, 2)
    truth, unknown = unpack_bits(target.render_classes({2: 0}))  # the others are not asked for
    assert (truth[8, 10], truth[8, 15]) == (1, 0)
    assert not unknown.any()


def test_an_image_whose_size_the_file_does_not_say_has_a_mask_of_its_own_size(tmp_path):
    file = write(tmp_path / "annotations.json", [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path)
    content = json.loads(file.read_text())
    for image in content["images"]:
        del image["height"], image["width"]
    file.write_text(json.dumps(content))
    train, val = loaded(tmp_path)
    assert (masks(train) | masks(val))["1.png"].shape == SIZE


def test_an_image_may_have_more_than_255_objects(tmp_path):
    boxes = [box(2 * (i % 20), 2 * (i // 20), 1, 1) for i in range(240)]
    objects = [entry(i, 1, 3, [points]) for i, points in enumerate([*boxes, *boxes[:60]])]
    write(tmp_path / "annotations.json", objects, tmp_path, 2)
    train, val = loaded(tmp_path)
    numbers, values = next(record for record in [*train, *val] if record["name"] == "1.png")["target"].render_objects()
    assert numbers.max() == 300
    assert len(values) == 301


def test_objects_of_one_class_share_its_bit_whichever_that_is(tmp_path):
    objects = [entry(1, 1, 3, [box(1, 1, 4, 4)]), entry(2, 1, 3, [box(20, 9, 4, 4)])]
    write(tmp_path / "train/annotations.json", objects, tmp_path / "train", 1)
    write(tmp_path / "val/annotations.json", objects, tmp_path / "val", 1)
    truth, unknown = unpack_bits(loaded(tmp_path)[0][0]["target"].render_classes({1: 20}))
    assert truth[2, 2] == truth[10, 21] == 2**20
    assert truth.sum() == 32 * 2**20
    assert not unknown.any()


def test_splits_are_those_that_names_of_files_say(tmp_path):
    folder = tmp_path / "annotations"
    for name in ("val2017", "val_2017", "val-2017"):
        file = write(folder / f"instances_{name}.json", [])
        assert coco.find(tmp_path, ()) == {"val": (tmp_path, file)}
        file.unlink()
    write(folder / "instances_val.json", [])
    for name in ("train-cars", "train.people"):
        write(folder / f"instances_{name}.json", [])
    assert {*coco.find(tmp_path, ())} == {"val", "train/train-cars", "train/train.people"}


def test_images_of_each_split_lie_in_a_folder_of_its_name(tmp_path):
    for split in ("train", "val"):
        write(tmp_path / f"annotations/instances_{split}_2017.json", [], tmp_path / split, 2)
    for split, records in zip(("train", "val"), loaded(tmp_path), strict=True):
        assert records[0]["image"] == str(tmp_path / split / "1.png")


def test_an_image_is_that_of_the_first_of_the_folders_that_hold_one_of_its_name(tmp_path):
    folders = ["images/train_2017", "train_2017", "images/train", "train", "images", "data", "JPEGImages", ""]
    file = tmp_path / "annotations/instances_train_2017.json"
    for folder in folders:
        write(file, [], tmp_path / folder, 1)
    splits = coco.find(tmp_path, ())
    for folder in folders:
        (record,) = coco.load(tmp_path, splits, allow_unpaired=False)["train"]()
        assert record["image"] == str(tmp_path / folder / "1.png")
        (tmp_path / folder / "1.png").unlink()


def test_a_category_may_have_the_number_0(tmp_path):
    categories = [{"id": number, "name": name} for number, name in enumerate(("ant", "bee", "cat"))]
    write(tmp_path / "train/annotations.json", [entry(1, 1, 0, [box(1, 1, 9, 9)])], tmp_path / "train", 1, categories)
    write(tmp_path / "val/annotations.json", [], tmp_path / "val", 1, categories[:2])
    train, val = loaded(tmp_path)
    assert masks(train)["1.png"].max() == 1
    assert labels_of(val) == {"1.png": ("ant", "bee")}


def test_a_split_may_be_called_by_what_a_pattern_would_be(tmp_path):
    for name in ("train", "fold(1_cars", "fold(1_people"):
        write(tmp_path / f"annotations/instances_{name}.json", [])
    splits = coco.find(tmp_path, ("train", "fold(1"))
    assert {*splits} == {"train", "fold(1/fold(1_cars", "fold(1/fold(1_people"}


def test_crowds_alone_in_one_split_are_no_mistake(tmp_path):
    for split, crowd in (("train", 1), ("val", 0)):
        objects = [entry(1, 1, 3, [box(1, 1, 9, 9)], iscrowd=crowd)]
        write(tmp_path / split / "annotations.json", objects, tmp_path / split, 1)
    assert [split.annotations.crowds for split in loaded(tmp_path)] == [1, 0]


@pytest.mark.parametrize("using", ["train", "valid"])
def test_a_category_0_that_one_split_uses_is_a_class_of_both(tmp_path, using):
    categories = [{"id": 0, "name": "cells", "supercategory": "none"}]
    categories += [{"id": 1, "name": "cell", "supercategory": "cells"}]
    for split in ("train", "valid"):
        objects = [entry(1, 1, 0 if split == using else 1, [box(1, 1, 9, 9)])]
        write(tmp_path / split / "_annotations.coco.json", objects, tmp_path / split, 1, categories)
    assert loaded(tmp_path)[0].classes == ((0, "background"), (1, "cells"), (2, "cell"))


def test_a_category_0_that_is_used_is_a_class_of_files_that_are_joined(tmp_path):
    categories = [{"id": 0, "name": "cells", "supercategory": "none"}]
    categories += [{"id": 1, "name": "cell", "supercategory": "cells"}]
    for used, names in (((0, 1), ["cells", "cell"]), ((1, 1), ["cell"])):
        for name, category in zip(("train_a", "train_b"), used, strict=True):
            objects = [entry(1, 1, category, [box(1, 1, 9, 9)])]
            write(tmp_path / f"annotations/instances_{name}.json", objects, tmp_path / "images", 2, categories)
        assert loaded(tmp_path)[0].classes == tuple(enumerate(["background", *names]))


def test_a_file_is_not_looked_for_above_the_folders_and_is_no_folder(tmp_path):
    (tmp_path / "images/sub").mkdir(parents=True)
    (tmp_path / "1.png").touch()
    folders = [str(tmp_path / "images")]
    assert find_file("../1.png", folders) is None
    assert find_file("sub", folders) is None


def test_a_file_of_annotations_has_up_to_four_gigabytes(tmp_path, monkeypatch):
    file = write(tmp_path / "annotations.json", OBJECTS)
    (tmp_path / "a.json").write_text('{"shapes": []}')
    mode = os.stat(file).st_mode
    monkeypatch.setattr("os.fstat", lambda stream: SimpleNamespace(st_mode=mode, st_size=2**32))
    assert len(coco.read(file).images) == 3
    assert len(read_lines(file)) == 1
    assert read_labelme(str(tmp_path / "a.json")) == {"shapes": []}


def test_a_file_alone_is_that_of_training_whatever_it_is_called(tmp_path):
    file = write(tmp_path / "annotations/instances_default.json", [])
    assert coco.find(tmp_path, ()) == {"train": (tmp_path, file)}


def test_a_folder_of_the_first_name_is_taken_and_lines_of_a_text_file_may_have_a_mark_before_them(tmp_path):
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
    assert folder_in(tmp_path, ("c", "b", "a")) == tmp_path / "B"
    assert folder_in(tmp_path, ("c",)) is None
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert read_lines(tmp_path / "a.txt") == ["one", "two"]
    assert read_lines("") == []
    (tmp_path / "a.txt").write_bytes(b"\xff")
    for name in ("a.txt", "none.txt"):
        with pytest.raises(DataError, match=f"{name} cannot be read as text"):
            read_lines(tmp_path / name)
