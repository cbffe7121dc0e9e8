"""The table of a data set: rows, wherever they come from, and the records of a split that are read from them."""

import os
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from data_utils.class_names import NamedClasses
from data_utils.image_io.formats import ImageSource
from runtime.cache import digest, size_and_time
from runtime.redact import printable, redact

LabelSet = tuple[str, ...]  # names of the classes that an image is labeled for, sorted
ALL = -1  # the number of a label set of all classes
UNLISTED = -2  # the same, of an image that is missing in a list of label sets
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
        task: the only task that the targets can be read for; None if the task depends on their content.
        bands: the names of the bands that images are made of, if each band is a file; else empty.
        block_side: the pixels of a side of the blocks of `--val-blocks`; 0 if there are none.
        annotations: the format of the annotation files; None if masks are files.
        left_out: a line for each kind of files that a data set of DICOM holds beside those that are used.
    """

    classes: NamedClasses = ()
    unpaired: tuple[str, ...] = ()
    dims: int = 2
    modality: str | None = None
    landmarks: LandmarkNames | None = None
    label_sets: Mapping[LabelSet, str] = field(default_factory=dict)
    task: str | None = None
    bands: tuple[str, ...] = ()
    block_side: int = 0
    annotations: str | None = None
    left_out: tuple[str, ...] = ()


class Rows(ABC):
    """Rows of a source by index, each of which is a record.

    Attributes:
        digest: a key of the content of all files; None if nothing can be cached under it.
        group_sizes: (G,) how many consecutive rows of a stream are read together; None if each is read alone.
        image_folders: pairs of the images' folder and each folder below it with images; empty unless they are files.
    """

    digest: str | None = None
    group_sizes: np.ndarray | None = None
    image_folders: Collection[tuple[str, str]] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, i: int) -> Record: ...

    def name(self, i: int) -> str:
        """The name of a record; its pictures are not read if that can be avoided."""
        return self[i]["name"]

    def listed_name(self, i: int) -> str:
        """The name of a record with the folders that its file of annotations lists."""
        return self.name(i)


class ListRows(Rows):
    """Records that are in memory."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)

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


RowSources = Callable[[FileRow], Sources]  # makes image and target of a row


def first_files(row: FileRow) -> Sources:
    """Files that are read as they are."""
    return row.images[0], row.targets[0]


class FileRows(Rows):
    """Rows whose images and targets are local files.

    The table is one array of bytes: a million Python strings would be copied, page by page, into every loader process
    as their reference counts change.

    Args:
        folders: that of the images, and that of the targets.
        sources: makes image and target of a row whose files are paths; a function, or a `partial` with its options as
            keywords.

    Attributes:
        table: (B,) uint8, what the rows are made by, and the rows one after another, of each its entry, name, listed
            name, number of images, images and targets, as bytes between zeros, which no name of a file holds.
        ends: (N + 1,) int64, where the rows begin and end.
        sizes: (F,) int, the bytes of each file, row by row; -1 for one that is not there. Files that a row shares
            with the row before count once.
    """

    def __init__(self, folders: tuple[Path, Path], rows: Iterable[FileRow], sources: RowSources) -> None:
        self.folders = str(folders[0]), str(folders[1])
        self.prefixes = tuple(os.path.join(folder, "") for folder in self.folders)
        above_images, above_targets = self.prefixes
        table = bytearray(_text(sources).encode())
        ends = array("q", [len(table)])
        folders_below: set[str] = set()
        sizes_and_times = array("q")
        earlier_targets: Files = ()
        for name, images, targets, listed, entry in rows:
            cells = (name, listed, str(len(images)), *images, *targets)
            table += entry + b"\0" + os.fsencode("\0".join(cells))
            ends.append(len(table))
            for file in filter(None, images):
                sizes_and_times.extend(size_and_time(above_images + file))
            if targets != earlier_targets:
                earlier_targets = targets
                for file in filter(None, targets):
                    sizes_and_times.extend(size_and_time(above_targets + file))
            if images:
                folders_below.add(os.path.dirname(images[0]))
        self.image_folders = {(self.folders[0], below) for below in folders_below}
        # arrays are sent to other processes without copies
        self.table = np.frombuffer(table, np.uint8)
        self.ends = np.frombuffer(ends, np.int64)
        sizes = np.frombuffer(sizes_and_times, np.int64)[::2]
        self.sizes = sizes.astype(np.min_scalar_type(~sizes.max(initial=0)))  # ~: one with a sign, for -1
        self.sources = sources
        # a key of the names, sizes and times of all files, and of what is made from them
        self.digest = digest(table, memoryview(sizes_and_times))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: int) -> Record:
        """The record that `sources` makes of a row: an image that is not there is left out, such a target is ""."""
        entry, *cells = self._cells(i)
        name, listed, count, *files = map(os.fsdecode, cells)
        above_images, above_targets = self.prefixes
        images = [above_images + file for file in files[: int(count)] if file]
        targets = [file and above_targets + file for file in files[int(count) :]]
        row = FileRow(name, tuple(images), tuple(targets), listed, entry)
        image, target = self.sources(row)
        return {"image": image, "target": target, "name": name}

    def _cells(self, i: int) -> list[bytes]:
        """The entry of a row, its name, listed name, number of images, images and targets."""
        return self.table[self.ends[i] : self.ends[i + 1]].tobytes().split(b"\0")

    def name(self, i: int) -> str:
        return os.fsdecode(self._cells(i)[1])

    def listed_name(self, i: int) -> str:
        _, name, listed, *_ = self._cells(i)
        return os.fsdecode(listed or name)


