"""Data sets of labelme files: found beside the images, apart or with the images inside, classes by name.

Modules: data_utils/sources/annotations/labelme.py.
"""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of, loaded
from support.data_sets import unnoticed_changes
from support.labelme_files import BOX, SIZE, SPLITS, masks_of, png, shape, write_labelme

from data_utils import pack
from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from data_utils.sources.annotations import labelme
from data_utils.sources.annotations.labelme_mask import LabelmeMask
from runtime.errors import DataError


@pytest.fixture
def four_labels(tmp_path) -> Path:
    """Two splits of two images each, of which one has the labels z and b, the other a and y."""
    for split, labels in (("train", "zb"), ("val", "ay")):
        for stem in "12":
            write_labelme(tmp_path / split, stem, [shape(label, BOX, "rectangle") for label in labels])
    return tmp_path


def test_classes_are_the_names_of_all_splits_in_their_order(four_labels):
    train, val = loaded(four_labels)
    assert train.metadata.classes == val.metadata.classes == ((0, "background"), (1, "a"), (2, "b"), (3, "y"), (4, "z"))


def test_classes_stand_in_the_order_of_labels_txt(four_labels):
    (four_labels / "labels.txt").write_text("__ignore__\n_background_\nz\n y \nb\n\na\n")
    train, val = loaded(four_labels)
    assert train.metadata.classes == val.metadata.classes == ((0, "background"), (1, "z"), (2, "y"), (3, "b"), (4, "a"))
    assert read_mask(train[0]["target"], "")[20, 20] == 3


def test_a_label_that_labels_txt_does_not_list_is_named(four_labels):
    (four_labels / "labels.txt").write_text("z\ny\nb\n")
    message = f"{four_labels / 'val' / '1.json'}: shape 1 is called 'a', which labels.txt does not list"
    assert message in error_of(four_labels)


PLACES = {  # JSON files -> images
    "beside": ("", ""),
    "beside in images": ("images", "images"),
    "apart": ("labels", "images"),
    "annotations": ("annotations", "imgs"),
    "json": ("json", "images"),
    "images above": ("json", ""),
}


def assert_boxes_are_read(root: Path, folders: list[tuple[Path, Path]], images: list[int]) -> None:
    """Each folder of files, with its folder of images, holds two images of a box; `images` of each split are read."""
    for files, pictures in folders:
        for stem in "ab":
            write_labelme(files, stem, [shape("cell", BOX, "rectangle")], pictures)
    splits = loaded(root)
    assert [len(split) for split in splits] == images
    for record in (record for split in splits for record in split):
        assert read_mask(record["target"], "").sum() == 36 * 36
        assert read_image(record["image"]).shape == (*SIZE, 3)


@pytest.mark.parametrize(("files", "images"), PLACES.values(), ids=PLACES)
def test_files_are_found_in_folders_without_splits(tmp_path, files, images):
    assert_boxes_are_read(tmp_path, [(tmp_path / files, tmp_path / images)], [1, 1])


@pytest.mark.parametrize(("files", "images"), PLACES.values(), ids=PLACES)
def test_files_are_found_in_folders_below_those_of_splits(tmp_path, files, images):
    folders = [(tmp_path / split / files, tmp_path / split / images) for split in SPLITS]
    assert_boxes_are_read(tmp_path, folders, [2, 2])


@pytest.mark.parametrize(("files", "images"), PLACES.values(), ids=PLACES)
def test_files_are_found_in_folders_above_those_of_splits(tmp_path, files, images):
    folders = [(tmp_path / (files or "images") / split, tmp_path / (images or "images") / split) for split in SPLITS]
    assert_boxes_are_read(tmp_path, folders, [2, 2])


@pytest.fixture
def image_elsewhere(tmp_path) -> Path:
    """An image of another name than its file, and one in its file."""
    cell, images = [shape("cell", BOX, "rectangle")], tmp_path / "images"
    write_labelme(tmp_path / "json", "a", cell, images, imagePath="..\\images\\p.png")
    (images / "a.png").rename(images / "p.png")
    write_labelme(tmp_path / "json", "b", cell, images, imageData=png(np.full((*SIZE, 3), 7, np.uint8)))
    (images / "b.png").unlink()
    return tmp_path


