"""Paired augmentation of images and of volumes: sampled in the loader's processes, done on the device.

An `Augmentation` is sampled from the key (seed, epoch, sample) of its sample alone: the same in any batch, process or
device. A further change of pixel values is an `Effect` of its own, which `sample_augmentation` draws.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.config import STRENGTHS
from data_utils.loading.noise import unit_noise
from data_utils.target import AnyTarget
from runtime.device import upload, upload_like

ELASTIC = (2, 3, 3)
ELASTIC_PIXELS = 10.0  # standard deviation of elastic displacements: the paper's, whose images are 512 x 512
SIMILAR_SPACING_FACTOR = 2  # spacings within this factor: a turn from one axis into the other keeps the detail of both

INVERSIONS = 60  # steps that invert elastic displacements of points
WIDE_LABEL_TYPE = torch.int32  # labels that float32 may not hold exactly: they are picked by pixel index


class Effect(ABC):
    """A change of the values of one sample's pixels, on the device, that leaves them in their places."""

    follows_recoloring: ClassVar[bool] = False  # whether contrast and brightness change before it; else after it

    @abstractmethod
    def apply(self, image: Tensor, fill: Tensor, std: Tensor) -> Tensor:
        """The changed sample (C, *spatial); `fill` and `std` (C, 1, ...) are those of the training images."""


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of one sample. The default is the identity for an image; for a volume it needs `np.eye(3)`.

    Args:
        matrix: (2, 2), maps the offset (x, y) of an output pixel from the center, in pixels, to the offset of the input
            point that the pixel shows; for volumes (3, 3), (x, y, z).
        elastic: (2, 3, 3), displacements (x, y) in pixels on a coarse grid; of images only.
        gain: (C,), the factor of the contrast about the data's mean.
        shift: (C,), the brightness in standard deviations of the data.
        effects: what else changes pixel values, in this order.
    """

    matrix: np.ndarray = field(default_factory=lambda: np.eye(2))
    elastic: np.ndarray | None = None
    gain: np.ndarray | float = 1.0
    shift: np.ndarray | float = 0.0
    effects: tuple[Effect, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return self.elastic is not None or bool((self.matrix != np.eye(len(self.matrix))).any())

    @property
    def displacements(self) -> np.ndarray:
        """The elastic displacements; zeros where there are none."""
        return np.zeros(ELASTIC) if self.elastic is None else self.elastic

    @property
    def is_mirrored(self) -> bool:
        """Whether the sample becomes its mirror image: left and right change places."""
        return bool(np.linalg.det(self.matrix) < 0)

    @property
    def is_identity(self) -> bool:
        """Whether nothing happens."""
        is_recolored = np.any(self.gain != 1) or np.any(self.shift)
        return not (self.moves or is_recolored or self.effects)


@dataclass(frozen=True)
class LowerResolution(Effect):
    """A volume as if scanned with a share of its voxels along each of (z, y, x)."""

    shares: tuple[float, ...]

    def apply(self, image: Tensor, fill: Tensor, std: Tensor) -> Tensor:
        size = image.shape[1:]
        coarse_size = [max(1, round(share * side)) for share, side in zip(self.shares, size, strict=True)]
        coarse = F.interpolate(image[None], coarse_size, mode="nearest-exact")
        return F.interpolate(coarse, size, mode="trilinear")[0]


@dataclass(frozen=True)
class Blur(Effect):
    """Gaussian blur of `sigma` pixels, edges replicated.

    It is a sum of shifted images, not a convolution: on a GPU that may round to TF32, too coarse for 16-bit pixels.
    """

    sigma: float

    def apply(self, image: Tensor, fill: Tensor, std: Tensor) -> Tensor:
        radius = math.ceil(3 * self.sigma)
        weights = [math.exp(-0.5 * (k / self.sigma) ** 2) for k in range(-radius, radius + 1)]
        for dim in range(1, image.ndim):
            length = image.shape[dim]
            replicated = torch.arange(-radius, length + radius, device=image.device).clamp(0, length - 1)
            padded = image.index_select(dim, replicated)
            image = sum(weight * padded.narrow(dim, k, length) for k, weight in enumerate(weights)) / sum(weights)
        return image


@dataclass(frozen=True)
class Gamma(Effect):
    """A power curve over each channel's own range that maps the data's mean to itself and keeps brightness."""

    exponent: float

    def apply(self, image: Tensor, fill: Tensor, std: Tensor) -> Tensor:
        spatial = tuple(range(1, image.ndim))
        low = image.amin(spatial, keepdim=True)
        high = image.amax(spatial, keepdim=True)
        extent = (high - low).clamp(min=torch.finfo(image.dtype).tiny)
        middle = fill.clamp(low, high)
        curved = extent * ((image - low) / extent) ** self.exponent
        curved_middle = extent * ((middle - low) / extent) ** self.exponent
        return curved - curved_middle + middle


@dataclass(frozen=True)
class Noise(Effect):
    """Gaussian noise of `sigma` standard deviations of the data."""

    follows_recoloring = True

    sigma: float
    seed: int

    def apply(self, image: Tensor, fill: Tensor, std: Tensor) -> Tensor:
        return image + self.sigma * std * unit_noise(image.shape, self.seed, image.device)


def sample_augmentation(
    key: tuple[int, int],
    *,
    strength: str,
    seed: int,
    size: Sequence[int],
    channels: int,
    spacing: Sequence[float] | None = None,
    may_mirror: bool = True,
) -> Augmentation:
    """The augmentation of the sample `key` = (epoch, sample).

    Images have the size (H, W); volumes (D, H, W), and a spacing (z, y, x) in mm. Unless it `may_mirror`, nothing
    is mirrored.
    """
    if strength not in STRENGTHS:
        raise ValueError(f"augmentation strength {strength!r} is none of {', '.join(STRENGTHS)}")
    if strength == "none":
        return Augmentation(np.eye(len(size)))
    rng = np.random.default_rng([seed, *key])
    # all numbers are drawn every time: no effect changes the numbers of the others
    # whether each of these effects happens
    mirror_x, mirror_y, turn, warp, blur, noise = rng.random(6)
    quarter_turns = int(rng.integers(4))
    noise_seed = int(rng.integers(2**63))
    # how strong each of them is
    tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma = rng.uniform(-1, 1, 6)
    displacement = rng.standard_normal(ELASTIC)
    channel_contrast, channel_brightness = rng.uniform(-1, 1, (2, channels))

    mirrors = np.where(np.array([mirror_x, mirror_y]) < 0.5, -1.0, 1.0)
    if not may_mirror:
        mirrors[:] = 1.0
    if strength == "mirror":
        matrix = np.eye(len(size))
        matrix[0, 0] = mirrors[0]  # left and right
        return Augmentation(matrix)
    is_strong = strength == "strong"
    scale = 1.25**log_scale
    if spacing is not None:
        augmentation = _volume_augmentation(
            np.random.default_rng([seed, *key, 3]), is_strong, scale, spacing, may_mirror
        )
    elif is_strong:
        angle = math.pi * tilt if turn < 0.5 else 0.0
        if size[0] == size[1]:
            angle += math.pi / 2 * quarter_turns
        elastic = None
        if warp < 0.5:  # by less in small images, which it would tear apart
            elastic = min(ELASTIC_PIXELS, min(size) / 32) * displacement
        augmentation = Augmentation(_linear_map(np.diag(mirrors), angle, scale), elastic)
    else:
        mirrors[1] = 1.0
        augmentation = Augmentation(_linear_map(np.diag(mirrors), math.radians(15) * tilt, scale))
    gain = np.full(channels, 1 + 0.2 * contrast)
    shift = np.full(channels, 0.2 * brightness)
    if not is_strong:
        return replace(augmentation, gain=gain, shift=shift)
    effects = list(augmentation.effects)
    if blur < 0.2:
        effects.insert(len(effects) - 1, Blur(1.0 + 0.5 * blur_sigma))  # before the gamma of a volume
    if noise < 0.3:
        effects.append(Noise(0.15 + 0.1 * noise_sigma, noise_seed))
    return replace(
        augmentation,
        gain=gain * (1 + 0.1 * channel_contrast),
        shift=shift + 0.1 * channel_brightness,
        effects=tuple(effects),
    )


def _linear_map(flip: np.ndarray, angle: float, scale: float) -> np.ndarray:
    """(2, 2), from output to input: undo the zoom by `scale` and the turn by `angle` radians, then flip."""
    cos = math.cos(angle) / scale
    sin = math.sin(angle) / scale
    return flip @ np.array([[cos, sin], [-sin, cos]])


def _volume_augmentation(
    rng: np.random.Generator, is_strong: bool, scale: float, spacing: Sequence[float], may_mirror: bool
) -> Augmentation:
    """Mirrors, turns about three axes and a zoom by `scale`, rigid in mm; gamma; one time in four a low resolution.

    Axes much coarser than the finest (thick slices) stay as coarse as they are.
    """
    mirrors = rng.random(3)
    lower_resolution = rng.random()
    tilts = rng.uniform(-1, 1, 3)
    shares = rng.uniform(0.5, 1, 3)
    log_gamma = rng.uniform(math.log(0.7), math.log(1.5))

    flips = np.where(mirrors < 0.5, -1.0, 1.0)
    if not is_strong:
        flips[1:] = 1.0  # left and right only, as in images
    if not may_mirror:
        flips[:] = 1.0
    most_degrees = 30 if is_strong else 15
    turns = _turns(math.radians(most_degrees) * tilts, np.array(spacing[::-1], dtype=float))
    shares[np.array(spacing) > SIMILAR_SPACING_FACTOR * min(spacing)] = 1.0
    effects: list[Effect] = [Gamma(math.exp(log_gamma))]
    if lower_resolution < 0.25:
        effects.insert(0, LowerResolution(tuple(shares.tolist())))
    return Augmentation(flips[:, None] * turns / scale, effects=tuple(effects))


def _turns(angles: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """(3, 3) on offsets (x, y, z) in voxels of `spacing` (x, y, z): turns about x, y and z by `angles` in radians.

    There is a turn about an axis only where the two others, which it mixes, have spacings that are alike.
    """
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        first = (axis + 1) % 3
        second = (axis + 2) % 3
        if max(spacing[[first, second]]) <= SIMILAR_SPACING_FACTOR * min(spacing[[first, second]]):
            turn = np.eye(3)
            turn[first, first] = turn[second, second] = math.cos(angle)
            turn[second, first] = math.sin(angle)
            turn[first, second] = -turn[second, first]
            matrix = turn @ matrix
    return matrix * spacing / spacing[:, None]


def pack_augmentations(
    augmentations: Sequence[Augmentation], channels: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """What `augment` needs of augmentations on the device: (B, n^2 + 18 + 2C) numbers of samples with n axes.

    Each row holds the matrix, the elastic displacements, gain and shift of a sample.
    """
    rows = []
    for augmentation in augmentations:
        gain = np.broadcast_to(augmentation.gain, channels)
        shift = np.broadcast_to(augmentation.shift, channels)
        rows.append(np.concatenate([augmentation.matrix.ravel(), augmentation.displacements.ravel(), gain, shift]))
    return torch.tensor(np.array(rows), dtype=dtype)


def augment(
    images: Tensor,
    targets: AnyTarget,
    augmentations: Sequence[Augmentation],
    packed_augmentations: Tensor,
    *,
    fill: Tensor,
    std: Tensor,
) -> tuple[Tensor, AnyTarget]:
    """Augment a batch, each sample by its own augmentation; the arguments stay as they are, and the host never waits.

    All tensors are on one device. Pixels from outside the image become `fill` and unknown.

    Args:
        images: (B, C, H, W) or (B, C, D, H, W), raw pixel values of any range and type.
        targets: (B, H, W) or (B, D, H, W).
        augmentations: one for each sample, for images of this size.
        packed_augmentations: `pack_augmentations` of them.
        fill, std: (C,) mean and standard deviation of the training images.

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
        # resampling blurs and rounds: a sample that stays must come back exactly
        if not augmentation.moves:
            new_images[i] = images[i]
    _apply_effects(new_images, augmentations, fill, std, follow_recoloring=False)
    new_images = new_images * gain + ((1 - gain) * fill + shift * std)
    _apply_effects(new_images, augmentations, fill, std, follow_recoloring=True)
    new_targets = targets.move(
        move_labels=lambda labels, unknown: _move_labels(labels, unknown, grid, outside),
        move_points=lambda points: _move_points(points, augmentations, size),
    )
    return torch.where(outside[:, None], fill, new_images), new_targets


