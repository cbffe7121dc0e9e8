"""Masks whose values are sets of classes, made from one mask for each class."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from data_utils.bits import pack_bits
from data_utils.image_io.formats import ClassLayers, ImageSource, PageFile, RenderedMask, VolumeFile
from data_utils.image_io.places import Grid, on_grid
from data_utils.image_io.reader import read_image, read_mask
from data_utils.mask_values import BEYOND_MASK, as_color, as_grey, key_color, value_key, value_keys, value_text
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

CLASS_NUMBERS = 32  # whole numbers below it are classes; smoothed edges have brightness


class ClassMask(NamedTuple):
    """The mask of one class.

    Args:
        values: (H, W) or (H, W, 3), 0 where the class is not; None if there is no mask, so that nothing is known.
        bit: the bit of the class; None for a class that is left out.
        name: the name of the mask in messages.
    """

    values: np.ndarray | None
    bit: int | None
    name: str


@dataclass(frozen=True)
class ClassMasks(RenderedMask):
    """The masks of an image: a file or a page for each class, or one file with a channel for each.

    Args:
        files: the path is "" for a class without a mask.
        bits: the bit of each class; None for a class that is left out.
        ignored: mask values of unknown pixels.
        grid: that of the image, on which files with a place are laid; None if it has no place.
    """

    files: tuple[PageFile, ...]
    bits: tuple[int | None, ...]
    ignored: tuple[MaskValue, ...] = ()
    grid: Grid | None = field(default=None, repr=False)  # content keys are made of the text

    @property
    def name(self) -> str:
        """The name of the masks in messages: the first file that there is."""
        return next(str(file.path) for file in self.files if file.path)

    def render(self) -> np.ndarray:
        """(H, W) int64, as `pack_bits` gives it."""
        if len(self.files) == 1 < len(self.bits):
            return combine_masks(self._channels(), self.ignored)
        return combine_masks(self._pages(), self.ignored)

    def _pages(self) -> Iterator[ClassMask]:
        pairs = list(zip(self.files, self.bits, strict=True))
        has_mask = any(file.path and bit is not None for file, bit in pairs)
        for file, bit in pairs:
            values = None
            name = str(file.path)
            if file.page:
                name += f" page {file.page + 1}"
            # a left-out class's mask gives the size
            if file.path and (bit is not None or not has_mask):
                source: ImageSource = file
                if self.grid is not None and file.page is None:
                    source = on_grid(file, self.grid, name)
                values = read_mask(source, name)
            yield ClassMask(values, bit, name)

    def _channels(self) -> Iterator[ClassMask]:
        channels = np.moveaxis(read_image(self.files[0], self.name), 2, 0)
        if len(channels) != len(self.bits):
            raise DataError(f"{self.name}: mask has {len(channels)} channels, others have {len(self.bits)}")
        for number, (values, bit) in enumerate(zip(channels, self.bits, strict=True), 1):
            yield ClassMask(values, bit, f"{self.name} channel {number}")


def layered_label(files: Sequence[str], bits: Sequence[int | None], ignored: Sequence[MaskValue] = ()) -> VolumeFile:
    """The label of a volume from a file for each class; a class whose file is "" is unknown."""
    paths: list[str] = []
    layers: list[int | None] = []
    unknown: list[int] = []
    is_chosen = any(path and bit is not None for path, bit in zip(files, bits, strict=True))
    for path, bit in zip(files, bits, strict=True):
        if path and (bit is not None or not is_chosen):  # a left-out class's label gives the size
            paths.append(path)
            layers.append(bit)
        elif bit is not None:
            unknown.append(bit)
    return VolumeFile(tuple(paths), layers=ClassLayers(tuple(layers), tuple(unknown), tuple(ignored)))


def combine_masks(masks: Iterable[ClassMask], ignored: Sequence[MaskValue]) -> np.ndarray:
    """The masks of all classes as one, int64, as `pack_bits` gives it.

    Raises DataError, with the name of the mask, if one holds more than 0 and another value, or has another size.
    """
    truth = np.zeros((), np.int64)
    unknown = np.zeros((), np.int64)
    first: str | None = None
    for mask in masks:
        if mask.values is None:
            unknown |= 0 if mask.bit is None else 1 << mask.bit
            continue
        size = mask.values.shape[:2]
        if first is None:
            first = mask.name
            truth = np.zeros(size, np.int64)
            unknown = np.full(size, unknown)
        elif size != truth.shape:
            raise DataError(f"{mask.name}: is {_text(size)}, but {first} {_text(truth.shape)}; store both at one size")
        if mask.bit is None:
            continue
        inside, is_ignored = binary(mask.values, mask.name, ignored)
        truth |= inside.astype(np.int64) << mask.bit
        unknown |= is_ignored.astype(np.int64) << mask.bit
    assert first is not None
    return pack_bits(truth, unknown & ~truth)


def _text(size: tuple[int, ...]) -> str:
    return f"{size[0]} x {size[1]}"


def binary(values: np.ndarray, name: str, ignored: Sequence[MaskValue] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Where a mask (H, W) or (H, W, 3) is not 0, and where its value is one of the ignored ones, both (H, W) bool.

    A color stands for the class, whatever color it is. Raises DataError, with `name`, for a third value.
    """
    has_colors = values.ndim == 3
    keys = value_keys(values)
    is_ignored = keys == BEYOND_MASK
    for value in ignored:
        same_kind_value = as_color(value) if has_colors else as_grey(value)
        if has_colors or isinstance(same_kind_value, int):  # a mask of numbers never holds a color
            is_ignored |= keys == value_key(same_kind_value)
    inside = (keys != 0) & ~is_ignored
    if inside.any() and (keys[inside] != keys[inside].max()).any():
        distinct_keys = np.unique(keys).tolist()
        if has_colors:
            texts = [value_text(key_color(key)) for key in distinct_keys]
        else:
            texts = [str(key) for key in distinct_keys]
        distinct = listing(texts, limit=8)
        guess = "smoothed edges or JPEG (export it again as PNG)"
        if not has_colors and all(key in range(CLASS_NUMBERS) for key in distinct_keys):
            guess = "several classes (3D Slicer's layers: export one labelmap, or a file for each segment)"
        raise DataError(
            f"{name}: mask of one class holds {distinct}, expected 0 and one other value; {guess}, or a value for"
            " unknown pixels (give it with --ignore-index)?"
        )
    return inside, is_ignored
