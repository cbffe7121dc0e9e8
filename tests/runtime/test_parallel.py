"""Reading, computing and writing at once: every item comes out once, errors stay with their item, memory is bounded."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from runtime import parallel
from runtime.parallel import default_workers, map_ahead, map_indices, pipelined, workers_ended


def test_every_item_comes_out_once_and_errors_stay_with_their_item():
    def read(item: int) -> int:
        if item in (3, 10):
            raise ValueError("unreadable")
        return item * 10

    def compute(pairs):
        if pairs[0][0] == 7:
            raise ValueError("too large")
        return [lambda item=item, data=data: finish(item, data) for item, data in pairs]

    def finish(item: int, data: int) -> int:
        if item == 5:
            raise ValueError("disk full")
        return data + 1

    batches = [[0, 1], [2, 3, 4], [5], [3], [6], [7, 10, 8], [9]]
    results = [(item, str(result)) for item, result in pipelined(batches, read, compute, (ValueError,))]
    errors = {3: "unreadable", 10: "unreadable", 5: "disk full", 7: "too large", 8: "too large"}
    expected = [(item, errors.get(item, str(item * 10 + 1))) for batch in batches for item in batch]
    assert sorted(results) == sorted(expected)


@pytest.mark.parametrize("where", ["read", "compute", "finish"])
def test_a_bug_is_not_swallowed(where):
    def fail(place: str) -> None:
        if place == where:
            raise KeyError(place)

    def compute(pairs):
        fail("compute")
        return [lambda: fail("finish") for _ in pairs]

    with pytest.raises(KeyError):
        list(pipelined([[1], [2]], lambda item: fail("read"), compute, (ValueError,)))


def test_reading_and_finishing_run_beside_computing_but_not_far_ahead():
    read, finished, here = [], [], threading.get_ident()

    def compute(pairs):
        assert threading.get_ident() == here
        number = pairs[0][0]
        time.sleep(0.02)
        assert len(read) <= number + 3
        assert len(finished) >= number - 3
        return [lambda: finished.append(threading.get_ident())]

    list(pipelined([[number] for number in range(12)], read.append, compute, (ValueError,)))
    assert len(read) == len(finished) == 12
    assert here not in finished


def test_work_in_turn_keeps_the_order_runs_beside_the_making_and_raises_its_error_here():
    made, done, here = [], [], threading.get_ident()

    def items():
        for number in range(10):
            made.append(number)
            assert len(done) >= number - 3
            yield number

    def work(number: int) -> None:
        assert threading.get_ident() != here
        done.append(number)

    assert list(map_ahead(work, items(), ahead=2)) == [None] * 10
    assert done == list(range(10))

    def fails(number: int) -> None:
        raise OSError(f"disk full at {number}")

    made.clear()
    with pytest.raises(OSError, match="disk full at 0"):
        list(map_ahead(fails, items(), ahead=2))
    assert len(made) <= 4


def test_more_threads_read_further_ahead():
    together = threading.Barrier(5, timeout=20)  # broken, an error, unless five read at once
    items = list(pipelined([[n] for n in range(5)], lambda n: together.wait(), lambda pairs: [bool], (), threads=5))
    assert len(items) == 5


def test_as_many_threads_finish_as_read():
    together = threading.Barrier(3, timeout=20)  # broken, an error, unless three are finished at once
    results = pipelined([[0, 1, 2]], bool, lambda pairs: [together.wait] * len(pairs), (), threads=3)
    assert sorted(result for _, result in results) == [0, 1, 2]


@pytest.mark.parametrize(
    ("device", "cpus", "processes", "workers"),
    [
        ("cpu", 1, 1, 0),
        ("cpu", 2, 1, 1),
        ("cpu", 2, 2, 0),
        ("cpu", 64, 1, 1),
        ("cuda", 1, 1, 1),
        ("cuda", 8, 1, 8),
        ("cuda", 8, 4, 2),
        ("cuda", 2, 4, 1),
        ("cuda", 64, 1, 16),
    ],
)
def test_loaders_share_the_cpus_with_other_processes_and_with_a_cpu_that_computes(
    monkeypatch, device, cpus, processes, workers
):
    monkeypatch.setattr(parallel, "available_cpus", lambda: cpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert default_workers(torch.device(device)) == workers


class Worker:
    """A process that only says what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def kill(self) -> None:
        self.calls.append("kill")
        signal.raise_signal(signal.SIGCHLD)  # as the kernel does where a child ends

    def join(self) -> None:
        self.calls.append("join")


