"""What config.json holds: the architecture of a model, and the preprocessing that it was trained with."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

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
        detect_unit_range: take an image without a value above 1 for one in 0..1 instead of 0..255 (what Pytorch-UNet
            does, and its models expect).
        draft: decode of a JPEG file no more detail than the size asks for: several times as fast at half the size and
            below. So a file differs by a few grey levels from the array of its pixels.
        pixel_types: NumPy's names of the pixels that `mean` and `std` were measured on; others get a warning.
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

    def __post_init__(self) -> None:
        # JSON knows lists only
        for name in ("image_size", "mean", "std", "class_names", "ignore_value", "pixel_types"):
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
        for name in ("detect_unit_range", "draft"):
            expect(name, getattr(self, name), isinstance(getattr(self, name), bool), "true or false")

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) at which the network sees an image of `height` x `width`."""
        if self.image_size is not None:
            return self.image_size
        return max(1, int(height * self.scale)), max(1, int(width * self.scale))


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

    def __post_init__(self) -> None:
        if isinstance(self.preprocess, dict):  # from config.json
            unknown = sorted(self.preprocess.keys() - {known.name for known in fields(Preprocess)})
            if unknown:
                raise ValueError(f"preprocess holds {', '.join(unknown)}, which this version does not know")
            object.__setattr__(self, "preprocess", Preprocess(**self.preprocess))
        expect("preprocess", self.preprocess, isinstance(self.preprocess, Preprocess), "an object")
        for name in ("in_channels", "num_classes", "base_channels", "depth"):
            expect(name, getattr(self, name), _is_natural(getattr(self, name)), "a whole number of 1 or more")
        expect("norm", self.norm, self.norm in NORMS, f"one of {', '.join(NORMS)}")
        expect("block", self.block, self.block in BLOCKS, f"one of {', '.join(BLOCKS)}")
        expect("upsample", self.upsample, self.upsample in UPSAMPLINGS, f"one of {', '.join(UPSAMPLINGS)}")
        expect("encoder", self.encoder, self.encoder is None or isinstance(self.encoder, dict), "null, or an object")
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

    @property
    def network_channels(self) -> int:
        """Channels behind the normalisation, which repeats grey for each one that an encoder takes."""
        return self.in_channels if self.encoder is None else self.encoder.get("num_channels", 3)


def expect(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """ValueError unless `is_valid`, with what config.json holds under `name` and what is `expected` there."""
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
