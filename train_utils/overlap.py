"""Reading, computing and writing at the same time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Data = TypeVar("Data")
Result = TypeVar("Result")

AHEAD = 2  # batches that are read, and parts of a large item that are finished, while another is computed


def overlapped(
    batches: Iterable[list[Item]],
    read: Callable[[Item], Data],
    compute: Callable[[list[tuple[Item, Data]]], list[Callable[[], Result]]],
    *errors: type[Exception],
    threads: int = 2,
) -> Iterator[tuple[Item, Result | Exception]]:
    """Each item with its result, or with the one of `errors` that stopped it: the others go on.

    `read` runs in `threads`, a few batches ahead; `compute` here, on what could be read of a batch; the functions it
    gives, one for each item, in as many more. Memory is bounded, since each waits for the next.
    """

    def outcome(item: Item, future: Future) -> tuple[Item, Result | Exception]:
        try:
            return item, future.result()
        except errors as error:
            return item, error

    def read_ahead(readers: ThreadPoolExecutor) -> Iterator[list[tuple[Item, Future]]]:
        reading: deque[list[tuple[Item, Future]]] = deque()
        for batch in batches:
            reading.append([(item, readers.submit(read, item)) for item in batch])
            while len(reading) > AHEAD and sum(map(len, reading)) > threads:
                yield reading.popleft()
        yield from reading

    finishing: deque[tuple[Item, Future]] = deque()
    with ThreadPoolExecutor(threads) as readers, ThreadPoolExecutor(threads) as finishers:
        for batch in read_ahead(readers):
            done: list[tuple[Item, Any]] = [outcome(*pair) for pair in batch]
            ready = [(item, data) for item, data in done if not isinstance(data, errors)]
            yield from ((item, error) for item, error in done if isinstance(error, errors))
            try:
                finishing += [
                    (item, finishers.submit(finish))
                    for (item, _), finish in zip(ready, compute(ready) if ready else [], strict=True)
                ]
            except errors as error:
                yield from ((item, error) for item, _ in ready)
            while len(finishing) > threads:
                yield outcome(*finishing.popleft())
        yield from (outcome(*pair) for pair in finishing)


def in_turn(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """`work` on each item in order, in a thread, while the next ones are made here; its errors are raised here."""
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as worker:
        for item in items:
            waiting.append(worker.submit(work, item))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
        for future in waiting:
            future.result()
