"""Mask values <-> class indices: which values are classes, what they are called, and the way there and back."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from runtime.console import first_few
from runtime.documents import parse_json, read_bytes
from runtime.errors import DataError, ImageError
from unet.config import IGNORE_INDEX, MaskValue, Preprocess

NamedClasses = Sequence[tuple[MaskValue, str]]

MAX_VALUES = 255
MAX_SCATTERED = 32  # grey values that are not 0, 1, 2, ...: more of them are no classes
SHOWN = 8  # values in a message


def pack(mask: np.ndarray) -> np.ndarray:
    """(H, W, 3) colors -> (H, W) uint32 of 24 bits; (H, W) numbers stay."""
    if mask.ndim == 2:
        return mask
    packed = np.zeros((*mask.shape[:2], 4), np.uint8)
    packed[:, :, :3] = mask
    return packed.view("<u4")[:, :, 0]


def unpack(key: int) -> tuple[int, int, int]:
    """The color that `pack` has turned into a number."""
    return key & 255, key >> 8 & 255, key >> 16


def show(values: Iterable[MaskValue]) -> str:
    """The first few values as a user writes them: 0, 1, #804080, ..."""
    texts = [_value_text(value) for value in values]
    return ", ".join(first_few(texts, SHOWN))


def _value_text(value: MaskValue) -> str:
    """A value as a user writes it: 7, or #804080."""
    if isinstance(value, int):
        return str(value)
    red, green, blue = value
    return f"#{red:02x}{green:02x}{blue:02x}"


def as_color(value: MaskValue) -> MaskValue:
    """A grey level as the color that it is."""
    if isinstance(value, tuple):
        return value
    return value, value, value


def as_grey(value: MaskValue) -> MaskValue:
    """A color that is grey as its level."""
    if isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    return value


@lru_cache(maxsize=8)
def _table(values: tuple[MaskValue, ...], size: int) -> np.ndarray:
    """Mask value -> class index + 1, 0 for all others."""
    table = np.zeros(size, np.uint8)  # the 24-bit table occupies only the pages that are written
    for code, value in enumerate(values, 1):
        if 0 <= key_of(value) < size:
            table[key_of(value)] = code
    return table


def key_of(value: MaskValue) -> int:
    """The number that `pack` gives a mask value."""
    if isinstance(value, tuple):
        return int.from_bytes(bytes(value), "little")
    return value