def test_an_image_may_have_another_name_than_its_file(image_elsewhere):
    mask_of_name = masks_of(image_elsewhere)
    assert [*sorted(mask_of_name)] == ["b.json", "p.png"]
    assert all(mask.any() for mask in mask_of_name.values())


def test_a_name_goes_on_behind_its_first_point(tmp_path):
    for stem in ("a", "a.1"):
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    assert sorted(masks_of(tmp_path)) == ["a.1.png", "a.png"]


def test_an_image_may_be_in_its_file(image_elsewhere):
    (image,) = (record["image"] for split in loaded(image_elsewhere) for record in split if record["name"] == "b.json")
    np.testing.assert_array_equal(read_image(image), np.full((*SIZE, 3), 7, np.uint8))


def test_a_file_without_an_image_is_named(image_elsewhere):
    write_labelme(image_elsewhere / "json", "c", [], image_elsewhere / "elsewhere")
    (image_elsewhere / "elsewhere/c.png").rename(image_elsewhere / "images/d.png")
    message = error_of(image_elsewhere)
    assert "2 files without partner: c.json: no image of its name; d.png: image without labelme file" in message
    assert "--allow-unpaired" in message


def test_a_file_that_is_not_labelmes_does_not_hide_the_others(tmp_path):
    for stem in "bc":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    other = write_labelme(tmp_path, "a", [])
    other.write_text("{}")
    assert f"{other} is no labelme file: it has no list of shapes" in error_of(tmp_path)


def test_a_split_of_a_file_that_is_not_labelmes_does_not_hide_the_other_split(tmp_path):
    for stem in "bc":
        write_labelme(tmp_path / "train", stem, [shape("cell", BOX, "rectangle")])
    other = write_labelme(tmp_path / "val", "a", [])
    other.write_text("{}")
    assert f"{other} is no labelme file: it has no list of shapes" in error_of(tmp_path)


def test_a_file_whose_shapes_stand_behind_a_large_image_is_recognized(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    for stem in "ab":
        file = write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")], imageData=png(noise))
        file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert file.stat().st_size > 2**20
    assert sorted(masks_of(tmp_path)) == ["a.png", "b.png"]


def test_several_files_for_one_image_are_refused(tmp_path):
    for stem in "abcd":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")], imagePath="a.png")
    for stem in "bc":
        (tmp_path / f"{stem}.png").unlink()
    message = f"{tmp_path}: 1 images have several labelme files: a.png (a.json; b.json; c.json); keep one of each"
    assert message in error_of(tmp_path, allow_unpaired=True)


@pytest.fixture
def one_without_file(tmp_path) -> Path:
    for stem in "abc":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "b.json").unlink()
    return tmp_path


def test_an_image_without_a_file_is_named(one_without_file):
    message = error_of(one_without_file)
    assert "1 file without partner: b.png: image without labelme file" in message
    assert "--allow-unpaired" in message


def test_an_image_without_a_file_is_left_out_on_request(one_without_file):
    assert sorted(masks_of(one_without_file, allow_unpaired=True)) == ["a.png", "c.png"]


def test_files_without_partner_are_named_where_they_are_all_there_is(tmp_path):
    write_labelme(tmp_path, "a", [shape("cell", BOX, "rectangle")])
    (tmp_path / "a.png").rename(tmp_path / "b.png")
    line = "2 files without partner: a.json: no image of its name; b.png: image without labelme file"
    assert line in error_of(tmp_path, allow_unpaired=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"a": 1}', "is no labelme file"),
        ('{"shapes": [{}, 5]}', "is no labelme file"),
        ("[]", "cannot be read as JSON"),
        (
            '{"shapes": [{"label": "cell", "shape_type": ["polygon"]}]}',
            "says that shape 1 is of shape_type ['polygon']",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    for stem in "abcd":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "c.json").write_text(content)
    assert f"{tmp_path / 'c.json'} {message}" in error_of(tmp_path)


