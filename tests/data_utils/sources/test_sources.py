"""Folders, tables and shapes become two splits of records; a mistake in them is one clear line.

Modules: data_utils/sources/folder.py, data_utils/sources/load.py, data_utils/sources/pairs.py.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.data_sets import unnoticed_changes
from support.picture_folders import (
    error_of,
    flat_folder,
    loaded,
    names,
    paired,
    write_pictures,
)

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import inspect_split
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image, read_mask
from data_utils.sources.folder import find_splits, natural_sort_key
from data_utils.sources.pictures import open_pictures
from data_utils.sources.records import ListRows, Records
from data_utils.sources.shapes import Shapes


def test_a_flat_folder_is_split_into_pairs_by_the_seed(tmp_path):
    train, val = loaded(flat_folder(tmp_path))
    assert (len(train), len(val)) == (9, 3)
    assert sorted(names(train) + names(val)) == sorted(f"{i}.png" for i in range(12))
    assert all(image == mask for image, mask in paired(train) + paired(val))
    assert names(loaded(tmp_path)[1]) == names(val)
    assert any(names(loaded(tmp_path, seed=seed)[1]) != names(val) for seed in range(1, 5))
    folds = {tuple(names(loaded(tmp_path, seed=seed, fold="1/4")[1])) for seed in range(4)}
    assert len(folds) > 1


def test_a_folder_may_have_the_name_of_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("~data", "~root"):
        flat_folder(tmp_path / name, 4)
        assert len(loaded(name)[0]) == 3
    assert error_of("~nobody/x").startswith("--dataset ~nobody/x is not there")


def test_the_split_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    import os

    expected = [names(split) for split in loaded(flat_folder(tmp_path))]
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda *args, **kw: ((top, dirs, files[::-1]) for top, dirs, files in walk(*args, **kw))
    )
    assert [names(split) for split in loaded(tmp_path)] == expected


def test_each_number_in_a_name_counts_and_leading_zeros_only_between_equals():
    names = ["a2b", "a010b", "a10b", "a10b2", "a10b10", "a10c1", "b1"]
    assert sorted(reversed(names), key=natural_sort_key) == names


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 1), (0.01, 1), (0.4, 2), (0.5, 2), (1.0, 3)])
def test_each_part_of_a_split_holds_an_image(tmp_path, fraction, held_out):
    train, val = loaded(flat_folder(tmp_path, 4), val_fraction=fraction)
    assert len(train) == 4 - held_out
    assert len(val) == held_out


def test_one_image_cannot_be_split(tmp_path):
    assert error_of(flat_folder(tmp_path, 1)).endswith("one to validate on; the data set has 1")


@pytest.mark.parametrize("train", ["train", "Training"])
@pytest.mark.parametrize("val", ["val", "validation", "VALID"])
@pytest.mark.parametrize(
    ("pattern", "folders"),
    [("{split}/{folder}/{split}.png", ("imgs", "Labels")), ("{folder}/{split}/{split}.png", ("Image", "annotations"))],
    ids=["above", "below"],
)
def test_splits_may_be_folders_above_or_below(tmp_path, pattern, folders, train, val):
    write_pictures(
        tmp_path, *(pattern.format(split=split, folder=folder) for split in (train, val) for folder in folders)
    )
    splits = loaded(tmp_path)
    assert [names(split) for split in splits] == [[f"{train}.png"], [f"{val}.png"]]
    assert all(image == mask for split in splits for image, mask in paired(split))


def test_a_test_folder_counts_only_when_named(tmp_path):
    flat_folder(tmp_path / "train", 4)
    write_pictures(tmp_path, "test/images/a.png")
    assert [len(split) for split in loaded(tmp_path)] == [3, 1]
    write_pictures(tmp_path, "test/masks/a.png")
    train, val = loaded(tmp_path, val_split="test")
    assert len(train) == 4
    assert names(val) == ["a.png"]


def test_splits_of_any_name_are_found_when_named(tmp_path):
    flat_folder(tmp_path / "Fold1", 3)
    flat_folder(tmp_path / "Fold2", 2)
    assert [len(split) for split in loaded(tmp_path, train_split="Fold1", val_split="Fold2")] == [3, 2]
    assert [len(split) for split in loaded(tmp_path, train_split="Fold1")] == [2, 1]
    assert "has no split fold3, only fold1" in error_of(tmp_path, train_split="Fold1", val_split="fold3")


def test_a_validation_folder_stands_beside_a_flat_folder(tmp_path):
    flat_folder(tmp_path, 4)
    flat_folder(tmp_path / "val", 2)
    assert [len(split) for split in loaded(tmp_path)] == [4, 2]
    line = f"--fold 1/2 holds out a part of the training images, but {tmp_path} has the validation split val; leave"
    assert error_of(tmp_path, fold="1/2").startswith(line)


SUFFIXES = ["_mask", "-gt", ".seg", "0", ""]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_of_masks_is_detected(tmp_path, suffix):
    """Of names of which some end in what a suffix may be."""
    pairs = sorted((f"{stem}.jpg", f"{stem}{suffix}.gif") for stem in ("1", "10", "11", "a_mask"))
    for image, mask in pairs:
        write_pictures(tmp_path, f"images/{image}", f"masks/{mask}")
    train, val = loaded(tmp_path)
    assert sorted(paired(train) + paired(val)) == pairs
    assert loaded(tmp_path, mask_suffix=suffix)[0][0] == train[0]


def test_the_suffix_of_masks_may_be_given(tmp_path):
    write_pictures(
        tmp_path, *(f"images/{i}.png" for i in "ab"), *(f"masks/{i}{s}.png" for i in "ab" for s in ("_x", "_y"))
    )
    assert "--mask-suffix" in error_of(tmp_path)
    assert "2 files without partner: a_x.png: mask without image; b_x.png" in error_of(tmp_path, mask_suffix="_y")
    train, val = loaded(tmp_path, mask_suffix="_y", allow_unpaired=True)
    assert sorted(paired(train) + paired(val)) == [("a.png", "a_y.png"), ("b.png", "b_y.png")]


def test_subfolders_pair_by_relative_stem(tmp_path):
    write_pictures(
        tmp_path, *(f"images/{p}/1.png" for p in ("a", "b/c")), *(f"masks/{p}/1_mask.png" for p in ("a", "b/c"))
    )
    train, val = loaded(tmp_path)
    assert sorted(names(train) + names(val)) == ["a/1.png", "b/c/1.png"]
    assert train.rows.image_folders == {(str(tmp_path / "images"), folder) for folder in ("a", "b/c")}
    assert all(r["target"] == str(tmp_path / "masks" / r["name"].replace("1.", "1_mask.")) for r in (train[0], val[0]))


PAGE_NAMES = ["0_0001.tif", "0_0002.tif", "0_0003.tif", "1.tif", "2_0001.tif", "2_0002.tif"]


@pytest.fixture
def paged(tmp_path) -> Path:
    """TIFF pairs of three, one and two pages; page p of file f has the pixels 10 f + p, its mask p % 2."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir(parents=True)
        for f, count in enumerate((3, 1, 2)):
            name = f"{f}.tif" if folder == "images" else f"{f}_mask.tif"
            with tifffile.TiffWriter(tmp_path / folder / name) as tiff:
                for page in range(count):
                    value = 10 * f + page if folder == "images" else page % 2
                    tiff.write(np.full((6 + page, 9), value, np.uint8), photometric="minisblack")
                    if folder == "images":  # a small copy, as pyramids have
                        tiff.write(np.zeros((3, 4), np.uint8), photometric="minisblack", subfiletype=1)
    return tmp_path


