"""Masks drawn from the areas that a file lists: shapes as Pillow fills them, and runs of pixels."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from data_utils.bits import pack_bits
from data_utils.image_io.formats import RenderedMask
from data_utils.image_io.reader import size_mismatch
from data_utils.image_io.resize import same_proportions
from data_utils.mask_values import number_type
from data_utils.sources.records import FileRow, Sources
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

# pixels from the image's corner: a larger number is not a coordinate, and drawing takes memory for all of an outline
MAX_PIXEL_DISTANCE = 1e5
# annotations may be made at so many times the picture's sides: some pictures are made smaller after they are annotated
MOST_TIMES = 8

# in the picture of a class
OBJECT = 1
CROWD = 2

Outline = Callable[[Image.Image, int], None]  # draws a value on a picture


class Area(NamedTuple):
    """An object, or a part of one.

    Args:
        value: the mask value of its class.
        outline: its pixels.
        group: areas of one class and one group are one object; None for an object of its own.
        is_crowd: whether it only marks an area in which objects of its class are not told apart.
    """

    value: int
    outline: Outline
    group: Any = None
    is_crowd: bool = False

    @property
    def shown_value(self) -> int:
        """The value of its pixels in a mask of classes."""
        return IGNORE_INDEX if self.is_crowd else self.value


@dataclass(frozen=True)
class DrawnMask(RenderedMask):
    """The areas of an image, later ones over earlier ones; each format has its own class.

    Args:
        files: the files of annotations; "" if the image has none.
        image: the image file; "" if the image is in the file of annotations.
        values: the mask value of each class of the files.
        entry: JSON, what the files list for this image alone; empty if it is not needed.
        bits: pairs of a mask value and its bit, if the mask is of classes that may overlap; else None.
    """

    files: tuple[str, ...]
    image: str
    values: dict[Any, int]
    entry: bytes = b""
    bits: tuple[tuple[MaskValue, int], ...] | None = None

    @abstractmethod
    def read_areas(self) -> tuple[tuple[int, int], list[Area]]:
        """(H, W) and the areas, from the lowest to the highest. Raises DataError, with the file and the annotation."""

    def __repr__(self) -> str:
        """The text of the first version, with the names of its fields: the content keys of windows are made from it."""
        text = f"{type(self).__name__}(file={self.files[0]!r}, image={self.image!r}, values={self.values!r}"
        if self.entry:
            text += f", files={self.files!r}, entry={self.entry!r}"
        return f"{text})" if self.bits is None else f"ObjectBits(mask={text}), bits={self.bits!r})"

    def render(self) -> np.ndarray:
        """Mask values; or the classes as bits, (H, W) int64, as `pack_bits` gives it."""
        if self.bits is not None:
            return self.render_classes(dict(self.bits))
        numbers, values = self.render_objects()
        return values.astype(number_type(self.values.values()))[numbers]

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        size, areas = self.read_areas()
        picture = Image.new("I", size[::-1])
        values = [0]
        number_by_group: dict[tuple[int, str], int] = {}
        for area in areas:
            number = len(values)
            if area.shown_value == 0:  # background takes away what lies below it
                number = 0
            elif area.group is not None:
                number = number_by_group.setdefault((area.value, str(area.group)), number)
            if number == len(values):
                values.append(area.shown_value)
            area.outline(picture, number)
        return np.asarray(picture), np.array(values)

    def objects(self) -> Counter[int]:
        _, areas = self.read_areas()
        objects: set[tuple[int, int | str]] = set()
        for number, area in enumerate(areas):
            objects.add((area.shown_value, number if area.group is None else str(area.group)))
        return Counter(value for value, _ in objects if value)

    def render_classes(self, bit_by_value: Mapping[MaskValue, int]) -> np.ndarray:
        """The classes as bits, (H, W) int64, as `pack_bits` gives it; `bit_by_value` may lack values.

        Background removes all classes, and an ignored value makes all classes unknown. A crowd makes its own class
        unknown where no object of it lies.
        """
        size, areas = self.read_areas()
        truth = np.zeros(size, np.int64)
        unknown = np.zeros(size, np.int64)
        for bit in set(bit_by_value.values()):
            picture = Image.new("L", size[::-1])
            for area in areas:
                is_of_class = bit_by_value.get(area.value) == bit
                if is_of_class and not area.is_crowd:
                    area.outline(picture, OBJECT)
                elif is_of_class or area.value == IGNORE_INDEX:
                    area.outline(picture, CROWD)
                elif area.value == 0:
                    area.outline(picture, 0)
            pixels = np.asarray(picture)
            truth |= (pixels == OBJECT).astype(np.int64) << bit
            unknown |= (pixels == CROWD).astype(np.int64) << bit
        return pack_bits(truth, unknown)


def drawn_sources(row: FileRow, mask: type[DrawnMask], values: dict[Any, int]) -> Sources:
    """An image, and the mask of its areas; `values` are those of `DrawnMask`."""
    return row.images[0], mask(row.targets, row.images[0], values, row.entry)


def read_points(points: Any, location: str, least: int = 3) -> np.ndarray:
    """Points (n, 2) float64 as (x, y), from pairs or from one flat list. Raises DataError, with `location`."""
    try:
        numbers = np.array(points, np.float64)
    except (TypeError, ValueError):  # text, objects, lists of different lengths
        numbers = np.zeros((0, 1))
    if numbers.ndim > 1 and numbers.shape[-1] % 2:  # (x, y, z) too
        raise DataError(f"{location} has points that are not pairs of numbers")
    flat = numbers.ravel()
    farthest = np.abs(flat).max(initial=0)
    if flat.size % 2 or flat.size < 2 * least or not farthest < MAX_PIXEL_DISTANCE:  # NaN too
        raise DataError(
            f"{location} has {flat.size} coordinates up to {farthest:g}, expected {least} pairs or more, up to"
            f" {MAX_PIXEL_DISTANCE:,.0f}"
        )
    return flat.reshape(-1, 2)


def drawn_size(stated: Sequence[Any], picture: tuple[int, int], location: str) -> tuple[int, int]:
    """(H, W) that annotations are made for: the size stated in their file, else that of the `picture`.

    Raises DataError, with `location`, unless it fits the picture, maybe resized: so the memory that drawing takes
    depends on the picture, not on a number in a file.
    """
    height, width = stated
    if not isinstance(height, int) or not isinstance(width, int) or min(height, width) <= 0:
        return picture
    if not same_proportions((height, width), picture):
        raise DataError(size_mismatch(location, picture, (height, width)))
    if max(height, width) > MOST_TIMES * max(picture):
        raise DataError(
            f"{location}: the file gives it {height:,} x {width:,} pixels (height x width), but the picture has"
            f" {picture[0]:,} x {picture[1]:,}; correct the size in the file"
        )
    return height, width


def pillow_shape(method: str, coordinates: Sequence[float], **options: Any) -> Outline:
    """What a method of Pillow's `ImageDraw` draws."""

    def draw(picture: Image.Image, value: int) -> None:
        getattr(ImageDraw.Draw(picture), method)(coordinates, fill=value, **options)

    return draw


def polygon(points: np.ndarray) -> Outline:
    """A polygon (n, 2), filled by Pillow's rule: its border is inside."""
    return pillow_shape("polygon", points.ravel().tolist())


def fill_runs(runs: np.ndarray, picture: Image.Image, value: int) -> None:
    """Draw a value where runs of pixels say: lengths outside and inside in turn, down one column after the other."""
    is_inside = np.arange(len(runs), dtype=np.uint8) % 2
    reached = np.flatnonzero(runs * is_inside)
    if not reached.size:  # an object outside of the picture
        return
    height = picture.height
    ends = np.cumsum(runs)
    left = ends[reached[0] - 1] // height
    right = -(-ends[reached[-1]] // height)
    ends = ends.clip(left * height, right * height)  # only columns that are reached are made
    columns = np.repeat(255 * is_inside, np.diff(ends, prepend=left * height)).reshape(right - left, height)
    rows = np.flatnonzero(columns.any(axis=0))  # to paste all rows would take five times as long
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    picture.paste(value, (int(left), top), Image.fromarray(np.ascontiguousarray(columns[:, top:bottom].T)))
