"""Points that a look at a data set locates, counts and warns of."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.inspections import inspect_points, inspect_volume_points
from support.volumes import write_volume

from data_utils.analysis.inspection import Inspection, SplitInspection
from data_utils.analysis.point_warnings import point_warnings
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.points.spaces import PIXELS
from data_utils.sources.records import LandmarkNames, ListRecords, Metadata
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


def test_a_check_counts_the_states_of_points(folder_with_mistakes):
    report, problems = check_data(DataConfig(dataset=str(folder_with_mistakes)))
    assert problems == 0
    assert "      12        0        0  left" in report
    assert "       1        0       11  tail" in report
    assert "11 empty cells are points of which nothing is known" in report


def test_a_check_finds_likely_mistakes(folder_with_mistakes):
    report, _ = check_data(DataConfig(dataset=str(folder_with_mistakes)))
    assert "1 point lies outside its image, and left out: i2.png (right at 25, 3)" in report
    assert "1 pair of points lies at one place: i2.png (left and tail)" in report
    assert "left and right may be exchanged in 1 image: i7.png" in report


def test_ears_that_are_exchanged_are_found_whatever_the_direction_of_the_body(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["image,left_x,left_y,right_x,right_y,tail_x,tail_y,toy_x,toy_y"]
    body = np.array([[8, -4], [8, 4], [-12, 0]])  # left ear, right ear, tail
    (tmp_path / "images").mkdir()
    for number in range(12):
        angle = rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = 30 + body[[1, 0, 2] if number == 7 else [0, 1, 2]] @ turn.T
        cells = [f"{side:.2f}" for side in points.ravel()]
        cells += [f"{side:.2f}" for side in rng.uniform(0, 60, 2)] if number < 3 else ["", ""]  # a toy near no ear
        rows.append(",".join([f"i{number}.png", *cells]))
        Image.new("L", (60, 60)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    report, _ = check_data(DataConfig(dataset=str(tmp_path)))
    assert "left and right may be exchanged in 1 image: i7.png" in report


def split_of_points(*images: list[tuple[float, float]], space: str = PIXELS, states=None):
    """A split of images of 16 x 20 with points a, b, c ... at these places (x, y)."""
    records = []
    inspection = SplitInspection.empty(len(images))
    for number, places in enumerate(images):
        image_states = np.array(states or [PRESENT] * len(places))
        source = PointSource("points.csv", space, np.array(places, float), image_states)
        records.append({"image": np.zeros((16, 20), np.uint8), "target": source, "name": f"i{number}"})
        inspection.add(number, Inspection((16, 20), (16, 20), "L", "numbers", {}))
    split = ListRecords(records)
    split.metadata = Metadata(landmarks=LandmarkNames(tuple("abcdefgh"[: len(images[0])]), "long", space))
    return inspection, split


def test_points_up_to_the_edges_of_the_outermost_pixels_are_inside():
    inside = [(-0.5, -0.5), (19.5, 15.5), (0, 15.4), (19.4, 0)]
    assert list(point_warnings([split_of_points(inside)], ())) == []


@pytest.mark.parametrize("place", [(-0.6, 3), (3, -0.6), (19.6, 3), (3, 15.6)])
def test_points_beyond_the_edges_of_the_outermost_pixels_are_warned_of(place):
    (line,) = point_warnings([split_of_points([place])], ())
    assert line == f"1 point lies outside its image, and left out: i0 (a at {place[0]:g}, {place[1]:g})"
    assert list(point_warnings([split_of_points([place], states=[ABSENT])], ())) == []


def test_points_lie_at_one_place_below_half_a_pixel():
    places = [(3, 3), (9, 9), (3.3, 3.3), (9, 9.5), (2.6, 3.4)]
    (line,) = point_warnings([split_of_points(places), split_of_points(places)], ())
    assert line == "2 pairs of points lie at one place: i0 (a and c), i0 (a and c)"
    assert list(point_warnings([split_of_points(places[:3:2], states=[PRESENT, UNKNOWN])], ())) == []


LEFT_RIGHT = [(4.0, 3.0), (15.0, 3.0)]


RIGHT_LEFT = LEFT_RIGHT[::-1]


@pytest.mark.parametrize(("usual", "odd"), [(LEFT_RIGHT, RIGHT_LEFT), (RIGHT_LEFT, LEFT_RIGHT)])
def test_the_order_of_two_points_is_usual_from_nine_of_ten_images_on(usual, odd):
    (line,) = point_warnings([split_of_points(*[usual] * 9, odd)], [(0, 1)])
    assert line == "a and b may be exchanged in 1 image: i9"
    assert list(point_warnings([split_of_points(*[usual] * 8, odd)], [(0, 1)])) == []


SOURCE_OF_ANOTHER_SHAPE = PointSource("points.csv", PIXELS, np.array([[3.0, 2.0]]), np.array([PRESENT]), (40, 10))


@pytest.mark.parametrize(
    ("inspect", "image"),
    [(inspect_points, "nowhere.png"), (inspect_volume_points, VolumeFile(("nowhere.nii",)))],
    ids=["image", "volume"],
)
def test_points_of_an_image_that_cannot_be_read_are_a_problem(inspect, image):
    record = {"image": image, "target": SOURCE_OF_ANOTHER_SHAPE, "name": "a"}
    assert inspect(record).kind == "image cannot be read"


def test_points_of_an_image_of_another_shape_are_a_problem():
    record = {"image": np.zeros((16, 20), np.uint8), "target": SOURCE_OF_ANOTHER_SHAPE, "name": "a"}
    assert inspect_points(record).kind == "points of an image of another shape"


def volume_with_a_point(folder: Path) -> dict:
    """The record of a volume of 3 x 4 x 5 voxels with a point at (3, 2, 2) mm."""
    file = write_volume(folder / "a.nii", np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    source = PointSource("points.csv", "RAS", np.array([[3.0, 2.0, 2.0]]), np.array([PRESENT]))
    return {"image": VolumeFile((str(file),)), "target": source, "name": "a"}


def test_an_inspection_of_a_volume_with_points_holds_their_voxels(tmp_path):
    inspection = inspect_volume_points(volume_with_a_point(tmp_path))
    assert {number: places.tolist() for number, places in inspection.class_locations.items()} == {1: [[1, 2, 3]]}


def test_brightness_of_a_volume_with_points_is_taken_at_the_same_places_on_every_start(tmp_path):
    record = volume_with_a_point(tmp_path)
    for name, values in (("a", [32, 33, 51]), ("b", [0, 35, 8])):
        assert inspect_volume_points({**record, "name": name}).foreground[:3, 0].tolist() == values


SOURCE_OF_FOUR = PointSource(
    "points.csv",
    PIXELS,
    np.array([[3.4, 1.6], [99, -3], [5, 5], [-2, 99]], float),
    np.array([PRESENT, PRESENT, ABSENT, PRESENT]),
)


LOCATIONS_OF_FOUR = {1: [[2, 3]], 2: [[0, 7]], 4: [[9, 0]]}  # the pixel nearest to each present one, within 10 x 8


@pytest.fixture
def large_image_with_points(tmp_path, monkeypatch):
    """The record of an image of 10 x 8 pixels, which is taken for a large one."""
    np.save(tmp_path / "a.npy", np.zeros((10, 8), np.uint8))
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 80)
    return {"image": str(tmp_path / "a.npy"), "target": SOURCE_OF_FOUR, "name": "a"}


def test_points_of_a_large_image_are_located_where_it_is_read_in_windows(large_image_with_points):
    locations = inspect_points(large_image_with_points, windows=True).class_locations
    assert {number: pixels.tolist() for number, pixels in locations.items()} == LOCATIONS_OF_FOUR
    assert inspect_points(large_image_with_points).class_locations is None