DAMAGED_IMAGES = {
    "no picture": ("AAAA", "c.json: image cannot be read (empty, not an image"),
    "no base64": ("A", "c.json: imageData cannot be read (Invalid base64"),
    "a number": (5, "c.json: imageData cannot be read (argument should be"),
}


@pytest.fixture
def embedded(tmp_path) -> Path:
    """Two splits of three images, which are all in their files."""
    for split in SPLITS:
        for stem in "abc":
            image = png(np.full((*SIZE, 3), 7, np.uint8))
            file = write_labelme(tmp_path / split, stem, [shape("cell", BOX, "rectangle")], imageData=image)
            file.with_suffix(".png").unlink()
    return tmp_path


def assert_the_last_image_is_bad(root: Path, message: str) -> None:
    assert "1 of 3 pairs cannot be used: " in error_of(root)
    assert message in error_of(root)
    report, count = check_data(DataConfig(str(root)))
    assert count == 1
    assert message in report
    info = load_dataset_info(DataConfig(str(root), on_bad_sample="skip"))
    assert [*info.train.bad] == [2]
    assert pickle.loads(pickle.dumps(info.train.records))[0] == info.train.records[0]


@pytest.mark.parametrize(("image", "message"), DAMAGED_IMAGES.values(), ids=DAMAGED_IMAGES)
def test_a_damaged_image_in_a_file_is_a_bad_sample(embedded, image, message):
    file = embedded / "train" / "c.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"imageData": image}))
    assert_the_last_image_is_bad(embedded, message)


def test_a_file_that_is_cut_off_in_its_image_is_a_bad_sample(embedded):
    file = embedded / "train" / "c.json"
    text = file.read_text()
    file.write_text(text[: text.index("imageData") + 40])
    assert_the_last_image_is_bad(embedded, "c.json cannot be read as JSON (Unterminated string")


def test_the_report_counts_objects_once_for_each_group(tmp_path):
    box = [shape("cell", BOX, "rectangle"), shape("cell", [[1, 1], [3, 3]], "rectangle")]
    write_labelme(tmp_path, "a", box)
    write_labelme(tmp_path, "b", [part | {"group_id": 0} for part in box] + [shape("dot", [[9, 9]], "point")])
    write_labelme(tmp_path, "c", [])
    report, count = check_data(DataConfig(str(tmp_path), task="classes"))  # points may be landmarks too
    assert count == 0
    assert "annotations: labelme; 2 images with objects, 1 without" in report
    assert {"         3  cell", "         1  dot"} <= {*report.splitlines()}


@pytest.fixture
def cells(tmp_path) -> Path:
    """Four images of a cell each."""
    for stem in "abcd":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    return tmp_path


def test_the_report_counts_a_damaged_file_as_an_image_without_objects(cells):
    (cells / "c.json").write_text("{")
    report, _ = check_data(DataConfig(str(cells)))
    assert "annotations: labelme; 3 images with objects, 1 without" in report


def test_records_reach_loader_processes_in_few_bytes(cells):
    train, _ = loaded(cells)
    assert len(pickle.dumps(train[0]["target"])) < 500
    assert pickle.loads(pickle.dumps(train))[0] == train[0]


def test_another_label_is_noticed(cells):
    before = load_dataset_info(DataConfig(str(cells)))
    write_labelme(cells, "d", [shape("nucleus", BOX, "rectangle")])
    after = load_dataset_info(DataConfig(str(cells)))
    assert before.reader.class_map.names == ("background", "cell")
    assert after.reader.class_map.names == ("background", "cell", "nucleus")
    assert after.reader.class_pixels[2] == 36 * 36


def test_a_change_of_each_file_is_noticed(cells):
    files = [*cells.iterdir()]
    assert len(files) == 8
    assert unnoticed_changes(files, lambda: loaded(cells)[0].digest) == []