@dataclass(frozen=True)
class ClassMap:
    """What mask values mean: class i is called names[i] and written values[i]; `ignore_value` counts nowhere."""

    names: tuple[str, ...]
    values: tuple[MaskValue, ...]
    ignore_value: MaskValue | None

    @classmethod
    def of_model(cls, preprocess: Preprocess, num_classes: int) -> "ClassMap":
        """What a model's config.json says; class i is written i where it says nothing."""
        values = preprocess.class_values or tuple(range(num_classes))
        return cls(preprocess.class_names or tuple(map(str, values)), values, preprocess.ignore_value)

    def to_preprocess(self) -> dict[str, Any]:
        """The fields of `Preprocess` that keep the class map in config.json."""
        return {"class_names": self.names, "class_values": self.values, "ignore_value": self.ignore_value}

    def __len__(self) -> int:
        return len(self.values)

    def decode(self, indices: np.ndarray) -> np.ndarray:
        """Class indices (H, W) -> mask values: (H, W) uint8 or uint16, or (H, W, 3) uint8 for colors."""
        if isinstance(self.values[0], tuple):
            return np.array(self.values, dtype=np.uint8)[indices]
        numbers = [value for value in self.values if isinstance(value, int)]
        if min(numbers) < 0 or max(numbers) > 65535:
            raise ImageError(
                f"mask values {min(numbers)} to {max(numbers)} cannot be written: a PNG mask holds 0 to 65535"
            )
        table = np.array(numbers, dtype=np.uint8 if max(numbers) < 256 else np.uint16)
        return table[indices]

    def encode(self, mask: np.ndarray, name: str) -> np.ndarray:
        """Mask values as `read_mask` gives them -> (H, W) uint8 class indices, 255 where ignored.

        Raises DataError, with `name`, for values that are no class.
        """
        has_colors = isinstance(self.values[0], tuple)
        if has_colors and mask.ndim == 2 and mask.dtype == np.uint8:  # a color mask that happens to hold only greys
            mask = np.repeat(mask[:, :, None], 3, axis=2)
        if has_colors != (mask.ndim == 3):
            kind = "a colour mask" if mask.ndim == 3 else "a mask of numbers"
            raise DataError(f"{name} is {kind}, but the classes are {show(self.values)}")
        keys = pack(mask)
        if keys.dtype == np.int64:
            code_of = {value: code for code, value in enumerate(self.values, 1)}
            distinct_keys, positions = np.unique(keys, return_inverse=True)
            distinct_codes = np.array([code_of.get(key, 0) for key in distinct_keys.tolist()], np.uint8)
            codes = distinct_codes[positions.reshape(keys.shape)]
        else:
            bits = 24 if has_colors else 8 * keys.itemsize
            codes = _table(self.values, 1 << bits).take(keys)
        unclassed = codes == 0
        if self.ignore_value is not None:
            unclassed &= keys != key_of(self.ignore_value)
        if unclassed.any():
            unknown: list[Any] = np.unique(keys[unclassed]).tolist()
            if has_colors:
                unknown = [unpack(key) for key in unknown]
            raise DataError(
                f"{name}: mask values {show(unknown)} belong to no class; classes are {show(self.values)};"
                " does it use other numbers, or is it a lossy (JPEG) mask?"
            )
        return codes - np.uint8(1)  # 0, the ignored, becomes 255

    def encode_volume(self, values: np.ndarray, name: str) -> np.ndarray:
        """Encode (D, H, W) -> (D, H, W) slice by slice, each as `encode` does it; a volume's classes have no colors."""
        indices = np.empty(values.shape, np.uint8)
        for plane_indices, plane in zip(indices, values, strict=True):
            plane_indices[:] = self.encode(plane, name)
        return indices


def _parse_value(text: str) -> MaskValue:
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        red, green, blue = bytes.fromhex(text[1:])
        return red, green, blue
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    raise DataError(f"{text!r} is no mask value; expected a whole number or a colour such as #804080")


def parse_classes(text: str) -> list[tuple[MaskValue, str]]:
    """`0=background,255=car`, `#804080=road,...`, or a JSON file {"0": "background"} or [name, ...].

    Raises DataError for what is neither, and for a value or name that stands twice.
    """
    is_file = "=" not in text or text.endswith(".json")
    pairs = _read_classes(text) if is_file else _split_pairs(text)
    classes = [(_parse_value(value.strip()), name.strip()) for value, name in pairs]
    values = [value for value, _ in classes]
    names = [name for _, name in classes]
    if "" in names:
        unnamed = values[names.index("")]
        raise DataError(f"class {show([unnamed])} has no name; expected VALUE=NAME")
    _check_distinct([f"value {show([value])}" for value in values])
    _check_distinct([f"name {name}" for name in names])
    if len({type(value) for value in values}) > 1:
        raise DataError(f"classes mix numbers and colours: {show(values)}")
    return classes


def _split_pairs(text: str) -> list[tuple[str, str]]:
    """Value and name of each part of `0=background,255=car`."""
    pairs = []
    for part in text.split(","):
        if part.strip():
            value, _, name = part.partition("=")
            pairs.append((value, name))
    return pairs


def _check_distinct(descriptions: list[str]) -> None:
    """DataError for the first of the descriptions that stands twice."""
    for description, count in Counter(descriptions).items():
        if count > 1:
            raise DataError(f"class {description} is given twice")


