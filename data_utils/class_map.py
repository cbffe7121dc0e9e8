"""Mask values <-> class indices: which values are classes, their names, and the conversion in both directions."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from runtime.console import listing
from runtime.documents import parse_json, read_bytes
from runtime.errors import DataError, ImageError
from unet.config import IGNORE_INDEX, MaskValue, Preprocess

NamedClasses = Sequence[tuple[MaskValue, str]]  # the mask value and the name of each class

MAX_VALUES = 255
MAX_SCATTERED = 32  # grey values that are not 0, 1, 2, ...: more of them are no classes
VALUES_IN_MESSAGE = 8
BACKGROUND = "background"
BACKGROUND_NAMES = (BACKGROUND, "_background_", "__background__")
OUTSIDE = ("ignore", "background")  # the meaning of mask values that --classes leaves out
REPAIR = (
    "Export the masks again without smoothing (re-saving them keeps the invented values),"
    " see docs/preparing-masks.md#no-smoothed-edges"
)
COMMON_SHARE = 0.05  # a value with such a share of the pixels is hardly an edge
MOST_SHARE = 0.6  # where few values hold such a share of the pixels, the others may be invented


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


def sorted_values(values: Iterable[MaskValue]) -> list[MaskValue]:
    """Mask values in order; in one data set all are numbers or all are colors, which the type cannot express."""
    return sorted(values)  # type: ignore[type-var]


def show(values: Iterable[MaskValue]) -> str:
    """The first few values as a user writes them: 0, 1, #804080, ..."""
    texts = [value_text(value) for value in values]
    return listing(texts, VALUES_IN_MESSAGE)


def value_text(value: MaskValue) -> str:
    """A value as a user writes it: 7, or #804080."""
    if isinstance(value, int):
        return str(value)
    red, green, blue = value
    return f"#{red:02x}{green:02x}{blue:02x}"


def is_background(name: str) -> bool:
    """Whether a class of this name is the background."""
    return name.lower() in BACKGROUND_NAMES


def is_run(values: Iterable[MaskValue]) -> bool:
    """Whether the values are 0, 1, ..., n, perhaps with the usual ignored value, 255."""
    numbers = set(values) - {IGNORE_INDEX}
    return numbers == set(range(len(numbers)))


def classes_example(values: Sequence[MaskValue]) -> str:
    """An example of --classes for these values."""
    if len(values) == 2:
        return f"{value_text(values[0])}=background,{value_text(values[1])}=foreground"
    texts = []
    for number, value in enumerate(values):
        name = f"class{number}" if number else "background"
        texts.append(f"{value_text(value)}={name}")
    return ",".join(texts)


def describe_invented(pixels: Mapping[MaskValue, int]) -> str | None:
    """A line on masks with very many values if a few of these hold most of the pixels; else None."""
    total = sum(pixels.values())
    ordered = sorted(pixels, key=pixels.__getitem__, reverse=True)
    share = 0.0
    count = 0
    for value in ordered[:VALUES_IN_MESSAGE]:
        if count >= 2 and share >= MOST_SHARE and pixels[value] < COMMON_SHARE * total:
            break
        share += pixels[value] / total
        count += 1
    if count < 2 or share < MOST_SHARE:
        return None
    classes = sorted_values(ordered[:count])
    return (
        f"{share:.1%} of the pixels hold {show(classes)}; the others look like smoothed edges (JPEG, interpolation)."
        f" {REPAIR}; --check-data --classes {classes_example(classes)} lists the files, and --outside ignore after it"
        " trains without the other values. If there are more classes, name them all"
    )


def as_color(value: MaskValue) -> MaskValue:
    """A grey level as a color; a color is returned unchanged."""
    if isinstance(value, tuple):
        return value
    return value, value, value


def has_colors(values: Iterable[MaskValue]) -> bool:
    """Whether some of the values are colors; then the numbers among them are grey colors."""
    return any(isinstance(value, tuple) for value in values)


