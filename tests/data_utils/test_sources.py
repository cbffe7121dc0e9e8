"""Folders, tables and shapes become two splits of records; every mistake in them a clear line.

Modules: data_utils/sources/folder.py, data_utils/sources/hf_datasets.py, data_utils/sources/holdout.py,
data_utils/sources/load.py, data_utils/sources/records.py, data_utils/sources/tiff_stacks.py.
"""

import io
import os
import pickle
import re
from dataclasses import replace
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import tifffile
from conftest import ROOT, unnoticed_changes
from PIL import Image, ImageFile

from data_utils.analysis.inspection import total_pixels
from data_utils.analysis.inspectors import choose_inspector, inspect_split
from data_utils.analysis.problems import raise_problems
from data_utils.class_map import resolve_classes
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_header, read_image, read_mask
from data_utils.pack import pack
from data_utils.sources import hf_datasets, load
from data_utils.sources.bands import PictureRecords
from data_utils.sources.folder import detect_suffix, files_by_stem, find_splits, natural_sort_key
from data_utils.sources.hf_datasets import HFRecords, TableName, find_columns
from data_utils.sources.holdout import hold_out, hold_out_fold
from data_utils.sources.load import load_records
from data_utils.sources.records import (
    AnnotationSummary,
    LandmarkNames,
    ListRecords,
    Metadata,
    StreamRecords,
    Subset,
    annotation_summaries,
    spread_indices,
    with_sources,
)
from data_utils.sources.shapes import Shapes
from data_utils.sources.streams.parquet import ParquetRecords
from runtime.errors import DataError

DATA = ROOT.parent / "shared" / "data"


def size_of(source, name):
    return read_header(source, name)[0]


def check_sizes(records):
    inspection = inspect_split(records, "reading files", choose_inspector(records))
    raise_problems(inspection, len(records))
    return inspection.sizes


def discover(records):
    return total_pixels([(inspect_split(records, "reading files", choose_inspector(records)), records)])


