"""The objects of a data set as its report counts them: their number, sizes, and those that touch."""

import numpy as np
import pytest
from PIL import Image
from support.objects import Masks, numbered, write_discs

from data_utils.analysis.check_data import check_data
from data_utils.config import DataConfig
from data_utils.targets.objects import ObjectCensus, ObjectReader

NOTHING = np.zeros((2, 2), np.uint8)


def test_check_data_counts_objects(tmp_path):
    write_discs(tmp_path, [3, 5, 8, 9], seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[2:6, 2:6], ids[2:6, 6:10], ids[20:24, 20:30], ids[40:42, 40:42] = 1, 2, 900, 900
    Image.fromarray(ids).save(tmp_path / "masks" / "00.png")
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 0, report
    other_masks = [np.array(Image.open(file)) for file in sorted((tmp_path / "masks").iterdir())[1:]]
    total = 3 + sum(int(values.max()) for values in other_masks)
    assert f"objects: {total} in 4 of 4 images;" in report
    assert "sizes of objects in pixels: 16 to " in report
    assert ") touch another object" in report
    assert "to check: in 1 image a number names several pieces, which count as one object: 00.png" in report


def test_a_census_adds_up_over_images():
    census = ObjectCensus()
    census.add("first", np.array([[1, 0], [0, 1]]))  # a corner joins
    census.add("second", np.array([[1, 1, 2, 0, 3]]))
    census.add("third", np.array([[0, 0, 0, 0]]))
    census.add("fourth", np.array([[5, 5, 6, 0, 6]]))
    assert census.lines() == [
        "objects: 6 in 3 of 4 images; 1.5 an image, 3 at most",
        "sizes of objects in pixels: 1 to 2, median 2; 4 (66.7%) touch another object",
        "to check: in 1 image a number names several pieces, which count as one object: fourth",
    ]


def test_the_voxels_of_an_object_may_be_joined_by_a_corner():
    census = ObjectCensus()
    ids = np.zeros((2, 2, 2), np.uint8)
    ids[0, 0, 0] = ids[1, 1, 1] = 1
    census.add("a", ids)
    assert len(census.lines()) == 2  # nothing to check


def test_a_census_of_nothing_is_a_one_line_error():
    assert ObjectCensus().lines() == ["objects: none"]


def test_a_census_of_whole_objects_has_nothing_to_check():
    census = ObjectCensus()
    census.add("a", np.array([[1, 1, 0, 2]]))
    assert census.lines() == [
        "objects: 2 in 1 of 1 image; 2.0 an image, 2 at most",
        "sizes of objects in pixels: 1 to 2, median 2; 0 (0.0%) touch another object",
    ]


@pytest.fixture
def four_broken_images():
    """The second and third line of a census of four images, in each of which an object has two pieces."""
    census = ObjectCensus()
    for name in "abcd":
        census.add(name, np.array([[1, 0, 1, 0, 2, 0, 3, 3, 3, 3, 3, 3, 3]]))
    return census.lines()[1:]


def test_a_census_says_the_median_size(four_broken_images):
    sizes, _ = four_broken_images
    assert sizes.startswith("sizes of objects in pixels: 1 to 7, median 2; 0 (0.0%) touch")


def test_a_census_names_three_images_with_pieces(four_broken_images):
    _, pieces = four_broken_images
    assert pieces.endswith("in 4 images a number names several pieces, which count as one object: a, b, c, ...")


@pytest.mark.parametrize(("fills_holes", "holes"), [(False, "kept"), (True, "filled")])
def test_the_report_says_how_small_predictions_may_be(fills_holes, holes):
    reader = ObjectReader(smallest=1200, fills_holes=fills_holes)
    lines = reader.describe_records([Masks([numbered(3)]), Masks([numbered(2)])])
    assert lines[-1] == f"predictions of fewer than 1,200 pixels will be left out, and holes in predictions {holes}"


def test_the_report_counts_objects_of_masks_that_can_be_read():
    records = Masks([numbered(3)])
    records.records.insert(0, {"image": "", "target": "nowhere.png", "name": "gone"})  # it is among the problems
    lines = ObjectReader().describe_records([records, Masks([numbered(2)])])
    assert lines[0] == "objects: 5 in 2 of 2 images; 2.5 an image, 3 at most"


def test_the_report_on_masks_without_objects_says_so():
    assert ObjectReader().describe_records([Masks([NOTHING])])[0] == "objects: none"
