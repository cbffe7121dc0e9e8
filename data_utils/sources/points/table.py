"""The points of many images, whatever their format, and the records made from them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.config import LANDMARKS
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.point_states import ABSENCES, ABSENT, FOUND, PRESENT, UNKNOWN
from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.files import FileRecords, FileRow, Sources
from data_utils.sources.pairs import FIRST_CHANNEL, Hint, open_rows, split_paths
from data_utils.sources.records import LandmarkNames, Metadata
from runtime.errors import DataError

EMPTY_CELL = 4  # the state of an empty cell, until `--absent` says what it means
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
MAX_COORDINATE = 1e7  # pixels or mm: a point further away is a mistake
SEVERAL_TABLES_MESSAGE = (
    "several animals or persons in an image are not supported: give each an image of its own, or each point a name of"
    " its own"
)
NOTE = re.compile(r"presence (\S+) confidence (\S+)$")


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
        position: (x, y) or (x, y, z); empty for a point that is not present, unless it is predicted.
        certainty: for predictions only.
    """

    state: int
    position: tuple[float, ...] = ()
    certainty: Certainty | None = None


UNLISTED = Point(UNKNOWN)


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
        if state != PRESENT and certainty is None:
            position = ()
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
        layout: the format, one of `tasks.landmarks.loss.LAYOUTS`.
        axes: the number of axes, 2 or 3.
        entries: the points of N images.
        space: "pixels", "pixels from the bottom", or "LPS" or "RAS" for mm.
        names: the names of the K points; empty for all in the order in which they are mentioned.
    """

    layout: str
    axes: int
    entries: Sequence[ImagePoints]
    space: str = "pixels"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            names: dict[str, None] = {}
            for entry in self.entries:
                names |= dict.fromkeys(entry.points)
            object.__setattr__(self, "names", tuple(names))

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the images in the files."""
        return tuple(entry.image for entry in self.entries)

    @property
    def files(self) -> tuple[str, ...]:
        """The file that lists each image."""
        return tuple(entry.file for entry in self.entries)

    def points(self, row: int) -> list[Point]:
        """The K points of an image."""
        return [self.entries[row].points.get(name, UNLISTED) for name in self.names]

    @cached_property
    def states(self) -> np.ndarray:
        """(N, K) int64: unknown, absent, present or EMPTY_CELL."""
        states: list[int] = []
        for row in range(len(self.entries)):
            states += [point.state for point in self.points(row)]
        return np.array(states, np.int64).reshape(len(self.entries), len(self.names))

    @cached_property
    def positions(self) -> np.ndarray:
        """(N, K, axes) float64, (x, y) or (x, y, z); zeros where a point has none."""
        nowhere = (0.0,) * self.axes
        positions: list[tuple[float, ...]] = []
        for row in range(len(self.entries)):
            positions += [point.position or nowhere for point in self.points(row)]
        return np.array(positions, np.float64).reshape(*self.states.shape, self.axes)

    @property
    def is_predicted(self) -> bool:
        """Whether a model has predicted the points."""
        points = chain.from_iterable(entry.points.values() for entry in self.entries)
        return any(point.certainty for point in points)

    def with_names(self, names: Sequence[str]) -> PointTable:
        """The table with only these names, in their order; points that the table lacks are unknown."""
        return replace(self, names=tuple(names))

    def source(self, row: int) -> PointSource:
        """The points of an image."""
        entry = self.entries[row]
        return PointSource(entry.file, self.space, self.positions[row], self.states[row], entry.size)

    def with_absence(self, absent: str | None) -> PointTable:
        """The table whose empty cells have the meaning of `--absent`."""
        state = ABSENCES[absent or "unknown"]
        entries: list[ImagePoints] = []
        for entry in self.entries:
            filled = {name: Point(state) for name, point in entry.points.items() if point.state == EMPTY_CELL}
            entries.append(replace(entry, points=entry.points | filled))
        return replace(self, entries=entries)


def all_names(tables: Iterable[PointTable]) -> tuple[str, ...]:
    """The names of the points of several tables, in the order in which they are mentioned."""
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(table.names)
    return tuple(names)


def join_tables(tables: Sequence[PointTable]) -> PointTable:
    """The points of several files of one format, with the names of all; raises DataError if the files do not match."""
    first = tables[0]
    entries: list[ImagePoints] = []
    for table in tables:
        if (table.axes, table.space) != (first.axes, first.space):
            raise DataError(
                f"{first.files[0]} lists points of {first.axes} axes in {first.space}, {table.files[0]} of"
                f" {table.axes} axes in {table.space}; they must agree"
            )
        entries += table.entries
    return PointTable(first.layout, first.axes, entries, first.space, all_names(tables))


def with_point(text: str) -> str:
    """A number with a point for a comma, as in 121,9; any other text as it is."""
    return text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text.strip()) else text


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
    if certainty is None:
        return ""
    return f"presence {certainty.presence:.6f} confidence {certainty.confidence:.6f}"


def read_note(text: str, location: str) -> Certainty | None:
    """The certainty from the end of a text that `written_note` has made; None for other texts."""
    match = NOTE.search(text)
    if match is None:
        return None
    presence, confidence = (number(cell, location) for cell in match.groups())
    return Certainty(confidence, presence)


def point_sources(row: FileRow, space: str, dims: int) -> Sources:
    """An image, maybe inside a file of labelme, or a volume; and its points."""
    entry = json.loads(row.entry)
    positions = np.array(entry["positions"], np.float64).reshape(-1, dims)
    size = entry["size"] and (entry["size"][0], entry["size"][1])
    points = PointSource(row.targets[0], space, positions, np.array(entry["states"], np.int64), size)
    if dims == 3:
        return VolumeFile(row.images), points
    (image,) = row.images
    return LabelmeImage(image) if image.lower().endswith(".json") else image, points


def open_points(
    table: PointTable,
    paths: Sequence[str],
    unpaired: Sequence[str],
    location: Path,
    absent: str | None,
    allow_unpaired: bool,
    hint: Hint | None = None,
) -> FileRecords:
    """Images, or volumes, and their points.

    Args:
        table: the points; row i belongs to record i.
        paths: the file of each image.
        unpaired: a line for each image that is not there.
        location: what an error names.
        absent: the meaning of an empty cell of the table, as in `--absent`.
        hint: makes the end of the error.

    Raises DataError for such images, unless they are allowed.
    """
    folder, _ = split_paths(paths)
    files_folder, targets = split_paths(table.files)
    whole = table.with_absence(absent)
    rows: list[FileRow] = []
    for index, (path, target, entry) in enumerate(zip(paths, targets, whole.entries, strict=True)):
        files = channel_files(path) if table.axes == 3 else (path,)
        names = tuple(os.path.relpath(file, folder) for file in files)
        positions, states = whole.positions[index].tolist(), whole.states[index].tolist()
        content = {"size": entry.size, "positions": positions, "states": states}
        rows.append(FileRow(names[0], names, (target,), entry=json.dumps(content).encode()))
    empty = int((table.states == EMPTY_CELL).sum()) if absent is None else 0
    landmarks = LandmarkNames(table.names, table.layout, table.space, empty)
    metadata = Metadata(dims=table.axes, landmarks=landmarks, task=LANDMARKS)
    folders = (folder, files_folder)
    sources = (point_sources, table.space, table.axes)
    return open_rows(folders, rows, unpaired, metadata, allow_unpaired, *sources, location=location, hint=hint)


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