def _text(sources: RowSources) -> str:
    """The name of a function and its options, as a part of keys."""
    if isinstance(sources, partial):
        return repr((sources.func.__name__, tuple(sources.keywords.values())))
    return repr((sources.__name__, ()))


class StreamRows(Rows):
    """Rows of files that stay where they are. Rows of one group are cheap to read together.

    Args:
        files: URL or path of each file; files may change unnoticed.
        groups: (G, ...) int64, the groups in order: first the index of the file, last the number of rows.
        columns: where the pictures of a row are.

    Attributes:
        ends: (G,) int64, the index behind the last row of each group.
        open_groups: how many groups are kept in memory.
        is_scattered: whether rows are asked for in an order that ignores groups; each is then read alone if possible.
    """

    group_sizes: np.ndarray

    def __init__(self, files: Sequence[str], groups: np.ndarray, columns: Any) -> None:
        self.files = files
        self.groups = groups
        self.columns = columns
        self.group_sizes = groups[:, -1]
        self.ends = np.cumsum(self.group_sizes)
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
        """The group of a row, and the row's index in the group."""
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        group = int(np.searchsorted(self.ends, i, side="right"))
        return group, int(i - self.ends[group] + self.group_sizes[group])

    def _group_content(self, group: int) -> Any:
        """The content of a group; the groups used last are kept in memory."""
        with self._lock:  # rows are asked for in threads
            if group not in self._read:
                while len(self._read) >= self.open_groups:
                    self._read.popitem(last=False)
                self._read[group] = self._read_group(group)
            self._read.move_to_end(group)
            return self._read[group]

    @abstractmethod
    def _read_group(self, group: int) -> Any:
        """Read all rows of a group at once."""

    def subset(self, is_chosen: np.ndarray) -> "StreamRows":
        """The rows of the groups that `is_chosen`, (G,) bool, marks."""
        return type(self)(self.files, self.groups[is_chosen], self.columns)


class Step(NamedTuple):
    """What is done to each record when it is read.

    Args:
        key: tells different steps apart.
        apply: makes another record of a record; or, of a record and numbers, a part of it with a name of its own.
        numbers: (N, n) int, which part of its record each is: a page of files, a slice of a volume, a window of a
            scene; None if records stay whole. Each kind of part has its own numbers.
    """

    key: str
    apply: Callable[..., Record]
    numbers: np.ndarray | None = None

    def read(self, i: int, record: Record) -> Record:
        """What the step makes of record `i`."""
        if self.numbers is None:
            return self.apply(record)
        return self.apply(record, self.numbers[i].tolist())


