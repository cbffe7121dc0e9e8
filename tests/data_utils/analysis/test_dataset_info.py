"""What is known of a data set before the first step: its sizes, bad samples, fingerprint and what its network is told.

Modules: data_utils/analysis/dataset_info.py, data_utils/analysis/inspection.py, data_utils/analysis/inspect_images.py,
data_utils/analysis/inspect_windows.py, data_utils/analysis/normalization.py, data_utils/config.py.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder, write_splits
from support.inspections import records_of, write_tiffs
from support.volumes import write_msd

from data_utils.analysis import inspect_windows, inspectors
from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import (
    DatasetInfo,
    Split,
    inspect_files,
    list_locations,
    sample_stream,
    usable_sizes,
)
from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspection import Inspection, Problem, SplitInspection
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.sources.records import ListRecords, Record, Subset
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess


def test_class_pixels_are_those_of_all_masks(tmp_path):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    masks = [np.array(Image.open(path)) for path in (folder / "masks").iterdir()]
    expected = tuple(sum(int((mask == value).sum()) for mask in masks) for value in (0, 255))
    assert load_info(folder).reader.class_pixels == expected


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_fingerprint_changes_with_files_that_change(tmp_path, split):
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


@pytest.fixture
def two_splits(tmp_path) -> Path:
    """A data set of five training and three validation images."""
    write_folder(tmp_path / "data" / "train", 5, seed=0)
    write_folder(tmp_path / "data" / "val", 3, seed=0)
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_fingerprint_changes_with_each_image_of_a_split(two_splits, name):
    info = load_info(two_splits)
    split = getattr(info, name)
    count = len(split)
    fingerprints = [info.fingerprint()]
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
            fingerprints.append(replace(info, **{name: changed}).fingerprint())
    assert len(set(fingerprints)) == 1 + 3 * count


def test_a_fingerprint_stays_where_a_folder_is_moved(two_splits, tmp_path):
    fingerprint = load_info(two_splits).fingerprint()
    two_splits.rename(tmp_path / "elsewhere")
    assert load_info(tmp_path / "elsewhere").fingerprint() == fingerprint


def test_records_of_both_splits_are_opened_in_a_process_that_receives_them():
    info = info_of(DataConfig(), np.array([(10, 20)] * 3))
    opened = []
    info.train.records.open_here = lambda: opened.append("training")
    info.val.records.open_here = lambda: opened.append("validation")
    info.open_here()
    assert opened == ["training", "validation"]


CLASSES = "0=ground,255=cell"


def write_values(file: Path, count: int, start: int) -> None:
    """A mask of `count` values from `start` on, besides 0."""
    mask = np.zeros((40, 56), np.uint16)
    mask.flat[:400] = np.arange(400) % count + start
    Image.fromarray(mask).save(file)


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_of_many_values_outside_the_classes_are_ignored_on_request(tmp_path, split):
    write_splits(tmp_path, 4, 4)
    write_values(tmp_path / split / "masks" / "cell_01.png", 400, 1000)
    write_values(tmp_path / split / "masks" / "cell_02.png", 200, 2000)
    info = load_info(tmp_path, classes=CLASSES, outside="ignore")
    assert info.train.bad == info.val.bad == {}
    assert check_data(DataConfig(str(tmp_path), classes=CLASSES, outside="ignore"))[1] == 0


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_of_values_outside_the_classes_are_bad_samples(tmp_path, split):
    write_splits(tmp_path, 4, 4)
    for number in (1, 2):
        write_values(tmp_path / split / "masks" / f"cell_0{number}.png", 200, 1000 * number)
    skipped = load_info(tmp_path, classes=CLASSES, on_bad_sample="skip")
    assert [*getattr(skipped, split).bad] == [1, 2]
    report, problems = check_data(DataConfig(str(tmp_path), classes=CLASSES))
    assert problems == 2
    assert "  unknown mask value: 2" in report


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_value_outside_the_classes_is_refused(tmp_path, split):
    write_splits(tmp_path, 2, 2)
    write_values(tmp_path / split / "masks" / "cell_01.png", 2, 7)
    with pytest.raises(DataError, match=r"^1 of 2 pairs cannot be used: cell_01\.png: mask values 7, 8 belong to no"):
        load_info(tmp_path, classes=CLASSES)


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
        return inspect_image(record, **rules)

    def read_and_note(source: object, name: str) -> np.ndarray:
        pixels = read_image(source, name)
        rows[name].append(len(pixels))
        return pixels

    for module in (inspectors, inspect_windows):
        monkeypatch.setattr(module, "inspect_image", inspect_whole)
    monkeypatch.setattr(inspectors, "read_image", read_and_note)
    report, problems = check_data(DataConfig(str(tmp_path), **settings))
    assert problems == 0, report
    assert sorted(whole_masks) == sorted({*heights} - in_windows)
    assert {name: sum(read) for name, read in rows.items()} == heights  # all of each image
    assert {name for name, read in rows.items() if len(read) > 1} == in_windows


def damage_masks(folder: Path, count: int) -> None:
    for mask in sorted(folder.iterdir())[:count]:
        mask.write_bytes(b"x")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("split", ["train", "val"])
def test_bad_samples_are_skipped_where_one_of_a_split_is_left(tmp_path, split, count):
    write_splits(tmp_path, 3, 3)
    damage_masks(tmp_path / split / "masks", count)
    bad = getattr(load_info(tmp_path, on_bad_sample="skip"), split).bad
    assert [*bad] == [*range(count)]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_of_bad_samples_alone_is_refused(tmp_path, split):
    write_splits(tmp_path, 3, 3)
    damage_masks(tmp_path / split / "masks", 3)
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


def test_a_record_that_cannot_be_used_takes_the_most_frequent_size():
    sizes = np.array([[24, 24], [40, 32], [0, 0], [40, 32], [64, 64]])
    inspection = SplitInspection(sizes, np.zeros(5, int))
    usable = usable_sizes(inspection)
    assert usable.tolist() == [[24, 24], [40, 32], [40, 32], [40, 32], [64, 64]]
    assert usable.dtype == np.int32


@pytest.fixture
def greys(tmp_path) -> Path:
    """A data set of ten small images."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for number in range(10):
        Image.new("RGB", (8, 8), (number % 2,) * 3).save(tmp_path / "images" / f"{number}.png")
        Image.new("L", (8, 8), number % 2).save(tmp_path / "masks" / f"{number}.png")
    return tmp_path


