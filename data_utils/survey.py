"""A data set, and what must be known of it before the first step: sizes, classes, channels, brightness."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from data_utils import sources
from data_utils.batching import Batch, epoch_batches, padded_shapes, stream_batches
from data_utils.brightness import STATISTICS_IMAGES, measure
from runtime.cache import digest, cached
from data_utils.doubts import doubts
from runtime.errors import DataError
from data_utils.inspection import Places, Survey, examine, find_unknown, raise_problems, total_pixels
from data_utils.large import OpenRows, inspect_in_windows, read_sample
from data_utils.masks import IGNORE, MaskClasses, Value, as_grey, resolve
from data_utils.shapes import CLASS_NAMES

SAMPLE_GROUPS = 8  # of a stream, which the images come from
LISTED = 20  # skipped samples, by name
Errors = tuple[type[Exception], ...]
Splits = tuple[Sequence[dict], Sequence[dict]]


class Reading(NamedTuple):
    """How to read a data set: `read(source, name)` gives an image (H, W, C), unless it raises what is to be skipped.

    With `open_rows`, large images are looked at in windows.
    """

    read: Callable[..., np.ndarray]
    progress: Callable[[Iterable, int, str], Iterable]
    seed: int
    skip: Errors
    open_rows: OpenRows | None = None

    def examine(self, records: Sequence[dict], what: str) -> Survey:
        look = self.open_rows and partial(inspect_in_windows, open_rows=self.open_rows)
        return examine(records, lambda items, total: self.progress(items, total, what), look)

    def measure(self, records: Sequence[dict], key: str | None, survey: Survey) -> tuple:
        read = self.read
        if self.open_rows:
            read, key = partial(read_sample, read=read, open_rows=self.open_rows), key and digest(key, "windows")
        return measure(records, key, survey.problems, read, self.progress, self.seed, self.skip)

    def check(self, survey: Survey, records: Sequence[dict]) -> None:
        """DataError for problems, unless they are to be skipped and some records are left."""
        if not self.skip or len(survey.problems) == len(records):
            raise_problems(survey, len(records))


@dataclass(frozen=True)
class Data:
    """Both splits and what was measured.

    Args:
        train_sizes, val_sizes: (N, 2) as (H, W) in the files.
        class_pixels: how many pixels of each class the masks hold.
        mean, std: one number for each channel of the training images, in the files' own value range.
        pixel_types: NumPy's names of their pixels.
        doubts: lines on what looks like a mistake.
        train_bad, val_bad: index -> what is wrong, of samples known to be unusable.
        skip: errors in reading that make a sample a filler instead of ending the run.
        train_places: index -> some pixels of each class, (n, 2), of images too large to decode whole for every crop.
        groups: of a stream, the number of training records in each group that is read together.
    """

    train: Sequence[dict]
    val: Sequence[dict]
    train_sizes: np.ndarray
    val_sizes: np.ndarray
    classes: MaskClasses
    class_pixels: list[int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixel_types: tuple[str, ...]
    train_bad: dict[int, str] = field(default_factory=dict)
    val_bad: dict[int, str] = field(default_factory=dict)
    skip: Errors = ()
    groups: np.ndarray | None = None
    train_places: dict[int, list[np.ndarray]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def shapes(
        self, target_size: Callable[[int, int], tuple[int, int]], crop_size: tuple[int, int] | None, smallest: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, 2) shapes at the network: of training images cropped and padded, of validation images as they are.

        `target_size` is the resizing; no training shape has a side below `smallest`.
        """
        train, val = (
            np.array([target_size(*size) for size in sizes.tolist()]) for sizes in (self.train_sizes, self.val_sizes)
        )
        if crop_size:
            train[:] = crop_size
        return np.maximum(padded_shapes(train), smallest), val

    @property
    def order(self) -> Callable[[np.ndarray, int, int, int], list[Batch]]:
        """(shapes, batch size, seed, epoch) -> the epoch's batches."""
        return epoch_batches if self.groups is None else partial(stream_batches, self.groups)

    def fingerprint(self) -> str:
        """Changes with the number or sizes of the images in either split, or with the names of some of them."""
        parts = []
        for records, sizes in ((self.train, self.train_sizes), (self.val, self.val_sizes)):
            some = np.unique(np.linspace(0, len(records) - 1, 16).astype(int)).tolist()
            parts += [len(records), [records[index]["name"] for index in some], sizes.tolist()]
        return f"{len(self.train)} + {len(self.val)} images ({digest(*parts)[:12]})"

    def __str__(self) -> str:
        named = zip(self.classes.values, self.classes.names, strict=True)
        ignored = self.classes.ignore_value
        bad = [*self.train_bad.values(), *self.val_bad.values()]
        listed = "; ".join(bad[:LISTED] + ["..."] * (len(bad) > LISTED))
        return (
            f"{len(self.train)} training and {len(self.val)} validation images, {self.channels} channels, classes "
            + ", ".join(f"{value}={name}" for value, name in named)
            + ("" if ignored is None else f", ignored {ignored}")
            + (f"; {len(bad)} bad samples skipped: {listed}" if bad else "")
        )


