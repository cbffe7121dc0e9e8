"""Targets of images in padding, strips and copies on a device."""

import numpy as np
import torch

from tasks.classes.target import ClassTarget
from tasks.objects.target import ObjectTarget

TARGET = ClassTarget(np.arange(9, dtype=np.uint8).reshape(3, 3))


def test_padding_lies_behind_an_image():
    assert TARGET.pad((4, 4)).mask.tolist() == [[0, 1, 2, 255], [3, 4, 5, 255], [6, 7, 8, 255], [255] * 4]


def test_a_strip_ends_before_its_last_row():
    batch = ClassTarget.stack([TARGET.map(torch.from_numpy)])
    assert batch.strip(1, 2).mask.tolist() == [[[3, 4, 5]]]
    assert batch.for_loss().mask.dtype == torch.int64


def test_each_field_is_padded_with_its_own_number():
    target = ObjectTarget(np.ones((1, 1), np.uint8), np.full((1, 1), 70_000, np.int32)).pad((1, 2))
    assert target.mask.tolist() == [[1, 255]]
    assert target.ids.tolist() == [[70_000, 0]]
