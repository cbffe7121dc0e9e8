"""Outlines of areas, exactly along the borders of pixels, from rows that come from top to bottom.

An area is a set of pixels of one number that are connected by their sides, as in GDAL's polygonize. Outlines are kept
as their corners: along each row and column of borders the corners come in pairs, the ends of straight lines.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

ROWS = 128  # rows that are outlined at once
# finished areas are searched for after so many new corners, plus as many as the unfinished areas had
MAX_PENDING_CORNERS = 2**17


class Areas(NamedTuple):
    """Some areas with their outlines.

    Args:
        numbers: (A,) the number that the pixels of each area hold.
        ring_counts: (A,) how many rings each area has: its outline, then the outlines of its holes.
        ring_lengths: (R,) how many corners each ring has.
        corners: (N, 2) (column, row), 0 at the corner of the first pixel; clockwise, as the image is seen.
    """

    numbers: np.ndarray
    ring_counts: np.ndarray
    ring_lengths: np.ndarray
    corners: np.ndarray


class Corners(NamedTuple):
    """Corners of outlines, (N,) each.

    Args:
        areas: the area that each corner belongs to.
        numbers: the number that the pixels of that area hold.
        rows, columns: the position of each corner.
        is_on_falling_diagonal: whether the area has a single pixel there, above and left or below and right.
    """

    areas: np.ndarray
    numbers: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    is_on_falling_diagonal: np.ndarray

    def select(self, indices: np.ndarray) -> "Corners":
        """The corners at `indices`, which may also be a boolean mask."""
        return Corners(*[values[indices] for values in self])


class Outliner:
    """Finds the areas of an image that is `width` pixels wide; only outlines of unfinished areas are kept in memory."""

    def __init__(self, width: int) -> None:
        self._next_row = 0
        # the row above the next one, with a pixel of no area at each end, and the areas of its pixels, counted from 1
        self._last_row = np.zeros((1, width + 2), np.uint8)
        self._last_areas = np.zeros(width + 2, np.int64)
        self._area_count = 0
        self._links: list[np.ndarray] = []  # (2, n), pairs of areas that turned out to be one
        self._corners: list[Corners] = []
        self._new_corners = 0  # corners added since the last search for finished areas
        self._open_corners = 0  # corners of the unfinished areas at that search

    def add(self, rows: np.ndarray) -> Iterator[Areas]:
        """Read the next rows (n, W) of integers, 0 for no area; gives the areas that are finished by now."""
        for top in range(0, len(rows), ROWS):
            self._read(rows[top : top + ROWS])
            if self._new_corners > max(MAX_PENDING_CORNERS, self._open_corners):
                yield self._take_areas()

    def finish(self) -> Iterator[Areas]:
        """The remaining areas, after the last row."""
        self._read(np.zeros((1, self._last_row.shape[1] - 2), np.uint8))
        yield self._take_areas()

    def _read(self, rows: np.ndarray) -> None:
        from skimage.measure import label

        window = np.concatenate([self._last_row, np.pad(rows, ((0, 0), (1, 1)))])
        areas, count = label(window, background=0, connectivity=1, return_num=True)
        areas = np.where(areas > 0, areas + self._area_count, 0).astype(np.int32)
        self._area_count += int(count)
        self._links.append(np.unique(np.stack([self._last_areas, areas[0]]), axis=1))
        corners = _corners(window, areas, self._next_row)
        self._corners.append(corners)
        self._new_corners += len(corners.rows)
        self._next_row += len(rows)
        self._last_row = window[-1:]
        self._last_areas = areas[-1]

    def _take_areas(self) -> Areas:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        first, second = np.concatenate(self._links, axis=1)
        nodes = self._area_count + 1
        links = coo_array((np.ones(len(first), bool), (first, second)), shape=(nodes, nodes))
        count, components = connected_components(links, directed=False)
        last_areas = components[self._last_areas]
        is_open = np.zeros(count, bool)
        is_open[last_areas[self._last_areas > 0]] = True
        new_numbers = np.cumsum(is_open, dtype=np.int32)  # areas that are open are numbered anew
        open_corners = []
        finished_corners = []
        while self._corners:  # they are freed one by one, for there may be many
            corners = self._corners.pop()
            areas = components[corners.areas]
            is_unfinished = is_open[areas]
            open_corners.append(corners._replace(areas=new_numbers[areas]).select(is_unfinished))
            finished_corners.append(corners._replace(areas=areas).select(~is_unfinished))
        self._corners = [_concatenate(open_corners)]
        self._last_areas = np.where(self._last_areas > 0, new_numbers[last_areas], 0)
        self._area_count = int(is_open.sum())
        self._links = [np.zeros((2, 0), np.int64)]
        self._open_corners = len(self._corners[0].rows)
        self._new_corners = 0
        return _areas(_concatenate(finished_corners))


def _corners(window: np.ndarray, areas: np.ndarray, row: int) -> Corners:
    """The corners between the rows of a window (n + 1, W + 2) of numbers; `row` is the row of the first ones.

    Where four pixels meet, each has a corner of its area in two cases: it is alone, or the middle of an L of three.

        a b      a a
        c d      a b

    On the left each area has a corner there, unless a pixel beside it belongs to it too. On the right b has one, since
    it is alone, and a has one, recorded for the pixel diagonal to b.
    """
    beside = window[:, :-1] == window[:, 1:]
    below = window[:-1] == window[1:]
    is_straight = (beside[:-1] & beside[1:]) | (below[:, :-1] & below[:, 1:])
    rows, columns = np.nonzero(~is_straight)
    rows = rows.astype(np.int32)
    columns = columns.astype(np.int32)
    # number and area of the four pixels at each such corner
    pixels = []
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        indices = rows + down, columns + right
        pixels.append((window[indices], areas[indices]))
    top_left, top_right, low_left, low_right = pixels
    parts = []
    for pixel, neighbors, is_on_falling_diagonal in (
        (top_left, (top_right, low_left), True),
        (low_right, (top_right, low_left), True),
        (top_right, (top_left, low_right), False),
        (low_left, (top_left, low_right), False),
    ):
        number, area = pixel
        first, second = (neighbor[0] for neighbor in neighbors)
        is_alone = (number > 0) & (number != first) & (number != second)
        is_middle_of_three = (number > 0) & (number == first) & (number == second)  # four alike have no corner
        for is_corner, is_falling in ((is_alone, is_on_falling_diagonal), (is_middle_of_three, False)):
            corners = np.flatnonzero(is_corner)
            part = Corners(area, number, rows + row, columns, np.full(len(rows), is_falling)).select(corners)
            parts.append(part)
    return Corners(*map(np.concatenate, zip(*parts, strict=True)))


def _concatenate(parts: list[Corners]) -> Corners:
    """All corners in one; this empties the list."""
    columns: list[list[np.ndarray]] = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    values = []
    while columns:
        values.append(np.concatenate(columns.pop(0)))
    return Corners(*values)


def _areas(corners: Corners) -> Areas:
    """The areas whose outlines have these corners."""
    corners = corners.select(np.lexsort((corners.columns, corners.rows, corners.areas)))
    count = len(corners.rows)
    index_type = np.int32 if count < 2**31 else np.int64
    # In this order a line along a row leads from each corner with an even index to the next one. Where an area touches
    # itself with a corner, the corner is listed twice. Its rings part there: each keeps to its side of the outside.
    order = np.where(corners.is_on_falling_diagonal, np.int8(-1), np.int8(1)) * np.arange(count, dtype=index_type)
    along_columns = np.lexsort((order, corners.rows, corners.columns, corners.areas))
    partner = np.empty(count, index_type)
    partner[along_columns[::2]] = along_columns[1::2]
    partner[along_columns[1::2]] = along_columns[::2]
    del order, along_columns
    walk, ring_lengths = _walk(partner)
    starts = np.cumsum(ring_lengths) - ring_lengths
    areas = corners.areas[walk[starts]]
    # the very first corner lies on the outline, so that the outline is the first ring
    _, firsts, ring_counts = np.unique(areas, return_index=True, return_counts=True)
    numbers = corners.numbers[walk[starts[firsts]]]
    return Areas(numbers, ring_counts, ring_lengths, np.stack([corners.columns[walk], corners.rows[walk]], axis=1))


def _walk(partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The corners of all rings, one behind the other, and the length of each ring.

    Args:
        partner: (N,) for each corner the one at the other end of its line along a column.
    """
    visited = bytearray(len(partner))
    partners = memoryview(partner.data)  # a list would take ten times the memory
    walk = array("i" if partner.dtype == np.int32 else "q")
    lengths = []
    for start in range(0, len(partner), 2):
        if visited[start]:
            continue
        before = len(walk)
        corner = start
        while True:
            along_row = corner ^ 1
            walk.append(corner)
            walk.append(along_row)
            visited[corner] = visited[along_row] = 1
            corner = partners[along_row]
            if corner == start:
                break
        lengths.append(len(walk) - before)
    return np.frombuffer(walk, partner.dtype), np.array(lengths, np.int64)
