"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from data_utils.analysis.checks import find_warnings
from data_utils.analysis.findings import Findings, examine, labeled_indices
from data_utils.analysis.inspection import SplitInspection
from data_utils.analysis.problems import LOSSY, Problem, merge_equal
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.mask_values import value_text
from data_utils.sources.blocks import describe_neighbors
from runtime.console import counted, first_few, listing
from train_utils.dataset import open_data
from unet.config import IGNORE_INDEX, MaskValue

FILES = 20  # files that are named for each kind of problem
UNPAIRED = "file without partner"
OF_ALL_FILES = ("classes", "too many mask values")  # problems that no single file has
UNCLASSED = 4  # the least mask values without a class that share a line


def check_data(config: DataConfig) -> tuple[str, int]:
    """The report on both splits and how many problems it lists. Raises DataError if there is no data set to read.

    Large training images are read in windows if training reads them so.
    """
    data = open_data(replace(config, allow_unpaired=True))
    splits = (data.train, data.val)
    findings = examine(data, decodes=True)
    warnings = data.warnings + find_warnings(findings)
    problems: dict[str, list[str]] = defaultdict(list)
    if not config.allow_unpaired:
        problems[UNPAIRED] += sorted({line for records in splits for line in records.metadata.unpaired})
    for kind, text in all_problems(findings):
        problems[kind].append(text)
    kind = data.train.image_kind
    training = counted(len(data.train), f"training {kind}")
    lines = [f"{config.dataset}: {training}, {counted(len(data.val), f'validation {kind}')}"]
    lines += describe_annotations(findings.splits)
    lines += describe_neighbors(*splits)
    lines += describe_sizes(findings.splits)
    lines += describe_targets(findings)
    lines += [f"to check: {warning}" for warning in warnings]
    lines += list_problems(problems, len(warnings))
    return "\n".join(lines), sum(map(len, problems.values()))


def all_problems(findings: Findings) -> list[Problem]:
    """Mistakes of the data set as a whole, images of other channels than most, and problems of each record."""
    problems = [problem for split in findings.splits for problem in split.problems.values()]
    values = {value for split in findings.splits for content in split.contents for value in content.values}
    has_lossy = any(problem.kind == LOSSY for problem in problems)
    has_values = len(values) > (1 if has_lossy else 0)  # of JPEG masks only the empty ones have
    mistakes = findings.mistakes
    if not has_values and (problems or not findings.splits):  # that no mask can be read is a problem already
        mistakes = [mistake for mistake in mistakes if mistake.kind != "classes"]
    return [*mistakes, *odd_channels(findings.splits), *problems]


def describe_targets(findings: Findings) -> list[str]:
    """Lines on the classes and targets; none if the meaning of the masks is unclear."""
    reader = findings.reader
    if reader is None:
        return []
    lines = []
    if reader.class_map is not None:
        lines += describe_classes(findings.pixels, reader.class_map)
    return [*lines, *describe_labels(findings), *reader.describe_records(findings.records)]


def describe_labels(findings: Findings) -> list[str]:
    """Lines on how many images are labeled for each class; none if all are labeled for all classes."""
    if not any(records.metadata.label_sets for records in findings.records):
        return []
    names = findings.known_reader.class_names
    images = 0
    counts = [0] * len(names)
    for split in findings.splits:
        for content, _, members in split.used_contents():
            images += len(members)
            for index in labeled_indices(findings.known_reader, content.labeled_for):
                counts[index] += len(members)
    lines = [f"images that are labeled for each class, of {images}"]
    for name, count in zip(names, counts, strict=True):
        lines.append(f"  {count:>8}  {100 * count / max(images, 1):7.3f} %  {name}")
    return lines


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


def describe_annotations(splits: Sequence[SplitInspection]) -> list[str]:
    """Lines on the annotation files of both splits, if there are any."""
    formats = [split.records.metadata.annotations for split in splits if split.records.metadata.annotations]
    if not formats:
        return []
    annotated = sum(split.annotated for split in splits)
    empty = sum(split.modes.total() - split.annotated for split in splits)
    lines = [f"annotations: {' and '.join(dict.fromkeys(formats))}; {annotated} images with objects, {empty} without"]
    counts: Counter[str] = Counter()
    for split in splits:
        for value, name in split.records.metadata.classes:
            if isinstance(value, int) and value:
                counts[name] += split.objects[value]
    if any(counts.values()):
        lines.append("objects of each class")
        lines += [f"  {count:>8}  {name}" for name, count in counts.items()]
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


def odd_channels(splits: Sequence[SplitInspection]) -> list[Problem]:
    """A problem for each record whose channels differ from most; an image of one channel fits to all others."""
    names_by_channels: dict[int, list[str]] = defaultdict(list)
    for split in splits:
        fewest = 2 if split.records.dims == 2 else 1
        for i in np.flatnonzero(split.channels >= fewest).tolist():
            names_by_channels[int(split.channels[i])].append(split.records.name(i))
    usual = max(names_by_channels, key=lambda count: len(names_by_channels[count]), default=1)
    problems = []
    for count, names in names_by_channels.items():
        if count != usual:
            text = f"has {count} channels, most others have {usual}"
            problems += [Problem("number of channels", f"{name}: {text}") for name in names]
    return sorted(problems)


def describe_sizes(splits: Sequence[SplitInspection]) -> list[str]:
    """Lines on sizes, the spacings of volumes, and modes."""
    sizes: Counter[str] = Counter()
    spacings: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for split in splits:
        sizes.update(" x ".join(map(str, size)) for size in split.sizes.tolist() if any(size))
        for spacing in split.spacings.tolist():
            if any(spacing):
                spacings[" x ".join(f"{side:.3g}" for side in spacing)] += 1
        modes.update(split.modes)
    axes = "height x width"
    if splits and splits[0].records.dims == 3:
        axes = "depth x height x width"
    titles = {f"sizes ({axes})": sizes, "spacings in mm along z, y, x": spacings, "image modes": modes}
    lines = []
    for title, counts in titles.items():
        if counts:
            texts = [f"{text}: {count}" for text, count in counts.most_common()]
            lines.append(f"{title}: {listing(texts, limit=10)}")
    return lines