def in_colors(pixels: Mapping[MaskValue, int]) -> Counter[MaskValue]:
    """The pixels of each value, with grey levels as colors."""
    color_pixels: Counter[MaskValue] = Counter()
    for value, count in pixels.items():
        color_pixels[as_color(value)] += count
    return color_pixels


def as_grey(value: MaskValue) -> MaskValue:
    """A grey color as its grey level; any other value is returned unchanged."""
    if isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    return value


@lru_cache(maxsize=8)
def _table(index_of: tuple[tuple[MaskValue, int], ...], size: int) -> np.ndarray:
    """Mask value -> class index + 1, 0 for all others."""
    table = np.zeros(size, np.uint8)  # the 24-bit table occupies only the pages that are written
    for value, index in index_of:
        if 0 <= key_of(value) < size:
            table[key_of(value)] = index + 1
    return table


def key_of(value: MaskValue) -> int:
    """The number that `pack` gives a mask value; -1, which `pack` never gives, for a color of more than 8 bits."""
    if isinstance(value, tuple):
        is_8_bit = all(0 <= level <= 255 for level in value)
        return int.from_bytes(bytes(value), "little") if is_8_bit else -1
    return value


@dataclass(frozen=True)
class ClassMap:
    """The meaning of mask values: class i has the name names[i] and value values[i]; `ignore_value` is ignored.

    Args:
        joined: further mask values, each with the index of its class, or `IGNORE_INDEX` if it is ignored.
        outside: the index for all values that are listed nowhere; None if such values are mistakes.
    """

    names: tuple[str, ...]
    values: tuple[MaskValue, ...]
    ignore_value: MaskValue | None
    joined: tuple[tuple[MaskValue, int], ...] = ()
    outside: int | None = None

    @classmethod
    def of_model(cls, preprocess: Preprocess, num_classes: int) -> "ClassMap":
        """The class map of a model's config.json; class i has the value i if the config has no values."""
        values = preprocess.class_values or tuple(range(num_classes))
        names = preprocess.class_names or tuple(map(str, values))
        return cls(names, values, preprocess.ignore_value, preprocess.joined_values, preprocess.outside_class)

    def to_preprocess(self) -> dict[str, Any]:
        """The fields of `Preprocess` that keep the class map in config.json."""
        return {
            "class_names": self.names,
            "class_values": self.values,
            "ignore_value": self.ignore_value,
            "joined_values": self.joined,
            "outside_class": self.outside,
        }

    def index_of(self, value: MaskValue) -> int | None:
        """The class index of a mask value, `IGNORE_INDEX` if it is ignored; None if it is a mistake."""
        if self.has_colors:
            value = as_color(value)
        if value in self.values:
            return self.values.index(value)
        if value == self.ignore_value:
            return IGNORE_INDEX
        return dict(self.joined).get(value, self.outside)

    @property
    def has_colors(self) -> bool:
        """Whether the classes are colors."""
        return isinstance(self.values[0], tuple)

    @property
    def background(self) -> int | None:
        """The index of the background class: the class of this name, or the value 0 if it has no name."""
        for index, name in enumerate(self.names):
            if is_background(name):
                return index
        for index, (name, value) in enumerate(zip(self.names, self.values, strict=True)):
            if as_grey(value) == 0 and name == value_text(value):
                return index
        return None

    def values_by_class(self) -> list[list[MaskValue]]:
        """The values that each class has in masks."""
        values_of = [[value] for value in self.values]
        for value, index in self.joined:
            if index != IGNORE_INDEX:
                values_of[index].append(value)
        return values_of

    @property
    def ignored_values(self) -> tuple[MaskValue, ...]:
        """The ignored values; the first one is written for ignored pixels."""
        others = [value for value, index in self.joined if index == IGNORE_INDEX]
        return tuple(others) if self.ignore_value is None else (self.ignore_value, *others)

    def describe_values(self) -> list[str]:
        """For each class, the values that it has in masks; then the ignored values, and the meaning of all others."""
        ignored = [value for value, index in self.joined if index == IGNORE_INDEX]
        texts = [" and ".join(map(str, values)) for values in self.values_by_class()]
        if ignored:
            texts.append(f"ignored: {ignored}")
        if self.outside is not None:
            texts.append(f"others: {self.outside}")
        return texts

    def __len__(self) -> int:
        return len(self.values)

    def decode(self, indices: np.ndarray) -> np.ndarray:
        """Class indices (H, W) -> mask values: (H, W) uint8 or uint16, or (H, W, 3) uint8 for colors."""
        if self.has_colors:
            return np.array(self.values, dtype=np.uint8)[indices]
        numbers = [value for value in self.values if isinstance(value, int)]
        if min(numbers) < 0 or max(numbers) > 65535:
            raise ImageError(
                f"mask values {min(numbers)} to {max(numbers)} cannot be written: a PNG mask holds 0 to 65535"
            )
        dtype = np.uint8 if max(numbers) < 256 else np.uint16
        return np.array(numbers, dtype)[indices]

    def encode(self, mask: np.ndarray, name: str) -> np.ndarray:
        """Mask values as `read_mask` gives them -> (H, W) uint8 class indices, 255 where ignored.

        Raises DataError, with `name`, for values that are no class.
        """
        has_colors = self.has_colors
        if has_colors and mask.ndim == 2 and mask.dtype == np.uint8:  # a color mask that happens to hold only greys
            mask = np.repeat(mask[:, :, None], 3, axis=2)
        if has_colors != (mask.ndim == 3):
            kind = "a color mask" if mask.ndim == 3 else "a mask of numbers"
            raise DataError(f"{name} is {kind}, but the classes are {show(self.values)}")
        keys = pack(mask)
        codes = self._codes(keys)
        unclassed = codes == 0
        for value in self.ignored_values:
            unclassed &= keys != key_of(value)
        if self.outside is not None:
            codes[unclassed] = (self.outside + 1) % 256
        elif unclassed.any():
            unknown_keys = np.unique(keys[unclassed]).tolist()
            unknown: list[MaskValue] = unknown_keys
            if has_colors:
                unknown = [unpack(key) for key in unknown_keys]
            raise DataError(
                f"{name}: mask values {show(unknown)} belong to no class; classes are {show(self.values)};"
                " does it use other numbers, or is it a lossy (JPEG) mask?"
            )
        return codes - np.uint8(1)  # 0, the ignored, becomes 255

    def _codes(self, keys: np.ndarray) -> np.ndarray:
        """(H, W) uint8: class index + 1 of each key (H, W) that `pack` gives, 0 if it belongs to no class."""
        index_of = [(value, index) for index, value in enumerate(self.values)]
        index_of += [(value, index) for value, index in self.joined if index != IGNORE_INDEX]
        if keys.dtype != np.int64:
            bits = 24 if self.has_colors else 8 * keys.itemsize
            return _table(tuple(index_of), 1 << bits).take(keys)
        code_of = {value: index + 1 for value, index in index_of}
        distinct_keys, positions = np.unique(keys, return_inverse=True)
        distinct_codes = np.array([code_of.get(key, 0) for key in distinct_keys.tolist()], np.uint8)
        return distinct_codes[positions.reshape(keys.shape)]

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
    raise DataError(f"{text!r} is no mask value; expected a whole number or a color such as #804080")