def _apply_effects(
    images: Tensor, augmentations: Sequence[Augmentation], fill: Tensor, std: Tensor, *, follow_recoloring: bool
) -> None:
    """Change the values of images in place, each by the effects of its augmentation before or after recoloring."""
    for i, augmentation in enumerate(augmentations):
        for effect in augmentation.effects:
            if effect.follows_recoloring == follow_recoloring:
                images[i] = effect.apply(images[i], fill, std)


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
        elastic = np.stack([augmentation.displacements for augmentation in augmentations])
        displacements = upload_like(torch.tensor(elastic), points)
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
    # pixels from the center along x, y, ..., each in the shape that goes with the axes of an image
    offsets = []
    for axis, side in enumerate(reversed(size)):
        offset = torch.arange(side, device=matrix.device, dtype=matrix.dtype) - (side - 1) / 2
        offsets.append(offset.view(-1, *(1,) * axis))
    # (B, n, *size)
    source = sum(column * offset for column, offset in zip(columns, offsets, strict=True))
    if elastic is not None:
        # Ronneberger et al. 2015, section 3.1: random displacements on a 3 x 3 grid, bicubic in between.
        source = source + F.interpolate(elastic, tuple(size), mode="bicubic", align_corners=True)
    return torch.stack([source[:, axis] * (2 / side) for axis, side in enumerate(reversed(size))], dim=-1)


def _sample(pictures: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(pictures, grid, mode=mode, padding_mode="border", align_corners=False)