def write(root: Path, *names: str, size: tuple[int, int] = (4, 6)) -> Path:
    """Black pictures of (H, W) `size` below `root`."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size[::-1]).save(root / name)
    return root


def loaded(root: Path | str, *, val_fraction: float = 0.25, **settings):
    return load_records(DataConfig(str(root), val_fraction=val_fraction, **settings))


def names(split) -> list[str]:
    return [split[i]["name"] for i in range(len(split))]


def paired(split) -> list[tuple[str, str]]:
    return [(Path(split[i]["image"]).name, Path(split[i]["target"]).name) for i in range(len(split))]


def flat(root: Path, count: int = 12) -> Path:
    return write(root, *(f"{folder}/{i}.png" for folder in ("images", "masks") for i in range(count)))


def error_of(root: Path | str, **settings) -> str:
    with pytest.raises(DataError) as error:
        loaded(root, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_flat_folder_is_split_by_the_seed(tmp_path):
    train, val = loaded(flat(tmp_path))
    assert (len(train), len(val)) == (9, 3)
    assert sorted(names(train) + names(val)) == sorted(f"{i}.png" for i in range(12))
    assert all(image == mask for image, mask in paired(train) + paired(val))
    assert names(loaded(tmp_path)[1]) == names(val)
    assert any(names(loaded(tmp_path, seed=seed)[1]) != names(val) for seed in range(1, 5))
    folds = {tuple(names(loaded(tmp_path, seed=seed, fold=(1, 4))[1])) for seed in range(4)}
    assert len(folds) > 1


def test_splits_below_images_and_masks_are_the_usual_ones_and_those_that_are_named_in_any_case(tmp_path):
    write(tmp_path, *(f"{folder}/a.png" for folder in ("images/Train", "masks/train", "images/fold1", "masks/Fold1")))
    images, masks = tmp_path / "images", tmp_path / "masks"
    train = (images / "Train", masks / "train")
    assert find_splits(tmp_path, ()) == {"train": train}
    assert find_splits(tmp_path, ("Fold1",)) == {"train": train, "fold1": (images / "fold1", masks / "Fold1")}


def test_the_first_five_other_endings_of_a_folder_are_named(tmp_path):
    for ending in "fedcba":
        (tmp_path / f"x.{ending}").touch()
    with pytest.raises(DataError, match=r"found only \.a, \.b, \.c, \.d, \.e, looked for"):
        files_by_stem(tmp_path, "images")


def test_images_are_no_slices_where_two_dims_are_asked_for(tmp_path):
    assert [names(split) for split in loaded(flat(tmp_path), dims=2)] == [names(split) for split in loaded(tmp_path)]


def test_records_are_followed_to_those_that_they_are_made_of():
    records = ListRecords([{"image": "", "target": "", "name": name} for name in "abc"])
    subset = Subset(records, np.array([0, 2]))
    last = Subset(subset, np.array([1]))
    assert [*with_sources(last)] == [last, subset, records]


def test_a_folder_of_the_user_may_be_named_by_a_tilde(tmp_path, monkeypatch):
    (flat(tmp_path / "cells", 4) / "classes.csv").write_text("image,classes\n0,0\n1,0\n2,0\n3,0\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    train, val = loaded("~/cells")
    assert len(train) == 3
    assert val.labeled(0) == ("0",)


def test_a_flag_for_other_data_is_one_line(tmp_path):
    line = "--fold 1/2 cuts the training images into folds, but shapes has its own validation images; leave --fold out"
    assert error_of("shapes", fold=(1, 2)).startswith(line)
    assert error_of(flat(tmp_path / "a", 2), label_column="kind").startswith("--label-column kind is a column of poly")
    (tmp_path / "a.tar").touch()
    line = f"--val-blocks cuts images of a folder that have a place, but {tmp_path / 'a.tar'} is no folder"
    assert error_of(tmp_path / "a.tar", val_blocks=64) == line


def test_the_split_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    import os

    expected = [names(split) for split in loaded(flat(tmp_path))]
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda *args, **kw: ((top, dirs, files[::-1]) for top, dirs, files in walk(*args, **kw))
    )
    assert [names(split) for split in loaded(tmp_path)] == expected


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match=f"^{tmp_path / 'gone'} cannot be read \\(No such file or directory\\)$"):
        files_by_stem(tmp_path / "gone", "images")


def test_names_that_differ_in_capitals_alone_are_two_images(tmp_path):
    for name in ("a.png", "A.png"):
        (tmp_path / name).touch()
    assert files_by_stem(tmp_path, "images") == {"A": "A.png", "a": "a.png"}


def test_each_number_in_a_name_counts_and_leading_zeros_only_between_equals():
    names = ["a2b", "a010b", "a10b", "a10b2", "a10b10", "a10c1", "b1"]
    assert sorted(reversed(names), key=natural_sort_key) == names


def test_names_are_in_natural_order(tmp_path):
    train, _ = loaded(flat(tmp_path), val_fraction=0.0)
    assert names(train) == [f"{i}.png" for i in range(12) if f"{i}.png" in names(train)]


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 1), (0.01, 1), (0.4, 2), (0.5, 2), (1.0, 3)])
def test_each_part_of_a_split_holds_an_image(tmp_path, fraction, expected):
    train, val = loaded(flat(tmp_path, 4), val_fraction=fraction)
    assert (len(train), len(val)) == (4 - expected, expected)


def test_one_image_cannot_be_split(tmp_path):
    assert error_of(flat(tmp_path, 1)).endswith("one to validate on; the data set has 1")


@pytest.mark.parametrize("train", ["train", "Training"])
@pytest.mark.parametrize("val", ["val", "validation", "VALID"])
def test_splits_may_be_folders_above_or_below(tmp_path, train, val):
    above = write(tmp_path / "above", *(f"{s}/{f}/{s}.png" for s in (train, val) for f in ("imgs", "Labels")))
    below = write(tmp_path / "below", *(f"{f}/{s}/{s}.png" for s in (train, val) for f in ("Image", "annotations")))
    for root in (above, below):
        splits = loaded(root)
        assert [names(split) for split in splits] == [[f"{train}.png"], [f"{val}.png"]]
        assert all(image == mask for split in splits for image, mask in paired(split))


def test_a_folder_of_images_without_one_of_masks_is_no_split(tmp_path):
    pairs = [f"{folder}/train/{number}.png" for folder in ("images", "masks") for number in range(4)]
    write(tmp_path, *pairs, "images/val/0.png")
    assert [len(split) for split in loaded(tmp_path)] == [3, 1]


def test_a_test_folder_counts_only_when_named(tmp_path):
    flat(tmp_path / "train", 4)
    write(tmp_path, "test/images/only_images.png")
    assert [len(split) for split in loaded(tmp_path)] == [3, 1]
    write(tmp_path, "test/masks/only_images.png")
    train, val = loaded(tmp_path, val_split="test")
    assert (len(train), names(val)) == (4, ["only_images.png"])


def test_splits_of_any_name_are_found_when_named(tmp_path):
    flat(tmp_path / "Fold1", 3)
    flat(tmp_path / "Fold2", 2)
    assert [len(split) for split in loaded(tmp_path, train_split="Fold1", val_split="Fold2")] == [3, 2]
    assert [len(split) for split in loaded(tmp_path, train_split="Fold1")] == [2, 1]
    assert "has no split fold3, only fold1" in error_of(tmp_path, train_split="Fold1", val_split="fold3")


def test_a_validation_folder_stands_beside_a_flat_folder(tmp_path):
    flat(tmp_path, 4)
    flat(tmp_path / "val", 2)
    assert [len(split) for split in loaded(tmp_path)] == [4, 2]
    line = f"--fold 1/2 cuts the training images into folds, but {tmp_path} has the validation split val; leave --fold"
    assert error_of(tmp_path, fold=(1, 2)).startswith(line)


def test_the_training_split_is_not_validated_on_unasked(tmp_path):
    flat(tmp_path / "val", 4)
    train, val = loaded(tmp_path, train_split="val")
    assert not set(names(train)) & set(names(val))
    assert len(val) == 1


@pytest.mark.parametrize("suffix", ["_mask", "-gt", ".seg", "0", ""])
def test_the_suffix_of_masks_is_detected(tmp_path, suffix):
    for stem in ("1", "10", "11", "a_mask"):
        write(tmp_path, f"images/{stem}.jpg", f"masks/{stem}{suffix}.gif")
    train, val = loaded(tmp_path)
    assert sorted(paired(train) + paired(val)) == sorted(
        (f"{s}.jpg", f"{s}{suffix}.gif") for s in ("1", "10", "11", "a_mask")
    )
    assert loaded(tmp_path, mask_suffix=suffix)[0][0] == train[0]
    if suffix:
        assert "of 4 images" in error_of(tmp_path, mask_suffix="")


def test_the_suffix_of_masks_may_be_given(tmp_path):
    write(tmp_path, *(f"images/{i}.png" for i in "ab"), *(f"masks/{i}{s}.png" for i in "ab" for s in ("_x", "_y")))
    assert "--mask-suffix" in error_of(tmp_path)
    assert "2 of 4 masks" in error_of(tmp_path, mask_suffix="_y")
    train, val = loaded(tmp_path, mask_suffix="_y", allow_unpaired=True)
    assert sorted(paired(train) + paired(val)) == [("a.png", "a_y.png"), ("b.png", "b_y.png")]


def test_subfolders_pair_by_relative_stem(tmp_path):
    write(tmp_path, *(f"images/{p}/1.png" for p in ("a", "b/c")), *(f"masks/{p}/1_mask.png" for p in ("a", "b/c")))
    train, val = loaded(tmp_path)
    assert sorted(names(train) + names(val)) == ["a/1.png", "b/c/1.png"]
    assert train.image_folders() == {(str(tmp_path / "images"), folder) for folder in ("a", "b/c")}
    assert all(r["target"] == str(tmp_path / "masks" / r["name"].replace("1.", "1_mask.")) for r in (train[0], val[0]))


def stacks(root: Path, images: list[int], masks: list[int], suffix: str = "") -> Path:
    """A TIFF pair for each number of pages; page p of file f has the pixels 10 f + p, its mask p % 2."""
    for folder, counts in (("images", images), ("masks", masks)):
        (root / folder).mkdir(parents=True)
        for f, count in enumerate(counts):
            with tifffile.TiffWriter(root / folder / f"{f}{suffix if folder == 'masks' else ''}.tif") as tiff:
                for page in range(count):
                    value = 10 * f + page if folder == "images" else page % 2
                    tiff.write(np.full((6 + page, 9), value, np.uint8), photometric="minisblack")
                    if folder == "images":  # a small copy, as pyramids have
                        tiff.write(np.zeros((3, 4), np.uint8), photometric="minisblack", subfiletype=1)
    return root


def test_pages_of_tiffs_pair_one_by_one(tmp_path):
    stacks(tmp_path, [3, 1, 2], [3, 1, 2], suffix="_mask")
    train, val = loaded(tmp_path)
    records = ListRecords(sorted([*train, *val], key=lambda record: record["name"]))
    assert [r["name"] for r in records] == [
        "0_0001.tif",
        "0_0002.tif",
        "0_0003.tif",
        "1.tif",
        "2_0001.tif",
        "2_0002.tif",
    ]
    assert [read_image(r["image"])[0, 0, 0] for r in records] == [0, 1, 2, 10, 20, 21]
    assert [read_mask(r["target"], "")[0, 0] for r in records] == [0, 1, 0, 0, 0, 1]
    inspection = inspect_split(records, "reading files", choose_inspector(records))
    assert not inspection.problems
    assert inspection.sizes[:, 0].tolist() == [6, 7, 8, 6, 6, 7]
    rows = ParquetRecords.open([str(file) for file in pack(records, tmp_path / "out", "train")], None, None)
    assert [row["name"] for row in rows] == [record["name"] for record in records]
    for row, record in zip(rows, records, strict=True):
        for kind in ("image", "target"):
            np.testing.assert_array_equal(read_image(row[kind]), read_image(record[kind]))
    before = train.digest
    with tifffile.TiffWriter(tmp_path / "images" / "1.tif", append=True) as tiff:
        tiff.write(np.zeros((6, 9), np.uint8), photometric="minisblack")
    message = error_of(tmp_path)
    assert re.search(
        r"images/1\.tif has 2 pages, its mask .*masks/1_mask\.tif has 1; both need the same number of pages", message
    )
    (tmp_path / "images" / "1.tif").write_bytes(b"II*\0" + bytes(40))  # damaged: named when it is read
    train, val = loaded(tmp_path)
    assert len(train) + len(val) == 6
    assert train.digest != before
    records = ListRecords([*train, *val])
    inspection = inspect_split(records, "reading files", choose_inspector(records))
    assert [problem.kind for problem in inspection.problems.values()] == ["image cannot be read"]


def test_other_files_are_left_alone(tmp_path):
    flat(tmp_path, 3)
    for name in ("images/Thumbs.db", "masks/notes.txt", "images/.DS_Store", ".hidden/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    write(tmp_path, "masks/._1.png", "masks/.trash/9.png")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [len(split) for split in loaded(tmp_path)] == [2, 1]


def test_a_folder_of_images_beside_those_of_splits_is_left_alone(tmp_path):
    flat(tmp_path / "train", 4)
    write(tmp_path, "images/figure.png")
    assert [len(split) for split in loaded(tmp_path)] == [3, 1]


def test_partners_that_are_missing_are_counted_and_named(tmp_path):
    write(flat(tmp_path, 3), *(f"images/x{i}.png" for i in range(7)), "masks/y.png")
    message = error_of(tmp_path)
    assert "7 of 10 images" in message
    assert "(x0.png, x1.png, x2.png, x3.png, x4.png, ...)" in message
    assert "1 of 4 masks" in message
    assert "(y.png)" in message
    assert "--allow-unpaired" in message
    assert [len(split) for split in loaded(tmp_path, allow_unpaired=True)] == [2, 1]


def test_nothing_paired_is_an_error_whatever_is_allowed(tmp_path):
    write(tmp_path, "images/a.png", "images/c.png", "masks/b.png")
    assert "2 of 2 images" in error_of(tmp_path, allow_unpaired=True)


FOLDER_MISTAKES = {
    "empty": ([], "no folder of images or masks; looked for images|imgs|image beside masks|labels"),
    "pictures loose": (["a10.png", "a9.png"], "found a9.png, a10.png"),
    "no masks": (["images/a.png", "other/a.png"], "no folder of masks"),
    "no images": (["masks/a.png"], "no folder of images"),
    "no masks in val": (["train/images/a.png", "train/masks/a.png", "val/images/a.png"], "val has no folder of masks"),
    "no training": (["val/images/a.png", "val/masks/a.png"], "has no split train, only val"),
    "no pictures": (["images/", "masks/a.png"], "no images in"),
    "two of a stem": (["images/a.png", "masks/a.png", "masks/a.gif"], "two masks with the same name"),
    "two image stems": (["images/a.png", "images/a.jpg", "masks/a.png"], "two images with the same name"),
    "two image folders": (["images/a.png", "imgs/a.png", "masks/a.png"], "images/ and imgs/; keep one"),
    "two cases": (["images/a.png", "Images/a.png", "masks/a.png"], "holds Images/ and images/; keep one"),
    "both layouts": (["images/a.png", "masks/a.png", "train/images/a.png", "train/masks/a.png"], "both images/ and"),
    "both layouts, training": (
        ["images/a.png", "masks/a.png", "training/images/a.png", "training/masks/a.png"],
        "both images/ and",
    ),
    "no mask files": (["images/a.png", "masks/"], "(or annotations of COCO, labelme, YOLO, VOC or Cityscapes)"),
    "two val": (
        [f"{s}/{f}/a.png" for s in ("train", "val", "valid") for f in ("images", "masks")],
        "has the splits val and valid; choose one with --val-split",
    ),
}


@pytest.mark.parametrize(("files", "message"), FOLDER_MISTAKES.values(), ids=FOLDER_MISTAKES)
def test_a_mistake_in_a_folder_is_one_clear_line(tmp_path, files, message):
    for file in files:
        (tmp_path / file).mkdir(parents=True) if file.endswith("/") else write(tmp_path, file)
    if len(list(tmp_path.iterdir())) < len({file.partition("/")[0] for file in files}):
        pytest.skip("this file system does not tell upper from lower case")
    assert message in error_of(tmp_path)


def test_a_folder_without_pictures_says_what_it_holds(tmp_path):
    write(tmp_path, "masks/a.png")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "scan.dcm").write_text("x")
    (tmp_path / "images" / "README").write_text("x")
    assert "found only .dcm, README, looked for" in error_of(tmp_path)


@pytest.mark.parametrize("masks", ["masks", "labels", "annotations", "mask", "label"])
@pytest.mark.parametrize("images", ["images", "imgs", "image"])
def test_folders_of_images_and_masks_have_usual_names(tmp_path, images, masks):
    for name in (images, masks):
        (tmp_path / name).mkdir()
    assert find_splits(tmp_path, ()) == {"train": (tmp_path / images, tmp_path / masks)}


@pytest.mark.parametrize("paged", ["images", "masks"])
def test_pages_are_counted_where_either_the_image_or_the_mask_is_a_tiff(tmp_path, paged):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for stem in "ab":
            if kind == paged and stem == "b":
                tifffile.imwrite(tmp_path / kind / "b.tif", np.zeros((2, 6, 9), np.uint8), photometric="minisblack")
            else:
                Image.new("L", (9, 6)).save(tmp_path / kind / f"{stem}.png")
    assert "both need the same number of pages" in error_of(tmp_path)


def test_the_ending_of_mask_names_is_one_that_all_of_them_have():
    assert detect_suffix(["1", "20", "30"], ["1_m", "20_m", "30_m"]) == "_m"
    assert detect_suffix(["1", "20", "30"], ["1_m", "20_mask", "30_mask"]) == ""


def test_images_that_are_their_own_masks_are_refused(tmp_path):
    write(tmp_path, "images/a.png")
    (tmp_path / "masks").symlink_to(tmp_path / "images")
    assert "are the same folder" in error_of(tmp_path)


def test_a_mistyped_data_set_says_what_was_expected_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flat(tmp_path / "data" / "cells", 3)
    (tmp_path / "file.txt").write_text("x")
    for dataset in ("shape", "data/cell", str(tmp_path / "nowhere"), "../data/x", "a/b/c", f"{tmp_path}/file.txt/x"):
        assert re.search("is not there; expected `shapes`, a folder", error_of(dataset))
    line = error_of("file.txt")
    assert "is a file, not .parquet" in line
    assert "did you mean" not in line
    assert "did you mean" not in error_of(write(tmp_path / "alone", "images/a.png") / "images")
    assert error_of("data/cell").endswith("; did you mean data/cells?")
    assert error_of("data/cells/images").endswith("; did you mean --dataset data/cells?")
    assert error_of("data/cells/masks").endswith("; did you mean --dataset data/cells?")
    assert error_of(write(tmp_path / "b", "Images/a.png", "Masks/a.png") / "Images").endswith(
        f"--dataset {tmp_path}/b?"
    )


def test_files_of_other_formats_are_told_what_to_do_with(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"video")
    assert "take the frames out of videos" in error_of(tmp_path / "a.mp4")
    (tmp_path / "data.zip").write_bytes(b"PK")
    assert "unpack archives first" in error_of(tmp_path / "data.zip")
    flat(tmp_path / "cells", 3)
    images = tmp_path / "cells" / "images"
    first = sorted(images.iterdir())[0]
    first.rename(first.with_suffix(".HEIC"))
    line = error_of(tmp_path / "cells")
    assert f"{images} holds {first.stem}.HEIC, which is not read; convert HEIC to JPEG or PNG" in line
    for path in sorted(images.iterdir()):
        path.rename(path.with_suffix(".HEIC"))
    assert "found only .heic" in error_of(tmp_path / "cells")
    assert "convert HEIC" in error_of(tmp_path / "cells")


@pytest.fixture
def hub(monkeypatch):
    """A Hub on this machine that has no data set; the paths that it was asked for."""
    import huggingface_hub
    from huggingface_hub import constants

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *values):
            pass

    asked, server = [], ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "__init__", partialmethod(huggingface_hub.HfApi.__init__, endpoint=address)
    )
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_path_that_looks_like_a_hub_id_is_asked_for_once(hub, streaming):
    assert "is no folder here, and the Hub has no data set of that name" in error_of("my/cells", streaming=streaming)
    assert sum(path.startswith("/api/datasets/my/cells") for path in hub) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_without_a_network_a_hub_id_is_one_line(monkeypatch, streaming):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = error_of("my/cells", streaming=streaming)
    assert "is no folder here, and the Hub cannot be reached (Cannot reach" in message


def test_a_copy_of_a_hub_data_set_is_loaded_without_the_hub(monkeypatch, tmp_path):
    import datasets

    def fail(dataset, config):
        raise ConnectionError(f"Couldn't reach {dataset!r}\non the Hub, {config}")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", fail)
    (tmp_path / "nobody___small_things").mkdir()
    message = error_of("nobody/SmallThings", dataset_config="small")
    assert "as a Hub id it cannot be loaded (Couldn't reach 'nobody/SmallThings' on the Hub, small)" in message


def png(value: int, size=(4, 6)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size[::-1], value).save(file, "png")
    return file.getvalue()


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """`datasets`, with its cache below tmp_path and quiet; table(count, **columns) makes one with pictures."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    yield datasets
    datasets.enable_progress_bars()


