"""Regions, which are unions of labels: how they become labels, and the scores of both.

Modules: tasks/overlapping/loss.py, tasks/overlapping/scores.py.
"""

import pytest
import torch

from runtime.errors import ModelError
from tasks import task_of_model
from tasks.overlapping.loss import Regions
from tasks.overlapping.scores import RegionScores, last_bits
from tasks.overlapping.target import OverlapTarget, Region
from unet.config import UNetConfig

BRATS = (Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (3,)))
TASK = Regions(("whole", "core", "active"), regions=BRATS)


def test_the_last_region_is_the_highest_bit():
    bits = torch.arange(1, 2**9)
    assert last_bits(bits, 9).tolist() == [1 << int(value).bit_length() - 1 for value in bits]
    assert last_bits(torch.tensor([0, 2**31 - 1]), 31).tolist() == [0, 2**30]


@pytest.fixture
def scores() -> RegionScores:
    """Scores of eight pixels, of which five have the right label or none."""
    scores = TASK.new_scores(1)
    bits_of = torch.tensor([0, 1, 3, 7], dtype=torch.int32)  # of the labels 0 to 3
    truth, predicted_labels = torch.tensor([[[1, 2, 3, 3], [0, 2, 2, 0]]]), torch.tensor([[[1, 2, 2, 3], [0, 0, 1, 1]]])
    target = OverlapTarget(bits_of[truth], torch.full((1, 2, 4), 7, dtype=torch.int32))
    scores.add(bits_of[predicted_labels], target, 0)
    return scores


def test_labels_are_scored_beside_regions(scores):
    assert scores.values["iou"] == [5 / 7, 3 / 5, 1 / 2]
    assert scores.label_values["iou"] == [1 / 3, 1 / 4, 1 / 2]
    assert scores.comparison == pytest.approx((5 / 7 + 3 / 5 + 1 / 2) / 3)


def test_labels_are_scored_where_pixels_are_known():
    scores = TASK.new_scores(1)
    target = OverlapTarget(torch.tensor([[[1, 0]]]), torch.tensor([[[7, 0]]]))
    scores.add(torch.tensor([[[1, 1]]]), target, 0)
    assert scores.label_values["iou"] == [1, None, None]


def test_a_report_has_the_tables_of_regions_beside_those_of_labels(scores):
    report = scores.report()
    # for pixels outside and inside of each region: how many were found outside and inside
    assert report["tables"] == [[[1, 1], [1, 5]], [[3, 0], [2, 3]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["tables"] == [[[5, 2], [0, 1]], [[4, 1], [2, 1]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["labels"] == ["label 1", "label 2", "label 3"]


def test_a_region_without_those_around_it_is_read_as_its_label_will_be():
    logits = torch.tensor([[[-1.0, 2, -1, 1], [-1, -1, 3, -1], [-1, -1, -1, 2]]])  # (1, regions, pixels)
    assert TASK.decode(logits).tolist() == [[0, 1, 3, 7]]


def test_a_pixel_of_two_separate_regions_has_the_label_of_the_last_one():
    task = Regions(("a", "b"), regions=(Region("a", (1,)), Region("b", (2,))))
    assert task.decode(torch.ones(1, 2, 3)).tolist() == [[2, 2, 2]]


SEVERAL_VALUES = Regions(("whole", "core"), regions=(Region("whole", (3, 1, 2)), Region("core", (2, 1))))


def test_a_region_is_scored_as_its_first_value():
    scores = SEVERAL_VALUES.new_scores(1)
    # of four pixels of the whole three are found; of the core, none of two
    truth = torch.tensor([[[1, 1, 3, 3, 0]]])
    prediction = torch.tensor([[[1, 1, 1, 0, 0]]])
    scores.add(prediction, OverlapTarget(truth, torch.full_like(truth, 3)), 0)
    assert scores.values["iou"] == [3 / 4, 0]
    assert scores.label_values["iou"] == [2 / 3, 0]  # as labels, two of three written pixels are right
    assert scores.image_comparison == pytest.approx([3 / 8])  # of the regions alone
    assert scores.report()["of_labels"]["labels"] == ["label 3", "label 2"]


def test_a_model_keeps_its_regions():
    task = Regions(TASK.names, regions=BRATS, partners=(0, 2, 1), mirrors=False)
    config = UNetConfig(num_classes=3, task=task.to_config())
    restored = task_of_model(UNetConfig.from_json(config.to_json()))
    assert isinstance(restored, Regions)
    assert restored.regions == BRATS
    assert restored.partners == (0, 2, 1)
    assert restored.mirrors is False


@pytest.mark.parametrize(
    ("regions", "mistake"),
    [
        (None, "is damaged"),
        ([["whole", ["x"]]] * 3, "is damaged"),
        ([["whole", [float("inf")]]] * 3, "is damaged"),
        ([["whole", []], ["a", [1]], ["b", [2]]], "is damaged.*a region has no values"),
        ([["whole", [1]]], "does not fit its 3 outputs$"),
    ],
    ids=["no regions", "a word for a value", "an infinite value", "an empty region", "too few regions"],
)
def test_damaged_regions_are_refused(regions, mistake):
    with pytest.raises(ModelError, match=rf"^the model's task .*{mistake}"):
        task_of_model(UNetConfig(num_classes=3, task={"name": "regions", "regions": regions}))
