"""What reports show of classes that overlap, regions, objects and landmarks, from scores that are written out.

Modules: train_utils/reporting/overlapping.py, train_utils/reporting/objects.py, train_utils/reporting/landmarks.py,
train_utils/reporting/section.py, train_utils/reporting/sections.py, train_utils/reporting/charts.py,
data_utils/visualize_points.py.
"""

import re
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from volumes import RAS, write_nifti

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.image_io.volumes import read_volume
from data_utils.sources.records import ListRecords
from data_utils.targets.classes import ClassReader
from data_utils.targets.objects import ObjectReader
from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.points import PointReader
from data_utils.targets.regions import RegionReader
from data_utils.visualize import GREY, RED, outlined_classes, palette, to_rgb
from data_utils.visualize_objects import outlined, shaded
from data_utils.visualize_points import enlarged, point_colors, render_points, render_volume_points
from data_utils.visualize_volumes import busiest_voxel, orthogonal_slices
from tasks.landmarks import Landmarks
from tasks.matching import ObjectScores, pack_labels
from tasks.objects import ObjectTarget
from tasks.overlapping import OverlapScores, pack_bits
from tasks.point_scores import PRESENCE, LandmarkScores
from tasks.points import ABSENT, OUTSIDE, PRESENT
from tasks.regions import Region, RegionScores
from tasks.task import Scores
from train_utils.evaluation import Evaluation
from train_utils.reporting.charts import MAX_POINTS, curve, error_plot, shortened
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.landmarks import LandmarkSection
from train_utils.reporting.model_card import model_card
from train_utils.reporting.objects import BLUE, GREEN, ObjectSection, mark_objects, outlines
from train_utils.reporting.overlapping import OverlapSection, RegionSection
from train_utils.reporting.section import Section
from train_utils.reporting.sections import new_section
from train_utils.settings.record import RunSettings


def cells_of(html: str) -> list[list[str]]:
    """The cells of each row of all tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL)
    return [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of each row of all tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]


def card_of(section: Section, scores: Scores) -> str:
    record = {"flags": {"dataset": "cells"}, "identity": {"dims": 2}, "profile": {"processes": 1}, "total_steps": 40}
    record["run"] = {"torch": "2", "accelerate": "1"}
    record["profile"]["mixed_precision"] = "no"
    return model_card(RunSettings.from_json(record), Evaluation(30, None, scores), section)


def use_of(section: Section, scores: Scores) -> str:
    """The line of a model's card that predicts."""
    return card_of(section, scores).partition('this model")\n')[2].partition("\n```")[0]


def tags_of(section: Section, scores: Scores) -> list[str]:
    """What the Hub is told of a model."""
    return ModelCard(card_of(section, scores)).data.tags


# [[rightly left out, wrongly found], [missed, found]] of each class
TABLES = [[[90, 2], [3, 5]], [[50, 0], [50, 0]], [[60, 0], [0, 1040]]]


