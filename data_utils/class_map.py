"""Mask values <-> class indices: which values are classes, what they are called, and the way there and back."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import DataError, ImageError
from unet.config import IGNORE_INDEX, MaskValue, Preprocess

NamedClasses = Sequence[tuple[MaskValue, str]]

MAX_VALUES = 255
MAX_SCATTERED = 32  # grey values that are not 0, 1, 2, ...: more of them are no classes
SHOWN = 8  # values in a message


def pack(mask: np.ndarray) -> np.ndarray:
    """(H, W, 3) colours -> (H, W) uint32 of 24 bits; (H, W) numbers stay."""
    if mask.ndim == 2:
        return mask
    packed = np.zeros((*mask.shape[:2], 4), np.uint8)
    packed[:, :, :3] = mask
    return packed.view("<u4")[:, :, 0]


def unpack(key: int) -> tuple[int, int, int]:
    return key & 255, key >> 8 & 255, key >> 16


def show(values: Iterable[MaskValue]) -> str:
    """The first few values as a user writes them: 0, 1, #804080, ..."""
    texts = [str(value) if isinstance(value, int) else "#{:02x}{:02x}{:02x}".format(*value) for value in values]
    return ", ".join(texts[:SHOWN] + ["..."] * (len(texts) > SHOWN))


def as_colour(value: MaskValue) -> MaskValue:
    """A grey level as the colour that it is."""
    return value if isinstance(value, tuple) else (value,) * 3


def as_grey(value: MaskValue) -> MaskValue:
    """A colour that is grey as its level."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


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
    return int.from_bytes(bytes(value), "little") if isinstance(value, tuple) else value


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
        """The fields of `Preprocess` that keep it in config.json."""
        return {"class_names": self.names, "class_values": self.values, "ignore_value": self.ignore_value}

    def __len__(self) -> int:
        return len(self.values)

    def decode(self, indices: np.ndarray) -> np.ndarray:
        """Class indices (H, W) -> mask values: (H, W) uint8 or uint16, or (H, W, 3) uint8 for colours."""
        if isinstance(self.values[0], tuple):
            return np.array(self.values, dtype=np.uint8)[indices]
        numbers = [value for value in self.values if isinstance(value, int)]
        if min(numbers) < 0 or max(numbers) > 65535:
            raise ImageError(
                f"mask values {min(numbers)} to {max(numbers)} cannot be written: a PNG mask holds 0 to 65535"
            )
        return np.array(numbers, dtype=np.uint8 if max(numbers) < 256 else np.uint16)[indices]

    def encode(self, mask: np.ndarray, name: str) -> np.ndarray:
        """Mask values as `read_mask` gives them -> (H, W) uint8 class indices, 255 where ignored.

        Raises DataError, with `name`, for values that are no class.
        """
        coloured = isinstance(self.values[0], tuple)
        if coloured and mask.ndim == 2 and mask.dtype == np.uint8:  # a colour mask that happens to hold only greys
            mask = np.repeat(mask[:, :, None], 3, axis=2)
        if coloured != (mask.ndim == 3):
            kinds = ("a mask of numbers", "a colour mask")
            raise DataError(f"{name} is {kinds[mask.ndim == 3]}, but the classes are {show(self.values)}")
        keys = pack(mask)
        if keys.dtype == np.int64:
            known = {value: code for code, value in enumerate(self.values, 1)}
            found, where = np.unique(keys, return_inverse=True)
            codes = np.array([known.get(value, 0) for value in found.tolist()], np.uint8)[where.reshape(keys.shape)]
        else:
            codes = _table(self.values, 1 << 24 if coloured else 1 << 8 * keys.itemsize).take(keys)
        unclassed = codes == 0
        if self.ignore_value is not None:
            unclassed &= keys != key_of(self.ignore_value)
        if unclassed.any():
            strange = np.unique(keys[unclassed]).tolist()
            unknown: list[MaskValue] = [unpack(key) for key in strange] if coloured else strange
            raise DataError(
                f"{name}: mask values {show(unknown)} belong to no class; classes are {show(self.values)};"
                " does it use other numbers, or is it a lossy (JPEG) mask?"
            )
        return codes - np.uint8(1)  # 0, the ignored, becomes 255

    def encode_volume(self, values: np.ndarray, name: str) -> np.ndarray:
        """As `encode`, (D, H, W) -> (D, H, W), slice by slice; a volume's classes have no colours."""
        indices = np.empty(values.shape, np.uint8)
        for of_plane, plane in zip(indices, values, strict=True):
            of_plane[:] = self.encode(plane, name)
        return indices


