"""Comparisons of two runs: of their records, and of their tensors bit for bit or to rounding."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
import torch
from torch import Tensor


def different_tensors(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that are not the same, bit for bit, or that one side alone has."""
    unshared = ours.keys() ^ theirs.keys()
    return sorted(
        unshared | {name for name in ours.keys() & theirs.keys() if not torch.equal(ours[name], theirs[name])}
    )


def check_same_columns(ours: Sequence[dict], theirs: Sequence[dict], columns: Iterable[str]) -> None:
    """Two runs in float64 have the same numbers in these columns of metrics.jsonl, within 1e-9."""
    assert len(ours) == len(theirs), f"{len(ours)} records and {len(theirs)}"
    for column in columns:
        expected = [record.get(column) for record in theirs]
        numbers = [record.get(column) for record in ours]
        assert [number is None for number in numbers] == [number is None for number in expected], column
        pairs = [(number, other) for number, other in zip(numbers, expected, strict=True) if number is not None]
        assert pairs, f"no record has {column}"
        for number, other in pairs:
            assert number == pytest.approx(other, abs=1e-9), column
