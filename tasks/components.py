"""Connected components of an image that comes in strips: each is passed on as soon as no strip can add to it."""

from collections.abc import Iterable, Iterator
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
        stops = np.add(self.start, self.values.shape).tolist()
        return tuple(map(slice, self.start, stops))


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


def components(strips: Iterable[np.ndarray]) -> Iterator[Component]:
    """The connected components of pixels that are not 0, in an image that comes in strips (n, ...).

    Pixels are connected through their sides. A component comes as soon as no later strip can add to it, so that memory
    holds the components that the last strip touches, whatever the image's size.
    """
    from scipy.ndimage import find_objects, label

    open_pieces: list[list[Component]] = []  # the pieces of each component that touches the last row
    edge: np.ndarray | None = None  # for each pixel of the last row, the number of its component, from 1
    top = 0
    for strip in strips:
        labels, count = label(strip)
        piece_lists = list(open_pieces)
        for number, box in enumerate(find_objects(labels), 1):
            values = np.where(labels[box] == number, strip[box], 0)
            start = (top + box[0].start, *(side.start for side in box[1:]))
            piece_lists.append([Component(start, values)])
        top += len(strip)
        group_by_piece = _groups(edge, labels[0], len(open_pieces), count)
        groups: dict[int, list[Component]] = {}
        for group, pieces in zip(group_by_piece.tolist(), piece_lists, strict=True):
            groups.setdefault(group, []).extend(pieces)
        # each pixel of the last row has the number of its group, from 1, or 0 for none
        numbers = np.concatenate([[0], group_by_piece + 1])
        last_row = numbers[np.where(labels[-1] > 0, labels[-1] + len(open_pieces), 0)]
        open_groups = np.unique(last_row[last_row > 0])
        edge = np.where(last_row > 0, np.searchsorted(open_groups, last_row) + 1, 0)
        open_pieces = [groups.pop(number - 1) for number in open_groups.tolist()]
        yield from map(join_components, groups.values())
    yield from map(join_components, open_pieces)


def _groups(edge: np.ndarray | None, first_row: np.ndarray, open_count: int, count: int) -> np.ndarray:
    """The group of each open component and then of each component of a strip; components that touch are one group.

    Args:
        edge: the numbers of the open components along the row above the strip; None above the first strip.
        first_row: the labels of the strip's first row.
        open_count, count: the number of open components, and of components of the strip.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes = open_count + count
    above = np.zeros(0, np.int64)
    below = np.zeros(0, np.int64)
    if edge is not None:
        touches = (edge > 0) & (first_row > 0)
        above = edge[touches] - 1
        below = first_row[touches] - 1 + open_count
    graph = coo_array((np.ones(len(above), bool), (above, below)), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1]
