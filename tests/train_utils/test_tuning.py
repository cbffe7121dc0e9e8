"""For which shapes cuDNN times its kernels."""

import numpy as np
import pytest
import torch
from in_process import parsed

from train_utils.tuning import KernelTuning

SHAPES = np.array([(8, 8)] * 10 + [(8, 16)] * 6 + [(32, 32)] * 4)  # of twenty training images


def tuned(*flags: str, total_steps: int | None = None) -> set[tuple[int, ...]]:
    settings = parsed("--dataset", "shapes", "--plan", "none", "--batch-size", "4", *flags)
    return KernelTuning.from_args(settings, torch.device("cpu"), SHAPES, total_steps).shapes


@pytest.mark.parametrize(
    ("steps", "shapes"),
    [
        (1999, set()),
        (2000, {(8, 8)}),
        (3333, {(8, 8)}),
        (3334, {(8, 8), (8, 16)}),
        (4999, {(8, 8), (8, 16)}),
        (5000, {(8, 8), (8, 16), (32, 32)}),
    ],
)
def test_kernels_are_timed_for_shapes_of_a_thousand_steps(steps, shapes):
    assert tuned(total_steps=steps) == shapes
    assert tuned("--deterministic", total_steps=steps) == set()


def test_epochs_are_counted_in_steps_and_ten_minutes_pay_for_every_shape():
    assert tuned("--epochs", "399") == set() and tuned("--epochs", "400") == {(8, 8)}  # five steps each
    assert tuned("--max-minutes", "10") == {(8, 8), (8, 16), (32, 32)}
    assert tuned("--max-minutes", "9.9") == set()
    assert tuned("--max-minutes", "1", total_steps=2000) == {(8, 8)}  # a resumed run knows its steps


def test_kernels_are_timed_for_a_shape_that_is_among_them_on_a_gpu():
    for device, shape, is_timed in (("cuda", (8, 16), True), ("cuda", (16, 8), False), ("cpu", (8, 16), False)):
        tuning = KernelTuning(torch.device(device), {(8, 16), (4, 4)})
        with tuning.for_shape(torch.Size(shape)):
            assert torch.backends.cudnn.benchmark is is_timed
        assert torch.backends.cudnn.benchmark is False
