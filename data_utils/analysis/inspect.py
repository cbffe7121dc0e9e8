"""The inspection of every image's header and every mask's pixels: sizes, mask values, and problems."""

import re
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from data_utils.class_map import ClassMap
from data_utils.image_io.reader import decode_mask, read_header, size_mismatch
from data_utils.image_io.resize import same_proportions
from data_utils.invented_values import SWAPPED_FOLDERS_HINT, describe_invented, excess_values
from data_utils.mask_values import MAX_VALUES, as_color, count_values, in_colors, show
from data_utils.sources.records import LabelSet, Record, Records
from data_utils.targets.reader import TargetReader
from runtime.cache import JSON
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

NAMES_IN_MESSAGE = 3  # files with the same problem that a message names
NUMBER = re.compile(r"#?\b\d[\da-f]*\b(, (\.\.\.)?)?")  # mask values and sizes in a text
MIN_MERGED_FILES = 4  # from this many files with the same problem on, one line stands for all
# some pixels of each value of a mask, (n, 2) as (row, column); nnU-Net has them under this name
ClassLocations = dict[MaskValue, np.ndarray]


class Content(NamedTuple):
    """The kind of a mask's values, the values, and the classes that its image is labeled for, None for all."""

    kind: str
    values: tuple[MaskValue, ...]
    labeled_for: LabelSet | None


class Problem(NamedTuple):
    """A mistake in a record: its kind in a word or two, and a line that names the file."""

    kind: str
    text: str


@dataclass(frozen=True)
class Inspection:
    """The findings in one record.

    Args:
        size: (H, W) of the image.
        mask_size: (H, W) of the mask.
        mode: the image's type, as Pillow or NumPy names it.
        kind: the kind of the mask's values: "numbers", "greys" or "colors".
        pixels: how many pixels of the mask hold each value.
        class_locations: some pixels of each value, for an image too large to be decoded whole for every crop; else
            None.
    """

    size: tuple[int, ...]
    mask_size: tuple[int, ...]
    mode: str
    kind: str
    pixels: dict[MaskValue, int]
    class_locations: ClassLocations | None = None


