"""Logits become predictions: probabilities, their uncertainty, and what is exactly as likely as not."""

import pytest
import torch

from inference.decoding import new_decoder
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping

NAMES = ("a", "b", "c")


@pytest.mark.parametrize("task", [Classes(NAMES), Overlapping(NAMES), Objects(), Landmarks(NAMES, nowhere=3.0)])
def test_certain_answers_have_logits_that_are_numbers(task):
    probabilities = torch.tensor([1.0, 0.0, 0.0])[:, None]
    logits = new_decoder(task).logits_of(probabilities)
    assert logits.isfinite().all()
    torch.testing.assert_close(new_decoder(task).probabilities(logits), probabilities, atol=1e-6, rtol=0)


def test_the_largest_uncertainty_is_255_of_any_number_of_classes():
    for classes in range(2, 40):
        decoder = new_decoder(Classes(tuple(map(str, range(classes)))))
        assert decoder.uncertainty(torch.full((classes, 1, 1), 0.3)).tolist() == [[255]], classes


def test_a_class_that_is_exactly_as_likely_as_not_is_not_there():
    logits = torch.tensor([[0.0, 1e-6, -1e-6], [1e-6, 0.0, 0.0]])[:, None]
    assert new_decoder(Overlapping(("a", "b"))).decode(logits).tolist() == [[2, 1, 0]]
