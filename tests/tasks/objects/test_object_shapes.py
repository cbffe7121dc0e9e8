"""The shapes of objects in training data, from which follow the smallest prediction and whether holes are filled."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.objects import Masks, numbered, write_discs

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from tasks.objects.reader import ObjectReader, boxed_objects, object_shapes
from train_utils.check_data import check_data

COUNTS = [3, 5, 8, 9, 12, 14, 17]


def test_the_smallest_prediction_follows_from_the_data(tmp_path):
    config = DataConfig(dataset=str(write_discs(tmp_path, COUNTS, seed=0)))
    train, _ = load_records(config)
    smallest = object_shapes(train, ObjectReader())["smallest"]
    areas = []
    for record in train:
        ids = np.array(Image.open(record["target"]))
        areas += np.unique(ids[ids > 0], return_counts=True)[1].tolist()
    assert smallest == int(np.percentile(areas, 1) / 2)
    assert smallest > 1
    assert load_info(tmp_path).reader.smallest == smallest


@pytest.mark.parametrize(
    ("mask", "smallest"),
    [
        (np.repeat(np.arange(1, 101), np.arange(11, 111))[None], 5),  # the percentile lies just below 12
        (np.repeat(np.arange(1, 202), [1, *[40] * 200])[None], 20),
        (numbered(3), 1),
    ],
    ids=["11 to 110 pixels", "a speck among 40 pixels", "one pixel"],
)
def test_the_smallest_prediction_is_half_of_the_hundredth_smallest_object(mask, smallest):
    assert object_shapes(Masks([mask]), ObjectReader())["smallest"] == smallest


def pierce(folder: Path) -> None:
    """Make a hole in every fourth disc."""
    for file in (folder / "masks").iterdir():
        ids = np.array(Image.open(file))
        for number in range(1, int(ids.max()) + 1, 4):
            y, x = np.argwhere(ids == number).mean(axis=0).round().astype(int)
            ids[y, x] = 0
        Image.fromarray(ids).save(file)


def test_holes_of_predictions_are_filled_where_training_objects_have_none(tmp_path):
    config = DataConfig(dataset=str(write_discs(tmp_path, [20, 21, 22, 23], seed=0)), task="objects")
    train, _ = load_records(config)
    assert ObjectReader().with_records(train).fills_holes
    assert "holes in predictions filled" in check_data(config)[0]
    pierce(tmp_path)
    assert not ObjectReader().with_records(load_records(config)[0]).fills_holes


RING = np.pad([[0]], 2, constant_values=1)


@pytest.mark.parametrize(("count", "are_filled"), [(20, True), (19, False)])
def test_a_hole_in_every_twentieth_object_is_taken_for_a_mistake(count, are_filled):
    mask = np.concatenate([RING, *(np.full((5, 5), number) for number in range(2, count + 1))])
    assert object_shapes(Masks([mask]), ObjectReader())["fills_holes"] == are_filled


def test_an_object_in_the_hole_of_another_leaves_the_hole():
    mask = RING.copy()
    mask[2, 2] = 2
    assert [int(part.sum()) for part in boxed_objects(3 * mask)] == [24, 1]  # a number that is not there lies between
    assert not object_shapes(Masks([mask]), ObjectReader())["fills_holes"]
