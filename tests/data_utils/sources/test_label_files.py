"""Tables and rules of the classes that images are labeled for: where they lie, and which images they speak of."""

from pathlib import Path

import pytest
from support.data_sets import load_info
from support.partly_labeled import CLASSES, banded_info, labels_by_name, write_bands
from support.volumes import write_msd

from data_utils.config import DataConfig
from data_utils.sources.label_files import ImageLabels, Table, read_label_files, read_table, with_labels
from data_utils.sources.load import load_records
from runtime.errors import DataError


@pytest.mark.parametrize("place", ["{split}/images/", "{split}/"], ids=["outer splits", "inner splits"])
def test_a_table_lies_above_all_splits(tmp_path, place):
    if "images" in place:
        for split in ("train", "val"):
            write_bands(tmp_path / split, ["a", "b"])
    else:
        write_bands(tmp_path, ["train/a", "train/b", "val/a", "val/b"])
    folders = {split: place.format(split=split) for split in ("train", "val")}
    (tmp_path / "classes.csv").write_text(
        "image,classes\n{train}a,car\n{train}b,dog\n{val}a,person\n".format(**folders)
    )
    training, validation = load_records(DataConfig(str(tmp_path)))
    assert [training.label_set(i) for i in range(2)] == [("car",), ("dog",)]
    assert [validation.label_set(i) for i in range(2)] == [("person",), None]
    assert training.unlisted == []
    assert validation.unlisted == ["b.png"]


def test_a_table_of_a_split_lies_beside_its_images(tmp_path):
    for split in ("train", "val"):
        write_bands(tmp_path / split, ["a", "b"])
    (tmp_path / "train" / "classes.csv").write_text("image,classes\na,car\nb,car\n")
    train, val = load_records(DataConfig(str(tmp_path)))
    assert train.label_set(1) == ("car",)
    assert val.label_set(1) is None
    assert val.unlisted == []


def test_a_table_in_one_folder_of_images_speaks_of_its_images_alone(tmp_path):
    write_bands(tmp_path, ["left/a", "left/b", "right/c", "right/d"])
    (tmp_path / "images" / "right" / "classes.csv").write_text("image,classes\nc,car\nd,dog\n")
    expected = {"right/c.png": ("car",), "right/d.png": ("dog",), "left/a.png": None, "left/b.png": None}
    assert labels_by_name(tmp_path) == expected


@pytest.fixture
def ruled_sites(tmp_path):
    """Folders of sites, of which two have a rule."""
    write_bands(tmp_path, ["site_a/a", "site_b/b", "site_b/c", "site_c/e", "d"])
    (tmp_path / "site_a").mkdir()
    (tmp_path / "site_a" / "classes.txt").write_text("car\t dog \n\n")
    (tmp_path / "images" / "site_b" / "classes.txt").write_text("person")
    return tmp_path


LABELS_OF_SITES = {
    "site_a/a.png": ("car", "dog"),
    "site_b/b.png": ("person",),
    "site_b/c.png": ("person",),
    "site_c/e.png": None,
    "d.png": None,
}


def test_a_rule_speaks_of_the_images_of_its_folder_and_a_row_comes_before_it(ruled_sites):
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES
    (ruled_sites / "classes.csv").write_text("image,classes\nsite_b/b.png,car\n")
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES | {"site_b/b.png": ("car",)}
    train, _ = load_records(DataConfig(str(ruled_sites)))
    assert {*train.unlisted} <= {"d.png", "site_c/e.png"}


def test_a_table_comes_before_the_annotations(tmp_path):
    records, _ = load_records(DataConfig(str(write_bands(tmp_path, ["a", "b", "c"])), val_fraction=0.34))
    annotated = with_labels(records, [ImageLabels(("car",), "annotations")] * len(records))
    assert [annotated.label_set(i) for i in range(len(records))] == [("car",)] * len(records)
    name = records.name(0)
    (tmp_path / "classes.csv").write_text(f"image,classes\n{name},dog\n")
    (split,) = read_label_files([annotated], tmp_path)
    assert [split.label_set(i) for i in range(len(records))] == [("dog",), ("car",)]
    assert split.metadata.label_sets == {("dog",): f"{tmp_path / 'classes.csv'}: line 2", ("car",): "annotations"}


