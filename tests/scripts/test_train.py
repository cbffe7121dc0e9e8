"""train.py, launched as a user would: what it writes, and what it promises about profiles.

Modules: train_utils/start.py, train_utils/step.py.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support.folders import write_folder
from support.in_process import Run, run_train
from support.launches import TINY, launch, predict
from support.run_equality import different_tensors
from support.run_files import last_checkpoint, losses, records
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import train
import train_utils.start
from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io import windowed
from tasks.charts import matrix_picture
from tasks.classes.show import ClassSection
from train_utils.tracker import Tracker
from unet import UNet


def test_a_run_writes_what_is_promised_of_its_folder(trained_run):
    names = {path.name for path in trained_run.iterdir()}
    assert {"model", "metrics.jsonl", "tensorboard", "predictions", "run.json"} <= names
    assert len(list((trained_run / "predictions").rglob("*.png"))) == 5
    assert list((trained_run / "tensorboard").rglob("events.out.tfevents*"))
    settings = json.loads((trained_run / "run.json").read_text())
    assert settings["flags"]["batch_size"] == 4
    assert settings["profile"]["processes"] == 1
    assert settings["run"]["torch"] in (torch.__version__, torch.__version__.split("+")[0])
    config = UNet.from_pretrained(trained_run / "model").config
    assert config.preprocess.class_values == (0, 255)
    assert config.in_channels == len(config.preprocess.mean) == 3


def test_a_run_learns(trained_run):
    scores = [record["eval/mean_iou"] for record in records(trained_run) if "eval/mean_iou" in record]
    assert len(scores) == 12
    assert max(scores) > 0.9  # measured 0.97; background everywhere scores 0.42
    assert losses(trained_run)[-1] < 0.75 * losses(trained_run)[0]


def test_tensorboard_holds_the_scalars_of_metrics_jsonl_and_pictures_with_the_confusion_matrix(trained_run):
    """What TensorBoard reads of the run."""
    last_evaluation = [record for record in records(trained_run) if "eval/mean_iou" in record][-1]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained_run / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    scalars = {*events.Tags()["scalars"]}
    score = events.Scalars("eval/mean_iou")[-1]
    assert {key for key in last_evaluation if "/" in key} <= scalars
    assert "train/loss" in scalars
    assert score.value == np.float32(last_evaluation["eval/mean_iou"])  # as it keeps numbers
    assert score.step == last_evaluation["step"]
    matrix = events.Images("eval/confusion_matrix")[-1]
    names = [key.removeprefix("eval/iou/") for key in last_evaluation if key.startswith("eval/iou/")]
    height, width, _ = matrix_picture(np.eye(2), names).shape
    assert len(events.Tags()["images"]) == 5 + 1
    assert matrix.step == last_evaluation["step"]
    assert matrix.height == height
    assert matrix.width == width


def test_an_evaluation_takes_pictures_and_leaves_steps_and_tensors_as_they_were(tmp_path, monkeypatch):
    write_folder(tmp_path / "data" / "train", 4, seed=0, size=(16, 24))
    write_folder(tmp_path / "data" / "val", 2, seed=1, size=(16, 24))
    modes, pictures = set(), []

    def note(layer: nn.Module, inputs: tuple) -> None:
        if isinstance(layer, nn.BatchNorm2d | nn.Dropout2d | nn.Dropout) and not inputs[0].is_meta:
            modes.add((layer.training, torch.is_grad_enabled()))

    flags = ["--base-channels", "2", "--depth", "1", "--norm", "batch", "--dropout", "0.5", "--ema-decay", "0.9"]
    flags += ["--plan", "none", "--num-workers", "0", "--batch-size", "4", "--max-steps", "3", "--log-every", "1"]
    flags += ["--tracker", "none", "--dataset", tmp_path / "data", "--eval-every"]
    monkeypatch.setattr(train.RunLog, "write_results", lambda *arguments: None)
    monkeypatch.setattr(Tracker, "pictures", lambda tracker, step, panels: pictures.append(step))
    monkeypatch.setattr(ClassSection, "figures", lambda section, scores: [])  # those that no network makes
    with register_module_forward_pre_hook(note):
        once = run_train(tmp_path / "once", *flags, "3")
        monkeypatch.setattr(Tracker, "takes_pictures", True)
        often = run_train(tmp_path / "often", *flags, "1")
    assert often.exit_code == 0, often.output
    assert once.exit_code == 0, once.output
    assert pictures == [1, 2, 3]
    assert often.steps("eval/loss") == [1, 2, 3]
    assert once.steps("eval/loss") == [3]
    assert often.values("train/loss") == once.values("train/loss")
    for kind in ("model", "average", "optimizer"):
        assert different_tensors(often.tensors(3, kind), once.tensors(3, kind)) == []
    weights = once.weights(3)
    floats = {name for name, value in weights.items() if value.is_floating_point()}
    assert once.tensors(3, "average").keys() == floats
    assert modes == {(True, True), (False, False)}  # a layer trains and autograd is on, or neither


def test_predict_reproduces_the_score_that_training_reported(trained_run, tiny_folder, tmp_path):
    best = max(record["eval/mean_iou"] for record in records(trained_run) if "eval/mean_iou" in record)
    data = tiny_folder / "val"
    result = predict(trained_run / "model", [data / "images"], tmp_path, "--truth", data / "masks")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "metrics.json").read_text())["mean_iou"] == best


COMMON = ["--max-steps", "4", "--log-every", "1", "--tracker", "none", "--optimizer", "sgd", "--batch-size", "8"]
UNCLIPPED = ["--max-grad-norm", "0"]  # clipping would hide a gradient that is too large by a factor


def run_here(folder: Path, output: Path, *flags: str) -> Run:
    """A run on one process, in this one."""
    run = run_train(output, "--dataset", folder, *TINY, *COMMON, *flags)
    assert run.exit_code == 0, run.output
    assert run.output.startswith("profile: processes 1,")
    return run


def run_in_processes(folder: Path, output: Path, processes: int, *flags: str) -> None:
    """The same run on several processes."""
    arguments = ["train.py", "--dataset", folder, "--output-dir", output, *TINY, *COMMON, *flags]
    result = launch(*arguments, profile="multi_cpu", options=["--num_processes", str(processes)])
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def one_process(tiny_folder, tmp_path_factory) -> Path:
    return run_here(tiny_folder, tmp_path_factory.mktemp("one") / "run").folder


@pytest.fixture(scope="module")
def unclipped(tiny_folder, tmp_path_factory) -> Path:
    return run_here(tiny_folder, tmp_path_factory.mktemp("unclipped") / "run", *UNCLIPPED).folder


def column(output: Path, key: str) -> list[float]:
    """The values of a key in metrics.jsonl."""
    return [record[key] for record in records(output) if key in record]


def check_same_losses_and_scores(output: Path, expected: Path, steps: int) -> None:
    """Two runs of so many steps agree, but for sums in another order in float32, with SGD."""
    assert len(losses(output)) == steps
    assert losses(output) == pytest.approx(losses(expected), abs=1e-5)
    assert column(output, "step") == column(expected, "step")
    assert column(output, "train/lr") == column(expected, "train/lr")
    assert column(output, "train/grad_norm") == pytest.approx(column(expected, "train/grad_norm"), rel=1e-3)
    assert column(output, "eval/mean_iou") == pytest.approx(column(expected, "eval/mean_iou"), abs=1e-3)


def test_three_processes_that_accumulate_change_neither_losses_nor_scores(tiny_folder, unclipped, tmp_path):
    """14 images in steps of 8: every second step is short, and 3 processes share none evenly."""
    run_in_processes(tiny_folder, tmp_path / "run", 3, "--micro-batch-size", "2", *UNCLIPPED)
    check_same_losses_and_scores(tmp_path / "run", unclipped, steps=4)


def test_accumulation_changes_neither_losses_nor_scores(tiny_folder, one_process, tmp_path):
    run_here(tiny_folder, tmp_path / "run", "--micro-batch-size", "4")
    check_same_losses_and_scores(tmp_path / "run", one_process, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "flags"), [(2, []), (3, ["--micro-batch-size", "2"])])
def test_processes_change_neither_losses_nor_scores_in_20_steps(tiny_folder, tmp_path, processes, flags):
    run_here(tiny_folder, tmp_path / "one", "--max-steps", "20")
    run_in_processes(tiny_folder, tmp_path / "run", processes, "--max-steps", "20", *flags)
    check_same_losses_and_scores(tmp_path / "run", tmp_path / "one", steps=20)


def test_compressed_gradients_train_almost_the_same(tiny_folder, one_process, tmp_path):
    run_in_processes(tiny_folder, tmp_path / "run", 2, "--ddp-comm-hook", "fp16")
    assert losses(tmp_path / "run") == pytest.approx(losses(one_process), abs=1e-2)
    assert losses(tmp_path / "run") != pytest.approx(losses(one_process), abs=1e-7)


def best_scores(output: Path) -> dict:
    """The best scores in the newest checkpoint of a run."""
    return json.loads((last_checkpoint(output) / "state.json").read_text())["run"]["best_scores"]


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_scores_are_the_same_on_any_number_of_processes(trained_run, tiny_folder, tmp_path, processes):
    """One step too small to change a weight, and then the evaluation; 5 images, an odd share for either."""
    flags = ["--init-from", trained_run / "model", "--max-steps", "1", "--learning-rate", "1e-30", "--tracker", "none"]
    arguments = ["train.py", "--dataset", tiny_folder, "--output-dir", tmp_path, "--num-workers", "0", *flags]
    result = launch(*arguments, profile="multi_cpu", options=["--num_processes", str(processes)])
    assert result.returncode == 0, result.stderr
    scores, scores_of_one = best_scores(tmp_path), best_scores(trained_run)
    assert scores.keys() == {"sums", "by_image", "reliability"}
    assert scores == scores_of_one


def test_accumulation_comes_from_the_profile(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    flags = [*TINY, "--max-steps", "1", "--tracker", "none", "--batch-size", "4"]
    run = run_train(tmp_path / "run", "--dataset", tiny_folder, *flags)
    assert run.exit_code == 0, run.output
    assert "gradient_accumulation_steps 2" in run.output
    assert "4 in a step = 2 in a micro-batch x 1 process x 2 accumulation steps" in run.output


def test_an_ignored_value_is_no_class_in_images_of_several_sizes(tmp_path):
    """A run on masks 0/1 with a border of 7 to ignore, and images of two sizes, a split of them for validation."""
    folder = write_folder(tmp_path / "data", 6, seed=2, values=(0, 1))
    other = write_folder(tmp_path / "other", 6, seed=3, values=(0, 1), size=(33, 70))
    for kind in ("images", "masks"):
        for file in (other / kind).iterdir():
            file.rename(folder / kind / f"other_{file.name}")
    for file in (folder / "masks").iterdir():
        mask = np.array(Image.open(file))
        mask[:3] = 7
        Image.fromarray(mask).save(file)
    flags = ["--epochs", "1", "--ignore-index", "7", "--tracker", "none", "--val-fraction", "0.3", "--scale", "0.7"]
    flags += ["--classes", "0=sky,1=cell", "--loss", "focal+dice"]
    with_ignored_value = run_train(tmp_path / "with_ignored_value", "--dataset", folder, *TINY, *flags)
    assert with_ignored_value.exit_code == 0, with_ignored_value.output
    assert "8 training and 4 validation images" in with_ignored_value.output
    scores = {key for key in with_ignored_value.records[-1] if key.startswith("eval/iou/")}
    assert with_ignored_value.config["num_classes"] == 2
    assert with_ignored_value.config["preprocess"]["ignore_value"] == 7
    assert scores == {"eval/iou/sky", "eval/iou/cell"}


def test_a_run_on_a_folder_whose_name_is_no_text_is_written_to_its_end_and_resumed(tmp_path):
    folder = write_folder(tmp_path / os.fsdecode(b"caf\xe9"), 4, seed=2, values=(0, 1))
    for steps in ("1", "2"):
        flags = [*TINY, "--tracker", "none", "--max-steps", steps, "--resume", "auto"]
        run = run_train(tmp_path / "run", "--dataset", folder, *flags)
        assert run.exit_code == 0, run.output
    assert run.settings["flags"]["dataset"] == f"{tmp_path}/caf\\udce9"
    assert (tmp_path / "run" / "report.html").is_file()
    assert run.steps("train/loss") == [1, 2]


def test_crops_of_a_large_image_train_with_strong_augmentation(tiny_folder, tmp_path, monkeypatch):
    """One of the images has more pixels than may be decoded at once."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    monkeypatch.setattr(windowed, "LARGE_IMAGE_PIXELS", 10_000)
    folder = shutil.copytree(tiny_folder, tmp_path / "data")
    for kind, value in (("images", 90), ("masks", 255)):
        image = np.zeros((200, 300), np.uint8)
        image[50:, 100:] = value
        file = folder / "train" / kind / "large.tif"
        tifffile.imwrite(file, image, tile=(64, 64), photometric="minisblack", compression="zlib")
    with pytest.raises(Image.DecompressionBombError):
        Image.open(file)
    flags = ["--max-steps", "4", "--log-every", "1", "--crop-size", "32", "64", "--augment", "strong"]
    flags += ["--class-weights", "auto", "--norm", "batch", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", folder, *TINY, *flags)
    assert run.exit_code == 0, run.output
    assert "15 training" in run.output
    assert len(run.values("train/loss")) == 4
    assert np.isfinite(run.values("train/loss")).all()


def other_machine(data_cache: Path) -> Callable:
    """Stand in for `on_main` on a machine that has no cache: what it hears of the data set was pickled on another."""

    def on_main(accelerator, function):
        result = function()
        if not isinstance(result, DatasetInfo):
            return result
        pickled = pickle.dumps(result)
        data_cache.rename(data_cache.with_name("of the first machine"))
        return pickle.loads(pickled)

    return on_main


def test_a_machine_that_does_not_share_the_cache_of_datasets_loads_its_rows_itself(tiny_folder, tmp_path, monkeypatch):
    """Where the rows' Arrow files lie on the first machine is of no use to a second one."""
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    rows = []
    for image in sorted((tiny_folder / "train" / "images").iterdir()):
        rows.append({"image": image.read_bytes(), "mask": (tiny_folder / "train" / "masks" / image.name).read_bytes()})
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "cells.parquet")

    monkeypatch.setattr(train_utils.start, "on_main", other_machine(cache))
    flags = ["--dataset", tmp_path / "cells.parquet", *TINY, "--max-steps", "2", "--tracker", "none"]
    run = run_train(tmp_path / "run", *flags)
    assert run.exit_code == 0, run.output
    assert cache.is_dir()