def test_classes_that_overlap_are_told_one_by_one():
    section = OverlapSection(OverlapReader(("a", "b|c", "d")))
    scores = OverlapScores(("a", "b|c", "d"), torch.tensor(TABLES), torch.zeros(1, 1))
    assert section.description().startswith(
        "Semantic segmentation into 3 classes, of which a pixel may have several: a"
    )
    metrics = [(metric.key, metric.label, metric.value) for metric in section.metrics(scores)]
    means = (1 / 2 + 0 + 1) / 3, (2 * 5 / 15 + 0 + 1) / 3
    assert metrics == [
        ("mean_iou", "Mean IoU", pytest.approx(means[0])),
        ("mean_dice", "Mean Dice", pytest.approx(means[1])),
    ]
    mask = "(H, W) bits, the first class in the lowest"
    assert use_of(section, scores) == f'mask = predictor.mask("image.png")  # {mask}'
    assert tags_of(section, scores) == ["unet", "semantic-segmentation", "image-segmentation"]
    assert section.unfound(scores) == ["b|c"]
    assert section.label(0.25) == "IoU 0.2500"
    rows = [
        ["a", "0.5000", "0.6667", "0.7143", "0.6250", "8"],
        ["b|c", "0.0000", "0.0000", "n/a", "0.0000", "50"],
        ["d", "1.0000", "1.0000", "1.0000", "1.0000", "1,040"],
    ]
    html = cells_of(section.html(scores))
    assert html[0] == ["class", "IoU", "Dice", "precision", "recall", "pixels"]
    assert html[1:4] == rows
    assert html[4][:3] == ["mean", f"{means[0]:.4f}", f"{means[1]:.4f}"]
    assert html[5:] == [
        ["class", "found", "missed", "wrongly found", "rightly left out"],
        ["a", "5", "3", "2", "90"],
        ["b|c", "0", "50", "0", "50"],
        ["d", "1,040", "0", "0", "60"],
    ]
    colors = palette(4)[1:].tolist()
    assert [row["color"] for row in section.tables(scores)[0]["rows"]] == [f"rgb{tuple(color)}" for color in colors]
    markdown = section.markdown(scores)
    assert rows_of(markdown)[2] == rows[0]
    assert rows_of(markdown)[4] == rows[2]
    assert f"Mean IoU {means[0]:.4f}" in markdown
    assert f"Mean Dice {means[1]:.4f}" in markdown


def test_regions_are_told_beside_the_labels_that_are_written():
    regions = (Region("whole", (1, 2)), Region("core", (2,)))
    section = RegionSection(RegionReader(regions))
    scores = RegionScores(regions, torch.tensor([*TABLES[:2], TABLES[2], TABLES[0]]), torch.zeros(1, 1))
    html = cells_of(section.html(scores))
    assert [row[0] for row in html[:8]] == ["region", "whole", "core", "mean", "written label", *scores.labels, "mean"]
    assert (html[1][1], html[2][1], html[5][1], html[6][1]) == ("0.5000", "0.0000", "1.0000", "0.5000")
    assert (html[5][5], html[6][5]) == ("1,040", "8")
    colors = [f"rgb{tuple(color)}" for color in palette(3)[1:].tolist()]
    for table in section.tables(scores):
        assert [row["color"] for row in table["rows"]] == colors
    assert section.description() == (
        "Semantic segmentation into 2 regions, unions of labels: whole=1+2, core=2. Masks are written as labels: later"
        " regions lie over earlier ones, each as its first value."
    )
    mask = "(H, W) bits of the regions, the first one in the lowest"
    assert use_of(section, scores) == f'mask = predictor.mask("image.png")  # {mask}'
    assert section.unfound(scores) == ["core"]


def test_wrong_and_unknown_pixels_of_classes_that_overlap_are_marked():
    section = OverlapSection(OverlapReader(("a", "b")))
    image = np.full((3, 4), 100, np.uint8)
    truth = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [3, 0, 0, 0]])
    unknown = np.array([[0, 0, 0, 0], [1, 2, 3, 3], [0, 3, 7, 0]])
    pred = np.array([[0, 1, 3, 3], [1, 3, 1, 0], [0, 0, 2, 4]])
    views = section.views(image, pack_bits(truth, unknown), pred)
    assert list(views) == ["image", "truth", "prediction", "errors"]
    is_unknown = unknown & 3 == 3
    is_wrong = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], bool)
    assert (views["errors"][is_wrong] == RED).all()
    assert (views["errors"][is_unknown] == GREY).all()
    assert (views["errors"][~is_wrong & ~is_unknown] == 35).all()
    colors = palette(3)[1:]
    assert np.array_equal(views["image"], to_rgb(image))
    assert np.array_equal(views["truth"], outlined_classes(image, truth, colors))
    assert np.array_equal(views["prediction"], outlined_classes(image, pred, colors))
    panel = section.panel(image, pack_bits(truth, unknown), pred)
    assert panel.shape == (3, 4 * 4 + 3 * 2, 3)
    assert np.array_equal(panel[:, 18:], views["errors"])


