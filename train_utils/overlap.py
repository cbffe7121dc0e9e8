"""Reading, computing and writing at the same time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Data = TypeVar("Data")
Result = TypeVar("Result")

AHEAD = 2  # batches that are read, and items that are finished, while one batch is computed


def overlapped(
    batches: Iterable[list[Item]],
    read: Callable[[Item], Data],
    compute: Callable[[list[tuple[Item, Data]]], list[Callable[[], Result]]],
    *errors: type[Exception],
) -> Iterator[tuple[Item, Result | Exception]]:
    """Each item with its result, or with the one of `errors` that stopped it: the others go on.

    `read` runs in threads, a few batches ahead; `compute` here, on what could be read of a batch; the functions it
    gives, one for each item, again in threads. Memory is bounded, since each waits for the next.
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
            if len(reading) > AHEAD:
                yield reading.popleft()
        yield from reading

    finishing: deque[tuple[Item, Future]] = deque()
    with ThreadPoolExecutor(AHEAD) as readers, ThreadPoolExecutor(AHEAD) as finishers:
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
            while len(finishing) > AHEAD:
                yield outcome(*finishing.popleft())
        yield from (outcome(*pair) for pair in finishing)
