"""The folder of a run, what an evaluation is logged as, and TensorBoard's one run with its hyper-parameters."""

import atexit
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from runtime.errors import CheckpointError, SettingsError, WriteError
from train_utils.evaluation import Evaluation
from train_utils.monitoring.tracking import RunLog
from train_utils.run_dir import describe_run, make_run_dir

SETTINGS = {"flags": {"learning_rate": 0.01, "loss": "ce", "crop_size": [32, 32], "cache": False}, "total_steps": 40}
MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])


def log_run(folder: Path, steps: range, start: int = 0) -> None:
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(folder))
    log = RunLog(accelerator, folder, "tensorboard", SETTINGS, start)
    for step in steps:
        log.scalars(step, step / 10, {"eval/mean_iou": step / 10, "eval/loss": 1 / step})
    log.finish()


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_has_one_run_which_holds_its_hyper_parameters(tmp_path):
    log_run(tmp_path, range(1, 4))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "tensorboard" in path.parts]
    assert {path.parent for path in files} == {tmp_path / "tensorboard"}
    assert all(path.name.startswith("events.out.tfevents") for path in files)
    events = read(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3]
    content = events.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG]).hparams
    assert start["flags.learning_rate"].number_value == 0.01
    assert start["flags.loss"].string_value == "ce"
    assert start["flags.crop_size"].string_value == "[32, 32]"
    assert start["flags.cache"].number_value == 0 and start["total_steps"].number_value == 40
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    compared = {info.name.tag for info in experiment.metric_infos}
    assert compared == {"eval/mean_iou", "eval/mean_dice", "eval/loss"}
    assert compared - set(events.Tags()["scalars"]) == {"eval/mean_dice"}  # which this run did not log
    assert metadata.SESSION_END_INFO_TAG in content


def test_a_resumed_run_stays_one_run_without_repeated_steps(tmp_path):
    log_run(tmp_path, range(1, 6))
    log_run(tmp_path, range(4, 8), start=3)
    assert [path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()] == []
    events = read(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3, 4, 5, 6, 7]
    assert metadata.SESSION_START_INFO_TAG in events.PluginTagToContent(metadata.PLUGIN_NAME)


def test_an_evaluation_has_the_scores_of_its_matrix_under_the_names_that_are_logged():
    evaluation = Evaluation(30, ("a", "b", "c"), MATRIX, 0.25, [0.5, 1.0])
    assert evaluation.record() == {
        "eval/loss": 0.25,
        "eval/mean_iou": pytest.approx((90 / 105 + 15 / 30) / 2),
        "eval/mean_dice": pytest.approx((180 / 195 + 30 / 45) / 2),
        "eval/pixel_accuracy": pytest.approx(105 / 120),
        "eval/iou/a": pytest.approx(90 / 105),
        "eval/iou/b": pytest.approx(15 / 30),
        "eval/iou/c": None,
        "eval/dice/a": pytest.approx(180 / 195),
        "eval/dice/b": pytest.approx(30 / 45),
        "eval/dice/c": None,
    }
    assert evaluation.mean_iou == evaluation.record()["eval/mean_iou"]
    assert evaluation.scores is evaluation.scores  # computed once
    assert evaluation.summary().startswith("mean IoU 0.6786, mean Dice 0.7949, pixel accuracy 0.8750")
    assert [line.split()[0] for line in evaluation.table().splitlines()] == ["class", "a", "b", "c", "mean"]


def test_an_evaluation_of_nothing_is_worth_nothing():
    evaluation = Evaluation(1, ("a", "b"), torch.zeros(2, 2, dtype=torch.int64), None, [])
    assert evaluation.mean_iou == 0.0
    assert evaluation.record()["eval/mean_iou"] is None and evaluation.record()["eval/loss"] is None


def test_a_folder_that_holds_anything_is_taken_by_a_resumed_run_only(tmp_path, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="is not an empty folder; choose another"):
        make_run_dir(tmp_path, None)
    with pytest.raises(SettingsError, match="is not an empty folder"):
        make_run_dir(tmp_path / "file", "auto")
    with pytest.raises(SettingsError, match="cannot be made: Not a directory"):
        make_run_dir(tmp_path / "file" / "run", None)
    assert make_run_dir(tmp_path, "auto") == tmp_path
    with pytest.raises(CheckpointError, match=r"is no checkpoint; give a step-\.\.\. folder"):
        make_run_dir(None, str(tmp_path))
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    assert make_run_dir(None, str(checkpoint)) == tmp_path


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        make_run_dir(tmp_path / name, None)
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, folders in calls:
        function(folders)
    assert [path.name for path in tmp_path.rglob("*")] == ["begun", "run.json"]


def test_a_folder_that_takes_no_files_is_said_in_one_line(tmp_path):
    accelerator = Accelerator(cpu=True)
    with pytest.raises(WriteError, match=r"cannot be written to: .*No such file or directory"):
        RunLog(accelerator, tmp_path / "gone", "none", SETTINGS, 0)


def test_what_is_written_down_of_a_run_says_how_to_repeat_it():
    run = describe_run()
    assert {"command", "started", "python", "platform", "torch", "accelerate", "git_commit"} <= set(run)
    assert run["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert all(isinstance(value, str) and value for value in run.values())
