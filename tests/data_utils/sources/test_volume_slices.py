"""Slices of volumes as images: their numbers, labels, keys, and errors of their volumes.

Module: data_utils/sources/volumes.py.
"""

import numpy as np
import pytest
from support.volumes import (
    CASE_NAMES,
    LPS,
    RAS,
    case,
    training_volumes,
    volume_config,
    write_decathlon,
    write_nifti,
    write_pairs,
)

from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.load import load_records
from data_utils.sources.volumes import divide_into_slices
from runtime.errors import DataError

DEPTH = case(0)[1].shape[2]


def test_slices_are_planes_of_their_volumes_which_are_whole_in_one_split(tmp_path):
    two_channels = write_decathlon(tmp_path, channels=2)
    train, val = load_records(volume_config(two_channels, dims=2))
    volumes, _ = load_records(volume_config(two_channels))
    assert (train.dims, len(train), len(val)) == (2, 24, 8)
    names_of_train = {record["name"].rpartition("_")[0] for record in train}
    assert names_of_train.isdisjoint(record["name"].rpartition("_")[0] for record in val)
    assert train.metadata.classes == volumes.metadata.classes
    voxels, _ = read_volume(volumes[1]["image"], "a")
    mask, _ = read_label_volume(volumes[1]["target"], "a")
    assert train[8]["name"] == f"{volumes[1]['name']}_0001"
    assert np.array_equal(read_image(train[10]["image"], "a"), voxels[2])
    assert np.array_equal(read_mask(train[10]["target"], "a"), mask[2])


def test_slices_are_labeled_for_what_their_volume_is(tmp_path):
    labels = [None, ImageLabels(("liver",), "a table"), None, None]
    slices = divide_into_slices(with_labels(training_volumes(write_pairs(tmp_path)), labels))
    labeled = [None] * DEPTH + [("liver",)] * DEPTH + [None] * 2 * DEPTH
    assert [slices.label_set(i) for i in range(4 * DEPTH)] == labeled
    assert [record.get("labeled") for record in slices] == labeled


def test_a_volume_that_cannot_be_read_is_named_by_its_only_slice(tmp_path):
    write_pairs(tmp_path)
    (tmp_path / "images" / f"{CASE_NAMES[0]}.nii.gz").write_bytes(b"damaged")
    slices = divide_into_slices(training_volumes(tmp_path))
    assert len(slices) == 1 + 3 * DEPTH
    assert slices.name(0) == f"{CASE_NAMES[0]}_0001"
    assert slices.name(1) == f"{CASE_NAMES[1]}_0001"
    assert slices.name(len(slices) - 1) == f"{CASE_NAMES[3]}_{DEPTH:04}"
    with pytest.raises(DataError, match=CASE_NAMES[0]):
        read_image(slices[0]["image"])


@pytest.mark.parametrize(
    ("shape", "affine", "line"),
    [((12, 10, 8), RAS * 2, "the affines of image and label differ"), ((12, 10, 9), LPS, "image is 9 x 10 x 12")],
    ids=["another affine", "another shape"],
)
def test_a_volume_that_lies_elsewhere_than_its_label_has_no_slices(tmp_path, shape, affine, line):
    write_pairs(tmp_path)
    write_nifti(tmp_path / "images" / f"{CASE_NAMES[0]}.nii.gz", case(0, shape)[0], affine)
    with pytest.raises(DataError, match=f"{CASE_NAMES[0]}: {line}"):
        divide_into_slices(training_volumes(tmp_path))
