"""A data set and the facts needed before the first step: sizes, classes, channels, normalization."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from data_utils.analysis.content import sampled_indices
from data_utils.analysis.data_warnings import Findings, find_warnings
from data_utils.analysis.distinct_rows import rows_as_text
from data_utils.analysis.inspection import ClassLocations, InspectedSplits, SplitInspection, total_pixels
from data_utils.analysis.inspectors import choose_inspector, inspect_once, inspect_split
from data_utils.analysis.label_sets import read_labels
from data_utils.analysis.normalization import STATISTICS_IMAGES, Normalization, measure_normalization
from data_utils.analysis.problems import exclude_unreadable, raise_problems
from data_utils.analysis.spoiled_masks import check_masks
from data_utils.analysis.volume_statistics import target_spacing, usable_spacings, volume_normalization
from data_utils.class_map import ClassFields
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords, Records
from data_utils.targets.reader import TargetReader
from runtime.cache import digest
from runtime.console import counted, listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue, NetworkAxes, Preprocess, level_axes

SAMPLE_GROUPS = 8  # groups of a stream that the sampled images come from
NO_CLASSES: ClassFields = {
    "class_names": (),
    "class_values": (),
    "ignore_value": None,
    "joined_values": (),
    "outside_class": None,
}


@dataclass(frozen=True)
class Split:
    """The records of a split and their inspection.

    Args:
        sizes: (N, 2) int32, (H, W) in the files; zeros where a stream was not looked at. For volumes (N, 3), (D, H, W).
        bad: index -> problem, for samples known to be unusable.
        class_locations: index -> some pixels of each class, (n, 2) each, for images too large to decode whole for every
            crop; some voxels of each class, (n, 3) each, for all volumes.
        spacings: (N, 3), (z, y, x) in mm of volumes; None for images.
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
    """A configured data set: both splits and the measurements on them.

    Args:
        reader: reads the targets and knows their meaning.
        warnings: lines on likely mistakes.
        content: the `content_key` of both splits.
    """

    config: DataConfig
    train: Split
    val: Split
    reader: TargetReader
    normalization: Normalization
    warnings: tuple[str, ...] = ()
    content: str = ""

    @property
    def channels(self) -> int:
        """How many values a pixel has: 1 or 3 in most data sets."""
        return len(self.normalization.mean)

    def open_here(self) -> None:
        """Make the records readable in this process, which has received them from another, maybe on another machine."""
        self.train.records.open_here()
        self.val.records.open_here()

    def preprocess(self, source: Preprocess | None = None) -> Preprocess:
        """The preprocessing of these images; with `source`, a pretrained model's, its normalization is kept."""
        values = source or Preprocess(**self.normalization._asdict(), draft=False)
        spacing = values.spacing  # a pretrained network has learned how large things are
        if spacing is None and self.train.spacings is not None:
            spacing = target_spacing(self.train.spacings)
        values = replace(
            values,
            image_size=self.config.image_size,
            scale=self.config.scale or 1.0,
            spacing=spacing,
            draft=self.config.draft or values.draft,
            turned=self.config.augment == "strong",
            bands=self.train.records.metadata.bands or self.config.bands or (),
            place=self.config.reads_places,
        )
        # the source's classes are dropped, whether or not these data have classes
        return replace(values, **(NO_CLASSES | self.reader.to_preprocess()))

    def usual_size(self, preprocess: Preprocess) -> tuple[float, ...]:
        """The median of the sizes (*spatial) at which a network sees the training images, before they are cropped."""
        sizes = self.train.sizes
        if not sizes.any():  # a stream, whose images are cropped or resized to one size
            return self.config.image_size or self.config.crop_size or (1.0, 1.0)
        if self.train.spacings is not None:
            sizes = sizes * self.train.spacings / np.array(preprocess.spacing)
        elif preprocess.image_size is not None:
            return preprocess.image_size
        else:
            sizes = sizes * preprocess.scale
        return tuple(np.median(sizes, axis=0).tolist())

    def axes(self, depth: int | None) -> NetworkAxes:
        """The axes of a network for these data: for volumes in patches also the kernels and strides of its levels."""
        if self.train.records.dims == 2:
            return NetworkAxes(2)
        spacing = self.preprocess().spacing
        patch = self.config.crop_size
        assert spacing
        assert patch
        kernels, strides = level_axes(spacing, patch, depth)
        return NetworkAxes(3, kernels, strides)

    def fingerprint(self) -> str:
        """A key that changes with the number or sizes of the images in either split, or with some of their names."""
        parts: list[object] = []
        # the same parts as in the first version, so that its runs can be resumed
        for split in (self.train, self.val):
            names = [split.records.name(index) for index in sampled_indices(len(split))]
            parts += [len(split), names, rows_as_text(split.sizes)]
        return f"{len(self.train)} + {len(self.val)} images ({digest(*parts)[:12]})"

    def __str__(self) -> str:
        kind = "image"
        detail = ""
        spacing = self.preprocess().spacing
        if spacing:
            sides = ", ".join(f"{side:g}" for side in spacing)
            kind = "volume"
            detail = f", mostly of {sides} mm along z, y, x"
        text = (
            f"{len(self.train)} training and {counted(len(self.val), f'validation {kind}')}{detail},"
            f" {counted(self.channels, 'channel')},"
            f" {self.reader.describe()}"
        )
        problems = [*self.train.bad.values(), *self.val.bad.values()]
        if problems:
            text += f"; {counted(len(problems), 'bad sample')} skipped: {listing(problems, limit=20, separator='; ')}"
        return text


