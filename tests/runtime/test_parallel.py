"""Reading, computing and writing at once: every item comes out once, errors stay with their item, memory is bounded."""

import threading
import time
from collections.abc import Callable

import pytest

from runtime import parallel
from runtime.parallel import map_ahead, map_indices, run_pipeline


def failing(name: str, items: set[int]) -> Callable[[int], int]:
    """A function that returns its item, but for some, where it fails."""

    def call(item: int) -> int:
        if item in items:
            raise ValueError(name)
        return item

    return call


BATCHES = [[0, 1], [2, 3, 4], [5], [3], [6], [7, 10, 8], [9]]
STAGES = ("read", "compute", "finish")


def results_of(**failures: set[int]) -> list[tuple[int, object]]:
    """The results of batches whose items are read, computed and finished: 11 times the item, or its error.

    Args:
        failures: the items that fail in each of the stages.
    """
    read, compute, finish = (failing(stage, failures.get(stage, set())) for stage in STAGES)

    def compute_batch(pairs: list[tuple[int, int]]) -> list[Callable[[], int]]:
        for item, _ in pairs:
            compute(item)
        return [lambda item=item, data=data: 10 * data + finish(item) for item, data in pairs]

    return list(run_pipeline(BATCHES, read, compute_batch, (ValueError,)))


def test_every_item_comes_out_once():
    assert sorted(results_of()) == sorted((item, 11 * item) for batch in BATCHES for item in batch)


@pytest.mark.parametrize(
    ("stage", "failed"),
    [("read", [3, 3, 10]), ("compute", [2, 3, 3, 4, 7, 8, 10]), ("finish", [3, 3, 10])],
    ids=STAGES,
)
def test_errors_stay_with_their_item(stage, failed):
    """An error of computing is that of all items of the batch."""
    results = results_of(**{stage: {3, 10}})
    errors = sorted((item, str(result)) for item, result in results if isinstance(result, ValueError))
    assert errors == [(item, stage) for item in failed]
    others = [item for item, result in results if result == 11 * item]
    assert sorted([*others, *failed]) == sorted(item for batch in BATCHES for item in batch)


def test_a_bug_is_not_swallowed():
    with pytest.raises(KeyError):
        list(run_pipeline([[1], [2]], lambda item: {}["a bug"], lambda pairs: [], (ValueError,)))


def test_reading_and_finishing_run_beside_computing_but_not_far_ahead():
    read, finished, here = [], [], threading.get_ident()

    def compute(pairs):
        assert threading.get_ident() == here
        number = pairs[0][0]
        time.sleep(0.02)
        assert len(read) <= number + 3
        assert len(finished) >= number - 3
        return [lambda: finished.append(threading.get_ident())]

    list(run_pipeline([[number] for number in range(12)], read.append, compute, (ValueError,)))
    assert len(read) == len(finished) == 12
    assert here not in finished


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
