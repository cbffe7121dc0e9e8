"""Paired augmentation, done on the device: of images and of volumes, each by its own augmentation.

An `Augmentation` is sampled from the key of its sample alone: the same in any batch, process or device.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.loading.augmentation import ELASTIC, Augmentation
from data_utils.loading.noise import unit_noise
from runtime.device import upload, upload_like
from tasks.target import AnyTarget

INVERSIONS = 60  # steps that invert elastic displacements of points
WIDE_LABEL_TYPE = torch.int32  # labels that float32 may not hold exactly: they are picked by pixel index

Recolor: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def recolor_images(images: Tensor, gain: Tensor, shift: Tensor, fill: Tensor, std: Tensor) -> Tensor:
    """Images with the contrast `gain` about the mean `fill`, and the brightness `shift` in standard deviations."""
    return images * gain + ((1 - gain) * fill + shift * std)


def augment(
    images: Tensor,
    targets: AnyTarget,
    augmentations: Sequence[Augmentation],
    packed_augmentations: Tensor,
    *,
    fill: Tensor,
    std: Tensor,
    recolor: Recolor = recolor_images,
) -> tuple[Tensor, AnyTarget]:
    """Augment a batch, each sample by its own augmentation; the arguments stay as they are, and the host never waits.

    All tensors are on one device. Pixels from outside the image become `fill` and unknown.

    Args:
        images: (B, C, H, W) or (B, C, D, H, W), raw pixel values of any range and type.
        targets: (B, H, W) or (B, D, H, W).
        augmentations: one for each sample, for images of this size.
        packed_augmentations: `pack_augmentations` of them.
        fill, std: (C,) mean and standard deviation of the training images.
        recolor: `recolor_images`, compiled or not.

    Returns:
        Float32 images (float64 stays), and targets in the types that losses take.
    """
    lengths = (len(augmentations), len(packed_augmentations), len(images), targets.shape[0])
    assert len(set(lengths)) == 1, lengths
    images = images.to(torch.promote_types(images.dtype, torch.float32))
    if all(augmentation.is_identity for augmentation in augmentations):
        return images, targets.for_loss()
    channels = images.shape[1]
    size = images.shape[2:]
    per_pixel = (1,) * len(size)
    fill = fill.to(images.dtype).view(-1, *per_pixel)
    std = std.to(images.dtype).view(-1, *per_pixel)
    columns = packed_augmentations.to(images.dtype).view(*packed_augmentations.shape, *per_pixel)
    matrix, elastic, gain, shift = columns.split([len(size) ** 2, math.prod(ELASTIC), channels, channels], dim=1)

    is_warped = any(augmentation.elastic is not None for augmentation in augmentations)
    grid = _sampling_grid(matrix, elastic.reshape(-1, *ELASTIC) if is_warped else None, size)
    outside = (grid.abs() > 1).any(dim=-1)
    new_images = _sample(images, grid, "bilinear")
    for i, augmentation in enumerate(augmentations):
        if not augmentation.moves:  # resampling blurs and rounds: a sample that stays must come back exactly
            new_images[i] = images[i]
    _degrade(new_images, augmentations, fill)
    new_images = recolor(new_images, gain, shift, fill, std)
    for i, augmentation in enumerate(augmentations):
        if augmentation.noise:
            new_images[i] += (
                augmentation.noise * std * unit_noise(images[i].shape, augmentation.noise_seed, images.device)
            )
    new_targets = targets.move(
        move_labels=lambda labels, unknown: _move_labels(labels, unknown, grid, outside),
        move_points=lambda points: _move_points(points, augmentations, size),
    )
    return torch.where(outside[:, None], fill, new_images), new_targets


def _degrade(images: Tensor, augmentations: Sequence[Augmentation], fill: Tensor) -> None:
    """Lower the resolution of images, blur them and curve their values, in place, each by its augmentation."""
    for i, augmentation in enumerate(augmentations):
        if augmentation.resolution:
            images[i] = _lower_resolution(images[i], augmentation.resolution)
        if augmentation.blur:
            images[i] = _blur(images[i], augmentation.blur)
        if augmentation.gamma != 1:
            images[i] = _apply_gamma(images[i], augmentation.gamma, fill)


def _move_labels(labels: Tensor, unknown: int, grid: Tensor, outside: Tensor) -> Tensor:
    """Labels (B, *spatial) picked at the grid's positions, `unknown` where it is `outside`."""
    if labels.dtype == WIDE_LABEL_TYPE:
        new_labels = labels.flatten(1).gather(1, _nearest_pixels(grid).flatten(1)).view_as(labels).long()
    else:
        new_labels = _sample(labels[:, None].to(grid.dtype), grid, "nearest")[:, 0].long()
    return new_labels.masked_fill(outside, unknown)


