"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from data_utils.analysis.data_warnings import find_warnings
from data_utils.analysis.inspection import InspectedSplits, Inspection, Problem, SplitInspection, total_pixels
from data_utils.analysis.inspectors import Inspector, choose_inspector, inspect_split
from data_utils.analysis.label_sets import describe_labels, read_labels
from data_utils.analysis.point_warnings import describe_points
from data_utils.analysis.problems import exclude_unreadable, merge_equal
from data_utils.analysis.spoiled_masks import check_masks
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.mask_values import value_text
from data_utils.sources.blocks import describe_neighbors
from data_utils.sources.load import load_records
from data_utils.sources.records import Record, Records, annotation_summaries
from data_utils.targets import find_named_classes, reader_type
from data_utils.targets.classes import ClassReader
from data_utils.targets.find import find_task, task_warnings
from data_utils.targets.palettes import with_palette_colors
from runtime.console import counted, first_few, listing
from runtime.errors import DataError
from tasks.classes import Classes
from unet.config import IGNORE_INDEX, MaskValue

FILES = 20  # files that are named for each kind of problem
UNPAIRED = "file without partner"
OF_ALL_FILES = ("classes", "too many mask values")  # problems that no single file has
UNCLASSED = 4  # the least mask values without a class that share a line


def check_data(config: DataConfig) -> tuple[str, int]:
    """The report on both splits and how many problems it lists. Raises DataError if there is no data set to read.

    Large training images are read in windows if training reads them so.
    """
    train, val = load_records(replace(config, allow_unpaired=True))
    warnings = task_warnings(train, config)
    insists = config.task == Classes.name
    config = replace(config, task=find_task(train, config))
    with suppress(DataError):  # the error is reported where the masks are understood
        if reader_type(config) is ClassReader:
            train, val, palette_lines = with_palette_colors(train, val, find_named_classes(train, config))
            warnings += palette_lines
    problems: dict[str, list[str]] = defaultdict(list)
    if not config.allow_unpaired:
        problems[UNPAIRED] += sorted({*train.metadata.unpaired, *val.metadata.unpaired})
    inspected_splits: list[tuple[SplitInspection, Records]] = []
    names_by_channels: dict[int, list[str]] = defaultdict(list)
    has_names = bool(config.classes or train.metadata.classes)
    for split, records in (("training", train), ("validation", val)):
        try:
            inspection = _inspect_files(split, records, config, names_by_channels, has_names=has_names)
            inspected_splits.append((inspection, records))
        except DataError as error:
            problems["too many mask values"].append(str(error))
    train_inspector = choose_inspector(train)
    kind = train_inspector.kind
    lines = [f"{config.dataset}: {counted(len(train), f'training {kind}')}, {counted(len(val), f'validation {kind}')}"]
    lines += describe_annotations(train, val)
    lines += describe_neighbors(train, val)
    meaning = MaskMeaning()
    try:
        meaning = understand_masks(train, val, inspected_splits, config, insists=insists)
    except DataError as error:
        # where no mask can be read, each of them is already a problem
        if any(inspection.contents for inspection, _ in inspected_splits):
            problems["classes"].append(str(error))
    problems["number of channels"] += odd_channels(names_by_channels, grey_fits=train_inspector.grey_fits)
    for inspection, _ in inspected_splits:
        for problem in inspection.problems.values():
            problems[problem.kind].append(problem.text)
    lines += describe([inspection for inspection, _ in inspected_splits], meaning.pixels, meaning.names)
    lines += meaning.lines
    warnings += meaning.warnings
    lines += [f"to check: {warning}" for warning in warnings]
    lines += list_problems(problems, len(warnings))
    return "\n".join(lines), sum(map(len, problems.values()))