def test_a_packed_data_set_is_the_same(tmp_path, monkeypatch):
    folder, out = tmp_path / "data", tmp_path / "out"
    image = png(np.full((*SIZE, 3), 9, np.uint8))
    for split in SPLITS:
        for stem in "ab":
            write_labelme(folder / split, stem, [shape("cell", BOX, "rectangle")], imageData=image)
        (folder / split / "b.png").unlink()
    monkeypatch.setattr("sys.argv", ["pack", str(folder), str(out)])
    pack.main()
    for ours, packed in zip(loaded(folder), loaded(out), strict=True):
        for record, stored in zip(ours, packed, strict=True):
            np.testing.assert_array_equal(read_mask(stored["target"], ""), read_mask(record["target"], ""))
            np.testing.assert_array_equal(read_image(stored["image"]), read_image(record["image"]))


@pytest.mark.parametrize("folder", ["json", "jsons", "labelme", "labels", "annotations"])
def test_files_in_capitals_are_found_in_a_folder_of_any_of_these_names(tmp_path, folder):
    file = write_labelme(tmp_path / folder, "a", [shape("cell", BOX, "rectangle")], tmp_path / "images")
    file.rename(file.with_suffix(".JSON"))
    assert labelme.find(tmp_path, ()) == {"train": (tmp_path / "images", tmp_path / folder)}


@pytest.fixture
def split_labels(tmp_path) -> Path:
    """Two splits, of which one has a labels.txt."""
    for split in SPLITS:
        write_labelme(tmp_path / split, "a", [shape("b", BOX, "rectangle"), shape("a", BOX, "rectangle")])
    (tmp_path / "train/labels.txt").write_text("b\na\n")
    return tmp_path


def test_labels_txt_of_one_split_counts_for_both(split_labels):
    assert loaded(split_labels)[1].metadata.classes == ((0, "background"), (1, "b"), (2, "a"))


def test_labels_txt_of_the_data_set_comes_before_that_of_a_split(split_labels):
    (split_labels / "labels.txt").write_text("a\nb\nc\n")
    assert loaded(split_labels)[1].metadata.classes == ((0, "background"), (1, "a"), (2, "b"), (3, "c"))


def test_labels_txt_with_a_name_twice_is_refused(split_labels):
    (split_labels / "labels.txt").write_text("a\nb\na\n")
    assert f"{split_labels / 'labels.txt'}: two classes are called a" in error_of(split_labels)


def test_an_image_beside_its_file_comes_before_one_in_the_folder_of_all(tmp_path):
    for folder in ("", "site"):
        write_labelme(tmp_path / folder, "x", [shape("cell", BOX, "rectangle")], imagePath="p.png")
        (tmp_path / folder / "x.png").rename(tmp_path / folder / "p.png")
    contents = labelme.read_contents(tmp_path)
    assert labelme.named_image((tmp_path, tmp_path), "site/x.json", contents["site/x.json"]) == "site/p.png"
    assert labelme.named_image((tmp_path, tmp_path), "x.json", contents["x.json"]) == "p.png"


def test_objects_are_counted_of_each_class_also_of_one_that_a_split_lacks(four_labels):
    train, val = loaded(four_labels)
    assert train.annotations.instances == {"a": 0, "b": 2, "y": 0, "z": 2}
    assert val.annotations.instances == {"a": 2, "b": 0, "y": 2, "z": 0}


def test_objects_of_files_that_are_left_out_are_not_counted(tmp_path):
    for stem in "abc":
        write_labelme(tmp_path, stem, [shape("cell", BOX, "rectangle")])
    (tmp_path / "c.png").unlink()
    summary = loaded(tmp_path, allow_unpaired=True)[0].annotations
    assert summary.annotated == 2
    assert summary.empty == 0
    assert summary.instances == {"cell": 2}


@pytest.mark.parametrize(("others", "is_found"), [(2, True), (3, False)])
def test_a_folder_is_known_by_its_first_three_files(tmp_path, others, is_found):
    write_labelme(tmp_path, "z", [shape("cell", BOX, "rectangle")])
    for number in range(others):
        (tmp_path / f"{number}.json").write_text("{}")
    assert bool(labelme.find(tmp_path, ())) == is_found