def load_data(
    dataset: str,
    read: Callable[..., np.ndarray],
    progress: Callable[[Iterable, int, str], Iterable],
    *,
    classes: str | None,
    ignore_index: str | None,
    seed: int,
    image_size: Sequence[int] | None = None,
    crop_size: Sequence[int] | None = None,
    on_bad_sample: str = "error",
    errors: Errors = (DataError,),
    open_rows: OpenRows | None = None,
    **options,
) -> Data:
    """Find the data set (`options` as in `sources.load`), read every header, every mask and a sample of the images.

    `read(source, name)` gives an image as (H, W, C) and may raise `errors`; `open_rows(path, page)`, for training on
    crops, windows of a large one. What was read is remembered until a file changes. Raises DataError for what is wrong
    with the files, naming them; with `on_bad_sample` "skip" they are noted.
    """
    skip = errors if on_bad_sample == "skip" else ()
    splits = sources.load(dataset, seed=seed, **options)
    if dataset == "shapes":
        classes = classes or ",".join(f"{value}={name}" for value, name in enumerate(CLASS_NAMES))
    reading = Reading(read, progress, seed, skip, open_rows)
    if not hasattr(splits[0], "lengths"):
        return survey_files(splits, reading, classes, ignore_index)
    if not classes or not (image_size or crop_size):
        raise DataError("a stream is not read before training: it needs --classes, and --image-size or --crop-size")
    return sample_stream(splits, reading, classes, ignore_index, need_sizes=not image_size)


def survey_files(splits: Splits, reading: Reading, classes: str | None, ignore: str | None) -> Data:
    """All that is to be known of files at hand."""
    names = ("training", "validation")
    whole = reading._replace(open_rows=None)  # validation images are computed whole
    ways = zip(splits, names, (reading, whole), strict=True)
    pairs = [(survey_of(records, way, f"checking {name} files"), records) for records, name, way in ways]
    for survey, records in pairs:
        reading.check(survey, records)
    found = total_pixels(pairs)
    mask_classes = resolve(found, classes, ignore)
    for survey, records in pairs:
        find_unknown(survey, records, mask_classes)
        reading.check(survey, records)
    mean, std, types = reading.measure(splits[0], splits[0].digest, pairs[0][0])
    sizes = [usable_sizes(survey) for survey, _ in pairs]
    bad = [texts(survey) for survey, _ in pairs]
    pixels = class_pixels(total_pixels(pairs), mask_classes)
    lines = doubts(pairs, found, mask_classes, named=bool(classes), ignored=bool(ignore))
    places = {i: places_of(found, mask_classes) for i, found in pairs[0][0].places.items()}
    known: tuple[Any, ...] = (*sizes, mask_classes, pixels, len(mean), mean, std, types, *bad, reading.skip)
    known += (None, places, lines)
    return Data(*splits, *known)


def sample_stream(splits: Splits, reading: Reading, classes: str, ignore: str | None, need_sizes: bool) -> Data:
    """What a sample of a stream shows; the headers of validation images too, where their sizes are needed."""
    train, val = splits
    rng = np.random.default_rng(reading.seed)
    groups = rng.permutation(len(train.lengths))[:SAMPLE_GROUPS]
    firsts, share = np.cumsum(train.lengths) - train.lengths, -(-STATISTICS_IMAGES // len(groups))
    indices = np.concatenate([firsts[g] + rng.permutation(train.lengths[g])[:share] for g in groups])
    sample = [train[int(i)] for i in indices]
    survey = reading.examine(sample, "reading a sample")
    reading.check(survey, sample)
    found = total_pixels([(survey, sample)])
    mask_classes = resolve(found | {IGNORE: found.get(IGNORE, 0)}, classes, ignore)
    find_unknown(survey, sample, mask_classes)
    reading.check(survey, sample)
    mean, std, types = reading.measure(sample, None, survey)
    val_sizes, bad = np.zeros((len(val), 2), np.int64), dict[int, str]()
    if need_sizes:
        headers = reading.examine(val, "checking validation files")
        find_unknown(headers, val, mask_classes)
        reading.check(headers, val)
        val_sizes, bad = usable_sizes(headers), texts(headers)
    train_sizes, pixels = np.zeros((len(train), 2), np.int64), class_pixels(found, mask_classes)
    known: tuple[Any, ...] = (mask_classes, pixels, len(mean), mean, std, types, {}, bad, reading.skip, train.lengths)
    return Data(train, val, train_sizes, val_sizes, *known)


def survey_of(records: Sequence[dict], reading: Reading, what: str) -> Survey:
    """What `examine` finds, remembered where there is nothing wrong."""
    key = records.digest and digest("survey", records.digest, reading.open_rows is not None)
    found: list[Survey] = []

    def compute() -> dict:
        found.append(reading.examine(records, what))
        return found[0].to_json()

    stored = cached(key, compute, keep=lambda _: not found[0].problems)
    return found[0] if found else Survey.from_json(stored)


def class_pixels(found: dict[Value, int], classes: MaskClasses) -> list[int]:
    """Pixels of each class: masks that hold only greys are counted by number, though the classes may be colours."""

    return [found.get(value, found.get(as_grey(value), 0)) for value in classes.values]


def places_of(found: Places, classes: MaskClasses) -> list[np.ndarray]:
    """The places of each class that there is, as `class_pixels` finds it."""
    places = [found.get(value, found.get(as_grey(value))) for value in classes.values]
    return [some for some in places if some is not None]


def texts(survey: Survey) -> dict[int, str]:
    return {i: problem.text for i, problem in survey.problems.items()}


def usable_sizes(survey: Survey) -> np.ndarray:
    """(N, 2) sizes; where there is none, that of most others, so that the filler needs no shape of its own."""
    good = np.asarray(survey.sizes.any(axis=1))
    sizes, counts = np.unique(survey.sizes[good], axis=0, return_counts=True)
    return np.where(good[:, None], survey.sizes, sizes[counts.argmax()])
