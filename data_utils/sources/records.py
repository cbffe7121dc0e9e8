"""The one interface of a split: records by index, whatever their source."""

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypedDict

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.formats import ImageSource
from runtime.cache import digest

LabelSet = tuple[str, ...]  # names of the classes that an image is labeled for, sorted
OPEN_GROUPS = 8  # groups of a stream in memory, until the loader sets how many it reads side by side
IMAGE_WITHOUT_MASK = ": image without mask"  # the end of the line of such a file


class Picture(TypedDict):
    """An image, its target and their name in messages; a source is anything that holds one picture."""

    image: ImageSource
    target: ImageSource
    name: str


class Record(Picture, total=False):
    """A picture of a split; `labeled` are the classes that it is labeled for, if these are not all classes."""

    labeled: LabelSet


class AnnotationSummary(NamedTuple):
    """The content of annotation files: format, images with and without objects, objects of each class by its name.

    `crowds` are objects that only mark ignored areas.
    """

    format: str
    annotated: int
    empty: int
    instances: dict[str, int]
    crowds: int = 0


class LandmarkNames(NamedTuple):
    """The points that records hold instead of masks: their names, and the format and space that they came in."""

    names: tuple[str, ...]
    layout: str
    space: str


@dataclass(frozen=True)
class Metadata:
    """What holds for all records of a sequence.

    Args:
        classes: mask value and name of each class, background first; empty if the files name none.
        unpaired: a line for each file without partner that was left out.
        dims: 2 for images, 3 for volumes, whose sources are `VolumeFile`s.
        modality: how the volumes were imaged, as their data set names it ("CT", "MRI"); None if it is not named.
        landmarks: the points that replace masks; None if there are masks.
        label_sets: the sets of classes that images are labeled for, if not for all, each with the place that lists it.
        unlisted: names of images that are missing in a list of label sets.
        has_rules: whether a `classes.txt` among the images lists the classes that they are labeled for.
        task: the only task that the targets can be read for; None if the task depends on their content.
        bands: the names of the bands that images are made of, if each band is a file; else empty.
    """

    classes: NamedClasses = ()
    unpaired: tuple[str, ...] = ()
    dims: int = 2
    modality: str | None = None
    landmarks: LandmarkNames | None = None
    label_sets: Mapping[LabelSet, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    has_rules: bool = True
    task: str | None = None
    bands: tuple[str, ...] = ()


class Records(ABC):
    """A sequence of records.

    Attributes:
        metadata: what holds for all records; those that are derived from others pass it on.
        group_sizes: (G,) how many consecutive records of a stream are read together; None if each is read alone.
    """

    metadata = Metadata()
    group_sizes: np.ndarray | None = None

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.metadata.dims

    @property
    def is_stream(self) -> bool:
        """Whether records are read one behind the other, from files that may be far away."""
        return self.group_sizes is not None

    @cached_property
    def digest(self) -> str | None:
        """A key of the content of all files; None if nothing can be cached under it."""
        return None

    @cached_property
    def annotations(self) -> AnnotationSummary | None:
        """The content of the annotation files that masks are rendered from; None if masks are files."""
        return None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, i: int) -> Record: ...

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    def name(self, i: int) -> str:
        """The name of a record; its pictures are not read if that can be avoided."""
        return self[i]["name"]

    def listed_name(self, i: int) -> str:
        """The name of a record with the folders that its file of annotations lists."""
        return self.name(i)

    def label_set(self, i: int) -> LabelSet | None:
        """The classes that an image is labeled for; None if these are all."""
        return None

    def file_numbers(self) -> np.ndarray:
        """(N,) int, the number of the file that each record is a part of, from 0."""
        return np.arange(len(self))

    def image_folders(self) -> set[tuple[str, str]]:
        """Pairs of the images' folder and each folder below it with images; empty if they are not local files."""
        return set()

    def open_here(self) -> None:  # noqa: B027  # most records need nothing
        """Make the records readable in this process, which has received them from another, maybe on another machine.

        Most records are readable already: their files have the same paths everywhere.
        """


SplitOpeners = dict[str, Callable[[], Records]]  # a split's name -> a function that opens its records


def image_without_mask(file: str) -> str:
    """The line of `Metadata.unpaired` for an image without mask."""
    return f"{file}{IMAGE_WITHOUT_MASK}"


def folder_pairs(folder: str, names: np.ndarray) -> set[tuple[str, str]]:
    """The folders of `Records.image_folders`, from the paths of images below their folder, as bytes."""
    return {(folder, os.path.dirname(os.fsdecode(name))) for name in names.tolist()}


def spread_indices(length: int, count: int) -> list[int]:
    """At most `count` indices of a sequence, evenly from its first to its last."""
    return np.unique(np.linspace(0, length - 1, count).astype(int)).tolist()