def _move_points(points: Tensor, augmentations: Sequence[Augmentation], size: Sequence[int]) -> Tensor:
    """The positions of points (B, K, n) in the moved samples.

    `_sampling_grid` maps a position in the moved sample to the position in the original. Its elastic part is inverted
    in steps, each of which leaves a fraction of the error, since displacements change slowly from pixel to pixel.
    """
    matrix = torch.tensor(np.stack([augmentation.matrix for augmentation in augmentations]))
    # inverted on the CPU: on CUDA the host would wait to learn whether it can be
    inverse = upload_like(torch.linalg.inv(matrix).transpose(1, 2), points)
    extent = upload_like(tuple(size), points).flip(0)
    source = points.flip(-1) - (extent - 1) / 2  # (x, y, ...) from the center
    positions = source @ inverse
    if any(augmentation.elastic is not None for augmentation in augmentations):
        elastic = []
        for augmentation in augmentations:
            elastic.append(np.zeros(ELASTIC) if augmentation.elastic is None else augmentation.elastic)
        displacements = upload_like(torch.tensor(np.stack(elastic)), points)
        for _ in range(INVERSIONS):
            # as `F.interpolate` has it with aligned corners: -1 and 1 are the centers of the outermost pixels
            grid = (positions * (2 / (extent - 1).clamp_min(1)))[:, :, None]
            displacement = F.grid_sample(displacements, grid, mode="bicubic", padding_mode="border", align_corners=True)
            positions = (source - displacement[..., 0].transpose(1, 2)) @ inverse
    is_moved = upload(torch.tensor([augmentation.moves for augmentation in augmentations]), points.device)
    positions = (positions + (extent - 1) / 2).flip(-1)
    return torch.where(is_moved[:, None, None], positions, points)


def _nearest_pixels(grid: Tensor) -> Tensor:
    """(B, *size) int64, the number of the pixel of an image that lies nearest to each place of the grid."""
    numbers = torch.zeros(grid.shape[:-1], dtype=torch.int64, device=grid.device)
    for axis, side in enumerate(grid.shape[1:-1]):
        coordinates = grid[..., -1 - axis]  # the last axis of an image comes first in a grid
        pixels = ((coordinates + 1) * (side / 2) - 0.5).round().clamp(0, side - 1)
        numbers = numbers * side + pixels.long()
    return numbers


def _sampling_grid(matrix: Tensor, elastic: Tensor | None, size: Sequence[int]) -> Tensor:
    """Where output pixels come from, (B, *size, n) of n axes as `grid_sample` wants it: (x, y, ...), -1..1 across.

    It is built in pixels from the center, so that a rotation of an image that is not square does not shear it. `matrix`
    (B, n^2, 1, ...) and `elastic` (B, 2, 3, 3) come from `Augmentation`.
    """
    columns = matrix.unflatten(1, (len(size), len(size))).unbind(2)  # (B, n, 1, ...) each
    offsets = []  # pixels from the center along x, y, ..., each in the shape that goes with the axes of an image
    for axis, side in enumerate(reversed(size)):
        offset = torch.arange(side, device=matrix.device, dtype=matrix.dtype) - (side - 1) / 2
        offsets.append(offset.view(-1, *(1,) * axis))
    source = sum(column * offset for column, offset in zip(columns, offsets, strict=True))  # (B, n, *size)
    if elastic is not None:
        # Ronneberger et al. 2015, section 3.1: random displacements on a 3 x 3 grid, bicubic in between.
        source = source + F.interpolate(elastic, tuple(size), mode="bicubic", align_corners=True)
    return torch.stack([source[:, axis] * (2 / side) for axis, side in enumerate(reversed(size))], dim=-1)


def _sample(pictures: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(pictures, grid, mode=mode, padding_mode="border", align_corners=False)


def _lower_resolution(volume: Tensor, shares: Sequence[float]) -> Tensor:
    """A volume (C, D, H, W) as if scanned with a share of its voxels along each axis."""
    coarse_size = [max(1, round(share * side)) for share, side in zip(shares, volume.shape[1:], strict=True)]
    coarse = F.interpolate(volume[None], coarse_size, mode="nearest-exact")
    return F.interpolate(coarse, volume.shape[1:], mode="trilinear")[0]


def _blur(image: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of one image (C, H, W) or (C, D, H, W), edges replicated.

    It is a sum of shifted images, not a convolution: on a GPU that may round to TF32, too coarse for 16-bit pixels.
    """
    radius = math.ceil(3 * sigma)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    for dim in range(1, image.ndim):
        length = image.shape[dim]
        replicated = torch.arange(-radius, length + radius, device=image.device).clamp(0, length - 1)
        padded = image.index_select(dim, replicated)
        image = sum(weight * padded.narrow(dim, k, length) for k, weight in enumerate(weights)) / sum(weights)
    return image


def _apply_gamma(image: Tensor, gamma: float, fill: Tensor) -> Tensor:
    """A power curve over each channel's own range that maps the data's mean `fill` to itself and keeps brightness."""
    spatial = tuple(range(1, image.ndim))
    low = image.amin(spatial, keepdim=True)
    high = image.amax(spatial, keepdim=True)
    extent = (high - low).clamp(min=torch.finfo(image.dtype).tiny)
    middle = fill.clamp(low, high)
    curved = extent * ((image - low) / extent) ** gamma
    curved_middle = extent * ((middle - low) / extent) ** gamma
    return curved - curved_middle + middle
