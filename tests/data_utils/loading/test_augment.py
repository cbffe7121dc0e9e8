"""Augmentation: images and masks are changed alike, by random numbers that name the sample."""

import math

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from data_utils.loading.augmentation import (
    STRENGTHS,
    Augmentation,
    Blur,
    Gamma,
    LowerResolution,
    Noise,
    augment,
    pack_augmentations,
    sample_augmentation,
)
from tasks.classes.target import ClassTarget

KEYS = [(0, 3), (0, 4), (1, 3), (2, 9), (2, 10), (7, 0), (7, 1), (9, 123456)]


def batch(size=(24, 32), channels=3, count=8, dtype=torch.uint8, high=256):
    """Random images, and masks of the classes 0, 3 and 5 with some ignored pixels."""
    generator = torch.Generator().manual_seed(1)
    images = (torch.rand(count, channels, *size, generator=generator) * high).to(dtype)
    choice = torch.randint(4, (count, *size), generator=generator)
    return images, torch.tensor([0, 3, 5, 255], dtype=torch.uint8)[choice]


def apply(images, masks, augmentations, fill, std):
    """Given augmentations, as precise as the images are."""
    numbers = pack_augmentations(augmentations, images.shape[1], torch.promote_types(images.dtype, torch.float32))
    new_images, targets = augment(
        images, ClassTarget(masks), augmentations, numbers.to(images.device), fill=fill, std=std
    )
    return new_images, targets.mask


def run(images, masks, keys=KEYS, strength="strong", seed=0, scale=1.0):
    size, channels = tuple(images.shape[2:]), images.shape[1]
    augmentations = [
        sample_augmentation(key, strength=strength, seed=seed, size=size, channels=channels) for key in keys
    ]
    fill, std = scale * (100 + 5 * torch.arange(channels)), scale * torch.full((channels,), 40.0)
    return apply(images, masks, augmentations, fill.to(images.device), std.to(images.device))


def warp(images, masks, angle=0.0, zoom=1.0, **options):
    cos, sin = math.cos(math.radians(angle)) / zoom, math.sin(math.radians(angle)) / zoom
    augmentations = [Augmentation(np.array([[cos, sin], [-sin, cos]]), **options)] * len(images)
    zero = torch.zeros(images.shape[1])
    return apply(images, masks, augmentations, zero, zero + 1)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (33, 47)])
def test_a_sample_does_not_depend_on_its_batch(strength, size):
    images, masks = batch(size)
    together = run(images, masks, strength=strength)
    for i, key in enumerate(KEYS):
        alone = run(images[i : i + 1], masks[i : i + 1], [key], strength)
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])
    assert set(together[1].unique().tolist()) <= {0, 3, 5, 255}


@pytest.mark.parametrize("strength", ["basic", "strong"])
def test_the_global_generators_neither_matter_nor_move(strength):
    images, masks = batch(count=1)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run(images, masks, [(4, 2)], strength)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(run(images, masks, [(4, 2)], strength)[0], first[0])


def test_a_sample_whose_augmentation_is_the_identity_comes_back_exactly():
    images, masks = batch(count=3, dtype=torch.float32, high=65535)
    masks = masks.long()
    turned = Augmentation(np.array([[0.0, -1.0], [1.0, 0.0]]), gain=1.3, shift=2.0, effects=(Blur(1.0), Noise(1.0, 0)))
    statistic = torch.full((3,), 777.7)
    new_images, new_masks = apply(
        images, masks, [Augmentation(), turned, Augmentation(shift=1.0)], statistic, statistic
    )
    assert torch.equal(new_images[0], images[0])
    assert torch.equal(new_masks[0], masks[0])
    assert not torch.equal(new_images[1], images[1])
    assert torch.equal(new_images[2], images[2] + 777.7)


def test_flips_and_quarter_turns_move_pixels_without_mixing_them():
    images, masks = batch((20, 20), dtype=torch.float64)
    masks = masks.long()
    expected = {
        (-1, 0, 0, 1): lambda x: x.flip(-1),
        (1, 0, 0, -1): lambda x: x.flip(-2),
        (0, 1, -1, 0): lambda x: x.rot90(-1, (-2, -1)),
    }
    for matrix, move in expected.items():
        augmentations = [Augmentation(np.array(matrix, dtype=float).reshape(2, 2))] * len(images)
        new_images, new_masks = apply(images, masks, augmentations, torch.zeros(3), torch.ones(3))
        # float64 rounding of the coordinates, times differences of up to 256 between neighbors: measured 4e-13
        assert torch.allclose(new_images, move(images), rtol=0, atol=1e-11)
        assert torch.equal(new_masks, move(masks))


