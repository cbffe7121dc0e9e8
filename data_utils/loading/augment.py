"""Paired augmentation on the device, keyed by (seed, epoch, sample).

What happens to a sample is drawn on the CPU from its key alone: the same in any batch, process or device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from data_utils.loading.noise import unit_noise
from unet.config import IGNORE_INDEX

STRENGTHS = ("none", "basic", "strong")


@dataclass(frozen=True)
class Draw:
    """What happens to one sample. The default is the identity."""

    # (2, 2): offset (x, y) in pixels from the centre of an output pixel -> of the input point that it shows
    matrix: np.ndarray = field(default_factory=lambda: np.eye(2))
    elastic: np.ndarray | None = None  # (2, 3, 3): (x, y) displacements in pixels on a coarse grid
    gain: np.ndarray | float = 1.0  # (C,): factor of the contrast about the data's mean
    shift: np.ndarray | float = 0.0  # (C,): brightness, in standard deviations of the data
    blur: float = 0.0  # Gaussian sigma in pixels
    noise: float = 0.0  # Gaussian sigma in standard deviations of the data
    noise_seed: int = 0


def draw(key: tuple[int, int], *, strength: str, seed: int, size: tuple[int, int], channels: int) -> Draw:
    """The augmentation of the sample `key` = (epoch, sample) with images of size (H, W)."""
    rng = np.random.default_rng([seed, *key])
    # Every number is drawn every time: a choice between two effects never changes what the others draw.
    mirror_x, mirror_y, turn_any, warp, blur, noise = rng.random(6)
    quarter_turns, noise_seed = rng.integers(4), int(rng.integers(2**63))
    tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma = rng.uniform(-1, 1, 6)
    displacement = rng.standard_normal((2, 3, 3))
    channel_contrast, channel_brightness = rng.uniform(-1, 1, (2, channels))

    angle = math.radians(15) * tilt
    flip = np.diag([-1.0 if mirror_x < 0.5 else 1.0, 1.0])
    gain, shift = np.full(channels, 1 + 0.2 * contrast), np.full(channels, 0.2 * brightness)
    if strength == "basic":
        return Draw(_linear_map(flip, angle, 1.25**log_scale), gain=gain, shift=shift)

    angle = math.pi * tilt if turn_any < 0.5 else 0.0
    flip[1, 1] = -1.0 if mirror_y < 0.5 else 1.0
    if size[0] == size[1]:
        angle += math.pi / 2 * quarter_turns
    # 10 pixels as in the paper, whose images are 512 x 512; less on small ones, which it would tear apart.
    sigma = min(10.0, min(size) / 32)
    return Draw(
        _linear_map(flip, angle, 1.25**log_scale),
        elastic=sigma * displacement if warp < 0.5 else None,
        gain=gain * (1 + 0.1 * channel_contrast),
        shift=shift + 0.1 * channel_brightness,
        blur=1.0 + 0.5 * blur_sigma if blur < 0.2 else 0.0,
        noise=0.15 + 0.1 * noise_sigma if noise < 0.3 else 0.0,
        noise_seed=noise_seed,
    )


def _linear_map(flip: np.ndarray, angle: float, scale: float) -> np.ndarray:
    """(2, 2), from output to input: undo the zoom by `scale` and the turn by `angle` radians, then flip."""
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    return flip @ np.array([[cos, sin], [-sin, cos]])


def augment(
    images: torch.Tensor,
    masks: torch.Tensor,
    keys: Sequence[tuple[int, int]],
    *,
    strength: str,
    seed: int,
    fill: torch.Tensor,
    std: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment a batch, each sample by its key (epoch, sample) alone; the arguments are left as they are.

    images (B, C, H, W): raw pixel values of any range and type; masks (B, H, W): class indices, 255 ignored;
    fill, std (C,): mean and standard deviation of the training images. Returns float32 images (float64 stays),
    int64 masks. Pixels from outside the image become `fill` and 255.
    """
    if strength not in STRENGTHS:
        raise ValueError(f"augmentation strength {strength!r} is none of {', '.join(STRENGTHS)}")
    images, masks = images.to(torch.promote_types(images.dtype, torch.float32)), masks.long()
    if strength == "none":
        return images, masks
    size, channels = tuple(images.shape[2:]), images.shape[1]
    draws = [draw(key, strength=strength, seed=seed, size=size, channels=channels) for key in keys]
    return apply_draws(images, masks, draws, fill=fill, std=std)


