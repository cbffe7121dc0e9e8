"""Which images form which batch: a function of (seed, epoch, step) alone.

Nothing here knows how many processes there are until the very end, when the images of a step, already chosen, are cut
into micro-batches. So another number of processes, another micro-batch or a resumed run sees the same images in the
same steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from data_utils.analysis.distinct_rows import DistinctRows, distinct_rows
from runtime.console import counted

MAX_SHAPES = 16
MAX_COMPARED = 256  # shapes that are compared in pairs
SIDE_BY_SIDE = 4  # row groups of a lane: with 1, 2 or 4 loader processes, each reads its own


class Slot(NamedTuple):
    """One slot of a micro-batch: an image, and the shape it is padded to.

    Args:
        is_filler: whether the image is ignored: it is only there because its process would otherwise have none.
        ends_step: whether the slot is in the last micro-batch of a step in its process.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    epoch: int
    shape: tuple[int, ...]  # (H, W), or (D, H, W) for volumes
    is_filler: bool = False
    ends_step: bool = False


class BatchSplit(NamedTuple):
    """How a global batch is cut into micro-batches, `accumulation` for each group, of at most `micro_batch_size`.

    Args:
        groups: how many groups of processes have images of their own. A group is a single process, unless several share
            each volume.
        is_fixed: whether the user asks for this split, which then is not changed even if it does not fit into memory.
        processes_per_volume: how many processes share each image or volume.
    """

    batch_size: int
    groups: int
    micro_batch_size: int
    accumulation: int
    is_fixed: bool = False
    processes_per_volume: int = 1

    def with_micro_batches(self, size: int) -> "BatchSplit":
        """The same batch in micro-batches of `size`."""
        accumulation = math.ceil(self.batch_size / self.groups / size)
        return self._replace(micro_batch_size=size, accumulation=accumulation)

    def sizes(self, images: int) -> list[int]:
        """How many images of a step each micro-batch has, in the order in which the groups take turns.

        They differ by one at most. A step of fewer images than others has fewer micro-batches for each group, so that
        a micro-batch is empty only where there are fewer images than groups.
        """
        in_proportion = math.ceil(images * self.accumulation / self.batch_size)
        rounds = min(in_proportion, math.ceil(images / self.groups))
        smaller, larger_ones = divmod(images, rounds * self.groups)
        return [smaller + (number < larger_ones) for number in range(rounds * self.groups)]

    @property
    def world_size(self) -> int:
        """All processes of the launch."""
        return self.groups * self.processes_per_volume

    @property
    def group_text(self) -> str:
        """The groups in messages."""
        if self.processes_per_volume == 1:
            return counted(self.groups, "process", "processes")
        members = f"of {self.processes_per_volume} processes"
        return counted(self.groups, f"group {members}", f"groups {members}")

    @property
    def idle_groups(self) -> int:
        """Groups that have no image in the last micro-batch of a step."""
        return self.sizes(self.batch_size).count(0)

    def __str__(self) -> str:
        sizes = sorted(set(self.sizes(self.batch_size)))
        return (
            f"{self.batch_size} in a step = {' or '.join(map(str, sizes))} in a micro-batch"
            f" x {self.group_text} x {counted(self.accumulation, 'accumulation step')}"
        )


# the images of a step, (N,) indices, by its number in an epoch
EpochSteps = Callable[[int], np.ndarray]


