"""Regions, which are unions of labels: how they become labels, and the scores of both.

Modules: inference/decoding/regions.py.
"""

import pytest
import torch

from inference.decoding.regions import RegionDecoder
from runtime.errors import ModelError
from tasks import task_of_model
from tasks.overlapping import OverlapTarget
from tasks.regions import Region, Regions, RegionScores, last_bits
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


def test_regions_have_one_score_of_each_image():
    assert TASK.new_scores(2).by_image.tolist() == [[0], [0]]


def test_labels_are_scored_beside_regions(scores):
    assert scores.values["iou"] == [5 / 7, 3 / 5, 1 / 2]
    assert scores.label_values["iou"] == [1 / 3, 1 / 4, 1 / 2]
    assert scores.comparison == pytest.approx((5 / 7 + 3 / 5 + 1 / 2) / 3)


def test_a_report_has_the_scores_of_regions_beside_those_of_labels(scores):
    report = scores.report()
    assert report["iou"] == [5 / 7, 3 / 5, 1 / 2]
    assert report["of_labels"]["iou"] == [1 / 3, 1 / 4, 1 / 2]


def test_labels_are_scored_where_pixels_are_known():
    scores = TASK.new_scores(1)
    target = OverlapTarget(torch.tensor([[[1, 0]]]), torch.tensor([[[7, 0]]]))
    scores.add(torch.tensor([[[1, 1]]]), target, 0)
    assert scores.label_values["iou"] == [1, None, None]


def test_means_over_labels_are_recorded(scores):
    record = scores.record()
    assert record["eval/label_mean_iou"] == pytest.approx((1 / 3 + 1 / 4 + 1 / 2) / 3)
    assert record["eval/label_mean_dice"] == pytest.approx((1 / 2 + 2 / 5 + 2 / 3) / 3)


def test_a_summary_has_the_means_of_regions_before_those_of_labels(scores):
    regions, labels = "mean IoU 0.6048, mean Dice 0.7500", "mean IoU 0.3611, mean Dice 0.5222"
    assert scores.summary() == f"{regions}; of the labels {labels}"


def test_a_table_lists_regions_before_the_labels_that_are_written(scores):
    assert [line.split()[0] for line in scores.table().splitlines() if "IoU" in line] == ["class", "written"]


def test_a_table_has_scores_of_boundaries_beside_those_of_regions_alone(scores):
    boundary = {"boundary_iou": [0.25, 0.5, None], "mean_boundary_iou": 0.375}
    boundary |= {"hd95": [7.5, 1.5, None], "mean_hd95": 4.5}
    rows = [line.split() for line in scores.table(boundary).splitlines()]
    assert rows[1] == ["whole", "0.7143", "0.8333", "0.2500", "7.5000", "0.8333", "0.8333", "6"]
    assert rows[6] == ["label", "1", "0.3333", "0.5000", "0.3333", "1.0000", "1"]


def test_a_report_has_the_tables_of_regions_beside_those_of_labels(scores):
    report = scores.report()
    # for pixels outside and inside of each region: how many were found outside and inside
    assert report["tables"] == [[[1, 1], [1, 5]], [[3, 0], [2, 3]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["tables"] == [[[5, 2], [0, 1]], [[4, 1], [2, 1]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["labels"] == ["label 1", "label 2", "label 3"]


def test_scores_are_read_as_they_were_stored(scores):
    assert TASK.scores_from_json(scores.to_json()).report() == scores.report()


def test_a_region_without_those_around_it_is_read_as_its_label_will_be():
    logits = torch.tensor([[-1.0, 2, -1, 1], [-1, -1, 3, -1], [-1, -1, -1, 2]])  # (regions, pixels)
    assert RegionDecoder(TASK).decode(logits).tolist() == [0, 1, 3, 7]


def test_a_pixel_of_two_separate_regions_has_the_label_of_the_last_one():
    task = Regions(("a", "b"), regions=(Region("a", (1,)), Region("b", (2,))))
    assert RegionDecoder(task).decode(torch.ones(1, 2, 3), dim=1).tolist() == [[2, 2, 2]]


SEVERAL_VALUES = Regions(("whole", "core"), regions=(Region("whole", (3, 1, 2)), Region("core", (2, 1))))


def test_a_region_is_written_as_its_first_value():
    assert [region.label for region in SEVERAL_VALUES.regions] == ["label 3", "label 2"]
    assert SEVERAL_VALUES.label_bits() == [1, 3]


def test_a_region_is_scored_as_its_first_value():
    scores = SEVERAL_VALUES.new_scores(1)
    # of four pixels of the whole three are found; of the core, none of two
    truth = torch.tensor([[[1, 1, 3, 3, 0]]])
    prediction = torch.tensor([[[1, 1, 1, 0, 0]]])
    scores.add(prediction, OverlapTarget(truth, torch.full_like(truth, 3)), 0)
    assert scores.values["iou"] == [3 / 4, 0]
    assert scores.label_values["iou"] == [2 / 3, 0]  # as labels, two of three written pixels are right
    assert scores.image_comparison == pytest.approx([3 / 8])  # of the regions alone
    assert [line.split()[-1] for line in scores.table().splitlines()[-3:-1]] == ["2", "2"]  # true pixels
    assert scores.report()["of_labels"]["labels"] == ["label 3", "label 2"]


def test_a_model_keeps_its_regions():
    task = Regions(TASK.names, regions=BRATS, partners=(0, 2, 1), mirrors=False)
    config = UNetConfig(num_classes=3, task=task.to_config())
    restored = task_of_model(UNetConfig.from_json(config.to_json()))
    assert isinstance(restored, Regions)
    assert restored.regions == BRATS
    assert restored.partners == (0, 2, 1)
    assert restored.mirrors is False


def test_a_model_keeps_the_order_of_the_values_of_a_region():
    restored = task_of_model(UNetConfig(num_classes=2, task=SEVERAL_VALUES.to_config()))
    assert restored.regions == SEVERAL_VALUES.regions


def test_numbers_are_names_of_regions_too():
    task = {"name": "regions", "regions": [[1, [1, 2]], [2, [2]]]}
    assert task_of_model(UNetConfig(num_classes=2, task=task)).names == ("1", "2")


@pytest.mark.parametrize(
    ("regions", "mistake"),
    [
        ([["whole"]], "'s regions are damaged"),
        (None, "'s regions are damaged"),
        ([["whole", ["x"]]] * 3, "'s regions are damaged"),
        ([["whole", []], ["a", [1]], ["b", [2]]], " has 3 regions"),
        ([["whole", [1]]], " has 1 regions, the model 3 outputs$"),
    ],
    ids=["no values", "no regions", "a word for a value", "an empty region", "too few regions"],
)
def test_damaged_regions_are_refused(regions, mistake):
    with pytest.raises(ModelError, match=rf"^config\.json: the task{mistake}"):
        task_of_model(UNetConfig(num_classes=3, task={"name": "regions", "regions": regions}))
