"""A data set, and what must be known of it before the first step: sizes, classes, channels, brightness."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from data_utils import sources
from data_utils.cache import digest, remembered
from data_utils.errors import DataError
from data_utils.inspection import Survey, examine, find_unknown, raise_problems, total_pixels
from data_utils.masks import IGNORE, MaskClasses, Value, resolve
from data_utils.shapes import CLASS_NAMES

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle
SAMPLE_GROUPS = 8  # of a stream, which the images come from
LISTED = 20  # skipped samples, by name
Errors = tuple[type[Exception], ...]
Sums = tuple[int, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Data:
    """Both splits and what was measured.

    Args:
        train_sizes, val_sizes: (N, 2) as (H, W) in the files.
        class_pixels: how many pixels of each class the masks hold.
        mean, std: one number for each channel of the training images, in the files' own value range.
        train_bad, val_bad: index -> what is wrong, of samples known to be unusable.
        skip: errors in reading that make a sample a filler instead of ending the run.
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
    train_bad: dict[int, str] = field(default_factory=dict)
    val_bad: dict[int, str] = field(default_factory=dict)
    skip: Errors = ()
    groups: np.ndarray | None = None

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
    **options,
) -> Data:
    """Find the data set (`options` as in `sources.load`), read every header, every mask and a sample of the images.

    `read(source, name)` gives an image as (H, W, C) and may raise `errors`. What was read is remembered until a file
    changes. Raises DataError for what is wrong with the files, naming them; with `on_bad_sample` "skip" they are noted.
    """
    skip = errors if on_bad_sample == "skip" else ()
    splits = sources.load(dataset, seed=seed, **options)
    if dataset == "shapes":
        classes = classes or ",".join(f"{value}={name}" for value, name in enumerate(CLASS_NAMES))
    if not hasattr(splits[0], "lengths"):
        return survey_data(splits, read, progress, classes, ignore_index, seed, skip)
    if not classes or not (image_size or crop_size):
        raise DataError("a stream is not read before training: it needs --classes, and --image-size or --crop-size")
    return sample_stream(splits, read, progress, classes, ignore_index, seed, skip, need_sizes=not image_size)


def survey_data(splits, read, progress, classes, ignore_index, seed, skip) -> Data:
    """Everything that can be known of files that are at hand."""
    surveys = [
        survey_of(records, lambda items, n, what=what: progress(items, n, f"checking {what} files"))
        for records, what in zip(splits, ("training", "validation"), strict=True)
    ]
    mask_classes, pixels = find_classes(surveys, splits, classes, ignore_index, skip=bool(skip))
    mean, std = measure(splits[0], splits[0].digest, surveys[0], read, progress, seed, skip)
    bad = [{i: problem.text for i, problem in survey.problems.items()} for survey in surveys]
    sizes = [usable_sizes(survey) for survey in surveys]
    return Data(*splits, *sizes, mask_classes, pixels, len(mean), mean, std, *bad, skip)


