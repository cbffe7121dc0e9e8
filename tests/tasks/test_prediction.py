"""Logits become predictions: probabilities, their uncertainty, and what is exactly as likely as not.

Modules: tasks/prediction.py, runtime/scratch.py.
"""

import errno
import os
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from inference.views import average, mirror_back
from runtime import scratch
from runtime.errors import ImageError
from tasks.classes.loss import Classes
from tasks.landmarks.loss import Landmarks
from tasks.objects.loss import Objects
from tasks.overlapping.loss import Overlapping
from tasks.prediction import decode_strips

NAMES = ("a", "b", "c")
SIDED = Overlapping(NAMES, partners=(1, 0, 2))


@pytest.mark.parametrize("task", [Classes(NAMES), Overlapping(NAMES), Objects(), Landmarks(NAMES, nowhere=3.0)])
def test_certain_predictions_have_logits_that_are_numbers(task):
    probabilities = torch.tensor([[1.0, 0.0, 0.0]])[..., None]
    logits = task.logits_from_probabilities(probabilities)
    assert logits.isfinite().all()
    torch.testing.assert_close(task.probabilities(logits), probabilities, atol=1e-6, rtol=0)


@pytest.mark.parametrize("classes", [2, 3, 7, 39])
def test_the_largest_uncertainty_is_255_of_any_number_of_classes(classes):
    task = Classes(tuple(map(str, range(classes))))
    logits = torch.full((classes, 1, 1), 0.3)
    assert decode_strips(task, [logits], (1, 1), "a", wanted=("uncertainty",)).uncertainty.tolist() == [[255]]
    assert task.entropy(logits[None]).item() <= 1


ALL_TASKS = [Classes(NAMES), SIDED, Objects(), Landmarks(NAMES, nowhere=3.0, partners=(1, 0, 2))]


@pytest.fixture
def two_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of two images."""
    first, second = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    return first, second


def test_a_mirror_image_is_read_with_the_outputs_of_the_other_side():
    logits = torch.arange(6.0).view(1, 3, 2)
    assert mirror_back(SIDED, logits)[0].tolist() == [[3, 2], [1, 0], [5, 4]]
    assert mirror_back(Classes(NAMES), logits)[0].tolist() == [[1, 0], [3, 2], [5, 4]]


@pytest.mark.parametrize("task", [Classes(NAMES), SIDED])
def test_the_average_is_the_mean_of_the_probabilities_of_all_views(task):
    views = [torch.tensor([[p, 1 - p, 0.0]])[..., None] for p in (0.1, 0.3, 0.8)]
    mean = average(task, [task.logits_from_probabilities(view) for view in views])
    torch.testing.assert_close(task.probabilities(mean)[0, :, 0], torch.tensor([0.4, 0.6, 0.0]))


@pytest.mark.parametrize("task", ALL_TASKS)
def test_a_prediction_is_the_same_in_any_strips(task, two_images):
    logits, _ = two_images
    wanted = ("probabilities", "uncertainty")
    strips, whole = (
        decode_strips(task, pieces, (4, 5), "a", wanted=wanted) for pieces in (logits.split([1, 3], 1), [logits])
    )
    assert strips.objects == whole.objects
    np.testing.assert_array_equal(whole.probabilities, task.probabilities(logits[None])[0])
    np.testing.assert_allclose(strips.labels, whole.labels, rtol=1e-6)
    np.testing.assert_allclose(strips.probabilities, whole.probabilities, rtol=1e-6)
    np.testing.assert_array_equal(strips.uncertainty, whole.uncertainty)


@pytest.mark.parametrize(("task", "dtype"), [(SIDED, "int32"), (Classes(NAMES), "uint8"), (Objects(), "int32")])
def test_a_prediction_is_the_same_on_the_device(task, dtype, two_images):
    logits, _ = two_images
    labels, _, *unwanted = decode_strips(task, [logits], (4, 5), "a")
    assert unwanted == [None] * 3
    assert labels.dtype == dtype
    assert (task.labels_of_variants(task.decode(logits[None]))[0][0].numpy() == labels).all()


@pytest.mark.parametrize("task", ALL_TASKS)
def test_logits_that_are_no_numbers_are_refused(task):
    logits = torch.zeros(3, 4, 5)
    logits[1, 2, 3] = torch.nan
    with pytest.raises(ImageError, match="a: the network's outputs are not finite numbers"):
        decode_strips(task, logits.split(2, dim=1), (4, 5), "a")


def test_a_large_prediction_lies_in_a_file_that_is_gone_with_it(two_images, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "IN_MEMORY", 10)
    labels = decode_strips(Objects(), [two_images[0]], (4, 5), "a", folder=tmp_path).labels
    assert isinstance(labels, np.memmap)
    assert list(tmp_path.iterdir()) == []
    assert (labels == decode_strips(Objects(), [two_images[0]], (4, 5), "a").labels).all()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="for systems that reserve files")
@pytest.mark.parametrize(("number", "fails"), [(errno.ENODEV, False), (errno.EOPNOTSUPP, False), (errno.ENOSPC, True)])
def test_a_large_prediction_is_in_memory_where_the_file_system_maps_no_files(tmp_path, monkeypatch, number, fails):
    def fail(*_: object) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="full") if fails else nullcontext():
        array = scratch.zeros((3000, 3000), "uint8", tmp_path)
        assert not isinstance(array, np.memmap)
        assert array.shape == (3000, 3000)


def test_of_a_single_class_all_is_sure():
    assert Classes(("a",)).entropy(torch.zeros(1, 1, 1, 2)).tolist() == [[[0, 0]]]


def test_a_class_that_is_exactly_as_likely_as_not_is_not_there():
    logits = torch.tensor([[[0.0, 1e-6, -1e-6], [1e-6, 0.0, 0.0]]])
    assert Overlapping(("a", "b")).decode(logits).tolist() == [[2, 1, 0]]
