"""A data set, and what must be known of it before the first step: sizes, classes, channels, normalisation."""

from dataclasses import dataclass, field, replace

import numpy as np

from data_utils.analysis.inspect import (
    ClassLocations,
    SplitInspection,
    find_unknown,
    raise_problems,
    total_pixels,
)
from data_utils.analysis.inspect_volumes import VolumeSplitInspection
from data_utils.analysis.label_warnings import label_warnings
from data_utils.analysis.looks import Look, inspect_split, look_at
from data_utils.analysis.normalization import STATISTICS_IMAGES, Normalization, measure_normalization
from data_utils.analysis.volume_findings import target_spacing
from data_utils.class_map import ClassMap, NamedClasses, as_grey, named_classes
from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords, Records
from data_utils.targets import TARGETS
from data_utils.targets.reader import TargetReader
from runtime.cache import cached, digest
from runtime.errors import DataError
from unet.axes import NetworkAxes, level_axes
from unet.config import IGNORE_INDEX, Preprocess

SAMPLE_GROUPS = 8  # of a stream, which the images come from
LISTED = 20  # skipped samples, by name


@dataclass(frozen=True)
class Split:
    """The records of a split, and what one look at each has found.

    Args:
        sizes: (N, 2) int64, (H, W) in the files; zeros where a stream was not looked at. Of volumes (N, 3), (D, H, W).
        bad: index -> what is wrong, of samples known to be unusable.
        class_locations: index -> some pixels of each class, (n, 2) each, of images too large to decode whole for every
            crop. Of volumes (n, 3), of all of them.
        spacings: of volumes (N, 3), (z, y, x) in mm; None of images.
    """

    records: Records
    sizes: np.ndarray
    bad: dict[int, str] = field(default_factory=dict)
    class_locations: dict[int, list[np.ndarray]] = field(default_factory=dict)
    spacings: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class DatasetInfo:
    """A data set as it was configured: both splits and what was measured.

    Args:
        reader: reads the targets, and knows what they mean.
        warnings: lines on what looks like a mistake.
    """

    config: DataConfig
    train: Split
    val: Split
    reader: TargetReader
    normalization: Normalization
    warnings: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        """Of the images, 1 or 3 in most data sets."""
        return len(self.normalization.mean)

    def preprocess(self, source: Preprocess | None = None) -> Preprocess:
        """How a model is to see these images; `source` is that of a pretrained model, whose normalisation stays."""
        values = source or Preprocess(**self.normalization._asdict())
        image_size, scale = self.config.image_size, self.config.scale
        spacing = values.spacing  # of a pretrained network, which has learnt how large things are
        if spacing is None and self.train.spacings is not None:
            spacing = target_spacing(self.train.spacings)
        values = replace(values, image_size=image_size, scale=scale, spacing=spacing)
        values = replace(values, class_names=(), class_values=(), ignore_value=None)  # of the source, if any
        return replace(values, turned=self.config.augment == "strong", **self.reader.to_preprocess())

    def axes(self, depth: int | None) -> NetworkAxes:
        """The axes of a network for these data: for volumes in patches also the kernels and strides of its levels."""
        if self.train.records.dims == 2:
            return NetworkAxes(2)
        spacing, patch = self.preprocess().spacing, self.config.crop_size
        assert spacing and patch
        kernels, strides = level_axes(spacing, patch, depth)
        return NetworkAxes(3, kernels, strides)

    def fingerprint(self) -> str:
        """Changes with the number or sizes of the images in either split, or with the names of some of them."""
        parts = []
        for split in (self.train, self.val):
            some = np.unique(np.linspace(0, len(split) - 1, 16).astype(int)).tolist()
            parts += [len(split), [split.records[index]["name"] for index in some], split.sizes.tolist()]
        return f"{len(self.train)} + {len(self.val)} images ({digest(*parts)[:12]})"

    def __str__(self) -> str:
        bad = [*self.train.bad.values(), *self.val.bad.values()]
        listed = "; ".join(bad[:LISTED] + ["..."] * (len(bad) > LISTED))
        kind, spacing = "images", self.preprocess().spacing
        if spacing:
            kind = f"volumes, mostly of {', '.join(f'{side:g}' for side in spacing)} mm along z, y, x"
        return (
            f"{len(self.train)} training and {len(self.val)} validation {kind}, {self.channels} channels,"
            f" {self.reader.describe()}" + (f"; {len(bad)} bad samples skipped: {listed}" if bad else "")
        )


def load_dataset_info(config: DataConfig) -> DatasetInfo:
    """Find the data set, read every header, every mask and a sample of the images.

    What was read is kept until a file changes. Raises DataError for what is wrong with the files, naming them; with
    `on_bad_sample` "skip" they are noted.
    """
    train, val = load_records(config)
    classes = named_classes(config.classes, train.classes)
    if train.group_sizes is None:
        return inspect_files(train, val, config, classes)
    lacks_classes = TARGETS[config.task].has_classes and not classes
    if lacks_classes or not (config.image_size or config.crop_size):
        raise DataError("a stream is not read before training: give --classes, and --image-size or --crop-size")
    return sample_stream(train, val, config, classes)