def disc(size: tuple[int, int], *boxes: tuple[int, int, int, int]) -> np.ndarray:
    """Numbered boxes."""
    labels = np.zeros(size, np.int64)
    for number, (top, left, bottom, right) in enumerate(boxes, 1):
        labels[top:bottom, left:right] = number
    return labels


def test_found_missed_invented_and_ignored_objects_have_their_colors():
    true = disc((12, 16), (0, 0, 4, 4), (0, 5, 4, 9), (2, 9, 4, 12), (8, 0, 12, 4))
    pred = disc((12, 16), (8, 8, 12, 12), (1, 0, 5, 4), (0, 5, 2, 7), (6, 1, 10, 3))
    classes = np.where(true == 4, 255, true > 0)
    shown = mark_objects(np.full((12, 16), 200, np.uint8), pack_labels(true, classes), pack_labels(pred, pred > 0))
    expected = np.full((12, 16, 3), 70)
    expected[6:8, 1:3] = expected[8:12, 8:12] = BLUE  # what of the last prediction lies beside the ignored object
    expected[0:4, 5:9] = expected[2:4, 9:12] = RED
    expected[0:4, 0:4] = GREEN  # 12 of 20 pixels
    expected[8:12, 0:4] = GREY
    labels = np.where(true == 4, 0, true)
    edges = np.zeros_like(labels, bool)
    for row, column in np.argwhere(labels > 0):
        for other in ((row, column + 1), (row + 1, column)):
            edges[row, column] |= other[0] < 12 and other[1] < 16 and labels[other] != labels[row, column]
    expected[edges] = 0
    assert np.array_equal(outlines(labels), edges)
    assert np.array_equal(shown, expected)
    section = ObjectSection(ObjectReader())
    views = section.views(np.zeros((12, 16), np.uint8), pack_labels(true, classes), pack_labels(pred, pred > 0))
    assert list(views) == ["image", "truth", "prediction", "errors: 2 missed"]
    assert np.array_equal(views["truth"], outlined(np.zeros((12, 16), np.uint8), shaded(true)))
    assert np.array_equal(views["prediction"], outlined(np.zeros((12, 16), np.uint8), shaded(pred)))
    panel = section.panel(np.zeros((12, 16), np.uint8), pack_labels(true, classes), pack_labels(pred, pred > 0))
    assert panel.shape == (12, 4 * 16 + 3 * 2, 3)
    assert (panel[:, 16:18] == 255).all()


def test_objects_that_leave_no_pixel_between_them_have_their_colors():
    true = np.repeat([[1, 1, 1, 1, 2, 2]], 4, axis=0)
    pred = np.repeat([[1, 1, 1, 2, 3, 3]], 4, axis=0)
    shown = mark_objects(np.zeros((4, 6), np.uint8), pack_labels(true, true > 0), pack_labels(pred, pred > 0))
    assert (shown[:, [0, 1, 2, 4, 5]] == GREEN).all()
    assert (shown[:, 3] == 0).all()


