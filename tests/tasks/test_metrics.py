"""Scores of classes: against a count pixel by pixel, with absent classes, ignored pixels and any batches.

Modules: tasks/confusion.py, tasks/classes/scores.py.
"""

import numpy as np
import pytest
import torch
from support.prediction import matrix_of

from tasks.classes.scores import ClassScores
from tasks.confusion import ClassCounts, class_scores, confusion_matrix, image_iou, replicated_sums, sums_by_cell
from tasks.scoring.boundary import BoundaryScores

MATRIX = torch.tensor([[3, 1], [0, 2]])


def matrix_scores(matrix: torch.Tensor) -> dict:
    """The scores of a confusion matrix."""
    return class_scores(ClassCounts.from_matrix(matrix))


def sample(seed: int = 0, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, classes, (7, 13, 11), generator=generator)
    preds = torch.where(
        torch.rand(masks.shape, generator=generator) < 0.7,
        masks,
        torch.randint(0, classes, masks.shape, generator=generator),
    )
    masks[torch.rand(masks.shape, generator=generator) < 0.1] = 255
    return preds, masks


def test_scores_are_those_of_pixels_counted_one_by_one():
    preds, masks = sample()
    matrix = confusion_matrix(preds, masks, 5)
    assert matrix.tolist() == matrix_of(preds.numpy(), masks.numpy(), 5)
    result = matrix_scores(matrix)
    is_valid = masks != 255
    for index in range(5):
        predicted, true = ((labels == index)[is_valid] for labels in (preds, masks))
        hits = (predicted & true).sum().item()
        assert result["iou"][index] == hits / (predicted | true).sum().item()
        assert result["dice"][index] == 2 * hits / (predicted.sum() + true.sum()).item()
        assert result["precision"][index] == hits / predicted.sum().item()
        assert result["recall"][index] == hits / true.sum().item()
    assert result["mean_iou"] == pytest.approx(sum(result["iou"]) / 5)
    assert result["mean_dice"] == pytest.approx(sum(result["dice"]) / 5)
    assert result["pixel_accuracy"] == (preds == masks)[is_valid].sum().item() / is_valid.sum().item()


def test_the_host_reads_nothing_of_a_device_to_score_an_image():
    # the meta device has no values: reading one raises
    preds, masks = (torch.zeros(2, 9, 7, dtype=torch.int64, device="meta") for _ in range(2))
    matrix = confusion_matrix(preds, masks, 3)
    assert matrix.shape == (3, 3)
    assert image_iou(ClassCounts.from_matrix(matrix)).shape == ()
    with pytest.raises(NotImplementedError):
        torch.bincount(preds.flatten())  # as on CUDA, where it reads the largest value


def test_a_prediction_of_background_alone_scores_zero_on_the_foreground():
    masks = torch.zeros(2, 8, 8, dtype=torch.int64)
    masks[:, 2:4, 2:4] = 1
    result = matrix_scores(confusion_matrix(torch.zeros_like(masks), masks, 3))
    assert result["dice"][1] == 0
    assert result["dice"][2] is None  # occurs nowhere, so it counts nowhere
    background = 2 * 120 / (128 + 120)
    assert result["mean_dice"] == background / 2
    scores = ClassScores(("background", "cell", "other"), confusion_matrix(masks * 0, masks, 3), torch.zeros(0, 1))
    assert scores.summary().endswith("only 'background' was predicted")
    alone = ClassScores(("background", "cell"), torch.tensor([[64, 0], [0, 0]]), torch.zeros(0, 1))
    assert "was predicted" not in alone.summary()  # there is nothing else to be found


@pytest.mark.parametrize("values", [None, torch.arange(500)])
def test_a_gpu_sums_each_cell_as_a_cpu_does(values):
    cells = torch.randint(0, 7, (500,), generator=torch.Generator().manual_seed(0))
    summed = torch.ones(500, dtype=torch.int32) if values is None else values
    assert torch.equal(replicated_sums(cells, 9, summed), sums_by_cell(cells, 9, values))


def test_pixels_that_are_counted_in_parts_add_up(monkeypatch):
    preds, masks = sample()
    whole = confusion_matrix(preds, masks, 5)
    monkeypatch.setattr("tasks.confusion.PIXELS_AT_ONCE", 77)
    assert torch.equal(confusion_matrix(preds, masks, 5), whole)


def test_pixel_accuracy_is_a_share_of_the_true_pixels():
    counts = ClassCounts(torch.tensor([1, 1]), torch.tensor([2, 2]), torch.tensor([1, 5]))  # of partly labeled images
    assert class_scores(counts)["pixel_accuracy"] == 0.5


def test_ignored_pixels_have_no_score():
    masks = torch.full((1, 3, 3), 255)
    result = matrix_scores(confusion_matrix(torch.zeros_like(masks), masks, 2))
    assert result["mean_iou"] is None
    assert result["pixel_accuracy"] is None


NAN = float("nan")
BOUNDARY = BoundaryScores(np.array([1, 0]), np.array([2, 0]), np.array([2.0, NAN]), NAN, np.array([False, False]))


def test_a_table_has_a_row_of_scores_for_each_class():
    scores = ClassScores(("a", "b"), MATRIX, torch.zeros(0, 1))
    scores.boundaries.append(BOUNDARY)
    (table,) = scores.score_tables()
    assert table.cells() == [
        ["class", "IoU", "Dice", "bound. IoU", "HD95 (px)", "precision", "recall", "pixels"],
        ["a", "0.7500", "0.8571", "0.5000", "2.0000", "1.0000", "0.7500", "4"],
        ["b", "0.6667", "0.8000", "n/a", "n/a", "0.6667", "1.0000", "2"],
        ["mean", "0.7083", "0.8286", "0.5000", "2.0000", "", "", ""],
    ]
