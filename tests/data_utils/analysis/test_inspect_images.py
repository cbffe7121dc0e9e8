"""One look at an image and its mask, and at a split of them: kinds of values, problems, and what is kept.

Modules: data_utils/analysis/inspection.py, data_utils/analysis/inspect_images.py, data_utils/analysis/problems.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.inspections import split_of

from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspect_windows import inspect_in_windows
from data_utils.analysis.inspection import (
    Inspection,
    Problem,
    SplitInspection,
    locations_from_json,
    locations_to_json,
    pixels_by_labels,
    total_pixels,
)
from data_utils.analysis.problems import (
    exclude_unknown,
    exclude_unreadable,
    lossy_problem,
    merge_equal,
    raise_problems,
    value_count_problem,
)
from data_utils.class_map import ClassMap
from data_utils.invented_values import excess_values
from data_utils.mask_values import count_values
from runtime.errors import DataError

CLASSES = ClassMap(("sky", "land"), (0, 1), None)


def write_mask(folder: Path, name: str, mask: np.ndarray, **options) -> dict:
    """A record of a black picture and a mask in a file."""
    Image.fromarray(mask).save(folder / name, **options)
    return {"image": np.zeros(mask.shape[:2], np.uint8), "target": str(folder / name), "name": "a"}


NUMBERS = np.array([[0, 9], [9, 9]], np.uint8)
GREYS = np.repeat(NUMBERS[:, :, None], 3, axis=2)
COLORS = GREYS + np.array([[[0, 7, 0], [0, 0, 0]]], np.uint8)


@pytest.mark.parametrize(
    ("mask", "kind"), [(NUMBERS, "numbers"), (GREYS, "greys"), (COLORS, "colors")], ids=["numbers", "greys", "colors"]
)
def test_values_are_numbers_or_greys_or_colors_as_they_are_stored(tmp_path, mask, kind):
    assert inspect_image(write_mask(tmp_path, "a.png", mask)).kind == kind


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, -2e30])
@pytest.mark.parametrize("suffix", ["tif", "npy"])
@pytest.mark.parametrize("is_large", [False, True], ids=["whole", "in strips"])
def test_a_pixel_that_counts_as_infinite_is_named(tmp_path, monkeypatch, value, suffix, is_large):
    inspect = inspect_image
    if is_large:
        monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
        inspect = inspect_in_windows
    image = np.zeros((48, 32), np.float32)
    record = write_mask(tmp_path, "mask.png", image.astype(np.uint8)) | {"image": str(tmp_path / f"a.{suffix}")}
    for pixel, is_named in ((1e29, False), (value, True)):
        image[40, 5] = pixel
        np.save(tmp_path / "a.npy", image)
        Image.fromarray(image).save(tmp_path / "a.tif")
        problem = inspect(record)
        assert isinstance(problem, Problem) is is_named
    assert problem.kind == "image cannot be read"
    assert problem.text.startswith("a: has pixels that are not numbers (NaN or infinite)")


def test_a_mask_of_a_photograph_that_exif_turns_is_refused_with_a_word_on_exif(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    record = write_mask(tmp_path, "mask.png", np.zeros((20, 30), np.uint8)) | {"image": str(tmp_path / "a.jpg")}
    message = inspect_image(record).text
    assert message.startswith("a: image is 30 x 20, its mask 20 x 30 (height x width)")
    assert "EXIF" in message


def test_a_jpeg_of_two_values_is_a_mask(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[0, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    record = write_mask(tmp_path, "two.jpg", blocks, quality=100)
    assert inspect_image(record).pixels == {0: 512, 255: 512}


def test_a_jpeg_of_three_values_has_invented_some(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[128, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    record = write_mask(tmp_path, "three.jpg", blocks, quality=100)
    problem = inspect_image(record)
    assert problem.kind == "lossy mask"
    assert "a: mask is a JPEG with the values 0, 128, 255; comp" in problem.text
    assert inspect_image(record, has_classes=False).pixels == {0: 256, 128: 256, 255: 512}


def test_a_jpeg_of_very_many_values_may_be_a_photograph():
    swapped = "a: mask looks like a photograph: are images and masks swapped?"
    assert lossy_problem("a", dict.fromkeys(range(256), 1)) == ("lossy mask", swapped)
    assert "a JPEG with the values 0, 1, 2, " in lossy_problem("a", dict.fromkeys(reversed(range(255)), 1)).text
    assert "a JPEG with the values" in lossy_problem("a", dict.fromkeys(range(256), 1) | {0: 999, 255: 999}).text


def test_an_image_that_cannot_be_read_is_told_from_its_mask():
    mask = np.zeros((2, 2), np.uint8)
    kind, text = inspect_image({"image": "nowhere.png", "target": mask, "name": "a"})
    assert kind == "image cannot be read"
    assert text.startswith("a: image cannot be read")
    assert inspect_image({"image": mask, "target": "nowhere.png", "name": "a"}).kind == "mask cannot be read"


def test_pixels_of_each_value_are_counted():
    assert count_values(np.array([[7, 7, 0], [0, 7, 300]], np.uint16)) == {7: 3, 0: 2, 300: 1}
    assert count_values(np.array([[5]], np.uint8)) == {5: 1}
    colors = np.array([[[1, 2, 3], [1, 2, 3], [3, 2, 1]]], np.uint8)
    assert count_values(colors) == {(1, 2, 3): 2, (3, 2, 1): 1}


def ones(values) -> dict:
    """One pixel of each value."""
    return dict.fromkeys(values, 1)


NEAR_COLORS = ones((value, 0, 0) for value in range(256))
MOSTLY_NEAR = [color for number, color in enumerate(NEAR_COLORS) if number < 160 or number % 3 == 0]
OTHER_COLORS = [(value, 255, value * 7 % 256) for value in range(256 - len(MOSTLY_NEAR))]


def test_two_hundred_and_fifty_five_values_are_not_too_many():
    assert excess_values(ones(range(255))) is None


def test_too_many_values_may_be_smoothed_edges_or_images():
    text = excess_values(ones(range(256)))
    assert "are these smoothed edges (JPEG, interpolation)?" in text
    assert text.endswith("(or are images and masks swapped?)")


def test_too_many_values_are_a_problem_that_lists_them_in_order():
    values = ones(reversed(range(300)))
    assert excess_values(values).startswith("0, 1, 2, 3, ")
    kind, text = value_count_problem(values, "a")
    assert kind == "too many mask values"
    assert text == f"a: mask holds more than 255 values: {excess_values(values)}"


@pytest.mark.parametrize(
    "pixels",
    [
        ones(range(300)),
        ones(range(300)) | {0: 9, 299: 8, 5: 10},
        ones((value, value * 7 % 256, value * 13 % 256) for value in range(256)),
    ],
    ids=["numbers", "many pixels of one number", "colors apart"],
)
def test_too_many_values_may_be_numbers_of_objects(pixels):
    assert "numbers of objects" in excess_values(pixels)


@pytest.mark.parametrize(
    "pixels",
    [
        ones(range(300)) | {0: 9, 299: 8},  # most of the pixels are at the ends of a ramp
        NEAR_COLORS,
        ones((2 * (value % 128), 200 * (value // 128), 0) for value in range(256)),
        ones([*MOSTLY_NEAR, *OTHER_COLORS]),
    ],
    ids=["ramp", "near colors", "colors two apart", "mostly near colors"],
)
def test_too_many_values_that_are_near_each_other_are_no_objects(pixels):
    assert "numbers of objects" not in excess_values(pixels)


def test_too_many_colors_may_be_images():
    assert "are images and masks swapped, or are these smoothed edges" in excess_values(NEAR_COLORS)


def test_too_many_colors_are_reported_with_those_of_most_pixels():
    text = excess_values(NEAR_COLORS | {(0, 0, 0): 9000, (255, 0, 0): 9000})
    assert "98.6% of the pixels hold #000000, #ff0000; the" in text


@pytest.fixture
def numbers():
    return split_of({0: 3, 7: 2}, {0: 1})


@pytest.fixture
def greys():
    return split_of({0: 5, 7: 1}, kind="greys")


@pytest.fixture
def colors():
    return split_of({(0, 0, 0): 4, (7, 0, 0): 6}, kind="colors")


def test_greys_beside_numbers_are_numbers(numbers, greys):
    assert total_pixels([numbers, greys]) == {0: 9, 7: 3}


def test_greys_beside_colors_are_colors(greys, colors):
    assert total_pixels([greys, colors]) == {(0, 0, 0): 9, (7, 7, 7): 1, (7, 0, 0): 6}


def test_numbers_beside_colors_are_refused(numbers, colors):
    with pytest.raises(DataError, match=r"^0 is a color mask and 0 one of numbers"):  # the first of each
        total_pixels([numbers, colors])


def test_numbers_beside_colors_are_named_by_a_mask_that_is_used(numbers, colors):
    numbers[0].members[0] = -1
    with pytest.raises(DataError, match=r"^0 is a color mask and 1 one of numbers; store all in one way"):
        total_pixels([numbers, colors])


def test_numbers_that_no_used_mask_holds_go_with_colors(numbers, colors):
    numbers[0].members[:] = -1
    assert total_pixels([numbers, colors]) == {(0, 0, 0): 4, (7, 0, 0): 6}


def test_masks_with_values_of_no_class_become_problems():
    inspection, records = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, {0: 2, 9: 3}, {5: 1})
    exclude_unknown(inspection, records, CLASSES)
    assert set(inspection.problems) == {1, 2, 3}
    assert inspection.members.tolist() == [0, -1, -1, -1]
    kind, text = inspection.problems[2]
    assert kind == "unknown mask value"
    assert text.startswith("2: mask values 9 belong to no class; classes are 0, 1; name them in --classes")


def test_grey_masks_with_values_of_no_color_become_problems():
    inspection, records = split_of({0: 3, 9: 2}, {0: 3, 8: 1}, kind="greys")
    exclude_unknown(inspection, records, ClassMap(("a", "b"), ((0, 0, 0), (9, 9, 9)), None))
    assert set(inspection.problems) == {1}


def test_grey_masks_with_values_of_no_number_become_problems():
    inspection, records = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, kind="greys")
    exclude_unknown(inspection, records, CLASSES)
    assert set(inspection.problems) == {1}
    assert "mask values 9 belong to no class" in inspection.problems[1].text


class ReaderWithoutNine:
    """Stands in for a reader of objects: no object has the number 9."""

    class_map = None

    def find_problem(self, values):
        return "9 is no object" if 9 in values else None


def test_masks_that_make_no_target_become_problems_of_their_own():
    inspection, records = split_of({0: 1}, {0: 2, 9: 1}, {0: 3}, {0: 1, 9: 4}, {9: 1})
    exclude_unreadable(inspection, records, ReaderWithoutNine())
    assert inspection.members.tolist() == [0, -1, 0, -1, -1]
    assert inspection.problems == {number: ("number of no object", f"{number}: 9 is no object") for number in (1, 3, 4)}


def test_pixels_of_images_with_the_same_labels_are_counted_together():
    inspection, records = split_of({0: 1}, {0: 2, 9: 1})
    assert pixels_by_labels([(inspection, records), split_of({9: 5})]) == {None: {0: 3, 9: 6}}


@pytest.mark.parametrize("labeled_for", [None, (), ("car", "dog")])
def test_classes_that_an_image_is_labeled_for_survive_the_cache(labeled_for):
    inspection = SplitInspection.empty(1)
    inspection.add(0, Inspection((4, 5), (4, 5), "L", "numbers", {0: 20}), labeled_for)
    (content,) = SplitInspection.from_json(json.loads(json.dumps(inspection.to_json()))).contents
    assert content.labeled_for == labeled_for


def test_places_of_voxels_are_read_as_signed_numbers():
    places = np.array([[1, 2, 3], [40_000, 0, 9]])
    read = locations_from_json(locations_to_json(places))
    assert read.tolist() == places.tolist()
    assert (read - 2).min() == -2


@pytest.mark.parametrize("order", ["C", "F"])
def test_places_of_voxels_are_kept_as_text(order):
    assert locations_to_json(np.array([[1, 2, 3], [4, 5, 6]], order=order)) == "AQACAAMABAAFAAYA"


def test_masks_smaller_or_larger_than_their_images_are_counted():
    inspection = SplitInspection.empty(3)
    for number, mask_size in enumerate([(2, 3), (4, 6), (8, 12)]):
        inspection.add(number, Inspection((4, 6), mask_size, "L", "numbers", {0: 6}))
    assert inspection.resized_masks == 2


def test_a_large_image_without_any_value_is_still_read_in_windows():
    inspection = SplitInspection.empty(2)
    for number, locations in enumerate([{}, None]):
        inspection.add(number, Inspection((4, 6), (4, 6), "L", "numbers", {}, locations))
    assert inspection.class_locations == {0: {}}


def test_an_inspection_of_no_images_survives_the_cache():
    assert SplitInspection.from_json(SplitInspection.empty(0).to_json()).sizes.shape == (0, 2)


FOUR_TEXTS = [
    "a.png: mask values 07, 90 belong to no class",
    "b.png: mask values 17, 91 belong to no class",
    "c.png: mask values 27, 92 belong to no class",
    "d.png: mask values 37, 93 belong to no class",
]


def test_problems_of_three_files_are_a_line_each():
    assert merge_equal(FOUR_TEXTS[:3]) == FOUR_TEXTS[:3]


def test_problems_of_four_files_are_a_one_line_error_whatever_their_values():
    assert merge_equal(FOUR_TEXTS) == ["4 files (a.png, b.png, c.png, ...): mask values 07, 90 belong to no class"]


def test_problems_of_four_files_name_as_many_files_as_are_asked_for():
    line = "4 files (a.png, b.png, c.png, d.png): mask values 07, 90 belong to no class"
    assert merge_equal([*FOUR_TEXTS, "f.png: is empty"], 9) == [line, "f.png: is empty"]


def test_a_problem_of_no_file_stays_as_it_is():
    assert merge_equal(["no colon"]) == ["no colon"]


@pytest.fixture
def one_problem():
    """An inspection of two images, of which the first is empty."""
    inspection, _ = split_of({0: 1}, {0: 1})
    inspection.problems[0] = Problem("kind", "a: is empty")
    return inspection


def test_no_problems_raise_nothing():
    inspection, _ = split_of({0: 1}, {0: 1})
    raise_problems(inspection, 2)


def test_skipping_is_offered_where_something_is_left(one_problem):
    line = r"^1 of 2 pairs cannot be used: a: is empty; --on-bad-sample skip trains without"
    with pytest.raises(DataError, match=line):
        raise_problems(one_problem, 2)


def test_skipping_is_not_offered_where_nothing_is_left(one_problem):
    with pytest.raises(DataError, match=r"^1 of 1 pairs cannot be used: a: is empty$"):
        raise_problems(one_problem, 1)


def test_three_problems_of_several_are_reported(one_problem):
    one_problem.problems |= {number: Problem("kind", f"{number}: is {'abcd'[number]}") for number in range(1, 4)}
    line = r"^4 of 9 pairs cannot be used: a: is empty; 1: is b; 2: is c; \.\.\.; --on-bad"
    with pytest.raises(DataError, match=line):
        raise_problems(one_problem, 9)


@pytest.fixture(params=["new", "stored"])
def three_images(request):
    """An inspection of three images, as it is and as it comes from the cache."""
    inspection = SplitInspection.empty(3)
    locations = {0: np.array([[1, 2], [3, 4]]), (1, 2, 3): np.array([[0, 0]])}
    inspection.add(0, Inspection((4, 5), (8, 10), "RGB", "colors", {(1, 2, 3): 2, (0, 0, 0): 3}, locations))
    inspection.add(2, Inspection((6, 7), (6, 7), "L", "numbers", {0: 3, 9: 4}))
    inspection.add(1, Inspection((6, 7), (6, 7), "L", "numbers", {9: 1, 0: 1}))
    return {"new": inspection, "stored": SplitInspection.from_json(inspection.to_json())}[request.param]


def test_an_inspection_without_images_has_no_members():
    assert SplitInspection.empty(3).members.tolist() == [-1, -1, -1]


def test_an_inspection_has_the_sizes_of_its_images(three_images):
    assert three_images.sizes.tolist() == [[4, 5], [6, 7], [6, 7]]
    assert three_images.modes == {"RGB": 1, "L": 2}
    assert three_images.resized_masks == 1
    assert three_images.spacings() == []


def test_an_inspection_adds_pixels_of_masks_with_the_same_values(three_images):
    contents = {(content.kind, content.values): pixels for content, pixels in three_images.contents.items()}
    assert list(contents) == [("colors", ((0, 0, 0), (1, 2, 3))), ("numbers", (0, 9))]
    assert contents["numbers", (0, 9)] == {0: 4, 9: 5}
    assert three_images.members.tolist() == [0, 1, 1]


def test_an_inspection_has_the_places_of_classes_in_large_images(three_images):
    assert list(three_images.class_locations) == [0]
    locations = {value: pixels.tolist() for value, pixels in three_images.class_locations[0].items()}
    assert locations == {0: [[1, 2], [3, 4]], (1, 2, 3): [[0, 0]]}
