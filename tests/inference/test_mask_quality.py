"""What a model says of a mask: a score against cleanlab's formula, and masks that were spoiled in known ways.

Modules: inference/review/mask_quality.py, inference/review/areas.py, inference/review/worst_slices.py,
inference/review/equal_images.py.
"""

import numpy as np
import pytest
from PIL import Image

from data_utils.sources.records import ListRecords
from inference.review.areas import IN_MASK, IN_PREDICTION, ComparedArea, area_share, compared_areas, disagreeing_areas
from inference.review.equal_images import equal_images
from inference.review.mask_quality import best_shift, mask_score
from inference.review.worst_slices import worst_slices

NAMES = ("background", "cell", "dirt")


def blobs() -> np.ndarray:
    """A mask of two cells and a piece of dirt."""
    mask = np.zeros((60, 80), np.uint8)
    mask[8:20, 10:26] = 1
    mask[35:50, 12:22] = 1
    mask[30:46, 50:70] = 2
    return mask


def probabilities_of(mask: np.ndarray, sure: float = 0.94) -> np.ndarray:
    """(3, H, W): what a model says that sees the mask."""
    probabilities = np.full((3, *mask.shape), (1 - sure) / 2, np.float32)
    np.put_along_axis(probabilities, mask[None].astype(np.int64), np.float32(sure), axis=0)
    return probabilities


def cleanlab_score(probabilities: np.ndarray, mask: np.ndarray) -> float:
    """cleanlab's softmin, written out: scores times the softmax of 1 - scores at temperature 0.1."""
    scores = np.array([probabilities[mask[place]][place] for place in np.ndindex(mask.shape)], np.float64)
    exponents = (1 - scores) / 0.1
    weights = np.exp(exponents - exponents.max())
    return float(np.dot(scores, weights / weights.sum()))


def test_the_score_is_the_softmin_of_the_probabilities_of_the_labels():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet((1, 1, 1), (20, 30)).transpose(2, 0, 1).astype(np.float32)
    mask = rng.integers(0, 3, (20, 30)).astype(np.uint8)
    assert mask_score(probabilities, mask) == pytest.approx(cleanlab_score(probabilities, mask), abs=1e-6)
    ignored = mask.copy()
    ignored[:10] = 255
    expected = cleanlab_score(probabilities[:, 10:], mask[10:])
    assert mask_score(probabilities, ignored) == pytest.approx(expected, abs=1e-6)
    assert mask_score(probabilities, np.full_like(mask, 255)) is None