def _inspect_files(
    split: str, records: Records, config: DataConfig, names_by_channels: dict[int, list[str]], *, has_names: bool
) -> SplitInspection:
    """The inspection of all files of a split, each image decoded; `names_by_channels` gets the images' names.

    Raises DataError if the masks hold too many values together.
    """
    limits_values = reader_type(config).has_classes and config.outside_rule is None
    windows = config.may_crop and split == "training"
    inspector = choose_inspector(records, has_classes=limits_values, windows=windows)
    inspect_record = partial(_inspect_and_decode, inspector, names_by_channels)
    return inspect_split(records, f"reading {split} files", inspector, inspect_record, has_names=has_names)


@dataclass(frozen=True)
class MaskMeaning:
    """The meaning of the masks of a data set; the fields are empty if it cannot be determined.

    Args:
        pixels: how many pixels hold each value.
        names: the class of each value that has one, or a note that it is ignored.
        lines: lines of the report on the targets.
        warnings: lines on likely mistakes.
    """

    pixels: dict[MaskValue, int] = field(default_factory=dict)
    names: dict[MaskValue, str] = field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: tuple[str, ...] = ()


def understand_masks(
    train: Records, val: Records, inspected_splits: InspectedSplits, config: DataConfig, *, insists: bool = False
) -> MaskMeaning:
    """The meaning of the masks; masks that make no target become problems; `insists` is the one of `check_masks`.

    Raises DataError if the meaning is unclear.
    """
    targets = reader_type(config)
    pixels = total_pixels(inspected_splits)
    classes = find_named_classes(train, config)
    if targets.has_classes and not classes:
        check_masks(inspected_splits, pixels, insists=insists)
    reader = targets.from_records(train, pixels, classes, config).with_records(train)
    # the report counts all masks, also the ones that training leaves out
    reader = read_labels(reader.with_pixels(pixels), inspected_splits)
    warnings = find_warnings(inspected_splits, (train, val), pixels, reader, config, has_names=bool(classes))
    lines = [*reader.describe_pixels(), *describe_labels(inspected_splits, reader)]
    lines += reader.describe_records([train, val])
    lines += describe_points(inspected_splits)
    for inspection, records in inspected_splits:
        exclude_unreadable(inspection, records, reader)
    names: dict[MaskValue, str] = {}
    if reader.class_map is not None:
        names = name_values(pixels, reader.class_map)
        lines += labeled_share(pixels, reader.class_map)
    return MaskMeaning(pixels, names, lines, warnings)


def name_values(pixels: dict[MaskValue, int], class_map: ClassMap) -> dict[MaskValue, str]:
    """The class of each mask value that belongs to one or is ignored."""
    names: dict[MaskValue, str] = {}
    for value in pixels:
        index = class_map.index_of(value)
        if index == IGNORE_INDEX:
            names[value] = "(ignored)"
        elif index is not None:
            names[value] = class_map.names[index]
    return names


def labeled_share(pixels: dict[MaskValue, int], class_map: ClassMap) -> list[str]:
    """A line on how many pixels are labeled, if some are not."""
    total = sum(pixels.values())
    ignored = sum(count for value, count in pixels.items() if class_map.index_of(value) == IGNORE_INDEX)
    if not ignored:
        return []
    return [f"labeled pixels: {100 * (total - ignored) / total:.3f} %"]


def describe_annotations(train: Records, val: Records) -> list[str]:
    """Lines on the annotation files of both splits, if there are any."""
    summaries = annotation_summaries([train, val])
    if not summaries:
        return []
    formats = " and ".join(dict.fromkeys(summary.format for summary in summaries))
    annotated = sum(summary.annotated for summary in summaries)
    empty = sum(summary.empty for summary in summaries)
    images = f"; {annotated} images with objects, {empty} without" if annotated or empty else ""
    lines = [f"annotations: {formats}{images}"]
    instances: Counter[str] = Counter()
    for summary in summaries:
        instances.update(summary.instances)
    if instances:
        lines.append("objects of each class")
    for name, count in instances.items():
        lines.append(f"  {count:>8}  {name}")
    return lines


