"""The one interface of a split: records by index, whatever their source; and those of local files."""

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.formats import ImageSource
from runtime.cache import digest, digest_of_files

LabelSet = tuple[str, ...]  # names of the classes that an image is labeled for, sorted
ALL = -1  # the number of a label set of all classes
Files = tuple[str, ...]
Sources = tuple[ImageSource, ImageSource]
OPEN_GROUPS = 8  # groups of a stream in memory, until the loader sets how many it reads side by side


class Record(TypedDict):
    """An image, its target and their name in messages; a source is anything that holds one picture.

    `labeled` are the classes that the image is labeled for, if these are not all classes.
    """

    image: ImageSource
    target: ImageSource
    name: str
    labeled: NotRequired[LabelSet]


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
    """The points that records hold instead of masks.

    Args:
        layout, space: the format and the space that they came in.
        empty: how many cells of the whole split are empty, if `--absent` does not say what that means.
    """

    names: tuple[str, ...]
    layout: str
    space: str
    empty: int = 0


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
        block_side: the pixels of a side of the blocks of `--val-blocks`; 0 if there are none.
        annotations: the content of the annotation files of the whole split; None if masks are files.
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
    block_side: int = 0
    annotations: AnnotationSummary | None = None


class Records(ABC):
    """A sequence of records.

    Attributes:
        metadata: what holds for all records.
        digest: a key of the content of all files; None if nothing can be cached under it.
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

    def origin(self) -> "Records":
        """The records that are made from no others, of which these are some, or parts."""
        return self

    def open_here(self) -> None:  # noqa: B027  # most records need nothing
        """Make the records readable in this process, which has received them from another, maybe on another machine.

        Most records are readable already: their files have the same paths everywhere.
        """


SplitOpeners = dict[str, Callable[[], Records]]  # a split's name -> a function that opens its records


def split_openers(
    splits: Mapping[str, Sequence[Any]], open_split: Callable[..., Records], *options: object
) -> SplitOpeners:
    """The openers of splits, each of which is opened from where it lies, and from options that all share."""
    return {split: partial(open_split, *location, *options) for split, location in splits.items()}


class ListRecords(Records):
    """Records that are in memory."""

    def __init__(self, records: Iterable[Record], metadata: Metadata = Records.metadata) -> None:
        self.records = list(records)
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Record:
        return self.records[i]


class FileRow(NamedTuple):
    """A row of the table.

    Args:
        name: what the record is called.
        images, targets: its files, below the folders of images and of targets; "" for one that is not there.
        listed: its name with the folders that a file of annotations lists; "" if it has no other.
        entry: JSON, what the files of annotations list for this image alone; empty if it is not needed.
    """

    name: str
    images: Files
    targets: Files = ()
    listed: str = ""
    entry: bytes = b""


def first_files(row: FileRow) -> Sources:
    """Files that are read as they are."""
    return row.images[0], row.targets[0]


class FileRecords(Records):
    """Records whose images and targets are local files.

    The table is one array of bytes: a million Python strings would be copied, page by page, into every loader process
    as their reference counts change.

    Args:
        folders: that of the images, and that of the targets.
        sources: makes image and target of a row whose files are paths, and of `options`.

    Attributes:
        table: the rows one after another, of each its entry, name, listed name, number of images, images and targets,
            as bytes between zeros, which no name of a file holds.
        ends: (N + 1,) where the rows begin and end.
    """

    def __init__(
        self,
        folders: tuple[Path, Path],
        rows: Sequence[FileRow],
        metadata: Metadata,
        sources: Callable[..., Sources] = first_files,
        *options: object,
    ) -> None:
        self.folders = str(folders[0]), str(folders[1])
        texts: list[bytes] = []
        for row in rows:
            cells = (row.name, row.listed, str(len(row.images)), *row.images, *row.targets)
            texts.append(b"\0".join([row.entry, *map(os.fsencode, cells)]))
        self.table = b"".join(texts)
        self.ends = np.cumsum([0, *map(len, texts)])
        self.below = {os.path.dirname(row.images[0]) for row in rows if row.images}
        self.metadata = metadata
        self.sources = sources
        self.options = options

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: int) -> Record:
        row = self.row(i)
        image, target = self.sources(row, *self.options)
        return {"image": image, "target": target, "name": row.name}

    def row(self, i: int) -> FileRow:
        """A row with the paths of its files; an image that is not there is left out, such a target is ""."""
        row = self._stored_row(i)
        images = tuple(os.path.join(self.folders[0], file) for file in row.images if file)
        targets = tuple(file and os.path.join(self.folders[1], file) for file in row.targets)
        return row._replace(images=images, targets=targets)

    def _stored_row(self, i: int) -> FileRow:
        if not -len(self) <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        i %= len(self)
        entry, *cells = self.table[self.ends[i] : self.ends[i + 1]].split(b"\0")
        name, listed, count, *files = map(os.fsdecode, cells)
        return FileRow(name, tuple(files[: int(count)]), tuple(files[int(count) :]), listed, entry)

    def name(self, i: int) -> str:
        return self._stored_row(i).name

    def listed_name(self, i: int) -> str:
        row = self._stored_row(i)
        return row.listed or row.name

    def image_folders(self) -> set[tuple[str, str]]:
        return {(self.folders[0], below) for below in self.below}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of what is made from them."""
        paths: dict[str, None] = {}
        for i in range(len(self)):
            row = self.row(i)
            paths.update(dict.fromkeys(filter(None, row.images + row.targets)))
        made = repr((self.sources.__name__, self.metadata.classes, self.metadata.landmarks, self.options))
        return digest_of_files(paths, made.encode() + self.table)


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
        self._lock = Lock()

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read": OrderedDict(), "_lock": None}  # a process reads for itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = Lock()

    def _locate(self, i: int) -> tuple[int, int]:
        """The group of a record, and the record's index in the group."""
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        group = int(np.searchsorted(self.ends, i, side="right"))
        return group, int(i - self.ends[group] + self.group_sizes[group])

    def _group_content(self, group: int) -> Any:
        """The content of a group; the groups used last are kept in memory."""
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


