"""train.py, launched as a user would: what it writes, what it promises about profiles, how mistakes end."""

import json
import pickle
import shutil
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tifffile
import torch
from accelerate import Accelerator
from conftest import ROOT, TINY, launch, losses, predict, records, write_folder
from in_process import Run, run_train
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import train
from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io import windowed
from runtime.errors import SettingsError, UserError
from train_utils.monitoring.tracking import RunLog
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.matrix_picture import matrix_picture
from train_utils.settings.flags import parse_args
from train_utils.settings.record import RunSettings
from unet import UNet


def test_a_launch_that_does_not_suit_ends_a_run_before_it_reads_anything(monkeypatch, tmp_path):
    environments = []

    def refuse() -> None:
        raise SettingsError("no such device")

    monkeypatch.setattr(train, "set_launch_environment", environments.append)
    monkeypatch.setattr(train, "check_launch", refuse)
    with pytest.raises(SettingsError, match=r"^no such device$"):
        run_train(tmp_path / "run", "--dataset", "shapes", "--deterministic")
    assert environments == [True]
    assert not (tmp_path / "run").exists()


def test_a_run_without_the_token_that_it_will_need_ends_before_it_reads_anything(monkeypatch, tmp_path):
    asked = []

    def refuse(repo_id: str | None) -> None:
        asked.append(repo_id)
        raise SettingsError("no token")

    monkeypatch.setattr(train, "check_token", refuse)
    monkeypatch.setattr(train, "check_launch", mock.Mock(side_effect=SettingsError("too late")))
    with pytest.raises(SettingsError, match=r"^no token$"):
        run_train(tmp_path / "run", "--dataset", "shapes", "--push-to-hub", "me/cells")
    assert asked == ["me/cells"]


def test_a_run_writes_model_metrics_pictures_and_settings(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"model", "metrics.jsonl", "tensorboard", "predictions", "run.json"} <= names
    assert len(list((trained / "predictions").rglob("*.png"))) == 5
    assert list((trained / "tensorboard").rglob("events.out.tfevents*"))
    settings = json.loads((trained / "run.json").read_text())
    assert settings["flags"]["batch_size"] == 4
    assert settings["profile"]["processes"] == 1
    assert settings["run"]["torch"] == torch.__version__.split("+")[0] or settings["run"]["torch"] == torch.__version__


def test_a_run_learns_and_keeps_its_best_model(trained):
    evaluations = [record for record in records(trained) if "eval/mean_iou" in record]
    assert len(evaluations) == 12
    best = max(record["eval/mean_iou"] for record in evaluations)
    assert best > 0.9  # measured 0.97; background everywhere scores 0.42
    assert losses(trained)[-1] < 0.75 * losses(trained)[0]
    config = UNet.from_pretrained(trained / "model").config
    assert config.preprocess.class_values == (0, 255)
    assert len(config.preprocess.mean) == config.in_channels == 3


def test_tensorboard_holds_the_scalars_and_pictures_of_metrics_jsonl(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    last = [record for record in records(trained) if "eval/mean_iou" in record][-1]
    assert events.Scalars("eval/mean_iou")[-1].value == np.float32(last["eval/mean_iou"])  # as it keeps numbers
    assert events.Scalars("eval/mean_iou")[-1].step == last["step"]
    assert "train/loss" in events.Tags()["scalars"]
    assert len(events.Tags()["images"]) == 5 + 1
    matrix = events.Images("eval/confusion_matrix")[-1]
    names = [key.removeprefix("eval/iou/") for key in last if key.startswith("eval/iou/")]
    assert (matrix.step, matrix.height, matrix.width) == (last["step"], *matrix_picture(np.eye(2), names).shape[:2])
    assert {key for key in last if "/" in key} <= set(events.Tags()["scalars"])


def test_an_evaluation_with_pictures_leaves_training_as_it_was(tmp_path, monkeypatch):
    """Modes of layers and of autograd, weights and running statistics are put back; the next steps show it."""
    write_folder(tmp_path / "data" / "train", 4, seed=0, size=(16, 24))
    write_folder(tmp_path / "data" / "val", 2, seed=1, size=(16, 24))
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    modes, pictures = Counter(), []
    monkeypatch.setattr(RunLog, "takes_pictures", lambda log: log.output_dir.name == "often")
    monkeypatch.setattr(RunLog, "write_pictures", lambda log, step, panels: pictures.append(step))
    monkeypatch.setattr(ClassSection, "render_pictures", lambda section, scores: {})  # those that no network makes

    def note(layer: nn.Module, inputs: tuple) -> None:
        if isinstance(layer, nn.BatchNorm2d | nn.Dropout2d | nn.Dropout) and not inputs[0].is_meta:
            modes[layer.training, torch.is_grad_enabled()] += 1

    flags = ["--base-channels", "2", "--depth", "1", "--norm", "batch", "--dropout", "0.5", "--ema-decay", "0.9"]
    flags += ["--plan", "none", "--num-workers", "0", "--batch-size", "4", "--max-steps", "3", "--log-every", "1"]
    flags += ["--tracker", "none", "--dataset", tmp_path / "data", "--eval-every"]
    with register_module_forward_pre_hook(note):
        runs = [run_train(tmp_path / name, *flags, every) for name, every in (("often", "1"), ("once", "3"))]
    often, once = runs
    assert pictures == [1, 2, 3], often.output
    assert often.steps("eval/loss") == [1, 2, 3]
    assert once.steps("eval/loss") == [3]
    assert set(modes) == {(True, True), (False, False)}
    assert often.values("train/loss") == once.values("train/loss")
    floats = {key for key, value in once.weights(3).items() if value.is_floating_point()}
    assert once.tensors(3, "average").keys() == floats  # running statistics too
    for kind in ("model", "average", "optimizer"):
        ours, theirs = often.tensors(3, kind), once.tensors(3, kind)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), kind