def records_of_pages(root: Path) -> Records:
    train, val = loaded(root)
    return Records(ListRows(sorted([*train, *val], key=lambda record: record["name"])))


def test_pages_of_tiffs_pair_one_by_one(paged):
    records = records_of_pages(paged)
    assert [r["name"] for r in records] == PAGE_NAMES
    assert [read_image(r["image"])[0, 0, 0] for r in records] == [0, 1, 2, 10, 20, 21]
    assert [read_mask(r["target"], "")[0, 0] for r in records] == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("metadata", ["imagej", "ome"])
@pytest.mark.parametrize(("axes", "pages"), [("CYX", [(0, 1)]), ("ZCYX", [(0, 1), (2, 3), (4, 5)])])
def test_pages_are_channels_where_the_axes_say_so_and_the_mask_has_fewer(metadata, axes, pages, tmp_path):
    pixels = np.arange(6 * 64, dtype=np.uint16).reshape(3, 2, 8, 8)[: len(pages)].squeeze()
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    tifffile.imwrite(tmp_path / "images" / "a.tif", pixels, metadata={"axes": axes}, **{metadata: True})
    with tifffile.TiffWriter(tmp_path / "masks" / "a.tif") as tiff:
        for _ in pages:
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
    records = open_pictures(tmp_path / "images", tmp_path / "masks", DataConfig())
    images = [record["image"] for record in records]
    assert [(image.page, *image.more_channels) for image in images] == pages
    assert [record["name"] for record in records] == (
        ["a_0001.tif", "a_0002.tif", "a_0003.tif"] if pages[1:] else ["a.tif"]
    )
    for image, expected in zip(images, pixels.reshape(-1, 2, 8, 8), strict=True):
        assert np.array_equal(read_image(image), expected.transpose(1, 2, 0))


