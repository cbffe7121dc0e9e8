"""Images, groups of them and whole files of a stream that are held out for validation."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.data_sets import load_info
from support.folders import write_folder, write_splits
from support.overlaps import write_overlaps
from support.picture_folders import names, write_pictures
from support.points import write_table

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.sources.holdout import hold_out, hold_out_shards, idle_flags, leak_warnings
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRows, Metadata, Records, StreamRows
from runtime.errors import DataError
from train_utils.settings.train_settings import TrainSettings


def names_of(info: DatasetInfo) -> tuple[list[str], list[str]]:
    """The names of the training and of the validation images."""
    train, val = ([record["name"] for record in split.records] for split in (info.train, info.val))
    return train, val


def called(*names: str, dims: int = 2) -> Records:
    """Records of these names."""
    return Records(ListRows([{"image": "", "target": "", "name": name} for name in names]), Metadata(dims=dims))


def groups_of(images: dict[str, int]) -> list[str]:
    """The names of the images of groups, <group>_<number>.png."""
    return [f"{group}_{i}.png" for group, count in images.items() for i in range(count)]


def held_out_of(records: Records, **settings) -> tuple[list[str], list[str]]:
    """The names of both parts."""
    train, val = hold_out(records, DataConfig(**settings))
    return names(train), names(val)


def volumes_of(names: list[str]) -> set[str]:
    """The part of each name before its last number."""
    return {name.split("_")[0] for name in names}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group", [r"^(\w+)_", r"^[a-z]+", r"^([a-z]+)_\d+", r"([a-z]+)_(\d+)\.png$"])
def test_groups_are_held_out_whole(group, seed):
    records = called(*groups_of({"a": 2, "bb": 9, "c": 4, "d": 5}))
    train, val = held_out_of(records, val_group=group, seed=seed, val_fraction=0.2)
    assert train
    assert not volumes_of(train) & volumes_of(val)
    assert len(train) + len(val) == 20
    assert len(val) >= 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_group": "("}, "is no regular expression"),
        ({"val_group": "z"}, "matches nothing in the name cell_00.png"),
        ({"val_group": "cell"}, "into one group"),
        ({"fold": "1/5"}, "there are only 4 images"),
        ({"fold": "1/3", "val_group": r"_(\d)"}, "into one group"),
    ],
)
def test_groups_or_folds_that_cannot_be_are_a_one_line_error(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        load_info(write_folder(tmp_path, 4, seed=0), **settings)


def write_stacks(folder: Path, files: int, pages: int) -> Path:
    """Stacks 0.tif, 1.tif, ... of images and masks."""
    stack = np.arange(pages, dtype=np.uint8)[:, None, None].repeat(8, axis=1).repeat(8, axis=2) % 2
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for number in range(files):
            tifffile.imwrite(folder / kind / f"{number}.tif", stack, photometric="minisblack", metadata=None)
    return folder


def test_pages_of_one_file_are_held_out_together(tmp_path):
    info = load_info(write_stacks(tmp_path, 6, 5), val_fraction=0.1)
    train, val = names_of(info)
    assert (len(train), len(val)) == (25, 5)
    assert not volumes_of(train) & volumes_of(val)
    folds = [names_of(load_info(tmp_path, fold=f"{number}/3"))[1] for number in (1, 2, 3)]
    assert [len(volumes_of(fold)) for fold in folds] == [2, 2, 2]
    assert len({name for fold in folds for name in fold}) == 30
    with pytest.raises(DataError, match="there are only 6 files, whose pages stay together, and each fold needs one"):
        load_info(tmp_path, fold="1/7")


def test_pages_of_the_only_file_are_divided_with_a_line(tmp_path):
    info = load_info(write_stacks(tmp_path, 1, 10), val_fraction=0.2)
    assert (len(info.train), len(info.val)) == (8, 2)
    (line,) = [line for line in info.warnings if "pages of one file" in line]
    assert line.startswith("all 10 images are pages of one file;")


FOLDERS = {
    "patients": (["p1/a.png", "p1/b.png", "p2/a.png", "p2/b.png"], True),
    "one beside": (["p1/a.png", "p1/b.png", "c.png", "d.png"], True),
    "one image a folder": (["p1/a.png", "p2/a.png", "p3/a.png", "p4/a.png"], False),
    "one folder": (["p1/a.png", "p1/b.png", "p1/c.png", "p1/d.png"], False),
}


@pytest.mark.parametrize(("files", "has_line"), FOLDERS.values(), ids=FOLDERS)
def test_images_of_one_folder_on_both_sides_are_a_line_with_the_flag_that_mends_it(tmp_path, files, has_line):
    write_pictures(tmp_path, *(f"{kind}/{file}" for kind in ("images", "masks") for file in files))
    for seed in range(9):  # not every seed divides a folder
        info = load_info(tmp_path, val_fraction=0.5, seed=seed, classes="0=a,1=b")
        lines = [line for line in info.warnings if "--val-group" in line]
        if lines:
            break
    assert bool(lines) == has_line
    if has_line:
        pattern = lines[0].split("'")[1]
        train, val = names_of(load_info(tmp_path, val_fraction=0.5, seed=seed, classes="0=a,1=b", val_group=pattern))
        assert not {Path(name).parent for name in train} & {Path(name).parent for name in val}


@pytest.mark.parametrize(("folders", "lines"), [(["data"], 0), (["a", "b"], 1)])
def test_folders_of_cases_are_no_groups_if_they_all_lie_in_one(tmp_path, folders, lines):
    for folder in folders:
        for case in range(4):
            path = tmp_path / folder / f"case_{case}"
            path.mkdir(parents=True)
            for name in ("imaging.nii", "segmentation.nii"):
                (path / name).touch()
    assert len(leak_warnings(*load_records(DataConfig(str(tmp_path), val_fraction=0.4)))) == lines


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("group", "folds", "most"), [(None, 5, 4), (r"^([a-z]+)_", 5, 9), (r"([a-z]+)_\d+", 2, 11)])
def test_folds_hold_out_each_image_once_and_groups_whole(group, folds, most, seed):
    names = groups_of({"a": 2, "bb": 9, "c": 4, "d": 3, "e": 2})
    held_out = []
    for k in range(1, folds + 1):
        train, val = held_out_of(called(*names), val_group=group, seed=seed, fold=f"{k}/{folds}")
        assert sorted([*train, *val]) == sorted(names)
        assert 1 <= len(val) <= most
        assert group is None or not volumes_of(train) & volumes_of(val)
        held_out += val
    assert sorted(held_out) == sorted(names)


class Stream(StreamRows):
    """Files of records that are never read."""

    def _read_group(self, group: int) -> None:
        raise AssertionError

    def __getitem__(self, index: int) -> dict:
        raise AssertionError


@pytest.mark.parametrize(
    ("sizes", "fraction", "held_out"),
    [((10, 10), 0.01, 10), ((10, 10), 1.0, 10), ((10, 10, 10, 10), 0.25, 10), ((10, 10, 10, 10), 0.26, 20)],
)
def test_whole_files_of_a_stream_are_held_out(sizes, fraction, held_out):
    groups = np.array(list(enumerate(sizes)))
    for seed in range(3):
        train, val = hold_out_shards(Stream(["a", "b", "c", "d"], groups, None), fraction, seed)
        assert len(val) == held_out
        assert len(train) == sum(sizes) - held_out
        assert not set(train.rows.groups[:, 0]) & set(val.rows.groups[:, 0])


def test_groups_of_one_size_go_to_folds_in_the_order_that_the_seed_draws():
    pairs = {f"{number:02}_{image}" for number in range(0, 24, 2) for image in "ab"}
    records = called(*sorted(pairs | {f"{number:02}_a" for number in range(1, 24, 2)}))
    order = np.random.default_rng(0).permutation(24)
    held_out = names(hold_out(records, DataConfig(fold="2/4", val_group=r"^(\d+)_"))[1])
    groups = {*order[order % 2 == 0][1::4].tolist(), *order[order % 2 == 1][1::4].tolist()}
    assert {int(name[:2]) for name in held_out} == groups


def test_shards_of_unequal_size_are_held_out_by_their_records():
    groups = np.array(list(enumerate((70, 10, 10, 10))))
    held_out = []
    for seed in range(6):
        _, val = hold_out_shards(Stream(list("abcd"), groups, None), 0.3, seed)
        held_out.append(len(set(val.rows.groups[:, 0])))
    # the large file alone, or small ones in the order of the seed until 30 of 100 records are there
    large_first = [np.random.default_rng(seed).permutation(4)[0] == 0 for seed in range(6)]
    assert [count == 1 for count in held_out] == large_first


@pytest.mark.parametrize(
    ("write", "flags"),
    [
        (write_folder, {"val_fraction": 0.3, "fold": "1/2"}),
        (write_folder, {"spacing": (1.0, 1.0, 1.0)}),
        (write_folder, {"mask_column": "mask"}),
        (write_folder, {"dataset_config": "large"}),
        (write_folder, {"absent": "unknown"}),
        (write_overlaps, {"outside": "ignore"}),
        (write_splits, {"val_fraction": 0.3}),
        (write_splits, {"val_group": "cell"}),
    ],
)
def test_a_flag_without_effect_is_a_line(tmp_path, write, flags):
    write(tmp_path, 4, 2)
    config = DataConfig(str(tmp_path), **flags)
    (line,) = idle_flags(*load_records(config), config)
    flag = next(iter(flags)).replace("_", "-")
    assert line.startswith(f"--{flag} has no effect: ")


@pytest.mark.parametrize("flags", [{"loss": "ce"}, {"class_weights": ("auto",)}, {"ignore_index": "255"}])
def test_a_flag_of_masks_has_no_effect_on_points(tmp_path, flags):
    write_table(tmp_path / "data", "image,nose_x,nose_y\na.png,1,2\nb.png,3,4\n", images=2)
    config = TrainSettings(str(tmp_path / "data"), **flags)
    (line,) = idle_flags(*load_records(config), config)
    assert line.endswith(" has no effect: the data are points, and not masks")
