"""Reports of classes that overlap and of regions, from scores that are written out.

Module: train_utils/reporting/overlapping.py.
"""

import numpy as np
import pytest
import torch
from support.reports import html_rows, markdown_rows

from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.regions import RegionReader
from data_utils.visualize import GREY, RED
from tasks.overlapping import OverlapScores, pack_bits
from tasks.regions import Region, RegionScores
from train_utils.reporting.overlapping import OverlapSection, RegionSection

# [[rightly left out, wrongly found], [missed, found]] of each class
TABLES = [[[90, 2], [3, 5]], [[50, 0], [50, 0]], [[60, 0], [0, 1040]]]
CLASSES = ("a", "b|c", "d")
MEAN_IOU = (1 / 2 + 0 + 1) / 3
MEAN_DICE = (2 * 5 / 15 + 0 + 1) / 3
ROWS = [
    ["a", "0.5000", "0.6667", "0.7143", "0.6250", "8"],
    ["b|c", "0.0000", "0.0000", "n/a", "0.0000", "50"],
    ["d", "1.0000", "1.0000", "1.0000", "1.0000", "1,040"],
]
REGIONS = (Region("whole", (1, 2)), Region("core", (2,)))


@pytest.fixture
def section() -> OverlapSection:
    return OverlapSection(OverlapReader(CLASSES))


@pytest.fixture
def scores() -> OverlapScores:
    return OverlapScores(CLASSES, torch.tensor(TABLES), torch.zeros(1, 1))


@pytest.fixture
def region_section() -> RegionSection:
    return RegionSection(RegionReader(REGIONS))


@pytest.fixture
def region_scores() -> RegionScores:
    return RegionScores(REGIONS, torch.tensor([*TABLES[:2], TABLES[2], TABLES[0]]), torch.zeros(1, 1))


def test_metrics_of_overlapping_classes_are_means_over_the_classes(section, scores):
    assert [(metric.key, metric.label, metric.value) for metric in section.metrics(scores)] == [
        ("mean_iou", "Mean IoU", pytest.approx(MEAN_IOU)),
        ("mean_dice", "Mean Dice", pytest.approx(MEAN_DICE)),
    ]


def test_overlapping_classes_of_which_no_pixel_was_found_are_unfound(section, scores):
    assert section.unfound(scores) == ["b|c"]


def test_the_page_of_overlapping_classes_has_a_row_of_scores_a_class(section, scores):
    rows = html_rows(section.html(scores))
    assert rows[0] == ["class", "IoU", "Dice", "precision", "recall", "pixels"]
    assert rows[1:4] == ROWS
    assert rows[4][:3] == ["mean", f"{MEAN_IOU:.4f}", f"{MEAN_DICE:.4f}"]


def test_the_markdown_of_overlapping_classes_has_the_rows_of_the_page(section, scores):
    markdown = section.markdown(scores)
    rows = markdown_rows(markdown)
    assert rows[2] == ROWS[0]
    assert rows[4] == ROWS[2]
    assert f"Mean IoU {MEAN_IOU:.4f}" in markdown
    assert f"Mean Dice {MEAN_DICE:.4f}" in markdown


def test_regions_are_described_with_the_labels_that_masks_hold(region_section):
    description = region_section.description()
    assert description.startswith("Semantic segmentation into 2 regions, unions of labels: whole=1+2, core=2.")
    assert "later regions lie over earlier ones" in description
    assert description.endswith("each as its first value.")


def test_the_page_of_regions_has_a_second_table_of_the_written_labels(region_section, region_scores):
    rows = html_rows(region_section.html(region_scores))
    assert [row[0] for row in rows[:4]] == ["region", "whole", "core", "mean"]
    assert [row[0] for row in rows[4:8]] == ["written label", *region_scores.labels, "mean"]
    assert [row[1] for row in rows[1:3]] == ["0.5000", "0.0000"]
    assert [row[1] for row in rows[5:7]] == ["1.0000", "0.5000"]
    assert [row[5] for row in rows[5:7]] == ["1,040", "8"]


IMAGE = np.full((3, 4), 100, np.uint8)
TRUTH = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [3, 0, 0, 0]])
UNKNOWN = np.array([[0, 0, 0, 0], [1, 2, 3, 3], [0, 3, 7, 0]])
PREDICTION = np.array([[0, 1, 3, 3], [1, 3, 1, 0], [0, 0, 2, 4]])


def test_wrong_pixels_of_overlapping_classes_are_red_unless_all_classes_are_unknown():
    errors = OverlapSection(OverlapReader(("a", "b"))).views(IMAGE, pack_bits(TRUTH, UNKNOWN), PREDICTION)["errors"]
    is_unknown = UNKNOWN & 3 == 3
    is_wrong = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], bool)
    assert (errors[is_wrong] == RED).all()
    assert (errors[is_unknown] == GREY).all()
    assert (errors[~is_wrong & ~is_unknown] == 35).all()
