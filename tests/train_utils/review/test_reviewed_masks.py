"""What a model says of a mask: a score against cleanlab's formula, masks that were spoiled in known ways, and how sure.

Module: train_utils/review/reviewed_masks.py.
"""

import numpy as np
import pytest

from train_utils.review.reviewed_masks import (
    Area,
    area_share,
    best_shift,
    compare_areas,
    mask_score,
    rate_areas,
)

NAMES = ("background", "cell", "dirt")


def blobs() -> np.ndarray:
    """A mask of two cells and a piece of dirt."""
    mask = np.zeros((60, 80), np.uint8)
    mask[8:20, 10:26] = 1
    mask[35:50, 12:22] = 1
    mask[30:46, 50:70] = 2
    return mask


def probabilities_of(mask: np.ndarray, sure: float = 0.94, classes: int = 3) -> np.ndarray:
    """(classes, H, W): what a model says that sees the mask."""
    probabilities = np.full((classes, *mask.shape), (1 - sure) / (classes - 1), np.float32)
    np.put_along_axis(probabilities, mask[None].astype(np.int64), np.float32(sure), axis=0)
    return probabilities


def test_score_is_the_one_that_cleanlab_prints():
    """The numbers are those of `get_label_quality_scores` of cleanlab 2.9.0 for the same arrays."""
    rng = np.random.default_rng(0)
    scores = []
    for classes, concentration, size in [(3, 1, (20, 30)), *[(4, 0.3, (8, 9))] * 3]:
        probabilities = rng.dirichlet((concentration,) * classes, size).transpose(2, 0, 1).astype(np.float32)
        scores.append(mask_score(probabilities, rng.integers(0, classes, size)))
    expected = [0.09026003366894586, 0.027253356588975892, 0.026389897797995533, 0.03358480877057148]
    assert scores == pytest.approx(expected, abs=1e-12)


def test_the_score_leaves_out_what_is_unlabeled():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet((1, 1, 1), (20, 30)).transpose(2, 0, 1)
    mask = rng.integers(0, 3, (20, 30))
    expected = mask_score(probabilities[:, 10:], mask[10:])
    mask[:10] = 255
    assert mask_score(probabilities, mask) == pytest.approx(expected)
    assert mask_score(probabilities, np.full_like(mask, 255)) is None


def doubted_areas(probabilities: np.ndarray, mask: np.ndarray) -> list[Area]:
    """The areas on which the mask and the model do not agree."""
    return [area for area in compare_areas(probabilities, mask, NAMES) if not area.agrees]


def test_areas_of_a_right_mask_are_compared_from_both_pictures_and_agree():
    mask = blobs()
    areas = list(compare_areas(probabilities_of(mask), mask, NAMES))
    assert [area.in_mask for area in areas] == [True] * 3 + [False] * 3
    assert [area.label for area in areas] == ["cell", "cell", "dirt"] * 2
    assert [area.pixels for area in areas] == [192, 150, 320] * 2
    assert [area.probability for area in areas] == pytest.approx([0.94] * 6)
    assert all(area.agrees and area.text is None for area in areas)


def test_what_is_unlabeled_is_no_problem():
    mask = blobs()
    probabilities = probabilities_of(mask)
    assert list(compare_areas(probabilities, np.full_like(mask, 255), NAMES)) == []
    mask[:25] = 255
    assert doubted_areas(probabilities, mask) == []
    assert best_shift(probabilities, mask) is None


def test_an_object_that_is_missing_is_named_with_its_place():
    mask = blobs()
    mask[8:20, 10:26] = 0
    (missing,) = doubted_areas(probabilities_of(blobs()), mask)
    assert not missing.in_mask
    assert missing.probability == pytest.approx(0.94)
    assert missing.text == "cell of 192 pixels at row 13, column 17 is missing in the mask"


def test_an_object_that_is_not_seen_is_named_with_its_place():
    mask = blobs()
    mask[5:15, 40:60] = 1
    (unseen,) = doubted_areas(probabilities_of(blobs(), 0.8), mask)
    assert unseen.text == "cell of 200 pixels at row 9, column 49 is not seen in the image"
    assert unseen.in_mask
    assert unseen.probability == pytest.approx(0.8)


