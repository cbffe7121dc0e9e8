"""How the records of a data set are inspected before the first step: as images or as volumes."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspect_points import inspect_points, inspect_volume_points
from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection, inspect_volume
from data_utils.analysis.inspect_windows import inspect_in_windows
from data_utils.analysis.inspection import Inspection, Problem, SplitInspection
from data_utils.analysis.normalization import Normalization, measure_normalization
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.image_io.windowed import open_if_large, strips
from data_utils.invented_values import excess_values
from data_utils.mask_values import MAX_VALUES
from data_utils.sources.records import Record, Records
from runtime.console import track
from runtime.errors import DataError
from runtime.parallel import CHUNK, map_indices
from unet.config import MaskValue


class Inspector(ABC):
    """Inspects records.

    Args:
        has_classes: whether the values of masks are classes: few, and not smoothed.

    Attributes:
        kind: a record in words, "image" or "volume".
        inspection_type: the class of the inspection of all records.
        chunk: how many records a thread takes at a time.
        grey_fits: whether images of one channel may be mixed with images of several.
    """

    kind: ClassVar[str]
    inspection_type: ClassVar[type[SplitInspection]]
    chunk: ClassVar[int]
    grey_fits: ClassVar[bool]
    windows = False  # whether large images are inspected in windows

    def __init__(self, *, has_classes: bool) -> None:
        self.has_classes = has_classes

    @property
    def key(self) -> tuple[bool, ...]:
        """The settings that an inspection depends on, beside the files."""
        return (self.windows,) if self.has_classes else (self.windows, False)

    @abstractmethod
    def inspect(self, record: Record) -> Inspection | Problem:
        """The inspection of a record."""

    @abstractmethod
    def count_channels(self, record: Record, inspection: Inspection) -> int:
        """How many channels the image of the record has; the whole image is decoded."""

    @abstractmethod
    def check_settings(self, config: DataConfig) -> None:
        """Raises DataError for settings that do not suit such records."""

    @abstractmethod
    def normalization(self, records: Records, inspection: SplitInspection, config: DataConfig) -> Normalization:
        """How the images are normalized."""


class ImageInspector(Inspector):
    """Inspects the headers of images, and their whole masks.

    Args:
        windows: whether large images are inspected in windows.
    """

    kind = "image"
    inspection_type = SplitInspection
    chunk = CHUNK
    grey_fits = True

    def __init__(self, *, has_classes: bool, windows: bool = False) -> None:
        super().__init__(has_classes=has_classes)
        self.windows = windows

    def inspect(self, record: Record) -> Inspection | Problem:
        if self.windows:
            return inspect_in_windows(record, has_classes=self.has_classes)
        return inspect_image(record, has_classes=self.has_classes)

    def count_channels(self, record: Record, inspection: Inspection) -> int:
        if self.windows:
            with open_if_large(record["image"]) as picture:
                if picture is not None:
                    return max(read_image(strip, record["name"]).shape[2] for _, strip in strips(picture))
        return read_image(record["image"], record["name"]).shape[2]

    def check_settings(self, config: DataConfig) -> None:
        if config.normalization:
            raise DataError(
                f"--normalization {config.normalization} is for volumes, and the data are images; leave it out"
            )

    def normalization(self, records: Records, inspection: SplitInspection, config: DataConfig) -> Normalization:
        return measure_normalization(records, config, inspection.problems)


class PointInspector(ImageInspector):
    """Inspects the headers of images; the records already hold the points."""

    def inspect(self, record: Record) -> Inspection | Problem:
        return inspect_points(record, windows=self.windows)


class VolumeInspector(Inspector):
    """Inspects whole volumes and their labels."""

    kind = "volume"
    inspection_type = VolumeSplitInspection
    chunk = 1
    grey_fits = False

    def inspect(self, record: Record) -> Inspection | Problem:
        return inspect_volume(record, has_classes=self.has_classes)

    def count_channels(self, record: Record, inspection: Inspection) -> int:
        assert isinstance(inspection, VolumeInspection)
        return inspection.foreground.shape[1]

    def check_settings(self, config: DataConfig) -> None:
        if config.image_size or config.scale != 1:
            raise DataError(
                "--image-size and --scale are for images; volumes are resampled to the median of their spacings"
            )

    def normalization(self, records: Records, inspection: SplitInspection, config: DataConfig) -> Normalization:
        assert isinstance(inspection, VolumeSplitInspection)
        return inspection.statistics.normalization(records.metadata.modality, config)


class VolumePointInspector(VolumeInspector):
    """Inspects whole volumes; the records already hold the points."""

    def inspect(self, record: Record) -> Inspection | Problem:
        return inspect_volume_points(record)


def choose_inspector(records: Records, *, has_classes: bool = True, windows: bool = False) -> Inspector:
    """The inspector that suits these records; with `windows`, large images are inspected in windows."""
    if records.metadata.landmarks is not None and records.dims == 3:
        return VolumePointInspector(has_classes=False)
    if records.metadata.landmarks is not None:
        return PointInspector(has_classes=False, windows=windows)
    if records.dims == 3:
        return VolumeInspector(has_classes=has_classes)
    return ImageInspector(has_classes=has_classes, windows=windows)


def inspect_split(
    records: Records,
    title: str,
    inspector: Inspector,
    inspect_record: Callable[[Record], Inspection | Problem] | None = None,
    *,
    has_names: bool = False,
) -> SplitInspection:
    """The inspection of all records, in threads, with a progress bar.

    Args:
        inspect_record: inspects one record; by default `inspector.inspect`.
        has_names: whether the classes have names, so that masks with other values will be listed.

    Raises DataError only for masks that hold too many values together.
    """
    inspect_record = inspect_record or inspector.inspect
    split_inspection = inspector.inspection_type.empty(len(records))
    pixels: dict[str, Counter[MaskValue]] = {"numbers": Counter(), "greys": Counter(), "colors": Counter()}
    inspections = map_indices(lambda i: inspect_record(records[i]), len(records), inspector.chunk)
    for i, inspection in enumerate(track(inspections, len(records), title)):
        if isinstance(inspection, Problem):
            split_inspection.problems[i] = inspection
            continue
        split_inspection.add(i, inspection, records.label_set(i))
        pixels[inspection.kind].update(inspection.pixels)
        is_limited = inspector.has_classes and not has_names
        excess = excess_values(pixels[inspection.kind]) if is_limited else None
        if excess:
            raise DataError(f"the masks up to {records[i]['name']} hold more than {MAX_VALUES} values: {excess}")
    return split_inspection
