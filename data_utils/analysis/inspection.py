"""The inspection of a split: every record is looked at once, and what is found is remembered until a file changes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from data_utils.analysis.distinct_rows import distinct_rows
from data_utils.analysis.inspect_record import ClassLocations, Inspection, Rules, inspect_record
from data_utils.analysis.normalization import Normalization, measure_foreground
from data_utils.analysis.problems import Problem, describe_excess, merge_equal
from data_utils.class_map import ClassMap
from data_utils.mask_values import MAX_VALUES, as_color, count_colors, show
from data_utils.sources.records import LabelSet, Records
from data_utils.targets.reader import TargetReader
from runtime.cache import digest, load_value, store_value
from runtime.console import listing, track
from runtime.errors import DataError
from runtime.parallel import CHUNK, map_indices
from unet.config import IGNORE_INDEX, MaskValue

NOT_STORED = ("records", "problems", "_numbers")  # of an inspection, in the cache


class Content(NamedTuple):
    """The kind of a mask's values, the values, and the classes that its image is labeled for, None for all."""

    kind: str
    values: tuple[MaskValue, ...]
    labeled_for: LabelSet | None


@dataclass
class SplitInspection:
    """What one look at each record of a split finds.

    Args:
        sizes: (N, 2) int64 as (H, W), or (N, 3); zeros where a record cannot be used.
        members: (N,) int64, the number of each mask's content among `contents`, -1 where a record cannot be used.
        channels: (N,) int64, the channels of each image; 0 where the image was not decoded.
        spacings: (N, 3), (z, y, x) in mm, zeros where a record cannot be used; empty for images.
        resized_masks: how many masks have another size than their images, in the same proportions.
        modes: how many images have each mode.
        contents: the different sets of values that masks hold, each with the pixels of all its masks together.
        class_locations: some pixels of each value, for the records that have them.
        foreground: the normalization of CT; None for images, if no voxel is labeled, or if not all volumes have as many
            channels.
        problems: index -> problem, for the records that cannot be used.
        objects: how many annotated objects have each mask value.
        annotated: how many images have such objects, or masks that hold more than 0.
    """

    records: Records
    sizes: np.ndarray
    members: np.ndarray
    channels: np.ndarray
    spacings: np.ndarray
    resized_masks: int = 0
    modes: Counter = field(default_factory=Counter)
    contents: dict[Content, Counter] = field(default_factory=dict)
    class_locations: dict[int, ClassLocations] = field(default_factory=dict)
    foreground: Normalization | None = None
    problems: dict[int, Problem] = field(default_factory=dict)
    objects: Counter[int] = field(default_factory=Counter)
    annotated: int = 0
    _numbers: dict[Content, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, records: Records) -> "SplitInspection":
        """The inspection before the first record is looked at."""
        count = len(records)
        sizes = np.zeros((count, records.dims), np.int64)
        spacings = np.zeros((count if records.dims == 3 else 0, 3))
        return cls(records, sizes, np.full(count, -1, np.int64), np.zeros(count, np.int64), spacings)

    def add(self, i: int, found: Inspection) -> None:
        """Add the inspection of record i."""
        content = Content(found.kind, tuple(sorted(found.pixels)), self.records.label_set(i))
        self.members[i] = self._numbers.setdefault(content, len(self._numbers))
        self.contents.setdefault(content, Counter()).update(found.pixels)
        self.sizes[i] = found.size
        self.channels[i] = found.channels
        if found.spacing is not None:
            self.spacings[i] = found.spacing
        self.resized_masks += found.is_resized
        self.modes[found.mode] += 1
        self.objects.update(found.objects)
        self.annotated += bool(found.objects or any(found.pixels))
        if found.class_locations is not None:
            self.class_locations[i] = found.class_locations

    def used_contents(self) -> Iterator[tuple[Content, Counter, np.ndarray]]:
        """Each of the `contents` of usable records, with its pixels and the indices of these records."""
        by_content = np.argsort(self.members, kind="stable")
        ends = np.searchsorted(self.members[by_content], np.arange(len(self.contents)), side="right")
        start = int((self.members < 0).sum())
        for (content, pixels), end in zip(self.contents.items(), ends.tolist(), strict=True):
            if end > start:
                yield content, pixels, by_content[start:end]
            start = end

    def usable_sizes(self) -> np.ndarray:
        """(N, 2 or 3) int32; a record without a size has the most frequent one, so that fillers add no new shape."""
        is_known = np.asarray(self.sizes.any(axis=1))
        known_sizes = distinct_rows(self.sizes[is_known])
        usual_size = known_sizes.rows[known_sizes.counts().argmax()]
        return np.where(is_known[:, None], self.sizes, usual_size).astype(np.int32)

    def exclude_unreadable(self, reader: TargetReader) -> None:
        """Add to the problems the records whose masks hold values that cannot be turned into a target."""
        for content, _, members in self.used_contents():
            if reader.class_map is not None:
                kind = "unknown mask value"
                text = _unknown_values(content, reader.class_map)
            else:
                kind = "number of no object"
                text = reader.find_problem(content.values)
            if not text:
                continue
            for i in members.tolist():
                self.problems[i] = Problem(kind, f"{self.records.name(i)}: {text}")
            self.members[members] = -1

    def raise_problems(self, *, skips: bool = False) -> None:
        """Raises one DataError for all problems, which names the first few; with `skips`, only if no record is left."""
        count = len(self.records)
        if not self.problems or (skips and len(self.problems) < count):
            return
        texts = [problem.text for problem in self.problems.values()]
        problem_list = listing(merge_equal(texts), separator="; ")
        remedy = "; --on-bad-sample skip trains without them" if len(texts) < count else ""
        raise DataError(f"{len(texts)} of {count} pairs cannot be used: {problem_list}{remedy}")

    @property
    def found(self) -> dict[str, Any]:
        """What the cache stores; problems are left out, since an inspection with any is not remembered."""
        return {name: value for name, value in vars(self).items() if name not in NOT_STORED}

    @classmethod
    def restored(cls, found: dict[str, Any], records: Records) -> "SplitInspection":
        """The inspection of records, from what was `found`; the cache has plain dictionaries and tuples."""
        split = cls(records, **found)
        split.contents = {Content(*content): Counter(pixels) for content, pixels in split.contents.items()}
        split.modes = Counter(split.modes)
        split.objects = Counter(split.objects)
        if found["foreground"]:
            split.foreground = Normalization(*found["foreground"])
        return split