def table(datasets, count: int = 4, image: str = "image", mask: str = "mask"):
    rows = {
        image: [{"bytes": png(i), "path": f"some/{i}.jpg"} for i in range(count)],
        mask: [{"bytes": png(i % 2), "path": None} for i in range(count)],
        "id": list(range(count)),
    }
    features = {image: datasets.Image(), mask: datasets.Image(), "id": datasets.Value("int64")}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def records_of(table, mask_column: str | None = None) -> HFRecords:
    return HFRecords(table, TableName("some/table", None, "train"), None, mask_column)


def test_the_key_of_a_table_changes_with_its_rows_and_with_the_columns_that_are_read(tables):
    rows = {"image": [png(0)] * 3, "mask": [png(1)] * 3, "label": [png(2)] * 3}
    features = tables.Features({name: tables.Image() for name in rows})
    first = tables.Dataset.from_dict(rows, features=features)
    second = tables.Dataset.from_dict(rows | {"mask": [png(1), png(1), png(3)]}, features=features)
    keys = [records_of(first, mask_column).digest for mask_column in (None, "label")]
    keys += [records_of(second).digest, records_of(first.select([0, 1])).digest]
    assert len(set(keys)) == 4
    assert records_of(first).digest == keys[0]


def test_tables_are_known_by_their_data_set_its_configuration_and_their_split(monkeypatch, tables):
    tables_of = {("some/table", "large"): {"train": table(tables, 3), "validation": table(tables, 2)}}
    monkeypatch.setattr(load, "load_tables", lambda dataset, config: tables_of[dataset, config])
    for split, records in zip(("train", "validation"), loaded("some/table", dataset_config="large"), strict=True):
        (source,) = [each for each in with_sources(records) if isinstance(each, HFRecords)]
        assert source.table_name == TableName("some/table", "large", split)


