"""Threads and processes: their number, and computing ahead while earlier results are used."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from runtime.machine import available_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 32  # small items in one task of a thread


def end_workers() -> None:
    """Kill the processes that this one has started; call it when this process ends.

    Loader processes ignore the signals after which the main process still works. So Python, which sends SIGTERM to them
    when it ends, would wait for them for ever.
    """
    expect_lost_workers()
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()


def expect_lost_workers() -> None:
    """From now on the end of a loader process is no error: torch's handler would raise one in any line of ours."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def lost_worker(reason: str) -> str:
    """The line to print if a loader's worker process has ended unexpectedly."""
    return (
        f"a process that loads images has ended ({reason}), perhaps for lack of memory; start again with"
        " --resume auto to continue from the last checkpoint, with fewer --num-workers"
    )


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int, threads: int = 1
) -> Generator[Result, None, None]:
    """Yields function(item) for each item in order, computed in threads up to `ahead` items before it is needed.

    The calling thread reads the items. An error in `function` is raised in place of its result.
    """
    pool = ThreadPoolExecutor(threads)
    futures: deque[Future[Result]] = deque()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) > ahead:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def map_indices(function: Callable[[int], Result], count: int, chunk: int = CHUNK) -> Iterator[Result]:
    """Yields function(0), ... function(count - 1) in order, computed in as many threads as there are CPUs.

    Threads suffice, since Pillow and NumPy decode outside of the interpreter's lock. At most two chunks for each thread
    are computed ahead, since results may be large.
    """

    def run(start: int) -> list[Result]:
        return [function(index) for index in range(start, min(start + chunk, count))]

    threads = available_cpus()
    for results in map_ahead(run, range(0, count, chunk), ahead=2 * threads, threads=threads):
        yield from results
