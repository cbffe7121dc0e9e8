"""Likely mistakes in points, and how many images have each.

Module: tasks/landmarks/check.py.
"""

import numpy as np
import pytest
from PIL import Image
from support.inspections import findings_of

from data_utils.analysis.inspect_record import Inspection
from data_utils.analysis.inspection import SplitInspection
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.points.spaces import PIXELS
from data_utils.sources.records import LandmarkNames, ListRows, Metadata, Records
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from train_utils.check_data import check_data


@pytest.fixture
def folder_with_mistakes(tmp_path):
    """Twelve images with points of which two are exchanged once, one is outside, and two lie at one place."""
    rows = ["image,left_x,left_y,right_x,right_y,tail_x,tail_y"]
    rows += [f"i{number}.png,4,3,15,3,," for number in range(12)]
    rows[1 + 2] = "i2.png,4,3,25,3,4.1,3.2"
    rows[1 + 7] = "i7.png,15,3,4,3,,"
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.new("L", (20, 16)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    return tmp_path


def test_a_check_counts_the_states_of_points_and_finds_likely_mistakes(folder_with_mistakes):
    report, problems = check_data(DataConfig(dataset=str(folder_with_mistakes)))
    assert problems == 0
    assert "      12        0        0  left" in report
    assert "       1        0       11  tail" in report
    assert "11 empty cells are points of which nothing is known" in report
    assert "1 point lies outside its image, and left out: i2.png (right at 25, 3)" in report
    assert "1 pair of points lies at one place: i2.png (left and tail)" in report
    assert "left and right may be exchanged in 1 image: i7.png" in report


def test_a_point_that_no_image_has_is_to_check(folder_with_mistakes):
    table = folder_with_mistakes / "points.csv"
    table.write_text(table.read_text().replace("4.1,3.2", ","))
    report, _ = check_data(DataConfig(dataset=str(folder_with_mistakes)))
    assert "to check: no image has the point tail" in report


def warnings_of(*splits: SplitInspection, partners: tuple[int, ...] = ()) -> list[str]:
    """The warnings of splits whose points have these partners in the mirror."""
    names = splits[0].records.metadata.landmarks.names
    indices = tuple(range(len(names)))
    reader = PointReader(Landmarks(names, partners=partners or indices), indices)
    return list(reader.check(findings_of(*splits, reader=reader)))


def split_of_points(*images: list[tuple[float, float]], states=None) -> SplitInspection:
    """A split of images of 16 x 20 with points a, b, c ... at these places (x, y)."""
    records = []
    for number, places in enumerate(images):
        image_states = np.array(states or [PRESENT] * len(places))
        source = PointSource("points.csv", PIXELS, np.array(places, float), image_states)
        records.append({"image": np.zeros((16, 20), np.uint8), "target": source, "name": f"i{number}"})
    names = LandmarkNames(tuple("abcdefgh"[: len(images[0])]), "long", PIXELS)
    split = SplitInspection.empty(Records(ListRows(records), Metadata(landmarks=names)))
    for number in range(len(images)):
        split.add(number, Inspection((16, 20), "L"))
    return split


def test_points_up_to_the_edges_of_the_outermost_pixels_are_inside():
    inside = [(-0.5, -0.5), (19.4, 15.4), (0, 15.4), (19.4, 0)]
    assert warnings_of(split_of_points(inside)) == []


@pytest.mark.parametrize("place", [(-0.6, 3), (3, -0.6), (19.6, 3), (3, 15.6)])
def test_points_beyond_the_edges_of_the_outermost_pixels_are_warned_of(place):
    line, _ = warnings_of(split_of_points([place]))
    assert line == f"1 point lies outside its image, and left out: i0 (a at {place[0]:g}, {place[1]:g})"
    assert "outside" not in "".join(warnings_of(split_of_points([place], states=[ABSENT])))


def test_points_in_shares_of_the_size_are_to_check():
    line, *_ = warnings_of(split_of_points([(0.2, 0.9), (0.7, 0.4)], [(0.9, 0.1), (0.3, 1)]))
    assert line.startswith("all points lie within one pixel of the corner")
    assert warnings_of(split_of_points([(0.2, 0.9), (0.7, 1.4)])) == []


def test_points_lie_at_one_place_below_half_a_pixel():
    places = [(3, 3), (9, 9), (3.3, 3.3), (9, 9.5), (2.6, 3.4)]
    (line,) = warnings_of(split_of_points(places), split_of_points(places))
    assert line == "2 pairs of points lie at one place: i0 (a and c), i0 (a and c)"
    assert "place:" not in "".join(warnings_of(split_of_points(places[:3:2], states=[PRESENT, UNKNOWN])))


LEFT_RIGHT = [(4.0, 3.0), (15.0, 3.0)]


RIGHT_LEFT = LEFT_RIGHT[::-1]


@pytest.mark.parametrize(("usual", "odd"), [(LEFT_RIGHT, RIGHT_LEFT), (RIGHT_LEFT, LEFT_RIGHT)])
def test_the_order_of_two_points_is_usual_from_nine_of_ten_images_on(usual, odd):
    (line,) = warnings_of(split_of_points(*[usual] * 9, odd), partners=(1, 0))
    assert line == "a and b may be exchanged in 1 image: i9"
    assert warnings_of(split_of_points(*[usual] * 8, odd), partners=(1, 0)) == []
