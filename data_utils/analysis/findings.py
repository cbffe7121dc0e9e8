"""What one look at all files of a data set finds: the meaning of its masks, and all mistakes in them."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import SplitInspection, inspect_split, pixels_by_labels, total_pixels
from data_utils.analysis.normalization import STATISTICS_IMAGES
from data_utils.analysis.problems import Problem
from data_utils.analysis.spoiled_masks import check_masks
from data_utils.class_map import ClassMap
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.records import LabelSet, ListRows, Records
from data_utils.targets.reader import TargetReader
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

USES = ("training", "validation")
SAMPLE_GROUPS = 8  # groups of a stream that the sampled images come from


@dataclass(frozen=True)
class OpenedData:
    """A data set whose task is known, before its files are looked at.

    Args:
        config: with the task.
        targets: the reader of the task's targets.
        classes: the classes that --classes or the data set names.
        trusts_values: whether a flag says that all values of masks are classes.
        warnings: lines on likely mistakes.
    """

    train: Records
    val: Records
    config: DataConfig
    targets: type[TargetReader]
    classes: NamedClasses = ()
    trusts_values: bool = False
    warnings: tuple[str, ...] = ()


@dataclass
class Findings:
    """What was found in a data set.

    Args:
        splits: the inspections of the splits whose masks do not hold too many values together.
        pixels: how many pixels of the masks hold each value, also of masks that make no target.
        mistakes: of no single file: masks of too many values together, and masks whose meaning is unclear.
        reader: reads the targets and knows their meaning; None if it is unclear.
    """

    data: OpenedData
    splits: list[SplitInspection] = field(default_factory=list)
    pixels: dict[MaskValue, int] = field(default_factory=dict)
    mistakes: list[Problem] = field(default_factory=list)
    reader: TargetReader | None = None

    @property
    def records(self) -> list[Records]:
        """The records of the splits."""
        return [split.records for split in self.splits]

    @property
    def class_map(self) -> ClassMap | None:
        """The class of each value, if values are classes."""
        return self.known_reader.class_map

    @property
    def known_reader(self) -> TargetReader:
        """The reader, where it is known that the masks have a meaning."""
        assert self.reader is not None
        return self.reader

    def raise_problems(self) -> None:
        """Raises DataError for mistakes, and for problems unless --on-bad-sample skips them and records are left."""
        for split in self.splits:
            split.raise_problems(skips=bool(self.data.config.skipped_errors))
        for mistake in self.mistakes:
            raise DataError(mistake.text)


Check = Callable[[Findings], Iterable[str]]  # it gives a line for each likely mistake of one kind


def examine(data: OpenedData, *, decodes: bool = False) -> Findings:
    """Look at all files of both splits, and understand their masks.

    Of a stream, only a sample of the training images is read, and the validation images where their sizes are needed.

    Args:
        decodes: whether each image is decoded whole, also of a stream, and nothing is taken from the cache.
    """
    config = data.config
    is_sample = data.train.is_stream and not decodes
    splits = [data.train, data.val]
    if is_sample:
        splits = [_random_sample(data.train, config.seed)]
        if not config.image_size:
            splits.append(data.val)
    findings = Findings(data)
    leaves_out = config.outside_rule is not None
    has_classes = data.targets.has_classes and not leaves_out
    for use, records in zip(USES, splits, strict=False):
        # validation images are not cropped, so that they are not read in windows
        rules = Rules(has_classes, leaves_out, windows=config.may_crop and use == "training", decodes=decodes)
        try:
            split = inspect_split(records, f"checking {use} files", rules, has_names=bool(data.classes))
            findings.splits.append(split)
        except DataError as error:
            findings.mistakes.append(Problem("too many mask values", str(error)))
    counted = findings.splits[:1] if is_sample else findings.splits
    try:
        findings.pixels = total_pixels(counted)
        reader = _understand(findings, is_sample)
    except DataError as error:
        findings.mistakes.append(Problem("classes", str(error)))
        return findings
    for split in findings.splits:
        split.exclude_unreadable(reader)
    findings.reader = _read_labels(reader, counted).with_pixels(pixels_by_labels(counted))
    return findings


def _understand(findings: Findings, is_sample: bool) -> TargetReader:
    """The reader of the targets. Raises DataError if the meaning of the masks is unclear."""
    data = findings.data
    pixels = findings.pixels
    if is_sample:
        # masks outside the sample may hold the usual 255
        if all(isinstance(value, int) for value in pixels):
            pixels = pixels | {IGNORE_INDEX: pixels.get(IGNORE_INDEX, 0)}
    elif data.targets.has_classes and not data.classes and not data.trusts_values:
        check_masks(findings.splits, pixels)
    return data.targets.from_records(None if is_sample else data.train, pixels, data.classes, data.config)


def _read_labels(reader: TargetReader, splits: list[SplitInspection]) -> TargetReader:
    """The reader that also knows which classes each image is labeled for; unchanged if all images have all labels."""
    place_by_set: dict[LabelSet, str] = {}
    file_classes: NamedClasses = ()
    for split in splits:
        place_by_set = {**split.records.metadata.label_sets, **place_by_set}
        file_classes = file_classes or split.records.metadata.classes
    if not place_by_set:
        return reader
    return reader.partly_labeled(place_by_set, file_classes)


def _random_sample(stream: Records, seed: int) -> Records:
    """About STATISTICS_IMAGES records of a stream, from SAMPLE_GROUPS of its groups."""
    sizes = stream.rows.group_sizes
    assert sizes is not None
    rng = np.random.default_rng(seed)
    groups = rng.permutation(len(sizes))[:SAMPLE_GROUPS]
    firsts = np.cumsum(sizes) - sizes
    share = math.ceil(STATISTICS_IMAGES / len(groups))
    sample = []
    for group in groups:
        for index in rng.permutation(sizes[group])[:share]:
            sample.append(stream[int(firsts[group] + index)])
    return Records(ListRows(sample))


def labeled_indices(reader: TargetReader, labeled_for: LabelSet | None) -> Collection[int]:
    """The classes, by index, that an image is labeled for."""
    classes = reader.labeled_classes(labeled_for)
    return range(len(reader.class_names)) if classes is None else classes
