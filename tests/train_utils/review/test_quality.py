"""What a model says of a mask: a score against cleanlab's formula, and masks that were spoiled in known ways.

Modules: train_utils/review/quality.py, train_utils/review/areas.py.
"""

import numpy as np
import pytest
from PIL import Image

from data_utils.sources.records import ListRecords
from train_utils.review.areas import IN_MASK, IN_PREDICTION, ComparedArea, area_share, compare_areas, disagreeing_areas
from train_utils.review.quality import best_shift, mask_score
from train_utils.review.reviews import equal_images

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


def random_mask() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of three classes at 20 x 30 pixels, and a mask that has nothing to do with them."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet((1, 1, 1), (20, 30)).transpose(2, 0, 1).astype(np.float32)
    return probabilities, rng.integers(0, 3, (20, 30)).astype(np.uint8)


def test_the_score_is_the_softmin_of_the_probabilities_of_the_labels():
    probabilities, mask = random_mask()
    assert mask_score(probabilities, mask) == pytest.approx(cleanlab_score(probabilities, mask), abs=1e-6)


def test_the_score_leaves_out_what_is_unlabeled():
    probabilities, mask = random_mask()
    expected = cleanlab_score(probabilities[:, 10:], mask[10:])
    mask[:10] = 255
    assert mask_score(probabilities, mask) == pytest.approx(expected, abs=1e-6)


def test_a_mask_without_labels_has_no_score():
    probabilities, mask = random_mask()
    assert mask_score(probabilities, np.full_like(mask, 255)) is None


def test_score_is_the_one_that_cleanlab_prints():
    """The numbers are those of `get_label_quality_scores` of cleanlab 2.9.0 for the same arrays."""
    rng = np.random.default_rng(0)
    scores = []
    for classes, concentration, size in [(3, 1, (20, 30)), *[(4, 0.3, (8, 9))] * 3]:
        probabilities = rng.dirichlet((concentration,) * classes, size).transpose(2, 0, 1).astype(np.float32)
        scores.append(mask_score(probabilities, rng.integers(0, classes, size)))
    expected = [0.09026003366894586, 0.027253356588975892, 0.026389897797995533, 0.03358480877057148]
    assert scores == pytest.approx(expected, abs=1e-12)


def test_areas_that_disagree_are_no_borders():
    mask = blobs()
    prediction = mask.copy()
    prediction[8:20, 26] = 1  # a border that is a pixel farther
    prediction[35:50, 12:22] = 0
    areas = disagreeing_areas(prediction, mask)
    assert np.array_equal(areas, (mask == 1) & (prediction == 0))


def test_areas_that_are_unlabeled_do_not_disagree():
    mask = blobs()
    prediction = mask.copy()
    prediction[35:50, 12:22] = 0
    mask[35:50, 12:22] = 255
    assert not disagreeing_areas(prediction, mask).any()


def doubted_areas(probabilities: np.ndarray, mask: np.ndarray) -> list[ComparedArea]:
    """The areas on which the mask and the model do not agree."""
    return [area for area in compare_areas(probabilities, mask, NAMES) if not area.agrees]


def test_areas_of_a_right_mask_are_compared_from_both_pictures():
    mask = blobs()
    areas = list(compare_areas(probabilities_of(mask), mask, NAMES))
    assert [area.picture for area in areas] == [IN_MASK] * 3 + [IN_PREDICTION] * 3
    assert [area.label for area in areas] == ["cell", "cell", "dirt"] * 2
    assert [area.pixels for area in areas] == [192, 150, 320] * 2
    assert [area.probability for area in areas] == pytest.approx([0.94] * 6)


def test_areas_of_a_right_mask_agree():
    mask = blobs()
    areas = compare_areas(probabilities_of(mask), mask, NAMES)
    assert all(area.agrees and area.text is None for area in areas)


def test_a_mask_without_labels_has_no_areas():
    mask = blobs()
    assert list(compare_areas(probabilities_of(mask), np.full_like(mask, 255), NAMES)) == []


@pytest.mark.parametrize("mask", [blobs(), np.zeros((60, 80), np.uint8)], ids=["right", "empty"])
def test_a_right_mask_has_no_shift(mask):
    assert best_shift(probabilities_of(mask, 1.0), mask) is None  # an empty one fits as well wherever it is moved


def test_a_right_mask_has_no_problem_where_a_part_is_unlabeled():
    mask = blobs()
    probabilities = probabilities_of(mask)
    mask[:25] = 255
    assert doubted_areas(probabilities, mask) == []
    assert best_shift(probabilities, mask) is None


