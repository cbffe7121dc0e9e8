"""What is known of a data set before the first step: looked at once, remembered until a file changes.

Modules: data_utils/analysis/inspect.py, data_utils/analysis/inspectors.py, data_utils/analysis/inspect_windows.py,
data_utils/analysis/label_warnings.py, data_utils/analysis/findings.py, data_utils/analysis/normalization.py,
data_utils/config.py.
"""

import json
import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
from conftest import load_info, unnoticed_changes, write_folder, write_splits
from inspections import records_of
from PIL import Image
from volumes import write_msd

from data_utils.analysis import inspect_windows, inspectors
from data_utils.analysis.dataset_info import DatasetInfo, Split, list_locations, usable_sizes
from data_utils.analysis.inspect import Content, Inspection, Problem, SplitInspection, inspect
from data_utils.analysis.label_warnings import label_warnings
from data_utils.analysis.normalization import Normalization
from data_utils.analysis.validate import check_data
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords, Record, Subset
from runtime.cache import cache_folder
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess


@pytest.fixture
def looks(monkeypatch) -> list[str]:
    """Names of the records that have been looked at, in any thread."""
    calls: list[str] = []

    def noted(record: Record, **rules: bool) -> Inspection | Problem:
        calls.append(record["name"])
        return inspect(record, **rules)

    monkeypatch.setattr(inspectors, "inspect", noted)
    return calls


def same(a: DatasetInfo, b: DatasetInfo) -> bool:
    arrays = np.array_equal(a.train.sizes, b.train.sizes) and np.array_equal(a.val.sizes, b.val.sizes)
    return arrays and (a.reader, a.normalization) == (b.reader, b.normalization)


def test_a_second_start_looks_at_no_file_and_knows_the_same(tmp_path, looks):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    first = load_info(folder)
    assert sorted(looks) == sorted(path.name for path in (folder / "images").iterdir())  # each once
    looks.clear()
    assert same(load_info(folder), first)
    assert looks == []
    assert first.reader.class_pixels == tuple(
        sum(int((np.array(Image.open(path)) == value).sum()) for path in (folder / "masks").iterdir())
        for value in (0, 255)
    )
    assert all(path.parent.name in ("images", "masks") for path in folder.rglob("*.*"))


