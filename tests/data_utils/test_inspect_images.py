"""One look at an image and its mask, and at a split of them: kinds of values, problems, and what is kept.

Modules: data_utils/analysis/inspection.py, data_utils/analysis/inspect_images.py, data_utils/analysis/problems.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from inspections import split_of
from PIL import Image

from data_utils.analysis.inspect_images import inspect_image
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


def test_values_are_numbers_or_greys_or_colors_as_they_are_stored(tmp_path):
    numbers = np.array([[0, 9], [9, 9]], np.uint8)
    greys = np.repeat(numbers[:, :, None], 3, axis=2)
    colors = greys.copy()
    colors[0, 0, 1] = 7
    for kind, mask in (("numbers", numbers), ("greys", greys), ("colors", colors)):
        assert inspect_image(write_mask(tmp_path, f"{kind}.png", mask)).kind == kind


def test_a_jpeg_of_two_values_is_a_mask_and_one_of_three_has_invented_some(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[0, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    two = write_mask(tmp_path, "two.jpg", blocks, quality=100)
    assert inspect_image(two).pixels == {0: 512, 255: 512}
    blocks[:16, :16] = 128
    three = write_mask(tmp_path, "three.jpg", blocks, quality=100)
    problem = inspect_image(three)
    assert problem.kind == "lossy mask"
    assert "a: mask is a JPEG with the values 0, 128, 255; comp" in problem.text
    assert inspect_image(three, has_classes=False).pixels == {0: 256, 128: 256, 255: 512}


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


def test_two_hundred_and_fifty_five_values_are_not_too_many():
    assert excess_values(dict.fromkeys(range(255), 1)) is None
    assert "are these smoothed edges (JPEG, interpolation)?" in excess_values(dict.fromkeys(range(256), 1))
    objects = excess_values(dict.fromkeys(reversed(range(300)), 1))
    assert objects.startswith("0, 1, 2, 3, ")
    assert "numbers of objects" in objects
    problem = value_count_problem(dict.fromkeys(range(300), 1), "a")
    assert problem == ("too many mask values", f"a: mask holds more than 255 values: {objects}")
    ends = dict.fromkeys(range(300), 1) | {0: 9, 299: 8}  # most of the pixels are at the ends of a ramp
    assert "numbers of objects" not in excess_values(ends)
    assert "numbers of objects" in excess_values(ends | {5: 10})
    near = {(value, 0, 0): 1 for value in range(256)}
    apart = {(value, value * 7 % 256, value * 13 % 256): 1 for value in range(256)}
    assert "numbers of objects" not in excess_values(near)
    assert "numbers of objects" in excess_values(apart)
    two_apart = {(2 * (value % 128), 200 * (value // 128), 0): 1 for value in range(256)}
    assert "numbers of objects" not in excess_values(two_apart)
    mostly_near = {color: 1 for number, color in enumerate(sorted(near)) if number < 160 or number % 3 == 0}
    mostly_near |= {(value, 255, value * 7 % 256): 1 for value in range(256 - len(mostly_near))}
    assert "numbers of objects" not in excess_values(mostly_near)
    assert "are images and masks swapped, or are these smoothed edges" in excess_values(near)
    assert excess_values(dict.fromkeys(range(256), 1)).endswith("(or are images and masks swapped?)")
    assert "98.6% of the pixels hold #000000, #ff0000; the" in excess_values(
        near | {(0, 0, 0): 9000, (255, 0, 0): 9000}
    )


def test_numbers_and_colors_are_never_mixed_and_greys_go_with_either():
    numbers = split_of({0: 3, 7: 2}, {0: 1})
    greys = split_of({0: 5, 7: 1}, kind="greys")
    colors = split_of({(0, 0, 0): 4, (7, 0, 0): 6}, kind="colors")
    assert total_pixels([numbers, greys]) == {0: 9, 7: 3}
    assert total_pixels([greys, colors]) == {(0, 0, 0): 9, (7, 7, 7): 1, (7, 0, 0): 6}
    with pytest.raises(DataError, match=r"^0 is a color mask and 0 one of numbers"):  # the first of each
        total_pixels([numbers, colors])
    numbers[0].members[0] = -1
    with pytest.raises(DataError, match=r"^0 is a color mask and 1 one of numbers; store all in one way"):
        total_pixels([numbers, colors])
    numbers[0].members[:] = -1  # no usable mask holds them
    assert total_pixels([numbers, colors]) == {(0, 0, 0): 4, (7, 0, 0): 6}


def test_masks_with_values_of_no_class_become_problems():
    inspection, records = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, {0: 2, 9: 3}, {5: 1})
    exclude_unknown(inspection, records, CLASSES)
    assert set(inspection.problems) == {1, 2, 3}
    assert inspection.members.tolist() == [0, -1, -1, -1]
    kind, text = inspection.problems[2]
    assert kind == "unknown mask value"
    assert text.startswith("2: mask values 9 belong to no class; classes are 0, 1; name them in --classes")
    greys, records = split_of({0: 3, 9: 2}, {0: 3, 8: 1}, kind="greys")
    exclude_unknown(greys, records, ClassMap(("a", "b"), ((0, 0, 0), (9, 9, 9)), None))
    assert set(greys.problems) == {1}


def test_masks_that_make_no_target_become_problems_of_their_own():
    reader = SimpleNamespace(class_map=None, find_problem=lambda values: "9 is no object" if 9 in values else None)
    inspection, records = split_of({0: 1}, {0: 2, 9: 1}, {0: 3}, {0: 1, 9: 4}, {9: 1})
    exclude_unreadable(inspection, records, reader)
    text = "9 is no object"
    assert inspection.problems == {number: ("number of no object", f"{number}: {text}") for number in (1, 3, 4)}
    assert inspection.members.tolist() == [0, -1, 0, -1, -1]


def test_pixels_of_images_with_the_same_labels_are_counted_together():
    inspection, records = split_of({0: 1}, {0: 2, 9: 1})
    assert pixels_by_labels([(inspection, records), split_of({9: 5})]) == {None: {0: 3, 9: 6}}


@pytest.mark.parametrize("labeled_for", [None, (), ("car", "dog")])
def test_what_an_image_is_labeled_for_survives_the_cache(labeled_for):
    inspection = SplitInspection.empty(1)
    inspection.add(0, Inspection((4, 5), (4, 5), "L", "numbers", {0: 20}), labeled_for)
    (content,) = SplitInspection.from_json(json.loads(json.dumps(inspection.to_json()))).contents
    assert content.labeled_for == labeled_for


def test_places_of_voxels_are_read_as_signed_numbers():
    places = np.array([[1, 2, 3], [40_000, 0, 9]])
    read = locations_from_json(locations_to_json(places))
    assert read.tolist() == places.tolist()
    assert (read - 2).min() == -2


def test_places_of_voxels_are_kept_as_text():
    assert locations_to_json(np.array([[1, 2, 3], [4, 5, 6]])) == "AQACAAMABAAFAAYA"


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


def test_what_is_wrong_with_four_files_is_one_line():
    def texts(count: int) -> list[str]:
        return [
            f"{name}.png: mask values {number}7, 9{number} belong to no class"
            for number, name in enumerate("abcde"[:count])
        ]

    assert merge_equal(texts(3)) == texts(3)
    assert merge_equal(texts(4)) == ["4 files (a.png, b.png, c.png, ...): mask values 07, 90 belong to no class"]
    assert merge_equal([*texts(4), "f.png: is empty"], 9)[1] == "f.png: is empty"
    assert merge_equal(texts(4), 9) == ["4 files (a.png, b.png, c.png, d.png): mask values 07, 90 belong to no class"]
    assert merge_equal(["no colon"]) == ["no colon"]


def test_skipping_is_offered_where_something_is_left():
    inspection, _ = split_of({0: 1}, {0: 1})
    raise_problems(inspection, 2)
    inspection.problems[0] = Problem("kind", "a: is empty")
    with pytest.raises(
        DataError, match=r"^1 of 2 pairs cannot be used: a: is empty; --on-bad-sample skip trains without"
    ):
        raise_problems(inspection, 2)
    with pytest.raises(DataError, match=r"^1 of 1 pairs cannot be used: a: is empty$"):
        raise_problems(inspection, 1)
    inspection.problems |= {number: Problem("kind", f"{number}: is {'abcd'[number]}") for number in range(1, 4)}
    with pytest.raises(
        DataError, match=r"^4 of 9 pairs cannot be used: a: is empty; 1: is b; 2: is c; \.\.\.; --on-bad"
    ):
        raise_problems(inspection, 9)


def test_an_inspection_survives_the_cache():
    inspection = SplitInspection.empty(3)
    assert inspection.members.tolist() == [-1, -1, -1]
    locations = {0: np.array([[1, 2], [3, 4]]), (1, 2, 3): np.array([[0, 0]])}
    inspection.add(0, Inspection((4, 5), (8, 10), "RGB", "colors", {(1, 2, 3): 2, (0, 0, 0): 3}, locations))
    inspection.add(2, Inspection((6, 7), (6, 7), "L", "numbers", {0: 3, 9: 4}))
    inspection.add(1, Inspection((6, 7), (6, 7), "L", "numbers", {9: 1, 0: 1}))
    read = SplitInspection.from_json(inspection.to_json())
    for each in (inspection, read):
        assert each.sizes.tolist() == [[4, 5], [6, 7], [6, 7]]
        assert each.members.tolist() == [0, 1, 1]
        assert each.resized_masks == 1
        assert each.modes == {"RGB": 1, "L": 2}
        contents = {(content.kind, content.values): pixels for content, pixels in each.contents.items()}
        assert contents["numbers", (0, 9)] == {0: 4, 9: 5}
        assert list(contents) == [("colors", ((0, 0, 0), (1, 2, 3))), ("numbers", (0, 9))]
        assert list(each.class_locations) == [0]
        stored = {value: pixels.tolist() for value, pixels in each.class_locations[0].items()}
        assert stored == {0: [[1, 2], [3, 4]], (1, 2, 3): [[0, 0]]}
    assert read.spacings() == []