def inspect_files(train: Records, val: Records, config: DataConfig, classes: NamedClasses) -> DatasetInfo:
    """Inspect files that can be read before training. Raises DataError for settings that do not fit the data."""
    reader_type = TARGETS[config.task]
    look = look_at(train, has_classes=reader_type.has_classes, windows=config.may_crop)
    look.check_settings(config)
    look_whole = look_at(val, has_classes=reader_type.has_classes)  # validation images are computed whole
    inspected = [
        (_inspect_once(train, "checking training files", look), train),
        (_inspect_once(val, "checking validation files", look_whole), val),
    ]
    for inspection, records in inspected:
        _check(inspection, records, config)
    found = total_pixels(inspected)
    reader = reader_type.of_values(found, classes, config)
    for inspection, records in inspected:
        find_unknown(inspection, records, reader.class_map)
        _check(inspection, records, config)
    named, ignored = bool(classes), bool(config.ignore_index)
    of_train, of_val = (inspection for inspection, _ in inspected)
    return DatasetInfo(
        config,
        _split(train, of_train, reader.class_map),
        _split(val, of_val, reader.class_map),
        reader.with_pixels(total_pixels(inspected)),
        look.normalization(train, of_train, config),
        label_warnings(inspected, found, reader.class_map, named=named, ignored=ignored),
    )


def _split(records: Records, inspection: SplitInspection, class_map: ClassMap | None) -> Split:
    is_volumes = isinstance(inspection, VolumeSplitInspection)
    locations = {i: _locations_of(found, class_map, is_volumes) for i, found in inspection.class_locations.items()}
    spacings = inspection.volumes.usable_spacings() if isinstance(inspection, VolumeSplitInspection) else None
    return Split(records, usable_sizes(inspection), _texts(inspection), locations, spacings)


def sample_stream(train: Records, val: Records, config: DataConfig, classes: NamedClasses) -> DatasetInfo:
    """Inspect a sample of a stream, and the headers of validation images where their sizes are needed."""
    assert train.group_sizes is not None
    rng = np.random.default_rng(config.seed)
    sizes = train.group_sizes
    groups = rng.permutation(len(sizes))[:SAMPLE_GROUPS]
    firsts, share = np.cumsum(sizes) - sizes, -(-STATISTICS_IMAGES // len(groups))
    indices = np.concatenate([firsts[g] + rng.permutation(sizes[g])[:share] for g in groups])
    sample = ListRecords([train[int(i)] for i in indices])
    reader_type = TARGETS[config.task]
    look = look_at(sample, has_classes=reader_type.has_classes, windows=bool(config.crop_size))
    inspection = inspect_split(sample, "reading a sample", look)
    _check(inspection, sample, config)
    found = total_pixels([(inspection, sample)])
    possible = found
    if all(isinstance(value, int) for value in found):  # masks outside the sample may hold the usual 255
        possible = found | {IGNORE_INDEX: found.get(IGNORE_INDEX, 0)}
    reader = reader_type.of_values(possible, classes, config)
    find_unknown(inspection, sample, reader.class_map)
    _check(inspection, sample, config)
    normalization = measure_normalization(sample, config, inspection.problems)
    of_val = Split(val, np.zeros((len(val), 2), np.int64))
    if not config.image_size:
        look_whole = look_at(val, has_classes=reader_type.has_classes)
        headers = inspect_split(val, "checking validation files", look_whole)
        find_unknown(headers, val, reader.class_map)
        _check(headers, val, config)
        of_val = Split(val, usable_sizes(headers), _texts(headers))
    of_train = Split(train, np.zeros((len(train), 2), np.int64))
    return DatasetInfo(config, of_train, of_val, reader.with_pixels(found), normalization)


def _inspect_once(records: Records, title: str, look: Look) -> SplitInspection:
    """The result of `inspect_split`, stored in the cache if there are no problems."""
    key = records.digest and digest("inspection", records.digest, *look.key)
    found: list[SplitInspection] = []

    def compute() -> dict:
        found.append(inspect_split(records, title, look))
        return found[0].to_json()

    stored = cached(key, compute, keep=lambda _: not found[0].problems)
    return found[0] if found else look.inspection.from_json(stored)


def _check(inspection: SplitInspection, records: Records, config: DataConfig) -> None:
    """DataError for problems, unless --on-bad-sample skips them and some records are left."""
    if not config.skipped_errors or len(inspection.problems) == len(records):
        raise_problems(inspection, len(records))


def _locations_of(found: ClassLocations, class_map: ClassMap | None, volumes: bool) -> list[np.ndarray]:
    """The locations of each class that there is, or value without classes; of volumes not of the background."""
    values = [value for value in (class_map.values if class_map else found) if not (volumes and value == 0)]
    locations = [found.get(value, found.get(as_grey(value))) for value in values]
    return [pixels for pixels in locations if pixels is not None]


def _texts(inspection: SplitInspection) -> dict[int, str]:
    return {i: problem.text for i, problem in inspection.problems.items()}


def usable_sizes(inspection: SplitInspection) -> np.ndarray:
    """(N, 2 or 3) sizes; a record without a size gets the most frequent one, so that fillers add no new shape."""
    good = np.asarray(inspection.sizes.any(axis=1))
    sizes, counts = np.unique(inspection.sizes[good], axis=0, return_counts=True)
    return np.where(good[:, None], inspection.sizes, sizes[counts.argmax()])