def test_only_processes_that_were_started_within_end(monkeypatch):
    earlier, own = Worker(), Worker()
    alive = [earlier]
    monkeypatch.setattr(multiprocessing, "active_children", lambda: list(alive))
    ended_children: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, frame: ended_children.append(number))  # as torch has one
    try:
        with pytest.raises(KeyError), workers_ended():
            alive.append(own)
            raise KeyError("a bug")
        signal.raise_signal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (earlier.calls, own.calls) == ([], ["kill", "join"])
    assert ended_children == [signal.SIGCHLD]


def test_the_cpus_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 9} if process == 0 else set(), raising=False)
    assert parallel.available_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert parallel.available_cpus() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert parallel.available_cpus() == 1


def test_indices_are_mapped_in_order_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr(parallel, "available_cpus", lambda: 2)
    for count, chunk in ((0, 3), (1, 3), (7, 3), (9, 3), (5, 1)):
        assert list(map_indices(lambda index: index * index, count, chunk)) == [index**2 for index in range(count)]


def test_so_many_items_are_begun_ahead_of_what_is_taken():
    taken = []

    def items():
        for number in range(9):
            taken.append(number)
            yield number

    results = map_ahead(lambda number: number, items(), ahead=3)
    assert next(results) == 0
    assert len(taken) == 4
    assert next(results) == 1
    assert len(taken) == 5
    assert list(results) == [2, 3, 4, 5, 6, 7, 8]


def test_indices_are_mapped_in_as_many_threads_as_there_are_cpus_and_two_chunks_of_32_ahead_of_each(monkeypatch):
    monkeypatch.setattr(parallel, "available_cpus", lambda: 3)
    together = threading.Barrier(3, timeout=20)  # broken, an error, unless three compute at once
    assert list(map_indices(lambda index: together.wait() >= 0, 3, 1)) == [True] * 3
    finished = []
    results = map_indices(lambda index: finished.append(index) or index, 1000)
    assert next(results) == 0
    for _ in range(500):
        if len(finished) >= 224:
            break
        time.sleep(0.01)
    assert len(finished) == 7 * 32
    assert list(results) == list(range(1, 1000))


@pytest.mark.parametrize(("size", "threads", "count"), [(1, 2, 3), (5, 2, 3), (1, 4, 5), (2, 4, 3)])
def test_so_many_batches_are_begun_to_be_read_before_the_first_is_computed(size, threads, count):
    taken, at_first = [], []

    def batches():
        for number in range(9):
            taken.append(number)
            yield [number] * size

    def compute(pairs):
        at_first.append(len(taken))
        return [bool] * len(pairs)

    assert len(list(pipelined(batches(), bool, compute, (), threads))) == 9 * size
    assert at_first[:2] == [count, count + 1]


def test_no_more_is_computed_while_as_many_items_as_there_are_threads_wait_to_be_finished():
    gate, computed, results = threading.Event(), [], []

    def compute(pairs):
        computed.append(pairs)
        return [gate.wait]

    consumer = threading.Thread(
        target=lambda: results.extend(pipelined([[number] for number in range(9)], bool, compute, (), threads=2))
    )
    consumer.start()
    try:
        for _ in range(500):
            if len(computed) >= 3:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(computed) == 3
    finally:
        gate.set()
        consumer.join(timeout=20)
    assert [item for item, _ in results] == list(range(9))


def test_what_nobody_will_take_is_not_computed():
    gate, finished = threading.Event(), []

    def work(number: int) -> None:
        finished.append(number)
        if number:
            gate.wait(timeout=20)

    results = map_ahead(work, range(9), ahead=6)
    next(results)
    threading.Timer(0.05, gate.set).start()
    results.close()
    assert len(finished) <= 2