def test_a_rule_of_a_site_is_for_the_images_beside_it_alone(tmp_path):
    rule = write_bands(tmp_path, ["site/a", "site/day/b"]) / "images" / "site" / "classes.txt"
    rule.write_text("car")
    with pytest.raises(DataError, match=f"{rule} is for the images beside it; copy it to {rule.parent / 'day'} too"):
        load_records(DataConfig(str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "count"), [({"place": False}, 3), ({"exclude": "excluded.txt"}, 2)], ids=["no place", "excluded"]
)
def test_images_without_a_row_are_named_whatever_else_is_made_of_the_records(tmp_path, monkeypatch, settings, count):
    monkeypatch.chdir(tmp_path)
    write_bands(tmp_path / "data" / "train", ["a", "b", "c", "d"])
    write_bands(tmp_path / "data" / "val", ["e", "f"])
    (tmp_path / "data" / "classes.csv").write_text("image,classes\na,car\nb,dog\nc,person\n")
    (tmp_path / "excluded.txt").write_text("e.png\n")
    warnings = load_info(tmp_path / "data", classes=CLASSES, **settings).warnings
    assert any(line.startswith(f"{count} images have no row in classes.csv") for line in warnings)


def test_volumes_and_their_slices_are_labeled_too(tmp_path):
    folder = write_msd(tmp_path, 3)  # of 16 slices
    (folder / "classes.csv").write_text("image,classes\nscan_00,front\nscan_01.nii.gz,front\n")
    assert labels_by_name(folder, dims=3) == {"scan_00": ("front",), "scan_01": ("front",), "scan_02": None}
    labels_of_volume = {}
    for name, labels in labels_by_name(folder, dims=2).items():
        labels_of_volume.setdefault(name.rpartition("_")[0], []).append(labels)
    assert labels_of_volume == {"scan_00": [("front",)] * 16, "scan_01": [("front",)] * 16, "scan_02": [None] * 16}


@pytest.mark.parametrize("folder", ["", "images"], ids=["above", "images"])
def test_a_list_of_all_names_where_all_images_lie_is_no_rule(ruled_sites, folder):
    (ruled_sites / folder / "classes.txt").write_text("dog\ncat")
    assert labels_by_name(ruled_sites) == LABELS_OF_SITES


@pytest.fixture(scope="module")
def pages_and_files():
    """A table whose rows speak of images, and of pages of files."""
    table = Table(Path("/data/classes.csv"), {}, {})
    keys = ("a", "left/b", "stack_0002", "right/stack_0003", "images/s/t_0004", "deck_0001", "deck")
    for line, key in enumerate(keys, start=2):
        table.rows[key] = ImageLabels((), f"line {line}")
    return table


@pytest.mark.parametrize(
    ("image", "name", "line"),
    [
        ("/data/images/a.png", "images/a.png", 2),
        ("/data/left/b.png", "left/b.png", 3),
        ("/data/images/stack.tif", "images/stack_0002.tif", 4),
        ("/data/right/stack.tif", "stack_0003", 5),
        ("/data/images/s/t.tif", "s/t_0004.tif", 6),
        ("/data/images/deck.tif", "deck_0001.tif", 8),  # a row of the file comes before one of a page
    ],
)
def test_a_row_speaks_of_an_image_or_of_a_page_of_a_file(pages_and_files, image, name, line):
    assert pages_and_files.find(image, name).location == f"line {line}"


@pytest.mark.parametrize(
    ("image", "name"), [("/data/right/b.png", "right/b.png"), ("/data/left/stack.tif", "stack_0003")]
)
def test_a_row_does_not_speak_of_an_image_in_another_folder(pages_and_files, image, name):
    assert pages_and_files.find(image, name) is None