def parse_values(text: str | None) -> list[MaskValue]:
    """The mask values of `11` or `0,255`; none of an empty text."""
    if not text:
        return []
    return [_parse_value(value.strip()) for value in text.split(",")]


def parse_classes(text: str) -> list[tuple[MaskValue, str]]:
    """`0=background,255=car`, `#804080=road,...`, or a JSON file {"0": "background"} or [name, ...].

    Several values may have one name: they are one class. Raises DataError for any other text, and for a value that
    occurs twice.
    """
    pairs = _read_classes(text) if text.endswith(".json") else _split_pairs(text)
    classes = [(_parse_value(value.strip()), name.strip()) for value, name in pairs]
    values = [value for value, _ in classes]
    names = [name for _, name in classes]
    if "" in names:
        unnamed = values[names.index("")]
        raise DataError(f"class {value_text(unnamed)} has no name; expected VALUE=NAME")
    for value, count in Counter(values).items():
        if count > 1:
            raise DataError(f"class value {value_text(value)} is given twice")
    if len({type(value) for value in values}) > 1:
        raise DataError(f"classes mix numbers and colors: {show(values)}")
    return classes


def holds_names(flag: str | None) -> bool:
    """Whether --classes chooses classes by their names."""
    if not flag:
        return False
    return "=" not in flag and not flag.endswith(".json")