def test_dropout_draws_by_the_seed_the_step_and_the_process(tmp_path, monkeypatch):
    write_folder(tmp_path / "data", 6, seed=0, size=(16, 24))
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    seeds: list[int] = []
    step = train.train_step

    def noted_step(*arguments, **options) -> torch.Tensor:
        seeds.append(torch.initial_seed())
        return step(*arguments, **options)

    monkeypatch.setattr(train, "train_step", noted_step)
    flags = [
        "--dataset",
        tmp_path / "data",
        "--base-channels",
        "2",
        "--depth",
        "1",
        "--plan",
        "none",
        "--tracker",
        "none",
    ]
    flags += ["--num-workers", "0", "--batch-size", "4", "--max-steps", "2", "--dropout", "0.5"]
    for number, (seed, process) in enumerate([("0", 0), ("0", 0), ("1", 0), ("0", 3)]):
        with monkeypatch.context() as patch:
            patch.setattr(Accelerator, "process_index", process)
            assert run_train(tmp_path / str(number), *flags, "--seed", seed).exit_code == 0
    assert seeds[:2] == seeds[2:4]
    assert len(seeds) == 8
    assert len(set(seeds)) == 6  # those of a seed, step or process are no other's


def test_predict_reproduces_the_score_that_training_reported(trained, tiny_folder, tmp_path):
    best = max(record["eval/mean_iou"] for record in records(trained) if "eval/mean_iou" in record)
    data = tiny_folder / "val"
    result = predict(trained / "model", [data / "images"], tmp_path, "--truth", data / "masks")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "metrics.json").read_text())["mean_iou"] == best


COMMON = ["--max-steps", "4", "--log-every", "1", "--tracker", "none", "--optimizer", "sgd", "--batch-size", "8"]
LONG = ["--max-steps", "20"]
UNCLIPPED = ["--max-grad-norm", "0"]  # clipping would hide a gradient that is too large by a factor


def run_here(folder: Path, output: Path, *flags: str) -> Run:
    run = run_train(output, "--dataset", folder, *TINY, *COMMON, *flags)
    assert run.exit_code == 0, run.output
    assert run.output.startswith("profile: processes 1,")
    return run


def run_in_processes(folder: Path, output: Path, processes: int, *flags: str) -> None:
    arguments = ["train.py", "--dataset", folder, "--output-dir", output, *TINY, *COMMON, *flags]
    result = launch(*arguments, profile="multi_cpu", options=["--num_processes", str(processes)])
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def one_process(tiny_folder, tmp_path_factory) -> Path:
    return run_here(tiny_folder, tmp_path_factory.mktemp("one") / "run").folder


@pytest.fixture(scope="module")
def unclipped(tiny_folder, tmp_path_factory) -> Path:
    return run_here(tiny_folder, tmp_path_factory.mktemp("unclipped") / "run", *UNCLIPPED).folder


