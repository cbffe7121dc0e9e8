"""Regions, which are unions of labels: how they become labels, and the scores of both.

Modules: tasks/overlapping/loss.py, tasks/overlapping/scores.py.
"""

import pytest
import torch

from tasks.overlapping.loss import Regions
from tasks.overlapping.scores import last_bits
from tasks.overlapping.target import OverlapTarget, Region

BRATS = (Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (3,)))
TASK = Regions(("whole", "core", "active"), regions=BRATS)


def test_the_last_region_is_the_highest_bit():
    bits = torch.arange(1, 2**9)
    assert last_bits(bits, 9).tolist() == [1 << int(value).bit_length() - 1 for value in bits]
    assert last_bits(torch.tensor([0, 2**31 - 1]), 31).tolist() == [0, 2**30]


def test_labels_are_scored_and_reported_beside_regions():
    """Scores of eight pixels, of which five have the right label or none."""
    scores = TASK.new_scores(1)
    bits_of = torch.tensor([0, 1, 3, 7], dtype=torch.int32)  # of the labels 0 to 3
    truth, predicted_labels = torch.tensor([[[1, 2, 3, 3], [0, 2, 2, 0]]]), torch.tensor([[[1, 2, 2, 3], [0, 0, 1, 1]]])
    target = OverlapTarget(bits_of[truth], torch.full((1, 2, 4), 7, dtype=torch.int32))
    scores.add(bits_of[predicted_labels], target, 0)
    assert scores.values["iou"] == [5 / 7, 3 / 5, 1 / 2]
    assert scores.label_values["iou"] == [1 / 3, 1 / 4, 1 / 2]
    assert scores.comparison == pytest.approx((5 / 7 + 3 / 5 + 1 / 2) / 3)
    report = scores.report()
    # for pixels outside and inside of each region: how many were found outside and inside
    assert report["tables"] == [[[1, 1], [1, 5]], [[3, 0], [2, 3]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["tables"] == [[[5, 2], [0, 1]], [[4, 1], [2, 1]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["labels"] == ["label 1", "label 2", "label 3"]


def test_labels_are_scored_where_pixels_are_known():
    scores = TASK.new_scores(1)
    target = OverlapTarget(torch.tensor([[[1, 0]]]), torch.tensor([[[7, 0]]]))
    scores.add(torch.tensor([[[1, 1]]]), target, 0)
    assert scores.label_values["iou"] == [1, None, None]


def test_a_region_without_those_around_it_is_read_as_its_label_will_be():
    logits = torch.tensor([[[-1.0, 2, -1, 1], [-1, -1, 3, -1], [-1, -1, -1, 2]]])  # (1, regions, pixels)
    assert TASK.decode(logits).tolist() == [[0, 1, 3, 7]]


def test_a_pixel_of_two_separate_regions_has_the_label_of_the_last_one():
    task = Regions(("a", "b"), regions=(Region("a", (1,)), Region("b", (2,))))
    assert task.decode(torch.ones(1, 2, 3)).tolist() == [[2, 2, 2]]


def test_a_region_is_scored_as_its_first_value():
    several_values = Regions(("whole", "core"), regions=(Region("whole", (3, 1, 2)), Region("core", (2, 1))))
    scores = several_values.new_scores(1)
    # of four pixels of the whole three are found; of the core, none of two
    truth = torch.tensor([[[1, 1, 3, 3, 0]]])
    prediction = torch.tensor([[[1, 1, 1, 0, 0]]])
    scores.add(prediction, OverlapTarget(truth, torch.full_like(truth, 3)), 0)
    assert scores.values["iou"] == [3 / 4, 0]
    assert scores.label_values["iou"] == [2 / 3, 0]  # as labels, two of three written pixels are right
    assert scores.image_comparison == pytest.approx([3 / 8])  # of the regions alone
    assert scores.report()["of_labels"]["labels"] == ["label 3", "label 2"]
