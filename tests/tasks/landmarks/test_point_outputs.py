"""Points that are written, read again from their files, drawn, and listed in one table.

Modules: tasks/landmarks/write.py.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.formats import point_format
from support.points import certainties, landmarks
from support.prediction import image_job, write_logits
from support.written_files import tilted_volume_job

from data_utils.image_io.formats import PageFile
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed import WindowedArray
from data_utils.point_states import ABSENT, PRESENT
from data_utils.sources.points.files import FORMATS, read_written
from data_utils.sources.points.spaces import from_voxels, to_pixels, to_voxels
from data_utils.sources.points.table import PointTable
from inference.requested_outputs import RequestedOutputs
from runtime.errors import SettingsError
from tasks.drawing import render_points
from tasks.job import MASK, OVERLAY, PROBABILITIES, Job
from tasks.landmarks.decode import PredictedPoints
from tasks.landmarks.write import PointFormat
from tasks.prediction import PredictedImage, Prediction

LAYOUTS = ("long", "wide", "deeplabcut", "labelme", "coco", "tps")


def written_points(output_format: PointFormat, job: Job, prediction: np.ndarray) -> PointTable:
    """The points that are read from the file of a prediction."""
    job.output.parent.mkdir(parents=True, exist_ok=True)
    output_format.write(PredictedImage(job, job.size, Prediction(prediction)), output_format.extensions)
    task = output_format.task
    return read_written(output_format.mask_file(job), task.layout).with_names(task.names)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predicted_points_come_back_from_the_file_that_is_written_of_them(tmp_path, layout):
    task = landmarks(layout, "pixels from the bottom" if layout == "tps" else "pixels")
    prediction = np.array([[0.25, 0.75, 0.9, 0.8], [0.5, 0.1, 0.2, 0.6], [0.9, 0.4, 0.5, 0.3]])
    table = written_points(point_format(task), image_job(tmp_path, size=(30, 40)), prediction)
    np.testing.assert_allclose(certainties(table)[0], prediction[:, [3, 2]], atol=1e-4)
    assert table.states.tolist() == [[PRESENT, ABSENT, PRESENT]]
    shares = (to_pixels(table.source(0), (30, 40), "a") + 0.5) / (30, 40)
    np.testing.assert_allclose(shares[[0, 2]], prediction[[0, 2], :2], atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_points_of_a_model_are_not_written_to_a_file_that_is_named(tmp_path, layout):
    with pytest.raises(SettingsError, match=r"the points of this model are \.\w+ files; give a folder"):
        point_format(landmarks(layout, "pixels")).for_file(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("layout", "space", "tolerance"),
    [("markups", "LPS", 1e-3), ("fcsv", "RAS", 1e-3), ("nnlandmark", "pixels", 0.2 / 3)],
)
def test_predicted_points_of_a_volume_come_back_from_their_file(tmp_path, layout, space, tolerance):
    prediction = np.array([[0.5, 0.25, 0.7, 0.9, 0.8], [0.1, 0.9, 0.5, 0.6, 0.6], [0.2, 0.3, 0.4, 0.1, 0.1]])
    job = tilted_volume_job(tmp_path)
    table = written_points(point_format(landmarks(layout, space)), job, prediction)
    assert table.states.tolist() == [[PRESENT, PRESENT, ABSENT]]
    voxels = to_voxels(table.positions[0], space, read_volume_header(job.volume, "v"))
    np.testing.assert_allclose((voxels[:2] + 0.5) / job.size, prediction[:2, :3], atol=tolerance)


def peaks(size: tuple[int, ...], *places: tuple[int, ...] | None) -> torch.Tensor:
    """Maps (K, *size) with a Gaussian of two pixels at one place each, or nowhere."""
    maps = torch.full((len(places), *size), -12.0)
    pixels = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij"), dim=-1)
    for single_map, place in zip(maps, places, strict=True):
        if place is not None:
            squares = (pixels - torch.tensor(place)).square().sum(dim=-1)
            single_map.copy_((9 - squares / 8).clamp_min(-12))
    return maps


POSITIONS = np.array([[6.5, 8.5], [0.0, 0.0], [40.5, 24.5]])  # the centers of pixels twice as large
IS_FOUND = np.array([True, False, True])


def test_points_of_an_image_are_drawn_where_they_are_found(tmp_path):
    maps = peaks((24, 16), (3, 4), None, (20, 12))
    points_job = image_job(tmp_path, size=(48, 32))
    task = landmarks("long", "pixels")
    pixels = np.random.default_rng(0).integers(0, 255, (48, 32, 3)).astype(np.uint8)
    picture = WindowedArray(pixels)
    write_logits(point_format(task), task, points_job, maps, (MASK, OVERLAY), picture=picture)
    expected = render_points(pixels, np.where(IS_FOUND[:, None], POSITIONS, np.nan))
    assert np.array_equal(np.asarray(Image.open(points_job.file(OVERLAY))), expected)


def test_labelme_files_of_points_say_the_size_of_the_image(tmp_path):
    task = landmarks("labelme", "pixels")
    job = image_job(tmp_path, size=(30, 40))
    write_logits(point_format(task), task, job, torch.zeros(3, 15, 20))
    written = json.loads(job.file(".json").read_text())
    assert written["imageHeight"] == 30
    assert written["imageWidth"] == 40


def test_points_of_a_volume_are_drawn_on_planes_of_its_spacing(tmp_path):
    task = landmarks("markups", "LPS")
    job = replace(tilted_volume_job(tmp_path, (6, 8, 10)), root=tmp_path / "out" / "sub")
    maps = peaks(job.size, (1, 4, 5), (4, 2, 6), None)
    prediction = write_logits(point_format(task), task, job, maps, (MASK, OVERLAY)).labels
    header = read_volume_header(job.volume, "v")
    positions = PredictedPoints.from_prediction(prediction).positions(job.size)
    np.testing.assert_allclose(positions[:2], [[1, 4, 5], [4, 2, 6]], atol=1e-3)
    found = np.concatenate([positions[:2], np.full((1, 3), np.nan)])
    expected = render_points(np.zeros((*job.size, 1), np.float32), found, spacing=header.spacing)
    assert np.array_equal(np.asarray(Image.open(job.file(OVERLAY))), expected)
    written = read_written(point_format(task).mask_file(job), "markups").with_names(task.names)
    np.testing.assert_allclose(written.positions[0, :2], from_voxels(positions, "LPS", header)[:2], atol=1e-3)


def test_maps_of_a_volume_are_an_array_that_a_second_call_finds(tmp_path):
    task = landmarks("markups", "LPS")
    job = tilted_volume_job(tmp_path)
    output_format = point_format(task)
    writer = RequestedOutputs(output_format, (*output_format.extensions, PROBABILITIES))
    maps = torch.zeros(3, *job.size)
    maps[:, 1, 1, 1] = 9
    assert not writer.is_finished(job)
    write_logits(writer.output_format, task, job, maps, writer.extensions)
    assert np.load(job.output.with_name(job.output.name + ".npy")).shape == maps.shape
    assert not job.file(OVERLAY).exists()
    assert writer.is_finished(job)


def write_at(output_format: PointFormat, job: Job, position: float) -> None:
    """Write the points of an image, which all lie at a position on both axes."""
    place = (position + 0.5) / np.array([[30, 40]])
    written_points(output_format, job, np.hstack([place.repeat(3, axis=0), np.full((3, 2), 0.5)]))


@pytest.fixture
def written_jobs(tmp_path) -> list[Job]:
    """Two images whose points are written, at 7 and 8, and one that has failed; the name of the second is no UTF-8."""
    jobs = [image_job(tmp_path, name, (30, 40)) for name in ("a", os.fsdecode(b"sub/b\xff"), "failed")]
    for job, position in zip(jobs[:2], (7.0, 8.0), strict=True):
        write_at(point_format(landmarks("long", "pixels")), job, position)
    return jobs


def joined_table(folder: Path, jobs: list[Job]) -> PointTable:
    """The table of all points, in the layout that holds several images."""
    point_format(landmarks("long", "pixels")).write_joined(folder / "out", jobs)
    return read_written(folder / "out" / "points.csv", "long")


def test_points_of_all_images_that_are_written_stand_in_one_table(tmp_path, written_jobs):
    first = written_jobs[0].file(".csv")
    lines = [line for line in first.read_text().splitlines() if ",ear," not in line]
    first.write_text("\n".join(lines))
    table = joined_table(tmp_path, written_jobs)
    assert table.images == ("a.tif", r"sub/b\udcff.tif")
    assert table.names == ("nose", "ear", "tail")
    assert table.positions[:, 0].tolist() == [[7, 7], [8, 8]]
    assert table.positions[:, 2].tolist() == [[7, 7], [8, 8]]


@pytest.mark.parametrize("layout", ["long", "wide", "deeplabcut", "coco"])
def test_the_table_keeps_the_places_of_an_image_without_any_point(tmp_path, layout):
    output_format = point_format(landmarks(layout, "pixels"))
    jobs = [image_job(tmp_path, name, (30, 40)) for name in ("a", "b")]
    for job in jobs:
        written_points(output_format, job, np.array([[0.25, 0.75, 0.1, 0.8]] * 3))
    output_format.write_joined(tmp_path / "out", jobs)
    table = read_written(tmp_path / "out" / output_format.joined_files[0], layout)
    assert table.states.tolist() == [[ABSENT] * 3] * 2
    np.testing.assert_allclose(table.positions, [[[29.5, 7.0]] * 3] * 2, atol=1e-3)


def test_points_of_an_only_image_are_not_written_twice(tmp_path, written_jobs):
    point_format(landmarks("long", "pixels")).write_joined(tmp_path / "out", written_jobs[:1])
    assert not (tmp_path / "out" / "points.csv").exists()


def test_points_of_pages_stand_in_one_table_by_their_page(tmp_path):
    job = image_job(tmp_path, "a", (30, 40))
    pages = []
    for page in (0, 1):
        source = PageFile("a.tif", page)
        pages.append(replace(job, source=source, number=page + 1))
    for page_job in pages:
        write_at(point_format(landmarks("long", "pixels")), page_job, 7.0)
    assert joined_table(tmp_path, pages).images == ("a_0001.tif", "a_0002.tif")


def test_points_stay_in_a_file_for_each_image_where_the_format_holds_one(tmp_path):
    assert FORMATS["labelme"].holds_several is False
    output_format = point_format(landmarks("labelme", "pixels"))
    jobs = [image_job(tmp_path, name, (30, 40)) for name in ("a", "sub/b")]
    for job in jobs:
        write_at(output_format, job, 7.0)
    output_format.write_joined(tmp_path / "out", jobs)
    assert not (tmp_path / "out" / "points.json").exists()