def apply_draws(
    images: torch.Tensor, masks: torch.Tensor, draws: Sequence[Draw], *, fill: torch.Tensor, std: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`augment` from given draws, one for each sample: images (B, C, H, W) float, masks (B, H, W) int64."""
    assert len(draws) == len(images) == len(masks), (len(draws), images.shape, masks.shape)
    fill, std = (statistic.to(images)[:, None, None] for statistic in (fill, std))

    grid = _sampling_grid(draws, images)
    outside = (grid.abs() > 1).any(dim=-1)
    # Resampling blurs and rounds: a sample that stays where it is must come back exactly.
    moved = torch.tensor([d.elastic is not None or (d.matrix != np.eye(2)).any() for d in draws])
    moved = moved.to(images.device)[:, None, None]
    images = torch.where(moved[:, None], _sample(images, grid, "bilinear"), images)
    warped = _sample(masks[:, None].to(images.dtype), grid, "nearest")[:, 0].long()
    masks = torch.where(moved, warped, masks)

    for i, d in enumerate(draws):
        if d.blur:
            images[i] = _blur(images[i], d.blur)
    gain = _tensor([np.broadcast_to(d.gain, len(fill)) for d in draws], images)[..., None, None]
    shift = _tensor([np.broadcast_to(d.shift, len(fill)) for d in draws], images)[..., None, None]
    images = images * gain + ((1 - gain) * fill + shift * std)
    for i, d in enumerate(draws):
        if d.noise:
            images[i] += d.noise * std * unit_noise(images[i].shape, d.noise_seed, images.device)
    return torch.where(outside[:, None], fill, images), masks.masked_fill(outside, IGNORE_INDEX)


def _sampling_grid(draws: Sequence[Draw], images: torch.Tensor) -> torch.Tensor:
    """Where output pixels come from, (B, H, W, 2) as `grid_sample` wants it: (x, y), -1..1 from edge to edge.

    Built in pixels from the centre, so that a rotation of an image that is not square does not shear it.
    """
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    matrix = _tensor([d.matrix for d in draws], images)[..., None, None]
    source = matrix[:, :, 0] * x + matrix[:, :, 1] * y[:, None]  # (B, 2, H, W)
    if any(d.elastic is not None for d in draws):
        # Ronneberger et al. 2015, section 3.1: random displacements on a 3 x 3 grid, bicubic in between.
        coarse = [np.zeros((2, 3, 3)) if d.elastic is None else d.elastic for d in draws]
        source = source + F.interpolate(_tensor(coarse, images), (height, width), mode="bicubic", align_corners=True)
    return torch.stack([source[:, 0] * (2 / width), source[:, 1] * (2 / height)], dim=-1)


def _tensor(values: Sequence[np.ndarray], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=like.dtype, device=like.device)


def _sample(pictures: torch.Tensor, grid: torch.Tensor, mode: str) -> torch.Tensor:
    return F.grid_sample(pictures, grid, mode=mode, padding_mode="border", align_corners=False)


def _blur(image: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur of one image (C, H, W), edges replicated.

    Sums of shifted images, not a convolution: on a GPU that may round to TF32, too coarse for 16-bit pixels.
    """
    radius = math.ceil(3 * sigma)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    for dim in (1, 2):
        length = image.shape[dim]
        replicated = torch.arange(-radius, length + radius, device=image.device).clamp(0, length - 1)
        padded = image.index_select(dim, replicated)
        image = sum(w * padded.narrow(dim, k, length) for k, w in enumerate(weights)) / sum(weights)
    return image
