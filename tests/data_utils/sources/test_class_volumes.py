"""Volumes whose classes overlap: a label or a channel for each class, and which of them are found."""

from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of
from support.data_sets import load_info, unnoticed_changes
from support.overlaps import planes
from support.volumes import case, write_nifti

from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_volume
from data_utils.sources.class_volumes import ChannelVolumeRecords, divide_by_channel, find_class_volumes
from data_utils.sources.load import load_records
from data_utils.sources.volumes import Case, Description, VolumeRecords
from runtime.errors import DataError


def write_volumes(folder: Path, count: int, *, by_channel: bool = False) -> list[np.ndarray]:
    """images/ and labels of two classes that overlap; the labels, (2, x, y, z) bool each."""
    labels = []
    for seed in range(count):
        image, label = case(seed)
        class_masks = np.stack([label > 0, label > 1])
        write_nifti(folder / "images" / f"c{seed}.nii.gz", image)
        if by_channel:
            write_nifti(folder / "masks" / f"c{seed}.nii.gz", np.moveaxis(class_masks, 0, -1).astype(np.uint8))
        else:
            for name, values in zip(("inner", "whole"), class_masks[::-1], strict=True):
                write_nifti(folder / "masks" / name / f"c{seed}.nii.gz", values.astype(np.uint8))
        labels.append(class_masks)
    return labels


@pytest.mark.parametrize("by_channel", [False, True])
def test_volumes_have_a_label_or_a_channel_for_each_class(tmp_path, by_channel):
    labels = write_volumes(tmp_path, 4, by_channel=by_channel)
    info = load_info(tmp_path)
    assert info.config.task == "overlapping"
    assert info.train.records.dims == 3
    assert info.reader.names == (("class 1", "class 2") if by_channel else ("inner", "whole"))
    record = info.train.records[0]
    _, header = read_volume(record["image"], record["name"])
    target = info.reader.read_volume(record, header)
    expected = labels[int(record["name"][1:])].transpose(0, 3, 2, 1)
    assert (planes(target.truth, 2) == (expected if by_channel else expected[::-1])).all()
    assert (target.known == 3).all()


def touch_volumes(folder: Path, *names: str) -> list[Path]:
    """Empty files of volumes."""
    files = []
    for name in names:
        file = folder / f"{name}.nii.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        files.append(file)
    return files


@pytest.fixture
def class_volumes(tmp_path) -> dict:
    """The records of two splits, each of which lacks a class of the other."""
    touch_volumes(tmp_path / "train", "images/v10", "images/v2", "masks/c10/v10", "masks/c10/v2", "masks/c2/v10")
    touch_volumes(tmp_path / "val", "images/v1", "masks/c10/v1", "masks/c3/v1")
    openers = find_class_volumes(tmp_path, (), DataConfig(str(tmp_path), task="overlapping"))
    return {split: opened() for split, opened in openers.items()}


@pytest.fixture
def half_splits(tmp_path):
    """Splits of volumes of the classes a and b, with files without partner; the second has no masks of a."""
    touch_volumes(tmp_path / "train", "images/v", "masks/a/v", "masks/b/v")
    touch_volumes(tmp_path / "val", "images/v", "images/w", "masks/b/v", "masks/b/x")
    touch_volumes(tmp_path / "train", "masks/a/y")
    (tmp_path / "train/masks/notes").mkdir()
    return DataConfig(str(tmp_path), task="overlapping", spacing=(2.0, 1.0, 1.0), ignore_index="9,8")


def unpaired_of_val(folder: str) -> tuple[str, str]:
    """The lines on files without partner of the second split."""
    return (
        f"{folder}/val/images/w.nii.gz: image without mask",
        f"{folder}/val/masks/b/x.nii.gz: mask without image",
    )


def test_volumes_of_a_class_without_partner_are_refused(half_splits, tmp_path):
    third, _ = touch_volumes(tmp_path / "val", "masks/b/x1", "masks/b/x2")
    lines = "; ".join([*unpaired_of_val(half_splits.dataset), f"{third}: mask without image"])
    with pytest.raises(DataError, match=f"4 files without partner: {lines}"):
        find_class_volumes(tmp_path, (), half_splits)["val"]()


@pytest.mark.parametrize(("task", "is_split"), [(None, True), ("overlapping", True), ("classes", False)])
def test_channels_of_labels_are_classes_unless_the_task_is_another(tmp_path, task, is_split):
    write_volumes(tmp_path, 1, by_channel=True)
    file = str(tmp_path / "masks" / "c0.nii.gz")
    volumes = VolumeRecords([Case("c0", (file,), file)], None, Description())
    config = DataConfig(task=task)
    assert isinstance(divide_by_channel(volumes, config), ChannelVolumeRecords) is is_split
    empty = VolumeRecords([], None, Description())
    assert divide_by_channel(empty, config) is empty


def test_the_key_of_volumes_of_classes_changes_with_files_or_flags(tmp_path):
    files = touch_volumes(
        tmp_path, *(f"{folder}/{name}" for folder in ("images", "masks/a", "masks/b") for name in "vw")
    )

    def key(**settings) -> str:
        config = DataConfig(str(tmp_path), task="overlapping", **settings)
        (opened,) = find_class_volumes(tmp_path, (), config).values()
        return opened().digest

    assert unnoticed_changes(files, key) == []
    channels = [file.rename(file.with_name(f"{name}_0000.nii.gz")) for file, name in zip(files, "vw", strict=False)]
    channels += touch_volumes(tmp_path, "images/v_0001", "images/w_0001")
    assert unnoticed_changes(channels, key) == []
    keys = [key(), key(ignore_index="9"), key(classes="a"), key(classes="b,a"), key(spacing=(2.0, 1.0, 1.0))]
    (tmp_path / "masks" / "b" / "w.nii.gz").rename(tmp_path / "masks" / "b" / "x.nii.gz")
    keys.append(key(allow_unpaired=True))
    assert len(set(keys)) == 6


def test_a_volume_without_a_label_of_a_class_is_unknown_for_it(tmp_path):
    write_volumes(tmp_path, 4)
    (tmp_path / "masks" / "inner" / "c1.nii.gz").unlink()
    info = load_info(tmp_path)
    known_of_volume = {}
    for records in (info.train.records, info.val.records):
        for record in records:
            _, header = read_volume(record["image"], record["name"])
            known_of_volume[record["name"]] = np.unique(info.reader.read_volume(record, header).known).tolist()
    assert known_of_volume == {"c0": [3], "c1": [0b10], "c2": [3], "c3": [3]}
    (tmp_path / "masks" / "whole" / "c1.nii.gz").unlink()
    assert "c1.nii.gz: image without mask" in error_of(tmp_path)
    assert sum(map(len, load_records(DataConfig(str(tmp_path), allow_unpaired=True)))) == 3
