"""Which images form which batch: every image once, the same steps for any split, few shapes."""

import itertools

import numpy as np
import pytest

from data_utils.loading.batch_sampler import (
    BatchSplit,
    EvaluationSampler,
    TrainingSampler,
    epoch_batches,
    images_per_batch,
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
    micro_batches = list(sampler)
    assert len(micro_batches) == len(sampler)
    per_step = accumulation * world_size
    assert all(len(batch) == micro_batch_size for batch in micro_batches)
    return [
        [slot[:3] for batch in micro_batches[start : start + per_step] for slot in batch if not slot.filler]
        for start in range(0, len(micro_batches), per_step)
    ]


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


def test_batches_of_different_shapes_take_turns_in_random_order():
    shapes = np.array([[32, 32]] * 40 + [[48, 48]] * 40)
    sides = [batch.shape[0] for batch in epoch_batches(shapes, 4, seed=0, epoch=0)]
    assert sides.count(32) == sides.count(48) == 10
    changes = sum(before != after for before, after in itertools.pairwise(sides))
    assert changes > 4  # in the order of the shapes there would be one


def test_as_many_images_share_a_batch_as_its_pixels_hold_and_one_at_least():
    assert images_per_batch(100, (5, 10)) == 2
    assert images_per_batch(100, (5, 11)) == 1
    assert images_per_batch(100, (20, 20)) == 1
    assert images_per_batch(100, (2, 5, 2)) == 5


def test_fillers_repeat_an_image_of_the_step_and_are_marked():
    batches = list(TrainingSampler(np.full((5, 2), 32), BatchSplit(5, 2, 2, 2), 0, range(1)))
    assert len(batches) == 4  # 5 images on 2 processes in micro-batches of 2: two rounds, 8 places
    slots = [slot for batch in batches for slot in batch]
    assert sum(slot.filler for slot in slots) == 3
    assert {slot.index for slot in slots if slot.filler} <= {slot.index for slot in slots if not slot.filler}


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