def sample_stream(splits, read, progress, classes, ignore, seed, skip, need_sizes) -> Data:
    """What a sample of a stream shows; sizes of validation images are read where they are not all the same."""
    train, val = splits
    rng = np.random.default_rng(seed)
    groups = rng.permutation(len(train.lengths))[:SAMPLE_GROUPS]
    firsts = np.cumsum(train.lengths) - train.lengths
    share = -(-STATISTICS_IMAGES // len(groups))
    indices = np.concatenate([firsts[g] + rng.permutation(train.lengths[g])[:share] for g in groups])
    sample = [train[int(i)] for i in indices]
    survey = examine(sample, lambda items, n: progress(items, n, "reading a sample"))
    found = total_pixels([(survey, sample)])
    mask_classes = resolve(found | {IGNORE: found.get(IGNORE, 0)}, classes, ignore)
    find_unknown(survey, sample, mask_classes)
    if not skip or len(survey.problems) == len(sample):
        raise_problems(survey, len(sample))
    mean, std = measure(sample, None, survey, read, progress, seed, skip)
    val_sizes, bad = np.zeros((len(val), 2), np.int64), {}
    if need_sizes:
        headers = examine(val, lambda items, n: progress(items, n, "checking validation files"))
        if not skip:
            raise_problems(headers, len(val))
        val_sizes, bad = usable_sizes(headers), {i: problem.text for i, problem in headers.problems.items()}
    sizes = np.zeros((len(train), 2), np.int64)
    pixels = [count_of(found, value) for value in mask_classes.values]
    return Data(train, val, sizes, val_sizes, mask_classes, pixels, len(mean), mean, std, {}, bad, skip, train.lengths)


def survey_of(records: Sequence[dict], progress: Callable[[Iterable, int], Iterable]) -> Survey:
    """What `examine` finds, remembered where there is nothing wrong."""
    key = records.digest and digest("survey", records.digest)
    found: list[Survey] = []

    def compute() -> dict:
        found.append(examine(records, progress))
        return found[0].to_json()

    stored = remembered(key, compute, keep=lambda _: not found[0].problems)
    return found[0] if found else Survey.from_json(stored)


def find_classes(
    surveys: Sequence[Survey], splits: Sequence[Sequence[dict]], classes: str | None, ignore: str | None, skip: bool
) -> tuple[MaskClasses, list[int]]:
    """The classes and how many pixels each has; DataError for unusable records, unless they are to be skipped."""
    if not skip:
        for survey, records in zip(surveys, splits, strict=True):
            raise_problems(survey, len(records))
    pairs = list(zip(surveys, splits, strict=True))
    mask_classes = resolve(total_pixels(pairs), classes, ignore)
    for survey, records in pairs:
        find_unknown(survey, records, mask_classes)
        if not skip or len(survey.problems) == len(records):
            raise_problems(survey, len(records))
    found = total_pixels(pairs)
    return mask_classes, [count_of(found, value) for value in mask_classes.values]


def count_of(found: dict[Value, int], value: Value) -> int:
    """Pixels of a class: masks that hold only greys are counted by number, though the classes may be colours."""
    grey = isinstance(value, tuple) and len(set(value)) == 1
    return found.get(value, found.get(value[0], 0) if grey else 0)


def usable_sizes(survey: Survey) -> np.ndarray:
    """(N, 2) sizes; where there is none, that of most others, so that the filler needs no shape of its own."""
    good = survey.sizes.any(axis=1)
    sizes, counts = np.unique(survey.sizes[good], axis=0, return_counts=True)
    return np.where(good[:, None], survey.sizes, sizes[counts.argmax()])


def measure(
    records: Sequence[dict],
    key: str | None,
    survey: Survey,
    read: Callable[..., np.ndarray],
    progress: Callable[[Iterable, int, str], Iterable],
    seed: int,
    skip: Errors,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of a sample of the images that can be read, remembered under `key`."""
    chosen = np.random.default_rng(seed).permutation(len(records))[:STATISTICS_IMAGES].tolist()
    chosen = [i for i in chosen if i not in survey.problems]

    def read_one(i: int) -> Sums | None:
        try:
            return channel_sums(read(records[i]["image"], records[i]["name"]))
        except skip:
            return None  # noted when training meets it

    def compute() -> list:
        with ThreadPoolExecutor(2) as pool:
            sums = list(progress(pool.map(read_one, chosen), len(chosen), "measuring brightness"))
        return list(channel_statistics([found for found in sums if found is not None], bool(skip)))

    mean, std = remembered(key and digest("brightness", key, chosen), compute)
    return tuple(mean), tuple(std)


def channel_sums(image: np.ndarray) -> Sums:
    """Pixels of an image (H, W, C), and the sums of their values and squares, (C,) in float64."""
    values = image.reshape(-1, image.shape[2]).astype(np.float64)
    return len(values), values.sum(axis=0), np.square(values).sum(axis=0)


def channel_statistics(sums: Sequence[Sums], skip: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of images with these sums.

    Where grey and colour images are mixed, the grey ones count in every channel, as the network will see them. Other
    numbers of channels than that of most images are a DataError, unless they are to be skipped.
    """
    channels = Counter(len(total) for _, total, _ in sums if len(total) > 1)
    usual = channels.most_common(1)[0][0] if channels else 1
    if len(channels) > 1 and not skip:
        raise DataError(f"images have {' and '.join(map(str, sorted(channels)))} channels; --check-data lists them")
    sums = [found for found in sums if len(found[1]) in (1, usual)]
    if not sums:
        raise DataError("none of the images that brightness is measured on can be read")
    pixels = sum(count for count, _, _ in sums)
    mean, squares = (sum(found[k] for found in sums) / pixels + np.zeros(usual) for k in (1, 2))
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
