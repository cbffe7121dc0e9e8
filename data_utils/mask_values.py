"""Mask values: numbers and colors, how they become keys, are counted, shown and read from text."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

MAX_VALUES = 255
VALUES_IN_MESSAGE = 8
MANY_VALUES = 32
# the value of pixels of which a mask says nothing, as it is NaN there or on another grid: what no mask holds, unlike
# -32767 and -9999
BEYOND_MASK = -21_331
ROUNDING_ERROR = 1e-3  # numbers that lie so close to a whole one are that number, stored with a scale or as float


def value_keys(mask: np.ndarray) -> np.ndarray:
    """A number for each pixel: (H, W, 3) colors -> (H, W) uint32 of 24 bits; (H, W) numbers stay."""
    if mask.ndim == 2:
        return mask
    packed = np.zeros((*mask.shape[:2], 4), np.uint8)
    packed[:, :, :3] = mask
    return packed.view("<u4")[:, :, 0]


def key_color(key: int) -> tuple[int, int, int]:
    """The color that `value_keys` has turned into a number."""
    return key & 255, key >> 8 & 255, key >> 16


def value_key(value: MaskValue) -> int:
    """The number that `value_keys` gives a mask value; -1, which it never gives, for a color of more than 8 bits."""
    if isinstance(value, tuple):
        is_8_bit = all(0 <= level <= 255 for level in value)
        return int.from_bytes(bytes(value), "little") if is_8_bit else -1
    return value


def count_values(mask: np.ndarray) -> dict[MaskValue, int]:
    """Pixels of each value of a mask as `read_mask` gives it."""
    flat = value_keys(mask).ravel()
    # Masks are made of long runs of one value: counting runs is several times faster than sorting pixels.
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
    distinct_keys, run_indices = np.unique(flat[starts], return_inverse=True)
    run_lengths = np.diff(starts, append=flat.size)
    counts = np.bincount(run_indices, weights=run_lengths).astype(int)
    values: list[MaskValue] = distinct_keys.tolist()
    if mask.ndim == 3:
        values = [key_color(key) for key in distinct_keys.tolist()]
    return dict(zip(values, counts.tolist(), strict=True))


def sort_values(values: Iterable[MaskValue]) -> list[MaskValue]:
    """Mask values in order; in one data set all are numbers or all are colors, which the type cannot express."""
    return sorted(values)  # type: ignore[type-var]


def value_text(value: MaskValue) -> str:
    """A value as a user writes it: 7, or #804080."""
    if isinstance(value, int):
        return str(value)
    red, green, blue = value
    return f"#{red:02x}{green:02x}{blue:02x}"


def show(values: Iterable[MaskValue]) -> str:
    """The first few values as a user writes them: 0, 1, #804080, ..."""
    texts = [value_text(value) for value in values]
    return listing(texts, VALUES_IN_MESSAGE)


def round_numbers(values: np.ndarray, location: str) -> np.ndarray:
    """Numbers of any shape as int64. Raises DataError, with `location`, for fractions and what int64 does not hold."""
    with np.errstate(invalid="ignore"):  # NaN and infinity differ from whatever they are cast to
        if values.dtype.kind == "f":
            whole = np.rint(values).astype(np.int64)
            is_other = ~(np.abs(whole - values) <= ROUNDING_ERROR)
        else:
            whole = values.astype(np.int64)
            is_other = whole != values
    if is_other.any():
        raise DataError(f"{location} holds {values[is_other][0]:.9g}, expected whole numbers")
    return whole


def number_type(values: Iterable[int]) -> type[np.uint8 | np.uint16]:
    """The smaller type that holds the numbers."""
    return np.uint8 if max(values, default=0) <= np.iinfo(np.uint8).max else np.uint16


def as_color(value: MaskValue) -> MaskValue:
    """A grey level as a color; a color is returned unchanged."""
    if isinstance(value, tuple):
        return value
    return value, value, value


def as_grey(value: MaskValue) -> MaskValue:
    """A grey color as its grey level; any other value is returned unchanged."""
    if isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    return value


def has_colors(values: Iterable[MaskValue]) -> bool:
    """Whether some of the values are colors; then the numbers among them are grey colors."""
    return any(isinstance(value, tuple) for value in values)


def count_colors(pixels: Mapping[MaskValue, int]) -> Counter[MaskValue]:
    """The pixels of each value, with grey levels as colors."""
    color_pixels: Counter[MaskValue] = Counter()
    for value, count in pixels.items():
        color_pixels[as_color(value)] += count
    return color_pixels


def parse_value(text: str) -> MaskValue:
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        red, green, blue = bytes.fromhex(text[1:])
        return red, green, blue
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    raise DataError(f"{text!r} is no mask value; expected a whole number or a color such as #804080")


def parse_values(text: str | None) -> list[MaskValue]:
    """The mask values of `11` or `0,255`; none of an empty text."""
    if not text:
        return []
    return [parse_value(value.strip()) for value in text.split(",")]
