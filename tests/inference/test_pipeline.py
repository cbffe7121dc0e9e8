"""Reading, predicting and writing: what is read ahead, files that are read in parts, and inputs that fail.

Modules: inference/pipeline.py.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support.inputs import find_jobs
from support.prediction import network_of, touch, volume_job, writer_of

from data_utils.image_io.formats import PageFile
from inference import Predictor
from inference import predictor as predictor_module
from inference.pipeline import PredictionPipeline
from tasks.job import Job
from tasks.prediction_format import MaskFormat
from tasks.scoring.masks import ScoreError
from unet import UNet
from unet.config import Preprocess, UNetConfig


@pytest.mark.parametrize(("name", "page"), [("a.tif", 1), ("a.png", 0)])
def test_a_large_file_is_read_in_parts_where_that_can_be(tmp_path, monkeypatch, capsys, name, page):
    pages = np.random.default_rng(0).integers(0, 255, (2, 64, 80), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack", tile=(16, 16))
    Image.fromarray(pages[0]).save(tmp_path / "a.png")
    torch.manual_seed(0)
    preprocess = Preprocess(mean=(127.0,), std=(70.0,), class_names=("a", "b"), class_values=(0, 1))
    network = UNet(UNetConfig(1, 2, base_channels=4, depth=1, preprocess=preprocess))
    probabilities = Predictor(network)(pages[page]).probabilities
    network.head.conv.bias.data[0] -= float(np.median(np.log(probabilities[0] / probabilities[1])))
    predictor = Predictor(network)  # either class is at half of the pixels
    expected = predictor.mask(pages[page])
    assert 0.1 < expected.mean() < 0.9
    assert (predictor.mask(pages[1 - page]) != expected).any()
    monkeypatch.setattr(predictor_module, "WINDOW_MEMORY", 100)
    job = find_jobs([str(tmp_path / name)], tmp_path / "out")[page]
    writer = writer_of(predictor)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")  # a process says it of the images that it predicts
    assert list(PredictionPipeline(predictor, writer, set()).run([[job]])) == [(job, None)]
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), expected)
    line = "a.png: cannot be read in parts, so the whole decoded image is kept in memory"
    assert (line in capsys.readouterr().out) is (name == "a.png")


@pytest.mark.parametrize(
    ("new_job", "side"),
    [(lambda folder: picture_job(folder), 512), (lambda folder: volume_job(folder, None), 64)],
    ids=["image", "volume"],
)
def test_an_input_that_does_not_fit_is_told_a_tile_that_does(tmp_path, new_job, side, monkeypatch):
    predictor = Predictor(network_of())

    def refuse(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(predictor, "strips", refuse)
    monkeypatch.setattr(predictor, "logits_of_batch", refuse)
    job = new_job(tmp_path)
    ((_, outcome),) = PredictionPipeline(predictor, writer_of(predictor), set()).run([[job]])
    line = f"{job.name}: does not fit into memory; give --tile-size {side}, or a smaller one than before"
    assert str(outcome).startswith(line)


def test_an_image_that_does_not_fit_while_it_is_written_is_told_a_tile_that_does(tmp_path, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(MaskFormat, "write", refuse)
    job = picture_job(tmp_path)
    predictor = Predictor(network_of())
    ((_, outcome),) = PredictionPipeline(predictor, writer_of(predictor), set()).run([[job]])
    assert str(outcome).startswith(f"{job.name}: does not fit into memory; give --tile-size 512")


def picture_job(folder: Path, name: str = "a", **options) -> Job:
    """The job of a picture that is there."""
    touch(folder, f"{name}.png")
    return Job(source=PageFile(folder / f"{name}.png"), size=(3, 4), root=folder / "out", stem=Path(name), **options)


def failing(function: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """A function that fails where its arguments are bad."""

    def call(*arguments: Any, **options: Any) -> Any:
        if is_bad(*arguments):
            raise OSError("gone")
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize(("stage", "failed"), [("read", "bd"), ("compute", "bcdef"), ("write", "bd")])
def test_errors_stay_with_their_image(tmp_path, monkeypatch, stage, failed):
    """An error of computing is that of all images of the batch."""
    predictor = Predictor(network_of())
    if stage == "read":
        monkeypatch.setattr(
            predictor, "inputs", failing(predictor.inputs, lambda source, name: Path(name).stem in failed)
        )
    elif stage == "compute":
        compute = failing(predictor.logits_of_batch, lambda batch: len(batch) > 1)
        monkeypatch.setattr(predictor, "logits_of_batch", compute)
    else:
        write = failing(MaskFormat.write, lambda self, image, extensions: image.job.output.name in failed)
        monkeypatch.setattr(MaskFormat, "write", write)
    batches = [[picture_job(tmp_path, name) for name in names] for names in ("a", "bc", "def", "g")]
    outcomes = list(PredictionPipeline(predictor, writer_of(predictor), set()).run(batches))
    assert sorted(job.output.name for job, _ in outcomes) == list("abcdefg")
    errors = {job.output.name: str(error) for job, error in outcomes if error is not None}
    assert errors == dict.fromkeys(failed, "gone")
    assert all(job.file(".png").exists() for job, error in outcomes if error is None)


def test_a_bug_is_not_swallowed(tmp_path, monkeypatch):
    predictor = Predictor(network_of())
    monkeypatch.setattr(predictor, "inputs", lambda *arguments: {}["a bug"])
    with pytest.raises(KeyError):
        list(PredictionPipeline(predictor, writer_of(predictor), set()).run([[picture_job(tmp_path)]]))


def test_reading_and_writing_run_beside_computing_but_not_far_ahead(tmp_path, monkeypatch):
    """With two threads for each, the two images of a batch are read at once, and up to two batches ahead."""
    monkeypatch.setattr("inference.pipeline.default_workers", lambda device: 2)
    predictor = Predictor(network_of())
    read, computed, written, here = [], [], [], threading.get_ident()
    both = threading.Barrier(2, timeout=60)
    inputs, compute, write = predictor.inputs, predictor.logits_of_batch, MaskFormat.write

    def read_inputs(source, name):
        both.wait()
        read.append(threading.get_ident())
        return inputs(source, name)

    def logits_of_batch(batch):
        assert threading.get_ident() == here
        time.sleep(0.02)
        assert len(read) <= len(computed) + 2 + 4
        assert len(written) >= len(computed) - 2
        computed.extend(batch)
        return compute(batch)

    def write_files(*arguments):
        write(*arguments)
        written.append(threading.get_ident())

    monkeypatch.setattr(predictor, "inputs", read_inputs)
    monkeypatch.setattr(predictor, "logits_of_batch", logits_of_batch)
    monkeypatch.setattr(MaskFormat, "write", write_files)
    jobs = [picture_job(tmp_path, f"{number:02}") for number in range(16)]
    batches = [jobs[start : start + 2] for start in range(0, 16, 2)]
    list(PredictionPipeline(predictor, writer_of(predictor), set()).run(batches))
    assert len(read) == len(computed) == len(written) == 16
    assert here not in read + written


@pytest.mark.parametrize("name", ["truth.png", "gone.png"], ids=["no picture", "not there"])
@pytest.mark.parametrize("extensions", [(".png",), (".png", ".overlay.png")], ids=["mask", "overlay"])
def test_a_true_mask_that_cannot_be_used_costs_the_score_alone(tmp_path, name, extensions):
    (tmp_path / "truth.png").write_bytes(b"no picture")
    job = picture_job(tmp_path, truth=PageFile(tmp_path / name))
    predictor = Predictor(network_of())
    ((_, outcome),) = PredictionPipeline(predictor, writer_of(predictor, extensions), set()).run([[job]])
    assert isinstance(outcome, ScoreError)
    assert str(outcome).endswith("; the prediction is written anyway")
    assert name in str(outcome)
    assert all(np.asarray(Image.open(job.file(extension))).shape[:2] == (3, 4) for extension in extensions)


def test_a_mask_that_is_there_is_scored_and_stays_as_it_is(tmp_path):
    job = picture_job(tmp_path, truth=PageFile(tmp_path / "truth.png"))
    touch(tmp_path, "truth.png")
    job.output.parent.mkdir()
    job.file(".png").write_bytes(b"edited by hand")
    predictor = Predictor(network_of())
    ((_, scores),) = PredictionPipeline(predictor, writer_of(predictor), {job}).run([[job]])
    assert scores.sums.sum() == 12
    assert job.file(".png").read_bytes() == b"edited by hand"


def test_a_true_mask_of_a_volume_on_a_disk_that_fails_costs_the_score_alone(tmp_path, monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(MaskFormat, "score", fail)
    predictor = Predictor(network_of(dims=3))
    job = volume_job(tmp_path, tmp_path / "truth.nii")
    ((_, outcome),) = PredictionPipeline(predictor, writer_of(predictor, (".nii.gz",)), set()).run([[job]])
    assert isinstance(outcome, ScoreError)
    assert str(outcome) == "[Errno 5] Input/output error; the prediction is written anyway"
    assert job.file(".nii.gz").exists()
