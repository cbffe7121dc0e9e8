"""Landmarks as a user has them: found in the data, trained, predicted, scored and shown.

Modules: train_utils/reporting/landmarks.py, inference/outputs/points.py, inference/scoring/points.py.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PROGRAMS, TINY, launch, predict
from in_process import Run, run_train
from networks import export
from PIL import Image
from points import NAMES, SIZE, WRITERS, write_dots

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.windowed import WindowedArray
from data_utils.sources.points import files
from inference import Predictor
from inference.decoding.landmarks import LandmarkDecoder
from inference.decoding.views import predicted_strips
from inference.page import PagePredictor
from tasks.landmarks import Landmarks
from tasks.points import ABSENT, PRESENT
from unet import UNet, UNetConfig

FLAGS = [
    *TINY,
    "--norm",
    "batch",
    "--batch-size",
    "4",
    "--base-channels",
    "8",
    "--optimizer",
    "muon",
    "--learning-rate",
    "0.01",
    "--augment",
    "mirror",
]
LENGTH = ["--max-steps", "40", "--eval-every", "20", "--checkpoint-every", "36", "--log-every", "20"]
SPLIT = ["--absent", "not-there", "--val-fraction", "0.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images with dots, some of which are not there."""
    folder = tmp_path_factory.mktemp("dots")
    write_dots(folder, 24, seed=0, layout="deeplabcut", absent=0.3)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    output = tmp_path_factory.mktemp("runs") / "dots"
    return run_train(output, folder, *FLAGS, *LENGTH, *SPLIT)


def test_points_are_found_learned_and_shown(run):
    assert run.exit_code == 0, run.output
    assert "3 landmarks: nose, ear, tail" in run.output
    last = run.records[-1]
    assert last["eval/median_radial_error"] < 1.5
    assert last["eval/presence_auroc"] > 0.9
    assert {"eval/closeness", "eval/sdr/1_percent", "eval/mean_radial_error/tail"} <= last.keys()
    assert "AUROC" in run.output
    page = (run.folder / "report.html").read_text()
    assert "Errors of each landmark" in page
    assert "nose" in page
    assert "a line joins both" in page
    card = (run.folder / "model" / "README.md").read_text()
    assert "keypoint-detection" in card
    assert "predictor.points" in card
    assert "| tail |" in card
    assert run.config["task"]["names"] == list(NAMES)
    assert run.config["task"]["layout"] == "deeplabcut"
    assert run.settings["flags"]["task"] == "landmarks"
    assert len(list((run.folder / "predictions").rglob("*.png"))) == 7