@dataclass
class SplitInspection:
    """The findings in all records of a split.

    Args:
        sizes: (N, 2) int64 as (H, W); zeros where a record cannot be used.
        resized_masks: how many masks have another size than their images, in the same proportions.
        modes: how many images have each mode.
        contents: the different sets of values that masks hold, each with the pixels of all its masks together.
        members: (N,) index into `contents` of each mask, -1 where a record cannot be used.
        problems: index -> problem, for the records that cannot be used.
        class_locations: some pixels of each value, for records whose images are too large to be decoded whole for every
            crop.
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
    _numbers: dict[Content, int] = field(default_factory=dict)  # the index of each of the contents

    @classmethod
    def of_count(cls: type["AnyInspection"], count: int) -> "AnyInspection":
        """The inspection of `count` records before the first is inspected."""
        return cls(np.zeros((count, cls.dims), np.int64), np.full(count, -1, np.int64))

    def add(self, i: int, inspection: Inspection, labeled_for: LabelSet | None = None) -> None:
        """Add the findings in record i, whose image is labeled for the classes `labeled_for`."""
        content = Content(inspection.kind, tuple(sorted(inspection.pixels)), labeled_for)
        self.sizes[i] = inspection.size
        self.resized_masks += inspection.size != inspection.mask_size
        self.modes[inspection.mode] += 1
        if inspection.class_locations is not None:
            self.class_locations[i] = inspection.class_locations
        self.members[i] = self._numbers.setdefault(content, len(self._numbers))
        self.contents.setdefault(content, Counter()).update(inspection.pixels)

    def used_contents(self) -> Iterator[tuple[Content, Counter, np.ndarray]]:
        """Each of the `contents` of usable records, with its pixels and the indices of these records."""
        for number, (content, pixels) in enumerate(self.contents.items()):
            members = np.flatnonzero(self.members == number)
            if len(members):
                yield content, pixels, members

    def exclude(self, i: int, problem: Problem) -> None:
        """Note that a record cannot be used."""
        self.problems[i] = problem
        self.members[i] = -1

    def spacings(self) -> list[tuple[float, ...]]:
        """(z, y, x) in mm of each record that has a spacing."""
        return []

    def to_json(self) -> JSON:
        """The part that the cache stores; problems are left out, since an inspection with any is not remembered."""
        contents = []
        for content, pixels in self.contents.items():
            contents.append([content.kind, list(pixels.items()), content.labeled_for])
        class_locations = []
        for i, locations in self.class_locations.items():
            stored_locations = [[value, locations_to_json(pixels)] for value, pixels in locations.items()]
            class_locations.append([i, stored_locations])
        return {
            "sizes": self.sizes.tolist(),
            "resized_masks": self.resized_masks,
            "modes": dict(self.modes),
            "contents": contents,
            "members": self.members.tolist(),
            "class_locations": class_locations,
        }

    @classmethod
    def from_json(cls: type["AnyInspection"], value: JSON) -> "AnyInspection":
        contents: dict[Content, Counter] = {}
        for kind, items, labeled_for in value["contents"]:
            pixels = Counter({mask_value_from_json(stored): count for stored, count in items})
            labeled_for = None if labeled_for is None else tuple(labeled_for)
            contents[Content(kind, tuple(sorted(pixels)), labeled_for)] = pixels
        class_locations: dict[int, ClassLocations] = {}
        for i, stored_locations in value["class_locations"]:
            class_locations[i] = {
                mask_value_from_json(stored): locations_from_json(pixels) for stored, pixels in stored_locations
            }
        return cls(
            sizes=np.array(value["sizes"], np.int64).reshape(-1, cls.dims),
            members=np.array(value["members"], np.int64),
            resized_masks=value["resized_masks"],
            modes=Counter(value["modes"]),
            contents=contents,
            class_locations=class_locations,
        )


AnyInspection = TypeVar("AnyInspection", bound=SplitInspection)
InspectedSplits = Sequence[tuple[SplitInspection, Records]]  # the findings in each split, beside its records


def inspect(record: Record, *, has_classes: bool = True) -> Inspection | Problem:
    """The findings in the header of the image and in all of the mask.

    Args:
        has_classes: whether the values of masks are classes: few, and not smoothed.
    """
    name = record["name"]
    try:
        size, mode = read_header(record["image"], f"{name}: image")
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        mask, is_colored, is_jpeg = decode_mask(record["target"], name)
    except DataError as error:
        return Problem("mask cannot be read", str(error))
    mask_size = mask.shape[:2]
    if not same_proportions(size, mask_size):
        return size_problem(name, size, mask_size)
    pixels = count_values(mask)
    kind = "numbers"
    if mask.ndim == 3:
        kind = "colors"
    elif is_colored:
        kind = "greys"
    inspection = Inspection(size, mask_size, mode, kind, pixels)
    if not has_classes:
        return inspection
    if is_jpeg and len(pixels) > 2:
        return lossy_problem(name, pixels)
    return value_count_problem(pixels, name) or inspection


def lossy_problem(name: str, pixels: Mapping[MaskValue, int]) -> Problem:
    """The problem that a JPEG mask holds more than two values."""
    if len(pixels) > MAX_VALUES and describe_invented(pixels) is None:
        return Problem("lossy mask", f"{name}: mask looks like a photograph: {SWAPPED_FOLDERS_HINT}?")
    return Problem(
        "lossy mask",
        f"{name}: mask is a JPEG with the values {show(sorted(pixels))}; compression has invented some, and re-saving"
        " the file keeps them: export the mask again as PNG (or are images and masks swapped?)",
    )


def size_problem(name: str, image: tuple[int, int], mask: tuple[int, int]) -> Problem:
    """The problem that image and mask (H, W) have different proportions."""
    return Problem("mask and image differ in proportions", size_mismatch(name, image, mask))


def value_count_problem(pixels: Mapping[MaskValue, int], name: str) -> Problem | None:
    """The problem that a mask holds more values than a data set may have classes, or None."""
    excess = excess_values(pixels)
    if excess is None:
        return None
    return Problem("too many mask values", f"{name}: mask holds more than {MAX_VALUES} values: {excess}")


def total_pixels(inspected: InspectedSplits) -> dict[MaskValue, int]:
    """Every value in any mask and how many pixels hold it.

    Raises DataError if masks of numbers and color masks are mixed.
    """
    totals: dict[str, Counter] = {"numbers": Counter(), "greys": Counter(), "colors": Counter()}
    examples: dict[str, str] = {}
    for inspection, records in inspected:
        for content, pixels, members in inspection.used_contents():
            totals[content.kind].update(pixels)
            examples.setdefault(content.kind, records.name(int(members[0])))
    numbers = totals["numbers"]
    greys = totals["greys"]
    colors = totals["colors"]
    if colors and numbers:
        raise DataError(
            f"{examples['colors']} is a color mask and {examples['numbers']} one of numbers; store all in one way"
        )
    if colors:
        greys = in_colors(greys)
    return dict(greys + numbers + colors)


def pixels_by_labels(inspected: InspectedSplits) -> dict[LabelSet | None, dict[MaskValue, int]]:
    """How many pixels hold each value in the masks of images that are labeled for the same classes, None for all."""
    totals: dict[LabelSet | None, Counter] = defaultdict(Counter)
    for inspection, _ in inspected:
        for content, pixels, _ in inspection.used_contents():
            totals[content.labeled_for].update(pixels)
    return {labeled_for: dict(pixels) for labeled_for, pixels in totals.items()}


def exclude_unreadable(inspection: SplitInspection, records: Records, reader: TargetReader) -> None:
    """Add to the inspection's problems the records whose masks hold values that cannot be turned into a target."""
    if reader.class_map is not None:
        find_unknown(inspection, records, reader.class_map)
        return
    for content, _, members in inspection.used_contents():
        problem = reader.problem_of(content.values)
        if problem is None:
            continue
        for i in members.tolist():
            inspection.exclude(i, Problem("number of no object", f"{records[i]['name']}: {problem}"))


