"""The content of config.json: a model's architecture, and the preprocessing of its training images."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unet.axes import Axes
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS

IGNORE_INDEX = 255  # in this project, the class index of pixels that neither loss nor metrics count
MaskValue = int | tuple[int, int, int]  # a grey level or an RGB color
NEWER_VERSION = "which this version does not know: it was made by a newer version"
# a field of a later version; it is written only if it differs from the default: older versions read all other models
LATER = {"is_later": True}


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

    image_size: tuple[int, int] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    class_values: tuple[MaskValue, ...] = ()
    ignore_value: MaskValue | None = None
    joined_values: tuple[tuple[MaskValue, int], ...] = field(default=(), metadata=LATER)
    outside_class: int | None = field(default=None, metadata=LATER)
    detect_unit_range: bool = False
    draft: bool = True
    pixel_types: tuple[str, ...] = ()
    spacing: tuple[float, float, float] | None = None
    clip: tuple[float, float] | None = None
    standardize: bool = False
    turned: bool = True
    bands: tuple[str, ...] = field(default=(), metadata=LATER)
    place: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = _as_tuples(getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)
            if isinstance(entry.default, bool):
                expect(entry.name, value, isinstance(value, bool), "true or false")
        self._check_images()
        self._check_classes()
        self._check_volumes()
        # JSON may hold 1.0 as 1, which would make integer tensors
        object.__setattr__(self, "scale", float(self.scale))
        for name in ("mean", "std", "spacing", "clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))

    def _check_images(self) -> None:
        """Raises ValueError for impossible sizes and statistics of images."""
        size = self.image_size
        is_size = size is None or _is_tuple(size, _is_natural, 2)
        expect("image_size", size, is_size, "null, or height and width")
        expect("scale", self.scale, _is_positive(self.scale), "a number above 0")
        expect("mean", self.mean, _is_tuple(self.mean, _is_number), "finite numbers")
        expect("std", self.std, _is_tuple(self.std, _is_positive), "finite numbers above 0")
        for name in ("class_names", "pixel_types", "bands"):
            texts = getattr(self, name)
            expect(name, texts, _is_tuple(texts, _is_text), "texts")

    def _check_classes(self) -> None:
        """Raises ValueError for impossible mask values, and if two classes have the same value."""
        values = self.class_values
        expect("class_values", values, isinstance(values, tuple), "a list")
        value_kinds = "grey levels, or colors of three numbers from 0 to 255"
        expect("class_values", values, all(map(_is_mask_value, values)), value_kinds)
        are_one_kind = len({type(value) for value in values}) < 2
        are_different = len(set(values)) == len(values)
        expect("class_values", values, are_one_kind and are_different, "different ones, all of one kind")
        ignored = self.ignore_value
        is_mask_value = ignored is None or _is_mask_value(ignored)
        expect("ignore_value", ignored, is_mask_value, f"null, or one of {value_kinds}")
        joined = self.joined_values
        expect("joined_values", joined, isinstance(joined, tuple), "a list")
        expect("joined_values", joined, all(map(_is_joined_value, joined)), "pairs of a mask value and a class index")
        is_index = self.outside_class is None or _is_byte(self.outside_class)
        expect("outside_class", self.outside_class, is_index, "null, or a class index")

    def _check_volumes(self) -> None:
        """Raises ValueError for impossible settings of volumes."""
        is_spacing = self.spacing is None or _is_tuple(self.spacing, _is_positive, 3)
        expect("spacing", self.spacing, is_spacing, "null, or three numbers above 0")
        is_range = self.clip is None or (_is_tuple(self.clip, _is_number, 2) and self.clip[0] < self.clip[1])
        expect("clip", self.clip, is_range, "null, or two numbers, the lower one first")

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
    """

    in_channels: int = 3
    num_classes: int = 2
    base_channels: int = 64
    depth: int = 4
    norm: str = "batch"
    upsample: str = "transpose"
    dropout: float = 0.0
    preprocess: Preprocess = field(default_factory=Preprocess)
    encoder: dict[str, Any] | None = None
    block: str = "plain"
    dims: int = 2
    kernels: Axes = ()
    strides: Axes = ()
    task: dict[str, Any] | None = field(default=None, metadata=LATER)
    temperature: float = field(default=1.0, metadata=LATER)

    def __post_init__(self) -> None:
        if isinstance(self.preprocess, dict):  # from config.json
            known_fields = {entry.name for entry in fields(Preprocess)}
            unknown_fields = sorted(self.preprocess.keys() - known_fields)
            if unknown_fields:
                raise ValueError(f"preprocess holds {', '.join(unknown_fields)}, {NEWER_VERSION}")
            object.__setattr__(self, "preprocess", Preprocess(**self.preprocess))
        expect("preprocess", self.preprocess, isinstance(self.preprocess, Preprocess), "an object")
        for name in ("kernels", "strides"):
            sizes = _as_tuples(getattr(self, name))
            are_lists = isinstance(sizes, tuple) and all(isinstance(size, tuple) for size in sizes)
            expect(name, sizes, are_lists, "a list for each level")
            object.__setattr__(self, name, sizes)
        self._check_network()
        self._expect_levels("kernels", self.depth + 1, (1, 3))
        self._expect_levels("strides", self.depth, (1, 2))
        self._expect_one_for_each("mean", self.network_channels, "channels")
        self._expect_one_for_each("std", self.network_channels, "channels")
        self._expect_one_for_each("class_names", self.num_classes, "classes")
        self._expect_one_for_each("class_values", self.num_classes, "classes")

    def _check_network(self) -> None:
        """Raises ValueError for an impossible network."""
        for name in ("in_channels", "num_classes", "base_channels", "depth"):
            number = getattr(self, name)
            expect(name, number, _is_natural(number), "a whole number of 1 or more")
        expect("norm", self.norm, self.norm in NORMS, f"one of {', '.join(NORMS)}")
        expect("block", self.block, self.block in BLOCKS, f"one of {', '.join(BLOCKS)}")
        expect("upsample", self.upsample, self.upsample in UPSAMPLINGS, f"one of {', '.join(UPSAMPLINGS)}")
        is_aligned_volume = self.upsample == "bilinear_aligned" and self.dims == 3
        expect("upsample", self.upsample, not is_aligned_volume, "transpose or bilinear, for volumes")
        is_encoder = self.encoder is None or isinstance(self.encoder, dict)
        expect("encoder", self.encoder, is_encoder, "null, or an object")
        expect("dims", self.dims, self.dims in (2, 3), "2 or 3")
        dims_fit = self.dims == 2 or self.encoder is None
        expect("dims", self.dims, dims_fit, "2, for the encoder takes images")
        is_task = self.task is None or (isinstance(self.task, dict) and isinstance(self.task.get("name"), str))
        expect("task", self.task, is_task, "null, or an object with a name")
        expect("temperature", self.temperature, _is_positive(self.temperature), "a number above 0")
        is_share = _is_number(self.dropout) and 0 <= self.dropout < 1
        expect("dropout", self.dropout, is_share, "a number of 0 or more and less than 1")

    def _expect_levels(self, name: str, levels: int, choices: tuple[int, int]) -> None:
        """Raises ValueError unless the field is empty, or has one of `choices` for each axis of `levels` levels."""
        values = getattr(self, name)
        is_valid = len(values) in (0, levels)
        for sizes in values:
            is_valid = is_valid and len(sizes) == self.dims and all(size in choices for size in sizes)
        choices_text = " and ".join(map(str, choices))
        expect(name, values, is_valid, f"{levels} times {self.dims} numbers of {choices_text}")

    def _expect_one_for_each(self, name: str, count: int, things: str) -> None:
        """Raises ValueError unless the field of the preprocessing is empty, or has `count` values."""
        values = getattr(self.preprocess, name)
        if values and len(values) != count:
            raise ValueError(f"{name} has {len(values)} values, expected one for each of {count} {things}")

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "UNetConfig":
        """The config that config.json holds. Raises ValueError for entries of a newer version, and for wrong values."""
        known_fields = {entry.name for entry in fields(cls)}
        unknown_fields = sorted(content.keys() - known_fields)
        if unknown_fields:
            raise ValueError(f"the config holds {', '.join(unknown_fields)}, {NEWER_VERSION}")
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        """The content of config.json; entries of later versions are left out if they have their default."""
        values = asdict(self)
        _drop_defaults(values, UNetConfig)
        _drop_defaults(values["preprocess"], Preprocess)
        return values

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
    def network_channels(self) -> int:
        """The number of channels after normalization, which repeats a grey channel for each channel of an encoder."""
        if self.encoder is None:
            return self.in_channels
        return self.encoder.get("num_channels", 3)


def _drop_defaults(values: dict[str, Any], kind: type[Any]) -> None:
    """Delete the entries of later versions whose value is the default of the dataclass `kind`."""
    for entry in fields(kind):
        if "is_later" in entry.metadata and values[entry.name] == entry.default:
            del values[entry.name]


def expect(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """Raises ValueError unless `is_valid`; the text has the name in config.json, the value and the `expected` one."""
    if not is_valid:
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 1


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_tuple(values: Any, is_valid: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(values, tuple) and all(map(is_valid, values)) and length in (None, len(values))


def _is_mask_value(value: Any) -> bool:
    if isinstance(value, int):
        return _is_number(value)
    return _is_tuple(value, _is_byte, 3)


def _is_joined_value(pair: Any) -> bool:
    """Whether it is a mask value with a class index."""
    return isinstance(pair, tuple) and len(pair) == 2 and _is_mask_value(pair[0]) and _is_byte(pair[1])


def _is_byte(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and 0 <= value <= 255


def _as_tuples(value: Any) -> Any:
    """A value of JSON with tuples for lists; any other value is returned unchanged."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value
