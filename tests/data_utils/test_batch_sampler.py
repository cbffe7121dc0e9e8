"""Which images form which batch: every image once, the same steps for any split, few shapes."""

import numpy as np
import pytest

from data_utils.loading.batch_sampler import (
    BatchSplit,
    EvaluationSampler,
    Slot,
    TrainingSampler,
    epoch_batches,
    padded_shapes,
)


def sizes(count: int = 57, kinds: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(32, 32 + 3 * kinds, (count, 2))


def images_of_steps(
    micro_batch_size: int, world_size: int, steps: range, batch_size: int = 8, seed: int = 3
) -> list[list[tuple]]:
    """(index, epoch, shape) of the real images of each step, put together over processes and micro-batches."""
    shapes = padded_shapes(sizes())
    accumulation = -(-batch_size // (micro_batch_size * world_size))
    split = BatchSplit(batch_size, world_size, micro_batch_size, accumulation)
    sampler = TrainingSampler(shapes, split, seed, steps)
    return [[slot[:3] for batch in step for slot in batch if not slot.filler] for step in steps_of(sampler)]


def steps_of(sampler: TrainingSampler) -> list[list[list[Slot]]]:
    """The micro-batches of each step: equally many on each process, none larger than allowed or without an image."""
    split = sampler.split
    steps: list[list[list[Slot]]] = [[]]
    for number, batch in enumerate(sampler):
        if number % split.processes == 0 and steps[-1] and steps[-1][-1][0].ends_step:
            steps.append([])
        steps[-1].append(batch)
        assert 1 <= len(batch) <= split.micro_batch_size
        assert len({(slot.filler, slot.ends_step) for slot in batch}) == 1
    for step in steps:
        ends = [batch[0].ends_step for batch in step]
        assert ends == [False] * (len(step) - split.processes) + [True] * split.processes
        assert not step[-split.processes][0].filler  # the first process has an image in each round
    return steps


@pytest.mark.parametrize(("micro_batch_size", "world_size"), [(4, 2), (3, 3), (2, 4), (1, 1), (2, 1), (5, 2)])
def test_steps_hold_the_same_images_in_the_same_order_on_any_split(micro_batch_size, world_size):
    assert images_of_steps(micro_batch_size, world_size, range(20)) == images_of_steps(8, 1, range(20))


def test_each_epoch_holds_every_image_once_and_differs_from_the_last():
    steps = images_of_steps(4, 2, range(16))  # 57 images in batches of 8: 8 steps
    first, second = ([slot[0] for step in part for slot in step] for part in (steps[:8], steps[8:]))
    assert sorted(first) == sorted(second) == list(range(57))
    assert first != second
    assert {slot[1] for step in steps[8:] for slot in step} == {1}


def test_a_resumed_run_continues_with_the_remaining_steps():
    assert images_of_steps(4, 2, range(5, 20)) == images_of_steps(4, 2, range(20))[5:]


def test_all_images_of_a_step_share_one_shape_that_holds_them():
    original = sizes()
    for step in images_of_steps(2, 2, range(16)):
        assert len({shape for _, _, shape in step}) == 1
        assert all((original[index] <= shape).all() for index, _, shape in step)


def test_only_one_batch_of_an_epoch_is_short():
    lengths = [len(batch.indices) for batch in epoch_batches(padded_shapes(sizes()), 8, seed=0, epoch=0)]
    assert sorted(lengths) == [1] + [8] * 7


@pytest.mark.parametrize(
    ("batch", "processes", "micro_batch", "accumulation", "sizes", "line"),
    [
        (16, 2, 4, 2, [4, 4, 4, 4], "16 in a step = 4 in a micro-batch x 2 processes x 2 accumulation steps"),
        (13, 2, 4, 2, [4, 3, 3, 3], "13 in a step = 3 or 4 in a micro-batch x 2 processes x 2 accumulation steps"),
        (9, 8, 2, 1, [2, *7 * [1]], "9 in a step = 1 or 2 in a micro-batch x 8 processes x 1 accumulation steps"),
        (4, 8, 1, 1, 4 * [1], "4 in a step = 0 or 1 in a micro-batch x 8 processes x 1 accumulation steps"),
        (5, 4, 1, 2, 5 * [1], "5 in a step = 0 or 1 in a micro-batch x 4 processes x 2 accumulation steps"),
        (8, 1, 3, 4, [2, 2, 2, 2], "8 in a step = 2 in a micro-batch x 1 processes x 4 accumulation steps"),
    ],
)
def test_a_process_without_an_image_repeats_one_and_all_others_have_equally_many(
    batch, processes, micro_batch, accumulation, sizes, line
):
    split = BatchSplit(batch, processes, micro_batch, accumulation)
    assert str(split) == line
    (step,) = steps_of(TrainingSampler(np.full((batch, 2), 32), split, 0, range(1)))
    assert len(step) == processes * accumulation
    real = [slots for slots in step if not slots[0].filler]
    assert [len(slots) for slots in real] == sizes
    fillers = step[len(real) :]
    assert [len(slots) for slots in fillers] == [1] * split.idle
    assert all(slots[0].index == step[0][0].index and slots[0].filler for slots in fillers)


@pytest.mark.parametrize(("images", "sizes"), [(1, [1, 0]), (3, [2, 1]), (4, [2, 2]), (5, [2, 1, 1, 1])])
def test_a_step_of_few_images_has_few_micro_batches(images, sizes):
    assert BatchSplit(8, 2, 2, 2).sizes(images) == sizes


def test_few_sizes_are_never_padded_and_many_become_few_shapes():
    few = sizes(100, kinds=1)[:, :1] // 32 * np.array([[32, 48]])
    assert (padded_shapes(few) == few).all()
    many = sizes(3000, kinds=300)
    shapes = padded_shapes(many)
    assert len(np.unique(shapes, axis=0)) <= 16
    assert (shapes >= many).all()
    # measured 1.56; one shape for all would take 4.0 times the pixels
    assert shapes.prod(axis=1).sum() < 1.6 * many.prod(axis=1).sum()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_every_image_once_unpadded_in_batches_that_no_process_count_changes(world_size):
    shapes = sizes(23, kinds=1)
    pixels = 3 * 34 * 34  # three images of any of these shapes
    sampler = EvaluationSampler(shapes, pixels, world_size)
    real = [[slot for slot in batch if not slot.filler] for batch in sampler]
    assert sorted(slot.index for batch in real for slot in batch) == list(range(23))
    assert all((shapes[slot.index] == slot.shape).all() for batch in real for slot in batch)
    assert len(sampler) % world_size == 0
    alone = list(EvaluationSampler(shapes, pixels, 1))
    assert [batch for batch in real if batch] == alone
