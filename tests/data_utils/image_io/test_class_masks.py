"""A mask for each class: joined to one, what is known of each class, and how each file is called."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.volumes import write_nifti

from data_utils.bits import unpack_bits
from data_utils.image_io.class_masks import (
    ClassMasks,
    binary,
    layered_label,
)
from data_utils.image_io.formats import ClassLayers, PageFile, VolumeFile
from data_utils.image_io.volumes import read_label_volume
from runtime.errors import DataError


def test_pages_of_masks_are_called_by_their_numbers_from_one(tmp_path):
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, np.array([[[0, 1]], [[0, 1]], [[1, 2]]], np.uint8), photometric="minisblack")
    masks = ClassMasks((PageFile(""), PageFile(path), PageFile(path, 2)), (0, 1, 2))
    with pytest.raises(DataError, match=r"a\.tif page 3: mask of one class holds 1, 2"):
        masks.render()


def test_a_value_to_ignore_is_unknown_in_labels_of_a_class_each(tmp_path):
    paths = []
    for name, values in (("a", [0, 1, 9]), ("b", [1, 9, 0])):
        paths.append(str(write_nifti(tmp_path / f"{name}.nii", np.array(values, np.uint8).reshape(3, 1, 1))))
    values, header = read_label_volume(layered_label(paths, (0, 1), ignored=(9,)), "case")
    truth, unknown = unpack_bits(values)
    assert header.size == (1, 1, 3)
    assert truth.ravel().tolist() == [2, 1, 0]
    assert unknown.ravel().tolist() == [0, 2, 1]


TWO_CHANNELS = np.zeros((3, 4, 2), np.uint8)  # the first row of one class, and the second ignored for the other
TWO_CHANNELS[0, :, 0], TWO_CHANNELS[1, :, 1] = 1, 9


def mask_of_channels(folder: Path) -> ClassMasks:
    np.save(folder / "a.npy", TWO_CHANNELS)
    return ClassMasks((PageFile(str(folder / "a.npy")),), (0, 1), (9,))


def mask_of_files(folder: Path) -> ClassMasks:
    files = [PageFile(str(folder / f"{index}.png")) for index in range(2)]
    for index, file in enumerate(files):
        Image.fromarray(TWO_CHANNELS[:, :, index]).save(file.path)
    return ClassMasks(tuple(files), (0, 1), (9,))


@pytest.mark.parametrize("write_mask", [mask_of_channels, mask_of_files])
def test_ignored_values_are_unknown(tmp_path, write_mask):
    truth, unknown = unpack_bits(write_mask(tmp_path).render())
    assert truth.tolist() == [[1] * 4, [0] * 4, [0] * 4]
    assert unknown.tolist() == [[0] * 4, [2] * 4, [0] * 4]


@pytest.fixture
def channels(tmp_path) -> str:
    """A file of two channels, of which the second holds many values."""
    pixels = np.zeros((2, 5, 2), np.uint8)
    pixels[..., 1] = np.arange(10).reshape(2, 5)
    np.save(tmp_path / "a.npy", pixels)
    return str(tmp_path / "a.npy")


def test_channels_are_called_by_their_numbers_from_one_and_as_many_as_classes(channels):
    with pytest.raises(DataError, match=r"a\.npy channel 2: mask of one class holds 0, 1, 2"):
        ClassMasks((PageFile(channels),), (0, 1)).render()
    with pytest.raises(DataError, match=r"a\.npy: mask has 2 channels, others have 3$"):
        ClassMasks((PageFile(channels),), (0, 1, 2)).render()


def test_a_channel_of_a_class_that_is_left_out_may_hold_anything(channels):
    truth, unknown = unpack_bits(ClassMasks((PageFile(channels),), (0, None)).render())
    assert not truth.any()
    assert not unknown.any()


def test_a_mask_of_a_class_that_is_left_out_is_read_where_no_other_says_the_size(tmp_path):
    Image.fromarray(np.ones((2, 3), np.uint8)).save(tmp_path / "a.png")
    masks = ClassMasks((PageFile(""), PageFile(str(tmp_path / "a.png"))), (0, None))
    truth, unknown = unpack_bits(masks.render())
    assert truth.tolist() == [[0] * 3] * 2
    assert unknown.tolist() == [[1] * 3] * 2


GREYS = np.array([[0, 5, 7, 9]], np.uint8)


@pytest.mark.parametrize("ignored", [(7, 9), ((7, 7, 7), (9, 9, 9))], ids=["numbers", "colors"])
@pytest.mark.parametrize("mask", [GREYS, np.repeat(GREYS[:, :, None], 3, axis=2)], ids=["greys", "grey colors"])
def test_all_values_to_ignore_are_unknown_as_greys_and_as_colors(ignored, mask):
    inside, is_ignored = binary(mask, "a", ignored)
    assert inside.tolist() == [[False, True, False, False]]
    assert is_ignored.tolist() == [[False, False, True, True]]


@pytest.mark.parametrize(
    ("affine", "slices"), [(np.diag([1.0, 1, 1.01, 1]), 4), (np.eye(4), 3)], ids=["spacing", "shape"]
)
def test_labels_of_a_class_each_lie_on_one_grid(tmp_path, affine, slices):
    values = np.ones((2, 3, 4), np.uint8)
    first = str(write_nifti(tmp_path / "first.nii", values))
    second = str(write_nifti(tmp_path / "second.nii", values[:, :, :slices], affine))
    with pytest.raises(DataError) as error:
        read_label_volume(layered_label((first, second), (0, 1)), "case")
    assert str(error.value) == f"{second}: has another shape or affine than {first}; resample one of them"


def test_channels_of_a_label_are_called_by_their_numbers_from_one_and_as_many_as_classes(tmp_path):
    values = np.zeros((2, 3, 4, 2), np.uint8)
    values[..., 1] = np.arange(4)
    label = VolumeFile((str(write_nifti(tmp_path / "a.nii", values)),), layers=ClassLayers((0, 1)))
    with pytest.raises(DataError, match=r"^case: label channel 2: mask of one class holds 0, 1, 2, 3, expected 0 and"):
        read_label_volume(label, "case")
    with pytest.raises(DataError, match=r"^case: label has 2 channels, others have 3$"):
        read_label_volume(label._replace(layers=ClassLayers((0, 1, 2))), "case")