def annotation_summaries(splits: Iterable[Records]) -> list[AnnotationSummary]:
    """The content of the annotation files of all splits; the two parts of one split share their files."""
    summaries = {id(records.annotations): records.annotations for records in splits if records.annotations}
    return list(summaries.values())


class StreamRecords(Records):
    """Records of files that stay where they are. Records of one group are cheap to read together.

    Args:
        files: URL or path of each file; files may change unnoticed.
        groups: (G, ...) int64, the groups in order; the first column is the index of the file.
        group_sizes: (G,) int64, the number of records in each group.

    Attributes:
        ends: (G,) int64, the index behind the last record of each group.
        open_groups: how many groups are kept in memory.
        is_scattered: whether records are asked for in an order that ignores groups; each is then read alone if
            possible.
    """

    group_sizes: np.ndarray

    def __init__(self, files: Sequence[str], groups: np.ndarray, group_sizes: np.ndarray) -> None:
        self.files = files
        self.groups = groups
        self.group_sizes = group_sizes
        self.ends = np.cumsum(group_sizes)
        self.open_groups = OPEN_GROUPS
        self.is_scattered = False
        self._read: OrderedDict[int, Any] = OrderedDict()
        self._process = os.getpid()
        self._lock = Lock()

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_read"], state["_process"], state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._read = OrderedDict()
        self._process = os.getpid()
        self._lock = Lock()

    def _locate(self, i: int) -> tuple[int, int]:
        """The group of a record, and the record's index in the group."""
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        group = int(np.searchsorted(self.ends, i, side="right"))
        return group, int(i - self.ends[group] + self.group_sizes[group])

    def _group_content(self, group: int) -> Any:
        """The content of a group; the groups used last are kept in memory."""
        if self._process != os.getpid():  # a loader process reads for itself
            self._read = OrderedDict()
            self._process = os.getpid()
        with self._lock:  # records are asked for in threads
            if group not in self._read:
                while len(self._read) >= self.open_groups:
                    self._read.popitem(last=False)
                self._read[group] = self._read_group(group)
            self._read.move_to_end(group)
            return self._read[group]

    @abstractmethod
    def _read_group(self, group: int) -> Any:
        """Read all records of a group at once."""

    @abstractmethod
    def subset(self, is_chosen: np.ndarray) -> "StreamRecords":
        """The records of the groups that `is_chosen`, (G,) bool, marks."""


class DerivedRecords(Records):
    """Records made from another sequence: one from each record, in the same order, unless a subclass differs."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.metadata = records.metadata

    @cached_property
    def annotations(self) -> AnnotationSummary | None:
        """The summary of the whole sequence."""
        return self.records.annotations

    @cached_property
    def digest(self) -> str | None:
        """A digest of the other sequence's digest and the `derivation`; None if the other sequence has no digest."""
        whole = self.records.digest
        return None if whole is None else digest(whole, *self.derivation())

    @abstractmethod
    def derivation(self) -> tuple[object, ...]:
        """The settings that these records depend on, beside the other sequence."""

    def __len__(self) -> int:
        return len(self.records)

    def name(self, i: int) -> str:
        return self.records.name(i)

    def listed_name(self, i: int) -> str:
        return self.records.listed_name(i)

    def label_set(self, i: int) -> LabelSet | None:
        return self.records.label_set(i)

    def image_folders(self) -> set[tuple[str, str]]:
        return self.records.image_folders()

    def open_here(self) -> None:
        self.records.open_here()


def with_sources(records: Records) -> Iterator[Records]:
    """The records, then the records that they are made from, and so on."""
    yield records
    while isinstance(records, DerivedRecords):
        records = records.records
        yield records


class Subset(DerivedRecords):
    """The records of another sequence at `indices`, (N,) int64."""

    def __init__(self, records: Records, indices: np.ndarray) -> None:
        super().__init__(records)
        self.indices = indices
        if self.metadata.unlisted:
            names = {self.name(i) for i in range(len(indices))}
            unlisted = tuple(name for name in self.metadata.unlisted if name in names)
            self.metadata = replace(self.metadata, unlisted=unlisted)

    def derivation(self) -> tuple[object, ...]:
        return (self.indices.tobytes(),)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Record:
        return self.records[int(self.indices[i])]

    def name(self, i: int) -> str:
        return self.records.name(int(self.indices[i]))

    def listed_name(self, i: int) -> str:
        return self.records.listed_name(int(self.indices[i]))

    def label_set(self, i: int) -> LabelSet | None:
        return self.records.label_set(int(self.indices[i]))


class ListRecords(Records):
    """Records that are in memory."""

    def __init__(self, records: Iterable[Record], metadata: Metadata = Records.metadata) -> None:
        self.records = list(records)
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Record:
        return self.records[i]
