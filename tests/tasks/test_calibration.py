"""Calibration, which is how sure predictions are and how often they are right: against NumPy, and of known models."""

import pytest
import torch
from torch import Tensor

from data_utils.target import Target
from tasks.calibration import STEPS, calibration_error, count_confidences, no_counts
from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.task import Task
from train_utils.evaluation import Evaluation, read_strips
from train_utils.run_state import RunState

TASK = Classes(("a", "b", "c"))


def counts_of(task: Task, logits: Tensor, target: Target) -> Tensor:
    """The counts of an image."""
    return task.count_certainty(task.certainty(logits), task.decode(logits), target)


def sample(pixels: int, factor: float = 1.0) -> tuple[Tensor, ClassTarget]:
    """Logits (1, 3, pixels, 1), and classes drawn by the probabilities of `factor` times these."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1, 3, pixels, 1, generator=generator)
    probs = (factor * logits).softmax(1)[0, :, :, 0].T
    truth = torch.multinomial(probs, 1, generator=generator).view(1, pixels, 1)
    return logits, ClassTarget(truth)


def test_the_edge_of_a_bin_belongs_to_it(monkeypatch):
    """Counts of five pixels at the edges of bins, in parts; one more pixel is not counted."""
    monkeypatch.setattr("tasks.confusion.PIXELS_AT_ONCE", 2)
    confidence = torch.tensor([0.0, 1 / 15, 1 / 15 + 1e-4, 0.5, 1.0, 1.0])
    is_right = torch.tensor([False, True, True, False, True, True])
    counts_at_edges = count_confidences(confidence, is_right, torch.tensor([True] * 5 + [False]))
    assert counts_at_edges[:, 0].nonzero().flatten().tolist() == [0, 1, 7, 14]
    assert counts_at_edges[0].tolist() == [2, 1, round(STEPS / 15)]  # pixels, right ones, steps of confidence
    assert counts_at_edges[14].tolist() == [1, 1, STEPS]


def test_each_class_that_may_overlap_is_a_question_of_its_own():
    logits = torch.tensor([[[[0.25, -1.0]], [[-3.0, 0.5]]]])  # (1, 2, 1, 2)
    target = OverlapTarget(torch.tensor([[[1, 2]]]), torch.tensor([[[3, 1]]]))  # of the last pixel, class 0 is known
    counts = counts_of(Overlapping(("a", "b")), logits, target)
    confidences = torch.tensor([0.25, 1.0, 3.0]).sigmoid()
    assert counts[:, 0].sum() == 3
    assert counts[:, 1].sum() == 3
    assert counts[:, 2].sum() == sum(round(value * STEPS) for value in confidences.tolist())


def test_pixels_of_labeled_classes_are_counted():
    """A task with images that are labeled for all classes, or for the second one alone."""
    flags = torch.tensor([[True, True, True], [False, True, False]])
    partly_labeled = PartlyLabeledClasses(("a", "b", "c"), flags=flags)
    logits, target = sample(50)
    counts = counts_of(partly_labeled, logits, PartlyLabeledTarget(target.mask, torch.tensor([1])))
    assert counts[:, 0].sum() == (target.mask == 1).sum()


@pytest.fixture
def reliability() -> Tensor:
    """The counts of an image."""
    return counts_of(TASK, *sample(400))


def evaluation_of(reliability: Tensor | None) -> Evaluation:
    """An evaluation of one image that has these counts."""
    logits, target = sample(400)
    scores = TASK.new_scores(1)
    (prediction,), *_ = read_strips(TASK, logits.split(90, dim=2), target, no_counts())
    scores.add(prediction, target, 0)
    scores.reliability = reliability
    return Evaluation(1, 0.5, scores)


def test_an_evaluation_records_the_error(reliability):
    assert evaluation_of(reliability).record()["eval/calibration_error"] == calibration_error(reliability)
    assert "eval/calibration_error" not in evaluation_of(None).record()


def test_a_checkpoint_keeps_the_counts_and_one_of_an_earlier_version_has_none(reliability):
    state = RunState()
    state.update(evaluation_of(reliability), is_best=True)
    assert torch.equal(state.best_evaluation(TASK).scores.reliability, reliability)
    del state.best_scores["reliability"]
    assert state.best_evaluation(TASK).scores.reliability is None
