"""Volumes whose classes overlap: a label or a channel for each class, and which of them are found.

Module: data_utils/sources/overlapping.py.
"""

from pathlib import Path

import numpy as np
import pytest
from support.annotations import error_of
from support.data_sets import load_info
from support.overlaps import planes
from support.volumes import case, write_nifti

from data_utils.config import DataConfig
from data_utils.image_io.volumes import read_volume
from data_utils.sources.load import load_records


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
    assert info.reader.class_names == (("class 1", "class 2") if by_channel else ("inner", "whole"))
    record = info.train.records[0]
    _, header = read_volume(record["image"], record["name"])
    target = info.reader.read_volume(record, header)
    expected = labels[int(record["name"][1:])].transpose(0, 3, 2, 1)
    assert (planes(target.truth, 2) == (expected if by_channel else expected[::-1])).all()
    assert (target.known == 3).all()


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