@pytest.fixture(scope="module")
def long_run(tiny_folder, tmp_path_factory) -> Path:
    return run_here(tiny_folder, tmp_path_factory.mktemp("long") / "run", *LONG).folder


def check_same_losses_and_scores(output: Path, expected: Path, steps: int) -> None:
    assert len(losses(output)) == steps
    assert losses(output) == pytest.approx(losses(expected), abs=1e-5)  # sums in another order, SGD in float32
    for ours, theirs in zip(records(output), records(expected), strict=True):
        assert ours.get("train/lr") == theirs.get("train/lr")
        # the same rounding, of a norm (measured 1e-4), and what it does to a few of 11,200 pixels
        if "train/grad_norm" in theirs:
            assert ours["train/grad_norm"] == pytest.approx(theirs["train/grad_norm"], rel=1e-3)
        assert ours.get("eval/mean_iou") == pytest.approx(theirs.get("eval/mean_iou"), abs=1e-3)


def test_three_processes_that_accumulate_change_neither_losses_nor_scores(tiny_folder, unclipped, tmp_path):
    """14 images in steps of 8: every second step is short, and 3 processes share none evenly."""
    run_in_processes(tiny_folder, tmp_path / "run", 3, "--micro-batch-size", "2", *UNCLIPPED)
    check_same_losses_and_scores(tmp_path / "run", unclipped, steps=4)


def test_accumulation_changes_neither_losses_nor_scores(tiny_folder, one_process, tmp_path):
    run_here(tiny_folder, tmp_path / "run", "--micro-batch-size", "4")
    check_same_losses_and_scores(tmp_path / "run", one_process, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "flags"), [(2, []), (3, ["--micro-batch-size", "2"])])
def test_processes_change_neither_losses_nor_scores_in_20_steps(tiny_folder, long_run, tmp_path, processes, flags):
    run_in_processes(tiny_folder, tmp_path / "run", processes, *LONG, *flags)
    check_same_losses_and_scores(tmp_path / "run", long_run, steps=20)


def test_compressed_gradients_train_almost_the_same(tiny_folder, one_process, tmp_path):
    run_in_processes(tiny_folder, tmp_path / "run", 2, "--ddp-comm-hook", "fp16")
    assert losses(tmp_path / "run") == pytest.approx(losses(one_process), abs=1e-2)
    assert losses(tmp_path / "run") != pytest.approx(losses(one_process), abs=1e-7)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_weights_have_the_same_confusion_matrix_on_any_number_of_processes(
    trained, tiny_folder, tmp_path, processes
):
    """One step too small to change a weight, and then the evaluation; 5 images, an odd share for either."""
    flags = ["--init-from", trained / "model", "--max-steps", "1", "--learning-rate", "1e-30", "--tracker", "none"]
    arguments = ["train.py", "--dataset", tiny_folder, "--output-dir", tmp_path, "--num-workers", "0", *flags]
    result = launch(*arguments, profile="multi_cpu", options=["--num_processes", str(processes)])
    assert result.returncode == 0, result.stderr
    states = []
    for output in (trained, tmp_path):
        newest = sorted((output / "checkpoints").glob("step-*"))[-1]
        states.append(json.loads((newest / "state.json").read_text())["run"])
    assert {*states[0]["best_scores"]} == {"sums", "by_image", "reliability"}
    assert states[0]["best_scores"] == states[1]["best_scores"]


def test_accumulation_comes_from_the_profile_and_a_flag_that_disagrees_is_refused(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    flags = ["--dataset", tiny_folder, *TINY, "--max-steps", "1", "--tracker", "none", "--batch-size", "4"]
    run = run_train(tmp_path / "a", *flags)
    assert run.exit_code == 0, run.output
    assert "gradient_accumulation_steps 2" in run.output
    assert "4 in a step = 2 in a micro-batch x 1 processes x 2 accumulation steps" in run.output
    with pytest.raises(SettingsError, match="but the launch profile sets 2"):
        run_train(tmp_path / "b", *flags, "--micro-batch-size", "4")


def test_bfloat16_profile_trains_here(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    run = run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY, "--max-steps", "1", "--tracker", "none")
    assert run.exit_code == 0, run.output
    assert "mixed_precision bf16" in run.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("profile", ["single_gpu", "multi_gpu"])
def test_gpu_profile_without_a_gpu_ends_in_one_line_of_ours(profile, tmp_path):
    result = launch("train.py", "--output-dir", tmp_path / "run", profile=profile)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("train.py: error: ")]
    assert len(errors) == 1, result.stderr
    assert "accelerate launch --config_file accelerate_configs/" in errors[0]


