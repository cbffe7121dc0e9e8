"""What lies in a folder of predictions: which of them are finished, and the legend of their overlays."""

import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from prediction import image_job

from data_utils.class_map import ClassMap
from data_utils.image_io.places import Place
from inference.outputs.classes import ClassFormat
from inference.outputs.jobs import ImageJob, PageFile, RasterJob
from inference.outputs.objects import ObjectFormat
from inference.outputs.writer import PredictionWriter
from tasks.classes import Classes

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)
TASK = Classes(CLASSES.names)


@pytest.mark.parametrize(("extensions", "has_legend"), [((".png", ".overlay.png"), True), ((".png", ".npy"), False)])
def test_a_legend_lies_beside_overlays(tmp_path, extensions, has_legend):
    writer = PredictionWriter(ClassFormat(CLASSES), TASK, extensions)
    writer.write_legend(tmp_path)
    assert writer.shows_image is has_legend
    assert (tmp_path / "legend.overlay.png").exists() is has_legend
    if has_legend:
        legend = np.asarray(Image.open(tmp_path / "legend.overlay.png"))
        assert np.array_equal(legend, np.asarray(writer.output_format.legend()))
    assert (writer.images.extensions, writer.volumes.extensions) == (extensions, extensions)


def new_writer(**options) -> PredictionWriter:
    output_format = ClassFormat(ClassMap(("a", "b"), (0, 1), None))
    return PredictionWriter(output_format, Classes(("a", "b")), (".png", ".npy"), **options)


def test_a_prediction_is_finished_when_all_its_files_are_newer_than_its_image(tmp_path):
    image = image_job(tmp_path, "a")
    (tmp_path / "out").mkdir()
    image.image.write_bytes(b"image")
    os.utime(image.image, (100, 100))
    files = [tmp_path / "out" / name for name in ("a.png", "a.npy")]
    assert not new_writer().is_finished(image)
    for file, when in zip(files, (100, 200), strict=True):
        assert not new_writer().is_finished(image)
        file.write_bytes(b"mask")
        os.utime(file, (when, when))
    assert new_writer().is_finished(image)
    assert new_writer().is_finished(replace(image, truth=PageFile(tmp_path / "truth.png")))  # it is scored as it is
    assert not new_writer(overwrite=True).is_finished(image)
    assert not new_writer().is_finished(image_job(tmp_path, "a", None))
    os.utime(files[0], (99, 99))
    assert not new_writer().is_finished(image)
    files[0].write_bytes(b"")
    assert not new_writer().is_finished(image)


def test_a_raster_is_finished_where_it_need_not_be_scored(tmp_path):
    place = Place((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), None, ())
    job = RasterJob(image=tmp_path / "a.tif", size=(2, 3), output=tmp_path / "out", place=place)
    for name in ("a.tif", "out.tif", "out.probabilities.tif"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (100, 100))
    assert new_writer().is_finished(job)
    # the mask does not say where the image holds no data
    assert not new_writer().is_finished(replace(job, truth=PageFile(tmp_path / "truth.tif")))


def test_overlays_of_objects_have_no_legend(tmp_path):
    PredictionWriter(ObjectFormat(("nothing", "cell")), TASK, (".png", ".overlay.png")).write_legend(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_volume_of_several_files_is_as_new_as_the_newest(tmp_path):
    class Channels(ImageJob):
        @property
        def files(self) -> tuple[str, ...]:
            return (str(tmp_path / "a_0.nii"), str(tmp_path / "a_1.nii"))

    volume = Channels(image=tmp_path / "a_0.nii", size=(2, 3), output=tmp_path / "a")
    for name, when in (("a_0.nii", 100), ("a_1.nii", 300), ("a.png", 200), ("a.npy", 300)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (when, when))
    assert not new_writer().is_finished(volume)
    os.utime(tmp_path / "a.png", (300, 300))
    assert new_writer().is_finished(volume)
