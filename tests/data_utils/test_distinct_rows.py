"""Rows of numbers, of which many are equal: each is kept once, and all are written as a list is."""

import numpy as np

from data_utils.analysis import distinct_rows as rows_module
from data_utils.analysis.distinct_rows import distinct_rows, rows_as_text


def test_rows_are_counted_and_written_as_lists_are(monkeypatch):
    distinct = distinct_rows(np.array([[3, 1], [0, 2], [3, 1], [0, 11]]))
    assert distinct.rows.tolist() == [[0, 2], [0, 11], [3, 1]]
    assert distinct.membership.tolist() == [2, 0, 2, 1]
    assert distinct.membership.dtype == np.uint8
    assert distinct.counts().tolist() == [1, 1, 2]
    assert len(distinct) == 4
    assert len(distinct_rows(np.zeros((0, 2), int)).rows) == 0
    monkeypatch.setattr(rows_module, "TEXT_ROWS", 3)
    for count in (0, 1, 3, 4, 7):
        sizes = np.random.default_rng(count).integers(0, 300, (count, 3))
        assert rows_as_text(sizes).decode() == repr(sizes.tolist())
