"""The random numbers of augmentation: which they are, their ranges, and which axes of a volume they move."""

import hashlib
from dataclasses import astuple

import numpy as np
import pytest

from data_utils.loading.augmentation import (
    Augmentation,
    Blur,
    Gamma,
    LowerResolution,
    Noise,
    sample_augmentation,
)


def effect_numbers(effect) -> list[float]:
    """All numbers of an effect, in the order of its fields."""
    return np.hstack([np.hstack([value]) for value in astuple(effect)]).tolist()


@pytest.mark.parametrize(
    ("strength", "size", "channels", "spacing", "may_mirror", "expected"),
    [
        ("mirror", (20, 30), 3, None, True, "489788c847b395e6"),
        ("basic", (20, 30), 3, None, True, "952cb6f6eeaf370f"),
        ("basic", (20, 30), 1, None, False, "e85b190c7eddeea5"),
        ("strong", (320, 340), 3, None, True, "ec71565faa61ee32"),
        ("strong", (40, 40), 1, None, True, "3ae62883ee61f556"),
        ("basic", (8, 9, 10), 1, (3.0, 1.0, 1.5), True, "5f90b7ee8c16f69e"),
        ("strong", (8, 9, 10), 2, (3.0, 1.0, 1.5), True, "01df4b2b0b42e3ec"),
        ("strong", (8, 9, 10), 1, (1.0, 1.0, 1.0), False, "1acae89bdbfdf281"),
    ],
    ids=[
        "mirrored",
        "turned",
        "grey",
        "strong",
        "strong grey",
        "volume",
        "volume of two channels",
        "volume not mirrored",
    ],
)
def test_augmentations_are_those_that_older_runs_had(strength, size, channels, spacing, may_mirror, expected):
    rows = []
    for index in range(24):
        options = {"size": size, "channels": channels, "spacing": spacing, "may_mirror": may_mirror}
        augmentation = sample_augmentation((index // 5, index), strength=strength, seed=7, **options)
        elastic = () if augmentation.elastic is None else augmentation.elastic.ravel()
        numbers = [
            *augmentation.matrix.ravel(),
            *elastic,
            *np.atleast_1d(augmentation.gain),
            *np.atleast_1d(augmentation.shift),
        ]
        by_type = {type(effect): effect for effect in augmentation.effects}
        assert [kind for kind in (LowerResolution, Blur, Gamma, Noise) if kind in by_type] == list(by_type)
        numbers += [number for effect in augmentation.effects for number in effect_numbers(effect)]
        rows.append([round(float(number), 7) + 0.0 for number in numbers])  # -0.0 is 0
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == expected


def test_a_half_turn_is_no_mirror_image():
    assert not Augmentation(-np.eye(2)).is_mirrored
    assert Augmentation(np.diag([1.0, -1.0])).is_mirrored
    assert Augmentation(-np.eye(3)).is_mirrored
