"""Data sets of labelme files: found beside the images, apart or with the images inside, classes by name.

Modules: data_utils/sources/annotations/labelme.py.
"""

import json
import pickle

import numpy as np
import pytest
from support.annotations import error_of, loaded
from support.labelme_files import BOX, SIZE, SPLITS, masks_of, png, shape, write_labelme

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info


def test_classes_are_the_names_of_all_splits_in_their_order_or_that_of_labels_txt(tmp_path):
    for split, labels in (("train", "zb"), ("val", "ay")):
        for stem in "12":
            write_labelme(tmp_path / split, stem, [shape(label, BOX, "rectangle") for label in labels])
    for records in loaded(tmp_path):
        assert records.metadata.classes == ((0, "background"), (1, "a"), (2, "b"), (3, "y"), (4, "z"))
    (tmp_path / "labels.txt").write_text("__ignore__\n_background_\nz\n y \nb\n\na\n")
    for records in loaded(tmp_path):
        assert records.metadata.classes == ((0, "background"), (1, "z"), (2, "y"), (3, "b"), (4, "a"))
    assert read_mask(loaded(tmp_path)[0][0]["target"], "")[20, 20] == 3


PLACES = {  # JSON files -> images
    "beside": ("", ""),
    "beside in images": ("images", "images"),
    "apart": ("labels", "images"),
    "annotations": ("annotations", "imgs"),
    "json": ("json", "images"),
    "images above": ("json", ""),
}


@pytest.mark.parametrize(("files", "images"), PLACES.values(), ids=PLACES)
def test_files_are_found_in_folders_without_splits(tmp_path, files, images):
    for stem in "ab":
        write_labelme(tmp_path / files, stem, [shape("cell", BOX, "rectangle")], tmp_path / images)
    for (record,) in loaded(tmp_path):
        assert read_mask(record["target"], "").sum() == 36 * 36
        assert read_image(record["image"]).shape == (*SIZE, 3)


def test_an_image_may_have_another_name_than_its_file_or_be_in_it(tmp_path):
    cell, images = [shape("cell", BOX, "rectangle")], tmp_path / "images"
    write_labelme(tmp_path / "json", "a", cell, images, imagePath="..\\images\\p.png")
    (images / "a.png").rename(images / "p.png")
    inner = np.full((*SIZE, 3), 7, np.uint8)
    write_labelme(tmp_path / "json", "b", cell, images, imageData=png(inner))
    (images / "b.png").unlink()
    mask_of_name = masks_of(tmp_path)
    assert [*sorted(mask_of_name)] == ["b.json", "p.png"]
    assert all(mask.any() for mask in mask_of_name.values())
    (image,) = (record["image"] for split in loaded(tmp_path) for record in split if record["name"] == "b.json")
    np.testing.assert_array_equal(read_image(image), inner)
    write_labelme(tmp_path / "json", "c", [], tmp_path / "elsewhere")
    (tmp_path / "elsewhere/c.png").rename(images / "d.png")
    message = error_of(tmp_path)
    assert "2 files without partner: c.json: no image of its name; d.png: image without labelme file" in message
    assert "--allow-unpaired" in message


@pytest.mark.parametrize("content", ["{}", '{"colors": [1]}', "[1]"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    for stem in "ab":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "settings.json").write_text(content)
    assert [*sorted(masks_of(tmp_path))] == ["a.png", "b.png"]


def test_several_files_for_one_image_are_refused(tmp_path):
    for stem in "abcd":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")], imagePath="a.png")
    for stem in "bc":
        (tmp_path / f"{stem}.png").unlink()
    message = f"{tmp_path}: 1 images have several labelme files: a.png (a.json; b.json; c.json); keep one of each"
    assert message in error_of(tmp_path, allow_unpaired=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ('{"a": 1}', "is no labelme file: it has no list of shapes")],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    for stem in "abcd":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    for stem in "ca":  # the first one too
        (tmp_path / f"{stem}.json").write_text(content)
        assert f"{tmp_path / f'{stem}.json'} {message}" in error_of(tmp_path)


DAMAGED_IMAGES = {
    "no picture": ("AAAA", "c.json: image cannot be read (empty, not an image"),
    "no base64": ("A", "c.json: imageData cannot be read (Invalid base64"),
}


@pytest.mark.parametrize(("image", "message"), DAMAGED_IMAGES.values(), ids=DAMAGED_IMAGES)
def test_a_damaged_image_in_a_file_is_a_bad_sample(tmp_path, image, message):
    picture = png(np.full((*SIZE, 3), 7, np.uint8))
    for split in SPLITS:
        for stem in "abc":
            file = write_labelme(tmp_path / split, stem, [shape("cell", BOX, "rectangle")], imageData=picture)
            file.with_suffix(".png").unlink()
    file = tmp_path / "train" / "c.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"imageData": image}))
    assert "1 of 3 pairs cannot be used: " in error_of(tmp_path)
    assert message in error_of(tmp_path)
    report, count = check_data(DataConfig(str(tmp_path)))
    assert count == 1
    assert message in report
    info = load_dataset_info(DataConfig(str(tmp_path), on_bad_sample="skip"))
    assert [*info.train.bad] == [2]
    assert pickle.loads(pickle.dumps(info.train.records))[0] == info.train.records[0]


def test_the_report_counts_objects_once_for_each_group(tmp_path):
    box = [shape("cell", BOX, "rectangle"), shape("cell", [[1, 1], [3, 3]], "rectangle")]
    write_labelme(tmp_path, "a", box)
    write_labelme(tmp_path, "b", [part | {"group_id": 0} for part in box] + [shape("dot", [[9, 9]], "point")])
    write_labelme(tmp_path, "c", [])
    report, count = check_data(DataConfig(str(tmp_path), task="classes"))  # points may be landmarks too
    assert count == 0
    assert "annotations: labelme; 2 images with objects, 1 without" in report
    assert {"         3  cell", "         1  dot"} <= {*report.splitlines()}
