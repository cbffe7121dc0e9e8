"""--check-data: every file of a data set read, everything wrong with it in one report."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from data_utils import sources
from data_utils.doubts import doubts
from runtime.errors import DataError
from data_utils.inspection import Inspection, Problem, Survey, examine, find_unknown, inspect, total_pixels
from data_utils.large import OpenRows, inspect_in_windows, read_through
from data_utils.masks import resolve, show
from data_utils.shapes import CLASS_NAMES

FILES = 20  # named for each kind of problem
SIZES = 10  # listed
UNPAIRED = "file without partner"


def check_data(
    dataset: str,
    read: Callable[..., np.ndarray],
    progress: Callable[[Iterable, int, str], Iterable],
    *,
    classes: str | None,
    ignore_index: str | None,
    errors: tuple[type[Exception], ...],
    open_rows: OpenRows | None = None,
    **options,
) -> tuple[str, int]:
    """The report on both splits (`options` as in `sources.load`) and how many problems it lists.

    `read(source, name)` decodes an image as training does and may raise `errors`; with `open_rows`, large training
    images are read in windows. Raises DataError where there is no data set to read.
    """
    asked = options.pop("allow_unpaired")
    splits = dict(zip(("training", "validation"), sources.load(dataset, allow_unpaired=True, **options), strict=True))
    if dataset == "shapes":
        classes = classes or ",".join(f"{value}={name}" for value, name in enumerate(CLASS_NAMES))
    problems: dict[str, list[str]] = defaultdict(list)
    if not asked:
        problems[UNPAIRED] += sorted({line for records in splits.values() for line in unpaired(records)})
    surveys = []
    channels: dict[int, list[str]] = defaultdict(list)
    for what, records in splits.items():
        windows = open_rows if what == "training" else None
        look = partial(inspect_fully, read=read, errors=errors, channels=channels, open_rows=windows)

        def titled(items: Iterable, total: int, title: str = f"reading {what} files") -> Iterable:
            return progress(items, total, title)

        try:
            surveys.append((examine(records, titled, look), records))
        except DataError as error:
            problems["too many mask values"].append(str(error))
    lines = [f"{dataset}: " + ", ".join(f"{len(records)} {what} images" for what, records in splits.items())]
    try:
        found = total_pixels(surveys)
        chosen = resolve(found, classes, ignore_index)
        to_check = doubts(surveys, found, chosen, named=bool(classes), ignored=bool(ignore_index))
        for survey, records in surveys:
            find_unknown(survey, records, chosen)
        names = dict(zip(chosen.values, chosen.names, strict=True)) | {chosen.ignore_value: "(ignored)"}
    except DataError as error:
        problems["classes"].append(str(error))
        found, names, to_check = {}, {}, ()
    problems["number of channels"] += odd_channels(channels)
    for survey, _ in surveys:
        for problem in survey.problems.values():
            problems[problem.kind].append(problem.text)
    lines += describe([survey for survey, _ in surveys], found, names) + [f"to check: {doubt}" for doubt in to_check]
    count = sum(map(len, problems.values()))
    lines.append(f"problems: {count}" if count else "no problems")
    for kind, texts in problems.items():
        if texts:
            lines.append(f"  {kind}: {len(texts)}")
            lines += [f"    {text}" for text in texts[:FILES]] + ["    ..."] * (len(texts) > FILES)
    return "\n".join(lines), count


def unpaired(records: Sequence[dict]) -> Sequence[str]:
    """A line for each file that pairing left out, of a split or of what it is a part of."""
    whole = records.records if isinstance(records, sources.Part) else records
    return getattr(whole, "unpaired", ())


def inspect_fully(
    record: dict,
    read: Callable[..., np.ndarray],
    errors: tuple[type[Exception], ...],
    channels: dict[int, list[str]],
    open_rows: OpenRows | None,
) -> Inspection | Problem:
    """As `inspect`, and the image decoded too; its name is added to those with as many channels."""
    found = inspect(record) if open_rows is None else inspect_in_windows(record, open_rows)
    if isinstance(found, Problem):
        return found
    try:
        if open_rows is None:
            count = read(record["image"], record["name"]).shape[2]
        else:
            count = read_through(record["image"], record["name"], read, open_rows)
    except errors as error:
        return Problem("image cannot be read", str(error))
    channels[count].append(record["name"])
    return found


def odd_channels(channels: dict[int, list[str]]) -> list[str]:
    """A line for each image whose channels are not those of most; one channel goes with any other number."""
    colour = {count: names for count, names in channels.items() if count > 1}
    usual = max(colour, key=lambda count: len(colour[count]), default=1)
    odd = [(name, count) for count, names in colour.items() if count != usual for name in names]
    return [f"{name}: has {count} channels, most images {usual}" for name, count in sorted(odd)]


def describe(surveys: Sequence[Survey], found: dict, names: dict) -> list[str]:
    """Lines on sizes, modes and the pixels of each class."""
    sizes: Counter = Counter()
    modes: Counter = Counter()
    for survey in surveys:
        sizes.update(map(tuple, survey.sizes[survey.sizes.any(axis=1)].tolist()))
        modes.update(survey.modes)
    shown = [f"{height} x {width}: {count}" for (height, width), count in sizes.most_common(SIZES)]
    lines = [f"sizes (height x width): {', '.join(shown + ['...'] * (len(sizes) > SIZES))}"]
    lines.append("image modes: " + ", ".join(f"{mode}: {count}" for mode, count in modes.most_common()))
    total = sum(found.values())
    lines += ["classes: mask value, pixels"] if found else []
    for value, count in sorted(found.items()):
        lines.append(f"  {show([value]):>8}  {100 * count / total:7.3f} %  {names.get(value, '(no class)')}")
    return lines
