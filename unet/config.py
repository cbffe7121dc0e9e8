"""The content of config.json: a model's architecture, and the preprocessing of its training images."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np

from runtime.values import Byte, Fraction, Limit, Natural, OneOf, Positive, check_fields, from_json
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS

Axes = tuple[tuple[int, ...], ...]  # one tuple for each level, with one number for each axis
MAX_DEPTH = 5  # the most steps down, unless the caller sets a depth
MOST_CHANNELS = 2**14  # of the deepest level: a convolution there has 9.7 GB of weights
SMALLEST_SIDE = 4  # pooling leaves at least this many pixels of a patch's side
OUTPUT_STRIDES = (1, 2, 4)
IGNORE_INDEX = 255  # in this project, the class index of pixels that neither loss nor metrics count
ONE_FOR_EACH = {"mean": "channels", "std": "channels", "class_names": "classes", "class_values": "classes"}
MaskValue = int | tuple[Byte, Byte, Byte]  # a grey level or an RGB color
NamedTask = Annotated[dict[str, Any], Limit(lambda task: isinstance(task.get("name"), str), "an object with a name")]


@dataclass(frozen=True)
class Preprocess:
    """The settings that prediction needs beside the weights; part of the model's config.json.

    Args:
        image_size: (H, W) that every image is resized to; None if `scale` is used instead.
        scale: factor on height and width, rounded down.
        mean, std: the mean and the standard deviation of each channel of the training images, in the files' own value
            range; empty means 0 and 1.
        class_names, class_values: name and mask value (grey level or RGB color) of each class.
        ignore_value: the mask value that neither loss nor metrics count; None if there is none.
        joined_values: further mask values, each with the index of its class, or with 255 if its pixels are ignored.
        outside_class: the class index, or 255, of all other mask values; None if such values are errors.
        detect_unit_range: treat an image without a value above 1 as one in 0..1 instead of 0..255 (Pytorch-UNet does
            so, and its models expect it).
        draft: decode a JPEG file at a reduced size if the network sees it that small: several times as fast at half
            the size and below. A file then differs by a few grey levels from the array of its pixels.
        pixel_types: NumPy's names of the pixel types that `mean` and `std` were measured on; other types get a warning.
        spacing: (z, y, x) in mm that volumes are resampled to; None for images.
        clip: lowest and highest value that the voxels of volumes are clipped to; None for no clipping.
        standardize: give each channel of a volume mean 0 and standard deviation 1 over its own voxels.
        bands: names or numbers of the bands of rasters that are read, in this order; empty for all.
        place: whether TIFFs with a place in the world are read as rasters, with all bands and without pixels that hold
            no data. If config.json has no such entry, they are read as pictures by Pillow.
        turned: whether training used all turns and mirrorings, so that `--tta` averages over them; else `--tta`
            averages over an image and its left-right mirroring.
    """

    image_size: tuple[Natural, Natural] | None = None
    scale: Positive = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[Positive, ...] = ()
    class_names: tuple[str, ...] = ()
    class_values: tuple[MaskValue, ...] = ()
    ignore_value: MaskValue | None = None
    joined_values: tuple[tuple[MaskValue, Byte], ...] = ()
    outside_class: Byte | None = None
    detect_unit_range: bool = False
    draft: bool = True
    pixel_types: tuple[str, ...] = ()
    spacing: tuple[Positive, Positive, Positive] | None = None
    clip: tuple[float, float] | None = None
    standardize: bool = False
    turned: bool = True
    bands: tuple[str, ...] = ()
    place: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        values = self.class_values
        are_one_kind = len(set(map(type, values))) < 2
        are_different = len(set(values)) == len(values)
        expect("class_values", values, are_one_kind and are_different, "different ones, all of one kind")
        is_range = self.clip is None or self.clip[0] < self.clip[1]
        expect("clip", self.clip, is_range, "the lower number first")

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """The size (H, W) to which an image of `height` x `width` is resized for the network."""
        if self.image_size is not None:
            return self.image_size
        return max(1, int(height * self.scale)), max(1, int(width * self.scale))

    def resampled_size(self, size: Sequence[int], spacing: Sequence[float]) -> tuple[int, ...]:
        """The size (D, H, W) to which a volume of `size` (D, H, W) and `spacing` (z, y, x) in mm is resampled."""
        network_spacing = self.spacing or spacing
        sides = []
        for side, own_pitch, network_pitch in zip(size, spacing, network_spacing, strict=True):
            sides.append(max(1, round(side * own_pitch / network_pitch)))
        return tuple(sides)


@dataclass(frozen=True)
class UNetConfig:
    """The architecture and preprocessing of one model, the content of config.json.

    Args:
        base_channels: width of the first level; each of the `depth` levels below doubles it.
        norm: `batch`, `group` or `instance`.
        upsample: `transpose`, `bilinear` or `bilinear_aligned`.
        dropout: the probability of dropout, which is at the end of the contracting path as in the paper.
        encoder: the config of a backbone of transformers that takes the place of the contracting path, with its
            `_name_or_path` and `license`; `depth` is then the level of its coarsest features.
        block: `plain` or `residual`.
        dims: 2 for images, 3 for volumes.
        kernels: for each of the `depth` + 1 levels, finest first, the size of its convolutions along each axis; empty
            for 3 everywhere.
        strides: for each of the `depth` steps down, the factor along each axis; empty for 2 everywhere.
        task: the task that the outputs answer, an object with its `name`; None for classes.
        temperature: the divisor of the logits by which the trained network was calibrated; the weights of the last
            layer are divided by it already.
        output_stride: with 2 or 4, which only a network with an encoder can have, the way up ends at a half or quarter
            of the images' sides, and its logits are enlarged.
    """

    in_channels: Natural = 3
    num_classes: Natural = 2
    base_channels: Natural = 64
    depth: Natural = 4
    norm: Annotated[str, OneOf(NORMS)] = "batch"
    upsample: Annotated[str, OneOf(UPSAMPLINGS)] = "transpose"
    dropout: Fraction = 0.0
    preprocess: Preprocess = field(default_factory=Preprocess)
    encoder: dict[str, Any] | None = None
    block: Annotated[str, OneOf(BLOCKS)] = "plain"
    dims: Annotated[int, OneOf((2, 3))] = 2
    kernels: Axes = ()
    strides: Axes = ()
    task: NamedTask | None = None
    temperature: Positive = 1.0
    output_stride: Annotated[int, OneOf(OUTPUT_STRIDES)] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        is_aligned_volume = self.upsample == "bilinear_aligned" and self.dims == 3
        expect("upsample", self.upsample, not is_aligned_volume, "transpose or bilinear, for volumes")
        if self.dims == 2 and self.encoder is None:
            deepest = self.base_channels * 2 ** min(self.depth, MOST_CHANNELS.bit_length())
            expected = (
                f"less: each level doubles base_channels, here {self.base_channels}, to {MOST_CHANNELS:,} at most"
            )
            expect("depth", self.depth, deepest <= MOST_CHANNELS, expected)
        dims_fit = self.dims == 2 or self.encoder is None
        expect("dims", self.dims, dims_fit, "2, for the encoder takes images")
        stride_fits = self.output_stride == 1 or (self.encoder is not None and self.finest_level < self.depth)
        expect("output_stride", self.output_stride, stride_fits, "1, or less than the coarsest stride of an encoder")
        self._expect_levels("kernels", self.depth + 1, (1, 3))
        self._expect_levels("strides", self.depth, (1, 2))
        counts = {"channels": self.network_channels, "classes": self.num_classes}
        for name, things in ONE_FOR_EACH.items():
            values = getattr(self.preprocess, name)
            is_complete = len(values) in (0, counts[things])
            expect(name, values, is_complete, f"one for each of {counts[things]} {things}")

    def _expect_levels(self, name: str, levels: int, choices: tuple[int, int]) -> None:
        """Raises ValueError unless the field is empty, or has one of `choices` for each axis of `levels` levels."""
        values = getattr(self, name)
        is_valid = len(values) in (0, levels)
        for sizes in values:
            is_valid = is_valid and len(sizes) == self.dims and all(size in choices for size in sizes)
        choices_text = " and ".join(map(str, choices))
        expect(name, values, is_valid, f"{levels} times {self.dims} numbers of {choices_text}")

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "UNetConfig":
        """The config that config.json holds. Raises ValueError for entries of a newer version, and for wrong values."""
        return from_json(cls, content, "the config")

    def to_json(self) -> dict[str, Any]:
        """The content of config.json."""
        return asdict(self)

    @property
    def level_kernels(self) -> Axes:
        """The size of the convolutions along each axis, for each of the `depth` + 1 levels."""
        kernel = (3,) * self.dims
        return self.kernels or (kernel,) * (self.depth + 1)

    @property
    def level_strides(self) -> Axes:
        """The factor along each axis, for each of the `depth` steps down."""
        stride = (2,) * self.dims
        return self.strides or (stride,) * self.depth

    @property
    def divisors(self) -> tuple[int, ...]:
        """For each axis, how many pixels the steps down merge into one at the lowest level: 2^depth for images."""
        return tuple(math.prod(factors) for factors in zip(*self.level_strides, strict=True))

    @property
    def finest_level(self) -> int:
        """The level at which the way up ends: 0 has the size of the images, each further one half the sides."""
        return OUTPUT_STRIDES.index(self.output_stride)

    @property
    def network_channels(self) -> int:
        """The number of channels after normalization, which repeats a grey channel for each channel of an encoder."""
        if self.encoder is None:
            return self.in_channels
        return self.encoder.get("num_channels", 3)


class NetworkAxes(NamedTuple):
    """The fields of UNetConfig that the data decide."""

    dims: int
    kernels: Axes = ()
    strides: Axes = ()


def level_axes(spacing: Sequence[float], patch: Sequence[int], depth: int | None = None) -> tuple[Axes, Axes]:
    """Kernels and strides of UNetConfig for patches whose spacing differs between the axes.

    Each step down pools only the axes whose spacing is less than twice the finest, among the axes that are long enough
    to be pooled, so that deeper levels become isotropic. Along an axis whose spacing is at least twice the finest,
    convolutions have size 1; from the first level on where the spacing is less than twice the finest, they have size 3.
    There is at least one step down, and there are at most `depth` (by default MAX_DEPTH).

    Args:
        spacing: the size of a pixel along each axis.
        patch: the number of pixels along each axis.
        depth: the most steps down; None for MAX_DEPTH.
    """
    lengths = np.array(spacing, dtype=float)
    sides = np.array(patch)
    kernel = np.where(lengths < 2 * lengths.min(), 3, 1)
    kernels = [tuple(kernel.tolist())]
    strides: list[tuple[int, ...]] = []
    while len(strides) < (depth or MAX_DEPTH):
        is_long = sides // 2 >= SMALLEST_SIDE
        if not is_long.any():
            if strides:
                break
            is_long[:] = True  # a U-Net needs at least one step down
        stride = np.where(is_long & (lengths < 2 * lengths[is_long].min()), 2, 1)
        lengths = lengths * stride
        sides = sides // stride
        kernel = np.where(lengths < 2 * lengths.min(), 3, kernel)
        kernels.append(tuple(kernel.tolist()))
        strides.append(tuple(stride.tolist()))
    return tuple(kernels), tuple(strides)


def expect(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """Raises ValueError unless `is_valid`; the text has the name in config.json, the value and the `expected` one."""
    if not is_valid:
        raise ValueError(f"{name} is {value!r}, expected {expected}")
