"""How sure predictions are, and how often they are right: against NumPy, and where the calibration is known.

Modules: tasks/calibration.py, tasks/classes.py, tasks/overlapping.py, tasks/partly_labeled.py,
train_utils/run_state.py.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.decoding import new_decoder
from tasks.calibration import (
    BINS,
    STEPS,
    calibration_error,
    calibration_report,
    count_confidences,
    no_counts,
    reliability_curve,
    replicated_sums,
)
from tasks.classes import Classes, ClassTarget
from tasks.overlapping import Overlapping, OverlapTarget
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from train_utils.evaluation import Evaluation, read_strips
from train_utils.run_state import RunState

TASK = Classes(("a", "b", "c"))


def by_hand(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """The expected calibration error as Guo et al. define it."""
    error = 0.0
    for low in np.arange(BINS) / BINS:
        in_bin = (confidence > low) & (confidence <= low + 1 / BINS)
        if in_bin.any():
            error += in_bin.mean() * abs(is_right[in_bin].mean() - confidence[in_bin].mean())
    return error


def sample(pixels: int, factor: float = 1.0) -> tuple[Tensor, ClassTarget]:
    """Logits (1, 3, pixels, 1), and classes drawn by the probabilities of `factor` times these."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1, 3, pixels, 1, generator=generator)
    probs = (factor * logits).softmax(1)[0, :, :, 0].T
    truth = torch.multinomial(probs, 1, generator=generator).view(1, pixels, 1)
    return logits, ClassTarget(truth)


@pytest.mark.parametrize("factor", [1.0, 0.3, 3.0])
def test_the_error_is_that_of_the_definition_and_near_zero_where_the_model_knows_how_sure_it_may_be(factor):
    logits, target = sample(100_000, factor)
    counts = TASK.reliability(logits, target)
    probs = logits.softmax(1)[0, :, :, 0].numpy()
    expected = by_hand(probs.max(0), probs.argmax(0) == target.mask[0, :, 0].numpy())
    assert calibration_error(counts) == pytest.approx(expected, abs=3e-5)  # a confidence is a whole number of steps
    assert expected < 0.005 if factor == 1 else expected > 0.05
    gaps = [point["accuracy"] - point["confidence"] for point in reliability_curve(counts)]
    if factor != 1:
        assert (np.mean(gaps) > 0) == (factor > 1)  # too little sure of itself, or too much


def test_counts_add_up_exactly_over_images_strips_and_copies(monkeypatch):
    logits, target = sample(1000)
    target.mask[0, ::7] = 255
    whole = TASK.reliability(logits, target)
    assert whole[:, 0].sum() == (target.mask != 255).sum()
    assert whole.dtype == torch.int64
    parts = [TASK.reliability(logits[:, :, top : top + 90], target.strip(top, top + 90)) for top in range(0, 1000, 90)]
    assert torch.equal(sum(parts), whole)
    monkeypatch.setattr("tasks.calibration.PIXELS_AT_ONCE", 77)
    assert torch.equal(TASK.reliability(logits, target), whole)
    bins = torch.arange(999) % (BINS + 1)
    values = torch.arange(999) * STEPS
    expected = torch.bincount(bins, values.double(), minlength=BINS + 1).long()
    assert torch.equal(replicated_sums(bins, values), expected)  # as on a device
    assert no_counts("meta").device.type == "meta"


