"""Files and names that would lead elsewhere or take hours: pipes, other formats, long names, names of folders above."""

import os
import time

import numpy as np
import pytest
from PIL import Image
from support.inputs import find_jobs

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import open_source, read_image
from data_utils.image_io.volumes import read_volume
from data_utils.sources.annotations.coco import run_lengths
from data_utils.sources.annotations.layout import find_file
from runtime.errors import DataError, ImageError
from train_utils.reporting.samples import save_pictures


@pytest.mark.parametrize("kind", ["EPS", "PCX", "ICO"])
def test_a_picture_of_another_format_is_refused_whatever_its_name(tmp_path, kind):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", kind)
    with pytest.raises(ImageError, match="in a format that is not read here"):
        read_image(str(tmp_path / "a.png"), "a")


def read_voxels(path: str, name: str) -> object:
    return read_volume(VolumeFile((path,)), name)


def open_window(path: str, name: str) -> object:
    with open_source(path) as picture:
        return picture.size


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.png", read_image),
        ("a.npy", read_image),
        ("a.npy", open_window),
        ("a.tif", read_image),
        ("a.nii.gz", read_voxels),
        ("a.nrrd", read_voxels),
    ],
)
def test_a_pipe_is_neither_picture_nor_volume(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ImageError, match="not a regular file"):
        read(str(tmp_path / name), "a")


def test_a_long_name_is_looked_for_in_no_time():
    begin = time.process_time()
    assert find_file("a/" * 10**6, ["."]) is None
    assert time.process_time() - begin < 1


def test_long_run_lengths_are_refused_in_no_time():
    begin = time.process_time()
    assert run_lengths("o" * 10**6) == []
    assert time.process_time() - begin < 1


def test_names_that_lead_elsewhere_stay_below_the_folder(tmp_path):
    pictures = dict.fromkeys(("../a.png", "/b", "c/../../d", "", "x" * 999, "e\0\nf"), np.zeros((2, 2), np.uint8))
    save_pictures(tmp_path / "in", pictures)
    assert os.listdir(tmp_path) == ["in"]
    assert {"a.png", "b.png", "image.png", "c"} < set(os.listdir(tmp_path / "in"))


def test_a_pattern_does_not_lead_outside_the_output(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"has \.\. behind a wildcard"):
        find_jobs([str(tmp_path / "in" / "*" / ".." / ".." / "*.png")], tmp_path / "out")