def test_an_object_that_is_missing_is_named_with_its_place():
    mask = blobs()
    mask[8:20, 10:26] = 0
    (missing,) = doubted_areas(probabilities_of(blobs()), mask)
    assert missing.picture == IN_PREDICTION
    assert missing.probability == pytest.approx(0.94)
    assert missing.text == "cell of 192 pixels at row 13, column 17 is missing in the mask"


def test_an_object_that_is_not_seen_is_named_with_its_place():
    mask = blobs()
    mask[5:15, 40:60] = 1
    (unseen,) = doubted_areas(probabilities_of(blobs(), 0.8), mask)
    assert unseen.text == "cell of 200 pixels at row 9, column 49 is not seen in the image"
    assert unseen.picture == IN_MASK
    assert unseen.probability == pytest.approx(0.8)


def test_an_object_of_another_class_is_reported_once():
    mask = blobs()
    mask[mask == 2] = 1
    other, told = doubted_areas(probabilities_of(blobs()), mask)
    assert other.text == "cell of 320 pixels at row 37, column 59 looks like dirt"
    assert other.picture == IN_MASK
    assert told.text is None
    assert told.picture == IN_PREDICTION
    assert told.label == "dirt"


WHOLE = np.zeros((40, 40), np.uint8)
WHOLE[9:30, 10:30] = 1
STRIPED = WHOLE.copy()
STRIPED[9:30, 10:30] = np.array([1, 1, *range(2, 21)])[:, None]  # two rows of 21, and one of each other class


@pytest.mark.parametrize(("mask", "seen"), [(WHOLE, STRIPED), (STRIPED, WHOLE)], ids=["in the image", "in the mask"])
def test_a_class_is_there_where_no_other_is_more_frequent(mask, seen):
    names = [f"class {number}" for number in range(21)]
    probabilities = np.full((21, 40, 40), 0.01, np.float32)
    np.put_along_axis(probabilities, seen[None].astype(np.int64), np.float32(0.8), axis=0)
    (area,) = [area for area in compare_areas(probabilities, mask, names) if area.pixels == 420]
    assert area.agrees  # though it is less than a tenth
    assert area.text is None


@pytest.mark.parametrize(("rows", "agrees"), [(1, False), (2, True)])
def test_an_area_is_there_when_a_tenth_of_it_is(rows, agrees):
    truth = blobs()
    mask = np.where(truth == 1, 0, truth)
    mask[35 : 35 + rows, 12:22] = 1  # of 15 rows
    (area,) = [area for area in compare_areas(probabilities_of(truth), mask, NAMES) if area.pixels == 150]
    assert area.agrees == agrees


SQUARE, TENTH = np.zeros((2, 40, 40), np.uint8)
SQUARE[10:20, 10:20] = 1
TENTH[10, 10:20] = 1


@pytest.mark.parametrize(("width", "is_area"), [(2, False), (3, True)])
def test_in_a_small_image_a_strip_of_two_pixels_is_a_border(width, is_area):
    mask, prediction = np.zeros((2, 60, 80), np.uint8)
    prediction[20 : 20 + width, 10:60] = 1
    assert disagreeing_areas(prediction, mask).any() == is_area


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (16, None),
        (20, None),
        (25, "dirt of 250 pixels at row 14, column 22 is missing in the mask"),
    ],
)
def test_an_area_is_not_told_again_where_most_of_it_was(width, text):
    prediction, mask = np.zeros((2, 60, 80), np.uint8)
    mask[10:20, 10:20] = 1
    prediction[10:20, 10 : 10 + width] = 2
    cell, dirt = doubted_areas(probabilities_of(prediction), mask)
    assert cell.text == "cell of 100 pixels at row 14, column 14 looks like dirt"
    assert dirt.label == "dirt"
    assert dirt.text == text


@pytest.fixture
def spoiled() -> np.ndarray:
    """A mask that lacks 320 of 662 pixels of objects, and whose first rows are unlabeled."""
    mask = blobs()
    mask[30:46, 50:70] = 0
    mask[0:4] = 255
    return mask


def test_the_share_of_areas_is_of_all_objects(spoiled):
    assert area_share(probabilities_of(blobs(), 0.9), spoiled) == pytest.approx(320 * (0.9 - 0.05) / 662)


def test_the_share_of_areas_of_a_right_mask_is_nothing():
    assert area_share(probabilities_of(blobs()), blobs()) == 0


