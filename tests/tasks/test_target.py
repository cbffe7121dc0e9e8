"""Targets of images: what padding adds, which rows a strip holds, and how they are copied to a device."""

from types import SimpleNamespace

import numpy as np
import torch

from tasks.classes import ClassTarget
from tasks.objects import ObjectTarget


def test_padding_lies_behind_an_image_and_strips_end_before_their_last_row():
    target = ClassTarget(np.arange(9, dtype=np.uint8).reshape(3, 3))
    assert target.padded((4, 4)).mask.tolist() == [[0, 1, 2, 255], [3, 4, 5, 255], [6, 7, 8, 255], [255] * 4]
    batch = ClassTarget.stack([target.map(torch.from_numpy)])
    assert batch.strip(1, 2).mask.tolist() == [[[3, 4, 5]]]
    assert batch.for_loss().mask.dtype == torch.int64


def test_each_field_keeps_its_type_and_has_its_own_number_where_nothing_is_known():
    nothing = ObjectTarget.unknown((2, 3))
    assert (nothing.mask.dtype, nothing.ids.dtype) == (np.uint8, np.int32)
    target = ObjectTarget(np.ones((1, 1), np.uint8), np.full((1, 1), 70_000, np.int32)).padded((1, 2))
    assert (target.mask.tolist(), target.ids.tolist()) == ([[1, 255]], [[70_000, 0]])
    zeros = ObjectTarget.zeros((2, 3, 4), torch.device("meta"))
    assert [(field.dtype, field.shape, field.device.type) for field in zeros.arrays()] == [
        (torch.int64, (2, 3, 4), "meta")
    ] * 2


def test_the_host_waits_for_a_copy_unless_it_is_told_not_to():
    waits = []

    def copy(device, non_blocking):
        waits.append((device.type, not non_blocking))

    target = ClassTarget(SimpleNamespace(to=copy))
    target.to(torch.device("cpu"))
    target.to(torch.device("cuda"), non_blocking=True)
    assert waits == [("cpu", True), ("cuda", False)]
