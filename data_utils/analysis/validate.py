"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from data_utils.analysis.inspect import (
    Inspection,
    Problem,
    SplitInspection,
    find_unknown,
    inspect,
    inspect_split,
    total_pixels,
)
from data_utils.analysis.inspect_volumes import inspect_volume
from data_utils.analysis.inspect_windows import inspect_in_windows
from data_utils.analysis.label_warnings import label_warnings
from data_utils.class_map import named_classes, show
from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource, VolumeFile
from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import bands, large_regions
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
        windows = config.may_crop and what == "training"

        def look(record: Record, windows: bool = windows) -> Inspection | Problem:
            return inspect_fully(record, channels, windows)

        try:
            inspected.append((inspect_split(records, f"reading {what} files", look), records))
        except DataError as error:
            problems["too many mask values"].append(str(error))
    kind = "volumes" if train.dims == 3 else "images"
    lines = [f"{config.dataset}: " + ", ".join(f"{len(records)} {what} {kind}" for what, records in splits.items())]
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
    problems["number of channels"] += odd_channels(channels, volumes=train.dims == 3)
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


def inspect_fully(record: Record, channels: dict[int, list[str]], windows: bool) -> Inspection | Problem:
    """As `inspect`, and the image decoded too; its name is added to those with as many channels."""
    is_volume = isinstance(record["image"], VolumeFile)
    found = inspect_volume(record) if is_volume else inspect_in_windows(record) if windows else inspect(record)
    if isinstance(found, Problem):
        return found
    try:
        volume = found.volume
        count = volume.foreground.shape[1] if volume else count_channels(record["image"], record["name"], windows)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    channels[count].append(record["name"])
    return found


def count_channels(source: ImageSource, name: str, windows: bool) -> int:
    """Decode all of an image, with `windows` a large one in bands; how many channels it has."""
    if windows:
        with large_regions(source) as regions:
            if regions is not None:
                return max(read_image(band, name).shape[2] for _, band in bands(regions))
    return read_image(source, name).shape[2]


def odd_channels(channels: dict[int, list[str]], *, volumes: bool) -> list[str]:
    """A line for each record whose channels differ from most; a grey image goes with any other number of channels."""
    colour = {count: names for count, names in channels.items() if volumes or count > 1}
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
    axes = "depth x height x width" if any(inspection.volumes for inspection in inspections) else "height x width"
    lines = [f"sizes ({axes}): {most_common(sizes)}"] if sizes else []
    spacings = Counter(
        tuple(f"{side:.3g}" for side in spacing)
        for inspection in inspections
        if inspection.volumes
        for spacing in inspection.volumes.spacings.tolist()
        if any(spacing)
    )
    lines += [f"spacings in mm along z, y, x: {most_common(spacings)}"] if spacings else []
    lines += ["image modes: " + ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())] if modes else []
    total = sum(found.values())
    lines += ["classes: mask value, pixels"] if found else []
    for value, count in sorted(found.items()):
        lines.append(f"  {show([value]):>8}  {100 * count / total:7.3f} %  {names.get(value, '(no class)')}")
    return lines