def choose_classes(text: str, file_classes: NamedClasses) -> list[tuple[MaskValue, str]]:
    """The classes of `person,dog`, found in `file_classes`, in this order. Raises DataError for unknown names."""
    value_of = {name: value for value, name in file_classes}
    if not value_of:
        raise DataError(
            f"--classes {text} chooses classes by name, but this data set names none; give VALUE=NAME,... or a JSON"
            " file whose name ends in .json"
        )
    classes: list[tuple[MaskValue, str]] = []
    names = [name.strip() for name in text.split(",")]
    for name in dict.fromkeys(filter(None, names)):
        if name not in value_of:
            name_list = listing(list(value_of), limit=8)
            close = get_close_matches(name, value_of, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise DataError(f"--classes: no class is called {name}; the data set names {name_list}{hint}")
        classes.append((value_of[name], name))
    return classes


def _with_background(classes: NamedClasses, file_classes: NamedClasses) -> NamedClasses:
    """The classes, a background added as the first if there is none: the data set's, else of an unused value."""
    if any(is_background(name) for _, name in classes):
        return classes
    backgrounds = [(value, name) for value, name in file_classes if is_background(name)]
    if backgrounds:
        return [backgrounds[0], *classes]
    used_values = {value for value, _ in classes}
    zero: MaskValue = (0, 0, 0) if has_colors(used_values) else 0
    candidates = [zero, *(value for value, _ in file_classes)]
    unused_values = [value for value in candidates if value not in used_values]
    if not unused_values:
        return classes
    return [(unused_values[0], BACKGROUND), *classes]


def _split_pairs(text: str) -> list[tuple[str, str]]:
    """Value and name of each part of `0=background,255=car`."""
    pairs = []
    for part in text.split(","):
        if part.strip():
            value, _, name = part.partition("=")
            pairs.append((value, name))
    return pairs


def _read_classes(path: str) -> list[tuple[str, str]]:
    """Value and name of each class in a JSON file."""
    try:
        # objects as tuples of pairs: a dict would hide a key that occurs twice
        content = parse_json(read_bytes(path), (list, tuple), as_pairs=True)
    except (OSError, ValueError) as error:
        raise DataError(f"classes {path!r}: neither VALUE=NAME,... nor a readable JSON file ({error})") from error
    if isinstance(content, list):
        content = [(str(i), name) for i, name in enumerate(content)]
    if not all(isinstance(name, str) for _, name in content):
        raise DataError(f'{path}: expected {{"0": "background", ...}} or ["background", ...]')
    return list(content)


def named_classes(flag: str | None, file_classes: NamedClasses, outside: str | None) -> NamedClasses:
    """The classes of --classes, else of the data set's own files; none if neither names them.

    Args:
        outside: --outside; "background" adds a class for the values left out; "ignore" without `flag` leaves the data
            set's background out.
    """
    if flag and holds_names(flag):
        classes: NamedClasses = choose_classes(flag, file_classes)
        has_background = any(is_background(name) for _, name in file_classes)
        if outside != "ignore" or has_background:
            return _with_background(classes, file_classes)
        return classes
    if flag:
        classes = parse_classes(flag)
        return _with_background(classes, ()) if outside == "background" else classes
    if outside and not file_classes:
        raise DataError(f"--outside {outside} needs --classes; to ignore a mask value, give --ignore-index VALUE")
    if outside == "ignore":
        return [(value, name) for value, name in file_classes if not is_background(name)]
    return file_classes


def resolve_classes(
    pixels: dict[MaskValue, int], classes: NamedClasses, ignore: str | None, outside: str | None = None
) -> ClassMap:
    """The classes of masks that hold these values (as `inspect.total_pixels` gives them).

    Without `classes`, every value in order is a class save the ignored ones: `ignore`, or 255 where the others are
    0, 1, ... n-1 and n >= 2; so 255 is a class in {0, 255}. With them, `outside` says what other values become.

    Raises DataError for fewer than 2 classes.
    """
    mask_values = sorted_values(pixels)
    ignored = parse_values(ignore)
    if classes:
        class_map = _map_named(classes, mask_values, ignored, outside)
    else:
        absent = [value for value in ignored if value not in pixels]
        if absent:
            raise DataError(f"--ignore-index {show(absent)} is in no mask; the masks hold {show(mask_values)}")
        class_map = _map_unnamed(pixels, ignored)
        if len(pixels) == 1:
            raise DataError(
                f"all pixels of all masks hold {show(mask_values)}: 1 class, expected 2 to {MAX_VALUES};"
                " are the masks empty, or of a wrong folder?"
            )
    if not 2 <= len(class_map) <= MAX_VALUES:
        raise DataError(f"{len(class_map)} classes, expected 2 to {MAX_VALUES}; the masks hold {show(mask_values)}")
    return class_map


def _map_unnamed(pixels: dict[MaskValue, int], ignored: Sequence[MaskValue]) -> ClassMap:
    """The class map of masks whose values nobody has named."""
    mask_values = sorted_values(pixels)
    consecutive = list(range(len(mask_values) - 1))
    if not ignored and len(mask_values) > 2 and mask_values == [*consecutive, IGNORE_INDEX]:
        ignored = [IGNORE_INDEX]
    values = [value for value in mask_values if value not in ignored]
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) > MAX_SCATTERED and numbers[-1] - numbers[0] >= len(numbers):
        origin = describe_invented(pixels)
        guess = origin or f"smoothed edges or lossy compression? {REPAIR}, or name all classes with --classes"
        raise DataError(f"the masks hold {len(values)} grey values, {show(values)}: {guess}")
    names = [value_text(value) for value in values]
    if len(values) == 2 and values[0] in (0, (0, 0, 0)):
        names = [BACKGROUND, "foreground"]
    return _class_map([*zip(values, names, strict=True)], ignored)