@pytest.mark.parametrize(("width", "text"), [(20, None), (25, "dirt of 250 pixels at row 14, column 22 is missing")])
def test_an_area_of_another_class_is_told_again_only_where_most_of_it_is_new(width, text):
    prediction, mask = np.zeros((2, 60, 80), np.uint8)
    mask[10:20, 10:20] = 1
    prediction[10:20, 10 : 10 + width] = 2
    cell, dirt = doubted_areas(probabilities_of(prediction), mask)
    assert cell.text == "cell of 100 pixels at row 14, column 14 looks like dirt"
    assert dirt.label == "dirt"
    assert dirt.text == (text and f"{text} in the mask")


@pytest.mark.parametrize(("rows", "agrees"), [(1, False), (2, True)])
def test_an_area_is_there_when_a_tenth_of_it_is(rows, agrees):
    truth = blobs()
    mask = np.where(truth == 1, 0, truth)
    mask[35 : 35 + rows, 12:22] = 1  # of 15 rows
    (area,) = [area for area in compare_areas(probabilities_of(truth), mask, NAMES) if area.pixels == 150]
    assert area.agrees == agrees


@pytest.mark.parametrize("shift", [(4, -3), (0, 9), (-10, 2), (0, 2), (15, 0), (0, 0), (0, 1), (16, 0), (0, -25)])
def test_a_mask_that_is_shifted_by_two_to_fifteen_pixels_is_told_how_to_go_back(shift):
    truth = np.zeros((100, 100), np.uint8)
    truth[40:60, 40:60] = 1
    rows, columns = shift
    mask = np.roll(truth, (-rows, -columns), axis=(0, 1))
    expected = shift if 2 <= max(abs(rows), abs(columns)) <= 15 else None
    assert best_shift(probabilities_of(truth), mask) == expected


def test_a_shift_counts_from_three_percent_of_the_disagreement():
    truth = np.zeros((100, 100), np.uint8)
    truth[40:60, 40:60] = 1
    shifted = np.roll(truth, -2, axis=1)  # they disagree in 80 pixels
    seen = truth.copy()
    seen[17:37, 17:83] = 2  # and in 1,320 more, where the model sees dirt
    assert best_shift(probabilities_of(seen, 1.0), shifted) == (0, 2)
    seen[63:83, 17:83] = 2
    seen[37:63, 17:33] = 2
    assert best_shift(probabilities_of(seen, 1.0), shifted) is None  # 80 of 3,136 pixels


def test_the_share_of_areas_is_of_all_objects_and_no_strip_along_a_border_is_one():
    mask = blobs()
    mask[30:46, 50:70] = 0
    mask[0:4] = 255
    seen = blobs()
    seen[8:20, 26:28] = 1  # a border that is two pixels farther
    share = 320 * (0.9 - 0.05) / (662 + 24)
    assert area_share(probabilities_of(seen, 0.9), mask) == pytest.approx(share)
    assert area_share(probabilities_of(seen), blobs()) == 0


@pytest.mark.parametrize(("name", "small", "large"), [("pixels", 20, 2000), ("probability", 0.6, 0.95)])
def test_masks_agree_more_often_on_areas_of_a_size_and_a_probability_where_they_have_before(name, small, large):
    rng = np.random.default_rng(0)
    areas = []
    for value, share in ((small, 0.2), (large, 0.9)):
        kind = {"pixels": 100, "probability": 0.9} | {name: value}
        areas += [Area(False, "car", agrees=rng.random() < share, **kind) for _ in range(200)]
    rate_areas(areas)
    first, last = areas[0], areas[-1]
    assert first.confidence / first.probability == pytest.approx(0.2, abs=0.07)
    assert last.confidence / last.probability == pytest.approx(0.9, abs=0.07)


def test_masks_agree_as_often_as_areas_of_their_kind_have_before():
    shares = {("car", False): 95, ("sign", False): 30, ("car", True): 60}  # of 100 areas of each kind
    areas = []
    for (label, in_mask), share in shares.items():
        areas += [Area(in_mask, label, 100, 0.9, number < share) for number in range(100)]
    rate_areas(areas)
    assert [area.confidence / area.probability for area in areas[::100]] == pytest.approx([0.95, 0.3, 0.6], abs=0.03)
