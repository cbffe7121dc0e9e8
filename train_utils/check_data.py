"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from data_utils.analysis.data_warnings import Findings, find_warnings
from data_utils.analysis.dataset_info import understand
from data_utils.analysis.inspection import InspectedSplits, SplitInspection, total_pixels
from data_utils.analysis.inspectors import choose_inspector, inspect_split
from data_utils.analysis.label_sets import describe_labels, read_labels
from data_utils.analysis.point_warnings import describe_points
from data_utils.analysis.problems import LOSSY, exclude_unreadable, merge_equal
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.mask_values import value_text
from data_utils.sources.blocks import describe_neighbors
from data_utils.sources.load import load_records
from data_utils.sources.records import Records, annotation_summaries
from data_utils.targets.palettes import with_palette_colors
from data_utils.targets.reader import TargetReader
from runtime.console import counted, first_few, listing
from runtime.errors import DataError
from tasks import reader_type
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.find_task import find_named_classes, find_task, task_warnings
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
    task = find_task(train, config)
    config = replace(config, task=task)
    targets = reader_type(task)
    with suppress(DataError):  # the error is reported where the masks are understood
        if targets is ClassReader:
            train, val, palette_lines = with_palette_colors(train, val, find_named_classes(train, config))
            warnings += palette_lines
    problems: dict[str, list[str]] = defaultdict(list)
    if not config.allow_unpaired:
        problems[UNPAIRED] += sorted({*train.metadata.unpaired, *val.metadata.unpaired})
    inspected_splits: list[tuple[SplitInspection, Records]] = []
    has_names = bool(config.classes or train.metadata.classes)
    limits_values = targets.has_classes and config.outside_rule is None
    for split, records in (("training", train), ("validation", val)):
        windows = config.may_crop and split == "training"
        inspector = choose_inspector(records, has_classes=limits_values, windows=windows, decodes=True)
        try:
            inspection = inspect_split(records, f"reading {split} files", inspector, has_names=has_names)
            inspected_splits.append((inspection, records))
        except DataError as error:
            problems["too many mask values"].append(str(error))
    kind = "volume" if train.dims == 3 else "image"
    lines = [f"{config.dataset}: {counted(len(train), f'training {kind}')}, {counted(len(val), f'validation {kind}')}"]
    lines += describe_annotations(train, val)
    lines += describe_neighbors(train, val)
    classes: list[str] = []
    try:
        classes, more_warnings = describe_targets(train, val, inspected_splits, targets, config, insists=insists)
        warnings += more_warnings
    except DataError as error:
        # where no mask can be read, each of them is already a problem; of JPEG masks only the empty ones can
        kinds = {problem.kind for inspection, _ in inspected_splits for problem in inspection.problems.values()}
        if len(total_pixels(inspected_splits)) > (LOSSY in kinds):
            problems["classes"].append(str(error))
    problems["number of channels"] += odd_channels(inspected_splits)
    for inspection, _ in inspected_splits:
        for problem in inspection.problems.values():
            problems[problem.kind].append(problem.text)
    lines += describe_sizes([inspection for inspection, _ in inspected_splits])
    lines += classes
    lines += [f"to check: {warning}" for warning in warnings]
    lines += list_problems(problems, len(warnings))
    return "\n".join(lines), sum(map(len, problems.values()))