@pytest.mark.parametrize("change", ["mask", "added", "removed", "renamed", "image", "time", "size"])
def test_a_changed_folder_is_looked_at_again(tmp_path, looks, monkeypatch, change):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    load_info(folder)
    looks.clear()
    mask, image = folder / "masks" / "cell_03.png", folder / "images" / "cell_03.png"
    if change == "mask":
        Image.fromarray(np.full((40, 56), 9, np.uint8)).save(mask)
    elif change == "added":
        for file in (mask, image):
            file.with_name("new.png").write_bytes(file.read_bytes())
    elif change == "removed":
        mask.unlink()
        image.unlink()
    elif change == "renamed":
        for file in (mask, image):
            file.rename(file.with_name("cell_03a.png"))  # still in the same place of the order
    elif change == "time":
        stat = mask.stat()
        os.utime(mask, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "size":
        stat = mask.stat()
        mask.write_bytes(mask.read_bytes() + b" ")
        os.utime(mask, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        Image.new("RGB", (56, 40)).save(image)
    again = load_info(folder)
    assert (9 in again.reader.class_map.values) == (change == "mask")
    assert len(looks) == 20 + (change == "added") - (change == "removed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert same(again, load_info(folder))


def test_each_division_of_a_folder_is_looked_at_by_itself(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for height in range(8, 16):
            Image.new("L", (8, height), height % 2).save(tmp_path / kind / f"{height}.png")
    held_out = set()
    for seed in range(4):
        info = load_info(tmp_path, seed=seed, val_fraction=0.25)
        for split in (info.train, info.val):
            assert [f"{height}.png" for height, _ in split.sizes] == [record["name"] for record in split.records]
        held_out.add(tuple(info.val.sizes[:, 0].tolist()))
    assert len(held_out) > 1


def test_the_normalization_is_that_of_the_images_that_this_run_measures(tmp_path, monkeypatch):
    """Images drawn by another seed, or no longer left out, or read in windows, are measured anew."""
    write_tiffs(tmp_path / "train", {f"{width}": (40, width) for width in range(48, 60, 2)})
    write_tiffs(tmp_path / "val", {"c": (40, 56)})
    for number, file in enumerate(sorted((tmp_path / "train" / "images").iterdir())):
        pixels = np.random.default_rng(number).integers(0, 40 * number + 2, (40, 48 + 2 * number, 3), np.uint8)
        tifffile.imwrite(file, pixels, photometric="rgb", tile=(32, 32))
    mask = np.zeros((40, 48), np.uint8)
    mask[3] = 9
    tifffile.imwrite(tmp_path / "train" / "masks" / "48.tif", mask, photometric="minisblack", tile=(32, 32))
    monkeypatch.setattr("data_utils.analysis.normalization.STATISTICS_IMAGES", 4)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 8)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 40 * 48)
    ways = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 0, "crop_size": (16, 16)},
        *({"seed": seed, "classes": "0=a,1=b", "on_bad_sample": "skip"} for seed in (0, 1)),
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    normalizations = [load_info(tmp_path, **way).normalization for way in ways]
    for number, way in enumerate(ways):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache_{number}"))
        assert load_info(tmp_path, **way).normalization == normalizations[number], way
    assert len({normalization.mean for normalization in normalizations}) >= 4


def test_findings_depend_on_how_records_are_looked_at():
    """Whether in windows, and whether values are classes: what was found otherwise is not taken for it."""
    ways = [(windows, has_classes) for windows in (False, True) for has_classes in (False, True)]
    keys = {inspectors.ImageInspector(windows=windows, has_classes=classes).key for windows, classes in ways}
    assert len(keys) == 4
    assert inspectors.VolumeInspector(has_classes=True).key != inspectors.VolumeInspector(has_classes=False).key


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_fingerprint_of_a_data_set_changes_with_its_images(tmp_path, split):
    write_splits(tmp_path, 6, 3)
    fingerprints = [load_info(tmp_path).fingerprint()]
    files = [tmp_path / split / kind / "cell_02.png" for kind in ("images", "masks")]
    for file in files:
        picture = Image.open(file)
        picture.crop((0, 0, picture.width - 1, picture.height)).save(file)
    fingerprints.append(load_info(tmp_path).fingerprint())
    for file in files:
        file.rename(file.with_name("cell_02a.png"))
    fingerprints.append(load_info(tmp_path).fingerprint())
    for file in files:
        file.with_name("cell_02a.png").unlink()
    fingerprints.append(load_info(tmp_path).fingerprint())
    assert len(set(fingerprints)) == 4
    assert load_info(tmp_path).fingerprint() == fingerprints[-1]


def test_the_key_of_the_content_changes_with_each_file(tmp_path):
    folder = write_folder(tmp_path / "data", 5, seed=0)
    assert unnoticed_changes(folder.rglob("*.png"), lambda: load_records(DataConfig(str(folder)))[0].digest) == []


def test_the_fingerprint_of_a_data_set_changes_with_sizes_names_and_number_of_either_split(tmp_path):
    write_folder(tmp_path / "data" / "train", 5, seed=0)
    write_folder(tmp_path / "data" / "val", 3, seed=0)
    info = load_info(tmp_path / "data")
    prints = [info.fingerprint()]
    for name in ("train", "val"):
        split = getattr(info, name)
        count = len(split)
        for index in range(count):
            sizes = split.sizes.copy()
            sizes[index, 1] += 1
            renamed = [*split.records]
            renamed[index] = renamed[index] | {"name": "other.png"}
            fewer = Subset(split.records, np.delete(np.arange(count), index))
            for changed in (
                replace(split, sizes=sizes),
                replace(split, records=ListRecords(renamed)),
                replace(split, records=fewer, sizes=np.delete(split.sizes, index, axis=0)),
            ):
                prints.append(replace(info, **{name: changed}).fingerprint())
    assert len(set(prints)) == 1 + 3 * 5 + 3 * 3
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert load_info(tmp_path / "elsewhere").fingerprint() == prints[0]


def test_the_records_of_both_splits_are_opened_in_a_process_that_receives_them():
    info = info_of(DataConfig(), np.array([(10, 20)] * 3))
    opened = []
    info.train.records.open_here = lambda: opened.append("training")
    info.val.records.open_here = lambda: opened.append("validation")
    info.open_here()
    assert opened == ["training", "validation"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_of_many_values_that_the_named_classes_leave_out_are_skipped_or_ignored(tmp_path, split):
    write_splits(tmp_path, 4, 4)
    for number in (1, 2):
        mask = np.zeros((40, 56), np.uint16)
        mask.flat[:400] = np.arange(400) % (400 if number == 1 else 200) + 1000 * number
        Image.fromarray(mask).save(tmp_path / split / "masks" / f"cell_0{number}.png")
    classes = "0=ground,255=cell"
    ignored = load_info(tmp_path, classes=classes, outside="ignore")
    assert ignored.train.bad == ignored.val.bad == {}
    assert check_data(DataConfig(str(tmp_path), classes=classes, outside="ignore"))[1] == 0
    for file in (tmp_path / split / "masks").glob("cell_01.png"):
        mask = np.array(Image.open(file))
        Image.fromarray(np.where(mask > 1199, 0, mask).astype(np.uint16)).save(file)
    skipped = load_info(tmp_path, classes=classes, on_bad_sample="skip")  # no more than 200 values in a mask
    assert [*getattr(skipped, split).bad] == [1, 2]
    report, problems = check_data(DataConfig(str(tmp_path), classes=classes))
    assert problems == 2
    assert "  unknown mask value: 2" in report


def test_a_moved_folder_is_known(tmp_path, looks):
    load_info(write_folder(tmp_path / "data", 12, seed=0))
    looks.clear()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    load_info(tmp_path / "elsewhere")
    assert looks == []


def test_a_damaged_or_impossible_cache_only_costs_time(tmp_path, looks, monkeypatch):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = load_info(folder)
    files = list(cache_folder().glob("*.json"))
    assert len(files) == 4  # both splits, the task, and the brightness
    for file in files:
        file.write_text(file.read_text()[:-5])
    assert same(load_info(folder), first)
    assert len(looks) == 24
    checksum, content = files[0].read_text().split("\n")
    assert len(checksum) == 64
    assert json.loads(content)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(load_info(folder), first)
    assert len(looks) == 36


def test_what_looks_like_a_mistake_is_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 12, seed=0, values=(0, 1))
    assert load_info(folder).warnings == ()
    stray = np.array(Image.open(folder / "masks" / "cell_03.png"))
    stray[0, 0] = 37
    Image.fromarray(stray).save(folder / "masks" / "cell_03.png")
    (line,) = load_info(folder).warnings
    assert "0.01% of all mask pixels, became classes: 37 (pixels: 1; masks: 1, the first is cell_03.png);" in line
    assert "to check: rare mask values, each less than 0.01%" in check_data(DataConfig(str(folder)))[0]
    (line,) = load_info(folder, classes="0=a,1=b,37=c").warnings
    assert line.startswith("no validation mask holds c, which cannot be scored; choose the validation images")
    assert load_info(folder, ignore_index="37").warnings == ()


def test_a_grey_validation_mask_holds_the_grey_classes_of_colored_ones():
    def split(kind: str, *values):
        contents = {Content(kind, values, None): Counter()}
        return SplitInspection(np.zeros((1, 2), int), np.zeros(1, int), contents=contents), ListRecords([])

    splits = [split("colors", (0, 0, 0), (255, 0, 0)), split("greys", 0)]
    class_map = ClassMap(("ground", "car"), ((0, 0, 0), (255, 0, 0)), None)
    (line,) = label_warnings(splits, {}, class_map, has_names=True, ignores_values=True, has_flag=False)
    assert line.startswith("no validation mask holds car, which")


def test_one_class_stored_in_two_ways_is_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 8, seed=0, values=(0, 1))
    mask = np.array(Image.open(folder / "masks" / "cell_05.png")) * 255
    Image.fromarray(mask).save(folder / "masks" / "cell_05.png")
    (line,) = load_info(folder).warnings
    assert line.startswith("some masks hold 1 (masks: 7, the first is cell_00.png), others 255 (masks: 1, the first")
    two_values = np.where(np.array(Image.open(folder / "masks" / "cell_04.png")), 255, 1).astype(np.uint8)
    Image.fromarray(two_values).save(folder / "masks" / "cell_04.png")  # so 255 is a border
    assert load_info(folder).warnings == ()


