"""Threads and processes: how many to start, and computing ahead while earlier results are used."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Data = TypeVar("Data")
Result = TypeVar("Result")

BATCHES_AHEAD = 2  # batches that are read, and parts of a large item that are finished, while another is computed
CHUNK = 32  # items in a thread's task, where items are small


def available_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers(device: torch.device) -> int:
    """Loader processes for this process: its share of the machine's CPUs; on a CPU, which computes too, one at most."""
    share = available_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cpu":
        return 1 if share > 1 else 0
    return max(1, min(share, 16))


@contextmanager
def workers_ended() -> Iterator[None]:
    """On leaving, also with an error, the processes that were started within end.

    Loader processes outlast the signals after which the main process still works. So Python, which sends SIGTERM to
    them when it ends, would wait for them for ever.
    """
    earlier = multiprocessing.active_children()
    try:
        yield
    finally:
        workers = [worker for worker in multiprocessing.active_children() if worker not in earlier]
        if workers:
            _kill(workers)


def _kill(workers: list[BaseProcess]) -> None:
    """End processes at once, without a word of torch on it."""
    handler = None
    if hasattr(signal, "SIGCHLD"):  # torch's handler would report their end as an error
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
    if handler is not None:
        signal.signal(signal.SIGCHLD, handler)


def lost_worker(reason: str) -> str:
    """The line to print where a loader's worker process has ended, which nobody asked it to."""
    return (
        f"a process that loads images has ended ({reason}), perhaps for lack of memory; start again with"
        " --resume auto to continue from the last checkpoint, with fewer --num-workers"
    )


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int, threads: int = 1
) -> Iterator[Result]:
    """function(item) of each item in order, computed in threads up to `ahead` items before it is needed.

    Items are taken in the calling thread. An error in `function` is raised in its result's place.
    """
    pool = ThreadPoolExecutor(threads)
    coming: deque[Future[Result]] = deque()
    try:
        for item in items:
            coming.append(pool.submit(function, item))
            if len(coming) > ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def map_indices(function: Callable[[int], Result], count: int, chunk: int = CHUNK) -> Iterator[Result]:
    """function(0), ... function(count - 1) in order, in as many threads as there are CPUs.

    Pillow and NumPy decode outside the interpreter's lock. Two chunks for each thread are begun ahead of what is taken,
    no more: results may be large.
    """

    def run(start: int) -> list[Result]:
        return [function(index) for index in range(start, min(start + chunk, count))]

    threads = available_cpus()
    for results in map_ahead(run, range(0, count, chunk), ahead=2 * threads, threads=threads):
        yield from results


def pipelined(
    batches: Iterable[list[Item]],
    read: Callable[[Item], Data],
    compute: Callable[[list[tuple[Item, Data]]], list[Callable[[], Result]]],
    errors: tuple[type[Exception], ...],
    threads: int = 2,
) -> Iterator[tuple[Item, Result | Exception]]:
    """Each item with its result, or with the error (one of `errors`) that stopped it; other items are not affected.

    `read` runs in `threads`, a few batches ahead. `compute` runs in the calling thread on the items of a batch that
    could be read, and returns one function for each; these finish the items in as many other threads. Memory is
    bounded, since each stage waits for the next one.
    """

    def outcome(pair: tuple[Item, Future]) -> tuple[Item, Any]:
        """An item with its result, or with its error."""
        item, future = pair
        try:
            return item, future.result()
        except errors as error:
            return item, error

    def read_ahead(readers: ThreadPoolExecutor) -> Iterator[list[tuple[Item, Future]]]:
        reading: deque[list[tuple[Item, Future]]] = deque()
        for batch in batches:
            reading.append([(item, readers.submit(read, item)) for item in batch])
            while len(reading) > BATCHES_AHEAD and sum(map(len, reading)) > threads:
                yield reading.popleft()
        yield from reading

    def start_finishing(ready: list[tuple[Item, Data]]) -> list[tuple[Item, Future]]:
        """Compute items together, then begin to finish each of them."""
        started = []
        for (item, _), finish in zip(ready, compute(ready), strict=True):
            started.append((item, finishers.submit(finish)))
        return started

    finishing: deque[tuple[Item, Future]] = deque()
    with ThreadPoolExecutor(threads) as readers, ThreadPoolExecutor(threads) as finishers:
        for batch in read_ahead(readers):
            outcomes = [outcome(pair) for pair in batch]
            ready = [(item, data) for item, data in outcomes if not isinstance(data, errors)]
            yield from ((item, error) for item, error in outcomes if isinstance(error, errors))
            try:
                if ready:
                    finishing += start_finishing(ready)
            except errors as error:
                yield from ((item, error) for item, _ in ready)
            while len(finishing) > threads:
                yield outcome(finishing.popleft())
        yield from map(outcome, finishing)