def test_a_description_counts_images_of_each_split(greys):
    assert str(load_info(greys)).startswith("9 training and 1 validation image, 3 channels, ")


def test_a_description_names_bad_samples(greys):
    (greys / "masks" / "3.png").write_bytes(b"x")
    assert "; 1 bad sample skipped: 3.png: mask" in str(load_info(greys, on_bad_sample="skip", seed=1))


@pytest.fixture
def small(tmp_path) -> DatasetInfo:
    """A data set of four images that are halved."""
    return load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), scale=0.5)


PRETRAINED = Preprocess(
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


def test_a_new_network_is_told_of_the_data_set(small):
    own = small.preprocess()
    assert own.mean == small.normalization.mean
    assert own.class_values == (0, 255)
    assert own.scale == 0.5
    assert not own.draft
    assert own.spacing is None


def test_a_data_set_of_images_has_two_axes(small):
    assert small.axes(3).dims == 2
    assert small.channels == 3


def test_a_pretrained_network_keeps_its_normalization(small):
    theirs = small.preprocess(PRETRAINED)
    assert theirs.mean == (1.0,) * 3
    assert theirs.std == (2.0,) * 3
    assert theirs.scale == 0.5
    assert theirs.draft is True


def test_a_pretrained_network_takes_the_classes_of_the_data_set(small):
    theirs = small.preprocess(PRETRAINED)
    assert theirs.class_values == (0, 255)
    assert theirs.ignore_value is None
    assert theirs.joined_values == ()


def test_a_pretrained_network_loses_its_classes_where_the_data_set_has_none(small):
    without_classes = replace(small, reader=SimpleNamespace(to_preprocess=dict)).preprocess(PRETRAINED)
    assert without_classes.class_names == ()
    assert without_classes.class_values == ()
    assert without_classes.ignore_value is None
    assert without_classes.outside_class is None


def info_of(config: DataConfig, sizes: np.ndarray, spacings: np.ndarray | None = None, **attributes) -> DatasetInfo:
    """A data set of three training images or volumes of these sizes, and one validation image."""
    dims = sizes.shape[1]
    train = Split(records_of(len(sizes), dims=dims, **attributes), sizes, spacings=spacings)
    val = Split(records_of(1, dims=dims), sizes[:1])
    reader = SimpleNamespace(to_preprocess=dict, describe=lambda: "2 classes")
    return DatasetInfo(config, train, val, reader, Normalization((7.0,), (2.0,), ("uint8",)))


@pytest.mark.parametrize(
    ("preprocess", "size"),
    [
        (Preprocess(), (30, 40)),
        (Preprocess(scale=0.5), (15, 20)),
        (Preprocess(image_size=(7, 8)), (7, 8)),
    ],
    ids=["whole", "scale", "image size"],
)
def test_the_usual_size_of_images_is_the_median_at_which_the_network_sees_them(preprocess, size):
    sizes = np.array([(10, 200), (30, 40), (50, 10)])
    info = info_of(DataConfig(image_size=(5, 6), crop_size=(3, 4)), sizes)
    assert info.usual_size(preprocess) == size


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (DataConfig(image_size=(5, 6), crop_size=(3, 4)), (5, 6)),
        (DataConfig(crop_size=(3, 4)), (3, 4)),
        (DataConfig(), (1, 1)),
    ],
    ids=["image size", "crop size", "neither"],
)
def test_the_usual_size_of_a_stream_is_that_of_the_flags(config, size):
    assert info_of(config, np.zeros((3, 2), int)).usual_size(Preprocess()) == size


