"""Which jobs are computed together, and by which process."""

from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction

from tasks.job import Job


def group_jobs(
    jobs: Iterable[Job], batch_key: Callable[[tuple[int, ...]], tuple[Hashable, int] | None]
) -> list[list[Job]]:
    """Batches of jobs that are computed together; each other job is a batch of its own.

    As in `batch_sampler.EvaluationSampler`, batches depend on the jobs only, so that results are the same with any
    number of processes.

    Args:
        batch_key: (H, W) -> the key of a batch of such images, and how many images fit into it; None if each of them is
            computed alone.
    """
    batches: list[list[Job]] = []
    open_batches: dict[Hashable, tuple[list[Job], Fraction]] = {}  # each with the share of its places that is taken
    for job in jobs:
        key_and_count = None
        if job.size and job.volume is None:
            key_and_count = batch_key(job.size)
        if key_and_count is None:
            batches.append([job])
            continue
        key, count = key_and_count
        batch, filled_share = open_batches.get(key, ([], Fraction(1)))
        if filled_share + Fraction(1, count) > 1:
            batch = []
            filled_share = Fraction(0)
            batches.append(batch)
        batch.append(job)
        open_batches[key] = batch, filled_share + Fraction(1, count)
    return batches


def process_share(batches: list[list[Job]], process: int, processes: int) -> list[list[Job]]:
    """The batches of one of several processes. Each, largest first, is dealt to the process with the fewest pixels."""
    process_pixels = [0] * processes
    shares: list[list[list[Job]]] = [[] for _ in range(processes)]
    for batch in sorted(batches, key=_batch_pixels, reverse=True):
        emptiest = process_pixels.index(min(process_pixels))
        process_pixels[emptiest] += _batch_pixels(batch)
        shares[emptiest].append(batch)
    return shares[process]


def _batch_pixels(batch: list[Job]) -> int:
    return sum(job.pixels for job in batch)
