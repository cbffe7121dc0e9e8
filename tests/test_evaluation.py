"""What an evaluation is logged as, and what it says."""

import torch

from train_utils.evaluation import Evaluation

MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])


def test_an_evaluation_has_the_scores_of_its_matrix_under_the_names_that_are_logged():
    evaluation = Evaluation(30, ("a", "b", "c"), MATRIX, 0.25, [0.5, 1.0])
    assert evaluation.record() == {
        "eval/loss": 0.25,
        "eval/mean_iou": (90 / 105 + 15 / 30) / 2,
        "eval/mean_dice": (180 / 195 + 30 / 45) / 2,
        "eval/pixel_accuracy": 105 / 120,
        "eval/iou/a": 90 / 105,
        "eval/iou/b": 15 / 30,
        "eval/iou/c": None,
        "eval/dice/a": 180 / 195,
        "eval/dice/b": 30 / 45,
        "eval/dice/c": None,
    }
    assert evaluation.mean_iou == evaluation.record()["eval/mean_iou"]
    assert evaluation.scores is evaluation.scores  # computed once
    assert evaluation.summary().startswith("mean IoU 0.6786, mean Dice 0.7949, pixel accuracy 0.8750")
    assert [line.split()[0] for line in evaluation.table().splitlines()] == ["class", "a", "b", "c", "mean"]


def test_an_evaluation_of_nothing_is_worth_nothing():
    evaluation = Evaluation(1, ("a", "b"), torch.zeros(2, 2, dtype=torch.int64), None, [])
    assert evaluation.mean_iou == 0.0
    assert evaluation.record()["eval/mean_iou"] is None and evaluation.record()["eval/loss"] is None