def test_saved_data_sets_are_read(tmp_path, tables):
    table(tables).save_to_disk(tmp_path / "one")
    splits = {"train": table(tables, 3), "validation": table(tables, 2), "test": table(tables, 5)}
    tables.DatasetDict(splits).save_to_disk(tmp_path / "dict")
    assert [len(split) for split in loaded(tmp_path / "one")] == [3, 1]
    assert [len(split) for split in loaded(tmp_path / "dict")] == [3, 2]
    train, val = loaded(tmp_path / "dict", train_split="validation", val_split="test")
    assert (len(train), names(val)) == (2, [f"{i}.jpg" for i in range(5)])
    assert "has no split dev, only train, validation, test" in error_of(tmp_path / "dict", val_split="dev")
    tables.DatasetDict({"Fold1": table(tables, 3), "Fold2": table(tables, 2)}).save_to_disk(tmp_path / "folds")
    folds = loaded(tmp_path / "folds", train_split="Fold1", val_split="Fold2")
    assert [len(split) for split in folds] == [3, 2]
    record = val[3]
    assert size_of(record["image"], "i") == (4, 6)
    assert (read_mask(record["target"], "m") == 1).all()
    assert check_sizes(train).tolist() == [[4, 6]] * 2


@pytest.mark.parametrize("mask", ["mask", "label", "annotation"])
def test_parquet_files_are_read(tmp_path, tables, mask):
    table(tables, mask=mask).to_parquet(tmp_path / "cells.parquet")
    (tmp_path / "folder" / "data").mkdir(parents=True)
    for split, count in (("train", 3), ("validation", 2)):
        table(tables, count, mask=mask).to_parquet(tmp_path / "folder" / "data" / f"{split}-00000-of-00001.parquet")
    assert [len(split) for split in loaded(tmp_path / "cells.parquet")] == [3, 1]
    (tmp_path / "alone").mkdir()
    (tmp_path / "cells.parquet").rename(tmp_path / "alone/train.parquet")
    assert [len(split) for split in loaded(tmp_path / "alone")] == [3, 1]
    train, val = loaded(tmp_path / "folder")
    assert (len(train), len(val)) == (3, 2)
    assert discover(train) == {0: 48, 1: 24}
    (tmp_path / "folder" / "data").rename(tmp_path / "folder" / "tables")
    assert [len(split) for split in loaded(tmp_path / "folder")] == [3, 2]