class Change(NamedTuple):
    """How a selection changes each record that it reads; `key` tells different changes apart."""

    key: str
    apply: Callable[[Record], Record]


class Parts(NamedTuple):
    """Which part of its record each row of a selection is: a page of files, a slice of a volume, a window of a scene.

    Args:
        numbers: (N, n) int, which part it is; each kind of part has its own numbers.
        name: makes the name of a part, of the record's name and the numbers.
        cut: makes the part of a record, called by a name.
    """

    numbers: np.ndarray
    name: Callable[[str, Sequence[int]], str]
    cut: Callable[[Record, str, Sequence[int]], Record]


@dataclass(eq=False)
class Selection(Records):
    """Some records of a source, in any order, or parts of them; each is changed when it is read.

    Args:
        indices: (N,) int64, the indices of the records in the source.
        parts: which parts of records these are; None for whole records.
        changes: what is done to each, in this order.
        label_numbers: (N,) int32, the index of each record's set among `metadata.label_sets`, ALL for all classes;
            None if the source knows.
    """

    source: Records = field()
    indices: np.ndarray = field()
    metadata: Metadata = field()
    parts: Parts | None = None
    changes: tuple[Change, ...] = ()
    label_numbers: np.ndarray | None = None

    @cached_property
    def digest(self) -> str | None:
        """A digest of the source's digest and all that is selected and changed; None if the source has none."""
        whole = self.source.digest
        if whole is None:
            return None
        keys: list[object] = [change.key for change in self.changes]
        if self.parts is not None:
            keys += [self.parts.cut.__name__, self.parts.numbers.tobytes()]
        if self.label_numbers is not None:
            keys += [self._label_sets, self.label_numbers.tobytes()]
        return digest(whole, self.indices.tobytes(), *keys)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Record:
        record = self.source[int(self.indices[i])]
        if self.parts is not None:
            record = self.parts.cut(record, self.name(i), self.parts.numbers[i].tolist())
        labeled = self.label_set(i)
        if labeled is not None:
            record = {**record, "labeled": labeled}
        for change in self.changes:
            record = change.apply(record)
        return record

    def name(self, i: int) -> str:
        name = self.source.name(int(self.indices[i]))
        return name if self.parts is None else self.parts.name(name, self.parts.numbers[i].tolist())

    def listed_name(self, i: int) -> str:
        return self.name(i) if self.parts is not None else self.source.listed_name(int(self.indices[i]))

    def label_set(self, i: int) -> LabelSet | None:
        if self.label_numbers is None:
            return self.source.label_set(int(self.indices[i]))
        number = int(self.label_numbers[i])
        return None if number == ALL else self._label_sets[number]

    @cached_property
    def _label_sets(self) -> list[LabelSet]:
        return list(self.metadata.label_sets)

    def file_numbers(self) -> np.ndarray:
        return self.source.file_numbers()[self.indices]

    def image_folders(self) -> set[tuple[str, str]]:
        return self.source.image_folders()

    def origin(self) -> Records:
        return self.source.origin()

    def open_here(self) -> None:
        self.source.open_here()


def select_all(records: Records, **metadata: Any) -> Selection:
    """A selection of all records, with other fields of their metadata."""
    if isinstance(records, Selection):
        return replace(records, metadata=replace(records.metadata, **metadata))
    return Selection(records, np.arange(len(records)), replace(records.metadata, **metadata))


def select(records: Records, indices: np.ndarray) -> Selection:
    """The records at `indices`, (N,) int64."""
    whole = select_all(records)
    part = replace(whole, indices=whole.indices[indices])
    if whole.parts is not None:
        part.parts = whole.parts._replace(numbers=whole.parts.numbers[indices])
    if whole.label_numbers is not None:
        part.label_numbers = whole.label_numbers[indices]
    if whole.metadata.unlisted:
        names = {part.name(i) for i in range(len(part))}
        unlisted = tuple(name for name in whole.metadata.unlisted if name in names)
        part.metadata = replace(whole.metadata, unlisted=unlisted)
    return part


def divide(records: Records, indices: np.ndarray, parts: Parts, **metadata: Any) -> Selection:
    """Parts of the records at `indices`, (N,) int, with other fields of their metadata."""
    divided = Selection(records, indices, replace(records.metadata, **metadata), parts)
    unlisted = set(records.metadata.unlisted)
    if unlisted:
        numbers = [i for i, index in enumerate(indices.tolist()) if records.name(index) in unlisted]
        divided.metadata = replace(divided.metadata, unlisted=tuple(map(divided.name, numbers)))
    return divided


def change(records: Records, key: str, apply: Callable[[Record], Record], **metadata: Any) -> Selection:
    """The records with a change of each when it is read, and with other fields of their metadata."""
    whole = select_all(records, **metadata)
    return replace(whole, changes=(*whole.changes, Change(key, apply)))


def spread_indices(length: int, count: int) -> list[int]:
    """At most `count` indices of a sequence, evenly from its first to its last."""
    return np.unique(np.linspace(0, length - 1, count).astype(int)).tolist()


def annotation_summaries(splits: Iterable[Records]) -> list[AnnotationSummary]:
    """The content of the annotation files of all splits; the two parts of one split share their files."""
    summaries = {id(records.metadata.annotations): records.metadata.annotations for records in splits}
    return [summary for summary in summaries.values() if summary is not None]
