"""Polygons as pixels, by the rule of GDAL: a pixel is inside where its center is."""

from collections.abc import Iterator, Sequence

import numpy as np


def fill_polygon(mask: np.ndarray, rings: Sequence[np.ndarray], value: int) -> None:
    """Set the pixels of a mask (H, W) whose centers lie in a polygon to `value`.

    Args:
        rings: (n, 2) each, (column, row) of the corners, 0 at the corner of the first pixel. Where rings lie in each
            other, every second one is a hole.
    """
    for row, left, right in _spans(rings, len(mask)):
        if right > 0:
            mask[row, max(left, 0) : right] = value


def _spans(rings: Sequence[np.ndarray], height: int) -> Iterator[tuple[int, int, int]]:
    """(row, first column, last column + 1) of each run of pixels inside."""
    rings = [_turn_ring(ring) for ring in rings]
    starts = np.concatenate(rings)
    ends = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    yield from _level_spans(starts, ends, height)
    is_down = starts[:, 1] < ends[:, 1]
    upper = np.where(is_down[:, None], starts, ends)
    lower = np.where(is_down[:, None], ends, starts)
    # an edge crosses the row centers from its upper end, which counts, to its lower end, which does not
    first = np.clip(np.ceil(upper[:, 1] - 0.5), 0, height).astype(np.int64)
    last = np.clip(np.ceil(lower[:, 1] - 0.5), 0, height).astype(np.int64)
    counts = last - first
    edges = np.repeat(np.arange(len(starts)), counts)
    rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[edges]
    slope = (lower[edges, 0] - upper[edges, 0]) / (lower[edges, 1] - upper[edges, 1])
    crossings = (rows + 0.5 - upper[edges, 1]) * slope + upper[edges, 0]
    order = np.lexsort((crossings, rows))
    columns = np.floor(crossings[order] + 0.5).astype(np.int64)
    for row, left, right in zip(rows[order][::2].tolist(), columns[::2].tolist(), columns[1::2].tolist(), strict=True):
        if right > left:
            yield row, left, right


def _turn_ring(ring: np.ndarray) -> np.ndarray:
    """The corners (n, 2) of a ring in the direction in which GDAL walks along it, whichever they are given in.

    GDAL looks at the bend at the highest corner, the rightmost of several. If the ring meets itself there, or does not
    bend, GDAL looks at the sign of the area.
    """
    corners = ring[:-1] if np.array_equal(ring[0], ring[-1]) else ring
    columns, rows = corners.T
    top = np.lexsort((-columns, rows))[0]
    before = corners[top - 1] - corners[top]
    after = corners[(top + 1) % len(corners)] - corners[top]
    turn = after[0] * before[1] - before[0] * after[1]
    visits = (corners == corners[top]).all(axis=1).sum()
    if visits > 1 or turn == 0:
        turn = (columns * np.roll(rows, -1) - rows * np.roll(columns, -1)).sum()
    return ring if turn <= 0 else ring[::-1]


def _level_spans(starts: np.ndarray, ends: np.ndarray, height: int) -> Iterator[tuple[int, int, int]]:
    """The pixels below edges that run left along the centers of a row, which GDAL counts as inside."""
    is_level = (starts[:, 1] == ends[:, 1]) & (starts[:, 0] > ends[:, 0])
    rows = starts[:, 1] - 0.5
    is_level &= (rows == np.floor(rows)) & (rows >= 0) & (rows < height)
    for index in np.flatnonzero(is_level).tolist():
        left = int(np.floor(ends[index, 0] + 0.5))
        right = int(np.floor(starts[index, 0] + 0.5))
        if right > left:
            yield int(rows[index]), left, right