def test_a_tiff_of_more_pages_than_its_mask_is_refused(paged):
    with tifffile.TiffWriter(paged / "images" / "1.tif", append=True) as tiff:
        tiff.write(np.zeros((6, 9), np.uint8), photometric="minisblack")
    line = r"images/1\.tif has 2 pages, its mask .*masks/1_mask\.tif has 1; both need the same number of pages"
    assert re.search(line, error_of(paged))


def test_a_damaged_tiff_is_named_when_it_is_read(paged):
    digest = loaded(paged)[0].digest
    (paged / "images" / "1.tif").write_bytes(b"II*\0" + bytes(40))
    assert loaded(paged)[0].digest != digest
    records = records_of_pages(paged)
    assert len(records) == 6
    inspection = inspect_split(records, "reading files", Rules())
    assert [problem.kind for problem in inspection.problems.values()] == ["image cannot be read"]


def test_other_files_are_left_alone(tmp_path):
    flat_folder(tmp_path, 3)
    for name in ("images/Thumbs.db", "masks/notes.txt", "images/.DS_Store", ".hidden/x.nii"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    write_pictures(tmp_path, "masks/._1.png", "masks/.trash/9.png")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [len(split) for split in loaded(tmp_path)] == [2, 1]


def test_partners_that_are_missing_are_counted_with_five_of_their_names_or_left_out_with_a_flag(tmp_path):
    write_pictures(flat_folder(tmp_path, 3), *(f"images/x{i}.png" for i in range(7)), "masks/y.png")
    message = error_of(tmp_path)
    assert "8 files without partner: x0.png: image without mask; x1.png: image without mask; " in message
    assert "x4.png: image without mask; ...;" in message
    assert "--allow-unpaired" in message
    (tmp_path / "images" / "x0.json").touch()  # as of labelme
    assert "; x0.json is not read beside masks" in error_of(tmp_path)
    assert [len(split) for split in loaded(tmp_path, allow_unpaired=True)] == [2, 1]


FOLDER_MISTAKES = {
    "empty": ([], "no folder of images or masks; looked for images|imgs|image beside masks|labels"),
    "no files": (["images/"], "volumes in imagesTr"),
    "pictures loose": (["a10.png", "a9.png"], "found a9.png, a10.png"),
    "no masks": (["images/a.png", "other/a.png"], "no folder of masks"),
    "no images": (["masks/a.png"], "no folder of images"),
    "no masks in val": (["train/images/a.png", "train/masks/a.png", "val/images/a.png"], "val has no folder of masks"),
    "no training": (["val/images/a.png", "val/masks/a.png"], "has no split train, only val"),
    "no pictures": (["images/", "masks/a.png"], "no images in"),
    "two of a stem": (["images/a.png", "masks/a.png", "masks/a.gif"], "two masks with the same name"),
    "two image stems": (["images/a.png", "images/a.jpg", "masks/a.png"], "two images with the same name"),
    "two image folders": (["images/a.png", "imgs/a.png", "masks/a.png"], "images/ and imgs/; keep one"),
    "both layouts": (["images/a.png", "masks/a.png", "train/images/a.png", "train/masks/a.png"], "both images/ and"),
    "both layouts, training": (
        ["images/a.png", "masks/a.png", "training/images/a.png", "training/masks/a.png"],
        "both images/ and",
    ),
    "no mask files": (["images/a.png", "masks/"], "(or annotations of COCO, labelme, YOLO, VOC or Cityscapes)"),
    "another case": (["images/Cell1.png", "masks/cell1.png"], "Cell1 and cell1 differ in upper and lower case"),
    "no names agree": (
        ["images/a.ome.png", "images/b.png", "masks/c.png", "masks/a.png", "masks/b.png"],
        "image without mask is called a.ome, the first mask without image a",
    ),
    "other folders": (
        ["images/a.png", "masks/cell/a.png", "masks/core/b.png"],
        "image a and mask cell/a lie in different folders: ",
    ),
    "two val": (
        [f"{s}/{f}/a.png" for s in ("train", "val", "valid") for f in ("images", "masks")],
        "has the splits val and valid; choose one with --val-split",
    ),
}


@pytest.mark.parametrize(("files", "message"), FOLDER_MISTAKES.values(), ids=FOLDER_MISTAKES)
def test_a_mistake_in_a_folder_is_one_clear_line(tmp_path, files, message):
    for file in files:
        (tmp_path / file).mkdir(parents=True) if file.endswith("/") else write_pictures(tmp_path, file)
    assert message in error_of(tmp_path)


def test_folders_that_differ_in_the_case_of_their_letters_are_refused(tmp_path):
    write_pictures(tmp_path, "images/a.png", "masks/a.png")
    try:
        (tmp_path / "Images").mkdir()
    except FileExistsError:
        pytest.skip("this file system does not tell upper from lower case")
    assert "holds Images/ and images/; keep one" in error_of(tmp_path)


def test_a_folder_without_pictures_says_what_it_holds(tmp_path):
    write_pictures(tmp_path, "masks/a.png")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "scan.heic").write_text("x")
    (tmp_path / "images" / "README").write_text("x")
    assert "found only .heic, README, looked for" in error_of(tmp_path)


