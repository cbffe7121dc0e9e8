"""The augmentation of a sample, drawn in the loader's processes from its key (seed, epoch, sample) alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

STRENGTHS = ("none", "mirror", "basic", "strong")
ELASTIC = (2, 3, 3)
ELASTIC_PIXELS = 10.0  # standard deviation of elastic displacements: the paper's, whose images are 512 x 512
ALIKE = 2  # spacings within this factor: a turn from one axis into the other keeps the detail of both


@dataclass(frozen=True)
class Draw:
    """The augmentation of one sample. The default is the identity of an image, with `np.eye(3)` that of a volume."""

    # (2, 2): the offset (x, y) in pixels of an output pixel from the center -> that of the input point that it shows;
    # for volumes (3, 3), (x, y, z)
    matrix: np.ndarray = field(default_factory=lambda: np.eye(2))
    elastic: np.ndarray | None = None  # (2, 3, 3): (x, y) displacements in pixels on a coarse grid, for images
    gain: np.ndarray | float = 1.0  # (C,): factor of the contrast about the data's mean
    shift: np.ndarray | float = 0.0  # (C,): brightness, in standard deviations of the data
    blur: float = 0.0  # Gaussian sigma in pixels
    noise: float = 0.0  # Gaussian sigma in standard deviations of the data
    noise_seed: int = 0
    gamma: float = 1.0  # exponent of a curve over the sample's own range
    resolution: tuple[float, ...] | None = None  # share of the voxels along (z, y, x) that are kept, for volumes

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return self.elastic is not None or bool((self.matrix != np.eye(len(self.matrix))).any())

    @property
    def is_mirrored(self) -> bool:
        """Whether the sample becomes its mirror image: left and right change places."""
        return bool(np.linalg.det(self.matrix) < 0)

    @property
    def is_identity(self) -> bool:
        """Whether nothing happens."""
        is_recolored = np.any(self.gain != 1) or np.any(self.shift) or self.gamma != 1
        return not (self.moves or is_recolored or self.blur or self.noise or self.resolution)


def draw(
    key: tuple[int, int],
    *,
    strength: str,
    seed: int,
    size: Sequence[int],
    channels: int,
    spacing: Sequence[float] | None = None,
    may_mirror: bool = True,
) -> Draw:
    """The augmentation of the sample `key` = (epoch, sample).

    Images have the size (H, W); volumes (D, H, W), and a spacing (z, y, x) in mm. Unless it `may_mirror`, nothing
    is mirrored.
    """
    if strength not in STRENGTHS:
        raise ValueError(f"augmentation strength {strength!r} is none of {', '.join(STRENGTHS)}")
    if strength == "none":
        return Draw(np.eye(len(size)))
    rng = np.random.default_rng([seed, *key])
    # Every number is drawn every time: a choice between two effects never changes what the others draw.
    mirror_x, mirror_y, turn_any, warp, blur, noise = rng.random(6)
    quarter_turns = rng.integers(4)
    noise_seed = int(rng.integers(2**63))
    tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma = rng.uniform(-1, 1, 6)
    displacement = rng.standard_normal(ELASTIC)
    channel_contrast, channel_brightness = rng.uniform(-1, 1, (2, channels))
    if not may_mirror:
        mirror_x = mirror_y = np.float64(1)

    if strength == "mirror":
        mirror = np.eye(len(size))
        mirror[0, 0] = _sign(mirror_x)  # left and right
        return Draw(mirror)
    is_strong = strength == "strong"
    scale = 1.25**log_scale
    gain = np.full(channels, 1 + 0.2 * contrast)
    shift = np.full(channels, 0.2 * brightness)
    if spacing is not None:
        drawn = _draw_volume(np.random.default_rng([seed, *key, 3]), is_strong, scale, spacing, may_mirror)
    elif is_strong:
        angle = math.pi * tilt if turn_any < 0.5 else 0.0
        if size[0] == size[1]:
            angle += math.pi / 2 * quarter_turns
        flip = np.diag([_sign(mirror_x), _sign(mirror_y)])
        elastic = None
        if warp < 0.5:  # by less in small images, which it would tear apart
            elastic = min(ELASTIC_PIXELS, min(size) / 32) * displacement
        drawn = Draw(_linear_map(flip, angle, scale), elastic)
    else:
        flip = np.diag([_sign(mirror_x), 1.0])
        drawn = Draw(_linear_map(flip, math.radians(15) * tilt, scale))
    if not is_strong:
        return replace(drawn, gain=gain, shift=shift)
    return replace(
        drawn,
        gain=gain * (1 + 0.1 * channel_contrast),
        shift=shift + 0.1 * channel_brightness,
        blur=(1.0 + 0.5 * blur_sigma) if blur < 0.2 else 0.0,
        noise=(0.15 + 0.1 * noise_sigma) if noise < 0.3 else 0.0,
        noise_seed=noise_seed,
    )


def _sign(chance: float) -> float:
    """-1 to mirror an axis, one time in two; else 1."""
    return -1.0 if chance < 0.5 else 1.0


def _linear_map(flip: np.ndarray, angle: float, scale: float) -> np.ndarray:
    """(2, 2), from output to input: undo the zoom by `scale` and the turn by `angle` radians, then flip."""
    cos = math.cos(angle) / scale
    sin = math.sin(angle) / scale
    return flip @ np.array([[cos, sin], [-sin, cos]])


def _draw_volume(
    rng: np.random.Generator, is_strong: bool, scale: float, spacing: Sequence[float], may_mirror: bool
) -> Draw:
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
    shares[np.array(spacing) > ALIKE * min(spacing)] = 1.0
    resolution = tuple(shares.tolist()) if lower_resolution < 0.25 else None
    return Draw(flips[:, None] * turns / scale, gamma=math.exp(log_gamma), resolution=resolution)


def _turns(angles: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """(3, 3) on offsets (x, y, z) in voxels of `spacing` (x, y, z): turns about x, y and z by `angles` in radians.

    There is a turn about an axis only where the two others, which it mixes, have spacings that are alike.
    """
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        first = (axis + 1) % 3
        second = (axis + 2) % 3
        if max(spacing[[first, second]]) <= ALIKE * min(spacing[[first, second]]):
            turn = np.eye(3)
            turn[first, first] = turn[second, second] = math.cos(angle)
            turn[second, first] = math.sin(angle)
            turn[first, second] = -turn[second, first]
            matrix = turn @ matrix
    return matrix * spacing / spacing[:, None]


def pack_draws(draws: Sequence[Draw], channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `augment` needs of the draws on the device: (B, n^2 + 18 + 2C) numbers of samples with n axes.

    They are the matrix, the elastic displacements, gain and shift of each sample.
    """
    rows = []
    for drawn in draws:
        elastic = np.zeros(ELASTIC) if drawn.elastic is None else drawn.elastic
        gain = np.broadcast_to(drawn.gain, channels)
        shift = np.broadcast_to(drawn.shift, channels)
        rows.append(np.concatenate([drawn.matrix.ravel(), elastic.ravel(), gain, shift]))
    return torch.tensor(np.array(rows), dtype=dtype)
