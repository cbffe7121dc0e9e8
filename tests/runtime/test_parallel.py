"""Computing ahead in threads: in order, not too far, and errors where their results are taken."""

import pytest

from runtime import parallel
from runtime.parallel import map_ahead, map_indices


def test_an_error_of_work_in_turn_is_raised_where_its_result_is_taken():
    made = []

    def items():
        for number in range(10):
            made.append(number)
            yield number

    def fails(number: int) -> None:
        raise OSError(f"disk full at {number}")

    with pytest.raises(OSError, match="disk full at 0"):
        list(map_ahead(fails, items(), ahead=2))
    assert len(made) <= 4


@pytest.mark.parametrize(("count", "chunk"), [(0, 3), (1, 3), (7, 3), (9, 3), (5, 1)])
def test_indices_are_mapped_in_order_whatever_the_chunks(monkeypatch, count, chunk):
    monkeypatch.setattr(parallel, "available_cpus", lambda: 2)
    assert list(map_indices(lambda index: index * index, count, chunk)) == [index**2 for index in range(count)]
