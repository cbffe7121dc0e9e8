"""Where annotations, images and splits are found in a folder, and what the formats read in one way.

Modules: data_utils/sources/annotations/find.py, data_utils/sources/annotations/layout.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.annotations import loaded, masks
from support.coco_files import OBJECTS, SIZE, box, entry, write_coco
from support.data_sets import unnoticed_changes
from support.labelme_files import shape, write_labelme

from data_utils.image_io.reader import read_image
from data_utils.sources.annotations.layout import find_file, number_classes

ROOTS = {  # JSON file -> folder of the images
    "coco": ("annotations/instances_train2017.json", "train2017"),
    "coco in images": ("annotations/instances_train2017.json", "images/train2017"),
    "cvat": ("annotations/instances_default.json", "images"),
    "cvat subset": ("annotations/instances_default.json", "images/default"),
    "beside": ("annotations.json", ""),
    "above": ("annotations.json", "images"),
    "label studio": ("result.json", "images"),
    "fiftyone": ("labels.json", "data"),
    "supervisely": ("annotations/instances.json", "images"),
    "roboflow": ("train/_annotations.coco.json", "train"),
    "as in VOC": ("annotations.json", "JPEGImages"),
    "capitals": ("Annotations/instances_Train.json", "Train"),
    "year apart in images": ("annotations/instances_train_2017.json", "images/train"),
    "images below a split": ("train/annotations.json", "train/images"),
    "year apart": ("annotations/instances_train_2017.json", "train"),
}


@pytest.mark.parametrize(("file", "images"), ROOTS.values(), ids=ROOTS)
def test_images_are_found_where_tools_put_them(tmp_path, file, images):
    write_coco(tmp_path / file, [entry(1, 1, 3, [box(1, 1, 9, 9)])], tmp_path / images)
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
    file = write_coco(tmp_path / "annotations.json", [], tmp_path / "images")
    content = json.loads(file.read_text())
    for image in content["images"]:
        image["file_name"] = name.format(image["id"])
    file.write_text(json.dumps(content))
    train, val = loaded(tmp_path)
    assert sorted([*masks(train), *masks(val)]) == ["1.png", "2.png", "3.png"]


def test_the_objects_of_all_splits_may_lie_beside_those_of_each(tmp_path):
    for name in ("instances", "instances_train", "instances_val"):
        write_coco(tmp_path / f"annotations/{name}.json", OBJECTS, tmp_path / name.removeprefix("instances_"))
    train, val = loaded(tmp_path)
    assert [*masks(train)] == [*masks(val)] == ["1.png", "2.png", "3.png"]


@pytest.mark.parametrize("file", ["annotations.json", "annotations/instances_default.json", "labels/other.json"])
def test_masks_beside_the_images_stay_masks(tmp_path, file):
    write_coco(tmp_path / file, OBJECTS, tmp_path / "images")
    (tmp_path / "masks").mkdir()
    for number in (1, 2, 3):
        Image.fromarray(np.full(SIZE, number % 2, np.uint8)).save(tmp_path / "masks" / f"{number}.png")
    train, val = loaded(tmp_path)
    assert isinstance(train[0]["target"], str)
    assert train.metadata.classes == ()
    assert train.metadata.annotations is None
    assert len(train) + len(val) == 3


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a%20b.png", "images/a%20b.png"),
        ("a%20b.jpg", None),
        ("sub/1.png", "data/sub/1.png"),
        ("1.png", "images/1.png"),
    ],
    ids=["as it stands", "another ending", "with its folder", "in the first folder"],
)
def test_a_file_is_the_one_whose_path_is_nearest_to_its_name(tmp_path, name, found):
    for path in ("images/a%20b.png", "images/a b.png", "images/1.png", "data/sub/1.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    folders = [str(tmp_path / "images"), str(tmp_path / "data")]
    assert find_file(name, folders) == (found and str(tmp_path / found))


def test_no_class_has_the_ignored_value():
    classes, values = number_classes([*[f"c{number}" for number in range(300)], "background"], "a.json")
    assert [values[f"c{number}"] for number in range(300)] == [*range(1, 255), *range(256, 302)]
    assert values["background"] == 0
    assert classes[254:256] == ((254, "c253"), (256, "c254"))


@pytest.mark.parametrize(
    "content",
    [
        "Alter;Gr\xf6\xdfe\n1;2\n".encode("cp1252"),
        b"ImageId,EncodedPixels\n1.png," + b"1 2 " * 40_000 + b"\n",
        b"",
        b"image,x1,y1,x2,y2,class\n1.png,1,2,8,9,cat\n",
        b"image,landmark,x,y\n",
        b"image,label,x,y\n1.png,cell,3,4\n1.png,cell,5,6\n",
        b"image,label,x,y\n1.png,cell,left,4\n",
    ],
    ids=["cp1252", "run lengths", "empty", "boxes", "a heading alone", "counted cells", "words"],
)
def test_a_table_that_lists_no_points_is_left_alone_beside_annotations(tmp_path, content):
    write_coco(tmp_path / "result.json", OBJECTS, tmp_path / "images")
    (tmp_path / "notes.csv").write_bytes(content)
    assert len(masks([*loaded(tmp_path)[0], *loaded(tmp_path)[1]])) == 3


@pytest.mark.parametrize("file", ["annotations/instances_default.json", "result.json"])
@pytest.mark.parametrize("folder", ["annotations", "labels"])
@pytest.mark.parametrize("picture", ["panoptic_default/1.png", "overview.png", "1.png"])
def test_pictures_beside_annotations_are_no_masks_unless_most_images_have_one(tmp_path, file, folder, picture):
    write_coco(tmp_path / file, OBJECTS, tmp_path / "images")
    (tmp_path / folder / picture).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", SIZE[::-1], 9).save(tmp_path / folder / picture)
    assert {mask.max() for mask in masks(loaded(tmp_path)[0]).values()} <= {0, 1, 2, 3}
    (tmp_path / folder / picture).unlink()
    for number in (1, 2, 3):
        Image.new("L", SIZE[::-1], 9).save(tmp_path / folder / f"{number}.png")
    assert {mask.max() for mask in masks(loaded(tmp_path)[0]).values()} == {9}


@pytest.mark.parametrize(("name", "file"), [("e\u0301.png", "\u00e9.png"), ("\u00e9.png", "e\u0301.png")])
def test_a_file_is_found_however_accents_are_stored(tmp_path, name, file):
    (tmp_path / file).touch()
    assert find_file(name, [str(tmp_path)]) == str(tmp_path / file)


def write_labelme_boxes(root: Path) -> None:
    for stem in "ab":
        write_labelme(root, stem, [shape("cell", [[5, 5], [40, 40]], "rectangle")])


def write_yolo(root: Path) -> None:
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for stem in "ab":
        Image.new("L", SIZE[::-1]).save(root / "images" / f"{stem}.png")
        (root / "labels" / f"{stem}.txt").write_text("0 .1 .1 .5 .1 .5 .5\n")
    (root / "classes.txt").write_text("cell\n")


WRITERS = {
    "COCO": lambda root: write_coco(root / "result.json", OBJECTS, root / "images"),
    "labelme": write_labelme_boxes,
    "YOLO": write_yolo,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_change_of_each_file_is_noticed(tmp_path, write):
    write(tmp_path)
    files = [file for file in tmp_path.rglob("*.*") if file.name != "classes.txt"]  # its names are those of the classes
    assert unnoticed_changes(files, lambda: loaded(tmp_path)[0].digest) == []
