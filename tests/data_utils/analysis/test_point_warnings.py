"""Points that a look at a data set locates, counts and warns of."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.points import write_dots
from support.volumes import write_volume

from data_utils.analysis.check_data import check_data
from data_utils.analysis.inspect_points import inspect_points, inspect_volume_points, point_locations
from data_utils.analysis.inspection import Inspection, SplitInspection
from data_utils.analysis.inspectors import PointInspector, choose_inspector
from data_utils.analysis.point_warnings import describe_points, point_warnings
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.sources.load import load_records
from data_utils.sources.points.spaces import PIXELS, PIXELS_UPWARD
from data_utils.sources.records import LandmarkNames, ListRecords, Metadata
from tasks.points import ABSENT, PRESENT, UNKNOWN


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


def test_a_check_of_chosen_points_finds_their_mistakes(folder_with_mistakes):
    report, _ = check_data(DataConfig(dataset=str(folder_with_mistakes), classes="tail,right,left"))
    assert "right and left may be exchanged in 1 image: i7.png" in report


@pytest.mark.parametrize(("images", "is_said"), [(9, False), (10, True)])
def test_few_images_do_not_say_on_which_side_a_point_lies(tmp_path, images, is_said):
    rows = ["image,left_x,left_y,right_x,right_y", "i0.png,15,3,4,3"]  # exchanged
    rows += [f"i{number}.png,4,3,15,3" for number in range(1, images)]
    (tmp_path / "images").mkdir()
    for number in range(images):
        Image.new("L", (20, 16)).save(tmp_path / "images" / f"i{number}.png")
    (tmp_path / "points.csv").write_text("\n".join(rows))
    report, _ = check_data(DataConfig(dataset=str(tmp_path)))
    assert ("may be exchanged in 1 image: i0.png" in report) == is_said


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
    assert point_warnings([split_of_points(inside)], ()) == ()


@pytest.mark.parametrize("place", [(-0.6, 3), (3, -0.6), (19.6, 3), (3, 15.6)])
def test_points_beyond_the_edges_of_the_outermost_pixels_are_warned_of(place):
    (line,) = point_warnings([split_of_points([place])], ())
    assert line == f"1 point lies outside its image, and left out: i0 (a at {place[0]:g}, {place[1]:g})"
    assert point_warnings([split_of_points([place], states=[ABSENT])], ()) == ()


def test_points_that_are_counted_upward_have_the_same_edges():
    (line,) = point_warnings([split_of_points([(3, 15.6), (3, -0.4)], space=PIXELS_UPWARD)], ())
    assert line.startswith("1 point lies outside")


def test_points_of_an_image_without_size_are_not_outside():
    inspection, split = split_of_points([(99, 99)])
    inspection.sizes[:] = 0  # the image cannot be used
    assert point_warnings([(inspection, split)], ()) == ()


def test_points_lie_at_one_place_below_half_a_pixel():
    places = [(3, 3), (9, 9), (3.3, 3.3), (9, 9.5), (2.6, 3.4)]
    (line,) = point_warnings([split_of_points(places), split_of_points(places)], ())
    assert line == "2 pairs of points lie at one place: i0 (a and c), i0 (a and c)"
    assert point_warnings([split_of_points(places[:3:2], states=[PRESENT, UNKNOWN])], ()) == ()


def test_points_of_a_volume_in_two_slices_lie_at_two_places():
    inspection, split = split_of_points([(3, 3, 3), (3, 3, 9), (3, 3, 9.2)], space="RAS")
    inspection.sizes = np.array([(9, 16, 20)])
    assert point_warnings([(inspection, split)], ()) == ("1 pair of points lies at one place: i0 (b and c)",)


LEFT_RIGHT = [(4.0, 3.0), (15.0, 3.0)]


RIGHT_LEFT = LEFT_RIGHT[::-1]


@pytest.mark.parametrize(("usual", "odd"), [(LEFT_RIGHT, RIGHT_LEFT), (RIGHT_LEFT, LEFT_RIGHT)])
def test_the_order_of_two_points_is_usual_from_nine_of_ten_images_on(usual, odd):
    (line,) = point_warnings([split_of_points(*[usual] * 9, odd)], [(0, 1)])
    assert line == "a and b may be exchanged in 1 image: i9"
    assert point_warnings([split_of_points(*[usual] * 8, odd)], [(0, 1)]) == ()


def test_points_of_each_pair_may_be_exchanged():
    usual, odd = [*LEFT_RIGHT, (2.0, 9.0), (12.0, 9.0)], [*LEFT_RIGHT, (12.0, 9.0), (2.0, 9.0)]
    (line,) = point_warnings([split_of_points(*[usual] * 12, odd)], [(0, 1), (2, 3)])
    assert line == "c and d may be exchanged in 1 image: i12"


def test_up_to_five_images_of_exchanged_points_are_named():
    (line,) = point_warnings([split_of_points(*[LEFT_RIGHT] * 60, *[RIGHT_LEFT] * 6)], [(0, 1)])
    assert line == "a and b may be exchanged in 6 images: i60, i61, i62, i63, i64, ..."


def test_points_that_are_absent_are_not_exchanged():
    split = split_of_points(*[LEFT_RIGHT] * 60, RIGHT_LEFT, states=[PRESENT, ABSENT])
    assert point_warnings([split], [(0, 1)]) == ()


def test_a_pair_that_no_image_holds_is_passed_over(recwarn):
    split = split_of_points(*[LEFT_RIGHT] * 3, states=[PRESENT, ABSENT])
    assert point_warnings([split], [(0, 1)]) == ()
    assert not recwarn.list


@pytest.mark.parametrize(("tail", "turned_tail"), [((7, 2), (7, 14)), ((7, 14), (7, 2))])
def test_a_pair_is_told_by_a_point_that_half_of_the_images_hold(tail, turned_tail):
    """The bodies are turned by half a turn in every second image, so that the order along x says nothing."""
    upright, turned = [(5, 8), (10, 8), tail], [(10, 8), (5, 8), turned_tail]
    inspection, split = split_of_points(*[upright, turned] * 9, [(10, 8), (5, 8), tail], turned)
    for number in range(10):  # the tail is known in the other half, with one odd image
        source = split.records[number]["target"]
        source.positions[2] = 0
        split.records[number]["target"] = source._replace(states=np.array([PRESENT, PRESENT, UNKNOWN]))
    (line,) = point_warnings([(inspection, split)], [(0, 1)])
    assert line == "a and b may be exchanged in 1 image: i18"


def test_points_of_volumes_are_told_by_their_order_along_x_alone():
    places = [[(x, 8, 3), (15 - x, 8, 3), (7, y, 3)] for x, y in [(5, 2), (10, 14)] * 5]
    places[8][2] = (7, 14, 3)  # on the other side in the plane of x and y
    inspection, split = split_of_points(*places, space="RAS")
    inspection.sizes = np.array([(9, 16, 20)] * 10)
    assert point_warnings([(inspection, split)], [(0, 1)]) == ()


def test_points_of_an_image_that_cannot_be_used_are_passed_over():
    inspection, split = split_of_points([(3, 3), (9, 9)])
    inspection.sizes[:] = 0
    split.records[0]["target"] = split.records[0]["target"]._replace(size=(7, 99))
    assert point_warnings([(inspection, split)], [(0, 1)]) == ()


def test_no_splits_have_nothing_to_describe():
    assert describe_points([]) == []
    assert point_warnings([], ()) == ()


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


def test_an_inspection_of_a_volume_with_points_holds_brightness_anywhere(tmp_path):
    inspection = inspect_volume_points(volume_with_a_point(tmp_path))
    assert inspection.mode == "int16"
    assert inspection.spacing == (2, 1, 1)
    assert inspection.foreground.dtype == np.float32
    assert inspection.foreground.shape == (10_000, 1)


def test_brightness_of_a_volume_with_points_is_taken_at_the_same_places_on_every_start(tmp_path):
    record = volume_with_a_point(tmp_path)
    for name, values in (("a", [32, 33, 51]), ("b", [0, 35, 8])):
        assert inspect_volume_points({**record, "name": name}).foreground[:3, 0].tolist() == values


def test_an_inspection_of_a_volume_with_points_holds_brightness_of_each_channel(tmp_path):
    files = [write_volume(tmp_path / f"{value}.nii", np.full((3, 4, 5), value, np.int16)) for value in (7, 9)]
    source = PointSource("points.csv", "RAS", np.array([[3.0, 2.0, 2.0]]), np.array([PRESENT]))
    record = {"image": VolumeFile(tuple(map(str, files))), "target": source, "name": "a"}
    assert np.unique(inspect_volume_points(record).foreground, axis=0).tolist() == [[7, 9]]


def test_states_are_counted_in_both_splits():
    first = split_of_points([(1, 1), (5, 5)], [(1, 1), (5, 5)], states=[PRESENT, ABSENT])
    second = split_of_points([(1, 1), (5, 5)], states=[PRESENT, UNKNOWN])
    lines = describe_points([first, second])
    assert lines[1:] == ["         3        0        0  a", "         0        2        1  b"]


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


def test_a_crop_may_be_taken_around_the_pixel_of_each_present_point():
    locations = point_locations(SOURCE_OF_FOUR.positions[:, ::-1], SOURCE_OF_FOUR, (10, 8))
    assert {number: pixels.tolist() for number, pixels in locations.items()} == LOCATIONS_OF_FOUR


def test_points_of_a_large_image_are_located_where_it_is_read_in_windows(large_image_with_points):
    locations = inspect_points(large_image_with_points, windows=True).class_locations
    assert {number: pixels.tolist() for number, pixels in locations.items()} == LOCATIONS_OF_FOUR
    assert inspect_points(large_image_with_points).class_locations is None


def test_points_of_a_small_image_are_not_located():
    record = {"image": np.zeros((10, 8), np.uint8), "target": SOURCE_OF_FOUR, "name": "a"}
    assert inspect_points(record, windows=True).class_locations is None


@pytest.mark.parametrize("windows", [False, True])
def test_an_inspector_of_points_locates_those_of_large_images_in_windows(large_image_with_points, windows):
    inspection = PointInspector(has_classes=False, windows=windows).inspect(large_image_with_points)
    assert (inspection.class_locations is not None) is windows


@pytest.mark.parametrize("windows", [True, False])
def test_large_images_with_points_are_looked_at_in_windows_as_training_reads_them(tmp_path, windows):
    write_dots(tmp_path, 4, seed=0)
    train, _ = load_records(DataConfig(str(tmp_path)))
    inspector = choose_inspector(train, windows=windows)
    assert isinstance(inspector, PointInspector)
    assert inspector.windows is windows
