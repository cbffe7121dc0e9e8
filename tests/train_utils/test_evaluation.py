"""What an evaluation is logged as, and what it says.

Modules: train_utils/results.py.
"""

from dataclasses import replace

import torch

from tasks.classes import Classes, ClassScores, ClassTarget
from train_utils.evaluation import Evaluation
from unet.config import Preprocess, UNetConfig

MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])


def test_an_evaluation_has_the_scores_of_its_matrix_under_the_names_that_are_logged():
    scores = ClassScores(("a", "b", "c"), MATRIX, torch.tensor([[0.5], [1.0]]))
    evaluation = Evaluation(30, 0.25, scores)
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
    assert scores.comparison == evaluation.record()["eval/mean_iou"]
    assert scores.image_comparison == [0.5, 1.0]
    assert scores.summary().startswith("mean IoU 0.6786, mean Dice 0.7949, pixel accuracy 0.8750")
    assert [line.split()[0] for line in scores.table().splitlines()] == ["class", "a", "b", "c", "mean"]


def test_an_evaluation_of_nothing_is_worth_nothing():
    evaluation = Evaluation(1, None, Classes(("a", "b")).new_scores(0))
    assert evaluation.scores.comparison == 0.0 and evaluation.scores.image_comparison == []
    assert evaluation.record()["eval/mean_iou"] is None and evaluation.record()["eval/loss"] is None


def test_classes_without_names_are_called_by_their_mask_values():
    config = UNetConfig(num_classes=2, preprocess=Preprocess(class_values=(0, 255)))
    assert Classes.from_config(config).names == ("0", "255")
    assert Classes.from_config(UNetConfig(num_classes=2)).names == ("0", "1")
    named = replace(config, preprocess=Preprocess(class_names=("sky", "land"), class_values=(0, 255)))
    assert Classes.from_config(named).names == ("sky", "land")


def test_scores_are_of_all_that_was_added_and_each_image_has_its_own():
    scores = Classes(("a", "b")).new_scores(3)
    truth = torch.tensor([[[0, 0, 1, 255]]], dtype=torch.uint8)
    assert scores.values["pixel_accuracy"] is None
    scores.add(torch.tensor([[[0, 0, 1, 1]]]), ClassTarget(truth), 2)
    assert scores.values["pixel_accuracy"] == 1
    scores.add(torch.tensor([[[0, 1, 1, 1]]]), ClassTarget(truth), 0)
    assert scores.values["pixel_accuracy"] == 5 / 6  # nothing is remembered of the scores before
    assert scores.sums.tolist() == [[3, 1], [0, 2]]
    assert scores.image_comparison == [0.5, 0.0, 1.0]
    filler = ClassTarget(torch.full_like(truth, 255))
    scores.add(torch.tensor([[[0, 1, 1, 1]]]), filler, 2)
    assert scores.image_comparison == [0.5, 0.0, 1.0]