def inspect_files(
    train: Records,
    val: Records,
    targets: type[TargetReader],
    config: DataConfig,
    classes: NamedClasses,
    *,
    insists: bool = False,
) -> DatasetInfo:
    """Inspect files that can be read before training; `insists` is the one of `check_masks`.

    Raises DataError for settings that do not fit the data.
    """
    _check_settings(train, config)
    limits_values = targets.has_classes and config.outside_rule is None
    has_names = bool(classes)
    inspected_splits: list[tuple[SplitInspection, Records]] = []
    for title, records in (("checking training files", train), ("checking validation files", val)):
        windows = config.may_crop and records is train  # validation images are not cropped
        inspector = choose_inspector(records, has_classes=limits_values, windows=windows)
        inspected_splits.append((inspect_once(records, title, inspector, has_names=has_names), records))
    for inspection, records in inspected_splits:
        _check(inspection, records, config)
    reader, pixels = understand(train, inspected_splits, targets, classes, config, insists=insists)
    for inspection, records in inspected_splits:
        exclude_unreadable(inspection, records, reader)
        _check(inspection, records, config)
    # the pixels of the masks that are left; the report of --check-data counts all
    reader = read_labels(reader.with_pixels(total_pixels(inspected_splits)), inspected_splits)
    train_split, val_split = (_split(records, inspection, reader) for inspection, records in inspected_splits)
    train_inspection, _ = inspected_splits[0]
    if train.dims == 3:
        normalization = volume_normalization(train_inspection, train.metadata.modality, config)
    else:
        normalization = measure_normalization(train, config, train_inspection.problems)
    warnings = find_warnings(Findings(inspected_splits, (train, val), pixels, reader, config, has_names))
    return DatasetInfo(config, train_split, val_split, reader, normalization, warnings)


def _check_settings(records: Records, config: DataConfig) -> None:
    """Raises DataError for settings that do not suit such records."""
    if records.dims == 3 and (config.image_size or config.scale not in (None, 1)):
        raise DataError(
            "--image-size and --scale are for images; volumes are resampled to the median of their spacings"
        )
    if records.dims == 2 and config.normalization:
        raise DataError(f"--normalization {config.normalization} is for volumes, and the data are images; leave it out")


def understand(
    train: Records,
    inspected_splits: InspectedSplits,
    targets: type[TargetReader],
    classes: NamedClasses,
    config: DataConfig,
    *,
    insists: bool,
) -> tuple[TargetReader, dict[MaskValue, int]]:
    """The reader of the targets, and how many pixels of the masks hold each value.

    Args:
        classes: the classes that --classes or the data set names.
        insists: whether a flag says that the values of masks are classes.

    Raises DataError if the meaning of the masks is unclear.
    """
    pixels = total_pixels(inspected_splits)
    if targets.has_classes and not classes:
        check_masks(inspected_splits, pixels, insists=insists)
    return targets.from_records(train, pixels, classes, config).with_records(train), pixels


def _split(records: Records, inspection: SplitInspection, reader: TargetReader) -> Split:
    """The split for training, made from its records and their inspection."""
    background: MaskValue | None = None
    spacings = None
    if records.dims == 3:
        background = 0
        spacings = usable_spacings(inspection.spacings)
    locations = {}
    for i, class_locations in inspection.class_locations.items():
        labeled = reader.labeled_in_map(records.label_set(i))
        locations[i] = list_locations(class_locations, reader, background, labeled)
    return Split(records, usable_sizes(inspection), _texts(inspection), locations, spacings)