def _map_named(
    classes: NamedClasses, mask_values: list[MaskValue], ignored: list[MaskValue], outside: str | None
) -> ClassMap:
    """The class map of masks whose `classes` have names."""
    pairs = list(classes)
    all_greys = all(as_grey(value) != value for value, _ in pairs)
    if all_greys and all(isinstance(value, int) for value in mask_values):
        # black and white are named by their colors, and these masks store them as numbers
        pairs = [(as_grey(value), name) for value, name in pairs]
    known_values = {value for value, _ in pairs}
    occurring = sum(value in mask_values for value, _ in pairs)
    has_unnamed_255 = IGNORE_INDEX in mask_values and IGNORE_INDEX not in known_values
    if not ignored and has_unnamed_255 and occurring >= 2:
        ignored = [IGNORE_INDEX]  # with one class or none in the masks, 255 is the other one, named wrongly
    class_map = _class_map([(value, name) for value, name in pairs if value not in ignored], ignored)
    if outside == "ignore":
        return replace(class_map, outside=IGNORE_INDEX)
    if outside == BACKGROUND:
        for index, name in enumerate(class_map.names):
            if is_background(name):
                return replace(class_map, outside=index)
    return class_map


def _class_map(pairs: NamedClasses, ignored: Sequence[MaskValue]) -> ClassMap:
    """The class map of values with their names; values of one name are one class, written as the first of them."""
    value_of: dict[str, MaskValue] = {}
    joined: list[tuple[MaskValue, int]] = []
    for value, name in pairs:
        if name in value_of:
            joined.append((value, list(value_of).index(name)))
        else:
            value_of[name] = value
    joined += [(value, IGNORE_INDEX) for value in ignored[1:]]
    ignore_value = ignored[0] if ignored else None
    return ClassMap(tuple(value_of), tuple(value_of.values()), ignore_value, tuple(joined))
