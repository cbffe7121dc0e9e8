"""The augmentation of a sample, sampled in the loader's processes from its key (seed, epoch, sample) alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

STRENGTHS = ("none", "mirror", "basic", "strong")
ELASTIC = (2, 3, 3)
ELASTIC_PIXELS = 10.0  # standard deviation of elastic displacements: the paper's, whose images are 512 x 512
SIMILAR_SPACING_FACTOR = 2  # spacings within this factor: a turn from one axis into the other keeps the detail of both


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of one sample. The default is the identity for an image; for a volume it needs `np.eye(3)`.

    Args:
        matrix: (2, 2), maps the offset (x, y) of an output pixel from the center, in pixels, to the offset of the input
            point that the pixel shows; for volumes (3, 3), (x, y, z).
        elastic: (2, 3, 3), displacements (x, y) in pixels on a coarse grid; of images only.
        gain: (C,), the factor of the contrast about the data's mean.
        shift: (C,), the brightness in standard deviations of the data.
        blur: sigma of a Gaussian in pixels.
        noise: sigma of Gaussian noise in standard deviations of the data.
        gamma: the exponent of a curve over the sample's own range.
        resolution: the share of the voxels along (z, y, x) that is kept; of volumes only.
    """

    matrix: np.ndarray = field(default_factory=lambda: np.eye(2))
    elastic: np.ndarray | None = None
    gain: np.ndarray | float = 1.0
    shift: np.ndarray | float = 0.0
    blur: float = 0.0
    noise: float = 0.0
    noise_seed: int = 0
    gamma: float = 1.0
    resolution: tuple[float, ...] | None = None

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
    numbers = RandomNumbers.sample(np.random.default_rng([seed, *key]), channels)
    mirrors = np.array([_sign(numbers.mirror_x), _sign(numbers.mirror_y)])
    if not may_mirror:
        mirrors[:] = 1.0
    if strength == "mirror":
        matrix = np.eye(len(size))
        matrix[0, 0] = mirrors[0]  # left and right
        return Augmentation(matrix)
    is_strong = strength == "strong"
    if spacing is not None:
        rng = np.random.default_rng([seed, *key, 3])
        augmentation = _volume_augmentation(rng, is_strong, numbers.scale, spacing, may_mirror)
    elif is_strong:
        augmentation = _strong_augmentation(numbers, mirrors, size)
    else:
        mirrors[1] = 1.0
        augmentation = Augmentation(_linear_map(np.diag(mirrors), math.radians(15) * numbers.tilt, numbers.scale))
    gain = np.full(channels, 1 + 0.2 * numbers.contrast)
    shift = np.full(channels, 0.2 * numbers.brightness)
    if not is_strong:
        return replace(augmentation, gain=gain, shift=shift)
    return replace(
        augmentation,
        gain=gain * (1 + 0.1 * numbers.channel_contrast),
        shift=shift + 0.1 * numbers.channel_brightness,
        blur=(1.0 + 0.5 * numbers.blur_sigma) if numbers.blur < 0.2 else 0.0,
        noise=(0.15 + 0.1 * numbers.noise_sigma) if numbers.noise < 0.3 else 0.0,
        noise_seed=numbers.noise_seed,
    )


class RandomNumbers(NamedTuple):
    """The random numbers of a sample. All are drawn every time: no effect changes the numbers of the others.

    Args:
        mirror_x, mirror_y, turn, warp, blur, noise: in [0, 1), whether each of these effects happens.
        tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma: in [-1, 1), how strong each is.
        displacement: ELASTIC, of the standard normal distribution.
        channel_contrast, channel_brightness: (C,), in [-1, 1).
    """

    mirror_x: float
    mirror_y: float
    turn: float
    warp: float
    blur: float
    noise: float
    quarter_turns: int
    noise_seed: int
    tilt: float
    log_scale: float
    contrast: float
    brightness: float
    blur_sigma: float
    noise_sigma: float
    displacement: np.ndarray
    channel_contrast: np.ndarray
    channel_brightness: np.ndarray

    @classmethod
    def sample(cls, rng: np.random.Generator, channels: int) -> "RandomNumbers":
        """The next numbers of the generator `rng`, for an image or volume of so many channels."""
        mirror_x, mirror_y, turn, warp, blur, noise = rng.random(6)
        quarter_turns = int(rng.integers(4))
        noise_seed = int(rng.integers(2**63))
        tilt, log_scale, contrast, brightness, blur_sigma, noise_sigma = rng.uniform(-1, 1, 6)
        displacement = rng.standard_normal(ELASTIC)
        channel_contrast, channel_brightness = rng.uniform(-1, 1, (2, channels))
        return cls(
            mirror_x=mirror_x,
            mirror_y=mirror_y,
            turn=turn,
            warp=warp,
            blur=blur,
            noise=noise,
            quarter_turns=quarter_turns,
            noise_seed=noise_seed,
            tilt=tilt,
            log_scale=log_scale,
            contrast=contrast,
            brightness=brightness,
            blur_sigma=blur_sigma,
            noise_sigma=noise_sigma,
            displacement=displacement,
            channel_contrast=channel_contrast,
            channel_brightness=channel_brightness,
        )

    @property
    def scale(self) -> float:
        """The factor of the zoom."""
        return 1.25**self.log_scale


def _strong_augmentation(numbers: RandomNumbers, mirrors: np.ndarray, size: Sequence[int]) -> Augmentation:
    """Mirrors along both axes, turns by any angle, and elastic displacements, of an image (H, W)."""
    angle = math.pi * numbers.tilt if numbers.turn < 0.5 else 0.0
    if size[0] == size[1]:
        angle += math.pi / 2 * numbers.quarter_turns
    elastic = None
    if numbers.warp < 0.5:  # by less in small images, which it would tear apart
        elastic = min(ELASTIC_PIXELS, min(size) / 32) * numbers.displacement
    return Augmentation(_linear_map(np.diag(mirrors), angle, numbers.scale), elastic)


def _sign(chance: float) -> float:
    """-1 to mirror an axis, one time in two; else 1."""
    return -1.0 if chance < 0.5 else 1.0


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
    resolution = tuple(shares.tolist()) if lower_resolution < 0.25 else None
    return Augmentation(flips[:, None] * turns / scale, gamma=math.exp(log_gamma), resolution=resolution)


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
        elastic = np.zeros(ELASTIC) if augmentation.elastic is None else augmentation.elastic
        gain = np.broadcast_to(augmentation.gain, channels)
        shift = np.broadcast_to(augmentation.shift, channels)
        rows.append(np.concatenate([augmentation.matrix.ravel(), elastic.ravel(), gain, shift]))
    return torch.tensor(np.array(rows), dtype=dtype)
