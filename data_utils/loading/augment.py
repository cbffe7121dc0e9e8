"""Paired augmentation, keyed by (seed, epoch, sample): drawn by the loader's processes, done on the device.

What happens to a sample is drawn from its key alone: the same in any batch, process or device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return self.elastic is not None or bool((self.matrix != np.eye(2)).any())

    @property
    def is_identity(self) -> bool:
        """Whether nothing happens."""
        return not (self.moves or np.any(self.gain != 1) or np.any(self.shift) or self.blur or self.noise)


def draw(key: tuple[int, int], *, strength: str, seed: int, size: tuple[int, int], channels: int) -> Draw:
    """The augmentation of the sample `key` = (epoch, sample) with images of size (H, W)."""
    if strength not in STRENGTHS:
        raise ValueError(f"augmentation strength {strength!r} is none of {', '.join(STRENGTHS)}")
    if strength == "none":
        return Draw()
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


def pack_draws(draws: Sequence[Draw], channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `augment` needs of the draws on the device: (B, 22 + 2C) matrix, elastic, gain, shift of each sample."""
    rows = []
    for d in draws:
        elastic = np.zeros((2, 3, 3)) if d.elastic is None else d.elastic
        colour = [np.broadcast_to(values, channels) for values in (d.gain, d.shift)]
        rows.append(np.concatenate([d.matrix.ravel(), elastic.ravel(), *colour]))
    return torch.tensor(np.array(rows), dtype=dtype)


def augment(
    images: Tensor, masks: Tensor, draws: Sequence[Draw], numbers: Tensor, fill: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Augment a batch, each sample by its own draw; the arguments are left as they are, and the host never waits.

    images (B, C, H, W): raw pixel values of any range and type; masks (B, H, W): class indices, 255 ignored;
    draws: of each sample, for images of this size; numbers: `pack_draws` of them; fill, std (C,): mean and standard
    deviation of the training images. All tensors are on one device. Returns float32 images (float64 stays), int64
    masks. Pixels from outside the image become `fill` and 255.
    """
    assert len(draws) == len(numbers) == len(images) == len(masks), (len(draws), numbers.shape, images.shape)
    images, masks = images.to(torch.promote_types(images.dtype, torch.float32)), masks.long()
    if all(d.is_identity for d in draws):
        return images, masks
    channels = images.shape[1]
    fill, std = (statistic.to(images.dtype)[:, None, None] for statistic in (fill, std))
    matrix, elastic, gain, shift = numbers.to(images.dtype)[..., None, None].split([4, 18, channels, channels], dim=1)

    warped = any(d.elastic is not None for d in draws)
    grid = _sampling_grid(matrix, elastic.reshape(-1, 2, 3, 3) if warped else None, *images.shape[2:])
    outside = (grid.abs() > 1).any(dim=-1)
    new_images = _sample(images, grid, "bilinear")
    new_masks = _sample(masks[:, None].to(images.dtype), grid, "nearest")[:, 0].long()
    for i, d in enumerate(draws):
        if not d.moves:  # resampling blurs and rounds: a sample that stays where it is must come back exactly
            new_images[i], new_masks[i] = images[i], masks[i]
        if d.blur:
            new_images[i] = _blur(new_images[i], d.blur)
    new_images = new_images * gain + ((1 - gain) * fill + shift * std)
    for i, d in enumerate(draws):
        if d.noise:
            new_images[i] += d.noise * std * unit_noise(images[i].shape, d.noise_seed, images.device)
    return torch.where(outside[:, None], fill, new_images), new_masks.masked_fill(outside, IGNORE_INDEX)


def _sampling_grid(matrix: Tensor, elastic: Tensor | None, height: int, width: int) -> Tensor:
    """Where output pixels come from, (B, H, W, 2) as `grid_sample` wants it: (x, y), -1..1 from edge to edge.

    Built in pixels from the centre, so that a rotation of an image that is not square does not shear it.
    matrix (B, 4, 1, 1), elastic (B, 2, 3, 3): as in `Draw`.
    """
    y = torch.arange(height, device=matrix.device, dtype=matrix.dtype) - (height - 1) / 2
    x = torch.arange(width, device=matrix.device, dtype=matrix.dtype) - (width - 1) / 2
    source = matrix[:, 0::2] * x + matrix[:, 1::2] * y[:, None]  # (B, 2, H, W)
    if elastic is not None:
        # Ronneberger et al. 2015, section 3.1: random displacements on a 3 x 3 grid, bicubic in between.
        source = source + F.interpolate(elastic, (height, width), mode="bicubic", align_corners=True)
    return torch.stack([source[:, 0] * (2 / width), source[:, 1] * (2 / height)], dim=-1)


def _sample(pictures: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(pictures, grid, mode=mode, padding_mode="border", align_corners=False)


def _blur(image: Tensor, sigma: float) -> Tensor:
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