def test_a_folder_is_known_beside_hidden_files(tmp_path):
    write_labelme(tmp_path, "a", [shape("cell", BOX, "rectangle")])
    for name in "abc":
        (tmp_path / f"._{name}.json").write_bytes(b"what a Mac leaves behind")
    assert labelme.find(tmp_path, ())


def test_files_of_one_name_belong_to_the_images_in_folders_of_their_folders_name(tmp_path):
    for site, label in (("north", "a"), ("south", "b")):
        shapes = [shape(label, BOX, "rectangle")]
        write_labelme(tmp_path / "json" / site, "x", shapes, tmp_path / "images" / site, imagePath="scan.png")
    values = {name: int(mask.max()) for name, mask in masks_of(tmp_path).items()}
    assert values == {"north/x.png": 1, "south/x.png": 2}


def test_contents_of_files_of_one_size_and_time_are_distinguished(tmp_path):
    contents = []
    for stem, label in (("a", "cat"), ("b", "dog")):
        file = write_labelme(tmp_path / stem, stem, [shape(label, BOX, "rectangle")])
        os.utime(file, ns=(10**18, 10**18))
        contents.append(labelme.read_contents(tmp_path / stem)[f"{stem}.json"].objects)
    assert contents == [{"cat": 1}, {"dog": 1}]


def test_an_image_in_a_file_is_called_by_the_path_of_the_file(tmp_path):
    for folder in ("x", "y"):
        image = {"imageData": png(np.zeros((*SIZE, 3), np.uint8))}
        write_labelme(tmp_path / folder, "a", [shape("cell", BOX, "rectangle")], **image)
        (tmp_path / folder / "a.png").unlink()
    assert sorted(masks_of(tmp_path)) == ["x/a.json", "y/a.json"]


@pytest.mark.parametrize(("length", "is_known"), [(2**20 - 10, True), (2**20, False)])
def test_a_file_is_known_by_the_first_megabyte(tmp_path, length, is_known):
    file = tmp_path / "a.json"
    file.write_text('"shapes":'.rjust(length + 9))
    assert labelme.is_labelme(file) is is_known


def test_a_pipe_is_no_labelme_file(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    assert not labelme.is_labelme(tmp_path / "a.json")


def test_a_file_that_is_gone_is_no_labelme_file(tmp_path):
    assert not labelme.is_labelme(tmp_path / "b.json")
    with pytest.raises(DataError, match=r"b\.json cannot be read as JSON \("):
        LabelmeMask(str(tmp_path / "b.json"), "", {}).render()


def test_labels_txt_may_lie_beside_the_files(tmp_path):
    for stem in "ab":
        write_labelme(tmp_path / "json", stem, [shape("a", BOX, "rectangle")], tmp_path / "images")
    (tmp_path / "json/labels.txt").write_text("b\na\n")
    assert loaded(tmp_path)[0].metadata.classes == ((0, "background"), (1, "b"), (2, "a"))


def test_objects_are_counted_with_groups_as_one_and_points_apart(tmp_path):
    shapes = [shape("a", BOX, "rectangle", group_id=1), shape("a", BOX, "rectangle"), shape("a", BOX, "line")]
    write_labelme(tmp_path, "x", [*shapes, shape(7, [[9, 9]], "point")])
    contents = labelme.read_contents(tmp_path)["x.json"]
    assert contents == ({"a": 3, "7": 1}, "x.png", False, 1, 3)


def test_files_that_have_not_changed_are_read_once(cells, monkeypatch):
    contents = labelme.read_contents(cells)
    monkeypatch.setattr(labelme, "read_labelme", None)
    assert labelme.read_contents(cells) == contents


@pytest.mark.parametrize(
    ("named", "found"), [((), ["train"]), (("train", "holdout"), ["train", "holdout"])], ids=["none", "both"]
)
def test_splits_that_are_named_have_folders_of_their_own(tmp_path, named, found):
    for split in ("train", "holdout"):
        write_labelme(tmp_path / split / "json", "a", [shape("cell", BOX, "rectangle")], tmp_path / split / "images")
    folders = {split: (tmp_path / split / "images", tmp_path / split / "json") for split in found}
    assert labelme.find(tmp_path, named) == folders
