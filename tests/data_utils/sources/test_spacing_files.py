"""The spacing of volumes whose files hold none: a file spacing.json, or a flag, makes volumes of stacks."""

import functools
import json

import numpy as np
import pytest
import tifffile
from support.volumes import CASE_NAMES, case, volume_config

from data_utils.image_io.volumes import read_volume
from data_utils.sources.load import load_records
from data_utils.sources.volumes import read_spacing
from runtime.errors import DataError
from train_utils.dataset import load_dataset_info

WRITERS = {"npy": np.save, "tif": functools.partial(tifffile.imwrite, photometric="minisblack")}


@pytest.fixture(params=WRITERS)
def stacks(request, tmp_path):
    """A folder of stacks of 8 x 10 x 12 in a format without spacing, with their masks."""
    for seed, name in enumerate(CASE_NAMES):
        for folder, array in zip(("images", "masks"), case(seed, kind=np.uint8), strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            WRITERS[request.param](tmp_path / folder / f"{name}.{request.param}", array.T)
    return tmp_path


def test_stacks_are_volumes_of_the_spacing_in_a_file_beside_them(stacks):
    (stacks / "spacing.json").write_text("[50, 4, 4]")
    train, _ = load_records(volume_config(stacks))
    _, header = read_volume(train[0]["image"], "a")
    assert header.spacing == (50.0, 4.0, 4.0)
    assert header.size == (8, 10, 12)
    assert load_dataset_info(volume_config(stacks)).train.spacings.tolist() == [[50, 4, 4]] * 3


def test_the_key_of_stacks_changes_with_their_spacing(stacks):
    keys = set()
    for depth in (1.0, 2.0):
        train, _ = load_records(volume_config(stacks, dims=3, spacing=(depth, 1.0, 1.0)))
        keys.add(train.digest)
    assert len(keys) == 2


@pytest.mark.parametrize("text", ["[1, 1, 1, 1]", "[0, 1, 1]", "[1, -1, 1]", '["1", 1, 1]', "[]"])
def test_a_spacing_has_three_sides_of_more_than_0(tmp_path, text):
    (tmp_path / "spacing.json").write_text(text)
    with pytest.raises(DataError, match=r"spacing\.json holds .*, expected \[z, y, x\] in mm"):
        read_spacing(tmp_path)


def test_the_nearest_spacing_file_counts(tmp_path):
    images = tmp_path / "train" / "images"
    images.mkdir(parents=True)
    spacings = {tmp_path: [9, 9, 9], tmp_path / "train": [5, 4, 4], images: [3, 2.5, 1]}
    for folder, spacing in spacings.items():
        (folder / "spacing.json").write_text(json.dumps(spacing))
        assert read_spacing(images) == tuple(spacing)


def test_stacks_are_volumes_where_a_flag_gives_a_spacing_which_wins_over_that_of_a_file(stacks):
    for _ in range(2):
        train, _ = load_records(volume_config(stacks, spacing=(4.0, 1.0, 1.0)))
        assert train.dims == 3
        assert read_volume(train[0]["image"], "a")[1].spacing == (4.0, 1.0, 1.0)
        (stacks / "spacing.json").write_text("[3, 1, 1]")
    info = load_dataset_info(volume_config(stacks, spacing=(2.0, 1.0, 1.0)))
    assert info.train.spacings[0].tolist() == [2, 1, 1]
