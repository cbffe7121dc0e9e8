"""One look at every image's header and every mask's pixels: sizes, mask values, and what is wrong."""

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from runtime.cache import JSON
from data_utils.decoding import decode_mask, image_header
from runtime.errors import DataError
from data_utils.masks import MAX_VALUES, MaskClasses, Value, pack, show, unpack

CHUNK = 32  # records in a thread's task
LISTED = 3  # problems in a message
Progress = Callable[[Iterable, int], Iterable]
Places = dict[Value, np.ndarray]  # of each value of a mask: some of its pixels, (n, 2) as (row, column)
Content = tuple[str, tuple[Value, ...]]  # what a mask holds: numbers, greys or colours, and which


class Problem(NamedTuple):
    """What is wrong with a record: in a word or two, and in a line that names the file."""

    kind: str
    text: str


class Inspection(NamedTuple):
    """What one look finds: (H, W), the image's mode, kind of mask, pixels of its values, some places if it is large."""

    size: tuple[int, int]
    mode: str
    kind: str
    pixels: dict[Value, int]
    places: Places | None = None


@dataclass
class Survey:
    """What is known of all records of a split.

    Args:
        sizes: (N, 2) int64 as (H, W), zeros where a record cannot be used.
        modes: images of each mode.
        contents: the different sets of values that masks hold, each with the pixels of all its masks together.
        members: (N,) index into `contents` of each mask, -1 where a record cannot be used.
        problems: of the records that cannot be used.
        places: of the records whose images are too large to be decoded whole for every crop.
    """

    sizes: np.ndarray
    members: np.ndarray
    modes: Counter = field(default_factory=Counter)
    contents: dict[Content, Counter] = field(default_factory=dict)
    problems: dict[int, Problem] = field(default_factory=dict)
    places: dict[int, Places] = field(default_factory=dict)

    def to_json(self) -> JSON:
        """For the cache; problems are not kept, a survey with any is not worth remembering."""
        contents = [[kind, list(pixels.items())] for (kind, _), pixels in self.contents.items()]
        return {
            "sizes": self.sizes.tolist(),
            "modes": dict(self.modes),
            "contents": contents,
            "members": self.members.tolist(),
            "places": [[i, [[v, at.tolist()] for v, at in places.items()]] for i, places in self.places.items()],
        }

    @classmethod
    def from_json(cls, value: JSON) -> "Survey":
        def of_json(value: Any) -> Value:
            return tuple(value) if isinstance(value, list) else value

        contents: dict[Content, Counter] = {}
        for kind, items in value["contents"]:
            pixels = Counter({of_json(value): count for value, count in items})
            contents[kind, tuple(sorted(pixels))] = pixels
        places = {i: {of_json(v): np.array(at) for v, at in found} for i, found in value["places"]}
        sizes, members = np.array(value["sizes"], np.int64).reshape(-1, 2), np.array(value["members"], np.int64)
        return cls(sizes, members, Counter(value["modes"]), contents, places=places)


def examine(
    records: Sequence[dict],
    progress: Progress = lambda items, total: items,
    look: Callable[[dict], Inspection | Problem] | None = None,
) -> Survey:
    """Look at all records, in threads. Raises DataError only for masks that hold too many values together."""
    look = look or inspect
    survey = Survey(np.zeros((len(records), 2), np.int64), np.full(len(records), -1, np.int64))
    numbers: dict[Content, int] = {}
    distinct: dict[str, set[Value]] = {"numbers": set(), "greys": set(), "colours": set()}
    for i, found in enumerate(progress(in_threads(lambda i: look(records[i]), len(records)), len(records))):
        if isinstance(found, Problem):
            survey.problems[i] = found
            continue
        content = found.kind, tuple(sorted(found.pixels))
        survey.sizes[i] = found.size
        survey.modes[found.mode] += 1
        if found.places is not None:
            survey.places[i] = found.places
        survey.members[i] = numbers.setdefault(content, len(numbers))
        survey.contents.setdefault(content, Counter()).update(found.pixels)
        distinct[found.kind].update(found.pixels)
        excess = _too_many(distinct[found.kind])
        if excess:
            raise DataError(f"masks hold more than {MAX_VALUES} values up to {records[i]['name']}, {excess}")
    return survey


