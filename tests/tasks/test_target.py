"""Targets of images: what padding adds, which rows a strip holds, and how they are copied to a device."""

from types import SimpleNamespace

import numpy as np
import torch

from tasks.classes import ClassTarget


def test_padding_lies_behind_an_image_and_strips_end_before_their_last_row():
    target = ClassTarget(np.arange(9, dtype=np.uint8).reshape(3, 3))
    assert target.padded((4, 4)).mask.tolist() == [[0, 1, 2, 255], [3, 4, 5, 255], [6, 7, 8, 255], [255] * 4]
    batch = ClassTarget.stack([target.map(torch.from_numpy)])
    assert batch.strip(1, 2).mask.tolist() == [[[3, 4, 5]]]
    assert batch.for_loss().mask.dtype == torch.int64


def test_the_host_waits_for_a_copy_unless_it_is_told_not_to():
    waits = []

    def copy(device, non_blocking):
        waits.append((device.type, not non_blocking))

    target = ClassTarget(SimpleNamespace(to=copy))
    target.to(torch.device("cpu"))
    target.to(torch.device("cuda"), non_blocking=True)
    assert waits == [("cpu", True), ("cuda", False)]