def test_half_precision_is_counted_as_in_single():
    counted = torch.tensor([True])
    assert count_confidences(torch.tensor([0.5]).half(), counted, counted)[7].tolist() == [1, 1, STEPS // 2]
    logits, target = sample(200)
    assert torch.equal(TASK.reliability(logits.half(), target), TASK.reliability(logits.half().float(), target))
    task = Overlapping(("a", "b", "c"))
    bits = OverlapTarget(target.mask, torch.full_like(target.mask, 7))
    assert torch.equal(task.reliability(logits.half(), bits), task.reliability(logits.half().float(), bits))


def test_the_edges_of_bins_and_the_columns_are_those_that_are_documented():
    confidence = torch.tensor([0.0, 1 / 15, 1 / 15 + 1e-4, 0.5, 1.0, 1.0])
    is_right = torch.tensor([False, True, True, False, True, True])
    counts = count_confidences(confidence, is_right, torch.tensor([True] * 5 + [False]))
    assert counts[:, 0].nonzero().flatten().tolist() == [0, 1, 7, 14]
    assert counts[0].tolist() == [2, 1, round(STEPS / 15)]
    assert counts[14].tolist() == [1, 1, STEPS]
    assert calibration_error(no_counts()) is None
    assert calibration_report(None) is None
    assert calibration_report(no_counts()) is None
    report = calibration_report(counts)
    assert [point["pixels"] for point in report["bins"]] == [2, 1, 1, 1]
    assert report["bins"][0]["accuracy"] == 0.5
    assert report["bins"][2]["confidence"] == 0.5


def test_each_class_that_may_overlap_is_a_question_of_its_own():
    logits = torch.tensor([[[[2.0, -1.0]], [[-3.0, 0.5]]]])  # (1, 2, 1, 2)
    target = OverlapTarget(torch.tensor([[[1, 2]]]), torch.tensor([[[3, 1]]]))  # of the last pixel, class 0 is known
    counts = Overlapping(("a", "b")).reliability(logits, target)
    confidences = torch.tensor([2.0, 1.0, 3.0]).sigmoid()
    assert counts[:, 0].sum() == 3
    assert counts[:, 1].sum() == 3
    assert counts[:, 2].sum() == sum(round(value * STEPS) for value in confidences.tolist())
    absent = OverlapTarget(torch.tensor([[[0]]]), torch.tensor([[[1]]]))
    counts = Overlapping(("a",)).reliability(torch.zeros(1, 1, 1, 1), absent)
    assert counts[:, 1].sum() == 1  # a class is there where that is likelier than not


def test_of_images_that_are_labeled_for_some_classes_the_labeled_pixels_count():
    logits, target = sample(50)
    flags = torch.tensor([[True, True, True], [False, True, False]])
    task = PartlyLabeledClasses(("a", "b", "c"), flags=flags)
    counts = task.reliability(logits, PartlyLabeledTarget(target.mask, torch.tensor([1])))
    assert counts[:, 0].sum() == (target.mask == 1).sum()
    assert torch.equal(
        task.reliability(logits, PartlyLabeledTarget(target.mask, torch.tensor([0]))), TASK.reliability(logits, target)
    )


def test_an_evaluation_records_the_error_and_a_checkpoint_keeps_the_counts():
    logits, target = sample(400)
    scores = TASK.new_scores(1)
    reliability = no_counts()
    prediction, _ = read_strips(TASK, new_decoder(TASK), logits.split(90, dim=2), target, reliability)
    scores.add(prediction, target, 0)
    assert "eval/calibration_error" not in Evaluation(1, 0.5, scores).record()
    scores.reliability = reliability
    evaluation = Evaluation(1, 0.5, scores)
    assert evaluation.record()["eval/calibration_error"] == calibration_error(TASK.reliability(logits, target))
    state = RunState()
    state.update(evaluation)
    assert torch.equal(state.best_evaluation(TASK).scores.reliability, reliability)
    del state.best_scores["reliability"]  # a checkpoint of an earlier version
    assert state.best_evaluation(TASK).scores.reliability is None
    scores.reliability = no_counts()  # of a task that does not count them
    assert "reliability" not in scores.to_json()
    new_scores = TASK.new_scores(1)
    new_scores.reliability = reliability
    merged = TASK.new_scores(1)
    merged.merge(new_scores)
    merged.merge(new_scores)
    assert torch.equal(merged.reliability, 2 * reliability)