def in_threads(function: Callable[[int], Any], count: int, chunk: int = CHUNK) -> Iterator:
    """function(0), ... function(count - 1), in order; Pillow and NumPy decode outside the interpreter's lock.

    Two chunks for each thread are begun ahead of what is taken, no more: results may be large.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(threads)

    def begin(start: int) -> Future[list]:
        return pool.submit(lambda: [function(i) for i in range(start, min(start + chunk, count))])

    starts = iter(range(0, count, chunk))
    begun = deque(map(begin, islice(starts, 2 * threads)))
    try:
        while begun:
            results = begun.popleft().result()
            begun.extend(map(begin, islice(starts, 1)))
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def inspect(record: dict) -> Inspection | Problem:
    """Header of the image, all of the mask."""
    name = record["name"]
    try:
        size, mode = image_header(record["image"], f"{name}: image")
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        mask, coloured, jpeg = decode_mask(record["mask"], name)
    except DataError as error:
        return Problem("mask cannot be read", str(error))
    if mask.shape[:2] != size:
        return other_size(name, size, mask.shape[:2])
    pixels = count_values(mask)
    if jpeg and len(pixels) > 2:
        return lossy(name, pixels)
    return too_many(pixels, name) or Inspection(
        size, mode, "colours" if mask.ndim == 3 else "greys" if coloured else "numbers", pixels
    )


def lossy(name: str, pixels: Iterable[Value]) -> Problem:
    """A JPEG mask of more than two values."""
    return Problem(
        "lossy mask",
        f"{name}: mask is a JPEG with the values {show(sorted(pixels))}; compression invents values, store masks"
        " as PNG (or are images and masks swapped?)",
    )


def other_size(name: str, image: tuple[int, int], mask: tuple[int, int]) -> Problem:
    """That image and mask (H, W) do not fit."""
    text = f"{name}: image is {image[0]} x {image[1]}, its mask {mask[0]} x {mask[1]} (height x width)"
    return Problem("mask of another size", text)


def too_many(pixels: Collection[Value], name: str) -> Problem | None:
    """That a mask holds more values than there are classes, where it does."""
    excess = _too_many(pixels)
    if excess is None:
        return None
    return Problem("too many mask values", f"{name}: mask holds more than {MAX_VALUES} values, {excess}")


def count_values(mask: np.ndarray) -> dict[Value, int]:
    """Pixels of each value of a mask as `read_mask` gives it."""
    flat = pack(mask).ravel()
    # Masks are made of long runs of one value: counting runs is several times faster than sorting pixels.
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
    values, where = np.unique(flat[starts], return_inverse=True)
    pixels = np.bincount(where, weights=np.diff(starts, append=flat.size)).astype(int)
    keys = [unpack(value) for value in values.tolist()] if mask.ndim == 3 else values.tolist()
    return dict(zip(keys, pixels.tolist(), strict=True))


def _too_many(values: Collection[Value]) -> str | None:
    """Which values, and what they look like, where they are more than a data set has classes."""
    found: list[Any] = sorted(values) if len(values) > MAX_VALUES else []
    if not found:
        return None
    some = np.array(found[: MAX_VALUES + 1]).reshape(MAX_VALUES + 1, -1)
    near = (np.abs(some[:, None] - some).max(axis=2) <= 2).sum(axis=1) > 1
    smooth = near.mean() > 0.5 if some.shape[1] == 3 else max(found) <= 255
    guess = "smoothed edges (JPEG, interpolation)" if smooth else "numbers of instances instead of classes"
    return f"{show(found)}; {guess}, or are images and masks swapped?"


def total_pixels(splits: Iterable[tuple[Survey, Sequence[dict]]]) -> dict[Value, int]:
    """Every value in any mask and how many pixels hold it.

    Raises DataError where masks of numbers and colour masks are mixed, and where nothing can be used.
    """
    totals: dict[str, Counter] = {"numbers": Counter(), "greys": Counter(), "colours": Counter()}
    examples: dict[str, str] = {}
    for survey, records in splits:
        for number, ((kind, _), pixels) in enumerate(survey.contents.items()):
            members = np.flatnonzero(survey.members == number)
            if len(members):
                totals[kind].update(pixels)
                examples.setdefault(kind, records[int(members[0])]["name"])
    numbers, greys, colours = totals.values()
    if colours and numbers:
        raise DataError(
            f"{examples['colours']} is a colour mask and {examples['numbers']} one of numbers; store all in one way"
        )
    found = Counter({(value,) * 3: count for value, count in greys.items()} if colours else greys)
    return dict(found + numbers + colours)


def find_unknown(survey: Survey, records: Sequence[dict], classes: MaskClasses) -> None:
    """Add the records whose masks hold values that are no class to the survey's problems."""
    coloured = isinstance(classes.values[0], tuple)
    known = {*classes.values, classes.ignore_value}
    for number, (kind, values) in enumerate(survey.contents):
        keys: list[Any] = [(value,) * 3 if coloured and kind == "greys" else value for value in values]
        if all(key in known for key in keys):
            continue
        for i in np.flatnonzero(survey.members == number).tolist():
            text = f"{records[i]['name']} has mask values [{show(keys)}], classes are {show(classes.values)}"
            remedy = "name them in --classes, give one as --ignore-index, or is it a lossy (JPEG) mask?"
            survey.problems[i] = Problem("unknown mask value", f"{text}; {remedy}")
            survey.members[i] = -1


def raise_problems(survey: Survey, count: int) -> None:
    """One DataError for all problems, which names the first few."""
    if survey.problems:
        shown = [problem.text for problem in survey.problems.values()]
        listed = "; ".join(shown[:LISTED] + ["..."] * (len(shown) > LISTED))
        raise DataError(f"{len(shown)} of {count} pairs cannot be used: {listed}")
