"""A mask for each class: joined to one, what is known of each class, and how each file is called."""

import numpy as np
import pytest
import tifffile
from PIL import Image
from volumes import write_nifti

from data_utils.image_io.class_masks import (
    ClassChannels,
    ClassFile,
    ClassMask,
    ClassMasks,
    binary,
    combined,
    layered_label,
)
from data_utils.image_io.volumes import read_label_volume
from runtime.errors import DataError
from tasks.overlapping import unpack_bits


def test_what_one_mask_of_a_class_shows_is_known_although_another_ignores_it():
    shown = ClassMask(np.array([[5, 0, 0]]), 2, "first")
    ignored = ClassMask(np.array([[9, 9, 0]]), 2, "second")
    missing = ClassMask(None, 1, "third")
    truth, unknown = unpack_bits(combined([shown, missing, ignored], ignored=(9,)))
    assert truth.tolist() == [[4, 0, 0]] and unknown.tolist() == [[2, 6, 2]]
    for shape in ((2, 3), (1, 2)):
        with pytest.raises(DataError, match=f"other: is {shape[0]} x {shape[1]}, but first 1 x 3; store both at one"):
            combined([shown, ClassMask(np.zeros(shape), 0, "other")], ())


def test_two_colors_are_two_values_of_a_mask_of_one_class():
    color = np.zeros((1, 3, 3), np.uint8)
    color[0, 0], color[0, 1] = (1, 0, 0), (1, 0, 0)
    assert binary(color, "a")[0].tolist() == [[True, True, False]]
    color[0, 1] = (0, 1, 0)  # of the same sum
    with pytest.raises(DataError, match="a: mask of one class holds #000000, #010000, #000100, expected 0 and one"):
        binary(color, "a")
    color[0, 0] = (0, 0, 1)
    with pytest.raises(DataError, match="a: mask of one class holds #000000, #000100, #000001, expected"):
        binary(color, "a")


def test_masks_are_called_by_the_first_file_that_there_is_and_pages_from_one(tmp_path):
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, np.array([[[0, 1]], [[0, 1]], [[1, 2]]], np.uint8), photometric="minisblack")
    masks = ClassMasks((ClassFile(""), ClassFile(path), ClassFile(path, 2)), (0, 1, 2))
    assert masks.name == path
    with pytest.raises(DataError, match=r"a\.tif page 3: mask of one class holds 1, 2"):
        masks.render()


def test_a_class_without_a_file_is_unknown_and_another_classs_file_tells_the_size():
    label = layered_label(("", "b", "c"), (0, 1, None))
    assert (label.paths, label.layers.bits, label.layers.unknown) == (("b",), (1,), (0,))
    alone = layered_label(("", "b"), (0, None))
    assert (alone.paths, alone.layers.bits, alone.layers.unknown) == (("b",), (None,), (0,))


def test_a_value_to_ignore_is_unknown_in_labels_of_a_class_each(tmp_path):
    paths = []
    for name, values in (("a", [0, 1, 9]), ("b", [1, 9, 0])):
        paths.append(str(write_nifti(tmp_path / f"{name}.nii", np.array(values, np.uint8).reshape(3, 1, 1))))
    values, header = read_label_volume(layered_label(paths, (0, 1), ignored=(9,)), "case")
    truth, unknown = unpack_bits(values)
    assert header.size == (1, 1, 3)
    assert truth.ravel().tolist() == [2, 1, 0] and unknown.ravel().tolist() == [0, 2, 1]


def test_ignored_values_are_unknown_in_files_and_in_channels(tmp_path):
    channels = np.zeros((3, 4, 2), np.uint8)
    channels[0, :, 0] = 1
    channels[1, :, 1] = 9
    np.save(tmp_path / "a.npy", channels)
    files = []
    for index in range(2):
        Image.fromarray(channels[:, :, index]).save(tmp_path / f"{index}.png")
        files.append(ClassFile(str(tmp_path / f"{index}.png")))
    for mask in (ClassChannels(str(tmp_path / "a.npy"), (0, 1), (9,)), ClassMasks(tuple(files), (0, 1), (9,))):
        truth, unknown = unpack_bits(mask.render())
        assert truth.tolist() == [[1] * 4, [0] * 4, [0] * 4]
        assert unknown.tolist() == [[0] * 4, [2] * 4, [0] * 4]