@pytest.mark.parametrize(
    ("masks", "settings", "count"),
    [
        ([(0, 1), (0, 255)], {}, 1),
        ([(0, 1), (0, 255), (1,), (255,)], {}, 1),
        ([(0, 1), (0, 255)], {"classes": "0=ground,1=cell"}, 1),  # 255 is ignored then, too
        ([(0, 1), (0, 255)], {"ignore_index": "255"}, 0),  # somebody has said what it means
        ([(0, 1, 2), (0, 255)], {}, 0),  # several classes, and masks that are ignored in part
        ([(0, 1), (0, 1, 255)], {}, 0),
        ([(0, 1)], {}, 0),
        ([(0, 255)], {}, 0),
    ],
)
def test_masks_of_0_and_1_beside_masks_of_0_and_255_are_told_from_masks_with_ignored_pixels(
    tmp_path, masks, settings, count
):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    for index in range(12):
        mask = np.resize(np.repeat(np.array(masks[index % len(masks)], np.uint8), 56), (40, 56))
        Image.fromarray(mask).save(folder / "masks" / f"cell_{index:02}.png")
    lines = load_info(folder, **settings).warnings
    assert sum(line.startswith("some masks hold 1 (masks: ") for line in lines) == count


def test_images_of_another_depth_than_the_others_are_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 6, seed=0)
    Image.fromarray(np.full((40, 56), 4000, np.uint16)).save(folder / "images" / "cell_02.png")
    info = load_info(folder)
    (line,) = info.warnings
    assert "(RGB: 5, I;16: 1)" in line
    assert info.normalization.pixel_types == ("uint16", "uint8")


