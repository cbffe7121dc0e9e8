"""The inputs of a prediction: which are still to be done, and what a process reads that helps another one.

Modules: inference/pipeline.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
from PIL import Image

from inference import Predictor, pipeline
from inference.args import parse_args
from inference.outputs import new_format
from inference.outputs.jobs import ImageJob
from inference.outputs.writer import PredictionWriter
from inference.pipeline import ImageSteps, prepare_work
from unet import Preprocess, UNet, UNetConfig


@pytest.fixture
def predictor() -> Predictor:
    """Of a network that has two classes and takes grey images."""
    preprocess = Preprocess(mean=(90.0,), std=(50.0,), class_names=("a", "b"), class_values=(0, 1))
    return Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=preprocess)).eval())


def writer_of(predictor: Predictor) -> PredictionWriter:
    return PredictionWriter(new_format(predictor.config), predictor.task, (".png",))


def test_the_disk_needs_room_for_what_is_not_finished(predictor, monkeypatch, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for number, name in enumerate("abc", 1):
        Image.fromarray(np.zeros((100, 100 * number), np.uint8)).save(tmp_path / "in" / f"{name}.png")
    (tmp_path / "out" / "b.png").write_bytes(b"mask")
    needed = []
    provenance = []
    monkeypatch.setattr(pipeline, "check_disk", lambda folder, size: needed.append(size))
    monkeypatch.setattr(pipeline, "provenance_of", lambda args: {})
    monkeypatch.setattr(pipeline, "record_provenance", lambda folder, record, overwrite: provenance.append(overwrite))
    words = ["--model", "m", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["predict.py", *words])
    work = prepare_work(parse_args(""), predictor, writer_of(predictor))
    assert needed == [500 + 1500] and provenance == [False]
    assert [job.image.name for job in work.finished] == ["b.png"] and len(work.jobs) == 3
    assert sorted(job.image.name for batch in work.batches for job in batch) == ["a.png", "c.png"]
    assert "1 of 3 masks are there already" in capsys.readouterr().out


def test_a_process_that_helps_reads_the_page_of_the_image(predictor, tmp_path):
    pages = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((8, 9), np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for page in pages:
            tiff.write(page, photometric="minisblack")
    read = []

    def strips(picture, name):
        read.append((name, picture.read(0, 8)))
        return iter(())

    steps = ImageSteps(predictor, writer_of(predictor))
    steps.predictor = SimpleNamespace(strips=strips)
    steps.follow(ImageJob(image=tmp_path / "a.tif", size=(8, 9), output=tmp_path / "a", page=2))
    ((name, pixels),) = read
    assert name == f"{tmp_path / 'a.tif'} page 3" and (np.asarray(pixels) == 2).all()
