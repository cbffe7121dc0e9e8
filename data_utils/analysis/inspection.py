"""What one look at records finds: sizes, mask values, and problems; of a record, and of all records of a split."""

from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from data_utils.mask_values import count_colors
from data_utils.sources.records import LabelSet, Records
from runtime.cache import JSON
from runtime.errors import DataError
from unet.config import MaskValue

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
    """What one look at a record finds.

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
    """What one look at each record of a split finds.

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
    def empty(cls: type["AnyInspection"], count: int) -> "AnyInspection":
        """The inspection of `count` records before the first is inspected."""
        return cls(np.zeros((count, cls.dims), np.int64), np.full(count, -1, np.int64))

    def add(self, i: int, inspection: Inspection, labeled_for: LabelSet | None = None) -> None:
        """Add the inspection of record i, whose image is labeled for the classes `labeled_for`."""
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
            pixels = Counter({mask_value_from_json(json_value): count for json_value, count in items})
            labeled_for = None if labeled_for is None else tuple(labeled_for)
            contents[Content(kind, tuple(sorted(pixels)), labeled_for)] = pixels
        class_locations: dict[int, ClassLocations] = {}
        for i, stored_locations in value["class_locations"]:
            class_locations[i] = {
                mask_value_from_json(json_value): locations_from_json(pixels) for json_value, pixels in stored_locations
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
InspectedSplits = Sequence[tuple[SplitInspection, Records]]  # the inspection of each split, beside its records


def total_pixels(inspected_splits: InspectedSplits) -> dict[MaskValue, int]:
    """Every value in any mask and how many pixels hold it.

    Raises DataError if masks of numbers and color masks are mixed.
    """
    totals: dict[str, Counter] = {"numbers": Counter(), "greys": Counter(), "colors": Counter()}
    examples: dict[str, str] = {}
    for inspection, records in inspected_splits:
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
        greys = count_colors(greys)
    return dict(greys + numbers + colors)


def pixels_by_labels(inspected_splits: InspectedSplits) -> dict[LabelSet | None, dict[MaskValue, int]]:
    """How many pixels hold each value in the masks of images that are labeled for the same classes, None for all."""
    totals: dict[LabelSet | None, Counter] = defaultdict(Counter)
    for inspection, _ in inspected_splits:
        for content, pixels, _ in inspection.used_contents():
            totals[content.labeled_for].update(pixels)
    return {labeled_for: dict(pixels) for labeled_for, pixels in totals.items()}


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