def _unknown_values(content: Content, class_map: ClassMap) -> str | None:
    """The mistake in masks that hold values without a class; None if all have one."""
    values = content.values
    if class_map.has_colors and content.kind == "greys":
        values = tuple(map(as_color, values))
    unknown = [value for value in values if class_map.index_of(value) is None]
    if not unknown:
        return None
    remedy = (
        "name them in --classes, --outside ignore leaves them out, --outside background adds them to the class called"
        " background, or is it a lossy (JPEG) mask?"
    )
    if unknown == [IGNORE_INDEX]:
        remedy = f"name it in --classes, or give --ignore-index {IGNORE_INDEX} if it means unlabeled"
    return f"mask values {show(unknown)} belong to no class; classes are {show(class_map.values)}; {remedy}"


def inspect_split(records: Records, title: str, rules: Rules, *, has_names: bool = False) -> SplitInspection:
    """The inspection of all records, from the cache or, if images are decoded or there were problems, made anew.

    Args:
        has_names: whether the classes have names, so that masks with other values will be listed.

    Raises DataError only for masks that hold too many values together.
    """
    key = None if rules.decodes else records.digest
    key = key and digest("inspection of a split, with pixels of images", key, repr(rules))
    try:
        return SplitInspection.restored(load_value(key), records)
    except (OSError, ValueError):  # nothing is stored, or it is damaged
        split = _look_at_all(records, title, rules, has_names)
    if not split.problems:
        store_value(key, split.found)
    return split


def _look_at_all(records: Records, title: str, rules: Rules, has_names: bool) -> SplitInspection:
    """The inspection of all records, in threads, with a progress bar."""
    split = SplitInspection.empty(records)
    pixels: dict[str, Counter[MaskValue]] = defaultdict(Counter)
    foregrounds: list[np.ndarray] = []
    foregrounds_of_255: list[np.ndarray] = []
    chunk = CHUNK if records.dims == 2 else 1
    inspections = map_indices(lambda i: inspect_record(records[i], rules), len(records), chunk)
    for i, found in enumerate(track(inspections, len(records), title)):
        if isinstance(found, Problem):
            split.problems[i] = found
            continue
        split.add(i, found)
        if found.foreground is not None:
            voxels = foregrounds_of_255 if found.holds_only_255 else foregrounds
            voxels.append(found.foreground)
        pixels_of_kind = pixels[found.kind]
        pixels_of_kind.update(found.pixels)
        if rules.has_classes and not has_names and len(pixels_of_kind) > MAX_VALUES:
            raise DataError(f"the masks up to {records.name(i)} hold {describe_excess(pixels_of_kind)}")
    # beside other values 255 is ignored
    split.foreground = measure_foreground(foregrounds) or measure_foreground(foregrounds_of_255)
    return split


def pixels_by_labels(splits: Sequence[SplitInspection]) -> dict[LabelSet | None, Counter]:
    """How many pixels hold each value in the usable masks of images labeled for the same classes, None for all.

    Raises DataError if masks of numbers and color masks are mixed.
    """
    totals: dict[LabelSet | None, Counter] = defaultdict(Counter, {None: Counter()})
    examples: dict[str, str] = {}
    for split in splits:
        for content, pixels, members in split.used_contents():
            totals[content.labeled_for].update(pixels)
            if pixels:
                examples.setdefault(content.kind, split.records.name(int(members[0])))
    if "colors" not in examples:
        return totals
    if "numbers" in examples:
        raise DataError(
            f"{examples['colors']} is a color mask and {examples['numbers']} one of numbers; store all in one way"
        )
    return {labeled_for: count_colors(pixels) for labeled_for, pixels in totals.items()}


def total_pixels(splits: Sequence[SplitInspection]) -> dict[MaskValue, int]:
    """Every value in any usable mask and how many pixels hold it. Raises DataError as `pixels_by_labels` does."""
    return dict(sum(pixels_by_labels(splits).values(), Counter()))
