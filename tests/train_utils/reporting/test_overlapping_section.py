"""Reports of classes that overlap and of regions, from scores that are written out.

Module: train_utils/reporting/overlapping.py.
"""

import numpy as np
import pytest
import torch
from support.reports import html_rows, markdown_rows, tags_of, use_of

from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.regions import RegionReader
from data_utils.visualize import GREY, RED, outline_classes, palette, to_rgb
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


def test_overlapping_classes_are_described_by_their_names(section):
    beginning = "Semantic segmentation into 3 classes, of which a pixel may have several"
    assert section.description() == rf"{beginning}: a, b\|c, d."


def test_metrics_of_overlapping_classes_are_means_over_the_classes(section, scores):
    assert [(metric.key, metric.label, metric.value) for metric in section.metrics(scores)] == [
        ("mean_iou", "Mean IoU", pytest.approx(MEAN_IOU)),
        ("mean_dice", "Mean Dice", pytest.approx(MEAN_DICE)),
    ]


def test_an_image_of_overlapping_classes_is_labeled_with_its_iou(section):
    assert section.label(0.25) == "IoU 0.2500"


def test_overlapping_classes_of_which_no_pixel_was_found_are_unfound(section, scores):
    assert section.unfound(scores) == ["b|c"]


def test_the_card_of_overlapping_classes_predicts_a_mask_of_bits(section, scores):
    mask = "(H, W) bits, the first class in the lowest"
    assert use_of(section, scores) == f'mask = predictor.mask("image.png")  # {mask}'


def test_the_card_of_overlapping_classes_has_the_tags_of_segmentation(section, scores):
    assert tags_of(section, scores) == ["unet", "semantic-segmentation", "image-segmentation"]


def test_the_page_of_overlapping_classes_has_a_row_of_scores_a_class(section, scores):
    rows = html_rows(section.html(scores))
    assert rows[0] == ["class", "IoU", "Dice", "precision", "recall", "pixels"]
    assert rows[1:4] == ROWS
    assert rows[4][:3] == ["mean", f"{MEAN_IOU:.4f}", f"{MEAN_DICE:.4f}"]


def test_the_page_of_overlapping_classes_counts_pixels_found_or_missed(section, scores):
    assert html_rows(section.html(scores))[5:] == [
        ["class", "found", "missed", "wrongly found", "rightly left out"],
        ["a", "5", "3", "2", "90"],
        ["b|c", "0", "50", "0", "50"],
        ["d", "1,040", "0", "0", "60"],
    ]


def test_rows_of_overlapping_classes_have_the_colors_of_the_palette(section, scores):
    colors = palette(4)[1:].tolist()
    assert [row["color"] for row in section.tables(scores)[0]["rows"]] == [f"rgb{tuple(color)}" for color in colors]


def test_the_markdown_of_overlapping_classes_has_the_rows_of_the_page(section, scores):
    markdown = section.markdown(scores)
    rows = markdown_rows(markdown)
    assert rows[2] == ROWS[0]
    assert rows[4] == ROWS[2]
    assert f"Mean IoU {MEAN_IOU:.4f}" in markdown
    assert f"Mean Dice {MEAN_DICE:.4f}" in markdown


@pytest.mark.parametrize(("found", "mean"), [([50, 0], "0.0000"), ([0, 0], "n/a")])
def test_the_markdown_of_overlapping_classes_has_means_without_a_found_pixel(section, found, mean):
    markdown = section.markdown(OverlapScores(CLASSES, torch.tensor([[[50, 0], found]] * 3), torch.zeros(1, 1)))
    assert f"Mean IoU {mean}, Mean Dice {mean}, " in markdown


def test_regions_are_described_with_the_labels_that_masks_hold(region_section):
    description = region_section.description()
    assert description.startswith("Semantic segmentation into 2 regions, unions of labels: whole=1+2, core=2.")
    assert "later regions lie over earlier ones" in description
    assert description.endswith("each as its first value.")


def test_regions_are_described_without_markup():
    section = RegionSection(RegionReader((Region("a|b", (3,)),)))
    assert r" unions of labels: a\|b=3." in section.description()


