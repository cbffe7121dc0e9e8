"""Which validation images are shown as the worst and the best, and how."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from data_utils.targets.classes import ClassReader
from data_utils.visualize import RED
from train_utils.reporting.samples import worst_and_best
from train_utils.reporting.sections import new_section

CLASS_MAP = ClassMap(("background", "cell"), (0, 255), 9)


@pytest.fixture
def records() -> list[dict]:
    """Ten grey images of 4 x 6, the right half of each mask a cell, its last row ignored."""
    mask = np.zeros((4, 6), np.uint8)
    mask[:, 3:] = 255
    mask[3] = 9
    image = np.full((4, 6), 100, np.uint8)
    return [{"image": image, "target": Image.fromarray(mask), "name": f"i{index}"} for index in range(10)]


def show(records: list[dict], scores: list[float], count: int) -> dict:
    split = Split(ListRecords(records), np.full((len(records), 2), (4, 6)))
    info = DatasetInfo(
        DataConfig(task="classes"),
        split,
        split,
        ClassReader(CLASS_MAP, (1, 1)),
        Normalization((100.0,), (1.0,), ("uint8",)),
    )
    predictor = SimpleNamespace(predict_rows=lambda source, name: np.zeros((4, 6), np.uint8))
    return worst_and_best(info, predictor, new_section(info), scores, count)


def test_the_lowest_scores_come_first_and_then_the_highest(records):
    scores = [0.5, 0.1, 0.9, 0.3, 0.2, 0.8, 0.7, 0.6, 0.4, 0.0]
    assert list(show(records, scores, 4)) == ["i9: IoU 0.0000", "i1: IoU 0.1000", "i5: IoU 0.8000", "i2: IoU 0.9000"]
    assert [title[:2] for title in show(records, scores, 5)] == ["i9", "i1", "i6", "i5", "i2"]


def test_every_image_is_shown_once_where_there_are_few(records):
    for count in (3, 4, 20):
        titles = list(show(records[:3], [0.5, 0.1, 0.9], count))
        assert titles == ["i1: IoU 0.1000", "i0: IoU 0.5000", "i2: IoU 0.9000"]


def test_truth_and_prediction_lie_over_the_image_and_errors_are_marked(records):
    (views,) = show(records[:1], [0.5], 1).values()
    assert list(views) == ["image", "truth", "prediction", "errors"]
    assert all(view.shape == (4, 6, 3) and view.dtype == np.uint8 for view in views.values())
    assert (views["image"] == 100).all()
    np.testing.assert_array_equal(views["prediction"], views["image"])
    assert (views["truth"][:, :3] == 100)[:3].all()
    assert (views["truth"][:3, 3:] != 100).any(axis=2).all()
    assert (views["errors"][:3, 3:] == RED).all()
    assert (views["errors"][3] == 128).all()
    assert (views["errors"][:3, :3] == 35).all()