def test_ignored_value_counts_nowhere_and_sizes_may_vary(tmp_path):
    """Masks 0/1 with a border of 7 to ignore; images of two sizes, one validation split taken out of them."""
    folder = write_folder(tmp_path / "data", 6, seed=2, values=(0, 1))
    other = write_folder(tmp_path / "other", 6, seed=3, values=(0, 1), size=(33, 70))
    for kind in ("images", "masks"):
        for file in (other / kind).iterdir():
            file.rename(folder / kind / f"other_{file.name}")
    for file in (folder / "masks").iterdir():
        mask = np.array(Image.open(file))
        mask[:3] = 7
        Image.fromarray(mask).save(file)
    run = run_train(
        tmp_path / "run", "--dataset", folder, *TINY, "--epochs", "1", "--ignore-index", "7", "--tracker", "none",
        "--val-fraction", "0.3", "--scale", "0.7", "--classes", "0=sky,1=cell", "--loss", "focal+dice",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert "8 training and 4 validation images" in run.output
    assert run.config["num_classes"] == 2
    assert run.config["preprocess"]["ignore_value"] == 7
    assert {f"eval/iou/{name}" for name in ("sky", "cell")} <= set(run.records[-1])


def test_crops_class_weights_and_strong_augmentation_train(tiny_folder, tmp_path, monkeypatch):
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


def test_run_that_predicts_one_class_only_says_so(tmp_path):
    folder = write_folder(tmp_path / "data", 4, seed=0)
    flags = ["--max-steps", "1", "--learning-rate", "1e-9", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", folder, *TINY, *flags)
    assert run.exit_code == 0, run.output
    assert "only 'background' was predicted" in run.output or "only 'foreground' was predicted" in run.output


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--lernrate", "1"], "unknown argument --lernrate"),
        (["--batch-size", "0"], "'0' is not a whole number of at least 1"),
        (["--learning-rate", "-1"], "'-1' is not a number above 0"),
        (["--norm", "layer"], "invalid choice: 'layer'"),
        (["--image-size", "32"], "expected 2 arguments"),
        (["--image-size", "32", "32", "--scale", "0.5"], "give one of them"),
        (["--epochs", "two"], "'two' is not a whole number"),
        (["--val-fraction", "0"], "'0' is not a number above 0 and below 1"),
        (["--seed", "4294967296"], "is not a whole number from 0 to 2^32 - 1"),
    ],
)
def test_usage_mistakes_end_in_one_line_with_exit_code_2(flags, line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    with pytest.raises(SystemExit) as ended:
        parse_args("")
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("train.py: error: ")
    assert line in said


def test_a_scale_at_which_images_vanish_ends_the_run(tiny_folder, tmp_path):
    with pytest.raises(SettingsError, match=r"--scale 0\.01: makes images of 40 x 56 pixels as small as 1 x 1"):
        run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY, "--scale", "0.01")


def test_a_mistyped_flag_ends_the_script_in_one_line(fails_with):
    fails_with(launch("train.py", "--learning-rat", "1"), "did you mean --learning-rate?", 2)


def test_data_mistakes_end_in_one_line_with_exit_code_1(tmp_path, fails_with):
    def refused(line: str, *flags: str, dataset=None) -> None:
        output = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        with pytest.raises(UserError) as refusal:
            run_train(output, "--dataset", dataset or folder, *TINY, "--max-steps", "1", *flags)
        assert refusal.value.exit_code == 1
        assert line in str(refusal.value)
        assert "\n" not in str(refusal.value)

    (tmp_path / "empty").mkdir()
    launched = launch("train.py", "--dataset", tmp_path / "nowhere", "--output-dir", tmp_path / "launched", *TINY)
    fails_with(launched, "nowhere is not there; expected `shapes`, a folder", 1)
    refused("nowhere is not there; expected `shapes`, a folder", dataset=tmp_path / "nowhere")
    refused("empty has no folder of images or masks", dataset=tmp_path / "empty")
    folder = write_folder(tmp_path / "data", 5, seed=0)
    refused("--class-weights has 3 values for 2 classes", "--class-weights", "1", "2", "3")
    refused("--ignore-index 9 is in no mask; the masks hold 0, 255", "--ignore-index", "9")
    refused("mask values 255 belong to no class; classes are 0, 1", "--classes", "0=background,1=cell")
    refused("--tracker tensorbord is unknown", "--tracker", "tensorbord")
    mask = folder / "masks" / "cell_03.png"
    Image.fromarray(np.zeros((40, 50), np.uint8)).save(mask)
    refused("cell_03.png: image is 40 x 56, its mask 40 x 50 (height x width)")
    unknown = np.zeros((40, 56), np.uint8)
    unknown[0, 0] = 37
    Image.fromarray(unknown).save(mask)
    refused("cell_03.png: mask values 37 belong to no class; classes are 0, 255", "--classes", "0=background,255=cell")
    mask.write_bytes(b"")
    refused("cell_03.png: mask cannot be read (empty, not an image")