def padded_shapes(sizes: np.ndarray, max_shapes: int = MAX_SHAPES) -> np.ndarray:
    """The shape each image is padded to: (N, n) int32 from image sizes (N, n), as (H, W) or (D, H, W).

    Up to `max_shapes` different sizes stay as they are. Beyond that, the two shapes whose union adds the fewest padded
    pixels are merged until few are left: kernels and compilers settle on a few shapes, and all processes of a step
    work on the same one.
    """
    grid = 8
    image_sizes = distinct_rows(sizes)
    size_counts = image_sizes.counts()
    shapes = image_sizes.rows
    shape_by_size = np.arange(len(shapes))
    while len(shapes) > MAX_COMPARED:
        shapes, membership = distinct_rows(-(-shapes // grid) * grid)  # rounded up
        shape_by_size = membership[shape_by_size].astype(np.int64)
        grid *= 2
    counts = np.bincount(shape_by_size, weights=size_counts).astype(np.int64)
    while len(shapes) > max_shapes:
        pixels = shapes.prod(axis=1)
        union_pixels = np.maximum(shapes[:, None], shapes[None]).prod(axis=2)
        padding = (union_pixels - pixels[:, None]) * counts[:, None]
        padding = padding + padding.T
        np.fill_diagonal(padding, np.iinfo(np.int64).max)
        first, second = sorted(np.unravel_index(padding.argmin(), padding.shape))
        # the first shape becomes their union, and the second goes
        shapes[first] = np.maximum(shapes[first], shapes[second])
        counts[first] += counts[second]
        shape_by_size[shape_by_size == second] = first
        shape_by_size[shape_by_size > second] -= 1
        shapes = np.delete(shapes, second, axis=0)
        counts = np.delete(counts, second)
    return shapes[shape_by_size].astype(np.int32)[image_sizes.membership]


def steps_by_shape(shapes: DistinctRows, batch_size: int, seed: int, epoch: int) -> EpochSteps:
    """The steps of one epoch: every image once, ceil(N / batch_size) batches, only one of them short.

    Batches hold images of one padded shape; the remaining images of all shapes are combined by size, to be padded to
    the larger shape.
    """
    rng = np.random.default_rng([seed, epoch])
    order = _numbers(len(shapes.membership))
    rng.shuffle(order)  # the same as rng.permutation(len(order)), in half of its memory
    shape_in_order = shapes.membership[order]
    full_batches: list[np.ndarray] = []
    leftovers: list[np.ndarray] = []
    for shape in range(len(shapes.rows)):
        members = order[shape_in_order == shape]
        full = len(members) // batch_size * batch_size
        full_batches.append(members[:full])
        leftovers.append(members[full:])
    remaining = np.concatenate(leftovers)
    pixels = shapes.rows.prod(axis=1)[shapes.membership[remaining]]
    remaining = remaining[np.argsort(pixels, kind="stable")]
    sequence = np.concatenate([*full_batches, remaining])
    starts = batch_size * rng.permutation(math.ceil(len(sequence) / batch_size))

    def images(step: int) -> np.ndarray:
        return sequence[starts[step] : starts[step] + batch_size]

    return images


def _numbers(count: int) -> np.ndarray:
    """(count,) int32 or, where it does not hold them, int64: the numbers from 0."""
    dtype = np.int32 if count <= np.iinfo(np.int32).max else np.int64
    return np.arange(count, dtype=dtype)


def stream_steps(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> EpochSteps:
    """The steps of one epoch of a stream, where records of one group should be read together.

    `lengths` (G,) are the numbers of records of the groups, in order. The groups come in random order, the records of
    each shuffled. This sequence is cut into as many lanes of equal length (to one record) as a batch has images: image
    i of every batch comes from lane i. A lane is cut into `SIDE_BY_SIDE` parts, and successive steps take turns with
    them: the loader's processes take turns with the steps, so each process reads its own groups.
    """
    rng = np.random.default_rng([seed, epoch])
    total = int(lengths.sum())
    records = _numbers(total)
    order = np.empty_like(records)
    firsts = np.cumsum(lengths) - lengths
    start = 0
    for group in rng.permutation(len(lengths)):
        end = start + lengths[group]
        order[start:end] = records[firsts[group] : firsts[group] + lengths[group]]
        rng.shuffle(order[start:end])
        start = end
    lane_lengths = total // batch_size + (np.arange(batch_size) < total % batch_size)
    # (lanes, parts): part p of a lane serves steps p, p + SIDE_BY_SIDE, ..., as long as the lane has records
    part_lengths = -(-(lane_lengths[:, None] - np.arange(SIDE_BY_SIDE)) // SIDE_BY_SIDE)
    part_starts = (np.cumsum(part_lengths) - part_lengths.ravel()).reshape(part_lengths.shape)

    def images(step: int) -> np.ndarray:
        positions = part_starts[:, step % SIDE_BY_SIDE] + step // SIDE_BY_SIDE
        return order[positions[lane_lengths > step]]

    return images


class TrainingSampler:
    """Batch sampler over the steps of a whole run: for each step, rounds of one micro-batch per process.

    The loader deals micro-batch i to process i mod `world_size`, so neighbors that share a volume get it one after the
    other. A micro-batch that would be empty has one image of the step, marked as filler: its mask is to be ignored as a
    whole. Step s belongs to epoch s // steps_per_epoch, so a run resumes by starting at its step.

    Args:
        shapes: (N, n) int32, the shape (H, W) or (D, H, W) that each image is padded to.
        batch_split: how a step's images are cut.
        steps: the steps of the run that are to be made, in this order.
        group_sizes: the group sizes of a stream's `Records`, None for other records.
    """

    def __init__(
        self,
        shapes: np.ndarray,
        batch_split: BatchSplit,
        seed: int,
        steps: Sequence[int],
        group_sizes: np.ndarray | None = None,
    ) -> None:
        self.shapes = distinct_rows(shapes)
        self.batch_split = batch_split
        self.seed = seed
        self.steps = steps
        self.group_sizes = group_sizes
        self.steps_per_epoch = math.ceil(len(shapes) / batch_split.batch_size)

    def epoch_steps(self, epoch: int) -> EpochSteps:
        """The steps of one epoch."""
        if self.group_sizes is None:
            return steps_by_shape(self.shapes, self.batch_split.batch_size, self.seed, epoch)
        return stream_steps(self.group_sizes, self.batch_split.batch_size, self.seed, epoch)

    def __iter__(self) -> Iterator[list[Slot]]:
        epoch = -1
        for step in self.steps:
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                images_of = self.epoch_steps(epoch)
            indices = images_of(step % self.steps_per_epoch)
            shapes = self.shapes.rows[self.shapes.membership[indices]]
            shape = tuple(shapes.max(axis=0).tolist())
            yield from self._micro_batches([Slot(index, epoch, shape) for index in indices.tolist()])

    def _micro_batches(self, slots: list[Slot]) -> Iterator[list[Slot]]:
        """The micro-batches of a step with these images."""
        filler = slots[0]._replace(is_filler=True)
        sizes = self.batch_split.sizes(len(slots))
        last_round = len(sizes) - self.batch_split.groups
        start = 0
        for number, size in enumerate(sizes):
            micro_batch = slots[start : start + size] or [filler]
            for _ in range(self.batch_split.processes_per_volume):
                yield [slot._replace(ends_step=number >= last_round) for slot in micro_batch]
            start += size


class EvaluationSampler:
    """Batch sampler over a whole set, once: only images of equal input shape share a batch, so nothing is padded.

    How many images share a batch depends on their shape alone (`images_per_batch`), never on the number of processes,
    so every process count computes the very same batches. Batch i goes to process i mod `world_size`; fillers make the
    number of batches even.

    Args:
        shapes: (N, n) int32, the (H, W) or (D, H, W) of each image at the network.
        pixels: how many pixels share a forward pass, as given by `pixels_per_batch`.
    """

    def __init__(self, shapes: np.ndarray, pixels: int, world_size: int) -> None:
        self.shapes = distinct_rows(shapes)
        self.pixels = pixels
        batches = 0
        for shape, count in zip(self.shapes.rows.tolist(), self.shapes.counts().tolist(), strict=True):
            batches += math.ceil(count / images_per_batch(pixels, shape))
        self.fillers = -batches % world_size
        self.length = batches + self.fillers

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[Slot]]:
        members = np.argsort(self.shapes.membership, kind="stable")
        start = 0
        for shape, count in zip(map(tuple, self.shapes.rows.tolist()), self.shapes.counts().tolist(), strict=True):
            size = images_per_batch(self.pixels, shape)
            for first in range(start, start + count, size):
                indices = members[first : min(first + size, start + count)]
                yield [Slot(index, 0, shape) for index in indices.tolist()]
            start += count
        first_shape = tuple(self.shapes.rows[0].tolist())
        for _ in range(self.fillers):
            yield [Slot(int(members[0]), 0, first_shape, is_filler=True)]


def pixels_per_batch(device: torch.device) -> int:
    """How many pixels share a forward pass without gradients; a function of the kind of device alone.

    So evaluation and prediction compute the same batches on any number of processes, down to the last bit. A CPU is
    fastest with about an eighth of a megapixel (docs/performance.md), a GPU needs more to be busy.
    """
    return 2**17 if device.type == "cpu" else 2**19


def images_per_batch(pixels: int, shape: Sequence[int]) -> int:
    """How many images of one shape (H, W), or volumes (D, H, W), share a forward pass of `pixels`."""
    return max(1, pixels // math.prod(shape))