def _read_classes(path: str) -> list[tuple[str, str]]:
    """Value and name of each class in a JSON file."""
    try:
        # objects as tuples of pairs: a dict would hide a key that stands twice
        content = parse_json(read_bytes(path), (list, tuple), as_pairs=True)
    except (OSError, ValueError) as error:
        raise DataError(f"classes {path!r}: neither VALUE=NAME,... nor a readable JSON file ({error})") from error
    if isinstance(content, list):
        content = [(str(i), name) for i, name in enumerate(content)]
    if not all(isinstance(name, str) for _, name in content):
        raise DataError(f'{path}: expected {{"0": "background", ...}} or ["background", ...]')
    return list(content)


def named_classes(flag: str | None, file_classes: NamedClasses) -> NamedClasses:
    """What --classes says, else what the data set's own files say; empty where neither names classes."""
    if flag:
        return parse_classes(flag)
    return file_classes


def resolve_classes(pixels: dict[MaskValue, int], classes: NamedClasses, ignore: str | None) -> ClassMap:
    """The classes of masks that hold these values (as `inspect.total_pixels` gives them).

    Without `classes`, every value in order is a class save the ignored one: `ignore`, or 255 where the others are
    0, 1, ... n-1 and n >= 2; so 255 is a class in {0, 255}. Raises DataError for fewer than 2 classes.
    """
    mask_values: list[Any] = sorted(pixels)
    ignored = None if ignore is None else _parse_value(ignore)
    if classes:
        class_map = _map_named(classes, mask_values, ignored)
    else:
        if ignored is not None and ignored not in pixels:
            raise DataError(f"--ignore-index {ignore} is in no mask; the masks hold {show(mask_values)}")
        class_map = _map_unnamed(mask_values, ignored)
    if not 2 <= len(class_map) <= MAX_VALUES:
        raise DataError(f"{len(class_map)} classes, expected 2 to {MAX_VALUES}; the masks hold {show(mask_values)}")
    return class_map


def _map_unnamed(mask_values: list[Any], ignored: MaskValue | None) -> ClassMap:
    """The class map of masks whose values, all that there are in order, nobody has named."""
    consecutive = list(range(len(mask_values) - 1))
    if ignored is None and len(mask_values) > 2 and mask_values == [*consecutive, IGNORE_INDEX]:
        ignored = IGNORE_INDEX
    values = [value for value in mask_values if value != ignored]
    if len(values) > MAX_SCATTERED and isinstance(values[0], int) and values[-1] - values[0] >= len(values):
        raise DataError(
            f"the masks hold {len(values)} grey values, {show(values)}: smoothed edges or lossy compression?"
            " Save masks as they were drawn, or name the classes with --classes"
        )
    names = [show([value]) for value in values]
    if len(values) == 2 and values[0] in (0, (0, 0, 0)):
        names = ["background", "foreground"]
    return ClassMap(tuple(names), tuple(values), ignored)


def _map_named(classes: NamedClasses, mask_values: list[Any], ignored: MaskValue | None) -> ClassMap:
    """The class map of masks whose `classes` have names."""
    pairs = list(classes)
    all_greys = all(as_grey(value) != value for value, _ in pairs)
    if all_greys and all(isinstance(value, int) for value in mask_values):
        # black and white are named by their colors, and these masks store them as numbers
        pairs = [(as_grey(value), name) for value, name in pairs]
    known_values = {value for value, _ in pairs}
    occurring = sum(value in mask_values for value, _ in pairs)
    has_unnamed_255 = IGNORE_INDEX in mask_values and IGNORE_INDEX not in known_values
    if ignored is None and has_unnamed_255 and occurring >= 2:
        ignored = IGNORE_INDEX  # with one class or none in the masks, 255 is the other one, named wrongly
    pairs = [(value, name) for value, name in pairs if value != ignored]
    names = tuple(name for _, name in pairs)
    values = tuple(value for value, _ in pairs)
    return ClassMap(names, values, ignored)