def test_the_usual_size_of_volumes_is_that_at_the_spacing_of_the_network():
    spacings = np.array([(4.0, 1.0, 1.0), (2.0, 1.0, 2.0), (2.0, 1.0, 1.0)])
    info = info_of(DataConfig(), np.array([(10, 20, 30), (10, 20, 30), (40, 20, 30)]), spacings)
    assert info.usual_size(Preprocess(spacing=(2.0, 0.5, 1.0))) == (20, 40, 30)


SAME_SIZES = np.array([(10, 20)] * 3)


def test_a_fingerprint_changes_with_the_last_of_many_names():
    info = info_of(DataConfig(), np.array([(10, 20)] * 40))
    renamed = [*info.train.records]
    renamed[39] = renamed[39] | {"name": "other.png"}
    changed = replace(info, train=replace(info.train, records=ListRecords(renamed)))
    assert changed.fingerprint() != info.fingerprint()


def test_a_fingerprint_takes_few_names_and_no_pictures():
    info = info_of(DataConfig(), np.array([(10, 20)] * 40))
    names = []

    class Names(ListRecords):
        def name(self, i):
            names.append(i)
            return f"{i}.png"

        def __getitem__(self, i):
            raise AssertionError("a record is read")

    records = Names([*info.train.records])
    replace(info, train=replace(info.train, records=records)).fingerprint()
    assert names == [0, 2, 5, 7, 10, 13, 15, 18, 20, 23, 26, 28, 31, 33, 36, 39]


def test_a_network_is_told_of_the_bands_of_the_flags():
    assert info_of(DataConfig(bands=("B2",)), SAME_SIZES).preprocess().bands == ("B2",)


def test_a_network_is_told_of_the_bands_of_records_that_are_files_of_their_own():
    info = info_of(DataConfig(bands=("B2",)), SAME_SIZES, bands=("red", "nir"))
    assert info.preprocess().bands == ("red", "nir")


@pytest.mark.parametrize("field", ["place", "draft"])
@pytest.mark.parametrize("value", [True, False])
def test_a_network_is_told_of_the_flags_of_reading(field, value):
    assert getattr(info_of(DataConfig(**{field: value}), SAME_SIZES).preprocess(), field) is value


@pytest.fixture
def volumes() -> DatasetInfo:
    return info_of(DataConfig(), np.array([(8, 9, 10)] * 3), np.array([(2.0, 1.0, 1.0)] * 3))


def test_a_network_is_told_of_the_spacing_unless_it_has_one(volumes):
    assert volumes.preprocess().spacing == (2, 1, 1)
    assert volumes.preprocess(Preprocess(spacing=(3.0, 3.0, 3.0))).spacing == (3, 3, 3)


def test_a_description_of_volumes_says_their_spacing(volumes):
    text = str(volumes)
    assert text.startswith("3 training and 1 validation volume, mostly of 2, 1, 1 mm along z, y, x")
    assert ", 1 channel, 2 classes" in text


def test_a_description_names_twenty_bad_samples_of_both_splits():
    info = info_of(DataConfig(), np.array([(10, 20)] * 3))
    train = replace(info.train, bad={number: f"t{number}" for number in range(15)})
    val = replace(info.val, bad={number: f"v{number}" for number in range(6)})
    text = str(replace(info, train=train, val=val))
    assert "; 21 bad samples skipped: t0; t1; " in text
    assert text.endswith("; v4; ...")
    assert str(replace(info, val=replace(val, bad={0: "v0"}))).endswith("; 1 bad sample skipped: v0")


