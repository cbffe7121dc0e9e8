"""Targets of points: how their reader resizes, cuts and counts them, and what it tells the task.

Modules: data_utils/targets/points.py.
"""

import numpy as np
import pytest
from PIL import Image

from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import VolumeHeader
from data_utils.sources.records import LandmarkNames, ListRecords, Subset
from data_utils.targets.points import PointReader, PointWindows, point_records
from runtime.errors import DataError
from tasks.landmarks import Landmarks
from tasks.points import ABSENT, OUTSIDE, PRESENT


def test_points_follow_a_resized_image_and_its_pixels_keep_their_length():
    states = np.array([PRESENT, PRESENT, ABSENT, PRESENT])
    positions = np.array([[3.5, 1.5], [39.5, 0], [7, 7], [-0.5, -0.5]])  # (x, y) in an image of 20 x 40
    last = PointReader(Landmarks(("a",)), (0,)).read(
        {"image": "", "target": PointSource("file", "pixels", np.array([[39.25, 19.0]]), states[:1]), "name": "a"},
        (20, 40),
        (10, 10),
    )
    assert last.points.tolist() == [[9.25, 9.4375]]
    assert last.states.tolist() == [PRESENT]
    record = {"image": "", "target": PointSource("file", "pixels", positions, states), "name": "a"}
    reader = PointReader(Landmarks(tuple("dcba")), (3, 2, 1, 0))
    target = reader.read(record, (20, 40), (10, 10))
    assert target.points.tolist() == [[-0.5, -0.5], [0, 0], [-0.25, 9.5], [0.5, 0.5]]
    assert target.states.tolist() == [PRESENT, ABSENT, OUTSIDE, PRESENT]
    assert (target.unit.tolist(), target.size.tolist()) == ([2, 4], [10, 10])
    assert states.tolist() == [PRESENT, PRESENT, ABSENT, PRESENT]  # those of the file stay
    assert reader.read(record, (20, 40)).unit.tolist() == [1, 1]
    record["target"] = PointSource("file", "pixels", np.zeros((4, 3)), states)
    header = VolumeHeader((4, 4, 6), (5.0, 2.0, 0.5), 1, "float32", np.eye(4), ((0, 1), (1, 1), (2, 1)))
    assert reader.read_volume(record, header, (2, 4, 4)).unit.tolist() == [10, 2, 0.75]


def test_points_of_a_window_are_those_of_the_resized_image():
    positions = np.array([[9.5, 4.5], [39.0, 19.0]])  # (x, y) in an image of 20 x 40
    record = {"image": "", "target": PointSource("file", "pixels", positions, np.array([PRESENT] * 2)), "name": "a"}
    windows = PointWindows(PointReader(Landmarks(("a", "b")), (0, 1)), record, (20, 40))
    target = windows.read((10, 20), ((1, 6), (2, 12)))
    assert target.points.tolist()[0] == [1, 2.5]
    assert target.states.tolist() == [PRESENT, OUTSIDE]


def test_gaussians_are_as_wide_as_the_image_asks_for_within_bounds():
    reader = PointReader(Landmarks(("a",)), (0,))
    for size, sigma in (((320, 160), 2.0), ((100, 90), 1.0), ((40, 2000), 3.0), ((10, 200, 30), 1.25)):
        task = reader.at_size(size).task("", None)
        assert (task.sigma, task.nowhere) == (sigma, round(float(np.log(np.prod(size))), 2))


def test_records_of_points_that_two_splits_share_are_counted_once(monkeypatch):
    monkeypatch.setattr("data_utils.targets.points.PointRecords", ListRecords)
    records, other_records = ListRecords([]), ListRecords([])
    splits = [Subset(records, np.arange(0)), Subset(Subset(records, np.arange(0)), np.arange(0)), other_records]
    assert point_records(splits) == [records, other_records]


def test_a_reader_has_the_task_of_its_points():
    landmarks = Landmarks(("b", "a"), partners=(1, 0), mirrors=False)
    reader = PointReader(landmarks, (1, 0))
    assert reader.task("", None) is landmarks
    assert not reader.mirrors
    assert reader.sided_pairs == [(1, 0)]


def test_the_task_of_points_follows_from_their_names_and_the_settings():
    points = ListRecords([])
    points.landmarks = LandmarkNames(("nose", "right_eye", "left_eye"), "long", "pixels")
    assert PointReader.of_records(points, {}, (), DataConfig(classes="nose, ")).names == ("nose",)
    eyes = PointReader.of_records(points, {}, (), DataConfig(classes="left_eye, right_eye"))
    assert (eyes.chosen, eyes.landmarks.partners, eyes.landmarks.unit) == ((2, 1), (1, 0), "px")
    assert (eyes.landmarks.layout, eyes.landmarks.space) == ("long", "pixels")
    assert (eyes.landmarks.absent, eyes.mirrors) == ("unknown", True)
    plain = PointReader.of_records(points, {}, (), DataConfig(augment="none", absent="not-there"))
    assert (plain.names, plain.landmarks.absent, plain.mirrors) == (points.landmarks[0], "not-there", False)
    with pytest.raises(DataError, match=r"^--classes nose,tail: expected some of nose, right_eye, left_eye$"):
        PointReader.of_records(points, {}, (), DataConfig(classes="nose,tail"))
    swapped = PointReader.of_records(points, {}, (), DataConfig(swap="nose=left_eye"))
    assert swapped.landmarks.partners == (2, 1, 0)
    assert eyes.warnings([]) == ("in the mirror left_eye and right_eye change places",)
    with pytest.raises(DataError, match="--classes nose,nose: expected some of nose, right_eye, left_eye"):
        PointReader.of_records(points, {}, (), DataConfig(classes="nose,nose"))
    points.landmarks = LandmarkNames(("nose",), "slicer", "LPS")
    mm = PointReader.of_records(points, {}, (), DataConfig())
    assert (mm.landmarks.layout, mm.landmarks.space) == ("slicer", "LPS")


def test_empty_cells_of_all_tables_are_counted(monkeypatch):
    class Table(ListRecords):
        absent = None
        empty = 0

    monkeypatch.setattr("data_utils.targets.points.PointRecords", Table)
    splits = [Table([]), Table([])]
    reader = PointReader(Landmarks(("a",)), (0,))
    assert reader.warnings(splits) == ()
    splits[0].empty, splits[1].empty = 2, 3
    (line,) = reader.warnings(splits)
    assert line.startswith("5 empty cells are points of which nothing is known")
    splits[0].absent = splits[1].absent = "unknown"
    assert reader.warnings(splits) == ()


def test_windows_of_points_are_of_an_image_of_so_many_rows_and_columns(tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(np.zeros((20, 40), np.uint8)).save(file)
    source = PointSource("file", "pixels", np.array([[39.0, 19.0]]), np.array([PRESENT]))
    with PointReader(Landmarks(("a",)), (0,)).open_window({"image": file, "target": source, "name": "a"}) as windows:
        assert windows.size == (20, 40)
        assert windows.read((20, 40), ((10, 20), (30, 40))).points.tolist() == [[9, 9]]