def sample_stream(
    train: Records, val: Records, targets: type[TargetReader], config: DataConfig, classes: NamedClasses
) -> DatasetInfo:
    """Inspect a sample of a stream, and the headers of validation images where their sizes are needed."""
    sample = _random_sample(train, config.seed)
    inspector = choose_inspector(sample, has_classes=targets.has_classes, windows=bool(config.crop_size))
    inspection = inspect_split(sample, "reading a sample", inspector)
    _check(inspection, sample, config)
    pixels = total_pixels([(inspection, sample)])
    possible_pixels = pixels
    # masks outside the sample may hold the usual 255
    if all(isinstance(value, int) for value in pixels):
        possible_pixels = pixels | {IGNORE_INDEX: pixels.get(IGNORE_INDEX, 0)}
    reader = targets.from_values(possible_pixels, classes, config)
    exclude_unreadable(inspection, sample, reader)
    _check(inspection, sample, config)
    normalization = measure_normalization(sample, config, inspection.problems)
    train_split = Split(train, np.zeros((len(train), 2), np.int32))
    val_split = Split(val, np.zeros((len(val), 2), np.int32))
    if not config.image_size:
        val_inspector = choose_inspector(val, has_classes=targets.has_classes)
        val_inspection = inspect_split(val, "checking validation files", val_inspector)
        exclude_unreadable(val_inspection, val, reader)
        _check(val_inspection, val, config)
        val_split = Split(val, usable_sizes(val_inspection), _texts(val_inspection))
    return DatasetInfo(config, train_split, val_split, reader.with_pixels(pixels), normalization)


def _random_sample(stream: Records, seed: int) -> ListRecords:
    """About STATISTICS_IMAGES records of a stream, from SAMPLE_GROUPS of its groups."""
    assert stream.group_sizes is not None
    rng = np.random.default_rng(seed)
    sizes = stream.group_sizes
    groups = rng.permutation(len(sizes))[:SAMPLE_GROUPS]
    firsts = np.cumsum(sizes) - sizes
    share = math.ceil(STATISTICS_IMAGES / len(groups))
    sample = []
    for group in groups:
        for index in rng.permutation(sizes[group])[:share]:
            sample.append(stream[int(firsts[group] + index)])
    return ListRecords(sample)


def _check(inspection: SplitInspection, records: Records, config: DataConfig) -> None:
    """Raises DataError for problems, unless --on-bad-sample skips them and some records are left."""
    if not config.skipped_errors or len(inspection.problems) == len(records):
        raise_problems(inspection, len(records))


def list_locations(
    class_locations: ClassLocations,
    reader: TargetReader,
    background: MaskValue | None,
    labeled: Collection[int] | None,
) -> list[np.ndarray]:
    """The locations of each class in the mask (of each value, if there are no classes), except the background.

    Args:
        labeled: the classes, by index, that the image is labeled for; None for all.
    """
    class_map = reader.class_map
    if class_map is None:
        values = [value for value in class_locations if background is None or not reader.is_empty(value)]
        return [class_locations[value] for value in values]
    locations: dict[int, list[np.ndarray]] = {}
    for value, pixels in class_locations.items():
        index = class_map.index_of(value)
        if index is not None and index != IGNORE_INDEX:
            locations.setdefault(index, []).append(pixels)
    background_index = None if background is None else class_map.index_of(background)
    if background_index is not None:
        locations.pop(background_index, None)
    if labeled is not None:
        locations = {index: pixels for index, pixels in locations.items() if index in labeled}
    return [np.concatenate(locations[index]) for index in sorted(locations)]


def _texts(inspection: SplitInspection) -> dict[int, str]:
    """Index -> text of the problem, for the records with problems."""
    return {i: problem.text for i, problem in inspection.problems.items()}


def usable_sizes(inspection: SplitInspection) -> np.ndarray:
    """(N, 2 or 3) int32 sizes; a record without a size gets the most frequent one, so that fillers add no new shape."""
    is_known = np.asarray(inspection.sizes.any(axis=1))
    sizes, counts = np.unique(inspection.sizes[is_known], axis=0, return_counts=True)
    return np.where(is_known[:, None], inspection.sizes, sizes[counts.argmax()]).astype(np.int32)