LOCATIONS = {value: np.array([[value, 1]]) for value in (9, 7, 255, 8, 3, 5, 0)}


@pytest.mark.parametrize(
    ("background", "labeled", "expected"),
    [
        (None, None, [[0], [7, 5], [9]]),
        (0, None, [[7, 5], [9]]),
        (None, {0, 2}, [[0], [9]]),
        (0, {0, 2}, [[9]]),
        (None, set(), []),
        (5, None, [[0], [9]]),
    ],
)
def test_crops_are_taken_around_classes_that_an_image_is_labeled_for(background, labeled, expected):
    class_map = ClassMap(("ground", "car", "dog"), (0, 5, 9), 255, joined=((7, 1), (8, IGNORE_INDEX)))
    located = list_locations(LOCATIONS, SimpleNamespace(class_map=class_map), background, labeled)
    assert [pixels[:, 0].tolist() for pixels in located] == expected


@pytest.mark.parametrize("background", [None, 0])
def test_crops_are_taken_around_values_where_there_are_no_classes(background):
    reader = SimpleNamespace(class_map=None, is_empty=lambda value: value == 0)
    located = list_locations(LOCATIONS, reader, background, None)
    expected = [value for value in LOCATIONS if value != background]
    assert [pixels[:, 0].tolist() for pixels in located] == [[value] for value in expected]


@pytest.mark.parametrize(
    ("augment", "turned"), [("none", False), ("mirror", False), ("basic", False), ("strong", True)]
)
def test_turned_images_are_shown_by_strong_augmentation_alone(tmp_path, augment, turned):
    info = load_info(write_folder(tmp_path, 3, seed=0, size=(8, 8)), augment=augment)
    assert info.preprocess().turned is turned


def test_volumes_are_cropped_around_what_is_not_background(tmp_path):
    info = load_info(write_msd(tmp_path, cases=3, shape=(6, 7, 8)), crop_size=(4, 4, 4))
    names = info.reader.class_map.names
    assert info.train.class_locations
    for locations in info.train.class_locations.values():
        assert 0 < len(locations) < len(names)


class Stream(ListRecords):
    """Images with these masks in groups of these sizes, and the indices of those that were read."""

    def __init__(self, group_sizes: list[int], mask: np.ndarray) -> None:
        super().__init__([{"image": mask, "target": mask, "name": "a"}] * sum(group_sizes))
        self.group_sizes = np.array(group_sizes)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Record:
        self.read.append(index)
        return super().__getitem__(index)


def test_masks_of_a_stream_may_number_very_many_objects():
    stream = Stream([2], np.arange(400, dtype=np.uint16).reshape(20, 20))
    info = sample_stream(stream, stream, DataConfig(task="objects", image_size=(8, 8)), ())
    assert info.reader.class_map is None
    assert info.train.bad == {}


def test_at_least_128_images_of_a_stream_are_measured_as_many_of_each_group():
    stream = Stream([60, 50, 70], np.eye(2, dtype=np.uint8))
    sample_stream(stream, stream, DataConfig(task="classes", image_size=(8, 8)), ((0, "a"), (1, "b")))
    counts, _ = np.histogram(stream.read, [0, 60, 110, 180])
    assert counts.tolist() == [43, 43, 43]


def test_eight_groups_of_a_stream_are_measured_wherever_they_are():
    stream = Stream([20] * 30, np.eye(2, dtype=np.uint8))
    sample_stream(stream, stream, DataConfig(task="classes", image_size=(8, 8)), ((0, "a"), (1, "b")))
    groups = {index // 20 for index in stream.read}
    assert len(groups) == 8
    assert groups != set(range(8))


def square_records(side: int) -> ListRecords:
    """Four images of a size and brightness, which have no key."""
    image, mask = np.full((side, side), side, np.uint8), np.eye(side, dtype=np.uint8)
    return ListRecords([{"image": image, "target": mask, "name": "a"}] * 4)


def test_records_that_do_not_tell_when_they_change_are_looked_at_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    inspect_files(square_records(4), square_records(4), DataConfig(task="classes"), ())
    info = inspect_files(square_records(6), square_records(6), DataConfig(task="classes"), ())
    assert info.train.sizes.tolist() == [[6, 6]] * 4
    assert info.normalization.mean == (6,)
