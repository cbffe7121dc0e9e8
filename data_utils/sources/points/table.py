"""The points of many images, whatever their format, and the records made from them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.files import FileRecords, FileRow, Files, Sources
from data_utils.sources.records import LandmarkNames, Metadata, Record
from runtime.cache import digest, digest_of_files
from runtime.errors import DataError
from tasks.landmarks import Landmarks
from tasks.point_scores import FOUND
from tasks.points import ABSENCES, ABSENT, PRESENT, UNKNOWN

EMPTY_CELL = 4  # the state of an empty cell, until `--absent` says what it means
MAX_COORDINATE = 1e7  # pixels or mm: a point further away is a mistake
SEVERAL_TABLES_MESSAGE = (
    "several animals or persons in an image are not supported: give each an image of its own, or each point a name of"
    " its own"
)
NOTE = re.compile(r"presence (\S+) confidence (\S+)$")
FIRST_CHANNEL = "_0000"  # the end of the name of a volume's file, after the name of the case


class Certainty(NamedTuple):
    """How sure a model is of a point that it has predicted: two numbers from 0 to 1.

    Args:
        confidence: that the point is where it is predicted.
        presence: that the point is in the image.
    """

    confidence: float
    presence: float


class Point(NamedTuple):
    """A point of an image.

    Args:
        state: unknown, absent, present or EMPTY_CELL.
        position: (x, y) or (x, y, z); empty if it has none.
        certainty: for predictions only.
    """

    state: int
    position: tuple[float, ...] = ()
    certainty: Certainty | None = None


@dataclass
class ImagePoints:
    """The points of an image by name, the file that lists them, and (H, W) of the image if the file has it."""

    file: str
    image: str
    size: tuple[int, int] | None = None
    points: dict[str, Point] = field(default_factory=dict)

    def add(self, name: str, state: int, position: Sequence[float] = (), certainty: Certainty | None = None) -> None:
        """Add a point; if it is predicted, the presence in its certainty decides whether it is there.

        Raises DataError if the image has a point of this name already.
        """
        if name in self.points:
            raise DataError(f"{self.file}: {self.image} has two points {name!r}; {SEVERAL_TABLES_MESSAGE}")
        if certainty is not None:
            state = PRESENT if certainty.presence >= FOUND else ABSENT
        self.points[name] = Point(state, tuple(position), certainty)


class PointFileFormat(NamedTuple):
    """A format of points.

    Args:
        extension: the end of the names of files that are written.
        holds_several: whether a file holds the points of several images.
        read: returns the points of a file; None if it holds something else.
        write: returns the content of a file.
    """

    extension: str
    holds_several: bool
    read: Callable[[Path], PointTable | None]
    write: Callable[[PointTable], str]


@dataclass(frozen=True, eq=False)
class PointTable:
    """The points that files of one format list.

    Args:
        layout: the format, one of `tasks.landmarks.LAYOUTS`.
        names: the names of the K points.
        images: the names of the N images in the files.
        positions: (N, K, n) float64, (x, y) or (x, y, z); zeros where a point has none.
        states: (N, K) int64: unknown, absent, present or EMPTY_CELL.
        files: the file that lists each image.
        space: "pixels", "pixels from the bottom", or "LPS" or "RAS" for mm.
        presence, confidence: (N, K), for predictions only.
        sizes: (N, 2), height and width of the image that the points are made for; 0 if a file has no size.
    """

    layout: str
    names: tuple[str, ...]
    images: tuple[str, ...]
    positions: np.ndarray
    states: np.ndarray
    files: tuple[str, ...]
    space: str = "pixels"
    presence: np.ndarray | None = None
    confidence: np.ndarray | None = None
    sizes: np.ndarray | None = None

    @classmethod
    def of_images(
        cls, layout: str, axes: int, entries: Iterable[ImagePoints], space: str = "pixels", names: Sequence[str] = ()
    ) -> PointTable:
        """The points of images as arrays; their names are `names`, or all in the order in which they are mentioned."""
        entries = list(entries)
        if not names:
            mentioned: dict[str, None] = {}
            for entry in entries:
                mentioned |= dict.fromkeys(entry.points)
            names = tuple(mentioned)
        columns = {name: column for column, name in enumerate(names)}
        positions = np.zeros((len(entries), len(names), axes))
        states = np.full(positions.shape[:2], UNKNOWN, np.int64)
        certainties = np.zeros((*positions.shape[:2], 2))
        is_predicted = False
        for row, entry in enumerate(entries):
            for name, point in entry.points.items():
                if name not in columns:
                    continue
                states[row, columns[name]] = point.state
                if point.position:
                    positions[row, columns[name]] = point.position
                if point.certainty is not None:
                    certainties[row, columns[name]] = point.certainty
                    is_predicted = True
        images = tuple(entry.image for entry in entries)
        files = tuple(entry.file for entry in entries)
        table = cls(layout, tuple(names), images, positions, states, files, space)
        if any(entry.size for entry in entries):
            table = replace(table, sizes=np.array([entry.size or (0, 0) for entry in entries], np.int64))
        if is_predicted:
            table = replace(table, confidence=certainties[:, :, 0], presence=certainties[:, :, 1])
        return table

    @property
    def axes(self) -> int:
        """The number of axes, 2 or 3."""
        return self.positions.shape[-1]

    def entries(self) -> list[ImagePoints]:
        """The points of each image, all names in their order; only present and predicted points have a position."""
        entries: list[ImagePoints] = []
        for row, image in enumerate(self.images):
            entry = ImagePoints(self.files[row], image, self.source(row).size)
            for column, name in enumerate(self.names):
                state = int(self.states[row, column])
                certainty: Certainty | None = None
                if self.presence is not None and self.confidence is not None:
                    certainty = Certainty(float(self.confidence[row, column]), float(self.presence[row, column]))
                has_place = state == PRESENT or certainty is not None
                position = self.positions[row, column].tolist() if has_place else ()
                entry.points[name] = Point(state, tuple(position), certainty)
            entries.append(entry)
        return entries

    def with_names(self, names: Sequence[str]) -> PointTable:
        """The table with only these names, in their order; points that the table lacks are unknown."""
        if tuple(names) == self.names:
            return self
        return PointTable.of_images(self.layout, self.axes, self.entries(), self.space, names)

    def rows(self, rows: Sequence[int]) -> PointTable:
        """The table of some of the images, without presence and confidence."""
        return replace(
            self,
            images=tuple(self.images[row] for row in rows),
            positions=self.positions[list(rows)],
            states=self.states[list(rows)],
            files=tuple(self.files[row] for row in rows),
            presence=None,
            confidence=None,
            sizes=None if self.sizes is None else self.sizes[list(rows)],
        )

    def rename_images(self, images: Sequence[str]) -> PointTable:
        """The table with other names of its images."""
        return replace(self, images=tuple(images))

    def source(self, row: int) -> PointSource:
        """The points of an image."""
        size: tuple[int, int] | None = None
        if self.sizes is not None and self.sizes[row].all():
            height, width = self.sizes[row].tolist()
            size = height, width
        return PointSource(self.files[row], self.space, self.positions[row], self.states[row], size)

    def with_absence(self, absent: str | None) -> PointTable:
        """The table whose empty cells have the meaning of `--absent`."""
        states = np.where(self.states == EMPTY_CELL, ABSENCES[absent or "unknown"], self.states)
        return replace(self, states=states)


def all_names(tables: Iterable[PointTable]) -> tuple[str, ...]:
    """The names of the points of several tables, in the order in which they are mentioned."""
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(table.names)
    return tuple(names)


def join_tables(tables: Sequence[PointTable]) -> PointTable:
    """The points of several files of one format, with the names of all; raises DataError if the files do not match."""
    first = tables[0]
    if len(tables) == 1:
        return first
    entries: list[ImagePoints] = []
    for table in tables:
        if (table.axes, table.space) != (first.axes, first.space):
            raise DataError(
                f"{first.files[0]} lists points of {first.axes} axes in {first.space}, {table.files[0]} of"
                f" {table.axes} axes in {table.space}; they must agree"
            )
        entries += table.entries()
    return PointTable.of_images(first.layout, first.axes, entries, first.space, all_names(tables))


def number(text: object, location: str) -> float:
    """A coordinate. Raises DataError, with `location`, unless it is a finite number below MAX_COORDINATE."""
    try:
        value = float(text)  # type: ignore[arg-type]  # raises for other texts
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{location}: {str(text)[:40]!r} is no coordinate") from error
    if not math.isfinite(value) or abs(value) > MAX_COORDINATE:
        raise DataError(f"{location}: coordinate {str(text)[:40]} is not within {MAX_COORDINATE:,.0f}")
    return value


def read_position(coordinates: object, axes: int, location: str) -> list[float]:
    """A position from a list of JSON. Raises DataError, with `location`, unless it holds so many coordinates."""
    if not isinstance(coordinates, list) or len(coordinates) != axes:
        raise DataError(f"{location}: its position is {str(coordinates)[:60]}, expected {axes} numbers")
    return [number(side, location) for side in coordinates]


def said_size(height: object, width: object) -> tuple[int, int] | None:
    """(H, W) of an image from the entries of a file, which may be missing or not a size."""
    if isinstance(height, int) and isinstance(width, int) and 0 < height <= MAX_COORDINATE >= width > 0:
        return height, width
    return None


def written_note(certainty: Certainty | None) -> str:
    """The certainty of a predicted point in words, for formats without columns of their own; else empty."""
    return "" if certainty is None else f"presence {certainty.presence:.6f} confidence {certainty.confidence:.6f}"


def read_note(text: str, location: str) -> Certainty | None:
    """The certainty from the end of a text that `written_note` has made; None for other texts."""
    match = NOTE.search(text)
    if match is None:
        return None
    presence, confidence = (number(cell, location) for cell in match.groups())
    return Certainty(confidence, presence)


def volume_sources(paths: Files, targets: Files) -> Sources:
    """A volume; its points come from elsewhere."""
    return VolumeFile(paths), ""


def image_sources(paths: Files, targets: Files) -> Sources:
    """An image, maybe inside a file of labelme; its points come from elsewhere."""
    (path,) = paths
    return LabelmeImage(path) if path.lower().endswith(".json") else path, ""


class PointRecords(FileRecords):
    """Images and their points.

    Args:
        table: the points; row i belongs to record i.
        paths: the file of each image.
        absent: the meaning of an empty cell of the table, as in `--absent`.
        unpaired: the files that were left out, a line for each.

    Attributes:
        empty: how many cells of the table are empty.
    """

    def __init__(
        self,
        table: PointTable,
        paths: Sequence[str],
        *,
        absent: str | None = None,
        unpaired: Sequence[str] = (),
        dims: int = 2,
    ) -> None:
        landmarks = LandmarkNames(table.names, table.layout, table.space)
        metadata = Metadata(unpaired=tuple(unpaired), dims=dims, landmarks=landmarks, task=Landmarks.name)
        folder = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))
        rows: list[FileRow] = []
        for path in paths:
            files = channel_files(path) if dims == 3 else (path,)
            names = tuple(os.path.relpath(file, folder) for file in files)
            rows.append(FileRow(names[0], names, ()))
        super().__init__((folder, folder), rows, metadata, volume_sources if dims == 3 else image_sources)
        self.table = table.with_absence(absent)
        self.empty = int((table.states == EMPTY_CELL).sum())
        self.absent = absent

    def __getitem__(self, i: int) -> Record:
        return {**super().__getitem__(i), "target": self.table.source(i)}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the points."""
        table = self.table
        names = repr((table.layout, table.names, table.space)).encode()
        points = b"/".join([names, table.positions.tobytes(), table.states.tobytes()])
        return digest(super().digest, digest_of_files(sorted(set(table.files)), points))


def channel_files(path: str) -> tuple[str, ...]:
    """The files of a volume's channels, CASE_0000, CASE_0001 and so on; for other volumes the only file."""
    stem, channel, ending = path.rpartition(FIRST_CHANNEL)
    paths = [path]
    if not channel or "/" in ending:
        return (path,)
    following = f"{stem}_0001{ending}"
    while os.path.exists(following):
        paths.append(following)
        following = f"{stem}_{len(paths):04}{ending}"
    return tuple(paths)


def count_states(states: np.ndarray) -> dict[str, np.ndarray]:
    """Kind of state -> for each point, how many of its states (N, K) are of that kind."""
    kinds = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
    return {name: (states == state).sum(axis=0) for name, state in kinds.items()}
