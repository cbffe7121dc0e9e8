"""Reports of landmarks, from scores and points that are written out.

Modules: train_utils/reporting/landmarks.py, data_utils/visualize_points.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.reports import card_of, html_rows, tags_of, use_of

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.sources.records import ListRecords
from data_utils.targets.points import PointReader
from data_utils.visualize_points import enlarge_picture, render_points
from tasks.landmarks import Landmarks
from tasks.point_scores import LandmarkScores
from tasks.points import ABSENT, OUTSIDE, PRESENT
from train_utils.reporting.landmarks import LandmarkSection
from train_utils.reporting.section import Example
from train_utils.reporting.sections import new_section


@pytest.fixture
def section() -> LandmarkSection:
    return LandmarkSection(PointReader(Landmarks(("nose", "ear"), unit="mm"), (0, 1)))


@pytest.fixture
def scores() -> LandmarkScores:
    """Errors of 1, 2.5 and 30 mm of the nose, and of 4 mm of the ear, which one image lacks."""
    by_image = torch.zeros(4, 2, 5, dtype=torch.float64)
    by_image[3] = torch.tensor([OUTSIDE, 77, 100, 125, 0.5])
    by_image[:3, 0] = torch.tensor([[PRESENT, error, 100, 125, 0.9] for error in (1.0, 2.5, 30.0)])
    by_image[:2, 1] = torch.tensor([[ABSENT, 0, 100, 125, 0.1], [PRESENT, 4.0, 100, 125, 0.8]])
    return LandmarkScores(("nose", "ear"), "mm", torch.tensor([5]), by_image)


def test_metrics_of_landmarks_are_errors_in_their_unit_with_the_auroc(section, scores):
    mean, median, presence = section.metrics(scores)
    assert mean == ("mean_radial_error", "Mean radial error (mm)", pytest.approx(37.5 / 4))
    assert median == ("median_radial_error", "Median radial error (mm)", pytest.approx(3.25))
    assert presence == ("presence_auroc", "AUROC of presence", 1.0)


def test_landmarks_that_are_never_absent_have_no_auroc(section, scores):
    scores.by_image[:, 1, 0] = PRESENT
    labels = [metric.label for metric in section.metrics(scores)]
    assert labels == ["Mean radial error (mm)", "Median radial error (mm)"]


def test_the_card_of_landmarks_has_scores_of_detection_and_predicts_points(section, scores):
    results = ModelCard(card_of(section, scores)).data.eval_results
    assert {result.task_type for result in results} == {"keypoint-detection"}
    assert tags_of(section, scores) == ["unet", "landmark-detection", "keypoint-detection"]
    assert 'predictor.points("image.png")' in use_of(section, scores)


def test_the_page_of_landmarks_has_a_row_of_errors_a_landmark(section, scores):
    html = section.html(scores)
    rows = html_rows(html)
    assert rows[0][:2] == ["landmark", "mean (mm)"]
    assert [row[0] for row in rows[1:]] == ["nose", "ear", "all"]
    assert rows[1][1:4] == ["11.17", f"{np.std([1, 2.5, 30]):.2f}", "2.50"]
    assert rows[2][-2:] == ["1", "1"]
    assert "the mean 9.38 mm" in html


def points_of(places: list, states: list[int]) -> PointSource:
    return PointSource("points.csv", "pixels", np.array(places, float), np.array(states))


@pytest.fixture
def image_info() -> DatasetInfo:
    """One image of 30 x 40 with a nose, no ear, and a tail that lies outside of it."""
    image = np.random.default_rng(0).integers(0, 90, (30, 40, 3), dtype=np.uint8)
    target = points_of([[7, 3], [20, 25], [50, 9]], [PRESENT, ABSENT, PRESENT])
    split = Split(ListRecords([{"image": image, "target": target, "name": "i"}]), np.array([(30, 40)]))
    config = DataConfig("d", task="landmarks")
    normalization = Normalization((1.0,) * 3, (1.0,) * 3, ("uint8",))
    reader = PointReader(Landmarks(("nose", "ear", "tail")), (0, 1, 2))
    return DatasetInfo(config, split, split, reader, normalization)


def image_example(info: DatasetInfo) -> Example:
    """The image with a prediction in shares of its size: a nose and a tail that are found, and an ear that is not."""
    # from a presence of one half on
    prediction = np.array([[0.25, 0.5, 0.5, 0.9], [0.5, 0.75, 0.4, 0.9], [0.5, 0.5, 0.8, 0.9]])
    return new_section(info).example(info, 0, SimpleNamespace(predict_rows=lambda source, name: prediction))


def test_true_and_predicted_points_are_drawn_on_their_image(image_info):
    section = new_section(image_info)
    _, image, truth, pred = image_example(image_info)
    views = section.views(image, truth, pred)
    is_found, is_nose = np.array([True, False, True]), np.array([True, False, False])
    expected = render_points(image, pred[:, :2], is_found, np.array([[3, 7], [25, 20], [9, 50]]), is_nose)
    assert np.array_equal(views["truth and prediction"], expected)
    assert np.array_equal(views["image"], enlarge_picture(image_info.train.records[0]["image"])[0])
