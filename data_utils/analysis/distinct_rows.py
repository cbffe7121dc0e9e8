"""The different rows of arrays of sizes: few, however many images there are."""

import math
from typing import NamedTuple

import numpy as np

TEXT_ROWS = 2**16  # rows that are made into text at once: a list of all takes more memory than the text


class DistinctRows(NamedTuple):
    """The different rows of an array (N, n), and for each of its N rows an index into them.

    Args:
        rows: (K, n) int64, in lexicographic order.
        membership: (N,) index into `rows`, in the smallest type that holds it.
    """

    rows: np.ndarray
    membership: np.ndarray

    def counts(self) -> np.ndarray:
        """(K,) int64, how often each row occurs."""
        return np.bincount(self.membership)


def distinct_rows(array: np.ndarray) -> DistinctRows:
    """The different rows of an array (N, n) of non-negative integers.

    `np.unique(array, axis=0)` sorts rows one by one, which takes minutes for ten million of them.
    """
    if not len(array):
        return DistinctRows(array.astype(np.int64), np.zeros(0, np.uint8))
    limits = tuple((array.max(axis=0) + 1).tolist())
    keys = np.ravel_multi_index(tuple(array.T), limits).astype(np.min_scalar_type(math.prod(limits)))
    distinct_keys = np.unique(keys)
    membership = np.searchsorted(distinct_keys, keys)
    rows = np.stack(np.unravel_index(distinct_keys, limits), axis=1)
    return DistinctRows(rows, membership.astype(np.min_scalar_type(len(rows))))


def rows_as_text(array: np.ndarray) -> bytearray:
    """`repr(array.tolist())`, for an array of non-negative integers."""
    rows, membership = distinct_rows(array)
    texts = np.array([repr(row).encode() for row in rows.tolist()], object)
    content = bytearray(b"[")
    for start in range(0, len(membership), TEXT_ROWS):
        if start:
            content += b", "
        content += b", ".join(texts[membership[start : start + TEXT_ROWS]].tolist())
    content += b"]"
    return content