@pytest.mark.parametrize("angle", [30, 90, 135])
def test_a_rotation_does_not_shear_an_image_that_is_not_square(angle):
    y, x = torch.meshgrid(torch.arange(80.0) - 39.5, torch.arange(200.0) - 99.5, indexing="ij")
    disk = (x**2 + y**2 < 30**2).long()
    bar = ((x.abs() < 30) & (y.abs() < 3)).long()
    _, (new_disk, new_bar) = warp(torch.zeros(2, 1, 80, 200), torch.stack([disk, bar]), angle)
    ignored = new_disk == 255
    assert not ignored[disk == 1].any()  # it lies inside at every angle
    # the pixels on its rim, 190 long, may fall either way: measured 56
    assert ((new_disk != disk) & ~ignored).sum() < 80
    # Clockwise on the screen, where y points down.
    along = x * math.cos(math.radians(angle)) + y * math.sin(math.radians(angle))
    across = y * math.cos(math.radians(angle)) - x * math.sin(math.radians(angle))
    turned = ((along.abs() < 30) & (across.abs() < 3)).long()
    assert turned[~ignored].sum() > 300
    assert torch.equal(new_bar[~ignored], turned[~ignored])


def test_zoom_changes_size_about_the_center():
    mask = torch.zeros(1, 40, 60, dtype=torch.int64)
    mask[:, 15:25, 25:35] = 1
    _, larger = warp(torch.zeros(1, 1, 40, 60), mask, zoom=2.0)
    expected = torch.zeros_like(mask)
    expected[:, 10:30, 20:40] = 1
    assert torch.equal(larger, expected)
    _, smaller = warp(torch.zeros(1, 1, 40, 60), mask, zoom=0.5)
    assert (smaller == 1).sum() == 25
    assert (smaller == 255).sum() == 40 * 60 - 20 * 30


@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
def test_image_and_mask_stay_aligned(size):
    """The image shows the mask, in blocks; after the warp it still does, away from the blocks' edges."""
    blocks = torch.randint(2, (8, 1, 4, 4), generator=torch.Generator().manual_seed(0)).float()
    masks = torch.nn.functional.interpolate(blocks, size)[:, 0].long()
    images = masks[:, None].double()
    for i in range(8):
        d = sample_augmentation((1, i), strength="strong", seed=0, size=size, channels=1)
        d = Augmentation(d.matrix, d.elastic)
        new_images, new_masks = apply(images[i : i + 1], masks[i : i + 1], [d], torch.full((1,), 9.0), torch.ones(1))
        inside = new_masks != 255
        assert torch.equal(new_images[:, 0][~inside], torch.full_like(new_images[:, 0][~inside], 9.0))
        # Bilinear and nearest sampling agree on which of two values is closer, but at corners: measured 0.9995.
        assert ((new_images[:, 0] > 0.5) == (new_masks == 1))[inside].float().mean() > 0.999
        assert inside.float().mean() > 0.3
        assert 0.1 < (new_masks == 1)[inside].float().mean() < 0.9


@pytest.mark.parametrize("strength", ["basic", "strong"])
def test_outside_is_exactly_the_fill_and_ignored(strength):
    images, masks = torch.full((8, 3, 40, 50), 200.0), torch.ones(8, 40, 50, dtype=torch.int64)
    new_images, new_masks = run(images, masks, strength=strength)
    outside = new_masks == 255
    fill = torch.tensor([100.0, 105.0, 110.0])
    assert outside.any()
    assert not outside.all()
    assert (new_images.permute(0, 2, 3, 1)[outside] == fill).all()
    assert (new_images.permute(0, 2, 3, 1)[~outside] != fill).any(dim=1).all()


def test_outside_of_a_volume_is_also_before_and_behind_it():
    images, masks = torch.full((1, 1, 8, 4, 5), 7.0), torch.ones(1, 8, 4, 5).long()
    moved, labels = apply(images, masks, [Augmentation(np.diag([1.0, 1.0, 2.0]))], torch.tensor([3.0]), torch.ones(1))
    assert labels[0, :, 1, 1].tolist() == [255, 255, 1, 1, 1, 1, 255, 255]
    assert moved[0, 0, :, 1, 1].tolist() == [3, 3, 7, 7, 7, 7, 3, 3]


