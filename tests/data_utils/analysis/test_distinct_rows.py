"""Rows of numbers, of which many are equal: each is kept once, and all are written as a list is."""

import numpy as np
import pytest

from data_utils.analysis import distinct_rows as rows_module
from data_utils.analysis.distinct_rows import rows_as_text


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 100])
def test_rows_are_written_as_a_list_is(monkeypatch, count):
    monkeypatch.setattr(rows_module, "TEXT_ROWS", 3)
    rows = np.random.default_rng(count).integers(0, 300, (count, 3))
    assert rows_as_text(rows).decode() == repr(rows.tolist())