def write_tiffs(folder: Path, sizes: dict[str, tuple[int, int]]) -> None:
    """Pairs of tiled TIFFs, which can be read in windows; the right half of each mask is 1."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for stem, (height, width) in sizes.items():
        mask = np.zeros((height, width), np.uint8)
        mask[:, width // 2 :] = 1
        image = np.stack([mask * 40, mask * 90, mask * 200], axis=2)
        tifffile.imwrite(folder / "images" / f"{stem}.tif", image, photometric="rgb", tile=(32, 32))
        tifffile.imwrite(folder / "masks" / f"{stem}.tif", mask, photometric="minisblack", tile=(32, 32))


@pytest.mark.parametrize(
    ("settings", "in_windows"),
    [({"crop_size": (64, 64)}, {"a.tif", "b.tif"}), ({"plan": "auto"}, {"a.tif", "b.tif"}), ({}, set())],
    ids=["crops", "plan", "neither"],
)
def test_the_check_reads_in_windows_what_training_reads_in_windows(tmp_path, monkeypatch, settings, in_windows):
    """With a plan too, which may choose crops: what training never holds whole need not fit into memory here."""
    heights = {"a.tif": 120, "b.tif": 200, "small.tif": 60, "c.tif": 120}
    write_tiffs(tmp_path / "train", {"a": (120, 160), "b": (200, 100), "small": (60, 80)})
    write_tiffs(tmp_path / "val", {"c": (120, 160)})  # validation images are computed whole
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 120 * 160)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP_PIXELS", 160 * 32)
    info = load_info(tmp_path, **settings)
    assert {info.train.records[index]["name"] for index in info.train.class_locations} == in_windows
    assert not info.val.class_locations
    whole_masks: list[str] = []
    rows: dict[str, list[int]] = defaultdict(list)

    def inspect_whole(record: Record, **rules: bool) -> Inspection | Problem:
        whole_masks.append(record["name"])
        return inspect(record, **rules)

    def read_and_note(source: object, name: str) -> np.ndarray:
        pixels = read_image(source, name)
        rows[name].append(len(pixels))
        return pixels

    for module in (inspectors, inspect_windows):
        monkeypatch.setattr(module, "inspect", inspect_whole)
    monkeypatch.setattr(inspectors, "read_image", read_and_note)
    report, problems = check_data(DataConfig(str(tmp_path), **settings))
    assert problems == 0, report
    assert sorted(whole_masks) == sorted({*heights} - in_windows)
    assert {name: sum(read) for name, read in rows.items()} == heights  # all of each image
    assert {name for name, read in rows.items() if len(read) > 1} == in_windows


def test_a_look_at_whole_images_is_not_taken_for_one_in_windows(tmp_path, monkeypatch):
    write_tiffs(tmp_path / "train", {"a": (40, 56), "b": (40, 56)})
    write_tiffs(tmp_path / "val", {"c": (40, 56)})
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 40 * 56)
    assert not load_info(tmp_path).train.class_locations
    assert [*load_info(tmp_path, crop_size=(16, 16)).train.class_locations] == [0, 1]


@pytest.mark.parametrize("split", ["train", "val"])
def test_where_no_sample_of_a_split_can_be_used_nothing_is_skipped(tmp_path, split):
    write_splits(tmp_path, 3, 3)
    for number, mask in enumerate(sorted((tmp_path / split / "masks").iterdir())):
        mask.write_bytes(b"x")
        if number < 2:
            bad = getattr(load_info(tmp_path, on_bad_sample="skip"), split).bad
            assert [*bad] == [*range(number + 1)]
    with pytest.raises(DataError, match="3 of 3 pairs cannot be used"):
        load_info(tmp_path, on_bad_sample="skip")


def test_the_pixels_of_a_class_are_counted_in_masks_that_can_be_used(tmp_path):
    write_splits(tmp_path, 5, 2)
    masks = {file: np.array(Image.open(file)) for file in tmp_path.glob("*/masks/*")}
    file = tmp_path / "train" / "masks" / "cell_03.png"
    stray = masks.pop(file)
    stray[0, 0] = 37
    Image.fromarray(stray).save(file)
    info = load_info(tmp_path, classes="0=ground,255=cell", on_bad_sample="skip")
    counts = [sum(int((mask == value).sum()) for mask in masks.values()) for value in (0, 255)]
    assert [*info.reader.class_pixels] == counts


def test_problems_are_not_remembered(tmp_path):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    file, content = folder / "masks" / "cell_03.png", (folder / "masks" / "cell_03.png").read_bytes()
    stamp = file.stat().st_mtime_ns
    file.write_bytes(b"x" * len(content))
    for _ in range(2):
        with pytest.raises(DataError, match=r"cell_03\.png: mask cannot be read"):
            load_info(folder)
    file.write_bytes(content)
    os.utime(file, ns=(stamp, stamp))
    assert len(load_info(folder).train) == 11


def test_swapped_folders_are_guessed(tmp_path):
    folder = write_folder(tmp_path, 12, seed=0)
    (folder / "images").rename(folder / "x")
    (folder / "masks").rename(folder / "images")
    (folder / "x").rename(folder / "masks")
    with pytest.raises(DataError, match="are images and masks swapped"):
        load_info(folder)
    assert "swapped" in check_data(DataConfig(str(folder)))[0]


@pytest.mark.parametrize("group", [r"^(\w+)_", r"^[a-z]+", r"^([a-z]+)_\d+", r"([a-z]+)_(\d+)\.png$"])
def test_groups_are_held_out_whole(tmp_path, group):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for volume, slices in (("a", 2), ("bb", 9), ("c", 4), ("d", 5)):
            for i in range(slices):
                Image.new("L", (8, 8), i % 2).save(tmp_path / kind / f"{volume}_{i}.png")
    for seed in range(4):
        info = load_info(tmp_path, val_group=group, seed=seed, val_fraction=0.2)
        train, val = ({record["name"].split("_")[0] for record in split.records} for split in (info.train, info.val))
        assert train
        assert val
        assert not train & val
        assert len(info.train) + len(info.val) == 20
        assert len(info.val) >= 4


@pytest.mark.parametrize(
    ("group", "message"),
    [("(", "is no regular expression"), ("z", "matches nothing in the name cell_00.png"), ("cell", "into one group")],
)
def test_a_group_that_cannot_split_is_one_line(tmp_path, group, message):
    with pytest.raises(DataError, match=message):
        load_info(write_folder(tmp_path, 5, seed=0), val_group=group)


@pytest.mark.parametrize(("group", "folds", "most"), [(None, 5, 4), (r"^([a-z]+)_", 5, 9), (r"([a-z]+)_\d+", 2, 11)])
def test_folds_are_disjoint_hold_all_images_and_about_as_many_each(tmp_path, group, folds, most):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for volume, slices in (("a", 2), ("bb", 9), ("c", 4), ("d", 3), ("e", 2)):
            for i in range(slices):
                Image.new("L", (8, 8), i % 2).save(tmp_path / kind / f"{volume}_{i}.png")
    for seed in range(3):
        infos = [load_info(tmp_path, val_group=group, seed=seed, fold=(k, folds)) for k in range(1, folds + 1)]
        parts = [[record["name"] for record in info.val.records] for info in infos]
        assert sorted(name for part in parts for name in part) == sorted(
            file.name for file in (tmp_path / "images").iterdir()
        )
        assert all(1 <= len(part) <= most for part in parts)
        for info, part in zip(infos, parts, strict=True):
            train = [record["name"] for record in info.train.records]
            assert len(train) + len(part) == 20
            assert not {*train} & {*part}
            if group:
                assert not {name.split("_")[0] for name in train} & {name.split("_")[0] for name in part}


def test_folds_that_cannot_be_are_one_line(tmp_path):
    folder = write_folder(tmp_path / "data", 4, seed=0)
    for settings, message in (
        ({"fold": (1, 5)}, "there are only 4 images"),
        ({"fold": (1, 3), "val_group": r"_(\d)"}, "into one group"),
        ({"fold": (1, 3), "streaming": True}, "is a stream"),
    ):
        with pytest.raises(DataError, match=message):
            load_info(folder, **settings)
    with pytest.raises(DataError, match="shapes has its own validation images"):
        load_info("shapes", fold=(1, 5))


def test_a_record_that_cannot_be_used_takes_the_most_frequent_size():
    sizes = np.array([[24, 24], [40, 32], [0, 0], [40, 32], [64, 64]])
    inspection = SplitInspection(sizes, np.zeros(5, int))
    assert usable_sizes(inspection).tolist() == [[24, 24], [40, 32], [40, 32], [40, 32], [64, 64]]


def test_what_a_data_set_is_is_said_in_one_line(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(10):
            picture = np.full((8, 8, 3) if kind == "images" else (8, 8), number % 2, np.uint8)
            Image.fromarray(picture).save(tmp_path / kind / f"{number}.png")
    info = load_info(tmp_path)
    assert str(info).startswith("9 training and 1 validation images, 3 channels, ")
    (tmp_path / "masks" / "3.png").write_bytes(b"x")
    skipped = str(load_info(tmp_path, on_bad_sample="skip", seed=1))
    assert "; 1 bad samples skipped: 3.png: mask" in skipped


def test_a_pretrained_models_normalization_stays_and_its_classes_go(tmp_path):
    info = load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), scale=0.5)
    own = info.preprocess()
    assert own.mean == info.normalization.mean
    assert own.class_values == (0, 255)
    assert own.scale == 0.5
    assert not own.draft
    assert own.spacing is None
    assert info.axes(3).dims == 2
    assert info.channels == 3
    source = Preprocess(
        mean=(1.0,) * 3,
        std=(2.0,) * 3,
        scale=0.25,
        draft=True,
        class_names=("a", "b", "c"),
        class_values=(1, 2, 3),
        ignore_value=9,
        joined_values=((4, 1),),
        outside_class=0,
    )
    theirs = info.preprocess(source)
    assert theirs.mean == (1.0,) * 3
    assert theirs.std == (2.0,) * 3
    assert theirs.scale == 0.5
    assert theirs.draft is True
    assert theirs.class_values == (0, 255)
    assert theirs.ignore_value is None
    assert theirs.joined_values == ()
    without_classes = replace(info, reader=SimpleNamespace(to_preprocess=dict)).preprocess(source)
    assert without_classes.class_names == ()
    assert without_classes.class_values == ()
    assert without_classes.ignore_value is without_classes.outside_class is None


def info_of(config: DataConfig, sizes: np.ndarray, spacings: np.ndarray | None = None, **attributes) -> DatasetInfo:
    """A data set of three training images or volumes of these sizes, and one validation image."""
    dims = sizes.shape[1]
    train = Split(records_of(len(sizes), dims=dims, **attributes), sizes, spacings=spacings)
    val = Split(records_of(1, dims=dims), sizes[:1])
    reader = SimpleNamespace(to_preprocess=dict, describe=lambda: "2 classes")
    return DatasetInfo(config, train, val, reader, Normalization((7.0,), (2.0,), ("uint8",)))


def test_the_usual_size_of_images_is_the_median_at_which_the_network_sees_them():
    sizes = np.array([(10, 200), (30, 40), (50, 10)])
    info = info_of(DataConfig(image_size=(5, 6), crop_size=(3, 4)), sizes)
    assert info.usual_size(Preprocess()) == (30, 40)
    assert info.usual_size(Preprocess(scale=0.5)) == (15, 20)
    assert info.usual_size(Preprocess(image_size=(7, 8))) == (7, 8)
    stream = info_of(info.config, np.zeros((3, 2), int))
    assert stream.usual_size(Preprocess()) == (5, 6)
    assert replace(stream, config=DataConfig(crop_size=(3, 4))).usual_size(Preprocess()) == (3, 4)
    assert replace(stream, config=DataConfig()).usual_size(Preprocess()) == (1, 1)


def test_the_usual_size_of_volumes_is_that_at_the_spacing_of_the_network():
    spacings = np.array([(4.0, 1.0, 1.0), (2.0, 1.0, 2.0), (2.0, 1.0, 1.0)])
    info = info_of(DataConfig(), np.array([(10, 20, 30), (10, 20, 30), (40, 20, 30)]), spacings)
    assert info.usual_size(Preprocess(spacing=(2.0, 0.5, 1.0))) == (20, 40, 30)


def test_a_network_is_told_of_bands_places_turns_and_spacings():
    sizes = np.array([(10, 20)] * 3)
    assert info_of(DataConfig(bands=("B2",)), sizes).preprocess().bands == ("B2",)
    both = info_of(DataConfig(bands=("B2",)), sizes, bands=("red", "nir"))
    assert both.preprocess().bands == ("red", "nir")  # those of the records are files of their own
    assert [info_of(DataConfig(place=place), sizes).preprocess().place for place in (True, False)] == [True, False]
    assert [info_of(DataConfig(draft=draft), sizes).preprocess().draft for draft in (True, False)] == [True, False]
    volumes = info_of(DataConfig(), np.array([(8, 9, 10)] * 3), np.array([(2.0, 1.0, 1.0)] * 3))
    assert volumes.preprocess().spacing == (2, 1, 1)
    assert volumes.preprocess(Preprocess(spacing=(3.0, 3.0, 3.0))).spacing == (3, 3, 3)
    assert str(volumes).startswith(
        "3 training and 1 validation volumes, mostly of 2, 1, 1 mm along z, y, x, 1 channels, 2 classes"
    )


def test_twenty_skipped_samples_of_both_splits_are_named():
    info = info_of(DataConfig(), np.array([(10, 20)] * 3))
    train = replace(info.train, bad={number: f"t{number}" for number in range(15)})
    val = replace(info.val, bad={number: f"v{number}" for number in range(6)})
    text = str(replace(info, train=train, val=val))
    assert "; 21 bad samples skipped: t0; t1; " in text
    assert text.endswith("; v4; ...")
    assert str(replace(info, val=replace(val, bad={0: "v0"}))).endswith("; 1 bad samples skipped: v0")


def test_crops_are_taken_around_classes_in_their_order_that_an_image_is_labeled_for():
    class_map = ClassMap(("ground", "car", "dog"), (0, 5, 9), 255, joined=((7, 1), (8, IGNORE_INDEX)))
    reader = SimpleNamespace(class_map=class_map)
    locations_of_value = {value: np.array([[value, 1]]) for value in (9, 7, 255, 8, 3, 5, 0)}

    def located(background: int | None, labeled: set[int] | None = None) -> list[list[int]]:
        return [pixels[:, 0].tolist() for pixels in list_locations(locations_of_value, reader, background, labeled)]

    assert located(None) == [[0], [7, 5], [9]]
    assert located(0) == [[7, 5], [9]]
    assert located(None, {0, 2}) == [[0], [9]]
    assert located(0, {0, 2}) == [[9]]
    reader = SimpleNamespace(class_map=None, is_empty=lambda value: value == 0)
    assert located(None) == [[9], [7], [255], [8], [3], [5], [0]]
    assert located(0) == [[9], [7], [255], [8], [3], [5]]


@pytest.mark.parametrize(
    ("augment", "turned"), [("none", False), ("mirror", False), ("basic", False), ("strong", True)]
)
def test_only_strong_augmentation_shows_turned_images(tmp_path, augment, turned):
    info = load_info(write_folder(tmp_path, 3, seed=0, size=(8, 8)), augment=augment)
    assert info.preprocess().turned is turned


def test_volumes_are_cropped_around_what_is_not_background(tmp_path):
    info = load_info(write_msd(tmp_path, cases=3, shape=(6, 7, 8)), crop_size=(4, 4, 4))
    names = info.reader.class_map.names
    assert info.train.class_locations
    for locations in info.train.class_locations.values():
        assert 0 < len(locations) < len(names)
