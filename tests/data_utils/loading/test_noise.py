"""Noise of augmentation: the exact numbers that every device gives."""

import numpy as np
import torch

from data_utils.loading.noise import unit_noise

CPU = torch.device("cpu")
SHAPE = (3, 400, 500)  # more than one chunk of a CPU


def test_noise_is_the_same_on_every_device_and_at_every_size():
    """The definition once more, in Python's integers, and its first numbers."""
    first, second = np.random.SeedSequence(123).generate_state(2).tolist()

    def element(index):
        x = first % 2**30 + index
        x = (x ^ x >> 17) * 0xED5AD4BB % 2**32 ^ second
        x = (x ^ x >> 11) * 0xAC4C1B51 % 2**32
        x = (x ^ x >> 15) * 0x31848BAB % 2**32
        return sum((x ^ x >> 14).to_bytes(4, "little")) - 510

    expected = torch.tensor([element(i) for i in range(24)], dtype=torch.int32)
    assert expected[:12].tolist() == [-117, -48, 59, 75, -29, 119, 67, -184, 277, -34, -44, 62]
    noise = unit_noise((2, 3, 4), 123, CPU)
    assert torch.equal(noise.flatten(), expected.float() * 21845**-0.5)
    large = unit_noise(SHAPE, 123, CPU).flatten()
    assert torch.equal(large[:24], noise.flatten())
    last = SHAPE[0] * SHAPE[1] * SHAPE[2] - 1
    assert large[last] == torch.tensor(element(last)).float() * 21845**-0.5
