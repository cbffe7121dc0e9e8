"""Which images form which batch: every image once, the same steps for any split, few shapes."""

import hashlib

import numpy as np
import pytest

from data_utils.analysis.distinct_rows import distinct_rows
from data_utils.loading.batch_sampler import (
    BatchSplit,
    EpochSteps,
    EvaluationSampler,
    Slot,
    TrainingSampler,
    padded_shapes,
    steps_by_shape,
    stream_steps,
)


def sizes(count: int = 57, kinds: int = 40, seed: int = 0, dims: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(32, 32 + 3 * kinds, (count, dims))


def order_digest(images_of: EpochSteps, shapes: np.ndarray, batch_size: int) -> str:
    """A digest of the images and shapes of the steps of an epoch, in their order."""
    checksum = hashlib.sha256()
    for step in range(-(-len(shapes) // batch_size)):
        indices = images_of(step).tolist()
        shape = tuple(shapes[indices].max(axis=0).tolist())
        checksum.update(repr((indices, shape)).encode())
    return checksum.hexdigest()[:16]


def images_of_steps(
    micro_batch_size: int, world_size: int, steps: range, batch_size: int = 8, seed: int = 3
) -> list[list[tuple]]:
    """(index, epoch, shape) of the real images of each step, put together over processes and micro-batches."""
    shapes = padded_shapes(sizes())
    accumulation = -(-batch_size // (micro_batch_size * world_size))
    batch_split = BatchSplit(batch_size, world_size, micro_batch_size, accumulation)
    sampler = TrainingSampler(shapes, batch_split, seed, steps)
    return [[slot[:3] for batch in step for slot in batch if not slot.is_filler] for step in steps_of(sampler)]


def steps_of(sampler: TrainingSampler) -> list[list[list[Slot]]]:
    """The micro-batches of each step: equally many on each process, none larger than allowed or without an image."""
    batch_split = sampler.batch_split
    steps: list[list[list[Slot]]] = [[]]
    for number, batch in enumerate(sampler):
        if number % batch_split.groups == 0 and steps[-1] and steps[-1][-1][0].ends_step:
            steps.append([])
        steps[-1].append(batch)
        assert 1 <= len(batch) <= batch_split.micro_batch_size
        assert len({(slot.is_filler, slot.ends_step) for slot in batch}) == 1
    for step in steps:
        ends = [batch[0].ends_step for batch in step]
        assert ends == [False] * (len(step) - batch_split.groups) + [True] * batch_split.groups
        assert not step[-batch_split.groups][0].is_filler  # the first process has an image in each round
    return steps


@pytest.mark.parametrize(("micro_batch_size", "world_size"), [(4, 2), (3, 3), (2, 4), (1, 1), (2, 1), (5, 2)])
def test_steps_hold_the_same_images_in_the_same_order_on_any_split(micro_batch_size, world_size):
    assert images_of_steps(micro_batch_size, world_size, range(20)) == images_of_steps(8, 1, range(20))


def test_a_resumed_run_continues_with_the_remaining_steps():
    assert images_of_steps(4, 2, range(5, 20)) == images_of_steps(4, 2, range(20))[5:]


@pytest.mark.parametrize(
    ("batch", "processes", "micro_batch", "accumulation", "sizes", "line"),
    [
        (16, 2, 4, 2, [4, 4, 4, 4], "16 in a step = 4 in a micro-batch x 2 processes x 2 accumulation steps"),
        (13, 2, 4, 2, [4, 3, 3, 3], "13 in a step = 3 or 4 in a micro-batch x 2 processes x 2 accumulation steps"),
        (9, 8, 2, 1, [2, *7 * [1]], "9 in a step = 1 or 2 in a micro-batch x 8 processes x 1 accumulation step"),
        (4, 8, 1, 1, 4 * [1], "4 in a step = 0 or 1 in a micro-batch x 8 processes x 1 accumulation step"),
        (5, 4, 1, 2, 5 * [1], "5 in a step = 0 or 1 in a micro-batch x 4 processes x 2 accumulation steps"),
        (8, 1, 3, 4, [2, 2, 2, 2], "8 in a step = 2 in a micro-batch x 1 process x 4 accumulation steps"),
    ],
    ids=["even", "uneven", "a filler", "idle processes", "idle steps", "one process"],
)
def test_images_of_a_step_are_shared_out_with_fillers_for_idle_processes(
    batch, processes, micro_batch, accumulation, sizes, line
):
    batch_split = BatchSplit(batch, processes, micro_batch, accumulation)
    assert str(batch_split) == line
    (step,) = steps_of(TrainingSampler(np.full((batch, 2), 32), batch_split, 0, range(1)))
    assert len(step) == processes * accumulation
    real = [slots for slots in step if not slots[0].is_filler]
    assert [len(slots) for slots in real] == sizes
    fillers = step[len(real) :]
    assert [len(slots) for slots in fillers] == [1] * batch_split.idle_groups
    assert all(slots[0].index == step[0][0].index and slots[0].is_filler for slots in fillers)


@pytest.mark.parametrize(
    ("batch_split", "images", "sizes"),
    [
        (BatchSplit(8, 2, 2, 2), 1, [1, 0]),
        (BatchSplit(8, 2, 2, 2), 3, [2, 1]),
        (BatchSplit(8, 2, 2, 2), 5, [2, 1, 1, 1]),
        (BatchSplit(5, 4, 1, 2), 3, [1, 1, 1, 0]),  # no process would have an image in a second round
    ],
)
def test_a_step_of_few_images_has_few_micro_batches(batch_split, images, sizes):
    assert batch_split.sizes(images) == sizes


FOUR_SHAPES = np.array([(8, 8)] * 4)
TWO_GROUPS = BatchSplit(4, groups=2, micro_batch_size=1, accumulation=2)


def test_processes_that_share_a_volume_get_its_micro_batch_one_after_the_other():
    shared = TWO_GROUPS._replace(groups=1, processes_per_volume=2)
    batches = list(TrainingSampler(FOUR_SHAPES, shared, 0, range(1)))
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert batches[0] != batches[2]
    assert "x 1 group of 2 processes x 2 accumulation steps" in str(shared)


def test_many_sizes_become_few_shapes():
    many = sizes(3000, kinds=300)
    shapes = padded_shapes(many)
    assert len(np.unique(shapes, axis=0)) <= 16
    assert (shapes >= many).all()
    assert shapes.dtype == np.int32
    # measured 1.56; one shape for all would take 4.0 times the pixels
    assert shapes.prod(axis=1).sum() < 1.6 * many.prod(axis=1).sum()


def test_two_sizes_that_become_one_shape_are_padded_to_what_holds_both():
    assert padded_shapes(np.array([(4, 8), (8, 4)]), max_shapes=1).tolist() == [[8, 8], [8, 8]]


def real_slots(sampler: EvaluationSampler) -> list[list[Slot]]:
    """The batches without fillers."""
    batches = [[slot for slot in batch if not slot.is_filler] for batch in sampler]
    return [batch for batch in batches if batch]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_an_evaluation_sees_every_image_once_unpadded_in_the_same_batches_on_any_number_of_processes(processes):
    shapes = sizes(23, kinds=1)
    batches = real_slots(EvaluationSampler(shapes, 3 * 34 * 34, processes))
    slots = [slot for batch in batches for slot in batch]
    assert sorted(slot.index for slot in slots) == list(range(23))
    assert all((shapes[slot.index] == slot.shape).all() for slot in slots)
    assert batches == list(EvaluationSampler(shapes, 3 * 34 * 34, 1))


@pytest.mark.parametrize(("processes", "fillers"), [(1, 0), (2, 1), (3, 0), (4, 1), (5, 2)])
def test_fillers_make_the_batches_of_an_evaluation_a_multiple_of_the_processes(processes, fillers):
    sampler = EvaluationSampler(np.array([(8, 8)] * 3), 64, processes)
    assert len(sampler) == 3 + fillers
    assert sum(slots[0].is_filler for slots in sampler) == fillers


@pytest.mark.parametrize(
    ("dims", "count", "kinds", "batch_size", "first", "sixth"),
    [
        (2, 1, 1, 4, "17b1018366f30210", "17b1018366f30210"),
        (2, 57, 40, 1, "6ab77d2a773f0437", "567bca8e631db44a"),
        (2, 57, 40, 7, "959a274d4fb0422c", "586a1c81903109a8"),
        (2, 1000, 1, 4, "37e340f109c55fce", "412b4ea803a05d50"),
        (2, 3000, 300, 4, "b76267125f2af03f", "19d6fe5a74b4a1e2"),
        (3, 57, 40, 4, "875a352ce2f969fb", "cc20fe51aa70ccd9"),
        (3, 3000, 300, 7, "3406abb4a2fd4565", "0fe613a67e028792"),
    ],
    ids=["one image", "batches of one", "of seven", "equal sizes", "many sizes", "volumes", "many volumes"],
)
def test_the_order_of_images_is_the_one_that_older_runs_had(dims, count, kinds, batch_size, first, sixth):
    # the digests are of the first version, which made a list of all batches
    shapes = padded_shapes(sizes(count, kinds, dims=dims))
    epochs = [steps_by_shape(distinct_rows(shapes), batch_size, seed=3, epoch=epoch) for epoch in (0, 5)]
    assert [order_digest(steps, shapes, batch_size) for steps in epochs] == [first, sixth]


@pytest.mark.parametrize(
    ("lengths", "batch_size", "first", "sixth"),
    [
        ([5, 1, 9, 32], 1, "c8e575ec75f105d1", "5bf4402f61841520"),
        ([5, 1, 9, 32], 60, "e4518a532679f95f", "6f9db39fb3eac738"),
        ([47], 8, "1b50047bad9630c8", "b37e054996cf7fff"),
        ([1] * 20, 3, "159557b2d24c8793", "95c3fa9f7d099bf1"),
        ([16] * 40 + [3] + [16] * 7, 8, "a5e54079c6f50f11", "7f95703b11807508"),
    ],
)
def test_the_order_of_a_stream_is_the_one_that_older_runs_had(lengths, batch_size, first, sixth):
    shapes = np.tile((40, 56), (sum(lengths), 1))
    epochs = [stream_steps(np.array(lengths), batch_size, seed=3, epoch=epoch) for epoch in (0, 5)]
    assert [order_digest(steps, shapes, batch_size) for steps in epochs] == [first, sixth]


@pytest.mark.parametrize(("dims", "digest"), [(2, "732709f751782ac8"), (3, "fea82c6da96b0b51")])
def test_the_order_of_an_evaluation_is_the_one_that_older_runs_had(dims, digest):
    sampler = EvaluationSampler(sizes(500, 3, dims=dims), 4 * 34 * 34, 3)
    batches = [[tuple(slot)[:4] for slot in batch] for batch in sampler]
    assert len(batches) == len(sampler)
    assert hashlib.sha256(repr(batches).encode()).hexdigest()[:16] == digest