def test_predictions_come_in_the_format_of_the_data_and_are_scored(run, folder, tmp_path):
    flags = ["--truth", folder, "--overlay", "--probabilities"]
    result = predict(run.folder / "model", [folder / "images"], tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    assert "24 of 24 files of points" in result.stdout
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["median_radial_error"] < 1.5
    assert metrics["images"] == 24
    assert metrics["unit"] == "px"
    # an empty cell means there what it meant in training
    assert metrics["absent"] + metrics["present"] == 72
    assert metrics["presence_auroc"] > 0.9
    assert set(metrics["by_landmark"]) == set(NAMES)
    table = files.read_written(tmp_path / "out" / "points.csv", "deeplabcut")
    assert table.names == NAMES
    assert len(table.images) == 24
    assert table.presence is not None
    single = files.read_written(tmp_path / "out" / "frame_00.csv", "deeplabcut")
    assert np.array_equal(single.positions[0], table.positions[table.images.index("frame_00.png")])
    assert Image.open(tmp_path / "out" / "frame_00.overlay.png").width >= 320
    maps = np.load(tmp_path / "out" / "frame_00.npy")
    assert maps.shape == (3, *SIZE)
    landmarks = Predictor.from_pretrained(run.folder / "model").points(folder / "images" / "frame_00.png")
    assert [landmark.name for landmark in landmarks] == list(NAMES)
    assert np.allclose([landmark.position[::-1] for landmark in landmarks], single.positions[0])
    # what is there already is scored again from its files
    again = predict(run.folder / "model", [folder / "images"], tmp_path / "out", *flags)
    assert "24 of 24 files of points are there already" in again.stdout
    repeated = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for key in ("mean_radial_error", "closeness"):
        assert repeated[key] == pytest.approx(metrics[key])


def copied_model(run: Run, folder: Path, **values: object) -> Path:
    """A copy of the run's model whose task has other values."""
    shutil.copytree(run.folder / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    config["task"] |= values
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", WRITERS)
def test_predictions_in_the_formats_of_other_programs_are_the_same(run, folder, tmp_path, layout):
    table = files.FORMATS["deeplabcut"].read(folder / "points.csv")
    positions = np.where((table.states == PRESENT)[:, :, None], table.positions, np.nan)
    data = tmp_path / "data"
    shutil.copytree(folder / "images", data / "images")
    WRITERS[layout](data, list(table.images), positions)
    ways = {"absent": "unknown", "layout": layout}  # these formats list no absent points
    if layout == "tps":
        ways |= {"names": ["1", "2", "3"], "space": "pixels from the bottom"}
    csv_model = copied_model(run, tmp_path / "csv_model", absent="unknown")
    model = copied_model(run, tmp_path / "model", **ways)
    results = []
    for truth, of_model, output in ((folder, csv_model, "csv"), (data, model, "out"), (data, model, "out")):
        result = predict(of_model, [data / "images"], tmp_path / output, "--truth", truth)
        assert result.returncode == 0, result.stderr
        metrics = json.loads((tmp_path / output / "metrics.json").read_text())
        results.append([metrics[key] for key in ("mean_radial_error", "closeness", "presence_recall", "outliers")])
    assert "24 of 24 files of points are there already" in result.stdout
    np.testing.assert_allclose(results, [results[0]] * 3, rtol=1e-9)
    extension = files.FORMATS[layout].extension
    assert files.read(tmp_path / "out" / f"frame_00{extension}").layout == layout
    if files.FORMATS[layout].holds_several:
        joined = files.read(tmp_path / "out" / f"points{extension}")
        assert len(joined.images) == 24
        assert joined.presence is not None


def test_views_and_ensembles_find_the_same_points(run, folder):
    model, image = run.folder / "model", folder / "images" / "frame_01.png"
    whole = Predictor.from_pretrained(model).points(image)
    averaged = Predictor.from_pretrained(model, ensemble=[model], tta=True).points(image)
    table = files.FORMATS["deeplabcut"].read(folder / "points.csv")
    is_there = table.states[table.images.index("frame_01.png")] == PRESENT
    assert is_there.any()
    for first, second, is_present in zip(whole, averaged, is_there, strict=True):
        if is_present:
            assert np.hypot(*np.subtract(first.position, second.position)) < 2


@pytest.fixture
def network() -> UNet:
    """A network for points of which the first two change places in the mirror, with random weights."""
    torch.manual_seed(0)
    task = Landmarks(NAMES, partners=(1, 0, 2))
    network = UNet(UNetConfig(num_classes=3, base_channels=4, depth=1, task=task.to_config())).eval()
    return network.requires_grad_(False)


def test_maps_are_the_mean_of_those_of_the_image_and_of_its_mirror_image(network):
    image = np.random.default_rng(0).integers(0, 255, (30, 37, 3), dtype=np.uint8)
    batch = torch.tensor(image).movedim(2, 0)[None].float()
    maps = network(batch)
    mirrored = network(batch.flip(3)).flip(3)[:, [1, 0, 2]]
    predictor = Predictor(network)
    (logits,) = predictor.logits_of_batch([predictor.inputs(image).tensors], [(30, 37)])
    torch.testing.assert_close(logits, (maps + mirrored)[0] / 2)
    strips = torch.cat(list(predictor.strips(WindowedArray(image))), dim=1)
    torch.testing.assert_close(strips, logits)
    decoder = LandmarkDecoder(predictor.task)
    (evaluated,) = predicted_strips(network, batch, [(30, 37)], network.config, decoder)
    torch.testing.assert_close(torch.cat(list(evaluated), dim=2)[0], logits)
    alone = Predictor(network, tta=False)
    (logits,) = alone.logits_of_batch([alone.inputs(image).tensors], [(30, 37)])
    torch.testing.assert_close(logits, maps[0])


@pytest.mark.parametrize(("augment", "is_mirrored"), [("none", False), ("mirror", True)])
def test_only_networks_that_saw_mirror_images_in_training_see_them_in_prediction(folder, augment, is_mirrored):
    info = load_dataset_info(DataConfig(dataset=str(folder), augment=augment))
    task = info.reader.task("ce", None)
    assert isinstance(task, Landmarks)
    assert task.averages_mirrored == is_mirrored
    other = replace(task, mirrors=True)
    assert task.answers_as(other)
    assert task.of_ensemble([other]).averages_mirrored == other.of_ensemble([task]).averages_mirrored == is_mirrored


def test_exact_tiles_change_nothing(network):
    image = np.random.default_rng(0).integers(0, 255, (100, 120, 3), dtype=np.uint8)
    whole, tiled = Predictor(network), Predictor(network, tile_size=48)
    (tiling,) = tiled.tilings((100, 120))
    assert tiling is not None
    assert tiling.exact
    assert whole.tilings((100, 120)) == [None]
    for first, second in zip(whole.points(image), tiled.points(image), strict=True):
        assert np.allclose(first.position, second.position, atol=1e-3)
        assert first[2:] == pytest.approx(second[2:], abs=1e-5)


def test_a_resumed_run_ends_with_the_same_weights(run, folder, tmp_path):
    checkpoint = run.folder / "checkpoints" / "step-00000036"
    resumed = run_train(tmp_path / "again", folder, *FLAGS, *LENGTH, *SPLIT, "--resume", checkpoint)
    assert resumed.exit_code == 0, resumed.output
    for name, weight in run.weights(40).items():
        assert torch.equal(weight, resumed.weights(40)[name])


@pytest.mark.slow
def test_two_processes_compute_what_one_does(folder, tmp_path):
    """In float64, with points that are absent and a batch that two processes cannot share evenly."""
    flags = [*TINY, "--max-steps", "3", "--batch-size", "3", "--tracker", "none", "--log-every", "1", *SPLIT]
    arguments = ["train.py", "--dataset", folder, "--output-dir", tmp_path / "two", *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    torch.set_default_dtype(torch.float64)
    try:
        one = run_train(tmp_path / "one", folder, *flags)
    finally:
        torch.set_default_dtype(torch.float32)
    two = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    compared = 0
    for first, second in zip(one.records, two, strict=True):
        for key in first:
            if key in ("train/loss", "train/grad_norm") or key.startswith("eval/"):
                assert second[key] == (first[key] and pytest.approx(first[key], rel=1e-9, abs=1e-9)), key
                compared += 1
    assert compared > 20


@pytest.mark.slow
def test_folds_an_average_of_weights_and_an_encoder_take_points(folder, tmp_path):
    flags = ["--plan", "none", "--encoder", "lite0", "--base-channels", "2", "--image-size", "64", "64"]
    flags += ["--ema-decay", "0.9", "--fold", "2/3", "--max-steps", "4", "--batch-size", "4", "--num-workers", "0"]
    run = run_train(tmp_path / "run", folder, *flags, "--absent", "not-there", "--tracker", "none")
    assert run.exit_code == 0, run.output
    assert "16 training and 8 validation images" in run.output
    average, last = run.tensors(4, "average"), run.weights(4)
    assert any(not torch.equal(weight, last[name]) for name, weight in average.items())
    assert run.config["encoder"] is not None
    assert run.config["task"]["name"] == "landmarks"
    points = Predictor.from_pretrained(run.folder / "model").points(folder / "images" / "frame_03.png")
    assert [point.name for point in points] == list(NAMES)
    exported = tmp_path / "model.onnx"
    export(UNet.from_pretrained(run.folder / "model"), exported)
    again = Predictor.from_pretrained(exported).points(folder / "images" / "frame_03.png")
    assert np.allclose([point.position for point in points], [point.position for point in again], atol=0.05)


def test_an_onnx_file_holds_maps_and_how_they_are_read(run, folder, tmp_path):
    export(UNet.from_pretrained(run.folder / "model"), tmp_path / "model.onnx")
    image = folder / "images" / "frame_03.png"
    exported = Predictor.from_pretrained(tmp_path / "model.onnx")
    assert exported.task == Predictor.from_pretrained(run.folder / "model").task
    own = Predictor.from_pretrained(run.folder / "model").points(image)
    for first, second in zip(own, exported.points(image), strict=True):
        assert first.name == second.name
        assert np.allclose(first.position, second.position, atol=0.01)
        assert first[2:] == pytest.approx(second[2:], abs=1e-3)
    result = predict(tmp_path / "model.onnx", [image], tmp_path / "out")
    assert result.returncode == 0
    assert (tmp_path / "out" / "frame_03.csv").exists()


def test_the_page_draws_points(run, folder, tmp_path):
    upload = tmp_path / "frame.png"
    upload.write_bytes((folder / "images" / "frame_02.png").read_bytes())
    page, file = PagePredictor(run.folder / "model")(str(upload))
    assert 'alt="image with points"' in page
    assert "nose" in page
    assert file is not None
    assert files.read_written(Path(file), "deeplabcut").names == NAMES


def test_absent_points_are_a_target_and_unknown_ones_are_not(run, folder):
    table = files.FORMATS["deeplabcut"].read(folder / "points.csv").with_absence("not-there")
    predictor = Predictor.from_pretrained(run.folder / "model")
    presence = []
    for image in table.images:
        presence.append([landmark.presence for landmark in predictor.points(folder / "images" / image)])
    is_absent = table.states == ABSENT
    assert np.median(np.array(presence)[is_absent]) < 0.5 < np.median(np.array(presence)[~is_absent])


def test_true_points_that_are_not_there_are_one_line(run, folder, tmp_path, fails_with):
    write_dots(tmp_path / "other", 2, seed=0)
    result = predict(run.folder / "model", [folder / "images"], tmp_path / "out", "--truth", tmp_path / "other")
    fails_with(result, "lists no points of 22 inputs", 1)