@pytest.mark.parametrize("strength", ["basic", "strong"])
@pytest.mark.parametrize("size", [(1, 40), (40, 1), (1, 1), (3, 2)])
def test_tiny_images_pass(strength, size):
    images, masks = batch(size)
    new_images, new_masks = run(images, masks, strength=strength)
    assert new_images.shape == images.shape
    assert new_images.isfinite().all()
    assert new_masks.shape == masks.shape


def test_elastic_deformation_moves_as_far_as_drawn():
    """One displaced corner of the coarse grid moves the picture there by that much, and nothing far away."""
    elastic = np.zeros((2, 3, 3))
    elastic[0, 0, 0] = 4.0
    x = torch.arange(64.0, dtype=torch.float64).expand(1, 1, 64, 64)
    moved, _ = apply(x, torch.zeros(1, 64, 64).long(), [Augmentation(elastic=elastic)], torch.zeros(1), torch.ones(1))
    assert moved[0, 0, 0, 0].item() == pytest.approx(4.0, abs=1e-12)  # float64
    # the bicubic kernel's negative lobe reaches there: 0.12 x 0.12 x 4 at most, measured 0.0494
    assert torch.allclose(moved[0, 0, 40:, 40:], x[0, 0, 40:, 40:], rtol=0, atol=0.06)


@pytest.mark.parametrize(
    ("gain", "shift", "changed"),
    [
        (1.5, 0.0, [85.0, 100.0, 130.0]),  # contrast is about the mean
        (1.0, 0.1, [94.0, 104.0, 124.0]),  # brightness is in standard deviations
        (1.5, 0.1, [89.0, 104.0, 134.0]),
    ],
    ids=["contrast", "brightness", "both"],
)
def test_contrast_or_brightness_follows_the_statistics_of_the_data(gain, shift, changed):
    images = torch.tensor([90.0, 100.0, 120.0]).view(1, 1, 1, 3)
    augmentations = [Augmentation(gain=np.array([gain]), shift=np.array([shift]))]
    new_images, _ = apply(
        images, torch.zeros(1, 1, 3).long(), augmentations, torch.tensor([100.0]), torch.tensor([40.0])
    )
    assert new_images.flatten().tolist() == changed


def test_blur_is_gaussian():
    image = torch.zeros(1, 1, 21, 31, dtype=torch.float64)
    image[..., 10, 15] = 1.0
    blurred, _ = warp(image, torch.zeros(1, 21, 31).long(), effects=(Blur(1.2),))
    assert blurred.sum().item() == pytest.approx(1.0, rel=1e-12)  # float64
    spread = (blurred[0, 0].sum(dim=0) * (torch.arange(31) - 15) ** 2).sum().item()
    assert spread == pytest.approx(1.2**2, rel=0.01)  # the kernel is cut off: measured 0.2%


def test_blur_continues_the_edges():
    step = torch.tensor([0.0] * 6 + [9.0] * 6).expand(1, 1, 2, 12)
    blurred, _ = warp(step, torch.zeros(1, 2, 12).long(), effects=(Blur(1.0),))
    assert blurred[..., :3].tolist() == [[[[0.0] * 3] * 2]]
    assert torch.allclose(blurred[..., -3:], torch.tensor(9.0))


class OnMetaDeviceOnly(TorchFunctionMode):
    """Raises where a tensor is made from the host's values or is elsewhere; those on the meta device have no values."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if func in (torch.tensor, torch.as_tensor, torch.asarray) or not all(x.is_meta for x in tensors):
            raise AssertionError(f"{func} copies from the host")
        return result


@pytest.mark.parametrize(("size", "spacing"), [((64, 96), None), ((16, 24, 32), (1.0, 1.0, 1.0))])
def test_the_host_does_not_read_values_of_the_device(size, spacing):
    images, masks = batch(size)
    how = {"strength": "strong", "seed": 0, "size": size, "channels": 3, "spacing": spacing}
    augmentations = [sample_augmentation((0, i), **how) for i in range(7)] + [Augmentation(np.eye(len(size)))]
    kinds = {type(effect) for d in augmentations for effect in d.effects}
    assert kinds == ({Blur, Noise, Gamma, LowerResolution} if spacing else {Blur, Noise})
    assert spacing or any(d.elastic is not None for d in augmentations)
    numbers, statistic = pack_augmentations(augmentations, 3).to("meta"), torch.ones(3, device="meta")
    images, masks = images.to("meta"), masks.to("meta")
    with OnMetaDeviceOnly():
        new_images, targets = augment(images, ClassTarget(masks), augmentations, numbers, fill=statistic, std=statistic)
    assert new_images.shape == images.shape
    assert targets.shape == masks.shape
