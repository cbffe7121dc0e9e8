"""Logits become predictions: probabilities, their uncertainty, and what is exactly as likely as not."""

import numpy as np
import pytest
import torch
from inference.outputs.uncertainty import uncertainty_levels

from inference.decoding import new_decoder
from inference.decoding.views import average, mirror_back
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping

NAMES = ("a", "b", "c")
SIDED = Overlapping(NAMES, partners=(1, 0, 2))


@pytest.mark.parametrize("task", [Classes(NAMES), Overlapping(NAMES), Objects(), Landmarks(NAMES, nowhere=3.0)])
def test_certain_answers_have_logits_that_are_numbers(task):
    probabilities = torch.tensor([1.0, 0.0, 0.0])[:, None]
    logits = new_decoder(task).logits_from_probabilities(probabilities)
    assert logits.isfinite().all()
    torch.testing.assert_close(new_decoder(task).probabilities(logits), probabilities, atol=1e-6, rtol=0)


@pytest.mark.parametrize("classes", range(2, 40))
def test_the_largest_uncertainty_is_255_of_any_number_of_classes(classes):
    decoder = new_decoder(Classes(tuple(map(str, range(classes)))))
    assert uncertainty_levels(decoder, torch.full((classes, 1, 1), 0.3)).tolist() == [[255]]
    assert decoder.entropy(torch.full((classes, 1, 1), 0.3)).item() <= 1


MASK_TASKS = [Classes(NAMES), SIDED, Objects()]
ALL_TASKS = [*MASK_TASKS, Landmarks(NAMES, nowhere=3.0, partners=(1, 0, 2))]


