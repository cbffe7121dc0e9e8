"""The points of many images, whatever their format, and the records made from them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import ImageSource, PointSource, VolumeFile
from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.records import LandmarkNames, Metadata, Record, Records
from runtime.cache import digest_of_files
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

    @property
    def axes(self) -> int:
        """The number of axes, 2 or 3."""
        return self.positions.shape[-1]

    def with_names(self, names: Sequence[str]) -> PointTable:
        """The table with only these names, in their order; points that the table lacks are unknown."""
        listed_columns = [column for column, name in enumerate(self.names) if name in names]
        columns = [names.index(self.names[column]) for column in listed_columns]
        shape = (len(self.images), len(names))

        def spread(values: np.ndarray, unknown: int = 0) -> np.ndarray:
            spread_values = np.full((*shape, *values.shape[2:]), unknown, values.dtype)
            spread_values[:, columns] = values[:, listed_columns]
            return spread_values

        return replace(
            self,
            names=tuple(names),
            positions=spread(self.positions),
            states=spread(self.states, UNKNOWN),
            presence=None if self.presence is None else spread(self.presence),
            confidence=None if self.confidence is None else spread(self.confidence),
        )

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

    def certainty(self, row: int, column: int) -> Certainty:
        """The certainty of a predicted point."""
        assert self.confidence is not None
        assert self.presence is not None
        return Certainty(float(self.confidence[row, column]), float(self.presence[row, column]))

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


class TableBuilder:
    """Collects points one by one, of images and names in the order in which they are first mentioned."""

    def __init__(self, layout: str, axes: int) -> None:
        self.layout = layout
        self.axes = axes
        self.images: dict[str, str] = {}  # the file that lists each image
        self.names: dict[str, int] = {}
        self.points: dict[tuple[str, str], tuple[int, tuple[float, ...]]] = {}
        self.certainties: dict[tuple[str, str], Certainty] = {}
        self.sizes: dict[str, tuple[int, int]] = {}

    def add_image(self, file: str, image: str, size: tuple[int, int] | None = None) -> None:
        """Add an image, with its size (H, W) if the file has it; the image may have no points."""
        self.images.setdefault(image, file)
        if size is not None:
            self.sizes[image] = size

    def add(
        self,
        file: str,
        image: str,
        name: str,
        state: int,
        position: Sequence[float] = (),
        certainty: Certainty | None = None,
    ) -> None:
        """Add a point; if it is predicted, the presence in its certainty decides whether it is there.

        Raises DataError if the image has a point of this name already.
        """
        self.add_image(file, image)
        self.names.setdefault(name, len(self.names))
        if (image, name) in self.points:
            raise DataError(f"{file}: {image} has two points {name!r}; {SEVERAL_TABLES_MESSAGE}")
        if certainty is not None:
            self.certainties[image, name] = certainty
            state = PRESENT if certainty.presence >= FOUND else ABSENT
        self.points[image, name] = state, tuple(position)

    def table(self, space: str = "pixels") -> PointTable:
        """All points as arrays."""
        rows = {image: row for row, image in enumerate(self.images)}
        positions = np.zeros((len(rows), len(self.names), self.axes))
        states = np.full((len(rows), len(self.names)), UNKNOWN, np.int64)
        for (image, name), (state, position) in self.points.items():
            point = (rows[image], self.names[name])
            states[point] = state
            if position:
                positions[point] = position
        files = tuple(self.images.values())
        table = PointTable(self.layout, tuple(self.names), tuple(rows), positions, states, files, space)
        if self.sizes:
            table = replace(table, sizes=np.array([self.sizes.get(image, (0, 0)) for image in rows], np.int64))
        if not self.certainties:
            return table
        confidence = np.zeros(states.shape)
        presence = np.zeros(states.shape)
        for (image, name), certainty in self.certainties.items():
            point = (rows[image], self.names[name])
            confidence[point] = certainty.confidence
            presence[point] = certainty.presence
        return replace(table, confidence=confidence, presence=presence)


def join_tables(tables: Sequence[PointTable]) -> PointTable:
    """The points of several files of one format, with the names of all; raises DataError if the files do not match."""
    first = tables[0]
    names: dict[str, None] = {}
    for table in tables:
        if (table.axes, table.space) != (first.axes, first.space):
            raise DataError(
                f"{first.files[0]} lists points of {first.axes} axes in {first.space}, {table.files[0]} of"
                f" {table.axes} axes in {table.space}; they must agree"
            )
        names |= dict.fromkeys(table.names)
    whole = [table.with_names(tuple(names)) for table in tables]
    images: list[str] = []
    files: list[str] = []
    for table in whole:
        images += table.images
        files += table.files
    return replace(
        whole[0],
        images=tuple(images),
        positions=np.concatenate([table.positions for table in whole]),
        states=np.concatenate([table.states for table in whole]),
        files=tuple(files),
        presence=_join_arrays([table.presence for table in whole]),
        confidence=_join_arrays([table.confidence for table in whole]),
        sizes=_join_arrays([table.sizes for table in whole]),
    )


def _join_arrays(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The arrays of several tables, one behind the other; None if a table has none."""
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        return None
    return np.concatenate(present)