def on_another_machine(tables, tmp_path: Path, records):
    """The records as another machine receives them, which does not share the cache of `datasets`."""
    pickled = pickle.dumps(records)
    (tmp_path / "cache").rename(tmp_path / "cache of the first machine")
    received = pickle.loads(pickled)
    (tmp_path / "cache of the first machine").rename(tmp_path / "cache")
    tables.config.HF_DATASETS_CACHE = str(tmp_path / "another cache")
    return received


def test_records_are_loaded_again_on_a_machine_without_their_files(tmp_path, tables):
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    splits = loaded(tmp_path / "cells.parquet")
    received = on_another_machine(tables, tmp_path, splits)
    for there, here in zip(splits, received, strict=True):
        assert len(there) == len(here)
        here.open_here()
        assert list(there) == list(here)
        assert there.digest == here.digest
    files = {file["filename"] for records in received for file in records.records.rows.cache_files}
    assert files
    assert all(file.startswith(str(tmp_path / "another cache")) for file in files)


def test_another_version_of_a_table_on_another_machine_is_refused(tmp_path, tables):
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    records, _ = on_another_machine(tables, tmp_path, loaded(tmp_path / "cells.parquet"))
    table(tables, 6).to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(DataError, match=r"cells\.parquet is another version on machine"):
        records.open_here()
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    os.utime(tmp_path / "cells.parquet", (10**9, 10**9))  # a copy has a time of its own
    records.open_here()
    assert len(list(records)) == len(records) == 4


def test_another_version_of_a_hub_data_set_on_another_machine_is_refused(tmp_path, tables, monkeypatch):
    table(tables, 5).to_parquet(tmp_path / "cells.parquet")
    monkeypatch.setattr(hf_datasets, "ask_hub", lambda dataset, copy: None)
    load_dataset = tables.load_dataset
    monkeypatch.setattr(
        tables, "load_dataset", lambda *hub_id: load_dataset("parquet", data_files=str(tmp_path / "cells.parquet"))
    )
    records, _ = on_another_machine(tables, tmp_path, loaded("nobody/cells"))
    later = os.stat(tmp_path / "cells.parquet").st_mtime + 9
    os.utime(tmp_path / "cells.parquet", (later, later))  # other files have another fingerprint
    with pytest.raises(DataError, match="nobody/cells is another version on machine"):
        records.open_here()