def test_the_share_of_areas_counts_what_the_model_does_not_see():
    prediction = blobs()
    prediction[30:46, 50:70] = 0
    assert area_share(probabilities_of(prediction, 0.9), blobs()) == pytest.approx(320 * (0.9 - 0.05) / 662)


@pytest.mark.parametrize(("rows", "columns"), [(4, -3), (0, 9), (-10, 2), (-9, -9)])
def test_a_shifted_mask_is_told_how_to_go_back(rows, columns):
    truth = blobs()
    mask = np.roll(truth, (-rows, -columns), axis=(0, 1))
    assert best_shift(probabilities_of(truth), mask) == (rows, columns)


def test_a_mask_that_is_shifted_by_a_pixel_is_right():
    truth = blobs()
    assert best_shift(probabilities_of(truth), np.roll(truth, 1, axis=1)) is None


def centered_square() -> np.ndarray:
    """A mask of 100 x 100 with a cell of 20 x 20."""
    truth = np.zeros((100, 100), np.uint8)
    truth[40:60, 40:60] = 1
    return truth


@pytest.mark.parametrize("pixels", [2, 15, -2, -15])
def test_a_shift_counts_from_two_pixels_to_fifteen(pixels):
    truth = centered_square()
    assert best_shift(probabilities_of(truth), np.roll(truth, -pixels, axis=1)) == (0, pixels)
    assert best_shift(probabilities_of(truth), np.roll(truth, -pixels, axis=0)) == (pixels, 0)


@pytest.mark.parametrize("pixels", [1, 16, 25, -1, -16, -25])
def test_a_shift_does_not_count_below_two_pixels_or_above_fifteen(pixels):
    truth = centered_square()
    assert best_shift(probabilities_of(truth), np.roll(truth, -pixels, axis=1)) is None
    assert best_shift(probabilities_of(truth), np.roll(truth, -pixels, axis=0)) is None


def test_a_shift_counts_from_three_percent_of_the_disagreement():
    truth = centered_square()
    shifted = np.roll(truth, -2, axis=1)  # they disagree in 80 pixels
    seen = truth.copy()
    seen[17:37, 17:83] = 2  # and in 1,320 more, where the model sees dirt
    assert best_shift(probabilities_of(seen, 1.0), shifted) == (0, 2)
    seen[63:83, 17:83] = 2
    seen[37:63, 17:33] = 2
    assert best_shift(probabilities_of(seen, 1.0), shifted) is None  # 80 of 3,136 pixels


@pytest.fixture
def records(tmp_path) -> dict[str, dict]:
    """Records of images, of which a and c are equal."""
    records = {}
    for name, shade in (("a", 1), ("b", 2), ("c", 1), ("d", 3)):
        Image.new("L", (4, 4), shade).save(tmp_path / f"{name}.png")
        records[name] = {"image": str(tmp_path / f"{name}.png"), "target": None, "name": f"{name}.png"}
    return records


def test_validation_images_that_were_trained_on_are_found_by_their_content(records):
    in_memory = {"image": np.zeros((4, 4), np.uint8), "target": None, "name": "array"}
    train = ListRecords([records["a"], records["b"], in_memory])
    val = ListRecords([records["c"], records["d"], in_memory])
    assert equal_images(train, val) == {"c.png": "a.png"}


def test_a_validation_image_is_equal_to_the_first_of_two(records, tmp_path):
    train = ListRecords([{**records["c"], "image": tmp_path / "c.png"}, records["a"]])
    assert equal_images(train, ListRecords([{**records["a"], "name": "again.png"}])) == {"again.png": "c.png"}


def test_images_that_cannot_be_read_are_equal_to_none(records, tmp_path):
    gone = {**records["b"], "image": str(tmp_path / "gone.png")}
    val = ListRecords([{**records["a"], "name": "again.png"}, gone])
    assert equal_images(ListRecords([records["a"], gone]), val) == {"again.png": "a.png"}


def test_a_small_object_within_an_area_that_the_model_sees_little_of_is_named():
    mask = np.zeros((100, 100), np.uint8)
    mask[20:80, 20:80] = 1
    seen = np.zeros((100, 100), np.int64)
    seen[40:50, 40:50] = 2
    probabilities = np.eye(3, dtype=np.float32)[seen].transpose(2, 0, 1)
    areas = list(compare_areas(probabilities, mask, ["background", "car", "sign"]))
    assert len(areas) == 2
    assert "is missing in the mask, which has car there" in areas[1].text
