"""Predicted points against true ones, and whose true ones they are.

Modules: tasks/landmarks/write.py, inference/true_points.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.formats import point_format
from support.points import landmarks, point_table
from support.prediction import image_job, score_labels

from data_utils.image_io.formats import PageFile
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.points.files import content
from inference.true_points import with_true_points
from runtime.errors import DataError
from tasks.job import Job
from tasks.landmarks.loss import Landmarks

TASK = landmarks("long", "pixels")


def with_truths(jobs: list[Job], path: Path, task: Landmarks, stem: str = "") -> list[Job]:
    """The jobs with their truths, each of an input of this stem below the given folder."""
    inputs = [replace(job, stem=Path(stem or job.stem)) for job in jobs]
    return with_true_points(path, point_format(task).true_points(path), inputs)


def write_noses(file: Path, *images: str) -> None:
    """A table with the nose of each image, whose coordinates are the number of the row."""
    count = len(images)
    positions = np.arange(count).repeat(2).reshape(count, 1, 2)
    table = point_table("long", ("nose",), images, positions, np.full((count, 1), PRESENT), (file.name,) * count)
    file.write_bytes(content(table))


def row_of(job: Job) -> int:
    """The row of the table whose points a job has."""
    return job.truth.positions.max()


def image_at(folder: Path, path: str) -> Job:
    return replace(image_job(folder), source=PageFile(folder / path))


@pytest.fixture
def noses(tmp_path) -> Path:
    """A table with points of images in folders, also by the path of another system, and of cases."""
    write_noses(tmp_path / "t.csv", "day1/a.png", "day2\\a.png", "b.jpg", "case_7", "case_8_0000", "case_8")
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("path", "stem", "row"),
    [
        ("photos/day1/a.png", "day1/a", 0),
        ("photos/day1/a.png", "photos/day1/a", 0),
        ("photos/day1/a.png", "a", 0),
        ("photos/day3/a.png", "day3/a", None),
        ("photos/day3/a.png", "a", None),  # of day1 or day2
        ("photos/b.png", "b", 2),
        ("photos/images/b.png", "images/b", 2),
        ("photos/x/b.png", "x/b", None),
        ("photos/c/d.png", "c/d", None),
        ("photos/e.png", "e", None),  # of y
        ("photos/f.png", "f", 8),
        ("photos/g/f.png", "g/f", None),
        ("d.png", "d", 6),
        ("photos/day2/a.png", "day2/a", 1),
        ("case_7_0000.nii.gz", "case_7_0000", 3),
        ("case_8_0000.nii.gz", "case_8_0000", 4),
        ("day1/x/h.png", "h", 10),
    ],
)
def test_points_are_the_truth_of_the_image_in_their_folder_alone(tmp_path, path, stem, row):
    images = (
        "day1/a.png",
        "day2\\a.png",
        "b.jpg",
        "case_7",
        "case_8_0000",
        "case_8",
        "/home/me/e/d.png",
        "y/e.png",
        "images/f.png",
        "day1/b/h.png",
        "x/h.png",
    )
    write_noses(tmp_path / "t.csv", *images)
    if row is None:
        with pytest.raises(DataError, match=f"lists no points of 1 input, the first is .*{path}"):
            with_truths([image_at(tmp_path, path)], tmp_path / "t.csv", TASK, stem)
    else:
        (job,) = with_truths([image_at(tmp_path, path)], tmp_path / "t.csv", TASK, stem)
        assert row_of(job) == row


def test_a_page_has_the_points_of_its_name_else_those_of_its_file(tmp_path):
    write_noses(tmp_path / "t.csv", "a.tif", "a_0002.tif")
    pages = []
    for number in (1, 2):
        pages.append(replace(image_at(tmp_path, "a.tif"), root=tmp_path, number=number))
    jobs = with_true_points(tmp_path / "t.csv", point_format(TASK).true_points(tmp_path / "t.csv"), pages)
    assert list(map(row_of, jobs)) == [0, 1]


def test_points_are_the_truth_of_one_image(tmp_path):
    write_noses(tmp_path / "t.csv", "a.png")
    jobs = [image_at(tmp_path, name) for name in ("a.png", "a.tif")]
    with pytest.raises(DataError, match=r"lists no points of 1 input, the first is .*a\.tif"):
        with_truths(jobs, tmp_path / "t.csv", TASK)


def test_true_points_are_found_where_a_relative_path_leaves_out_the_folder(tmp_path, noses, monkeypatch):
    (tmp_path / "day2").mkdir()
    monkeypatch.chdir(tmp_path / "day2")
    (job,) = with_truths([replace(image_job(tmp_path), source=PageFile("a.png"))], noses, TASK)
    assert row_of(job) == 1


def test_true_points_of_volumes_are_not_those_of_an_image(tmp_path):
    (tmp_path / "t.csv").write_text("image,landmark,x,y,z\na.png,nose,1,2,3\n")
    with pytest.raises(DataError, match=r"t\.csv: lists points of 3 axes, and .*a\.png has 2"):
        with_truths([image_at(tmp_path, "a.png")], tmp_path / "t.csv", TASK)


def test_true_points_that_are_none_of_the_model_are_refused(tmp_path, noses):
    with pytest.raises(DataError, match=r"t\.csv: has none of the model's points tail, ear"):
        with_truths([image_at(tmp_path, "b.tif")], noses, replace(TASK, names=("tail", "ear")))


@pytest.mark.parametrize(("absent", "state"), [("not-there", ABSENT), ("unknown", UNKNOWN)])
def test_an_empty_cell_of_true_points_means_what_it_meant_in_training(tmp_path, absent, state):
    (tmp_path / "t.csv").write_text("image,landmark,x,y\na.tif,nose,3,4\na.tif,ear,,\n")
    truth = point_format(replace(TASK, names=("ear", "nose"), absent=absent)).true_points(tmp_path / "t.csv")
    assert truth.states.tolist() == [[state, PRESENT]]


POSITIONS = np.array([[13.0, 14.0], [1.0, 2.0], [3.0, 4.0]])
PREDICTION = np.column_stack([(POSITIONS[:, ::-1] + 0.5) / (30, 40), [0.9, 0.8, 0.7], [0.6, 0.6, 0.6]])


def test_points_have_an_error_where_a_point_is_present(tmp_path):
    """An image whose nose lies at (10, 10), whose ear is not there, and whose tail is unknown."""
    states = np.array([[PRESENT, ABSENT, UNKNOWN]])
    places = np.array([np.full((3, 2), 2.0), np.full((3, 2), 10.0)])
    truth = point_table("long", TASK.names, ("b.tif", "a.tif"), places, np.repeat(states, 2, axis=0), ("t.csv",) * 2)
    (tmp_path / "t.csv").write_bytes(content(truth))
    (true_job,) = with_truths([image_job(tmp_path, size=(30, 40))], tmp_path / "t.csv", TASK)
    (entry,) = score_labels(point_format(TASK), TASK, true_job, PREDICTION).entries
    assert entry["errors"] == {"nose": pytest.approx(5), "ear": None, "tail": None}
    assert entry["mean_radial_error"] == pytest.approx(5)
    assert entry["closeness"] == pytest.approx((1 - 5 / 50 + 0) / 2)  # the absent one is said to be there
