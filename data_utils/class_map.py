"""Mask values <-> class indices: which values are classes, their names, and the conversion in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypedDict

import numpy as np

from data_utils.class_names import BACKGROUND, NamedClasses, is_background
from data_utils.mask_values import (
    BEYOND_MASK,
    MAX_VALUES,
    as_color,
    as_grey,
    key_color,
    number_type,
    parse_values,
    show,
    sort_values,
    value_key,
    value_keys,
    value_text,
)
from runtime.console import counted
from runtime.errors import DataError, ImageError
from unet.config import IGNORE_INDEX, MaskValue, Preprocess

MOST_IN_MASK = 65535  # the largest value of a mask that is written


class ClassFields(TypedDict, total=False):
    """The fields of `Preprocess` that keep the classes of a model in config.json."""

    class_names: tuple[str, ...]
    class_values: tuple[MaskValue, ...]
    ignore_value: MaskValue | None
    joined_values: tuple[tuple[MaskValue, int], ...]
    outside_class: int | None


def ignored_fields(values: Sequence[MaskValue]) -> ClassFields:
    """The fields of `Preprocess` that keep the values of ignored pixels, for tasks without a class map."""
    return {
        "ignore_value": values[0] if values else None,
        "joined_values": tuple((value, IGNORE_INDEX) for value in values[1:]),
    }


def ignored_values(preprocess: Preprocess) -> tuple[MaskValue, ...]:
    """The values that `ignored_fields` has kept."""
    first = () if preprocess.ignore_value is None else (preprocess.ignore_value,)
    return (*first, *(value for value, index in preprocess.joined_values if index == IGNORE_INDEX))


@lru_cache(maxsize=8)
def _table(value_indices: tuple[tuple[MaskValue, int], ...], size: int) -> np.ndarray:
    """Mask value -> class index + 1, 0 for all others."""
    table = np.zeros(size, np.uint8)  # the 24-bit table occupies only the pages that are written
    for value, index in value_indices:
        if 0 <= value_key(value) < size:
            table[value_key(value)] = index + 1
    return table


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
    def from_preprocess(cls, preprocess: Preprocess, num_classes: int) -> "ClassMap":
        """The class map of a model's config.json; class i has the value i if the config has no values."""
        values = preprocess.class_values or tuple(range(num_classes))
        names = preprocess.class_names or tuple(map(str, values))
        return cls(names, values, preprocess.ignore_value, preprocess.joined_values, preprocess.outside_class)

    def to_preprocess(self) -> ClassFields:
        """The fields of `Preprocess` that keep the class map in config.json."""
        return {
            "class_names": self.names,
            "class_values": self.values,
            "ignore_value": self.ignore_value,
            "joined_values": self.joined,
            "outside_class": self.outside,
        }

    @cached_property
    def indices(self) -> dict[MaskValue, int]:
        """The class index of each value that is listed, `IGNORE_INDEX` for those that are ignored."""
        indices = {value: index for index, value in enumerate(self.values)}
        if self.ignore_value is not None:
            indices.setdefault(self.ignore_value, IGNORE_INDEX)
        for value, index in self.joined:
            indices.setdefault(value, index)
        return indices

    def index_of(self, value: MaskValue) -> int | None:
        """The class index of a mask value, `IGNORE_INDEX` if it is ignored; None if it is a mistake."""
        return self.indices.get(as_color(value) if self.has_colors else value, self.outside)

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
        values: list[list[MaskValue]] = [[] for _ in self.values]
        for value, index in self.indices.items():
            if index != IGNORE_INDEX:
                values[index].append(value)
        return values

    @property
    def ignored_values(self) -> tuple[MaskValue, ...]:
        """The ignored values; the first one is written for ignored pixels."""
        return tuple(value for value, index in self.indices.items() if index == IGNORE_INDEX)

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

    @property
    def unwritable(self) -> list[int]:
        """The values of classes that no mask of 16 bits holds."""
        return [value for value in self.values if isinstance(value, int) and not 0 <= value <= MOST_IN_MASK]

    def decode(self, indices: np.ndarray) -> np.ndarray:
        """Class indices (H, W) -> mask values: (H, W) uint8 or uint16, or (H, W, 3) uint8 for colors."""
        if self.has_colors:
            return np.array(self.values, dtype=np.uint8)[indices]
        if self.unwritable:
            raise ImageError(
                f"mask values {show(self.unwritable)} cannot be written: a PNG mask holds 0 to {MOST_IN_MASK}"
            )
        numbers = [value for value in self.values if isinstance(value, int)]
        return np.array(numbers, number_type(numbers))[indices]

    def encode(self, mask: np.ndarray, name: str) -> np.ndarray:
        """Mask values as `read_mask` gives them -> (H, W) uint8 class indices, 255 where ignored.

        Raises DataError, with `name`, for values that are no class.
        """
        has_colors = self.has_colors
        # a color mask that happens to hold only greys
        if has_colors and mask.ndim == 2 and mask.dtype == np.uint8:
            mask = np.repeat(mask[:, :, None], 3, axis=2)
        if has_colors != (mask.ndim == 3):
            kind = "a color mask" if mask.ndim == 3 else "a mask of numbers"
            raise DataError(f"{name} is {kind}, but the classes are {show(self.values)}")
        keys = value_keys(mask)
        codes = self._codes(keys)
        unclassed = codes == 0
        for value in (*self.ignored_values, BEYOND_MASK):
            unclassed &= keys != value_key(value)
        if self.outside is not None:
            codes[unclassed] = (self.outside + 1) % 256
        elif unclassed.any():
            unknown_keys = np.unique(keys[unclassed]).tolist()
            unknown: list[MaskValue] = unknown_keys
            if has_colors:
                unknown = [key_color(key) for key in unknown_keys]
            raise DataError(
                f"{name}: mask values {show(unknown)} belong to no class; classes are {show(self.values)};"
                " does it use other numbers, or is it a lossy (JPEG) mask?"
            )
        return codes - np.uint8(1)  # 0, the ignored, becomes 255

    def _codes(self, keys: np.ndarray) -> np.ndarray:
        """(H, W) uint8: class index + 1 of each key (H, W) that `value_keys` gives, 0 if it belongs to no class."""
        value_indices = [(value, index) for value, index in self.indices.items() if index != IGNORE_INDEX]
        if keys.dtype != np.int64:
            bits = 24 if self.has_colors else 8 * keys.itemsize
            return _table(tuple(value_indices), 1 << bits).take(keys)
        code_by_value = {value: index + 1 for value, index in value_indices}
        distinct_keys, positions = np.unique(keys, return_inverse=True)
        distinct_codes = np.array([code_by_value.get(key, 0) for key in distinct_keys.tolist()], np.uint8)
        return distinct_codes[positions.reshape(keys.shape)]


