"""Connected components of an image that comes in strips: each is passed on as soon as no strip can add to it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Component(NamedTuple):
    """The pixels of a connected component.

    Args:
        start: the start of its bounding box along each axis.
        values: the values of the pixels of the box; 0 for pixels outside the component.
    """

    start: tuple[int, ...]
    values: np.ndarray

    @property
    def window(self) -> tuple[slice, ...]:
        """The box as an index of the image."""
        return tuple(slice(start, start + side) for start, side in zip(self.start, self.values.shape, strict=True))


def join_components(pieces: list[Component]) -> Component:
    """The component that consists of several disjoint pieces."""
    if len(pieces) == 1:
        return pieces[0]
    starts = np.array([piece.start for piece in pieces])
    stops = starts + [piece.values.shape for piece in pieces]
    start = starts.min(axis=0)
    values = np.zeros(stops.max(axis=0) - start, pieces[0].values.dtype)
    for piece in pieces:
        window = Component(tuple(np.subtract(piece.start, start).tolist()), piece.values).window
        values[window] += piece.values
    return Component(tuple(start.tolist()), values)


class ComponentStream:
    """Finds the components of pixels that are not 0, in strips along the first axis.

    Pixels are connected through their sides. Memory: the components that the last strip touches, whatever the image's
    size.
    """

    def __init__(self) -> None:
        self._open: list[list[Component]] = []  # the pieces of each component that touches the last row
        self._edge: np.ndarray | None = None  # for each pixel of the last row, the number of its component, from 1
        self._top = 0

    def add(self, strip: np.ndarray) -> Iterator[Component]:
        """The components that end above the last row of the next strip (n, ...)."""
        from scipy.ndimage import find_objects, label

        labels, count = label(strip)  # pixels are connected through their sides
        pieces: list[Component] = []
        for number, box in enumerate(find_objects(labels), 1):
            values = np.where(labels[box] == number, strip[box], 0)
            start = [side.start for side in box]
            start[0] += self._top
            pieces.append(Component(tuple(start), values))
        self._top += len(strip)
        piece_lists = [*self._open, *([piece] for piece in pieces)]
        group_by_piece = self._groups(labels[0], count)
        groups: dict[int, list[Component]] = {}
        for group, piece_list in zip(group_by_piece.tolist(), piece_lists, strict=True):
            groups.setdefault(group, []).extend(piece_list)
        # each pixel of the last row has the number of its group, from 1, or 0 for none
        numbers = np.concatenate([[0], group_by_piece + 1])
        last_row = numbers[np.where(labels[-1] > 0, labels[-1] + len(self._open), 0)]
        open_groups = np.unique(last_row[last_row > 0])
        self._edge = np.where(last_row > 0, np.searchsorted(open_groups, last_row) + 1, 0)
        self._open = [groups.pop(number - 1) for number in open_groups.tolist()]
        for pieces in groups.values():
            yield join_components(pieces)

    def finish(self) -> Iterator[Component]:
        """The components that touch the last row of the image."""
        for pieces in self._open:
            yield join_components(pieces)
        self._open = []

    def _groups(self, first_row: np.ndarray, count: int) -> np.ndarray:
        """The group of each open component and then of each component of a strip; components that touch are one group.

        Args:
            first_row: the labels of the strip's first row.
            count: the number of components of the strip.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        nodes = len(self._open) + count
        above = np.zeros(0, np.int64)
        below = np.zeros(0, np.int64)
        if self._edge is not None:
            touches = (self._edge > 0) & (first_row > 0)
            above = self._edge[touches] - 1
            below = first_row[touches] - 1 + len(self._open)
        graph = coo_array((np.ones(len(above), bool), (above, below)), shape=(nodes, nodes))
        return connected_components(graph, directed=False)[1]