def test_objects_are_told_by_class_and_size():
    section = ObjectSection(ObjectReader(classes=((1, "cell"), (2, "dirt"))))
    scores = ObjectScores.none(("cell", "dirt"), 1, "cpu")
    true = disc((40, 40), (0, 0, 8, 8), (0, 10, 20, 30), (30, 0, 33, 3), (30, 10, 33, 13))
    pred = disc((40, 40), (0, 0, 8, 8), (0, 10, 20, 27), (30, 20, 33, 23))
    true_classes, pred_classes = np.array([0, 1, 1, 1, 2]), np.array([0, 1, 1, 1])
    mask = torch.from_numpy(true_classes[true].astype(np.uint8))[None]
    prediction = torch.from_numpy(pack_labels(pred, pred_classes[pred]))[None]
    scores.add(prediction, ObjectTarget(mask, torch.from_numpy(true)[None]), 0)
    assert section.unfound(ObjectScores.none(("cell", "dirt"), 1, "cpu")) == []  # there is none to be found
    assert use_of(section, scores) == 'mask = predictor.mask("image.png")  # (H, W) numbers of objects'
    assert tags_of(section, scores) == ["unet", "instance-segmentation", "image-segmentation"]
    assert section.unfound(scores) == ["dirt"]
    assert section.label(0.5) == "AP@0.5 0.5000"
    assert section.description() == "Instance segmentation: numbers for the objects of the classes cell, dirt."
    metrics = {metric.label: metric.value for metric in section.metrics(scores)}
    assert metrics["AP@0.5"] == pytest.approx((2 / 4 + 0) / 2)  # two of four cells and of no dirt
    assert metrics["Panoptic quality"] == pytest.approx((2 * (1 + 0.85) / 6 + 0) / 2)
    assert list(metrics) == ["AP@0.5", "AP@0.75", "AP@0.5:0.95", "Panoptic quality", "F1", "Count error"]
    html = cells_of(section.html(scores))
    titles = ["AP@0.5", "AP@0.75", "AP@0.5:0.95", "PQ", "F1", "Count error"]
    assert html[0] == ["class", *titles, "objects", "predicted", "found", "split", "merged"]
    assert html[1][:2] == ["cell", "0.5000"]
    assert html[1][-5:] == ["3", "3", "2", "0", "0"]
    assert html[2][:2] == ["dirt", "0.0000"]
    assert html[2][-5:] == ["1", "0", "0", "0", "0"]
    assert [row[:2] for row in html[4:]] == [["below 64", "2"], ["64 to 255", "1"], ["256 to 1,023", "1"]]
    markdown = rows_of(section.markdown(scores))
    assert markdown[2][0] == "cell"
    assert markdown[-1] == ["256 to 1,023", "1", "1"]
    assert ["below 64", "2", "0"] in markdown


def landmark_scores() -> LandmarkScores:
    by_image = torch.zeros(4, 2, 5, dtype=torch.float64)
    by_image[3] = torch.tensor([OUTSIDE, 77, 100, 125, 0.5])
    by_image[:3, 0] = torch.tensor([[PRESENT, error, 100, 125, 0.9] for error in (1.0, 2.5, 30.0)])
    by_image[:2, 1] = torch.tensor([[ABSENT, 0, 100, 125, 0.1], [PRESENT, 4.0, 100, 125, 0.8]])
    return LandmarkScores(("nose", "ear"), "mm", torch.tensor([5]), by_image)


def points_of(places: list, states: list[int]) -> PointSource:
    return PointSource("points.csv", "pixels", np.array(places, float), np.array(states))


def test_landmarks_are_told_one_by_one_with_their_errors():
    section = LandmarkSection(PointReader(Landmarks(("nose", "ear"), unit="mm"), (0, 1)))
    scores = landmark_scores()
    assert section.description() == "Detection of 2 landmarks: nose, ear."
    assert section.label(0.5) == "closeness 0.5000"
    keys = [metric.key for metric in section.metrics(scores)]
    assert keys == ["mean_radial_error", "median_radial_error", "presence_auroc"]
    metrics = [(metric.label, metric.value) for metric in section.metrics(scores)]
    assert metrics[0] == ("Mean radial error (mm)", pytest.approx(37.5 / 4))
    assert metrics[1][1] == pytest.approx(3.25)
    assert metrics[2] == ("AUROC of presence", 1.0)
    assert section.draw_pictures(scores) == {}
    answer = "name, position in pixels, presence and confidence of each"
    assert use_of(section, scores) == f'points = predictor.points("image.png")  # {answer}'
    assert tags_of(section, scores) == ["unet", "landmark-detection", "keypoint-detection"]
    errors = section._errors(scores)
    assert {name: values.tolist() for name, values in errors.items()} == {"nose": [1, 2.5, 30], "ear": [4]}
    html = cells_of(section.html(scores))
    assert html[0][:2] == ["landmark", "mean (mm)"]
    assert [row[0] for row in html[1:]] == ["nose", "ear", "all"]
    assert html[1][1:4] == ["11.17", f"{np.std([1, 2.5, 30]):.2f}", "2.50"]
    assert html[2][-2:] == ["1", "1"]
    assert "the mean 9.38 mm" in section.html(scores)
    assert ">error in mm<" in section.html(scores)
    table = rows_of(section.markdown(scores))
    assert table[0][1] == "mean (mm)"
    assert [row[0] for row in table[2:]] == ["nose", "ear", "all"]
    rings = [f"rgb{tuple(color)}" for color in point_colors(2).tolist()]
    assert re.findall(r"rgb\([\d, ]+\)", section.html(scores)) == rings
    scores.by_image[0, 1, PRESENCE] = 1.0
    assert section.metrics(scores)[2] == ("presence_auroc", "AUROC of presence", 0.0)
    scores.by_image[:, 1, 0] = PRESENT
    labels = [metric.label for metric in section.metrics(scores)]
    assert labels == ["Mean radial error (mm)", "Median radial error (mm)"]  # none is absent