def test_a_table_is_found_again_by_its_configuration_and_its_split(tables, monkeypatch):
    rows = table(tables)
    names = []
    found = {"small": {"train": rows}, "other": {"test": rows}}
    monkeypatch.setattr(hf_datasets, "load_tables", lambda *name: names.append(name) or found[name[-1]])
    for config in found:
        records = HFRecords(rows, TableName("some/table", config, "train"), None, None)
        records.rows = None
        if config == "small":
            records.open_here()
            assert len(records) == 4
            assert records[3]["name"] == "3.jpg"
        else:
            with pytest.raises(DataError, match="some/table is another version on machine"):
                records.open_here()
    assert names == [("some/table", config) for config in found]


def test_rows_of_several_files_travel_where_all_of_these_are(tmp_path, tables):
    for name in ("a", "b"):
        table(tables, 2).save_to_disk(tmp_path / name)
    parts = [tables.load_from_disk(tmp_path / name) for name in ("a", "b")]
    content = pickle.dumps(records_of(tables.concatenate_datasets(parts)))
    assert len(pickle.loads(content).rows) == 4
    (tmp_path / "b").rename(tmp_path / "c")
    assert pickle.loads(content).rows is None


def test_the_hub_has_ten_seconds_to_answer(monkeypatch):
    questions = []
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info", lambda self, dataset, timeout: questions.append((dataset, timeout))
    )
    hf_datasets.ask_hub("some/table")
    assert questions == [("some/table", 10)]


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_hub_that_cannot_be_reached_is_one_line_unless_a_copy_is_here(tmp_path, monkeypatch, error):
    def dataset_info(*args, **settings):
        raise error("no way")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    hf_datasets.ask_hub("some/table", tmp_path)
    for copy in (None, tmp_path / "none"):
        with pytest.raises(DataError, match=r"is no folder here, and the Hub cannot be reached \(no way\)$"):
            hf_datasets.ask_hub("some/table", copy)


def test_a_struct_is_a_picture_where_it_has_bytes_and_a_path():
    picture = {"bytes": "binary", "path": "string"}
    for mask in (picture, picture | {"width": "int64"}):
        assert find_columns({"image": picture, "mask": mask}, None, None) == {"image": "image", "mask": "mask"}
    for part in ({"path": "string"}, {"bytes": "binary"}):
        with pytest.raises(DataError, match=r"no column mask\|label\|annotation with pictures"):
            find_columns({"image": picture, "mask": part}, None, None)


@pytest.mark.parametrize("dtype", ["binary", "large_binary", "string", "large_string", "int64"])
def test_bytes_and_texts_of_any_length_may_be_pictures(tables, dtype):
    features = tables.Features({"image": tables.Value(dtype), "mask": tables.Image()})
    if dtype == "int64":
        with pytest.raises(DataError, match=r"no column image with pictures, only image \(int64\), mask"):
            find_columns(features, None, None)
    else:
        assert find_columns(features, None, None) == {"image": "image", "mask": "mask"}


def test_a_table_that_is_here_is_not_loaded_again_and_one_column_may_be_image_and_mask(tables):
    records = HFRecords(table(tables), TableName("~/some/table", None, "train"), None, "image")
    records.open_here()
    assert records[2]["target"] == records[2]["image"]
    assert records.table_name.path == Path.home() / "some/table"


def test_columns_may_be_bytes_or_paths(tmp_path, tables):
    flat(tmp_path / "files", 3)
    columns = {
        "image": [str(tmp_path / "files" / "images" / f"{i}.png") for i in range(3)],
        "mask": [png(i) for i in range(3)],
    }
    tables.Dataset.from_dict(columns).to_parquet(tmp_path / "a.parquet")
    train, val = loaded(tmp_path / "a.parquet")
    assert check_sizes(train).tolist() == [[4, 6]] * 2
    assert len(val) == 1
    tables.Dataset.from_dict({"image": [png(0)] * 3, "mask": [png(0)] * 3}).to_parquet(tmp_path / "b.parquet")
    assert names(loaded(tmp_path / "b.parquet", val_fraction=0.0)[1]) in (["row 0"], ["row 1"], ["row 2"])


def test_columns_are_named_or_found(tmp_path, tables):
    table(tables, image="scan", mask="cells").save_to_disk(tmp_path / "data")
    assert len(loaded(tmp_path / "data", image_column="scan", mask_column="cells")[0]) == 3
    message = error_of(tmp_path / "data")
    assert "no column image with pictures, only scan" in message
    assert "--image-column" in message
    message = error_of(tmp_path / "data", image_column="scan", mask_column="id")
    assert "no column id with pictures" in message
    assert "id (int64)" in message
    assert message.endswith("choose one with --mask-column")


def test_a_class_label_is_no_mask(tmp_path, tables):
    data = table(tables, mask="annotation").rename_column("id", "label")
    data.save_to_disk(tmp_path / "data")
    assert read_mask(loaded(tmp_path / "data")[0][0]["target"], "m").shape == (4, 6)


def test_damaged_tables_are_one_line(tmp_path, tables):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    assert "bad.parquet cannot be loaded (" in error_of(tmp_path / "bad.parquet")
    table(tables).save_to_disk(tmp_path / "data")
    (tmp_path / "data" / "state.json").unlink()
    assert "cannot be loaded" in error_of(tmp_path / "data")
    (tmp_path / "mixed").mkdir()
    table(tables).to_parquet(tmp_path / "mixed" / "a.parquet")
    table(tables, mask="other").to_parquet(tmp_path / "mixed" / "b.parquet")
    assert "mixed cannot be loaded (" in error_of(tmp_path / "mixed")


def test_a_row_without_mask_is_named(tmp_path, tables):
    data = table(tables, 3)
    rows = {"image": data.cast_column("image", tables.Image(decode=False))["image"], "mask": [None, png(0), png(0)]}
    tables.Dataset.from_dict(
        rows, features=tables.Features({"image": tables.Image(), "mask": tables.Image()})
    ).save_to_disk(tmp_path / "data")
    splits = loaded(tmp_path / "data")
    with pytest.raises(DataError, match=r"1 of \d pairs cannot be used: 0\.jpg: mask is missing"):
        for split in splits:
            check_sizes(split)
    rows["image"] = [rows["image"][0], None, rows["image"][2]]
    data = tables.Dataset.from_dict(rows, features=tables.Features({"image": tables.Image(), "mask": tables.Image()}))
    assert [record["name"] for record in records_of(data)] == ["0.jpg", "row 1", "2.jpg"]