def find_unknown(inspection: SplitInspection, records: Records, class_map: ClassMap) -> None:
    """Add to the inspection's problems the records whose masks hold values without a class."""
    for content, _, members in inspection.used_contents():
        values = content.values
        if class_map.has_colors and content.kind == "greys":
            values = tuple(as_color(value) for value in values)
        unknown = [value for value in values if class_map.index_of(value) is None]
        if not unknown:
            continue
        for i in members.tolist():
            text = f"{records[i]['name']}: mask values {show(unknown)} belong to no class; classes are"
            remedy = "name them in --classes, --outside ignore leaves them out, or is it a lossy (JPEG) mask?"
            inspection.exclude(i, Problem("unknown mask value", f"{text} {show(class_map.values)}; {remedy}"))


def raise_problems(inspection: SplitInspection, count: int) -> None:
    """One DataError for all problems, which names the first few."""
    if inspection.problems:
        texts = [problem.text for problem in inspection.problems.values()]
        listed = listing(merge_equal(texts), separator="; ")
        remedy = "; --on-bad-sample skip trains without them" if len(texts) < count else ""
        raise DataError(f"{len(texts)} of {count} pairs cannot be used: {listed}{remedy}")


def merge_equal(texts: Sequence[str], limit: int = NAMES_IN_MESSAGE) -> list[str]:
    """Merge texts `NAME: problem`: if many names have the same problem, one text lists the first of these names.

    Texts that differ only in their numbers are merged too; the merged text has the numbers of the first one.
    """
    texts_of: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        name, _, problem = text.partition(": ")
        texts_of.setdefault(NUMBER.sub("", problem), []).append((name, problem))
    lines = []
    for alike in texts_of.values():
        if len(alike) < MIN_MERGED_FILES:
            lines += [": ".join(filter(None, name_and_problem)) for name_and_problem in alike]
            continue
        names = listing([name for name, _ in alike], limit=limit)
        _, problem = alike[0]
        lines.append(f"{len(alike)} files ({names}): {problem}")
    return lines


def mask_value_from_json(value: Any) -> MaskValue:
    """A number, or a color, which JSON has as a list."""
    return tuple(value) if isinstance(value, list) else value


def locations_to_json(locations: np.ndarray) -> JSON:
    """Pixels (n, 2) as lists; voxels (n, 3), which are many, as text."""
    if locations.shape[1] == 2:
        return locations.tolist()
    return b64encode(locations.astype("<u2").tobytes()).decode()


def locations_from_json(value: JSON) -> np.ndarray:
    """(n, 2) or (n, 3) int64, the inverse of `locations_to_json`."""
    if isinstance(value, list):
        return np.array(value)
    return np.frombuffer(b64decode(value), "<u2").reshape(-1, 3).astype(np.int64)
