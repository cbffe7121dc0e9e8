"""What config.json holds: the architecture of a model, and the preprocessing that it was trained with."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unet.axes import Axes
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS

IGNORE_INDEX = 255  # the class index, inside this project, of pixels that count in neither loss nor metric
MaskValue = int | tuple[int, int, int]  # a grey level or an RGB colour


@dataclass(frozen=True)
class Preprocess:
    """Everything beside weights that prediction needs; part of the model's config.json.

    Args:
        image_size: (H, W) that every image is resized to; None leaves `scale` to decide.
        scale: factor on height and width, rounded down.
        mean, std: of the training images for each channel, in the files' own value range; empty means 0 and 1.
        class_names, class_values: name and mask value (grey level or RGB colour) of each class.
        ignore_value: the mask value that counts in neither loss nor metric, None where there is none.
        detect_unit_range: treat an image without a value above 1 as one in 0..1 instead of 0..255 (Pytorch-UNet does
            so, and its models expect it).
        draft: decode a JPEG file at a reduced size if the network sees it that small: several times as fast at half
            the size and below. A file then differs by a few grey levels from the array of its pixels.
        pixel_types: NumPy's names of the pixels that `mean` and `std` were measured on; others get a warning.
        spacing: (z, y, x) in mm that volumes are resampled to; None for images.
        clip: lowest and highest value that the voxels of volumes are clipped to, None where they are not.
        standardize: give each channel of a volume mean 0 and standard deviation 1 over its own voxels.
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
    detect_unit_range: bool = False
    draft: bool = True
    pixel_types: tuple[str, ...] = ()
    spacing: tuple[float, float, float] | None = None
    clip: tuple[float, float] | None = None
    standardize: bool = False
    turned: bool = True

    def __post_init__(self) -> None:
        # JSON knows lists only
        for name in ("image_size", "mean", "std", "class_names", "ignore_value", "pixel_types", "spacing", "clip"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        expect("class_values", self.class_values, isinstance(self.class_values, list | tuple), "a list")
        values = tuple(tuple(value) if isinstance(value, list) else value for value in self.class_values)
        object.__setattr__(self, "class_values", values)
        size = self.image_size
        expect("image_size", size, size is None or _is_tuple(size, _is_natural, 2), "null, or height and width")
        expect("scale", self.scale, _is_number(self.scale) and self.scale > 0, "a number above 0")
        expect("mean", self.mean, _is_tuple(self.mean, _is_number), "finite numbers")
        expect("std", self.std, _is_tuple(self.std, lambda v: _is_number(v) and v > 0), "finite numbers above 0")
        for name in ("class_names", "pixel_types"):
            texts = getattr(self, name)
            expect(name, texts, _is_tuple(texts, lambda text: isinstance(text, str)), "texts")
        known = "grey levels, or colours of three numbers from 0 to 255"
        expect("class_values", values, all(map(_is_mask_value, values)), known)
        alike = len({type(value) for value in values}) < 2 and len({*values}) == len(values)
        expect("class_values", values, alike, "different ones, all of one kind")
        ignored = self.ignore_value
        expect("ignore_value", ignored, ignored is None or _is_mask_value(ignored), f"null, or one of {known}")
        above = self.spacing is None or _is_tuple(self.spacing, lambda v: _is_number(v) and v > 0, 3)
        expect("spacing", self.spacing, above, "null, or three numbers above 0")
        ordered = self.clip is None or (_is_tuple(self.clip, _is_number, 2) and self.clip[0] < self.clip[1])
        expect("clip", self.clip, ordered, "null, or two numbers, the lower one first")
        for name in ("detect_unit_range", "draft", "standardize", "turned"):
            expect(name, getattr(self, name), isinstance(getattr(self, name), bool), "true or false")
        # 1.0 may stand there as 1, which would make tensors of whole numbers
        object.__setattr__(self, "scale", float(self.scale))
        for name in ("mean", "std", "spacing", "clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) at which the network sees an image of `height` x `width`."""
        if self.image_size is not None:
            return self.image_size
        return max(1, int(height * self.scale)), max(1, int(width * self.scale))

    def resampled_size(self, size: Sequence[int], spacing: Sequence[float]) -> tuple[int, ...]:
        """(D, H, W) at which the network sees a volume of `size` (D, H, W) and `spacing` (z, y, x) in mm."""
        wanted = self.spacing or spacing
        return tuple(max(1, round(n * have / want)) for n, have, want in zip(size, spacing, wanted, strict=True))


@dataclass(frozen=True)
class UNetConfig:
    """Architecture and preprocessing of one model: what config.json holds.

    Args:
        base_channels: width of the first level; each of the `depth` levels below doubles it.
        norm: `batch`, `group` or `instance`.
        upsample: `transpose`, `bilinear` or `bilinear_aligned`.
        dropout: probability, at the end of the contracting path as in the paper.
        encoder: the config of a backbone of transformers that takes the place of the contracting path, with its
            `_name_or_path` and `license`; `depth` is then the level of its coarsest features.
        block: `plain` or `residual`.
        dims: 2 for images, 3 for volumes.
        kernels: of each level from the finest, `depth` + 1 of them, the size of its convolutions along each axis;
            empty for 3 everywhere.
        strides: of each step down, `depth` of them, the factor along each axis; empty for 2 everywhere.
        task: what the outputs mean, an object with its `name`; None where they are classes.
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
    task: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.preprocess, dict):  # from config.json
            unknown = sorted(self.preprocess.keys() - {known.name for known in fields(Preprocess)})
            if unknown:
                raise ValueError(f"preprocess holds {', '.join(unknown)}, which this version does not know")
            object.__setattr__(self, "preprocess", Preprocess(**self.preprocess))
        expect("preprocess", self.preprocess, isinstance(self.preprocess, Preprocess), "an object")
        for name in ("kernels", "strides"):
            object.__setattr__(self, name, tuple(map(tuple, getattr(self, name))))
        for name in ("in_channels", "num_classes", "base_channels", "depth"):
            expect(name, getattr(self, name), _is_natural(getattr(self, name)), "a whole number of 1 or more")
        expect("norm", self.norm, self.norm in NORMS, f"one of {', '.join(NORMS)}")
        expect("block", self.block, self.block in BLOCKS, f"one of {', '.join(BLOCKS)}")
        expect("upsample", self.upsample, self.upsample in UPSAMPLINGS, f"one of {', '.join(UPSAMPLINGS)}")
        is_aligned = self.upsample == "bilinear_aligned"
        expect("upsample", self.upsample, not (is_aligned and self.dims == 3), "transpose or bilinear, for volumes")
        expect("encoder", self.encoder, self.encoder is None or isinstance(self.encoder, dict), "null, or an object")
        expect("dims", self.dims, self.dims in (2, 3), "2 or 3")
        expect("dims", self.dims, self.dims == 2 or self.encoder is None, "2, for the encoder takes images")
        is_task = self.task is None or (isinstance(self.task, dict) and isinstance(self.task.get("name"), str))
        expect("task", self.task, is_task, "null, or an object with a name")
        for name, values, count, known in (
            ("kernels", self.kernels, self.depth + 1, (1, 3)),
            ("strides", self.strides, self.depth, (1, 2)),
        ):
            fits = all(len(axes) == self.dims and all(axis in known for axis in axes) for axes in values)
            what = f"{count} times {self.dims} numbers of {' and '.join(map(str, known))}"
            expect(name, values, fits and len(values) in (0, count), what)
        is_share = _is_number(self.dropout) and 0 <= self.dropout < 1
        expect("dropout", self.dropout, is_share, "a number of 0 or more and less than 1")
        for name, count, what in (
            ("mean", self.network_channels, "channels"),
            ("std", self.network_channels, "channels"),
            ("class_names", self.num_classes, "classes"),
            ("class_values", self.num_classes, "classes"),
        ):
            values = getattr(self.preprocess, name)
            if values and len(values) != count:
                raise ValueError(f"{name} has {len(values)} values, expected one for each of {count} {what}")

    def to_json(self) -> dict[str, Any]:
        """What config.json holds, which names the task only where the outputs are no classes."""
        values = asdict(self)
        if self.task is None:
            del values["task"]
        return values

    @property
    def level_kernels(self) -> Axes:
        """The size of the convolutions along each axis, for each of the `depth` + 1 levels."""
        return self.kernels or ((3,) * self.dims,) * (self.depth + 1)

    @property
    def level_strides(self) -> Axes:
        """The factor along each axis, for each of the `depth` steps down."""
        return self.strides or ((2,) * self.dims,) * self.depth

    @property
    def divisors(self) -> tuple[int, ...]:
        """Number of pixels along each axis that become one at the lowest level: 2^depth for images."""
        return tuple(math.prod(factors) for factors in zip(*self.level_strides, strict=True))

    @property
    def network_channels(self) -> int:
        """Channels after normalisation, which repeats grey for each channel of an encoder."""
        return self.in_channels if self.encoder is None else self.encoder.get("num_channels", 3)


def expect(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """ValueError unless `is_valid`; its text has the `name` in config.json, the value found and the one `expected`."""
    if not is_valid:
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 1


def _is_tuple(values: Any, is_valid: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(values, tuple) and all(map(is_valid, values)) and length in (None, len(values))


def _is_mask_value(value: Any) -> bool:
    if isinstance(value, int):
        return _is_number(value)
    return _is_tuple(value, lambda band: isinstance(band, int) and _is_number(band) and 0 <= band <= 255, 3)