@dataclass(eq=False)
class Records:
    """A sequence of records: rows of a table in any order, or parts of them, each changed when it is read.

    Args:
        rows: the table.
        metadata: what holds for all records.
        indices: (N,) int64, the row of each record; None for all rows in their order.
        label_numbers: (N,) int32, the index of each record's set among `metadata.label_sets`, or ALL, or UNLISTED; None
            if all are labeled for all classes.
        steps: what is done to each record, in this order.
    """

    rows: Rows
    metadata: Metadata = field(default_factory=Metadata)
    indices: np.ndarray = None  # type: ignore[assignment]  # an array once it is made
    label_numbers: np.ndarray | None = None
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if self.indices is None:
            self.indices = np.arange(len(self.rows))

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.metadata.dims

    @property
    def image_kind(self) -> str:
        """What one of its images is called in messages."""
        return "volume" if self.dims == 3 else "image"

    @property
    def is_stream(self) -> bool:
        """Whether records are read one behind the other, from files that may be far away."""
        return self.rows.group_sizes is not None

    @cached_property
    def digest(self) -> str | None:
        """A key of the content of all files, and of what is made of them; None if nothing can be cached under it."""
        if self.rows.digest is None:
            return None
        keys: list[object] = [self.metadata.classes, self.metadata.landmarks, self.indices.tobytes()]
        for step in self.steps:
            keys.append(step.key)
            if step.numbers is not None:
                keys.append(step.numbers.tobytes())
        if self.label_numbers is not None:
            keys += [list(self.metadata.label_sets), self.label_numbers.tobytes()]
        return digest(self.rows.digest, *keys)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Record:
        record = self.rows[int(self.indices[i])]
        labeled = self.label_set(i)
        if labeled is not None:
            record = {**record, "labeled": labeled}
        for step in self.steps:
            record = step.read(i, record)
        return record

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    def name(self, i: int) -> str:
        """The name of a record; its pictures are not read if that can be avoided."""
        row = int(self.indices[i])
        cuts = [step for step in self.steps if step.numbers is not None]
        if not cuts:
            return self.rows.name(row)
        record = self.rows[row]
        for step in cuts:  # other steps keep the name, and may open files
            record = step.read(i, record)
        return record["name"]

    def shown_name(self, i: int) -> str:
        """The name of a record as it is written in lists of images, on one line."""
        return printable(redact(self.name(i)))

    def listed_name(self, i: int) -> str:
        """The name of a whole record with the folders that its file of annotations lists."""
        return self.rows.listed_name(int(self.indices[i]))

    def label_set(self, i: int) -> LabelSet | None:
        """The classes that an image is labeled for; None if these are all."""
        if self.label_numbers is None or self.label_numbers[i] < 0:
            return None
        return tuple(self.metadata.label_sets)[self.label_numbers[i]]

    @property
    def unlisted(self) -> list[str]:
        """Names of images that are missing in a list of label sets."""
        if self.label_numbers is None:
            return []
        return list(map(self.name, np.flatnonzero(self.label_numbers == UNLISTED).tolist()))

    def pair_sizes(self) -> np.ndarray | None:
        """(N, 2) the bytes of the files of image and target; None if records are something else than two files."""
        rows = self.rows
        if self.steps or not isinstance(rows, FileRows) or rows.sources is not first_files:
            return None
        return rows.sizes.reshape(-1, 2)[self.indices] if len(rows.sizes) == 2 * len(rows) else None


def describe(records: Records, label_numbers: np.ndarray | None = None, **metadata: Any) -> Records:
    """The records with other fields of their metadata, and other label sets if they are given."""
    numbers = records.label_numbers if label_numbers is None else label_numbers
    return replace(records, metadata=replace(records.metadata, **metadata), label_numbers=numbers)


def select(records: Records, indices: np.ndarray) -> Records:
    """The records at `indices`, (N,) int64."""
    steps: list[Step] = []
    for step in records.steps:
        if step.numbers is not None:
            step = step._replace(numbers=step.numbers[indices])
        steps.append(step)
    labels = records.label_numbers
    if labels is not None:
        labels = labels[indices]
    return replace(records, indices=records.indices[indices], label_numbers=labels, steps=tuple(steps))


def divide(
    records: Records,
    indices: np.ndarray,
    numbers: np.ndarray,
    cut: Callable[[Record, Sequence[int]], Record],
    **metadata: Any,
) -> Records:
    """Parts of the records at `indices`, (N,) int, as a `Step` makes them, with other fields of their metadata."""
    step = Step(cut.__name__, cut, numbers)
    whole = select(describe(records, **metadata), indices)
    return replace(whole, steps=(*whole.steps, step))


def change(records: Records, key: str, apply: Callable[[Record], Record], **metadata: Any) -> Records:
    """The records with a change of each when it is read, and with other fields of their metadata."""
    return replace(describe(records, **metadata), steps=(*records.steps, Step(key, apply)))


SplitOpeners = dict[str, Callable[[], Records]]  # a split's name -> a function that opens its records


def split_openers(
    splits: Mapping[str, Sequence[Any]], open_split: Callable[..., Records], *options: object
) -> SplitOpeners:
    """The openers of splits, each of which is opened from where it lies, and from options that all share."""
    return {split: partial(open_split, *location, *options) for split, location in splits.items()}


def spread_indices(length: int, count: int) -> list[int]:
    """At most `count` indices of a sequence, evenly from its first to its last."""
    return np.unique(np.linspace(0, length - 1, count).astype(int)).tolist()