@pytest.mark.parametrize("masks", ["masks", "labels", "annotations", "mask", "label"])
@pytest.mark.parametrize("images", ["images", "imgs", "image"])
def test_folders_of_images_and_masks_have_usual_names(tmp_path, images, masks):
    for name in (images, masks):
        (tmp_path / name).mkdir()
    assert find_splits(tmp_path, ()) == {"train": (tmp_path / images, tmp_path / masks)}


@pytest.fixture
def in_folder_of_cells(tmp_path, monkeypatch):
    """The current folder holds data/cells, a data set, and file.txt."""
    monkeypatch.chdir(tmp_path)
    flat_folder(tmp_path / "data" / "cells", 3)
    (tmp_path / "file.txt").write_text("x")


@pytest.mark.usefixtures("in_folder_of_cells")
@pytest.mark.parametrize("dataset", ["shape", "data/cell", "{here}/nowhere", "../data/x", "a/b/c", "{here}/file.txt/x"])
def test_a_mistyped_data_set_says_what_was_expected_without_asking_the_hub(tmp_path, dataset):
    assert "is not there; expected `shapes`, a folder" in error_of(dataset.format(here=tmp_path))


@pytest.mark.usefixtures("in_folder_of_cells")
@pytest.mark.parametrize(
    ("dataset", "ending"),
    [
        ("data/cell", "; did you mean data/cells?"),
        ("data/cells/images", "; did you mean --dataset data/cells?"),
        ("data/cells/masks", "; did you mean --dataset data/cells?"),
    ],
)
def test_a_mistyped_data_set_is_told_of_one_that_is_there(dataset, ending):
    assert error_of(dataset).endswith(ending)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.mp4", "take the frames out of videos: ffmpeg -i VIDEO frame_%06d.png"),
        ("data.zip", "unpack archives first"),
        ("brain.mgz", "convert volumes of FreeSurfer and Analyze to NIfTI"),
        ("a.shp", "make a GeoPackage of a shapefile"),
    ],
)
def test_a_file_of_another_format_is_told_what_to_do_with(tmp_path, name, advice):
    (tmp_path / name).write_bytes(b"x")
    assert advice in error_of(tmp_path / name)


