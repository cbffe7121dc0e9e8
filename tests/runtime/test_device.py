"""Numbers that a device computes, read late and in one wait."""

import torch

from runtime.device import LateRead, download


def test_numbers_that_are_read_late_keep_their_order():
    numbers = [[1, 2], [3, 4], [5, 16_777_217]]  # the last is none of float32
    tensors = [torch.tensor(pair, dtype=torch.float64) for pair in numbers]
    copies = download(dict(zip("abc", tensors, strict=True)))
    assert [copies[name].tolist() for name in "abc"] == numbers
    assert download({}) == {}
    assert LateRead.read([LateRead(tensor) for tensor in tensors]) == numbers
    assert LateRead.read([]) == []
