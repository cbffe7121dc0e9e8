"""Masks stored as indices into palettes that differ between files: their colors are the classes, not their numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.formats import ImageSource, RenderedMask
from data_utils.image_io.reader import read_mask, stored_palette
from data_utils.mask_values import has_colors, value_text
from data_utils.sources.records import Record, Records, change, spread_indices
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError
from runtime.parallel import map_indices
from unet.config import MaskValue

SAMPLED_MASKS = 20  # masks that are looked at first: if none of them has a palette, no others are


@dataclass(frozen=True)
class PaletteMask(RenderedMask):
    """A mask that is read as the colors of its palette; unchanged if it has none."""

    is_drawn = False

    source: ImageSource
    name: str

    def render(self) -> np.ndarray:
        return read_mask(self.source, self.name, colors=True)


def _with_palette_mask(record: Record) -> Record:
    return {**record, "target": PaletteMask(record["target"], record["name"])}


def _with_colors_of_palette(record: Record) -> Record:
    """The same for a mask with a palette; another stays as it is, for it may be read in windows."""
    return record if _palette(record) is None else _with_palette_mask(record)


def with_palette_colors(
    train: Records, val: Records, classes: NamedClasses
) -> tuple[Records, Records, tuple[str, ...]]:
    """Both splits, their masks read as colors if palettes differ or `classes` names colors; and a line on a difference.

    Classes that are named by numbers stay numbers. Of a stream it is not known whether masks have palettes.
    """
    splits = (train, val)
    names_colors = has_colors(value for value, _ in classes)
    if train.dims == 3 or not (names_colors if train.is_stream else any(map(_has_palettes, splits))):
        return train, val, ()
    as_colors = _with_colors_of_palette if train.is_stream else _with_palette_mask
    colored_train = change(train, "colors of palettes", as_colors)
    colored_val = change(val, "colors of palettes", as_colors)
    if names_colors:
        return colored_train, colored_val, ()
    digests = [records.digest for records in splits]
    key = digest("palettes of masks", *digests) if all(digests) else None
    difference = load_or_compute(key, partial(_difference, splits))
    if difference is None:
        return train, val, ()
    if classes:
        return train, val, (f"{difference}; but the classes are named by numbers: store all masks with one palette",)
    return colored_train, colored_val, (f"{difference}; so the colors are the classes",)


def _has_palettes(records: Records) -> bool:
    """Whether some of the masks are stored with a palette."""
    return any(_palette(records[i]) is not None for i in spread_indices(len(records), SAMPLED_MASKS))


def _palette(record: Record) -> tuple[str, bytes] | None:
    try:
        return stored_palette(record["target"], record["name"])
    except DataError:  # the error is reported where all masks are read
        return None


def _palettes(records: Records) -> Iterator[tuple[str, bytes] | None]:
    return map_indices(lambda i: _palette(records[i]), len(records))


def _difference(splits: Sequence[Records]) -> str | None:
    """A line on two masks in which a number that both hold has different colors; None if there are none."""
    palettes: set[tuple[str, bytes]] = set()
    for records in splits:
        palettes.update(filter(None, _palettes(records)))
    longest = max(palettes, key=lambda palette: len(palette[1]))
    if all(kind == longest[0] and longest[1].startswith(colors) for kind, colors in palettes):
        return None
    first_uses: dict[int, tuple[MaskValue, str]] = {}
    for records in splits:
        for record in records:
            for number, color in _used_colors(record):
                first_color, first_name = first_uses.setdefault(number, (color, record["name"]))
                if color != first_color:
                    return (
                        f"the palettes of the masks differ: {number} is {value_text(first_color)} in {first_name} and"
                        f" {value_text(color)} in {record['name']}"
                    )
    return None


def _used_colors(record: Record) -> Iterator[tuple[int, MaskValue]]:
    """Each number of a mask that is stored with a palette, and its color."""
    source, name = record["target"], record["name"]
    try:
        if stored_palette(source, name) is None:
            return
        numbers, first_pixels = np.unique(read_mask(source, name), return_index=True)
        colors = read_mask(source, name, colors=True)
    except DataError:  # the error is reported where all masks are read
        return
    for number, color in zip(numbers.tolist(), colors.reshape(-1, 3)[first_pixels].tolist(), strict=True):
        yield number, tuple(color)