def test_the_page_of_regions_has_a_second_table_of_the_written_labels(region_section, region_scores):
    rows = html_rows(region_section.html(region_scores))
    assert [row[0] for row in rows[:4]] == ["region", "whole", "core", "mean"]
    assert [row[0] for row in rows[4:8]] == ["written label", *region_scores.labels, "mean"]
    assert [row[1] for row in rows[1:3]] == ["0.5000", "0.0000"]
    assert [row[1] for row in rows[5:7]] == ["1.0000", "0.5000"]
    assert [row[5] for row in rows[5:7]] == ["1,040", "8"]


def test_the_card_of_regions_has_a_row_of_scores_a_region_and_one_a_written_label(region_section, region_scores):
    titles = ["IoU", "Dice", "precision", "recall", "pixels"]
    rows = markdown_rows(region_section.markdown(region_scores))
    assert rows[0] == ["region", *titles]
    assert rows[2:4] == [["whole", *ROWS[0][1:]], ["core", "0.0000", "0.0000", "n/a", "0.0000", "50"]]
    assert rows[4] == ["written label", *titles]
    assert rows[6:] == [["label 1", *ROWS[2][1:]], ["label 2", *ROWS[0][1:]]]


def test_rows_of_regions_and_labels_have_the_colors_of_the_palette(region_section, region_scores):
    colors = [f"rgb{tuple(color)}" for color in palette(3)[1:].tolist()]
    for table in region_section.tables(region_scores):
        assert [row["color"] for row in table["rows"]] == colors


def test_the_card_of_regions_predicts_a_mask_of_bits(region_section, region_scores):
    mask = "(H, W) bits of the regions, the first one in the lowest"
    assert use_of(region_section, region_scores) == f'mask = predictor.mask("image.png")  # {mask}'


def test_regions_of_which_no_pixel_was_found_are_unfound(region_section, region_scores):
    assert region_section.unfound(region_scores) == ["core"]


IMAGE = np.full((3, 4), 100, np.uint8)
TRUTH = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [3, 0, 0, 0]])
UNKNOWN = np.array([[0, 0, 0, 0], [1, 2, 3, 3], [0, 3, 7, 0]])
PREDICTION = np.array([[0, 1, 3, 3], [1, 3, 1, 0], [0, 0, 2, 4]])


@pytest.fixture
def pair_section() -> OverlapSection:
    """The section of two classes, of which IMAGE, TRUTH, UNKNOWN and PREDICTION hold the bits."""
    return OverlapSection(OverlapReader(("a", "b")))


def test_views_of_overlapping_classes_outline_truth_and_prediction(pair_section):
    views = pair_section.views(IMAGE, pack_bits(TRUTH, UNKNOWN), PREDICTION)
    colors = palette(3)[1:]
    assert list(views) == ["image", "truth", "prediction", "errors"]
    assert np.array_equal(views["image"], to_rgb(IMAGE))
    assert np.array_equal(views["truth"], outline_classes(IMAGE, TRUTH, colors))
    assert np.array_equal(views["prediction"], outline_classes(IMAGE, PREDICTION, colors))


def test_wrong_pixels_of_overlapping_classes_are_red_unless_all_classes_are_unknown(pair_section):
    errors = pair_section.views(IMAGE, pack_bits(TRUTH, UNKNOWN), PREDICTION)["errors"]
    is_unknown = UNKNOWN & 3 == 3
    is_wrong = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], bool)
    assert (errors[is_wrong] == RED).all()
    assert (errors[is_unknown] == GREY).all()
    assert (errors[~is_wrong & ~is_unknown] == 35).all()


def test_the_panel_of_overlapping_classes_ends_with_the_errors(pair_section):
    truth = pack_bits(TRUTH, UNKNOWN)
    panel = pair_section.panel(IMAGE, truth, PREDICTION)
    assert panel.shape == (3, 4 * 4 + 3 * 2, 3)
    assert np.array_equal(panel[:, 18:], pair_section.views(IMAGE, truth, PREDICTION)["errors"])