def test_a_pixel_that_is_no_number_is_named(tmp_path, fails_with):
    folder = write_folder(tmp_path / "data", 5, seed=0)
    image = np.zeros((40, 56), np.float32)
    image[3, 4] = np.nan
    (folder / "images" / "cell_03.png").unlink()
    Image.fromarray(image).save(folder / "images" / "cell_03.tif")
    result = launch("train.py", "--dataset", folder, "--output-dir", tmp_path / "run", *TINY, "--max-steps", "1")
    fails_with(result, "cell_03.tif: has pixels that are not numbers", 1)


def test_a_machine_without_git_trains(tiny_folder, tmp_path):
    output = tmp_path / "run"
    flags = ["--max-steps", "1", "--tracker", "none"]
    result = launch("train.py", "--dataset", tiny_folder, "--output-dir", output, *TINY, *flags, env={"PATH": ""})
    assert result.returncode == 0, result.stderr
    assert json.loads((output / "run.json").read_text())["run"]["git_commit"] == "unknown"


def test_output_folder_that_holds_something_is_refused(trained, tiny_folder, fails_with):
    before = sorted(trained.rglob("*"))
    result = launch("train.py", "--dataset", tiny_folder, "--output-dir", trained, *TINY)
    fails_with(result, "is not an empty folder", 1)
    assert sorted(trained.rglob("*")) == before


def test_help_begins_with_ten_flags_and_states_real_defaults():
    result = launch("train.py", "--help")
    text = result.stdout
    first = text.partition("the ten flags to start with:")[2].partition("advanced: data:")[0]
    assert len([line for line in first.splitlines() if line.startswith("  --")]) == 10
    assert "(default: None)" not in text
    assert "(default: False)" not in text
    assert text.count("accelerate launch") == 5
    for flag in ("--dataset", "--batch-size", "--micro-batch-size", "--classes", "--ignore-index", "--output-dir"):
        assert flag in text
    assert "--fp16" not in text
    assert result.returncode == 0
    assert (ROOT / "train.py").read_text().startswith('"""Train a U-Net')


def test_a_machine_that_does_not_share_the_cache_of_datasets_loads_its_rows_itself(tiny_folder, tmp_path, monkeypatch):
    """Where the rows' Arrow files lie on the first machine is of no use to a second one."""
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    rows = []
    for image in sorted((tiny_folder / "train" / "images").iterdir()):
        rows.append({"image": image.read_bytes(), "mask": (tiny_folder / "train" / "masks" / image.name).read_bytes()})
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "cells.parquet")

    def on_another_machine(accelerator, function):
        result = function()
        if not isinstance(result, DatasetInfo):
            return result
        pickled = pickle.dumps(result)
        cache.rename(tmp_path / "of the first machine")
        return pickle.loads(pickled)

    monkeypatch.setattr(train, "on_main", on_another_machine)
    flags = ["--dataset", tmp_path / "cells.parquet", *TINY, "--max-steps", "2", "--tracker", "none"]
    run = run_train(tmp_path / "run", *flags)
    assert run.exit_code == 0, run.output
    assert cache.is_dir()


def test_a_data_set_and_what_a_run_records_travel_once(tiny_folder, tmp_path, monkeypatch):
    on_main, results = train.on_main, []

    def noted(accelerator, function):
        results.append(on_main(accelerator, function))
        return results[-1]

    monkeypatch.setattr(train, "on_main", noted)
    run = run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY, "--max-steps", "1", "--tracker", "none")
    assert run.exit_code == 0, run.output
    values = []
    for result in results:
        values += result if isinstance(result, tuple) else [result]
    assert sum(isinstance(value, DatasetInfo) for value in values) == 1
    assert sum(isinstance(value, RunSettings) for value in values) == 1