def describe_targets(
    train: Records,
    val: Records,
    inspected_splits: InspectedSplits,
    targets: type[TargetReader],
    config: DataConfig,
    *,
    insists: bool = False,
) -> tuple[list[str], tuple[str, ...]]:
    """Lines on the classes and targets, and warnings; masks that make no target become problems.

    `insists` is the one of `check_masks`. Raises DataError if the meaning of the masks is unclear.
    """
    classes = find_named_classes(train, config)
    reader, pixels = understand(train, inspected_splits, targets, classes, config, insists=insists)
    # the report counts all masks, also the ones that training leaves out
    reader = read_labels(reader.with_pixels(pixels), inspected_splits)
    warnings = find_warnings(Findings(inspected_splits, (train, val), pixels, reader, config, bool(classes)))
    lines = []
    if reader.class_map is not None:
        lines += describe_classes(pixels, reader.class_map)
    lines += [*reader.describe_pixels(), *describe_labels(inspected_splits, reader)]
    lines += reader.describe_records([train, val])
    lines += describe_points(inspected_splits)
    if reader.class_map is not None:
        lines += labeled_share(pixels, reader.class_map)
    for inspection, records in inspected_splits:
        exclude_unreadable(inspection, records, reader)
    return lines, warnings


def describe_classes(pixels: dict[MaskValue, int], class_map: ClassMap) -> list[str]:
    """For each value in the masks, its share of all pixels and the name of its class."""
    total = sum(pixels.values())
    unclassed = [value for value in pixels if class_map.index_of(value) is None]
    entries: list[tuple[Any, int]] = sorted(pixels.items())
    if len(unclassed) == len(pixels) > 0:
        return []
    lines = ["classes: mask value, pixels"]
    for value, count in entries:
        index = class_map.index_of(value)
        name = "(no class)"
        if index == IGNORE_INDEX:
            name = "(ignored)"
        elif index is not None:
            name = class_map.names[index]
        if index is not None or len(unclassed) < UNCLASSED:
            lines.append(f"  {value_text(value):>8}  {100 * count / total:7.3f} %  {name}")
    if len(unclassed) >= UNCLASSED:
        count = sum(pixels[value] for value in unclassed)
        lines.append(f"  {'others':>8}  {100 * count / total:7.3f} %  ({len(unclassed)} values of no class)")
    return lines


def labeled_share(pixels: dict[MaskValue, int], class_map: ClassMap) -> list[str]:
    """A line on how many pixels are labeled, if some are not."""
    total = sum(pixels.values())
    ignored = 0
    for value, count in pixels.items():
        if class_map.index_of(value) == IGNORE_INDEX:
            ignored += count
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
    heading = f"annotations: {formats}"
    if annotated or empty:
        heading += f"; {annotated} images with objects, {empty} without"
    lines = [heading]
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
        if warnings:
            return [f"no problems, but {warnings} to check, see above"]
        return ["no problems"]
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


def odd_channels(inspected_splits: InspectedSplits) -> list[str]:
    """A line for each record whose channels differ from most; an image of one channel fits to all others."""
    names_by_channels: dict[int, list[str]] = defaultdict(list)
    for inspection, records in inspected_splits:
        grey_fits = records.dims == 2
        for i in np.flatnonzero(inspection.channels > grey_fits).tolist():
            names_by_channels[int(inspection.channels[i])].append(records.name(i))
    usual = max(names_by_channels, key=lambda count: len(names_by_channels[count]), default=1)
    odd = []
    for count, names in names_by_channels.items():
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


def describe_sizes(inspections: Sequence[SplitInspection]) -> list[str]:
    """Lines on sizes, the spacings of volumes, and modes."""
    sizes: Counter = Counter()
    modes: Counter = Counter()
    spacings: Counter = Counter()
    for inspection in inspections:
        sizes.update(map(tuple, inspection.sizes[inspection.sizes.any(axis=1)].tolist()))
        modes.update(inspection.modes)
        for spacing in inspection.spacings[inspection.spacings.any(axis=1)].tolist():
            spacings[tuple(f"{side:.3g}" for side in spacing)] += 1
    lines = []
    if sizes:
        axes = "depth x height x width" if inspections[0].sizes.shape[1] == 3 else "height x width"
        lines.append(f"sizes ({axes}): {most_common(sizes)}")
    if spacings:
        lines.append(f"spacings in mm along z, y, x: {most_common(spacings)}")
    if modes:
        counts = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        lines.append(f"image modes: {counts}")
    return lines
