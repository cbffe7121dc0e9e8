"""What one look at records finds: sizes, mask values, and problems; of a record, and of all records of a split."""

from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.formats import PointSource
from data_utils.image_io.volume_formats import Spacing
from data_utils.mask_values import count_colors
from data_utils.point_states import PRESENT
from data_utils.sources.records import LabelSet, Records
from runtime.cache import JSON
from runtime.errors import DataError
from unet.config import MaskValue

# some pixels of each value of a mask, (n, 2) as (row, column), or voxels (n, 3); nnU-Net has them under this name
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


class UnusableRecord(Exception):  # it says what a record is
    """A record cannot be used, for a `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


@contextmanager
def problem_of_kind(kind: str) -> Iterator[None]:
    """A context in which a DataError makes the record unusable, with a problem of this kind."""
    try:
        yield
    except DataError as error:
        raise UnusableRecord(Problem(kind, str(error))) from error


class Foreground(NamedTuple):
    """Statistics of labeled voxels of a split: the values that CT is clipped to, mean and deviation of each channel."""

    clip: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Inspection:
    """What one look at a record finds.

    Args:
        size: (*spatial) of the image.
        mask_size: (*spatial) of the mask.
        mode: the image's type, as Pillow or NumPy names it.
        kind: the kind of the mask's values: "numbers", "greys" or "colors".
        pixels: how many pixels of the mask hold each value.
        class_locations: some pixels of each value, for volumes and for images too large to be decoded whole for every
            crop; else None.
        channels: the channels of an image that was decoded whole; 0 for any other.
        spacing: (z, y, x) in mm of a volume.
        foreground: the values of some labeled voxels of a volume, (n, C) float32.
    """

    size: tuple[int, ...]
    mask_size: tuple[int, ...]
    mode: str
    kind: str
    pixels: dict[MaskValue, int]
    class_locations: ClassLocations | None = None
    channels: int = 0
    spacing: Spacing | None = None
    foreground: np.ndarray | None = None


def point_locations(pixels: np.ndarray, source: PointSource, size: tuple[int, ...]) -> ClassLocations:
    """Number of each present point, from 1 -> its pixel (1, n), given all `pixels` (K, n) in an image of `size`."""
    locations: ClassLocations = {}
    for number, (position, state) in enumerate(zip(pixels, source.states, strict=True), 1):
        if state == PRESENT:
            locations[number] = position.round().astype(np.int64).clip(0, np.array(size) - 1)[None]
    return locations


@dataclass
class SplitInspection:
    """What one look at each record of a split finds.

    Args:
        sizes: (N, 2) int64 as (H, W), or (N, 3); zeros where a record cannot be used.
        members: (N,) index into `contents` of each mask, -1 where a record cannot be used.
        channels: (N,) int64, the channels of each image; 0 where the image was not decoded.
        spacings: (N, 3), (z, y, x) in mm; zeros for images, and where a record cannot be used.
        resized_masks: how many masks have another size than their images, in the same proportions.
        modes: how many images have each mode.
        contents: the different sets of values that masks hold, each with the pixels of all its masks together.
        problems: index -> problem, for the records that cannot be used.
        class_locations: some pixels of each value, for the records that have them.
        foreground: the intensities of labeled voxels; None for images, if no voxel is labeled, or if not all volumes
            have as many channels.
    """

    sizes: np.ndarray
    members: np.ndarray
    channels: np.ndarray
    spacings: np.ndarray
    resized_masks: int = 0
    modes: Counter = field(default_factory=Counter)
    contents: dict[Content, Counter] = field(default_factory=dict)
    problems: dict[int, Problem] = field(default_factory=dict)
    class_locations: dict[int, ClassLocations] = field(default_factory=dict)
    foreground: Foreground | None = None
    _numbers: dict[Content, int] = field(default_factory=dict)  # the index of each of the contents

    @classmethod
    def empty(cls, count: int, dims: int = 2) -> "SplitInspection":
        """The inspection of `count` images or volumes before the first is inspected."""
        sizes = np.zeros((count, dims), np.int64)
        return cls(sizes, np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros((count, 3)))

    def add(self, i: int, inspection: Inspection, labeled_for: LabelSet | None = None) -> None:
        """Add the inspection of record i, whose image is labeled for the classes `labeled_for`."""
        content = Content(inspection.kind, tuple(sorted(inspection.pixels)), labeled_for)
        self.sizes[i] = inspection.size
        self.channels[i] = inspection.channels
        self.spacings[i] = inspection.spacing or 0
        self.resized_masks += inspection.size != inspection.mask_size
        self.modes[inspection.mode] += 1
        if inspection.class_locations is not None:
            self.class_locations[i] = inspection.class_locations
        self.members[i] = self._numbers.setdefault(content, len(self._numbers))
        self.contents.setdefault(content, Counter()).update(inspection.pixels)

    def used_contents(self) -> Iterator[tuple[Content, Counter, np.ndarray]]:
        """Each of the `contents` of usable records, with its pixels and the indices of these records."""
        by_content = np.argsort(self.members, kind="stable")
        ends = np.searchsorted(self.members[by_content], np.arange(len(self.contents)), side="right")
        start = int((self.members < 0).sum())
        for (content, pixels), end in zip(self.contents.items(), ends.tolist(), strict=True):
            if end > start:
                yield content, pixels, by_content[start:end]
            start = end

    def exclude(self, i: int, problem: Problem) -> None:
        """Note that a record cannot be used."""
        self.problems[i] = problem
        self.members[i] = -1

    def to_json(self) -> JSON:
        """What the cache stores; problems are left out, since an inspection with any is not remembered."""
        contents = []
        for content, pixels in self.contents.items():
            contents.append([content.kind, list(pixels.items()), content.labeled_for])
        locations = []
        for i, by_value in self.class_locations.items():
            texts = [[value, _to_text(pixels)] for value, pixels in by_value.items()]
            locations.append([i, texts])
        return {
            "sizes": self.sizes.tolist(),
            "members": self.members.tolist(),
            "channels": self.channels.tolist(),
            "spacings": self.spacings.tolist() if self.spacings.any() else [],
            "resized_masks": self.resized_masks,
            "modes": dict(self.modes),
            "contents": contents,
            "class_locations": locations,
            "foreground": self.foreground,
        }

    @classmethod
    def from_json(cls, value: JSON, dims: int = 2) -> "SplitInspection":
        """The inverse of `to_json`."""
        members = np.array(value["members"], np.int64)
        split = cls.empty(len(members), dims)
        split.members = members
        split.sizes[:] = np.array(value["sizes"]).reshape(-1, dims)
        split.channels[:] = value["channels"]
        split.spacings[:] = value["spacings"] or 0
        split.resized_masks = value["resized_masks"]
        split.modes = Counter(value["modes"])
        for kind, items, labeled_for in value["contents"]:
            pixels = Counter({mask_value_from_json(json_value): count for json_value, count in items})
            if labeled_for is not None:
                labeled_for = tuple(labeled_for)
            split.contents[Content(kind, tuple(sorted(pixels)), labeled_for)] = pixels
        for i, by_value in value["class_locations"]:
            locations = {}
            for json_value, text in by_value:
                locations[mask_value_from_json(json_value)] = _from_text(text)
            split.class_locations[i] = locations
        if value["foreground"]:
            split.foreground = Foreground(*map(tuple, value["foreground"]))
        return split


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
    numbers, greys, colors = totals.values()
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
    if isinstance(value, list):
        return tuple(value)
    return value


def _to_text(locations: np.ndarray) -> JSON:
    """Pixels (n, d), which may be many, as d and a text."""
    return [locations.shape[1], b64encode(locations.astype("<u4").tobytes()).decode()]


def _from_text(value: JSON) -> np.ndarray:
    """(n, d) int64, the inverse of `_to_text`."""
    dims, text = value
    return np.frombuffer(b64decode(text), "<u4").reshape(-1, dims).astype(np.int64)
