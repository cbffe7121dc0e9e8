"""From the files of a target to arrays: whole, of a volume, or a window of a large one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from data_utils.class_map import ClassFields, ClassMap
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.formats import Box, ImageSource, VolumeFile
from data_utils.image_io.reader import check_sizes, open_source, read_mask
from data_utils.image_io.resize import Window, nearest_pixels, resize_mask
from data_utils.image_io.volumes import VolumeHeader, check_grids, read_label_volume
from data_utils.sources.records import LabelSet, Record, Records
from data_utils.target import Target
from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError
from unet.config import MaskValue, UNetConfig


class TargetReader(ABC):
    """Reads the targets of a data set, and knows their meaning.

    A reader is a frozen dataclass: its fields are all that the arrays of targets depend on, beside the files.

    Attributes:
        has_classes: whether the values of masks are classes: few, and not smoothed.
        may_shrink: whether the plan may have images resized to fewer pixels.
        class_map: the mask value of each class; None if values are no classes.
        class_pixels: how many pixels of each class the masks hold; empty if values are no classes.
        takes_points: whether the reader reads points, from records that hold them, instead of masks. Their targets have
            the size of the network's input in evaluation too.
    """

    has_classes: ClassVar[bool] = False
    may_shrink: ClassVar[bool] = True
    class_map: ClassMap | None = None
    class_pixels: tuple[int, ...] = ()
    takes_points: ClassVar[bool] = False

    @property
    @abstractmethod
    def target(self) -> type[Target]:
        """The kind of target that is read."""

    @property
    def mirrors(self) -> bool:
        """Whether a mirrored image has a valid target, so that augmentation may mirror."""
        return True

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> TargetReader:
        """The reader of records whose masks hold these values.

        Args:
            records: None for a stream, of which only a sample is looked at.
            pixels: how many pixels hold each value.
            classes: the named classes, if there are any.
        """
        return cls()

    @classmethod
    def of_model(cls, config: UNetConfig) -> TargetReader:
        """The reader of such masks or points as a model predicts."""
        return cls()

    def with_pixels(self, pixels: Mapping[LabelSet | None, dict[MaskValue, int]]) -> TargetReader:
        """The reader that also knows how many pixels of each value the usable masks hold.

        Args:
            pixels: for each label set, the pixels of its images; under None those of images labeled for all classes.
        """
        return self

    def at_size(self, size: Sequence[float]) -> TargetReader:
        """The reader that knows the usual size (*spatial) of the network's inputs."""
        return self

    def partly_labeled(self, place_by_set: Mapping[LabelSet, str], file_classes: NamedClasses) -> TargetReader:
        """The reader of a data set in which some images are labeled for some classes only.

        Args:
            place_by_set: the different sets of classes, each with the place that lists it.
            file_classes: mask value and name of the classes that the data set names.

        Raises DataError for names of no class, and for kinds of targets that cannot be partly labeled.
        """
        raise DataError(f"{next(iter(place_by_set.values()))}: images of this task are labeled as a whole; remove it")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes that images may be labeled for, by index; empty if values are no classes."""
        return self.class_map.names if self.class_map else ()

    @property
    def background(self) -> int | None:
        """The index of the background class, if there is one."""
        return self.class_map.background if self.class_map else None

    def labeled_classes(self, labeled_for: LabelSet | None) -> Collection[int] | None:
        """The classes, by index, that an image with this set of labels is labeled for; None for all."""
        return None

    def labeled_in_map(self, labeled_for: LabelSet | None) -> Collection[int] | None:
        """`labeled_classes` as indices of the class map, for tasks whose class map has other classes than the task."""
        return self.labeled_classes(labeled_for)

    def known_labels(self, target: Target) -> np.ndarray:
        """The labels (*spatial) that crops are taken around; unknown for classes that the image is not labeled for."""
        return target.main

    def mirror(self, target: Target) -> Target:
        """The target of an image that will be mirrored: left and right exchange their names."""
        return target

    def shown_truth(self, target: Target) -> np.ndarray:
        """The labels (*spatial) that pictures show beside a prediction."""
        return target.prediction

    def check(self, findings: Any) -> Iterator[str]:
        """Lines on likely mistakes in the targets, given the `Findings` of a look at all files."""
        yield from ()

    def describe_records(self, splits: Sequence[Records]) -> list[str]:
        """Lines of --check-data on this task's targets, from reading all of them that can be read."""
        return []

    @abstractmethod
    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Any:
        """The task of a network that learns these targets, with the values of --loss and --class-weights."""

    def unknown_target(self, shape: Sequence[int]) -> Target:
        """The target, all unknown, of an image of a shape (*spatial).

        `Task.unknown_target` gives the same to a process that has a network and no data set.
        """
        return self.target.unknown(shape)

    @property
    def identity(self) -> list[str]:
        """The meaning of a saved state: a run whose reader has another identity cannot resume from it."""
        return self.class_map.describe_values() if self.class_map else []

    @abstractmethod
    def read(
        self,
        record: Record,
        image_size: tuple[int, int],
        size: tuple[int, int] | None = None,
        window: Window | None = None,
    ) -> Target:
        """The target of an image of (H, W), of its own size or resized to `size`; whole, or a window of it there.

        Raises DataError if the target cannot be read or has other proportions than the image.
        """

    @abstractmethod
    def read_volume(self, record: Record, header: VolumeHeader, size: tuple[int, ...] | None = None) -> Target:
        """The target (D, H, W) of a volume with this header, of its own size or resized to `size`.

        Raises DataError if the target cannot be read or has other voxels than the volume.
        """

    def find_problem(self, values: Sequence[MaskValue]) -> str | None:
        """The mistake in a mask that holds these values, or None; for readers whose values are not classes."""
        return None

    def to_preprocess(self) -> ClassFields:
        """The fields of `Preprocess` that define the meaning of a model's outputs."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """The content of the targets, for a line on the data set."""

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        """Mean IoU, over the classes, of the masks with themselves resized by `scale` and back.

        Returns 1 if the loss of detail is not measured.
        """
        return 1.0


def resize_back(mask: np.ndarray, scale: float) -> np.ndarray:
    """A mask (H, W) resized by `scale` and back to its own size."""
    small_size = tuple(max(1, int(side * scale)) for side in mask.shape)
    return resize_mask(resize_mask(mask, small_size), mask.shape)


class MaskReader(TargetReader):
    """Targets that are read from one mask for each image."""

    @abstractmethod
    def target_from_mask(self, values: np.ndarray, name: str) -> Target:
        """The target of mask values (H, W) or (H, W, 3), as `read_mask` gives them.

        Raises DataError, with `name`, for values that cannot be turned into a target.
        """

    def prepared(self, source: ImageSource, name: str, *, whole: bool = True) -> tuple[ImageSource, MaskReader]:
        """What to decode in place of a mask, and its reader; both are unchanged if values alone make the target.

        Args:
            whole: whether the target is that of the whole mask; else each window is a mask of its own.
        """
        return source, self

    def target_for_record(self, target: Target, record: Record) -> Target:
        """The target of a record's mask, with the labels that the record is limited to."""
        return target

    def target_from_volume(self, values: np.ndarray, name: str) -> Target:
        """The target of label values (D, H, W)."""
        planes = [self.target_from_mask(plane, name).arrays() for plane in values]
        stacked = [np.stack(arrays) for arrays in zip(*planes, strict=True)]
        return self.target(*stacked)

    def read(
        self,
        record: Record,
        image_size: tuple[int, int],
        size: tuple[int, int] | None = None,
        window: Window | None = None,
    ) -> Target:
        name = record["name"]
        source, reader = self.prepared(record["target"], name, whole=window is None)
        has_colors = reader.class_map is not None and reader.class_map.has_colors
        # the nearest pixels first: the fewer to look up
        with open_source(source, f"{name}: mask") as mask:
            check_sizes(name, image_size, mask.size)
            if window is None:
                values = resize_mask(read_mask(mask, name, colors=has_colors), size or mask.size)
            else:
                rows, columns = nearest_pixels(mask.size, size or mask.size, window)
                box = Box(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)
                values = read_mask(mask, name, colors=has_colors, box=box)
                values = values[rows - rows[0]][:, columns - columns[0]]
        return reader.target_for_record(reader.target_from_mask(values, name), record)

    def read_volume(self, record: Record, header: VolumeHeader, size: tuple[int, ...] | None = None) -> Target:
        name = record["name"]
        label = record["target"]
        assert isinstance(label, VolumeFile)
        values, label_header = read_label_volume(label, name)
        check_grids(name, header, label_header)
        target = self.target_for_record(self.target_from_volume(values, name), record)
        if size is None:
            return target
        return target.map_with_unknown(lambda labels, _: resize_mask(labels, size))