def test_true_and_predicted_points_are_drawn_on_their_image():
    image = np.random.default_rng(0).integers(0, 90, (30, 40, 3), dtype=np.uint8)
    reader = PointReader(Landmarks(("nose", "ear")), (0, 1))
    target = points_of([[7, 3], [20, 25]], [PRESENT, ABSENT])
    records = ListRecords([{"image": image, "target": target, "name": "i"}])
    split = Split(records, np.array([(30, 40)]))
    info = DatasetInfo(
        DataConfig("d", task="landmarks"), split, split, reader, Normalization((1.0,) * 3, (1.0,) * 3, ("uint8",))
    )
    prediction = np.array([[0.25, 0.5, 0.5, 0.9], [0.5, 0.75, 0.4, 0.9]])  # from a presence of one half on
    predictor = SimpleNamespace(predict_rows=lambda source, name: prediction)
    section = new_section(info)
    assert isinstance(section, LandmarkSection)
    name, shown, truth, pred = section.example(info, 0, predictor)
    assert (name, shown.shape) == ("i", (30, 40, 3))
    assert truth.points[0].tolist() == [3, 7]
    np.testing.assert_allclose(pred, [[7, 19.5, 0.5], [14.5, 29.5, 0.4]])
    views = section.views(shown, truth, pred)
    expected = render_points(
        image, pred[:, :2], np.array([True, False]), np.array([[3, 7], [25, 20]]), np.array([True, False])
    )
    assert np.array_equal(views["truth and prediction"], expected)
    assert np.array_equal(views["image"], enlarged(image)[0])
    assert np.array_equal(section.panel(shown, truth, pred), np.hstack([*views.values()]))


def test_a_disc_lies_on_the_predicted_place_and_a_ring_about_the_true_one():
    colors = point_colors(2)
    black = np.zeros((60, 80), np.uint8)
    places = np.array([[20.0, 30.0], [40.0, 60.0]])
    truth = np.array([[20.0, 50.0], [10.0, 10.0]])
    shown = render_points(black, places, np.array([True, False]), truth, np.array([True, False]))
    factor = round(480 / 80)
    assert shown.shape == (60 * factor, 80 * factor, 3)
    y, x = (np.array([20, 30]) + 0.5) * factor
    assert (shown[int(y), int(x)] == colors[0]).all()  # the disc
    is_line = (shown == 255).all(axis=2)
    assert is_line[int(y) - 1 : int(y) + 1, 250:296].any(axis=0).all()  # from the disc to within the ring
    is_first = (shown == colors[0]).all(axis=2)
    rows, columns = np.nonzero(is_first)
    assert abs(rows.mean() - y) < 2
    assert columns.min() > x - 8
    assert abs(columns.max() - 50.5 * factor) < 8
    assert not (shown == colors[1]).all(axis=2).any()
    large, times = enlarged(np.zeros((500, 900, 3), np.uint8))
    assert times == 1
    assert large.shape == (500, 900, 3)