def list_problems(problems: dict[str, list[str]], warnings: int) -> list[str]:
    """Lines on the problems of each kind, the first ones by name, and the flags that train without these files."""
    count = sum(map(len, problems.values()))
    if not count:
        return [f"no problems, but {warnings} to check, see above" if warnings else "no problems"]
    lines = [f"problems: {count}"]
    for kind, texts in problems.items():
        if texts:
            lines.append(f"  {kind}: {len(texts)}")
            lines += [f"    {text}" for text in first_few(merge_equal(texts, FILES), FILES)]
    if problems.get(UNPAIRED):
        lines.append("--allow-unpaired trains without the files that have no partner")
    if any(texts for kind, texts in problems.items() if kind not in (UNPAIRED, *OF_ALL_FILES)):
        lines.append("--on-bad-sample skip trains without the files that cannot be used")
    return lines


def _inspect_and_decode(
    inspector: Inspector, names_by_channels: dict[int, list[str]], record: Record
) -> Inspection | Problem:
    """The inspection of a record, whose image is decoded too; its name is added to `names_by_channels`."""
    inspection = inspector.inspect(record)
    if isinstance(inspection, Problem):
        return inspection
    try:
        count = inspector.count_channels(record, inspection)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    names_by_channels[count].append(record["name"])
    return inspection


def odd_channels(names_by_channels: dict[int, list[str]], *, grey_fits: bool) -> list[str]:
    """A line for each record whose channels differ from most; with `grey_fits`, one channel is never different."""
    compared = {count: names for count, names in names_by_channels.items() if count > 1 or not grey_fits}
    usual = max(compared, key=lambda count: len(compared[count]), default=1)
    odd = []
    for count, names in compared.items():
        if count != usual:
            odd += [(name, count) for name in names]
    return [f"{name}: has {count} channels, most others have {usual}" for name, count in sorted(odd)]


def most_common(sizes: Counter) -> str:
    """The most common sizes or spacings, each with its count."""
    texts = []
    for size, count in sizes.most_common():
        sides = " x ".join(map(str, size))
        texts.append(f"{sides}: {count}")
    return listing(texts, limit=10)


def describe(
    inspections: Sequence[SplitInspection], pixels: dict[MaskValue, int], names: dict[MaskValue, str]
) -> list[str]:
    """Lines on sizes, the spacings of volumes, modes and the pixels of each class."""
    sizes: Counter = Counter()
    modes: Counter = Counter()
    spacings: Counter = Counter()
    for inspection in inspections:
        sizes.update(map(tuple, inspection.sizes[inspection.sizes.any(axis=1)].tolist()))
        modes.update(inspection.modes)
        for spacing in inspection.spacings():
            spacings[tuple(f"{side:.3g}" for side in spacing)] += 1
    lines = []
    if sizes:
        lines.append(f"sizes ({inspections[0].axes}): {most_common(sizes)}")
    if spacings:
        lines.append(f"spacings in mm along z, y, x: {most_common(spacings)}")
    if modes:
        counts = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        lines.append(f"image modes: {counts}")
    if pixels and names:
        lines.append("classes: mask value, pixels")
        lines += _class_lines(pixels, names)
    return lines


def _class_lines(pixels: dict[MaskValue, int], names: dict[MaskValue, str]) -> list[str]:
    """For each value in the masks, its share of all pixels and its name."""
    total = sum(pixels.values())
    unclassed = [value for value in pixels if value not in names]
    is_folded = len(unclassed) >= UNCLASSED
    entries: list[tuple[Any, int]] = sorted(pixels.items())
    lines = []
    for value, count in entries:
        if not is_folded or value in names:
            lines.append(f"  {value_text(value):>8}  {100 * count / total:7.3f} %  {names.get(value, '(no class)')}")
    if is_folded:
        count = sum(pixels[value] for value in unclassed)
        lines.append(f"  {'others':>8}  {100 * count / total:7.3f} %  ({len(unclassed)} values of no class)")
    return lines
