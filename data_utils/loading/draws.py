"""What augmentation does to a sample, drawn in the loader's processes from its key (seed, epoch, sample) alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

STRENGTHS = ("none", "mirror", "basic", "strong")
ELASTIC = (2, 3, 3)
ALIKE = 2  # spacings within this factor: a turn from one axis into the other keeps the detail of both


@dataclass(frozen=True)
class Draw:
    """What happens to one sample. The default is the identity of an image, with `np.eye(3)` that of a volume."""

    # (2, 2): offset (x, y) in pixels from the centre of an output pixel -> of the input point that it shows;
    # of volumes (3, 3), (x, y, z)
    matrix: np.ndarray = field(default_factory=lambda: np.eye(2))
    elastic: np.ndarray | None = None  # (2, 3, 3): (x, y) displacements in pixels on a coarse grid, of images
    gain: np.ndarray | float = 1.0  # (C,): factor of the contrast about the data's mean
    shift: np.ndarray | float = 0.0  # (C,): brightness, in standard deviations of the data
    blur: float = 0.0  # Gaussian sigma in pixels
    noise: float = 0.0  # Gaussian sigma in standard deviations of the data
    noise_seed: int = 0
    gamma: float = 1.0  # exponent of a curve over the sample's own range
    resolution: tuple[float, ...] | None = None  # of volumes, share of the voxels along (z, y, x) that are kept

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return self.elastic is not None or bool((self.matrix != np.eye(len(self.matrix))).any())

    @property
    def is_identity(self) -> bool:
        """Whether nothing happens."""
        recoloured = np.any(self.gain != 1) or np.any(self.shift) or self.gamma != 1
        return not (self.moves or recoloured or self.blur or self.noise or self.resolution)


def draw(
    key: tuple[int, int],
    *,
    strength: str,
    seed: int,
    size: Sequence[int],
    channels: int,
    spacing: Sequence[float] | None = None,
) -> Draw:
    """The augmentation of the sample `key` = (epoch, sample).

    Images have the size (H, W); volumes (D, H, W), and a spacing (z, y, x) in mm.
    """
    if strength not in STRENGTHS:
        raise ValueError(f"augmentation strength {strength!r} is none of {', '.join(STRENGTHS)}")
    if strength == "none":
        return Draw(np.eye(len(size)))
    rng = np.random.default_rng([seed, *key])
    # Every number is drawn every time: a choice between two effects never changes what the others draw.
    mirror_x, mirror_y, turn_any, warp, blur, noise = rng.random(6)
    quarter_turns, noise_seed = rng.integers(4), int(rng.integers(2**63))
    tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma = rng.uniform(-1, 1, 6)
    displacement = rng.standard_normal(ELASTIC)
    channel_contrast, channel_brightness = rng.uniform(-1, 1, (2, channels))

    if strength == "mirror":
        mirrored = np.eye(len(size))
        mirrored[0, 0] = -1.0 if mirror_x < 0.5 else 1.0  # left and right
        return Draw(mirrored)
    strong, elastic = strength == "strong", None
    gain, shift = np.full(channels, 1 + 0.2 * contrast), np.full(channels, 0.2 * brightness)
    if spacing is not None:
        drawn = _draw_volume(np.random.default_rng([seed, *key, 3]), strong, 1.25**log_scale, spacing)
    else:
        angle = math.radians(15) * tilt
        flip = np.diag([-1.0 if mirror_x < 0.5 else 1.0, 1.0])
        if strong:
            angle = math.pi * tilt if turn_any < 0.5 else 0.0
            flip[1, 1] = -1.0 if mirror_y < 0.5 else 1.0
            if size[0] == size[1]:
                angle += math.pi / 2 * quarter_turns
            # 10 pixels as in the paper, whose images are 512 x 512; less on small ones, which it would tear apart.
            elastic = min(10.0, min(size) / 32) * displacement if warp < 0.5 else None
        drawn = Draw(_linear_map(flip, angle, 1.25**log_scale), elastic)
    if not strong:
        return replace(drawn, gain=gain, shift=shift)
    return replace(
        drawn,
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


def _draw_volume(rng: np.random.Generator, strong: bool, scale: float, spacing: Sequence[float]) -> Draw:
    """Mirrors, turns about three axes and a zoom by `scale`, rigid in mm; gamma; one time in four a low resolution.

    Axes much coarser than the finest (thick slices) stay as coarse as they are.
    """
    mirrored, coarse = rng.random(3), rng.random()
    tilts, shares, log_gamma = rng.uniform(-1, 1, 3), rng.uniform(0.5, 1, 3), rng.uniform(math.log(0.7), math.log(1.5))
    flips = np.where(mirrored < 0.5, -1.0, 1.0)
    if not strong:
        flips[1:] = 1.0  # left and right only, as in images
    turns = _turns(math.radians(30 if strong else 15) * tilts, np.array(spacing[::-1], dtype=float))
    shares[np.array(spacing) > ALIKE * min(spacing)] = 1.0
    resolution = tuple(shares.tolist()) if coarse < 0.25 else None
    return Draw(flips[:, None] * turns / scale, gamma=math.exp(log_gamma), resolution=resolution)


def _turns(angles: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """(3, 3) on offsets (x, y, z) in voxels of `spacing` (x, y, z): turns about x, y and z by `angles` in radians.

    About an axis only where the two others, which it mixes, have spacings that are alike.
    """
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        if max(spacing[[first, second]]) <= ALIKE * min(spacing[[first, second]]):
            turn = np.eye(3)
            turn[first, first] = turn[second, second] = math.cos(angle)
            turn[second, first] = math.sin(angle)
            turn[first, second] = -turn[second, first]
            matrix = turn @ matrix
    return matrix * spacing / spacing[:, None]


def pack_draws(draws: Sequence[Draw], channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `augment` needs of the draws on the device: (B, n^2 + 18 + 2C) numbers of samples with n axes.

    The matrix, the elastic displacements, gain and shift of each sample.
    """
    rows = []
    for d in draws:
        elastic = np.zeros(ELASTIC) if d.elastic is None else d.elastic
        colour = [np.broadcast_to(values, channels) for values in (d.gain, d.shift)]
        rows.append(np.concatenate([d.matrix.ravel(), elastic.ravel(), *colour]))
    return torch.tensor(np.array(rows), dtype=dtype)