def test_points_of_a_volume_are_shown_on_three_planes(tmp_path):
    voxels = np.random.default_rng(0).integers(0, 200, (6, 8, 10)).astype(np.float32)
    write_nifti(tmp_path / "v.nii", voxels, RAS @ np.diag([1.0, 1.0, 2.0, 1.0]))
    reader = PointReader(Landmarks(("nose", "ear", "tail")), (0, 1, 2))
    target = points_of([[4, 3, 2], [2, 2, 1], [1, 7, 4]], [PRESENT, ABSENT, PRESENT])
    image = VolumeFile((str(tmp_path / "v.nii"),))
    records = ListRecords([{"image": image, "target": target, "name": "v"}])
    records.dims = 3
    split = Split(records, np.array([(10, 8, 6)]), spacings=np.array([(2.0, 1.0, 1.0)]))
    info = DatasetInfo(
        DataConfig("d", task="landmarks"), split, split, reader, Normalization((1.0,), (1.0,), ("float32",))
    )
    prediction = np.array([[0.5, 0.5, 0.5, 0.9, 0.9], [0.25, 0.75, 0.5, 0.9, 0.9], [0.5, 0.25, 0.5, 0.4, 0.9]])
    predictor = SimpleNamespace(predict_rows=lambda source, name: prediction)
    section = LandmarkSection(reader)
    example = section.example(info, 0, predictor)
    stored, header = read_volume(image, "v")
    predicted_places = np.array([[4.5, 3.5, 2.5], [2, 5.5, 2.5], [4.5, 1.5, 2.5]])  # of 10 x 8 x 6 voxels
    true_places = reader.read_volume(records[0], header).points
    is_found = np.array([True, True, False])
    is_present = np.array([True, False, True])
    spacing = (2.0, 1.0, 1.0)
    expected = render_volume_points(stored, spacing, predicted_places, is_found, true_places, is_present)
    np.testing.assert_array_equal(example.image, expected)
    assert example.name == "v"
    assert example.truth is None
    assert example.image.dtype == np.uint8
    assert list(section.views(example.image, None, None)) == ["truth and prediction"]
    assert np.array_equal(section.panel(example.image, None, None), example.image)


@pytest.mark.parametrize(
    ("task", "reader", "kind"),
    [
        ("classes", ClassReader(ClassMap(("a", "b"), (0, 1), None)), ClassSection),
        ("overlapping", OverlapReader(("a", "b")), OverlapSection),
        ("regions", RegionReader((Region("a", (1,)),)), RegionSection),
        ("objects", ObjectReader(), ObjectSection),
    ],
)
def test_each_task_has_its_section(task, reader, kind):
    assert type(new_section(SimpleNamespace(reader=reader, config=DataConfig("d", task=task)))) is kind


def test_a_curve_shows_the_means_of_runs_and_the_last_values():
    steps = [(float(step), float(step % 7)) for step in range(1, 1001)]
    drawn = curve("Loss", {"training": steps, "validation": [(5.0, 0.5), (900.0, float("nan"))], "none": []}, 700)
    assert drawn.last == {"training": 1000 % 7, "validation": 0.5}
    assert drawn.title == "Loss"
    (path,) = re.findall(r'id="loss-series-0">\s*<path d="(.*?)"', drawn.svg, flags=re.DOTALL)
    assert path.count("L") == MAX_POINTS - 1
    assert drawn.svg.count("loss-best-step") == 1
    assert curve("Loss", {"training": [(1.0, float("inf"))]}) is None
    assert "best-step" not in curve("Loss", {"training": steps}, 1001).svg


def test_dots_of_errors_lie_on_a_logarithmic_axis_with_a_bar_at_their_median():
    svg = error_plot("Errors", {"a": np.array([1.0, 10.0, 100.0]), "b": np.array([10.0, 4.0, 40.0])}, "px")
    rows = svg.split('id="errors-errors-')[1:]
    dots = [[tuple(map(float, dot)) for dot in re.findall(r'<use [^>]*x="(\S+)" y="(\S+)"', row)] for row in rows]
    (first, second, third), (other, *_) = dots[0][:3], dots[1][:3]
    assert second[0] - first[0] == pytest.approx(third[0] - second[0])
    assert second[0] == pytest.approx(other[0])
    assert first[1] == second[1] == third[1] < other[1]  # the first row is the upper one
    bars = re.findall(r'<path d="M (\S+) (\S+) \s*L (\S+) (\S+) \s*"[^>]*stroke: var\(--series-1\)', svg)
    assert [(float(bar[0]), float(bar[2])) for bar in bars] == [pytest.approx((second[0],) * 2)] * 2
    assert [(float(bar[1]) + float(bar[3])) / 2 for bar in bars] == pytest.approx([first[1], other[1]], abs=1e-4)
    many = error_plot("Errors", {str(number): np.array([1.0]) for number in range(30)}, "px")
    assert re.findall(r">(\d+)</text>", svg) == ["1", "2", "5", "10", "20", "50", "100"]
    assert 'viewBox="0 0 480 240"' in svg
    assert f'viewBox="0 0 480 {18 * 32}"' in many
    lowest = re.search(r'<use [^>]*y="(\S+)"', many.partition('id="errors-errors-29')[2])
    assert 480 < float(lowest[1]) < 18 * 32  # the rows fill the height


