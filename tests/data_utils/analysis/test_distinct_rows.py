"""Rows of numbers, of which many are equal: each is kept once, and all are written as a list is."""

import numpy as np
import pytest

from data_utils.analysis import distinct_rows as rows_module
from data_utils.analysis.distinct_rows import distinct_rows, rows_as_text


def random_rows(count: int, high: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).integers(32, high, (count, columns))


@pytest.mark.parametrize(
    "array",
    [random_rows(100, 35, 2), random_rows(100, 35, 3), np.zeros((5, 2), np.int64), random_rows(1, 152, 2)],
    ids=["images", "volumes", "equal", "one"],
)
def test_distinct_rows_are_those_of_numpy(array):
    rows, inverse, counts = np.unique(array, axis=0, return_inverse=True, return_counts=True)
    distinct = distinct_rows(array)
    assert (distinct.rows == rows).all()
    assert (distinct.membership == inverse.ravel()).all()
    assert (distinct.counts() == counts).all()
    assert distinct.membership.itemsize == 1


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 100])
def test_rows_are_written_as_a_list_is(monkeypatch, count):
    monkeypatch.setattr(rows_module, "TEXT_ROWS", 3)
    rows = np.random.default_rng(count).integers(0, 300, (count, 3))
    assert rows_as_text(rows).decode() == repr(rows.tolist())
