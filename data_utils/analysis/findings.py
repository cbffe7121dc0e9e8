"""What one look at all files of a data set finds: the meaning of its masks, and all mistakes in them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import SplitInspection, inspect_split, pixels_by_labels, total_pixels
from data_utils.analysis.problems import Problem
from data_utils.analysis.spoiled_masks import check_masks
from data_utils.class_map import ClassMap
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.records import LabelSet, Records
from data_utils.targets.reader import TargetReader
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

USES = ("training", "validation")


@dataclass
class Findings:
    """What was found in a data set.

    Args:
        has_names: whether the classes are named, by a flag or by the data set.
        splits: the inspections of the splits whose masks do not hold too many values together.
        pixels: how many pixels of the masks hold each value, also of masks that make no target.
        mistakes: of no single file: masks of too many values together, and masks whose meaning is unclear.
        reader: reads the targets and knows their meaning; None if it is unclear.
    """

    config: DataConfig
    has_names: bool
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
            split.raise_problems(skips=bool(self.config.skipped_errors))
        for mistake in self.mistakes:
            raise DataError(mistake.text)


Check = Callable[[Findings], Iterator[str]]  # it gives a line for each likely mistake of one kind


def examine(
    splits: Sequence[Records],
    targets: type[TargetReader],
    classes: NamedClasses,
    config: DataConfig,
    *,
    decodes: bool = False,
    is_sample: bool = False,
    trusts_values: bool = False,
) -> Findings:
    """Look at all files of the splits, of which the first trains, and understand their masks.

    Args:
        classes: the classes that --classes or the data set names.
        decodes: whether each image is decoded whole, and nothing is taken from the cache.
        is_sample: whether the records are a sample of a stream: other masks may hold the usual ignored value, 255.
        trusts_values: whether a flag says that all values of masks are classes.
    """
    findings = Findings(config, bool(classes))
    for number, records in enumerate(splits):
        rules = examination_rules(targets, config, is_training=number == 0, decodes=decodes)
        title = f"checking {USES[number]} files"
        try:
            findings.splits.append(inspect_split(records, title, rules, has_names=findings.has_names))
        except DataError as error:
            findings.mistakes.append(Problem("too many mask values", str(error)))
    if not findings.splits:
        return findings
    try:
        findings.pixels = total_pixels(findings.splits)
        if targets.has_classes and not classes and not trusts_values:
            check_masks(findings.splits, findings.pixels)
        if is_sample:
            reader = _reader_of_sample(findings.pixels, targets, classes, config)
        else:
            reader = targets.from_records(splits[0], findings.pixels, classes, config)
    except DataError as error:
        findings.mistakes.append(Problem("classes", str(error)))
        return findings
    for split in findings.splits:
        split.exclude_unreadable(reader)
    findings.reader = _read_labels(reader.with_pixels(total_pixels(findings.splits)), findings.splits)
    return findings


def examination_rules(
    targets: type[TargetReader], config: DataConfig, *, is_training: bool, decodes: bool = False
) -> Rules:
    """What is looked at in a split; validation images are not cropped, so that they are not read in windows."""
    limits_values = targets.has_classes and config.outside_rule is None
    return Rules(limits_values, config.may_crop and is_training, decodes)


def _reader_of_sample(
    pixels: dict[MaskValue, int], targets: type[TargetReader], classes: NamedClasses, config: DataConfig
) -> TargetReader:
    possible_pixels = pixels
    if all(isinstance(value, int) for value in pixels):
        possible_pixels = pixels | {IGNORE_INDEX: pixels.get(IGNORE_INDEX, 0)}
    return targets.from_values(possible_pixels, classes, config)


def _read_labels(reader: TargetReader, splits: Sequence[SplitInspection]) -> TargetReader:
    """The reader that also knows which classes each image is labeled for; unchanged if all images have all labels."""
    place_by_set: dict[LabelSet, str] = {}
    file_classes: NamedClasses = ()
    for split in splits:
        place_by_set = {**split.records.metadata.label_sets, **place_by_set}
        file_classes = file_classes or split.records.metadata.classes
    if not place_by_set:
        return reader
    return reader.partly_labeled(place_by_set, file_classes, pixels_by_labels(splits))


def labeled_indices(reader: TargetReader, labeled_for: LabelSet | None) -> Collection[int]:
    """The classes, by index, that an image is labeled for."""
    classes = reader.labeled_classes(labeled_for)
    return range(len(reader.class_names)) if classes is None else classes