def test_a_name_of_24_characters_is_whole_and_a_longer_one_keeps_both_ends():
    assert shortened("abcdefghijklmnopqrstuvwx") == "abcdefghijklmnopqrstuvwx"
    assert shortened("abcdefghijklmnopqrstuvwxy") == "abcdefghijk…nopqrstuvwxy"


def test_a_volume_is_shown_by_three_planes_where_its_mask_holds_most(tmp_path):
    voxels = np.random.default_rng(0).integers(0, 200, (6, 5, 4)).astype(np.float32)
    labels = np.zeros((6, 5, 4), np.uint8)
    labels[4, 1:4, 1:3] = 1
    labels[0] = 9
    affine = RAS @ np.diag([1.0, 1.0, 3.0, 1.0])
    image = VolumeFile((str(write_nifti(tmp_path / "image.nii", voxels, affine)),))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    records = ListRecords([{"image": image, "target": label, "name": "case"}])
    records.dims = 3
    split = Split(records, np.array([(4, 5, 6)]), spacings=np.ones((1, 3)))
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), 9))
    normalization = Normalization((1.0,), (1.0,), ("float32",))
    info = DatasetInfo(DataConfig("d", task="classes"), split, split, reader, normalization)
    pred = np.arange(120).reshape(4, 5, 6) % 2
    example = new_section(info).example(info, 0, SimpleNamespace(predict_rows=lambda source, name: pred))
    stored, header = read_volume(image, "case")
    truth = np.where(labels == 9, 255, labels).transpose(2, 1, 0)
    center = busiest_voxel(truth)
    assert example.name == "case"
    assert header.spacing == (3.0, 1.0, 1.0)
    np.testing.assert_array_equal(example.image, orthogonal_slices(stored, center, (3.0, 1.0, 1.0)))
    np.testing.assert_array_equal(example.truth, orthogonal_slices(truth, center, (3.0, 1.0, 1.0), fill=255))
    shown = orthogonal_slices(pred.astype(np.uint8), center, (3.0, 1.0, 1.0), fill=255)
    np.testing.assert_array_equal(example.pred, shown)
    assert example.pred.dtype == example.truth.dtype


def test_errors_of_landmarks_are_dots_in_rows():
    svg = error_plot("Errors", {"$n$ose": np.array([1.0, 2.0]), "a" * 30: np.array([]), "Ear": np.array([5.0])}, "mm")
    assert "error in mm" in svg
    assert ">$n$ose<" in svg
    assert f">{'a' * 11}…{'a' * 12}<" in svg
    assert svg.index(">$n$ose<") < svg.index("…") < svg.index(">Ear<")  # the rows from the top
    assert [row in svg for row in ("errors-errors-0", "errors-errors-1", "errors-errors-2")] == [True, True, True]
    assert error_plot("Errors", {"nose": np.array([])}, "mm") is None
    exact = error_plot("Errors", {"nose": np.array([0.0, 2.0, 50.0])}, "mm")  # there is no 0 on a logarithmic axis
    dots = re.findall(r'<use [^>]*x="([-\d.]+)"', exact.partition("errors-errors-0")[2])
    assert len(dots) == 3
    assert min(map(float, dots)) > 0