def test_the_score_is_the_one_that_cleanlab_prints():
    """The numbers are those of `get_label_quality_scores` of cleanlab 2.9.0 for the same arrays."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet((1, 1, 1), (20, 30)).transpose(2, 0, 1).astype(np.float32)
    mask = rng.integers(0, 3, (20, 30))
    assert mask_score(probabilities, mask) == pytest.approx(0.09026003366894586, abs=1e-12)
    for expected in (0.027253356588975892, 0.026389897797995533, 0.03358480877057148):
        probabilities = rng.dirichlet((0.3,) * 4, (8, 9)).transpose(2, 0, 1).astype(np.float32)
        mask = rng.integers(0, 4, (8, 9))
        assert mask_score(probabilities, mask) == pytest.approx(expected, abs=1e-12)


def test_the_slices_with_the_lowest_scores_are_the_worst_and_those_without_labels_do_not_count():
    mask = blobs()
    slices = []
    for sure in (0.9, 0.5, 0.95, 0.6, 0.7):
        slices.append((probabilities_of(mask, sure), mask))
    slices.insert(1, (probabilities_of(mask, 0.1), np.full_like(mask, 255)))
    worst = worst_slices(iter(slices))
    assert [scored.number for scored in worst] == [2, 4, 5]
    assert [scored.score for scored in worst] == pytest.approx([0.5, 0.6, 0.7], abs=1e-6)
    assert [scored.number for scored in worst_slices(slices[:1])] == [0]
    assert worst_slices(slices[1:2]) == []


def test_areas_that_disagree_are_those_that_are_no_border_and_not_unlabeled():
    mask = blobs()
    prediction = mask.copy()
    prediction[8:20, 26] = 1  # a border that is a pixel farther
    prediction[35:50, 12:22] = 0
    areas = disagreeing_areas(prediction, mask)
    assert np.array_equal(areas, (mask == 1) & (prediction == 0))
    unlabeled = mask.copy()
    unlabeled[35:50, 12:22] = 255
    assert not disagreeing_areas(prediction, unlabeled).any()


def doubted_areas(probabilities: np.ndarray, mask: np.ndarray) -> list[ComparedArea]:
    """The areas on which the mask and the model do not agree."""
    return [area for area in compared_areas(probabilities, mask, NAMES) if not area.agrees]


def test_a_right_mask_has_no_problem_whatever_is_unlabeled():
    mask = blobs()
    areas = list(compared_areas(probabilities_of(mask), mask, NAMES))
    assert [(area.picture, area.label, area.pixels) for area in areas] == [
        (picture, *area)
        for picture in (IN_MASK, IN_PREDICTION)
        for area in (("cell", 192), ("cell", 150), ("dirt", 320))
    ]
    assert all(area.agrees and area.text is None for area in areas)
    assert [area.probability for area in areas] == pytest.approx([0.94] * 6)
    assert list(compared_areas(probabilities_of(mask), np.full_like(mask, 255), NAMES)) == []
    assert best_shift(probabilities_of(mask, 1.0), mask) is None
    empty = np.zeros_like(mask)  # fits as well wherever it is moved
    assert best_shift(probabilities_of(empty, 1.0), empty) is None
    unlabeled = mask.copy()
    unlabeled[:25] = 255
    assert doubted_areas(probabilities_of(mask), unlabeled) == []
    assert best_shift(probabilities_of(mask), unlabeled) is None


def test_objects_that_are_missing_or_not_seen_and_other_classes_are_named_with_their_place():
    truth = blobs()
    mask = truth.copy()
    mask[8:20, 10:26] = 0
    (missing,) = doubted_areas(probabilities_of(truth), mask)
    assert missing.picture == IN_PREDICTION
    assert missing.probability == pytest.approx(0.94)
    assert missing.text == "cell of 192 pixels at row 13, column 17 is missing in the mask"
    within = truth.copy()
    within[28:54, 5:30] = 2  # most of it is dirt to the model too
    truth_within = within.copy()
    truth_within[35:50, 12:22] = 1
    (missing,) = doubted_areas(probabilities_of(truth_within), within)
    assert missing.text == "cell of 150 pixels at row 42, column 16 is missing in the mask, which has dirt there"
    mask = truth.copy()
    mask[5:15, 40:60] = 1
    (unseen,) = doubted_areas(probabilities_of(truth, 0.8), mask)
    assert unseen.text == "cell of 200 pixels at row 9, column 49 is not seen in the image"
    assert unseen.picture == IN_MASK
    assert unseen.probability == pytest.approx(0.8)
    mask = truth.copy()
    mask[truth == 2] = 1
    other, told = doubted_areas(probabilities_of(truth), mask)
    assert other.text == "cell of 320 pixels at row 37, column 59 looks like dirt"
    assert other.picture == IN_MASK
    assert told.text is None
    assert (told.picture, told.label) == (IN_PREDICTION, "dirt")
    specks = truth.copy()
    specks[55, 3:18] = 1  # 15 pixels are no object
    assert doubted_areas(probabilities_of(truth), specks) == []


def test_a_class_is_there_where_no_other_is_more_frequent_even_in_less_than_a_tenth():
    names = [f"class {number}" for number in range(21)]
    whole = np.zeros((40, 40), np.uint8)
    whole[9:30, 10:30] = 1
    striped = whole.copy()
    striped[9:30, 10:30] = np.array([1, 1, *range(2, 21)])[:, None]  # two rows of 21, and one of each other class
    for mask, seen in ((whole, striped), (striped, whole)):
        probabilities = np.full((21, 40, 40), 0.01, np.float32)
        np.put_along_axis(probabilities, seen[None].astype(np.int64), np.float32(0.8), axis=0)
        (area,) = [area for area in compared_areas(probabilities, mask, names) if area.pixels == 420]
        assert area.agrees
        assert area.text is None


def test_an_area_is_there_when_a_tenth_of_it_is():
    truth = blobs()
    for rows, agrees in ((1, False), (2, True)):
        mask = np.where(truth == 1, 0, truth)
        mask[35 : 35 + rows, 12:22] = 1  # of 15 rows
        by_rows = [area.agrees for area in compared_areas(probabilities_of(truth), mask, NAMES) if area.pixels == 150]
        assert by_rows == [agrees]


def test_an_area_is_there_when_exactly_a_tenth_of_it_is():
    whole, tenth = np.zeros((2, 40, 40), np.uint8)
    whole[10:20, 10:20] = 1
    tenth[10, 10:20] = 1
    for seen, mask in ((whole, tenth), (tenth, whole)):
        areas = compared_areas(probabilities_of(seen), mask, NAMES)
        assert [(area.pixels, area.agrees) for area in areas] == [(100, True)]


@pytest.mark.parametrize(("width", "is_area"), [(2, False), (3, True)])
def test_in_a_small_image_a_strip_of_two_pixels_is_a_border(width, is_area):
    mask, prediction = np.zeros((2, 60, 80), np.uint8)
    prediction[20 : 20 + width, 10:60] = 1
    assert disagreeing_areas(prediction, mask).any() == is_area


def test_what_is_missing_is_told_behind_what_is_unlabeled_and_where_a_mask_has_what_is_not_seen():
    mask = blobs()
    mask[8:20, 10:26] = 255
    mask[35:50, 12:22] = 0
    (missing,) = doubted_areas(probabilities_of(blobs()), mask)
    assert missing.text == "cell of 150 pixels at row 42, column 16 is missing in the mask"
    mask, seen = np.zeros((2, 60, 80), np.uint8)
    mask[10:30, 10:30] = 1
    seen[15:25, 15:25] = 2
    unseen, missing = doubted_areas(probabilities_of(seen), mask)
    assert unseen.text == "cell of 400 pixels at row 19, column 19 is not seen in the image"
    assert missing.text == "dirt of 100 pixels at row 19, column 19 is missing in the mask, which has cell there"


@pytest.mark.parametrize(("width", "is_told"), [(16, True), (20, True), (25, False)])
def test_what_was_told_of_most_of_an_area_is_not_told_again(width, is_told):
    prediction, mask = np.zeros((60, 80), np.uint8), np.zeros((60, 80), np.uint8)
    mask[10:20, 10:20] = 1
    prediction[10:20, 10 : 10 + width] = 2
    cell, dirt = doubted_areas(probabilities_of(prediction), mask)
    assert cell.text == "cell of 100 pixels at row 14, column 14 looks like dirt"
    assert (dirt.label, dirt.text is None) == ("dirt", is_told)


def test_in_a_large_image_an_area_of_less_than_a_five_thousandth_is_a_speck():
    mask = np.zeros((500, 500), np.uint8)
    mask[10:17, 10:17] = 1  # 49 pixels
    mask[30:35, 10:20] = 1  # 50
    areas = compared_areas(probabilities_of(mask), mask, NAMES)
    assert [(area.picture, area.pixels) for area in areas] == [(IN_MASK, 50), (IN_PREDICTION, 50)]


def test_in_a_large_image_a_strip_of_less_than_a_fiftieth_is_a_border():
    mask, prediction = np.zeros((2, 400, 600), np.uint8)
    prediction[100:107, 50:200] = 1
    prediction[200:208, 50:200] = 1
    assert np.array_equal(np.flatnonzero(disagreeing_areas(prediction, mask).any(axis=1)), np.arange(200, 208))
    columns = disagreeing_areas(prediction.T, mask.T).any(axis=0)  # of the shorter side, whichever it is
    assert np.array_equal(np.flatnonzero(columns), np.arange(200, 208))


def test_the_share_of_areas_is_of_all_objects_by_how_sure_the_model_is():
    truth = blobs()
    mask = truth.copy()
    mask[30:46, 50:70] = 0  # 320 of 662 pixels
    mask[0:4] = 255
    assert area_share(probabilities_of(truth, 0.9), mask) == pytest.approx(320 * (0.9 - 0.05) / 662)
    probabilities = probabilities_of(truth, 0.9)
    probabilities[:, 30:38] = probabilities_of(truth, 0.6)[:, 30:38]  # half of the area is less sure
    assert area_share(probabilities, mask) == pytest.approx((160 * (0.9 - 0.05) + 160 * (0.6 - 0.2)) / 662)
    assert area_share(probabilities_of(truth), truth) == 0
    prediction = truth.copy()
    prediction[30:46, 50:70] = 0
    assert area_share(probabilities_of(prediction, 0.9), truth) == pytest.approx(320 * (0.9 - 0.05) / 662)


@pytest.mark.parametrize(("side", "columns", "found"), [(768, 4, 4), (768, 3, None), (780, 6, 6), (780, 4, None)])
def test_a_large_mask_is_looked_at_with_a_longest_side_of_384_pixels(side, columns, found):
    truth = np.zeros((side, side), np.uint8)
    truth[60:700, 60:700] = 1
    shift = best_shift(probabilities_of(truth, 1.0), np.roll(truth, -columns, axis=1))
    assert shift == (None if found is None else (0, found))


@pytest.mark.parametrize(("rows", "columns"), [(4, -3), (0, 9), (-10, 2)])
def test_a_shifted_mask_is_told_how_to_go_back(rows, columns):
    truth = blobs()
    mask = np.roll(truth, (-rows, -columns), axis=(0, 1))
    assert best_shift(probabilities_of(truth), mask) == (rows, columns)
    large = np.kron(mask, np.ones((10, 10), np.uint8))  # is looked at in every third pixel
    large_probabilities = np.kron(probabilities_of(truth), np.ones((1, 10, 10), np.float32))
    large_shift = best_shift(large_probabilities, large)
    if max(abs(rows), abs(columns)) < 5:
        assert large_shift is not None
        assert np.abs(np.subtract(large_shift, (10 * rows, 10 * columns))).max() <= 3
        assert best_shift(large_probabilities.transpose(0, 2, 1), large.T) == large_shift[::-1]
    one_pixel = np.roll(truth, (0, 1), axis=(0, 1))
    assert best_shift(probabilities_of(truth), one_pixel) is None


def test_a_shift_counts_from_two_pixels_to_fifteen_and_from_three_percent_of_the_disagreement():
    truth = np.zeros((100, 100), np.uint8)
    truth[40:60, 40:60] = 1
    for columns, found in ((1, None), (2, (0, 2)), (15, (0, 15)), (16, None), (25, None)):
        assert best_shift(probabilities_of(truth), np.roll(truth, -columns, axis=1)) == found, columns
        rows = found and found[::-1]
        assert best_shift(probabilities_of(truth), np.roll(truth, -columns, axis=0)) == rows, columns
        back = found and (0, -found[1])
        assert best_shift(probabilities_of(truth), np.roll(truth, columns, axis=1)) == back, columns
    shifted = np.roll(truth, -2, axis=1)  # they disagree in 80 pixels
    seen = truth.copy()
    seen[17:37, 17:83] = 2  # and in 1,320 more, where the model sees dirt
    assert best_shift(probabilities_of(seen, 1.0), shifted) == (0, 2)
    seen[63:83, 17:83] = 2
    seen[37:63, 17:33] = 2
    assert best_shift(probabilities_of(seen, 1.0), shifted) is None  # 80 of 3,136 pixels
    known = np.full_like(shifted, 255)
    known[30:70, 30:70] = shifted[30:70, 30:70]  # 80 of 1,600 pixels, whatever is unlabeled
    assert best_shift(probabilities_of(truth, 1.0), known) == (0, 2)
    large = np.pad(truth, 50)  # 80 of 40,000 pixels are nothing to speak of, even where all else fits
    assert best_shift(probabilities_of(large, 1.0), np.roll(large, -2, axis=1)) is None


def test_validation_images_that_were_trained_on_are_found_by_their_content(tmp_path):
    records = []
    for name, shade in (("a", 1), ("b", 2), ("c", 1), ("d", 3)):
        Image.new("L", (4, 4), shade).save(tmp_path / f"{name}.png")
        records.append({"image": str(tmp_path / f"{name}.png"), "target": None, "name": f"{name}.png"})
    in_memory = {"image": np.zeros((4, 4), np.uint8), "target": None, "name": "array"}
    equal = equal_images(ListRecords([records[0], records[1], in_memory]), ListRecords([*records[2:], in_memory]))
    assert equal == {"c.png": "a.png"}
    train = [
        {**records[2], "image": tmp_path / "c.png"},
        records[0],
        {**records[1], "image": str(tmp_path / "gone.png")},
    ]
    val = [{**records[0], "name": "again.png"}, {**records[1], "image": str(tmp_path / "gone.png")}]
    assert equal_images(ListRecords(train), ListRecords(val)) == {"again.png": "c.png"}  # the first of two
    in_two_lines = {**records[0], "name": "two\nlines.png"}
    (name,) = equal_images(ListRecords([in_two_lines]), ListRecords([records[0]])).values()
    assert "\n" not in name