def test_an_image_of_another_format_is_told_what_to_convert_to(tmp_path):
    image = min((flat_folder(tmp_path, 3) / "images").iterdir())
    image.rename(image.with_suffix(".HEIC"))
    assert f"{image.stem}.HEIC is not read; convert HEIC to JPEG or PNG" in error_of(tmp_path)


def test_shapes_need_no_files():
    train, val = loaded("shapes", seed=7)
    assert isinstance(train.rows, Shapes)
    assert len(train) == 240
    assert len(val) == 48
    assert not {*names(train)} & {*names(val)}
    assert train.metadata.classes[1] == (1, "disk")


def test_the_key_of_a_folder_changes_with_each_file(tmp_path):
    files = [*flat_folder(tmp_path, 3).glob("*/*")]
    assert len(files) == 6
    assert unnoticed_changes(files, lambda: loaded(tmp_path)[0].digest) == []


@pytest.mark.parametrize(("image", "mask"), [("e\u0301", "\u00e9"), ("\u00e9", "e\u0301"), ("\uac00", "\u1100\u1161")])
def test_names_that_look_equal_are_equal(tmp_path, image, mask):
    write_pictures(tmp_path, f"images/{image}1.png", f"images/{image}2.png", f"masks/{mask}1.png", f"masks/{mask}2.png")
    train, val = loaded(tmp_path)
    assert sorted(paired(train) + paired(val)) == [(f"{image}{number}.png", f"{mask}{number}.png") for number in (1, 2)]


def test_names_that_differ_only_in_how_accents_are_stored_stay_two(tmp_path):
    names = ["e\u0301.png", "\u00e9.png"]
    write_pictures(tmp_path, *(f"{kind}/{name}" for kind in ("images", "masks") for name in names))
    train, val = loaded(tmp_path)
    assert sorted(paired(train) + paired(val)) == sorted((name, name) for name in names)


def test_pictures_of_nnunet_are_images_with_named_classes(tmp_path):
    labels = '"labels": {"background": 0, "road": 1}'
    (tmp_path / "dataset.json").write_text(f'{{"channel_names": {{"0": "R", "1": "G", "2": "B"}}, {labels}}}')
    write_pictures(tmp_path, *(f"imagesTr/road_{number}_0000.png" for number in range(4)))
    write_pictures(tmp_path, *(f"labelsTr/road_{number}.png" for number in range(4)))
    train, val = loaded(tmp_path)
    assert sorted(paired(train) + paired(val)) == [(f"road_{n}_0000.png", f"road_{n}.png") for n in range(4)]
    assert train.metadata.classes == ((0, "background"), (1, "road"))


def test_nothing_paired_is_an_error_whatever_is_allowed(tmp_path):
    write_pictures(tmp_path, "images/a.png", "images/c.png", "masks/b.png")
    assert "3 files without partner" in error_of(tmp_path, allow_unpaired=True)
