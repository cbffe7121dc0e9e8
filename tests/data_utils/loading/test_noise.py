"""Noise of augmentation: its distribution, and the exact numbers that every device gives."""

import numpy as np
import pytest
import torch

from data_utils.loading.noise import unit_noise

CPU = torch.device("cpu")
SHAPE = (3, 400, 500)  # more than one chunk of a CPU


@pytest.fixture(scope="module")
def long_noise():
    return unit_noise(SHAPE, 2**62 + 12345, CPU)


@pytest.mark.parametrize(
    ("power", "mean", "tolerance"), [(1, 0, 0.0052), (2, 1, 0.0068), (3, 0, 0.017), (4, 2.7, 0.036)]
)
def test_noise_is_nearly_gaussian_with_variance_1(long_noise, power, mean, tolerance):
    # four standard deviations of 600,000 draws, whose powers have 1, 1.3, 3.3 and 7.0
    assert abs((long_noise.double() ** power).mean() - mean) < tolerance


def correlation(a, b):
    """The correlation in standard deviations of that of independent noise."""
    return abs((a * b).mean().item()) * a.numel() ** 0.5


@pytest.fixture(scope="module")
def noise():
    return unit_noise(SHAPE, 7, CPU)


@pytest.mark.parametrize("seed", [0, 6, 8, 7 + 2**32, 7 + 2**62])  # one bit apart
def test_noise_of_other_seeds_is_independent(noise, seed):
    other = unit_noise(SHAPE, seed, CPU)
    assert correlation(noise, other) < 4
    assert correlation(noise.flatten()[1:], other.flatten()[:-1]) < 4
    assert (noise == other).float().mean() < 0.01  # chance alone: 0.0019


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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    noise = unit_noise((2, 3, 4), 123, torch.device(device)).cpu()
    assert torch.equal(noise.flatten(), expected.float() * 21845**-0.5)
    large = unit_noise(SHAPE, 123, torch.device(device)).cpu().flatten()
    assert torch.equal(large[:24], noise.flatten())
    last = SHAPE[0] * SHAPE[1] * SHAPE[2] - 1
    assert large[last] == torch.tensor(element(last)).float() * 21845**-0.5