def test_shapes_need_no_files():
    train, val = loaded("shapes", seed=7)
    assert (len(train), len(val)) == (240, 48)
    assert check_sizes(val).tolist() == [list(val[i]["target"].shape) for i in range(48)]
    assert isinstance(train, Shapes)
    assert not {*names(train)} & {*names(val)}


def test_sizes_are_those_of_the_images_in_order(tmp_path, monkeypatch):
    write(tmp_path, "images/1.png", "masks/1.png", size=(5, 9))
    write(tmp_path, "images/2.jpg", "masks/2.png", size=(7, 3))
    write(tmp_path, "images/3.png", "masks/3.png", size=(2, 2))
    train, _ = loaded(tmp_path, val_fraction=0.0)
    expected = {"1.png": [5, 9], "2.jpg": [7, 3], "3.png": [2, 2]}
    calls = []
    monkeypatch.setattr(
        "data_utils.analysis.inspectors.track", lambda items, total, title: calls.append(total) or items
    )
    sizes = check_sizes(train)
    assert sizes.tolist() == [expected[name] for name in names(train)]
    assert (sizes.dtype, calls) == (np.int64, [2])


def test_files_that_cannot_be_used_are_named_together(tmp_path):
    flat(tmp_path / "train", 8)
    write(tmp_path / "train", "masks/2.png", size=(6, 4))
    (tmp_path / "train" / "images" / "4.png").write_bytes(b"")
    (tmp_path / "train" / "masks" / "5.png").write_text("no picture")
    (tmp_path / "train" / "masks" / "7.png").unlink()
    (tmp_path / "train" / "masks" / "7.png").symlink_to("nowhere")
    flat(tmp_path / "val", 1)
    train, _ = loaded(tmp_path)
    with pytest.raises(DataError) as error:
        check_sizes(train)
    message = str(error.value)
    sizes = "image is 4 x 6, its mask 6 x 4 (height x width); they differ in proportions"
    assert message.startswith(f"4 of 8 pairs cannot be used: 2.png: {sizes}; ")
    assert "4.png: image cannot be read" in message
    assert "5.png: mask cannot be read" in message
    assert message.endswith("; ...; --on-bad-sample skip trains without them")
    assert "\n" not in message


@pytest.mark.parametrize(
    "source", [np.zeros((4, 6, 3)), png(0), {"bytes": png(0), "path": None}, Image.new("L", (6, 4))]
)
def test_the_size_of_any_source_is_height_and_width(source):
    assert size_of(source, "x") == (4, 6)


