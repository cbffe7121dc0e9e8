"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from data_utils.analysis.inspect import Inspection, Problem, SplitInspection, find_unknown, total_pixels
from data_utils.analysis.label_warnings import label_warnings
from data_utils.analysis.looks import Look, inspect_split, look_at
from data_utils.class_map import named_classes, show
from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from data_utils.sources.records import Record, Records, annotation_summaries
from data_utils.targets import TARGETS
from runtime.errors import DataError

FILES = 20  # named for each kind of problem
SIZES = 10  # listed
UNPAIRED = "file without partner"


def check_data(config: DataConfig) -> tuple[str, int]:
    """The report on both splits and how many problems it lists. DataError where there is no data set to read.

    Large training images are read in windows where training does that.
    """
    train, val = load_records(replace(config, allow_unpaired=True))
    splits = {"training": train, "validation": val}
    problems: dict[str, list[str]] = defaultdict(list)
    if not config.allow_unpaired:
        problems[UNPAIRED] += sorted({line for records in splits.values() for line in records.unpaired})
    inspected: list[tuple[SplitInspection, Records]] = []
    channels: dict[int, list[str]] = defaultdict(list)
    for what, records in splits.items():
        has_classes, windows = TARGETS[config.task].has_classes, config.may_crop and what == "training"
        look = look_at(records, has_classes=has_classes, windows=windows)
        try:
            inspection = inspect_split(records, f"reading {what} files", look, partial(inspect_fully, look, channels))
            inspected.append((inspection, records))
        except DataError as error:
            problems["too many mask values"].append(str(error))
    look = look_at(train)
    lines = [
        f"{config.dataset}: " + ", ".join(f"{len(records)} {what} {look.kind}" for what, records in splits.items())
    ]
    lines += describe_annotations(train, val)
    try:
        found = total_pixels(inspected)
        named = named_classes(config.classes, train.classes)
        class_map = TARGETS[config.task].of_values(found, named, config).class_map
        warnings = label_warnings(inspected, found, class_map, named=bool(named), ignored=bool(config.ignore_index))
        for inspection, records in inspected:
            find_unknown(inspection, records, class_map)
        names = {}
        if class_map is not None:
            names = {class_map.ignore_value: "(ignored)"} | dict(zip(class_map.values, class_map.names, strict=True))
    except DataError as error:
        if any(inspection.contents for inspection, _ in inspected):  # else no mask can be read, which is said of each
            problems["classes"].append(str(error))
        found, names, warnings = {}, {}, ()
    problems["number of channels"] += odd_channels(channels, grey_fits=look.grey_fits)
    for inspection, _ in inspected:
        for problem in inspection.problems.values():
            problems[problem.kind].append(problem.text)
    lines += describe([inspection for inspection, _ in inspected], found, names)
    lines += [f"to check: {warning}" for warning in warnings]
    return "\n".join(lines + list_problems(problems)), sum(map(len, problems.values()))


def describe_annotations(train: Records, val: Records) -> list[str]:
    """Lines on the annotation files of both splits, if there are any."""
    found = annotation_summaries([train, val])
    if not found:
        return []
    formats = " and ".join(dict.fromkeys(summary.format for summary in found))
    annotated, empty = sum(summary.annotated for summary in found), sum(summary.empty for summary in found)
    instances: Counter[str] = Counter()
    for summary in found:
        instances.update(summary.instances)
    lines = [f"annotations: {formats}; {annotated} images with objects, {empty} without"]
    lines += ["objects of each class"] * bool(instances)
    return lines + [f"  {count:>8}  {name}" for name, count in instances.items()]


def list_problems(problems: dict[str, list[str]]) -> list[str]:
    """Lines on the problems of each kind, the first ones by name."""
    count = sum(map(len, problems.values()))
    lines = [f"problems: {count}" if count else "no problems"]
    for kind, texts in problems.items():
        if texts:
            lines.append(f"  {kind}: {len(texts)}")
            lines += [f"    {text}" for text in texts[:FILES]] + ["    ..."] * (len(texts) > FILES)
    return lines


def inspect_fully(look: Look, channels: dict[int, list[str]], record: Record) -> Inspection | Problem:
    """What a look at a record finds, and its image decoded too; its name is added to those with as many channels."""
    found = look.inspect(record)
    if isinstance(found, Problem):
        return found
    try:
        count = look.count_channels(record, found)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    channels[count].append(record["name"])
    return found


def odd_channels(channels: dict[int, list[str]], *, grey_fits: bool) -> list[str]:
    """A line for each record whose channels differ from most; where `grey_fits`, one channel goes with any number."""
    colour = {count: names for count, names in channels.items() if count > 1 or not grey_fits}
    usual = max(colour, key=lambda count: len(colour[count]), default=1)
    odd = [(name, count) for count, names in colour.items() if count != usual for name in names]
    return [f"{name}: has {count} channels, most others have {usual}" for name, count in sorted(odd)]


def most_common(sizes: Counter) -> str:
    """The commonest sizes or spacings, and how often there is each."""
    shown = [f"{' x '.join(map(str, size))}: {count}" for size, count in sizes.most_common(SIZES)]
    return ", ".join(shown + ["..."] * (len(sizes) > SIZES))


def describe(inspections: Sequence[SplitInspection], found: dict, names: dict) -> list[str]:
    """Lines on sizes, of volumes their spacings, modes and the pixels of each class."""
    sizes: Counter = Counter()
    modes: Counter = Counter()
    for inspection in inspections:
        sizes.update(map(tuple, inspection.sizes[inspection.sizes.any(axis=1)].tolist()))
        modes.update(inspection.modes)
    lines = [f"sizes ({inspections[0].axes}): {most_common(sizes)}"] if sizes else []
    spacings: Counter = Counter()
    for inspection in inspections:
        for spacing in inspection.spacings():
            spacings[tuple(f"{side:.3g}" for side in spacing)] += 1
    lines += [f"spacings in mm along z, y, x: {most_common(spacings)}"] if spacings else []
    lines += ["image modes: " + ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())] if modes else []
    total = sum(found.values())
    lines += ["classes: mask value, pixels"] if found and names else []
    for value, count in sorted(found.items()) if names else ():
        lines.append(f"  {show([value]):>8}  {100 * count / total:7.3f} %  {names.get(value, '(no class)')}")
    return lines