def number(text: object, location: str) -> float:
    """A coordinate. Raises DataError, with `location`, unless it is a finite number below MAX_COORDINATE."""
    try:
        value = float(text)  # type: ignore[arg-type]  # raises for other texts
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{location}: {str(text)[:40]!r} is no coordinate") from error
    if not math.isfinite(value) or abs(value) > MAX_COORDINATE:
        raise DataError(f"{location}: coordinate {str(text)[:40]} is not within {MAX_COORDINATE:,.0f}")
    return value


def said_size(height: object, width: object) -> tuple[int, int] | None:
    """(H, W) of an image from the entries of a file, which may be missing or not a size."""
    if (
        isinstance(height, int)
        and isinstance(width, int)
        and 0 < min(height, width) <= max(height, width) <= MAX_COORDINATE
    ):
        return height, width
    return None


def written_note(certainty: Certainty) -> str:
    """The certainty of a predicted point in words, for formats without columns of their own."""
    return f"presence {certainty.presence:.6f} confidence {certainty.confidence:.6f}"


def read_note(text: str, location: str) -> Certainty | None:
    """The certainty from the end of a text that `written_note` has made; None for other texts."""
    match = NOTE.search(text)
    if match is None:
        return None
    presence, confidence = (number(cell, location) for cell in match.groups())
    return Certainty(confidence, presence)


class PointRecords(Records):
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
        self.table = table.with_absence(absent)
        self.empty = int((table.states == EMPTY_CELL).sum())
        self.absent = absent
        self.metadata = Metadata(
            unpaired=tuple(unpaired),
            dims=dims,
            landmarks=LandmarkNames(table.names, table.layout, table.space),
            task=Landmarks.name,
        )
        self.folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        # bytes in an array, as in FolderRecords
        self.names = np.array([os.fsencode(os.path.relpath(path, self.folder)) for path in paths])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Record:
        name = os.fsdecode(self.names[i].item())
        path = os.path.join(self.folder, name)
        image: ImageSource = path
        if self.dims == 3:
            image = VolumeFile(channel_files(path))
        elif path.lower().endswith(".json"):
            image = LabelmeImage(path)
        return {"image": image, "target": self.table.source(i), "name": name}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the points."""
        table = self.table
        paths: list[str] = []
        for name in self.names.tolist():
            paths += channel_files(os.path.join(self.folder, os.fsdecode(name)))
        layout = repr((table.layout, table.names, table.space, self.dims)).encode()
        content = b"/".join([layout, table.positions.tobytes(), table.states.tobytes(), *self.names])
        return digest_of_files([*paths, *sorted(set(table.files))], content)


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
