"""Augmentation of volumes: turns in mm, effects that images do not have, and the same for any batch."""

import numpy as np
import pytest
import torch

from data_utils.loading.augmentation import (
    STRENGTHS,
    Augmentation,
    Gamma,
    LowerResolution,
    augment,
    pack_augmentations,
    sample_augmentation,
)
from tasks.classes.target import ClassTarget

KEYS = [(0, 3), (0, 4), (1, 3), (2, 9), (7, 0), (9, 123456)]
SIZE = (12, 20, 16)
CUBIC = (1.0, 1.0, 1.0)
THICK = (5.0, 1.0, 1.0)  # (z, y, x) in mm


def batch(size=SIZE, channels=2, count=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, channels, *size, generator=generator).to(dtype)
    choice = torch.randint(3, (count, *size), generator=generator)
    return images, torch.tensor([0, 3, 255], dtype=torch.uint8)[choice]


def volume_augmentation(key, strength="strong", spacing=CUBIC, size=SIZE, channels=2, seed=0) -> Augmentation:
    return sample_augmentation(key, strength=strength, seed=seed, size=size, channels=channels, spacing=spacing)


def apply(images, masks, augmentations, fill=0.0, std=1.0):
    numbers = pack_augmentations(augmentations, images.shape[1], images.dtype)
    statistics = {"fill": torch.full((images.shape[1],), fill), "std": torch.full((images.shape[1],), std)}
    new_images, targets = augment(images, ClassTarget(masks), augmentations, numbers, **statistics)
    return new_images, targets.mask


def ball(size, radius, spacing=CUBIC) -> torch.Tensor:
    """(1, *size) int64: 1 within `radius` mm of the center."""
    axes = [(torch.arange(n) - (n - 1) / 2) * mm for n, mm in zip(size, spacing, strict=True)]
    return (sum(axis**2 for axis in torch.meshgrid(*axes, indexing="ij")) < radius**2).long()[None]


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("spacing", [CUBIC, THICK])
def test_a_volume_does_not_depend_on_its_batch(strength, spacing):
    images, masks = batch()
    augmentations = [volume_augmentation(key, strength, spacing) for key in KEYS]
    together = apply(images, masks, augmentations)
    for i, key in enumerate(KEYS):
        alone = apply(images[i : i + 1], masks[i : i + 1], [volume_augmentation(key, strength, spacing)])
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])
    assert set(together[1].unique().tolist()) <= {0, 3, 255}
    assert together[0].isfinite().all()
    assert torch.equal(together[0], images) == (strength == "none")


@pytest.mark.parametrize(("axis", "dim"), [(0, -1), (1, -2), (2, -3)])
def test_mirrors_move_voxels_without_mixing_them(axis, dim):
    images, masks = batch(dtype=torch.float64)
    matrix = np.eye(3)
    matrix[axis, axis] = -1.0
    new_images, new_masks = apply(images, masks, [Augmentation(matrix)] * len(images))
    # float64 rounding of the coordinates, times differences of up to 8 between neighbors: measured 6e-15
    assert torch.allclose(new_images, images.flip(dim), rtol=0, atol=1e-12)
    assert torch.equal(new_masks, masks.long().flip(dim))


ALL_PAIRS = {(0, 1), (0, 2), (1, 2)}
TURNED_PAIRS = {  # spacing: pairs of the axes (x, y, z) that a volume turns between
    CUBIC: ALL_PAIRS,
    THICK: {(0, 1)},
    (1.0, 1.0, 5.0): {(1, 2)},
    (1.0, 5.0, 1.0): {(0, 2)},
    (1.0, 3.0, 9.0): set(),
    (2.0, 1.0, 1.0): ALL_PAIRS,
}


@pytest.mark.parametrize("spacing", TURNED_PAIRS, ids=str)
@pytest.mark.parametrize("strength", ["basic", "strong"])
def test_volumes_turn_rigidly_in_mm(spacing, strength):
    mm = np.array(spacing[::-1])
    for number in range(200):
        matrix = volume_augmentation((0, number), strength, spacing).matrix
        zoom = np.abs(np.linalg.det(matrix)) ** (-1 / 3)
        rigid = zoom * mm[:, None] * matrix / mm
        np.testing.assert_allclose(rigid @ rigid.T, np.eye(3), atol=1e-12)


def test_a_ball_in_mm_stays_a_ball():
    size, spacing = (24, 48, 48), (2.0, 1.0, 1.0)
    mask = ball(size, 18, spacing)
    turned = volume_augmentation((0, 5), "strong", spacing, size)
    rigid = turned.matrix * abs(np.linalg.det(turned.matrix)) ** (-1 / 3)
    assert np.abs(rigid - np.diag(rigid.diagonal())).max() > 0.2
    _, new_mask = apply(torch.zeros(1, 1, *size), mask, [Augmentation(rigid)])
    assert not new_mask[mask == 1].eq(255).any()
    # of 12,312 voxels those on the rim may fall either way: measured 692; of a turn in voxels 4,334
    assert ((new_mask == 1) != (mask == 1)).sum() < 900


@pytest.mark.parametrize("spacing", [CUBIC, THICK])
def test_a_volume_and_its_mask_stay_aligned(spacing):
    size = (24, 32, 40)
    off_center = torch.roll(ball(size, 8), (3, -4, 5), dims=(1, 2, 3))
    image = off_center[:, None].double()
    for i in range(8):
        moved = Augmentation(volume_augmentation((1, i), spacing=spacing).matrix)
        new_image, new_mask = apply(image, off_center, [moved], fill=9.0)
        inside = new_mask != 255
        assert (new_image[:, 0][~inside] == 9.0).all()
        # trilinear and nearest sampling differ on the rim only: measured 0.993
        assert ((new_image[:, 0] > 0.5) == (new_mask == 1))[inside].float().mean() > 0.99
        assert 1000 < (new_mask == 1).sum() < 4500


@pytest.mark.parametrize("gamma", [0.7, 1.5])
def test_gamma_bends_each_channels_own_range_about_the_datas_mean(gamma):
    values = torch.linspace(-2.0, 6.0, 9, dtype=torch.float64)
    image = torch.stack([values, 10 * values]).view(1, 2, 1, 3, 3)
    bent, _ = apply(image, torch.zeros(1, 1, 3, 3), [Augmentation(np.eye(3), effects=(Gamma(gamma),))])
    low, high = bent[0].flatten(1)[:, 0], bent[0].flatten(1)[:, -1]
    assert torch.allclose(high - low, torch.tensor([8.0, 80.0], dtype=torch.float64))
    assert torch.allclose(bent[0, 1], 10 * bent[0, 0])
    curve = 8 * ((values + 2) / 8) ** gamma
    assert torch.allclose(bent[0, 0].flatten(), curve - curve[2])  # values[2] = 0, the mean


def test_a_low_resolution_has_as_few_values_along_an_axis_as_were_kept():
    image = torch.arange(16.0).expand(1, 1, 4, 4, 16)
    coarse, _ = apply(
        image, torch.zeros(1, 4, 4, 16), [Augmentation(np.eye(3), effects=(LowerResolution((1.0, 1.0, 0.25)),))]
    )
    assert coarse[0, 0, 0, 0].tolist() == [2, 2, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14, 14]
