"""Slices of volumes as images: their numbers, labels, keys, and errors of their volumes."""

from dataclasses import replace
from unittest import mock

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

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources import volume_slices
from data_utils.sources.label_files import ImageLabels, with_labels
from data_utils.sources.load import load_records
from data_utils.sources.volume_slices import SliceRecords, VolumeSlice
from data_utils.sources.volumes import Description, VolumeRecords
from runtime.errors import DataError

DEPTH = case(0)[1].shape[2]


@pytest.fixture(scope="module")
def two_channels(tmp_path_factory):
    """A folder of four volumes of two channels and eight slices."""
    return write_decathlon(tmp_path_factory.mktemp("decathlon"), channels=2)


def test_slices_of_a_volume_are_all_in_one_split(two_channels):
    train, val = load_records(volume_config(two_channels, dims=2))
    assert len(train) == 24
    assert len(val) == 8
    names_of_train = {record["name"].rpartition("_")[0] for record in train}
    assert names_of_train.isdisjoint(record["name"].rpartition("_")[0] for record in val)


def test_slices_are_images_with_the_classes_of_their_volumes(two_channels):
    train, _ = load_records(volume_config(two_channels, dims=2))
    volumes, _ = load_records(volume_config(two_channels))
    assert train.dims == 2
    assert train.metadata.classes == volumes.metadata.classes


def test_a_slice_is_a_plane_of_its_volume(two_channels):
    train, _ = load_records(volume_config(two_channels, dims=2))
    volumes, _ = load_records(volume_config(two_channels))
    voxels, _ = read_volume(volumes[1]["image"], "a")
    mask, _ = read_label_volume(volumes[1]["target"], "a")
    assert train[8]["name"] == f"{volumes[1]['name']}_0001"
    assert np.array_equal(read_image(train[10]["image"], "a"), voxels[2])
    assert np.array_equal(read_mask(train[10]["target"], "a"), mask[2])
    assert train[10]["target"].read().shape == (10, 12)


def test_a_data_set_of_slices_has_sizes_without_spacing(two_channels):
    info = load_dataset_info(volume_config(two_channels, dims=2))
    assert info.train.sizes.tolist() == [[10, 12]] * 24
    assert info.preprocess().spacing is None


def test_slices_have_another_key_than_their_volumes(two_channels):
    slices, _ = load_records(volume_config(two_channels, dims=2))
    volumes, _ = load_records(volume_config(two_channels))
    assert slices.digest != volumes.digest


def test_slices_say_all_that_their_volumes_say():
    volumes = VolumeRecords([], None, Description(((0, "a"),), "CT"), ["x: image without mask"])
    volumes.metadata = replace(volumes.metadata, label_sets={("a",): "a table"}, unlisted=("x",), task="classes")
    slices = SliceRecords(volumes)
    assert slices.metadata == replace(volumes.metadata, dims=2)
    assert slices.digest != volumes.digest


def test_slices_of_volumes_without_a_key_have_none():
    volumes = VolumeRecords([], None, Description(), [])
    vars(volumes)["digest"] = None
    assert SliceRecords(volumes).digest is None


@pytest.fixture
def partly_labeled_slices(tmp_path):
    """The slices of four volumes, of which the second is labeled for its livers alone."""
    labels = [None, ImageLabels(("liver",), "a table"), None, None]
    return SliceRecords(with_labels(training_volumes(write_pairs(tmp_path)), labels))


def test_slices_are_labeled_for_what_their_volume_is(partly_labeled_slices):
    labeled = [None] * DEPTH + [("liver",)] * DEPTH + [None] * 2 * DEPTH
    assert [partly_labeled_slices.label_set(i) for i in range(4 * DEPTH)] == labeled
    assert [record.get("labeled") for record in partly_labeled_slices] == labeled


def test_headers_of_volumes_are_read_once_for_their_slices(partly_labeled_slices, monkeypatch):
    assert len(partly_labeled_slices) == 4 * DEPTH
    monkeypatch.delattr("data_utils.sources.volume_slices.read_volume_header")
    assert len(SliceRecords(partly_labeled_slices.volumes)) == 4 * DEPTH


def test_slices_are_those_of_volumes_of_several_depths(tmp_path):
    for name, depth in (("a", 3), ("b", 5), ("c", 2)):
        write_nifti(tmp_path / "images" / f"{name}.nii.gz", case(0, (6, 7, depth))[0])
        write_nifti(tmp_path / "masks" / f"{name}.nii.gz", case(0, (6, 7, depth))[1])
    slices = SliceRecords(training_volumes(tmp_path))
    numbers = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3), ("b", 4), ("b", 5), ("c", 1), ("c", 2)]
    assert [record["name"] for record in slices] == [f"{name}_{number:04}" for name, number in numbers]


def test_a_volume_that_cannot_be_read_is_named_by_its_only_slice(tmp_path):
    write_pairs(tmp_path)
    (tmp_path / "images" / f"{CASE_NAMES[0]}.nii.gz").write_bytes(b"damaged")
    slices = SliceRecords(training_volumes(tmp_path))
    assert len(slices) == 1 + 3 * DEPTH
    assert slices.name(0) == f"{CASE_NAMES[0]}_0001"
    assert slices.name(1) == f"{CASE_NAMES[1]}_0001"
    assert slices.name(len(slices) - 1) == f"{CASE_NAMES[3]}_{DEPTH:04}"
    with pytest.raises(DataError, match=CASE_NAMES[0]):
        read_image(slices[0]["image"])


@pytest.mark.parametrize(
    ("shape", "affine"), [((12, 10, 8), RAS * 2), ((12, 10, 9), LPS)], ids=["another affine", "another shape"]
)
def test_a_volume_that_lies_elsewhere_than_its_label_has_no_slices(tmp_path, shape, affine):
    write_pairs(tmp_path)
    write_nifti(tmp_path / "images" / f"{CASE_NAMES[0]}.nii.gz", case(0, shape)[0], affine)
    with pytest.raises(DataError, match=f"{CASE_NAMES[0]}: image and label differ in shape or affine"):
        len(SliceRecords(training_volumes(tmp_path)))


def test_a_volume_is_read_once_for_its_slices(tmp_path, monkeypatch):
    read = mock.Mock(side_effect=read_volume)
    monkeypatch.setattr(volume_slices, "read_volume", read)
    volume = VolumeFile((str(write_nifti(tmp_path / "a.nii", np.ones((2, 3, 4), np.uint8))),))
    assert [VolumeSlice(volume, z, False).read().shape for z in range(4)] == [(3, 2, 1)] * 4
    read.assert_called_once()