def resolve_classes(
    pixels: dict[MaskValue, int], classes: NamedClasses, ignore: str | None, outside: str | None = None
) -> ClassMap:
    """The classes of masks that hold these values (as `analysis.inspection.total_pixels` gives them).

    Without `classes`, every value in order is a class save the ignored ones: `ignore`, or 255 where the others are
    0, 1, ... n-1 and n >= 2; so 255 is a class in {0, 255}. With them, `outside` says what other values become.

    Raises DataError for fewer than 2 classes.
    """
    mask_values = sort_values(pixels)
    ignored = parse_values(ignore)
    if classes:
        class_map = _map_named(classes, mask_values, ignored, outside)
    else:
        # 255 may be absent: masks on other grids held it, beyond their files, in earlier versions
        absent = [value for value in ignored if value not in pixels and value != IGNORE_INDEX]
        if absent:
            raise DataError(f"--ignore-index {show(absent)} is in no mask; the masks hold {show(mask_values)}")
        class_map = _map_unnamed(mask_values, ignored)
        if len(pixels) < 2:
            raise DataError(
                f"all pixels of all masks hold {show(mask_values) or 'no data'}:"
                f" {counted(len(pixels), 'class', 'classes')}, expected 2 to {MAX_VALUES};"
                " are the masks empty, of a wrong folder or another place on the map, or drawn in their alpha channel?"
            )
    if not 2 <= len(class_map) <= MAX_VALUES:
        remedy = ""
        others = set(mask_values) - class_map.indices.keys() - {IGNORE_INDEX}
        if others and outside is None:
            remedy = "; give VALUE=NAME,VALUE=NAME,..., or --outside background for the other values"
        raise DataError(
            f"{counted(len(class_map), 'class', 'classes')}, expected 2 to {MAX_VALUES}; the masks hold"
            f" {show(mask_values)}{remedy}"
        )
    return class_map


def _map_unnamed(mask_values: list[MaskValue], ignored: Sequence[MaskValue]) -> ClassMap:
    """The class map of masks whose values, in order, nobody has named."""
    consecutive = list(range(len(mask_values) - 1))
    if not ignored and len(mask_values) > 2 and mask_values == [*consecutive, IGNORE_INDEX]:
        ignored = [IGNORE_INDEX]
    values = [value for value in mask_values if value not in ignored]
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
    occurrences = sum(value in mask_values for value, _ in pairs)
    has_unnamed_255 = IGNORE_INDEX in mask_values and IGNORE_INDEX not in known_values
    if not ignored and has_unnamed_255 and occurrences >= 2:
        # with one class or none in the masks, 255 is the other one, named wrongly
        ignored = [IGNORE_INDEX]
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
    value_by_name: dict[str, MaskValue] = {}
    joined: list[tuple[MaskValue, int]] = []
    for value, name in pairs:
        if name in value_by_name:
            joined.append((value, list(value_by_name).index(name)))
        else:
            value_by_name[name] = value
    joined += [(value, IGNORE_INDEX) for value in ignored[1:]]
    ignore_value = ignored[0] if ignored else None
    return ClassMap(tuple(value_by_name), tuple(value_by_name.values()), ignore_value, tuple(joined))
