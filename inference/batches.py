"""Which jobs are computed together, and by which process."""

from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction

from inference.outputs.jobs import Job


def batches_of(
    jobs: Iterable[Job], batch_of: Callable[[tuple[int, ...]], tuple[Hashable, int] | None]
) -> list[list[Job]]:
    """Batches of jobs that are computed together, and batches of one for the others.

    As in `batch_sampler.EvaluationSampler` batches depend on the jobs only, so that every number of processes computes
    the same.

    Args:
        batch_of: (H, W) -> the key that such images share with others in a batch, and how many fit; None if none do.
    """
    batches: list[list[Job]] = []
    open_batches: dict[Hashable, tuple[list[Job], Fraction]] = {}  # each with the share of it that is taken
    for job in jobs:
        group = None
        if job.size and job.shares_batches:
            group = batch_of(job.size)
        if group is None:
            batches.append([job])
            continue
        key, count = group
        batch, taken = open_batches.get(key, ([], Fraction(1)))
        if taken + Fraction(1, count) > 1:
            batch = []
            taken = Fraction(0)
            batches.append(batch)
        batch.append(job)
        open_batches[key] = batch, taken + Fraction(1, count)
    return batches


def share_of(batches: list[list[Job]], process: int, processes: int) -> list[list[Job]]:
    """The batches of one of several processes; each, largest first, goes to the process with the fewest pixels."""
    pixels = [0] * processes
    shares: list[list[list[Job]]] = [[] for _ in range(processes)]
    for batch in sorted(batches, key=lambda batch: -sum(job.pixels for job in batch)):
        least = pixels.index(min(pixels))
        pixels[least] += sum(job.pixels for job in batch)
        shares[least].append(batch)
    return shares[process]
