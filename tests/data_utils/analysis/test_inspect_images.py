"""One look at an image and its mask, and at a split of them: kinds of values, problems, and what is kept.

Modules: data_utils/analysis/inspection.py, data_utils/analysis/inspect_images.py, data_utils/analysis/problems.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.inspections import inspect_image, split_of

from data_utils.analysis.inspection import (
    Inspection,
    Problem,
    SplitInspection,
    total_pixels,
)
from data_utils.analysis.problems import (
    exclude_unreadable,
    merge_equal,
    raise_problems,
)
from data_utils.class_map import ClassMap
from data_utils.invented_values import excess_values
from runtime.errors import DataError
from tasks.classes.reader import ClassReader

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
    if is_large:
        monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    image = np.zeros((48, 32), np.float32)
    record = write_mask(tmp_path, "mask.png", image.astype(np.uint8)) | {"image": str(tmp_path / f"a.{suffix}")}
    for pixel, is_named in ((1e29, False), (value, True)):
        image[40, 5] = pixel
        np.save(tmp_path / "a.npy", image)
        Image.fromarray(image).save(tmp_path / "a.tif")
        problem = inspect_image(record, windows=is_large)
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


def test_a_jpeg_of_three_values_has_invented_some(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[128, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    record = write_mask(tmp_path, "three.jpg", blocks, quality=100)
    problem = inspect_image(record)
    assert problem.kind == "lossy mask"
    assert "a: mask is a JPEG with the values 0, 128, 255; comp" in problem.text
    assert inspect_image(record, has_classes=False).pixels == {0: 256, 128: 256, 255: 512}


def test_an_image_that_cannot_be_read_is_told_from_its_mask():
    mask = np.zeros((2, 2), np.uint8)
    kind, text = inspect_image({"image": "nowhere.png", "target": mask, "name": "a"})
    assert kind == "image cannot be read"
    assert text.startswith("a: image cannot be read")
    assert inspect_image({"image": mask, "target": "nowhere.png", "name": "a"}).kind == "mask cannot be read"


def ones(values) -> dict:
    """One pixel of each value."""
    return dict.fromkeys(values, 1)


def test_too_many_values_may_be_smoothed_edges_numbers_of_objects_or_images():
    text = excess_values(ones(range(256)))
    assert "are these smoothed edges (JPEG, interpolation)?" in text
    assert "numbers of objects (--task objects)" in text
    assert text.endswith("are images and masks swapped?")


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


def test_masks_with_values_of_no_class_become_problems():
    inspection, records = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, {0: 2, 9: 3}, {5: 1})
    exclude_unreadable(inspection, records, ClassReader(CLASSES))
    assert set(inspection.problems) == {1, 2, 3}
    assert inspection.members.tolist() == [0, -1, -1, -1]
    kind, text = inspection.problems[2]
    assert kind == "unknown mask value"
    assert text.startswith("2: mask values 9 belong to no class; classes are 0, 1; name them in --classes")


@pytest.mark.parametrize("labeled_for", [None, (), ("car", "dog")])
def test_classes_that_an_image_is_labeled_for_survive_the_cache(labeled_for):
    inspection = SplitInspection.empty(1)
    inspection.add(0, Inspection((4, 5), (4, 5), "L", "numbers", {0: 20}), labeled_for)
    (content,) = SplitInspection.from_json(json.loads(json.dumps(inspection.to_json()))).contents
    assert content.labeled_for == labeled_for


FOUR_TEXTS = [
    "a.png: mask values 07, 90 belong to no class",
    "b.png: mask values 17, 91 belong to no class",
    "c.png: mask values 27, 92 belong to no class",
    "d.png: mask values 37, 93 belong to no class",
]


def test_problems_of_four_files_are_a_one_line_error_whatever_their_values():
    assert merge_equal(FOUR_TEXTS) == ["4 files (a.png, b.png, c.png, ...): mask values 07, 90 belong to no class"]


@pytest.fixture
def one_problem():
    """An inspection of two images, of which the first is empty."""
    inspection, _ = split_of({0: 1}, {0: 1})
    inspection.problems[0] = Problem("kind", "a: is empty")
    return inspection


def test_skipping_is_offered_where_something_is_left(one_problem):
    line = r"^1 of 2 pairs cannot be used: a: is empty; --on-bad-sample skip trains without"
    with pytest.raises(DataError, match=line):
        raise_problems(one_problem, 2)
    with pytest.raises(DataError, match=r"^1 of 1 pairs cannot be used: a: is empty$"):
        raise_problems(one_problem, 1)


@pytest.fixture(params=["new", "stored"])
def three_images(request):
    """An inspection of three images, as it is and as it comes from the cache."""
    inspection = SplitInspection.empty(3)
    locations = {0: np.array([[1, 2], [3, 4]]), (1, 2, 3): np.array([[0, 0]])}
    inspection.add(0, Inspection((4, 5), (8, 10), "RGB", "colors", {(1, 2, 3): 2, (0, 0, 0): 3}, locations))
    inspection.add(2, Inspection((6, 7), (6, 7), "L", "numbers", {0: 3, 9: 4}))
    inspection.add(1, Inspection((6, 7), (6, 7), "L", "numbers", {9: 1, 0: 1}))
    return {"new": inspection, "stored": SplitInspection.from_json(inspection.to_json())}[request.param]


def test_an_inspection_has_the_sizes_of_its_images(three_images):
    assert three_images.sizes.tolist() == [[4, 5], [6, 7], [6, 7]]
    assert three_images.modes == {"RGB": 1, "L": 2}
    assert three_images.resized_masks == 1


def test_an_inspection_has_the_places_of_classes_in_large_images(three_images):
    assert list(three_images.class_locations) == [0]
    locations = {value: pixels.tolist() for value, pixels in three_images.class_locations[0].items()}
    assert locations == {0: [[1, 2], [3, 4]], (1, 2, 3): [[0, 0]]}
