"""The work of a call: its inputs and true masks, what is finished, and what is said and recorded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.prediction import image_job, network_of, settings_of, touch, volume_job, writer_of

from data_utils.image_io.formats import PageFile
from inference import Predictor
from inference import work as work_module
from inference.output_folder import make_folder
from inference.work import Work, group_jobs, prepare_work
from runtime.errors import DataError
from unet import UNet
from unet.config import Preprocess, UNetConfig


@pytest.mark.parametrize("folder", ["file", "file/out", "/proc/out"])
def test_a_folder_that_takes_no_files_is_named_with_the_cause(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=rf"--output .*{Path(folder).name}: cannot be written \([A-Z]"):
        make_folder(tmp_path / folder)


def test_batches_are_dealt_to_processes_the_largest_first():
    sizes = {"a": (1, 10), "b": (1, 2), "c": (1, 9), "d": (1, 7), "e": (1, 4)}
    jobs = {name: image_job(Path(), name, size) for name, size in sizes.items()}
    work = Work([], [[jobs["e"]], [jobs["a"]], [jobs["b"], jobs["d"]], [jobs["c"]]], set())
    assert work.share(0, 2) == [[jobs["a"]], [jobs["c"]]]
    assert work.share(1, 2) == [[jobs["b"], jobs["d"]], [jobs["e"]]]


def test_images_of_one_size_are_computed_together_up_to_an_eighth_of_a_megapixel(tmp_path):
    sizes = [(256, 256), (200, 200), (256, 256), (256, 256), (6000, 6000), None, (200, 200)]
    jobs = [image_job(tmp_path, str(number), size) for number, size in enumerate(sizes)]
    jobs += [volume_job(tmp_path, None), volume_job(tmp_path, None)]
    batches = group_jobs(jobs, Predictor(network_of()))
    assert [[jobs.index(member) for member in batch] for batch in batches[:-2]] == [[0, 2], [1, 6], [3], [4], [5]]
    assert [len(batch) for batch in batches[-2:]] == [1, 1]  # volumes


def test_work_is_done_and_recorded_on_images_that_have_no_mask(tmp_path, capsys):
    """The work on three images, one of which has a mask, in tiles by an ensemble, and what was printed."""
    (tmp_path / "in").mkdir()
    for name in "abc":
        Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "in" / f"{name}.png")
    touch(tmp_path, "out/b.png")
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")], model=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    predictor = Predictor(network_of(), ensemble=[network_of()], tile_size=16)
    work, printed = prepare_work(args, predictor, writer_of(predictor)), capsys.readouterr().out
    assert "1 of 3 masks are there already; --overwrite predicts them again" in printed
    assert printed.count("images in tiles of 16 x 16") == 1
    assert "2 images in tiles" in printed
    assert [job.output.name for job in work.finished_jobs] == ["b"]
    assert len(work.jobs) == 3
    assert sorted(job.output.name for batch in work.batches for job in batch) == ["a", "c"]
    assert (tmp_path / "out" / "predict.json").exists()


def test_masks_that_are_finished_are_work_once_more_where_they_are_scored(tmp_path, monkeypatch):
    touch(tmp_path, "in/a.png", "in/b.png", "out/a.png", "out/b.png", "truth/a_x.png", "truth/b_x.png", "truth/a.png")
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    predictor = Predictor(network_of())
    writer = writer_of(predictor)
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")])
    assert prepare_work(args, predictor, writer).batches == []
    work = prepare_work(replace(args, truth=tmp_path / "truth", mask_suffix="_x"), predictor, writer)
    assert work.batches == [work.jobs]
    assert work.finished_jobs == {*work.jobs}
    assert [job.truth for job in work.jobs] == [
        PageFile(tmp_path / "truth" / f"{name}_x.png", reads_place=False) for name in "ab"
    ]


@pytest.mark.parametrize(
    ("preprocess", "is_picture"), [({}, True), ({"place": True}, False), ({"bands": ("1",)}, False)]
)
def test_tiffs_are_pictures_to_a_model_that_knows_neither_places_nor_bands(
    tmp_path, monkeypatch, preprocess, is_picture
):
    touch(tmp_path, "a.tif", "truth/a.tif")
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "a.tif")], truth=tmp_path / "truth")
    predictor = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(**preprocess))))
    writer = writer_of(predictor)
    (job,) = prepare_work(args, predictor, writer).jobs
    assert job.truth.reads_place is not is_picture


def test_a_stack_is_pages_to_a_model_of_images_whatever_spacing_it_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    predictor = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, preprocess=Preprocess(spacing=(2, 1, 1)))))
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "a.tif")])
    assert [job.size for job in prepare_work(args, predictor, writer_of(predictor)).jobs] == [(4, 5)] * 3