def test_the_size_of_an_array_file_is_in_its_header(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 6, 3), np.float32))
    assert size_of(str(tmp_path / "a.npy"), "a") == (4, 6)
    np.save(tmp_path / "b.npy", np.zeros(4))
    with pytest.raises(DataError, match=r"b is an array of shape \(4,\)"):
        size_of(tmp_path / "b.npy", "b")


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff"])
def test_the_size_is_read_without_the_pixels(monkeypatch, kind):
    def decode(self):
        raise AssertionError("decodes the pixels")

    file = io.BytesIO()
    Image.new("L", (6, 4)).save(file, kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    assert size_of(file.getvalue(), "x") == (4, 6)


@pytest.mark.skipif(not (DATA / "isbi2012").is_dir(), reason="needs ../shared/data")
def test_isbi_is_a_flat_binary_data_set():
    train, val = loaded(DATA / "isbi2012", val_fraction=0.1)
    assert (len(train), len(val)) == (27, 3)
    assert (check_sizes(train) == 512).all()
    class_map = resolve_classes(discover(ListRecords([train[i] for i in range(5)])), (), None)
    assert (class_map.names, class_map.values, class_map.ignore_value) == (("background", "foreground"), (0, 255), None)


@pytest.mark.skipif(not (DATA / "camvid").is_dir(), reason="needs ../shared/data")
def test_camvid_has_both_splits_and_a_void_class():
    train, val = loaded(DATA / "camvid")
    assert (len(train), len(val)) == (367, 101)
    assert (check_sizes(val) == (360, 480)).all()
    class_map = resolve_classes(discover(train), (), "11")
    assert (class_map.values, class_map.ignore_value) == (tuple(range(11)), 11)


def test_an_image_of_another_format_is_named_also_where_masks_have_a_suffix(tmp_path):
    write(tmp_path, "images/a.png", "masks/a_mask.png", "masks/b2_mask.png", "masks/b10_mask.png")
    for name in ("b10.HEIC", "b2.HEIC", "a.txt"):
        (tmp_path / "images" / name).write_bytes(b"x")
    assert f"{tmp_path / 'images'} holds b2.HEIC, which is not read; convert HEIC to JPEG" in error_of(tmp_path)


def test_a_file_beside_an_image_of_its_name_is_no_image_of_another_format(tmp_path):
    write(tmp_path, "images/a.png", "masks/a.png", "masks/b.png")
    for name in ("a.txt", "notes.txt"):
        (tmp_path / "images" / name).write_text("x")
    assert "which is not read" not in error_of(tmp_path)


def test_what_has_no_partner_is_kept_as_a_line_for_each_file(tmp_path):
    write(flat(tmp_path, 3), "images/x.png", "masks/y.png")
    for split in loaded(tmp_path, allow_unpaired=True):
        assert split.metadata.unpaired == ("x.png: image without mask", "y.png: mask without image")


def test_the_key_of_a_folder_changes_with_each_file_and_with_the_pages(tmp_path):
    files = [*flat(tmp_path / "flat", 3).glob("*/*")]
    assert len(files) == 6
    assert unnoticed_changes(files, lambda: loaded(tmp_path / "flat")[0].digest) == []
    digests = {loaded(tmp_path / "flat")[0].digest}
    for kind in ("images", "masks"):
        (tmp_path / "flat" / kind / "1.png").rename(tmp_path / "flat" / kind / "1.PNG")
        digests.add(loaded(tmp_path / "flat")[0].digest)
    assert len(digests) == 3


def test_a_part_of_records_says_all_that_the_whole_says():
    class Whole(ListRecords):
        def labeled(self, i):
            return (str(i),)

    whole = Whole([{"image": "", "target": "", "name": name} for name in "abc"])
    whole.metadata = Metadata(
        classes=((0, "cell"),),
        unpaired=("x",),
        dims=3,
        modality="CT",
        landmarks=LandmarkNames(("nose",), "long", "pixels"),
        label_sets={("cell",): "a table"},
        unlisted=("c", "a"),
        has_rules=False,
        task="objects",
        bands=("red",),
    )
    part = Subset(whole, np.array([2, 1]))
    assert part.metadata == replace(whole.metadata, unlisted=("c",))
    assert PictureRecords(whole).metadata == whole.metadata
    assert [record["name"] for record in part] == [part.name(0), part.name(1)] == ["c", "b"]
    assert [part.labeled(0), part.labeled(1)] == [("2",), ("1",)]
    assert part.digest is None
    whole.digest = "key"
    whole.annotations = AnnotationSummary("COCO", 1, 0, {"cat": 1})
    parts = [Subset(whole, np.array(indices)) for indices in ([2, 1], [1, 2])]
    assert len({"key", *(each.digest for each in parts)}) == 3
    assert annotation_summaries(parts) == [whole.annotations]
    other = Subset(whole, np.array([0]))
    other.annotations = AnnotationSummary("COCO", 2, 0, {"cat": 5})
    assert annotation_summaries([*parts, other]) == [whole.annotations, other.annotations]


class Groups(StreamRecords):
    """Groups of 2, 1 and 3 records, each record its group and its place; `read` lists what was read."""

    def __init__(self) -> None:
        super().__init__(["file"], np.zeros((3, 1), np.int64), np.array([2, 1, 3]))
        self.read: list[int] = []

    def _read_group(self, group):
        self.read.append(group)
        return group

    def __getitem__(self, i):
        group, place = self._locate(i)
        return self._group_content(group), place

    def subset(self, chosen):
        raise NotImplementedError


def test_records_of_a_stream_are_found_in_their_groups_and_those_used_last_are_kept(monkeypatch):
    records = Groups()
    assert list(records) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert records.read == [0, 1, 2]
    assert records[0] == (0, 0)
    assert records.read == [0, 1, 2]
    for index in (-1, 6):
        with pytest.raises(IndexError, match=f"record {index} of 6"):
            records[index]
    records = Groups()
    records.open_groups = 2
    for index in (0, 2, 1, 3, 0, 2):  # group 0 is used again before group 2 takes a place
        records[index]
    assert records.read == [0, 1, 2, 1]
    fewer = Groups()
    assert [fewer[0], fewer[2]] == [(0, 0), (1, 0)]
    fewer.open_groups = 1
    assert [fewer[3], fewer[2]] == [(2, 0), (1, 0)]
    assert fewer.read == [0, 1, 2, 1]
    monkeypatch.setattr("os.getpid", lambda: 0)  # another process reads for itself
    assert [records[0], records[1]] == [(0, 0), (0, 1)]
    assert records.read == [0, 1, 2, 1, 0]
    assert pickle.loads(pickle.dumps(records))[5] == (2, 2)


@pytest.mark.parametrize(
    ("length", "count", "indices"), [(10, 4, [0, 3, 6, 9]), (3, 9, [0, 1, 2]), (9, 1, [0]), (5, 2, [0, 4])]
)
def test_indices_are_spread_from_the_first_to_the_last(length, count, indices):
    assert spread_indices(length, count) == indices


def called(*names: str, dims: int = 2) -> ListRecords:
    """Records of these names."""
    records = ListRecords([{"image": "", "target": "", "name": name} for name in names])
    records.metadata = Metadata(dims=dims)
    return records


@pytest.mark.parametrize(
    ("dims", "group", "line"),
    [
        (2, None, "--fold 1/5: there are only 4 images, and each fold needs one"),
        (3, None, "--fold 1/5: there are only 4 volumes, and each fold needs one"),
        (2, r"_(\d)", "--fold 1/5: there are only 2 groups of images, and each fold needs one"),
        (3, r"_(\d)", "--fold 1/5: there are only 2 groups of volumes, and each fold needs one"),
        (2, np.array([0, 0, 1, 2]), "--fold 1/5: there are only 3 blocks, and each fold needs one"),
    ],
)
def test_fewer_images_than_folds_are_called_what_they_are(dims, group, line):
    with pytest.raises(DataError, match=line):
        hold_out_fold(called("a_1", "b_1", "a_2", "b_2", dims=dims), (1, 5), 0, group)


def test_folds_hold_about_as_many_images_each_and_groups_stay_together():
    records = called("x_0_a", "x_0_b", "x_0_c", "x_0_d", *(f"x_{number}_a" for number in range(1, 5)))
    held_out = [names(hold_out_fold(records, (number, 2), 3, r"_(\d)")[1]) for number in (1, 2)]
    assert [len(part) for part in held_out] == [4, 4]
    assert sorted(held_out[0] + held_out[1]) == names(records)
    assert {len({*part} & {*names(records)[:4]}) for part in held_out} == {0, 4}
    assert [len(part) for part in hold_out_fold(called("a", "b"), (2, 2), 0, None)] == [1, 1]  # as many images as folds
    by_seed = [names(hold_out_fold(records, (1, 4), seed, None)[1]) for seed in (0, 0, 1, 2, 3, 4)]
    assert by_seed[0] == by_seed[1]
    assert len({*map(tuple, by_seed)}) > 1


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 2), (0.3, 2), (0.5, 4), (1.0, 4)])
def test_whole_groups_are_held_out_and_one_is_left_to_train_on(fraction, held_out):
    records = called(*(f"{letter}{number}" for letter in "abc" for number in range(2)))
    assert len(hold_out(called("a", "b"), fraction, 0, None)[1]) == 1
    with pytest.raises(DataError, match=r"at least 2 samples are needed, .*; the data set has 0$"):
        hold_out(called(), fraction, 0, None)
    train, val = hold_out(records, fraction, 0, r"^\w")
    assert len(val) == held_out
    assert not {name[0] for name in names(train)} & {name[0] for name in names(val)}