@dataclass(frozen=True)
class LabelReader(MaskReader):
    """Targets of classes, for all of which an image is labeled, or for some only.

    Args:
        label_sets: the different sets of classes that images are labeled for; None if all are labeled for all.
    """

    class_pixels: tuple[int, ...] = field(default=(), kw_only=True)
    label_sets: LabelSets | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def class_values(self) -> Sequence[Sequence[MaskValue]]:
        """The mask values of each class."""

    @abstractmethod
    def describe_classes(self) -> str:
        """The classes, for `describe`."""

    def partly_labeled(self, place_by_set: Mapping[LabelSet, str], file_classes: NamedClasses) -> Self:
        names = file_classes
        if self.class_map is not None:
            names = (*zip(self.class_map.values, self.class_map.names, strict=True), *file_classes)
        sets = LabelSets.from_names(place_by_set, self.class_names, self.class_values, names, self.background)
        if len(sets.flags) == 1:
            return self
        return replace(self, label_sets=sets)

    def labeled_classes(self, labeled_for: LabelSet | None) -> Collection[int] | None:
        if self.label_sets is None:
            return None
        return np.flatnonzero(self.label_sets.flags_of(labeled_for)).tolist()

    def describe(self) -> str:
        if self.label_sets is None:
            return self.describe_classes()
        return f"{self.describe_classes()}, some images labeled for some of these only ({self.label_sets.location})"
