"""Threads and processes: their number, and computing ahead while earlier results are used."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from runtime.machine import available_cpus

Item = TypeVar("Item")
Data = TypeVar("Data")
Result = TypeVar("Result")

BATCHES_AHEAD = 2  # batches read, and parts of a large item finished, while another one is computed
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


def run_pipeline(
    batches: Sequence[Sequence[Item]],
    read: Callable[[Item], Data],
    compute: Callable[[list[tuple[Item, Data]]], list[Callable[[], Result]]],
    errors: tuple[type[Exception], ...],
    threads: int = 2,
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yields each item with its result, or with the error (one of `errors`) that stopped this item.

    Memory is bounded, since each stage waits for the next one.

    Args:
        read: reads an item; runs in threads, a few batches ahead.
        compute: computes the items of a batch that could be read, in the calling thread. It returns one function for
            each item, which finishes the item in another thread.
        threads: the number of threads that read, and of threads that finish.
    """

    def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call, or its error."""
        try:
            return function(*arguments)
        except errors as error:
            return error

    def computed(outcomes: Iterator[Any]) -> Iterator[tuple[Item, Any]]:
        """Yield each item with the function that finishes it, or with its error."""
        for batch in batches:
            ready = []
            for item, data in zip(batch, islice(outcomes, len(batch)), strict=True):
                if isinstance(data, errors):
                    yield item, data
                else:
                    ready.append((item, data))
            finishers: Any = []
            if ready:
                finishers = attempt(compute, ready)
            if isinstance(finishers, errors):
                finishers = [finishers] * len(ready)
            for (item, _), finisher in zip(ready, finishers, strict=True):
                yield item, finisher

    def finish(pair: tuple[Item, Any]) -> tuple[Item, Any]:
        item, finisher = pair
        if isinstance(finisher, errors):
            return item, finisher
        return item, attempt(finisher)

    ahead = max(threads, BATCHES_AHEAD * max(map(len, batches), default=1))
    items = chain.from_iterable(batches)
    with closing(map_ahead(partial(attempt, read), items, ahead=ahead, threads=threads)) as outcomes:
        yield from map_ahead(finish, computed(outcomes), ahead=threads, threads=threads)
