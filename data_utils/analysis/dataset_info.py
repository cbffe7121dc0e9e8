"""A data set and the facts needed before the first step: sizes, classes, channels, normalization."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from data_utils.analysis.checks import find_warnings
from data_utils.analysis.content import SAMPLED_RECORDS
from data_utils.analysis.distinct_rows import rows_as_text
from data_utils.analysis.findings import Findings
from data_utils.analysis.inspect_record import ClassLocations
from data_utils.analysis.inspection import SplitInspection
from data_utils.analysis.normalization import (
    Normalization,
    measure_normalization,
    target_spacing,
    usable_spacings,
    volume_normalization,
)
from data_utils.bits import ALL_CLASSES
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.mask_values import value_key
from data_utils.sources.records import Records, spread_indices
from data_utils.targets.reader import TargetReader
from runtime.cache import digest
from runtime.console import counted, listing
from unet.config import IGNORE_INDEX, MaskValue, NetworkAxes, Preprocess, level_axes

NO_CLASSES = ClassMap((), (), None).to_preprocess()


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
        # one axis after the other takes a third of the memory; the scale of volumes is 1
        return tuple(float(np.median(sides * preprocess.scale)) for sides in sizes.T)

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
            names = [split.records.name(index) for index in spread_indices(len(split), SAMPLED_RECORDS)]
            parts += [len(split), names, rows_as_text(split.sizes)]
        return f"{len(self.train)} + {len(self.val)} images ({digest(*parts)[:12]})"

    def __str__(self) -> str:
        kind = self.val.records.image_kind
        detail = ""
        spacing = self.preprocess().spacing
        if spacing:
            sides = ", ".join(f"{side:g}" for side in spacing)
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


def measure(findings: Findings) -> DatasetInfo:
    """The facts of a data set whose files can all be used, or are skipped; else raises DataError."""
    findings.raise_problems()
    data = findings.data
    reader = findings.known_reader
    inspection = findings.splits[0]
    if data.train.dims == 3:
        modality = data.train.metadata.modality
        normalization = volume_normalization(inspection.channels, inspection.foreground, modality, data.config)
    else:
        normalization = measure_normalization(inspection.records, data.config, inspection.problems)
    train, val = (_split(records, findings.splits, reader) for records in (data.train, data.val))
    return DatasetInfo(data.config, train, val, reader, normalization, find_warnings(findings))


def _split(records: Records, inspections: list[SplitInspection], reader: TargetReader) -> Split:
    """A split for training, from its inspection; without sizes if it was not looked at, as of a stream."""
    inspection = next((each for each in inspections if each.records is records), None)
    if inspection is None:
        return Split(records, np.zeros((len(records), 2), np.int32))
    are_volumes = records.dims == 3
    locations = {}
    for i, class_locations in inspection.class_locations.items():
        labeled = reader.labeled_in_map(records.label_set(i))
        locations[i] = list_locations(class_locations, reader, 0 if are_volumes else None, labeled)
    bad = {i: problem.text for i, problem in inspection.problems.items()}
    spacings = usable_spacings(inspection.spacings) if are_volumes else None
    return Split(records, inspection.usable_sizes(), bad, locations, spacings)


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
        # values are numbers of objects, or the bits of present and unknown classes
        values = [value for value in class_locations if background is None or value_key(value) & ALL_CLASSES]
        return [class_locations[value] for value in values]
    locations: dict[int, list[np.ndarray]] = {}
    background_index = None if background is None else class_map.index_of(background)
    for value, pixels in class_locations.items():
        index = class_map.index_of(value)
        if index not in (None, IGNORE_INDEX, background_index) and (labeled is None or index in labeled):
            locations.setdefault(index, []).append(pixels)
    return [np.concatenate(locations[index]) for index in sorted(locations)]
