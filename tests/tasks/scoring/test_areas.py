"""Areas of a class found and missed: tasks/scoring/areas.py."""

import numpy as np
import pytest
from scipy.ndimage import label

from tasks.scoring.areas import BINS, area_report, area_table, count_areas
from unet.config import IGNORE_INDEX


def counted(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The counts of areas of three classes."""
    return count_areas(predicted.astype(np.uint8), true.astype(np.uint8), 3)


@pytest.fixture(params=[(140, 30), (12, 14, 10)], ids=["image", "volume"])
def random_masks(request) -> tuple[np.ndarray, np.ndarray]:
    """A true mask and a predicted one of three classes."""
    rng = np.random.default_rng(0)
    true, predicted = (rng.choice(3, request.param, p=(0.6, 0.3, 0.1)) for _ in range(2))
    return true, predicted


def touched(areas: np.ndarray, others: np.ndarray) -> tuple[int, int]:
    """How many connected areas there are, and how many of them hold pixels of the others."""
    labels, count = label(areas)
    return count, len(set(labels[areas & others].tolist()))


def test_areas_are_counted_by_label_but_those_of_the_background(random_masks):
    true, predicted = random_masks
    counts = counted(predicted, true)
    assert not counts[0].any()
    for index in (1, 2):
        areas, found = touched(true == index, predicted == index)
        assert (counts[index, :BINS].sum(), counts[index, BINS : 2 * BINS].sum()) == (areas, found)
        areas, right = touched(predicted == index, true == index)
        assert counts[index, -2:].tolist() == [areas, areas - right]


def test_small_areas_that_are_missed_show_by_their_size():
    true, predicted = np.zeros((40, 40), int), np.zeros((40, 40), int)
    true[2:22, 2:22] = predicted[2:22, 2:22] = 1
    true[30:33, 30:33] = 1
    predicted[36, 2] = 1
    report = area_report(counted(predicted, true), ("background", "lesion", "other"))
    assert area_table(report) == (
        "lesion: 1 of 2 connected areas found (below 64: 0 of 1; 256 to 1,023: 1 of 1);"
        " 1 of 2 predicted areas lie beside all true ones"
    )
    assert report["by_class"]["other"]["areas"] == 0


def test_ignored_pixels_are_of_no_area():
    true, predicted = np.full((5, 5), IGNORE_INDEX), np.ones((5, 5), int)
    assert not counted(predicted, true).any()


@pytest.mark.parametrize(("pixels", "place"), [(63, 0), (64, 1), (255, 1), (256, 2), (1023, 2), (4096, 4)])
def test_areas_are_sorted_by_the_size_from_which_a_range_begins(pixels, place):
    true = np.zeros((1, 5000), int)
    true[0, :pixels] = 1
    areas = area_report(counted(true, true), ("background", "lesion", "other"))["by_class"]["lesion"]
    assert areas["areas_by_size"] == areas["found_by_size"] == [int(index == place) for index in range(5)]


def test_classes_that_are_only_missed_or_only_invented_have_a_line():
    true, predicted = np.zeros((9, 9), int), np.zeros((9, 9), int)
    true[1:3, 1:3] = 1
    predicted[6:8, 6:8] = 2
    counts = counted(predicted, true)
    report = area_report(2 * counts, ("background", "lesion", "other"))
    assert area_table(report).splitlines() == [
        "lesion: 0 of 2 connected areas found (below 64: 0 of 2); 0 of 0 predicted areas lie beside all true ones",
        "other: 0 of 0 connected areas found (no objects); 2 of 2 predicted areas lie beside all true ones",
    ]
    assert area_table(area_report(0 * counts, ("background", "lesion", "other"))) == ""