LISTS = {
    "names in a cell": "image,classes\na.png,car\nb.png,dog;person\nc.png,\n",
    "names in cells": "image,classes\na.png,car\nb.png,dog,person\nc.png,\n",
    "from a spreadsheet": "\ufeffImage;Classes;;\r\na.png;car;\r\nb.png;dog, person;\r\nc.png;;\r\n\r\n;;\r\n",
    "tabs": "image\tclasses\na\tcar\nb\tdog\tperson\nc\n",
    "columns": "image,car,dog,person\na,1,0,0\nb,0,1,1\nc,0,0,0\n",
    "columns with words": "Filename,person,dog,car,\na.png,no,No,YES,\n./b.png,x,True\nc.png,,,\n",
    "from Windows": "image,classes\nimages\\a.png,car\nimages\\b.png,dog;person\nimages\\c.png,\n",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_table_lists_classes_in_one_column_or_in_one_for_each(tmp_path, text):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text(text, encoding="utf-8")
    assert labels_by_name(folder) == {"a.png": ("car",), "b.png": ("dog", "person"), "c.png": ()}


HOSTILE = {
    "empty": (b"", "its first line is '', expected image,classes"),
    "another table": (b"name,r,g,b\ncar,1,2,3\n", "its first line is 'name,r,g,b', expected image,classes"),
    "no rows": (b"image,classes\n", "names no image"),
    "no name": (b"image,classes\n,car\n", "line 2 names no image"),
    "twice": (b"image,classes\na.png,car\n\na,dog\n", "line 2 and line 4 both speak of 'a'"),
    "a column twice": (b"image,car,car\na,1,1\n", "its first line is 'image,car,car'"),
    "another value": (b"image,car,dog\na,1,maybe\n", "line 2 has 'maybe' for dog, expected 1 or 0"),
    "a long row": (b"image,car,dog\na,1,1,1\n", "line 2 has 4 cells, the first line 3"),
    "no image": (b"image,classes\na,car\nimg_b.png,car\n", "names images that are not there: line 3: 'img_b'"),
    "no images": (
        b"image,classes\n1,car\n" + b"x" * 81 + b",car\n3,car\n4,car\n",
        f"names images that are not there: line 2: '1'; line 3: {'x' * 80!r}; line 4: '3'; ...",
    ),
    "an open quote": (b'image,classes\na,"car\n', "cannot be read as CSV (line 2: "),
    "bytes": (b"image,classes\n\xff\xfe,car\n", "cannot be read as CSV"),
    "an unknown class": (b"image,classes\na,car;dgo\n", "line 2: no class is called 'dgo'; the classes are background"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_table_that_cannot_be_understood_is_a_one_line_error(tmp_path, content, message):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_bytes(content)
    with pytest.raises(DataError) as raised:
        banded_info(folder)
    text = str(raised.value)
    assert message in text
    assert "classes.csv" in text
    assert "\n" not in text
    assert len(text) < 500


def test_a_row_of_two_images_and_two_tables_of_the_same_images_are_refused(tmp_path):
    folder = write_bands(tmp_path / "data", ["x/a", "y/a", "b"])
    table, inner = folder / "classes.csv", folder / "images" / "classes.csv"
    table.write_text("image,classes\na,car\n")
    with pytest.raises(DataError, match=r"line 2: 'a' is the name of .*x/a.png and of .*y/a.png; write the folder too"):
        labels_by_name(folder)
    inner.write_text("image,classes\nx/a,car\n")
    with pytest.raises(DataError, match=f"^{inner} and {table} speak of the same images; keep one$"):
        labels_by_name(folder)


def test_names_in_a_table_match_however_their_accents_are_stored(tmp_path):
    (tmp_path / "classes.csv").write_text("image,car\ne\u0301.png,1\n", encoding="utf-8")
    assert read_table(tmp_path / "classes.csv").find(str(tmp_path / "images" / "\u00e9.png"), "\u00e9.png") is not None
