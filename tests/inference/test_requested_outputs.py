"""What lies in a folder of predictions: which of them are finished, their order, and the legend of overlays."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.formats import class_format, format_of, object_format, overlap_format
from support.prediction import image_job, write_logits

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import PageFile, VolumeFile
from data_utils.image_io.places import Place
from inference.requested_outputs import RequestedOutputs
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.drawing import legend
from tasks.job import MASK, OVERLAY, PROBABILITIES, UNCERTAINTY, Job
from tasks.objects.loss import Objects
from tasks.objects.write import TABLE
from tasks.overlapping.loss import Overlapping

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)


def test_a_legend_lies_beside_overlays(tmp_path):
    writer = RequestedOutputs(format_of(ClassReader(CLASSES)), (MASK, OVERLAY))
    writer.write_legend(tmp_path)
    written = np.asarray(Image.open(tmp_path / "legend.overlay.png"))
    assert np.array_equal(written, np.asarray(legend(CLASSES.names, writer.output_format.section.colors, background=0)))


def test_overlays_of_objects_have_no_legend(tmp_path):
    RequestedOutputs(object_format("cell"), (MASK, OVERLAY)).write_legend(tmp_path)
    assert not any(tmp_path.iterdir())


def new_writer(**options) -> RequestedOutputs:
    """A writer of masks and probabilities."""
    output_format = class_format(("a", "b"), (0, 1))
    return RequestedOutputs(output_format, (MASK, PROBABILITIES), **options)


def write_at(file: Path, seconds: int) -> None:
    """A file that was changed so many seconds after the epoch."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    os.utime(file, (seconds, seconds))


def test_a_raster_is_finished_when_its_tiffs_are_there(tmp_path):
    place = Place((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), None, ())
    job = Job(source=PageFile(tmp_path / "a.tif"), size=(2, 3), root=tmp_path, stem=Path("out"), place=place)
    for name in ("a.tif", "out.tif", "out.probabilities.tif"):
        write_at(tmp_path / name, 100)
    assert new_writer().is_finished(job)


def test_a_volume_of_several_files_is_as_new_as_the_newest(tmp_path):
    files = (str(tmp_path / "a_0.nii"), str(tmp_path / "a_1.nii"))
    volume = Job(source=VolumeFile(files), size=(2, 3), root=tmp_path, stem=Path("a"))
    for name, seconds in (("a_0.nii", 100), ("a_1.nii", 300), ("a.nii.gz", 200), ("a.probabilities.nii.gz", 300)):
        write_at(tmp_path / name, seconds)
    assert not new_writer().is_finished(volume)
    os.utime(tmp_path / "a.nii.gz", (300, 300))
    assert new_writer().is_finished(volume)


KINDS = pytest.mark.parametrize(
    ("output_format", "task", "extensions"),
    [
        (class_format(("a", "b"), (0, 1)), Classes(("a", "b")), (MASK, PROBABILITIES, UNCERTAINTY)),
        (overlap_format("a", "b"), Overlapping(("a", "b")), ("a/.png", "b/.png", PROBABILITIES)),
        (object_format("cell"), Objects(), (MASK, TABLE, PROBABILITIES)),
    ],
    ids=["classes", "overlapping", "objects"],
)


@KINDS
def test_the_mask_of_an_image_takes_its_place_last(tmp_path, output_format, task, extensions, monkeypatch):
    placed = []
    replace_file = Path.replace

    def note(source: Path, target: Path) -> Path:
        placed.append(target)
        return replace_file(source, target)

    monkeypatch.setattr(Path, "replace", note)
    job = image_job(tmp_path, size=(9, 7))
    write_logits(output_format, task, job, torch.zeros(task.outputs, 9, 7), extensions)
    assert placed[-1] == output_format.mask_file(job)
    assert sorted(placed) == sorted(output_format.file(job, extension) for extension in extensions)
