"""An input of a prediction: its name and the files of its output."""

from dataclasses import replace
from pathlib import Path

import pytest

from data_utils.image_io.formats import PageFile
from tasks.job import Job

IMAGE = Job(source=PageFile("in/a.b.tif"), size=(4, 5), output=Path("out/a.b"))
PAGE = Job(source=PageFile("a.tif", 2), size=None, output=Path("a"))


def test_a_job_is_named_as_its_image_with_its_page():
    assert IMAGE.name == "in/a.b.tif"
    assert PAGE.name == "a.tif page 3"


@pytest.mark.parametrize(("extension", "name"), [(".png", "out/a.b.png"), (".npy", "out/a.b.npy")])
def test_outputs_of_an_image_keep_the_dots_in_its_name(extension, name):
    assert str(IMAGE.file(extension)) == name


NESTED = Job(source=PageFile("in/x/a.tif", 1), size=(4, 5), output=Path("out/x/a"), root=Path("out"))


@pytest.mark.parametrize(
    ("root", "extension", "name"),
    [
        (Path("out"), "cell/.png", "out/cell/x/a.png"),
        (Path("out"), ".png", "out/x/a.png"),
        (None, "cell/.png", "out/x/cell/a.png"),
    ],
)
def test_outputs_of_a_class_lie_below_the_folder_of_all(root, extension, name):
    assert str(replace(NESTED, root=root).file(extension)) == name


@pytest.mark.parametrize(
    ("root", "page", "name"),
    [(Path("out"), 1, "x/a.tif page 2"), (Path("out"), 0, "x/a.tif"), (None, 1, "a.tif page 2")],
)
def test_a_relative_name_begins_below_the_folder_of_all(root, page, name):
    assert replace(NESTED, root=root, source=PageFile("in/x/a.tif", page)).relative_name == name
