"""One look at every image's header and every mask's pixels: sizes, mask values, and what is wrong."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from data_utils.class_map import MAX_VALUES, ClassMap, pack, show, unpack
from data_utils.image_io.reader import decode_mask, read_header, size_mismatch
from data_utils.image_io.resize import same_proportions
from data_utils.sources.records import Record, Records
from runtime.cache import JSON
from runtime.errors import DataError
from unet.config import MaskValue

LISTED = 3  # problems in a message
# some pixels of each value of a mask, (n, 2) as (row, column); nnU-Net has them under this name
ClassLocations = dict[MaskValue, np.ndarray]
Content = tuple[str, tuple[MaskValue, ...]]  # what a mask holds: numbers, greys or colours, and which


class Problem(NamedTuple):
    """What is wrong with a record: in a word or two, and in a line that names the file."""

    kind: str
    text: str


@dataclass(frozen=True)
class Inspection:
    """What one look at a record finds: (H, W) of both, the image's mode, kind of mask, pixels of each of its values.

    `class_locations` are those of an image too large to be decoded whole for every crop, None of others.
    """

    size: tuple[int, ...]
    mask_size: tuple[int, ...]
    mode: str
    kind: str
    pixels: dict[MaskValue, int]
    class_locations: ClassLocations | None = None


@dataclass
class SplitInspection:
    """What is known of all records of a split.

    Args:
        sizes: (N, 2) int64 as (H, W); zeros where a record cannot be used.
        resized_masks: how many masks have another size than their images, in the same proportions.
        modes: images of each mode.
        contents: the different sets of values that masks hold, each with the pixels of all its masks together.
        members: (N,) index into `contents` of each mask, -1 where a record cannot be used.
        problems: of the records that cannot be used.
        class_locations: of the records whose images are too large to be decoded whole for every crop.
    """

    axes: ClassVar[str] = "height x width"
    dims: ClassVar[int] = 2

    sizes: np.ndarray
    members: np.ndarray
    resized_masks: int = 0
    modes: Counter = field(default_factory=Counter)
    contents: dict[Content, Counter] = field(default_factory=dict)
    problems: dict[int, Problem] = field(default_factory=dict)
    class_locations: dict[int, ClassLocations] = field(default_factory=dict)
    _numbers: dict[Content, int] = field(default_factory=dict)  # of each of the contents

    @classmethod
    def of_count(cls: type["AnyInspection"], count: int) -> "AnyInspection":
        """Of so many records, none of which was looked at."""
        return cls(np.zeros((count, cls.dims), np.int64), np.full(count, -1, np.int64))

    def add(self, i: int, found: Inspection) -> None:
        """Note what a look at record i has found."""
        content = found.kind, tuple(sorted(found.pixels))
        self.sizes[i] = found.size
        self.resized_masks += found.size != found.mask_size
        self.modes[found.mode] += 1
        if found.class_locations is not None:
            self.class_locations[i] = found.class_locations
        self.members[i] = self._numbers.setdefault(content, len(self._numbers))
        self.contents.setdefault(content, Counter()).update(found.pixels)

    def spacings(self) -> list[tuple[float, ...]]:
        """(z, y, x) in mm of each record that has a spacing."""
        return []

    def to_json(self) -> JSON:
        """For the cache; problems are not kept, an inspection with any is not worth remembering."""
        contents = [[kind, list(pixels.items())] for (kind, _), pixels in self.contents.items()]
        return {
            "sizes": self.sizes.tolist(),
            "resized_masks": self.resized_masks,
            "modes": dict(self.modes),
            "contents": contents,
            "members": self.members.tolist(),
            "class_locations": [
                [i, [[v, places_to_json(at)] for v, at in found.items()]] for i, found in self.class_locations.items()
            ],
        }

    @classmethod
    def from_json(cls: type["AnyInspection"], value: JSON) -> "AnyInspection":
        def of_json(value: Any) -> MaskValue:
            return tuple(value) if isinstance(value, list) else value

        contents: dict[Content, Counter] = {}
        for kind, items in value["contents"]:
            pixels = Counter({of_json(value): count for value, count in items})
            contents[kind, tuple(sorted(pixels))] = pixels
        locations = {i: {of_json(v): places_from_json(at) for v, at in found} for i, found in value["class_locations"]}
        sizes = np.array(value["sizes"], np.int64).reshape(-1, cls.dims)
        members, resized, modes = np.array(value["members"], np.int64), value["resized_masks"], Counter(value["modes"])
        return cls(sizes, members, resized, modes, contents, class_locations=locations)


AnyInspection = TypeVar("AnyInspection", bound=SplitInspection)


def inspect(record: Record, *, has_classes: bool = True) -> Inspection | Problem:
    """Header of the image, all of the mask.

    Args:
        has_classes: whether the values of masks are classes: few, and not smoothed.
    """
    name = record["name"]
    try:
        size, mode = read_header(record["image"], f"{name}: image")
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        mask, coloured, jpeg = decode_mask(record["target"], name)
    except DataError as error:
        return Problem("mask cannot be read", str(error))
    mask_size = mask.shape[:2]
    if not same_proportions(size, mask_size):
        return other_size(name, size, mask_size)
    pixels = count_values(mask)
    kind = "colours" if mask.ndim == 3 else "greys" if coloured else "numbers"
    found = Inspection(size, mask_size, mode, kind, pixels)
    if not has_classes:
        return found
    if jpeg and len(pixels) > 2:
        return lossy(name, pixels)
    return too_many(pixels, name) or found


def lossy(name: str, pixels: Iterable[MaskValue]) -> Problem:
    """A JPEG mask of more than two values."""
    return Problem(
        "lossy mask",
        f"{name}: mask is a JPEG with the values {show(sorted(pixels))}; compression invents values, store masks"
        " as PNG (or are images and masks swapped?)",
    )


def other_size(name: str, image: tuple[int, int], mask: tuple[int, int]) -> Problem:
    """The problem that image and mask (H, W) have different proportions."""
    return Problem("mask and image differ in proportions", size_mismatch(name, image, mask))


def too_many(pixels: Collection[MaskValue], name: str) -> Problem | None:
    """The problem that a mask holds more values than a data set may have classes, or None."""
    excess = excess_values(pixels)
    if excess is None:
        return None
    return Problem("too many mask values", f"{name}: mask holds more than {MAX_VALUES} values: {excess}")


def count_values(mask: np.ndarray) -> dict[MaskValue, int]:
    """Pixels of each value of a mask as `read_mask` gives it."""
    flat = pack(mask).ravel()
    # Masks are made of long runs of one value: counting runs is several times faster than sorting pixels.
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
    values, where = np.unique(flat[starts], return_inverse=True)
    pixels = np.bincount(where, weights=np.diff(starts, append=flat.size)).astype(int)
    keys = [unpack(value) for value in values.tolist()] if mask.ndim == 3 else values.tolist()
    return dict(zip(keys, pixels.tolist(), strict=True))


def excess_values(values: Collection[MaskValue]) -> str | None:
    """The values and a guess at their origin, where they are more than a data set may have; else None."""
    found: list[Any] = sorted(values) if len(values) > MAX_VALUES else []
    if not found:
        return None
    some = np.array(found[: MAX_VALUES + 1]).reshape(MAX_VALUES + 1, -1)
    near = (np.abs(some[:, None] - some).max(axis=2) <= 2).sum(axis=1) > 1
    smooth = near.mean() > 0.5 if some.shape[1] == 3 else max(found) <= 255
    guess = "smoothed edges (JPEG, interpolation)" if smooth else "numbers of instances instead of classes"
    return f"{show(found)}; are these {guess}, or are images and masks swapped?"


def total_pixels(splits: Iterable[tuple[SplitInspection, Records]]) -> dict[MaskValue, int]:
    """Every value in any mask and how many pixels hold it.

    Raises DataError where masks of numbers and colour masks are mixed, and where nothing can be used.
    """
    totals: dict[str, Counter] = {"numbers": Counter(), "greys": Counter(), "colours": Counter()}
    examples: dict[str, str] = {}
    for inspection, records in splits:
        for number, ((kind, _), pixels) in enumerate(inspection.contents.items()):
            members = np.flatnonzero(inspection.members == number)
            if len(members):
                totals[kind].update(pixels)
                examples.setdefault(kind, records[int(members[0])]["name"])
    numbers, greys, colours = totals.values()
    if colours and numbers:
        raise DataError(
            f"{examples['colours']} is a colour mask and {examples['numbers']} one of numbers; store all in one way"
        )
    found = Counter({(value,) * 3: count for value, count in greys.items()} if colours else greys)
    return dict(found + numbers + colours)


def find_unknown(inspection: SplitInspection, records: Records, class_map: ClassMap | None) -> None:
    """Add to the inspection's problems the records whose masks hold values without a class, where there are classes."""
    if class_map is None:
        return
    coloured = isinstance(class_map.values[0], tuple)
    known = {*class_map.values, class_map.ignore_value}
    for number, (kind, values) in enumerate(inspection.contents):
        keys: list[Any] = [(value,) * 3 if coloured and kind == "greys" else value for value in values]
        strange = [key for key in keys if key not in known]
        if not strange:
            continue
        for i in np.flatnonzero(inspection.members == number).tolist():
            text = f"{records[i]['name']}: mask values {show(strange)} belong to no class; classes are"
            remedy = "name them in --classes, give one as --ignore-index, or is it a lossy (JPEG) mask?"
            inspection.problems[i] = Problem("unknown mask value", f"{text} {show(class_map.values)}; {remedy}")
            inspection.members[i] = -1


def raise_problems(inspection: SplitInspection, count: int) -> None:
    """One DataError for all problems, which names the first few."""
    if inspection.problems:
        shown = [problem.text for problem in inspection.problems.values()]
        listed = "; ".join(shown[:LISTED] + ["..."] * (len(shown) > LISTED))
        raise DataError(f"{len(shown)} of {count} pairs cannot be used: {listed}")


def places_to_json(places: np.ndarray) -> JSON:
    """(n, 2) pixels as lists; (n, 3) voxels, of which there are many, as text."""
    return places.tolist() if places.shape[1] == 2 else b64encode(places.astype("<u2").tobytes()).decode()


def places_from_json(value: JSON) -> np.ndarray:
    """(n, 2) or (n, 3) int64."""
    if isinstance(value, list):
        return np.array(value)
    return np.frombuffer(b64decode(value), "<u2").reshape(-1, 3).astype(np.int64)
