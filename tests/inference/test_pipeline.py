"""Reading, predicting and writing: room on the disk, lines that are said once, and inputs that fail.

Modules: inference/work.py, inference/steps.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from prediction import network_of, settings_of, touch, volume_job
from volumes import write_volume

from data_utils.image_io.formats import PictureFile
from data_utils.visualize import to_rgb
from inference import Predictor
from inference import predictor as predictor_module
from inference import work as work_module
from inference.inputs import find_jobs
from inference.outputs import new_format
from inference.outputs.jobs import ImageJob, PageFile
from inference.outputs.writer import PredictionWriter
from inference.pipeline import PredictionPipeline
from inference.scoring.truth import ScoreError
from inference.steps import ImageSteps, VolumeSteps, tracked
from inference.work import prepare_work
from runtime.errors import DataError
from unet import UNet
from unet.config import Preprocess, UNetConfig


@pytest.mark.parametrize(
    ("flags", "bytes_of_pixel"),
    [
        ([], 0.05),
        (["--overlay"], 2.05),
        (["--uncertainty"], 1.05),
        (["--probabilities"], 4 * 2 + 0.05),
        (["--overlay", "--uncertainty", "--probabilities"], 11.05),
    ],
)
def test_the_disk_needs_room_for_each_file_that_is_asked_for(monkeypatch, tmp_path, flags, bytes_of_pixel):
    touch(tmp_path, "in/a.png", "in/b.png", "in/c.nii.gz", "in/d.png", "out/d.png")  # the last one is finished
    needed = []
    monkeypatch.setattr(work_module, "check_disk", lambda folder, size: needed.append(size))
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    args = settings_of(*flags, output=tmp_path / "out", input=[str(tmp_path / "in")])
    predictor = Predictor(network_of())
    prepare_work(args, predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    pixels = 2 * 3 * 4 + 2 * (2 * 3 * 4)  # the files of a volume lie there twice for a while
    assert needed == [int(bytes_of_pixel * pixels)]


def test_what_is_there_and_how_images_are_cut_is_said_once(tmp_path, capsys):
    for name in "abc":
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "in" / f"{name}.png")
    touch(tmp_path, "out/b.png")
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")], model=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    predictor = Predictor(network_of(), ensemble=[network_of()], tile_size=16)
    work = prepare_work(args, predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    assert (tmp_path / "out" / "predict.json").exists()
    printed = capsys.readouterr().out
    assert printed.count("images in tiles of 16 x 16") == 1
    assert "2 images in tiles" in printed
    assert "1 of 3 masks are there already; --overwrite predicts them again" in printed
    assert [job.output.name for job in work.finished] == ["b"]
    assert len(work.jobs) == 3
    assert sorted(job.output.name for batch in work.batches for job in batch) == ["a", "c"]


def test_slices_of_a_volume_are_told_as_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    write_volume(tmp_path / "v.nii.gz", np.zeros((3, 40, 48), np.float32))
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "v.nii.gz")])
    predictor = Predictor(network_of(), tile_size=16)
    prepare_work(args, predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    assert "1 images in tiles of 16 x 16" in capsys.readouterr().out


def test_work_is_prepared_in_all_folders_of_the_outputs_and_recorded_with_what_is_replaced(tmp_path, monkeypatch):
    touch(tmp_path, "in/a.png")
    for folder in ("out/field", "out/wood"):
        (tmp_path / folder).mkdir(parents=True)
    cleaned = []
    recorded = []
    monkeypatch.setattr(work_module, "remove_leftovers", cleaned.append)
    monkeypatch.setattr(work_module, "provenance_of", lambda args: {"models": {}})
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: recorded.append(arguments))
    predictor = Predictor(network_of(("field", "wood"), (), task={"name": "overlapping"}))
    output_format = new_format(predictor.config)
    writer = PredictionWriter(output_format, predictor.task, tuple(output_format.mask_extensions))
    for overwrite in (False, True):
        args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")], overwrite=overwrite)
        prepare_work(args, predictor, writer)
    assert sorted(set(cleaned)) == [tmp_path / "out" / "field", tmp_path / "out" / "wood"]
    assert recorded == [(tmp_path / "out", {"models": {}}, overwrite) for overwrite in (False, True)]
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")], file=tmp_path / "out" / "mask.tif")
    prepare_work(args, predictor, replace(writer, output_format=output_format.for_file(args.file)))
    assert len(recorded) == 2  # a file says nothing of its model
    args.file.write_bytes(b"mask")
    with pytest.raises(DataError, match="is there already; --overwrite replaces it"):
        prepare_work(args, predictor, replace(writer, output_format=output_format.for_file(args.file)))


def test_images_in_windows_are_predicted_one_by_one(tmp_path, monkeypatch):
    touch(tmp_path, "in/a.png", "in/b.png")
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")])
    predictor = Predictor(network_of())
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    assert [len(batch) for batch in prepare_work(args, predictor, writer).batches] == [2]
    monkeypatch.setattr(predictor_module, "WINDOW_MEMORY", 0)
    assert [len(batch) for batch in prepare_work(args, predictor, writer).batches] == [1, 1]


def test_what_is_finished_is_done_once_more_where_it_is_scored(tmp_path, monkeypatch):
    touch(tmp_path, "in/a.png", "in/b.png", "out/a.png", "out/b.png", "truth/a_x.png", "truth/b_x.png", "truth/a.png")
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    predictor = Predictor(network_of())
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "in")])
    assert prepare_work(args, predictor, writer).batches == []
    work = prepare_work(replace(args, truth=tmp_path / "truth", mask_suffix="_x"), predictor, writer)
    assert work.batches == [[job] for job in work.jobs]
    assert [job.truth for job in work.jobs] == [(tmp_path / "truth" / f"{name}_x.png", 0) for name in "ab"]


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
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    (job,) = prepare_work(args, predictor, writer).jobs
    assert isinstance(job.truth, PictureFile) is is_picture


def test_masks_are_the_truth_of_models_of_one_kind_of_objects_and_of_classes(tmp_path, monkeypatch):
    touch(tmp_path, "a.png", "truth/a.png")
    monkeypatch.setattr(work_module, "record_provenance", lambda *arguments: None)
    args = settings_of(output=tmp_path / "out", input=[str(tmp_path / "a.png")], truth=tmp_path / "truth")
    task = {"name": "objects", "classes": ["background", "cell"], "smallest": 1}
    objects = UNet(UNetConfig(1, 3, base_channels=1, depth=1, task=task))
    for network in (objects, network_of(("a", "b", "c"), (0, 1, 2))):
        predictor = Predictor(network)
        writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
        (job,) = prepare_work(args, predictor, writer).jobs
        assert job.truth == (tmp_path / "truth" / "a.png", 0)
    kinds = task | {"classes": ["background", "cell", "dirt"]}
    predictor = Predictor(UNet(UNetConfig(1, 4, base_channels=1, depth=1, task=kinds)))
    with pytest.raises(DataError, match="masks do not say the classes of objects"):
        prepare_work(args, predictor, replace(writer, output_format=new_format(predictor.config)))


def test_a_process_that_helps_reads_the_page_of_the_image(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for page in range(3):
            tiff.write(np.full((8, 9), page, np.uint8), photometric="minisblack")
    pictures = []

    def strips(picture, name):
        pictures.append((name, np.unique(picture.read(0, 8)).tolist()))
        return iter(())

    predictor = Predictor(network_of())
    steps = ImageSteps(predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".png",)))
    steps.predictor = SimpleNamespace(strips=strips)
    steps.follow(ImageJob(image=tmp_path / "a.tif", size=(8, 9), output=tmp_path / "a", page=2))
    assert pictures == [(f"{tmp_path / 'a.tif'} page 3", [2])]


def test_an_image_is_read_ahead_as_the_networks_and_the_overlay_need_it(tmp_path):
    pages = np.random.default_rng(0).integers(0, 2**16, (3, 8, 9), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    job = ImageJob(image=tmp_path / "a.tif", size=(8, 9), output=tmp_path / "a", page=2)
    Image.new("RGB", (64, 48)).save(tmp_path / "b.jpg")
    photo = ImageJob(image=tmp_path / "b.jpg", size=(48, 64), output=tmp_path / "b")
    for preprocess, channels in ((Preprocess(), 1), (Preprocess(scale=0.25), 3)):
        predictor = Predictor(UNet(UNetConfig(channels, 2, base_channels=1, depth=1, preprocess=preprocess)))
        writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png", ".overlay.png"))
        steps = ImageSteps(predictor, writer)
        (tensor,) = steps.read(job).tensors
        assert torch.equal(tensor, predictor.inputs(pages[2]).tensors[0])
        pixels = steps.read(job).pixels
        assert pixels.shape == (8, 9, 3)
        assert np.array_equal(pixels, to_rgb(pages[2][..., None]))
        assert ImageSteps(predictor, replace(writer, extensions=(".png",))).read(job).pixels is None
    assert steps.read(photo).pixels.shape == (48, 64, 3)  # though the network sees 12 x 16


@pytest.mark.parametrize(("rows", "is_tracked"), [(64, False), (65, True), (640, True)])
def test_a_bar_is_shown_where_there_are_several_strips(capsys, rows, is_tracked):
    predictor = SimpleNamespace(config=UNetConfig(num_classes=3))
    job = ImageJob(image=Path("in/tall.tif"), size=(rows, 9), output=Path("out"))
    strips = iter(range((rows + 63) // 64))
    assert list(tracked(strips, predictor, job, (rows, 9))) == list(range((rows + 63) // 64))
    printed = capsys.readouterr().err
    assert (f"tall.tif: 100% {(rows + 63) // 64}/{(rows + 63) // 64}" in printed) is is_tracked


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
    job = find_jobs([str(tmp_path / name)], tmp_path / "out", [".png"])[page]
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")  # a process says it of the images that it predicts
    assert list(PredictionPipeline(predictor, writer, set()).run([[job]])) == [(job, None)]
    assert np.array_equal(np.asarray(Image.open(job.file(".png"))), expected)
    line = "a.png: cannot be read in parts, so the whole decoded image is kept in memory"
    assert (line in capsys.readouterr().out) is (name == "a.png")


def test_what_does_not_fit_is_told_a_tile_that_does(tmp_path, monkeypatch):
    predictor = Predictor(network_of())

    def refuse(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(predictor, "strips", refuse)
    monkeypatch.setattr(predictor, "logits_of_batch", refuse)
    touch(tmp_path, "a.png")
    image = ImageJob(image=tmp_path / "a.png", size=(3, 4), output=tmp_path / "out" / "a")
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    for job, side in ((image, 512), (volume_job(tmp_path, None), 64)):
        ((_, outcome),) = PredictionPipeline(predictor, writer, set()).run([[job]])
        line = f"{job.name}: does not fit into memory; give --tile-size {side}, or a smaller one than before"
        assert str(outcome).startswith(line)


def test_a_true_mask_that_cannot_be_used_costs_the_score_and_not_the_prediction(tmp_path):
    predictor = Predictor(network_of())
    touch(tmp_path, "a.png")
    (tmp_path / "truth.png").write_bytes(b"no picture")
    writer = PredictionWriter(new_format(predictor.config), predictor.task, (".png",))
    job = ImageJob(
        image=tmp_path / "a.png", size=(3, 4), output=tmp_path / "out" / "a", truth=PageFile(tmp_path / "truth.png")
    )
    for truth, error in ((tmp_path / "truth.png", "truth.png"), (tmp_path / "gone.png", "gone.png")):
        with_truth = replace(job, truth=PageFile(truth))
        ((_, outcome),) = PredictionPipeline(predictor, writer, set()).run([[with_truth]])
        assert isinstance(outcome, ScoreError)
        assert str(outcome).endswith("; the prediction is written anyway")
        assert error in str(outcome)
        assert np.asarray(Image.open(job.file(".png"))).shape == (3, 4)
    ((_, outcome),) = PredictionPipeline(predictor, writer, {job}).run([[job]])  # it was finished before
    assert isinstance(outcome, ScoreError)
    assert "anyway" not in str(outcome)
    Image.fromarray(np.zeros((3, 4), np.uint8)).save(tmp_path / "truth.png")
    (tmp_path / "a.png").write_bytes(b"cut off")  # the image is not read again
    ((_, outcome),) = PredictionPipeline(predictor, writer, {job}).run([[job]])
    assert outcome.scores.sums.sum() == 12
    assert outcome.boundary is None
    ((_, outcome),) = PredictionPipeline(predictor, replace(writer, boundary=True), {job}).run([[job]])
    assert outcome.boundary is not None


def test_a_true_mask_of_a_volume_on_a_disk_that_fails_costs_the_score_alone(tmp_path, monkeypatch):
    predictor = Predictor(network_of(dims=3))
    pipeline_of_one = PredictionPipeline(
        predictor, PredictionWriter(new_format(predictor.config), predictor.task, (".nii.gz",)), set()
    )

    for boundary in (False, True):
        writer = PredictionWriter(new_format(predictor.config), predictor.task, (".nii.gz",), boundary=boundary)
        assert VolumeSteps(predictor, writer).scorer.surfaces is boundary

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("inference.scoring.volume.VolumeScorer.score_mask", fail)
    job = volume_job(tmp_path, tmp_path / "truth.nii")
    ((_, outcome),) = pipeline_of_one.run([[job]])
    assert isinstance(outcome, ScoreError)
    assert str(outcome) == "[Errno 5] Input/output error; the prediction is written anyway"
    assert job.file(".nii.gz").exists()