def _parse_value(text: str) -> MaskValue:
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        red, green, blue = bytes.fromhex(text[1:])
        return red, green, blue
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    raise DataError(f"{text!r} is no mask value; expected a whole number or a colour such as #804080")


def parse_classes(text: str) -> list[tuple[MaskValue, str]]:
    """`0=background,255=car`, `#804080=road,...`, or a JSON file {"0": "background"} or [name, ...].

    Raises DataError for what is neither, and for a value or name that stands twice.
    """
    if "=" in text and not text.endswith(".json"):
        pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
    else:
        pairs = _read_classes(text)
    classes = [(_parse_value(value.strip()), name.strip()) for value, name in pairs]
    values, names = [value for value, _ in classes], [name for _, name in classes]
    if "" in names:
        raise DataError(f"class {show(values[names.index('') :][:1])} has no name; expected VALUE=NAME")
    for shown in ([f"value {show([value])}" for value in values], [f"name {name}" for name in names]):
        twice = [what for what, count in Counter(shown).items() if count > 1]
        if twice:
            raise DataError(f"class {twice[0]} is given twice")
    if len({type(value) for value in values}) > 1:
        raise DataError(f"classes mix numbers and colours: {show(values)}")
    return classes


def _read_classes(path: str) -> list[tuple[str, str]]:
    try:
        # objects as tuples of pairs: a dict would hide a key that stands twice
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=tuple)
    except (OSError, ValueError) as error:
        raise DataError(f"classes {path!r}: neither VALUE=NAME,... nor a readable JSON file ({error})") from error
    if isinstance(content, list):
        content = [(str(i), name) for i, name in enumerate(content)]
    if not isinstance(content, list | tuple) or not all(isinstance(name, str) for _, name in content):
        raise DataError(f'{path}: expected {{"0": "background", ...}} or ["background", ...]')
    return list(content)


def named_classes(flag: str | None, of_files: NamedClasses) -> NamedClasses:
    """What --classes says, else what the data set's own files say; empty where neither names classes."""
    return parse_classes(flag) if flag else of_files


def resolve_classes(found: dict[MaskValue, int], classes: NamedClasses, ignore: str | None) -> ClassMap:
    """The classes of masks that hold the values `found` (as `inspect.total_pixels` gives them).

    Without `classes`, every value in order is a class save the ignored one: `ignore`, or 255 where the others are
    0, 1, ... n-1 and n >= 2; so 255 is a class in {0, 255}. Raises DataError for fewer than 2 classes.
    """
    values: list[Any] = sorted(found)
    ignored = None if ignore is None else _parse_value(ignore)
    if not classes:
        if ignored is not None and ignored not in found:
            raise DataError(f"--ignore-index {ignore} is in no mask; the masks hold {show(values)}")
        if ignored is None and len(values) > 2 and values == [*range(len(values) - 1), IGNORE_INDEX]:
            ignored = IGNORE_INDEX
        values = [value for value in values if value != ignored]
        if len(values) > MAX_SCATTERED and isinstance(values[0], int) and values[-1] - values[0] >= len(values):
            raise DataError(
                f"the masks hold {len(values)} grey values, {show(values)}: smoothed edges or lossy compression?"
                " Save masks as they were drawn, or name the classes with --classes"
            )
        binary = len(values) == 2 and values[0] in (0, (0, 0, 0))
        names = ["background", "foreground"] if binary else [show([value]) for value in values]
    else:
        pairs = list(classes)
        greys = all(isinstance(value, tuple) and len(set(value)) == 1 for value, _ in pairs)
        if greys and all(isinstance(value, int) for value in found):  # black and white by colour: stored so or not
            pairs = [(value[0], name) for value, name in pairs if isinstance(value, tuple)]
        occurring = sum(value in found for value, _ in pairs)
        if ignored is None and IGNORE_INDEX in found and IGNORE_INDEX not in dict(pairs) and occurring >= 2:
            ignored = IGNORE_INDEX  # with one class or none in the masks, 255 is the other one, named wrongly
        pairs = [(value, name) for value, name in pairs if value != ignored]
        values, names = [value for value, _ in pairs], [name for _, name in pairs]
    if not 2 <= len(values) <= MAX_VALUES:
        raise DataError(f"{len(values)} classes, expected 2 to {MAX_VALUES}; the masks hold {show(sorted(found))}")
    return ClassMap(tuple(names), tuple(values), ignored)