@pytest.fixture
def two_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of two images."""
    first, second = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    return first, second


@pytest.mark.parametrize("task", ALL_TASKS)
def test_probabilities_of_a_batch_are_those_of_each_image(task, two_images):
    decoder = new_decoder(task)
    logits, _ = two_images
    torch.testing.assert_close(decoder.probabilities(logits[None], dim=1)[0], decoder.probabilities(logits))


@pytest.mark.parametrize("task", ALL_TASKS)
def test_logits_of_the_probabilities_of_a_batch_are_those_of_each_image(task, two_images):
    decoder = new_decoder(task)
    probabilities = decoder.probabilities(two_images[0])
    torch.testing.assert_close(
        decoder.logits_from_probabilities(probabilities[None], dim=1)[0],
        decoder.logits_from_probabilities(probabilities),
    )


@pytest.mark.parametrize("task", ALL_TASKS)
def test_views_of_a_batch_are_averaged_as_those_of_each_image(task, two_images):
    decoder = new_decoder(task)
    first, second = two_images
    of_batch = average(decoder, [first[None], second[None]], dim=1)
    torch.testing.assert_close(of_batch[0], average(decoder, [first, second]))


@pytest.mark.parametrize("task", ALL_TASKS)
def test_views_of_a_batch_are_mirrored_back_as_those_of_each_image(task, two_images):
    logits, _ = two_images
    torch.testing.assert_close(mirror_back(task, logits[None], dim=1)[0], mirror_back(task, logits))


@pytest.mark.parametrize("task", MASK_TASKS)
def test_a_batch_is_decoded_as_each_image(task, two_images):
    decoder = new_decoder(task)
    logits, _ = two_images
    torch.testing.assert_close(decoder.decode(logits[None], dim=1)[0], decoder.decode(logits))


def test_a_mirror_image_is_read_with_the_outputs_of_the_other_side():
    logits = torch.arange(6.0).view(3, 1, 2)
    assert mirror_back(SIDED, logits)[:, 0].tolist() == [[3, 2], [1, 0], [5, 4]]
    assert mirror_back(Classes(NAMES), logits)[:, 0].tolist() == [[1, 0], [3, 2], [5, 4]]


@pytest.mark.parametrize("task", [Classes(NAMES), SIDED])
def test_the_average_is_the_mean_of_the_probabilities_of_all_views(task):
    decoder = new_decoder(task)
    views = [torch.tensor([p, 1 - p, 0.0])[:, None] for p in (0.1, 0.3, 0.8)]
    mean = average(decoder, [decoder.logits_from_probabilities(view) for view in views])
    torch.testing.assert_close(decoder.probabilities(mean)[:, 0], torch.tensor([0.4, 0.6, 0.0]))


@pytest.mark.parametrize("devices", [("cpu", "meta"), ("meta", "cpu")])
def test_views_are_averaged_on_the_device_of_those_that_are_not_on_the_cpu(devices):
    views = [torch.zeros(3, 1, 2, device=device) for device in devices]
    assert average(new_decoder(Classes(NAMES)), views).device.type == "meta"


DTYPES = pytest.mark.parametrize(("task", "dtype"), [(SIDED, torch.int32), (Classes(NAMES), torch.uint8)])


@DTYPES
def test_strips_hold_the_rows_that_were_read(task, dtype, two_images):
    logits, _ = two_images
    first, second = new_decoder(task).read([logits[:, :1], logits[:, 1:]], "a", probabilities=False)
    assert first.rows.shape == (1, 5)
    assert second.rows.shape == (3, 5)
    assert first.rows.dtype == str(dtype).removeprefix("torch.")


@DTYPES
@pytest.mark.parametrize("wants", [False, True])
def test_strips_hold_probabilities_where_they_are_asked_for(task, dtype, wants, two_images):
    decoder = new_decoder(task)
    logits, _ = two_images
    strips = list(decoder.read([logits[:, :1], logits[:, 1:]], "a", probabilities=wants))
    strips.append(decoder.add(logits, probabilities=wants))
    assert [strip.probabilities is not None for strip in strips] == [wants] * 3


@pytest.mark.parametrize("task", ALL_TASKS)
def test_probabilities_of_strips_are_those_of_their_logits(task, two_images):
    decoder = new_decoder(task)
    logits, _ = two_images
    strip = decoder.add(logits, probabilities=True)
    np.testing.assert_array_equal(strip.probabilities, decoder.probabilities(logits))


@pytest.mark.parametrize("task", ALL_TASKS)
def test_strips_hold_what_is_given_beside_them(task, two_images):
    logits, _ = two_images
    strip = new_decoder(task).add(logits, probabilities=False, extras={"certainty": logits[0]})
    assert (strip.extras["certainty"] == logits[0].numpy()).all()


@DTYPES
def test_strips_are_the_same_on_the_device(task, dtype, two_images):
    decoder = new_decoder(task)
    logits, _ = two_images
    pieces = [decoder.add_on_device(piece[None]) for piece in (logits[:, :1], logits[:, 1:])]
    assert pieces[0].dtype == dtype
    rows = decoder.add(logits, probabilities=False).rows
    assert (decoder.finish_on_device(pieces)[0].numpy() == rows).all()


def test_objects_are_the_same_from_strips_and_on_the_device():
    decoder = new_decoder(Objects(smallest=5))
    logits = torch.full((3, 6, 8), -9.0)
    logits[1:, 1:3, 1:3] = logits[1:, 4:, 5:] = 9.0
    logits[0] = 0.0
    pieces = [decoder.add_on_device(piece[None]) for piece in logits.split(4, dim=1)]
    labels = decoder.finish_on_device(pieces)[0]
    strips = list(decoder.read(logits.split(4, dim=1), "a", probabilities=False))
    rows = [strip.rows for strip in strips if strip.rows is not None]
    assert np.array_equal(np.concatenate(rows), labels.numpy())
    assert [detected.size for detected in decoder.objects] == [6]


def test_of_a_single_class_all_is_sure():
    assert new_decoder(Classes(("a",))).entropy(torch.zeros(1, 1, 2)).tolist() == [[0, 0]]


def test_a_class_that_is_exactly_as_likely_as_not_is_not_there():
    logits = torch.tensor([[0.0, 1e-6, -1e-6], [1e-6, 0.0, 0.0]])[:, None]
    assert new_decoder(Overlapping(("a", "b"))).decode(logits).tolist() == [[2, 1, 0]]
