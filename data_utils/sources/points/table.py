"""The points of many images, whatever their format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import PointSource
from data_utils.point_states import ABSENCES, ABSENT, FOUND, PRESENT, UNKNOWN
from runtime.errors import DataError

EMPTY_CELL = 4  # the state of an empty cell, until `--absent` says what it means
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
MAX_COORDINATE = 1e7  # pixels or mm: a point further away is a mistake
SEVERAL_TABLES_MESSAGE = (
    "several animals or persons in an image are not supported: give each an image of its own, or each point a name of"
    " its own"
)
NOTE = re.compile(r"presence (?P<presence>\S+) confidence (?P<confidence>\S+)$")


class Certainty(NamedTuple):
    """How sure a model is of a point that it has predicted: two numbers from 0 to 1.

    Args:
        confidence: that the point is where it is predicted.
        presence: that the point is in the image.
    """

    confidence: float
    presence: float

    @property
    def is_found(self) -> bool:
        """Whether the model says that the point is there."""
        return self.presence >= FOUND


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

    @property
    def note(self) -> str:
        """The certainty in words, for formats without columns of their own; empty if the point is not predicted."""
        if self.certainty is None:
            return ""
        return f"presence {self.certainty.presence:.6f} confidence {self.certainty.confidence:.6f}"


UNKNOWN_POINT = Point(UNKNOWN)


@dataclass
class ImagePoints:
    """The points of an image by name, the file that lists them, and (H, W) of the image if the file has it."""

    file: str
    image: str
    size: tuple[int, int] | None = None
    points: dict[str, Point] = field(default_factory=dict)

    def add(self, name: str, state: int, position: Sequence[float] = (), certainty: Certainty | None = None) -> None:
        """Add a point; if it is predicted, the presence in its certainty decides whether it is there.

        A point that is predicted to be absent yields to one of its name, which a person has placed since. Raises
        DataError if the image has two other points of this name.
        """
        if name in self.points:
            if certainty is not None and not certainty.is_found:
                return
            earlier = self.points[name].certainty
            if earlier is None or earlier.is_found:
                raise DataError(f"{self.file}: {self.image} has two points {name!r}; {SEVERAL_TABLES_MESSAGE}")
        if certainty is not None:
            state = PRESENT if certainty.is_found else ABSENT
        if state != PRESENT and certainty is None:
            position = ()
        self.points[name] = Point(state, tuple(position), certainty)


@dataclass(frozen=True, eq=False)
class PointTable:
    """The points that files of one format list.

    Args:
        layout: the format, one of `files.FORMATS`.
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
            names = dict.fromkeys(chain.from_iterable(entry.points for entry in self.entries))
            object.__setattr__(self, "names", tuple(names))

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the images in the files."""
        return tuple(entry.image for entry in self.entries)

    @property
    def files(self) -> tuple[str, ...]:
        """The file that lists each image."""
        return tuple(entry.file for entry in self.entries)

    def points(self, row: int) -> dict[str, Point]:
        """The K points of an image by their names."""
        return {name: self.entries[row].points.get(name, UNKNOWN_POINT) for name in self.names}

    @cached_property
    def all_points(self) -> list[Point]:
        """The points of all images, one image after another."""
        points: list[Point] = []
        for row in range(len(self.entries)):
            points += self.points(row).values()
        return points

    @cached_property
    def states(self) -> np.ndarray:
        """(N, K) int64: unknown, absent, present or EMPTY_CELL."""
        states = np.array([point.state for point in self.all_points], np.int64)
        return states.reshape(len(self.entries), len(self.names))

    @cached_property
    def positions(self) -> np.ndarray:
        """(N, K, axes) float64, (x, y) or (x, y, z); zeros where a point has none."""
        nowhere = (0.0,) * self.axes
        positions = np.array([point.position or nowhere for point in self.all_points], np.float64)
        return positions.reshape(*self.states.shape, self.axes)

    @property
    def is_predicted(self) -> bool:
        """Whether a model has predicted the points."""
        return any(point.certainty for point in self.all_points)

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
    return tuple(dict.fromkeys(chain.from_iterable(table.names for table in tables)))


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


def read_certainty(confidence: object, presence: object, location: str) -> Certainty | None:
    """The certainty of a point in a file; None unless both of its numbers stand there."""
    if confidence in (None, "") or presence in (None, ""):
        return None
    return Certainty(number(confidence, location), number(presence, location))


def read_note(text: object, location: str) -> Certainty | None:
    """The certainty from the end of a text that `Point.note` has made; None for other texts."""
    match = NOTE.search(str(text))
    return match and read_certainty(match["confidence"], match["presence"], location)


def count_states(states: np.ndarray) -> dict[str, np.ndarray]:
    """Kind of state -> for each point, how many of its states (N, K) are of that kind."""
    kinds = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
    return {name: (states == state).sum(axis=0) for name, state in kinds.items()}
