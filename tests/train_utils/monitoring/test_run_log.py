"""metrics.jsonl, TensorBoard's one run with its settings, and trackers that fail, which costs no run.

Modules: train_utils/monitoring/run_log.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import Accelerator
from support.run_files import records
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from runtime.errors import SettingsError, WriteError
from train_utils.monitoring.run_log import RunLog, available_tracker
from train_utils.settings.record import RunSettings

SETTINGS = RunSettings(
    flags={"learning_rate": 0.01, "loss": "ce", "crop_size": [32, 32], "cache": False, "depth": None}, total_steps=40
)


def log_run(folder: Path, steps: range, start: int = 0) -> None:
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(folder))
    log = RunLog(accelerator, folder, "tensorboard", SETTINGS, start)
    for step in steps:
        log.scalars(step, step / 10, {"eval/mean_iou": step / 10, "eval/loss": 1 / step})
    log.write_pictures(steps[-1], {"pictures/a\x1bb": np.zeros((2, 4, 3), np.uint8)})
    log.finish()


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> Path:
    """The output folder of a run of three steps."""
    folder = tmp_path_factory.mktemp("logged")
    log_run(folder, range(1, 4))
    return folder


@pytest.fixture(scope="module")
def events(logged) -> EventAccumulator:
    """What TensorBoard shows of the run of three steps."""
    return read(logged / "tensorboard")


def test_tensorboard_has_one_run(logged, events):
    files = [path for path in logged.rglob("*") if path.is_file() and "tensorboard" in path.parts]
    assert {path.parent for path in files} == {logged / "tensorboard"}
    assert all(path.name.startswith("events.out.tfevents") for path in files)
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3]
    (picture,) = events.Images("pictures/a\\x1bb")
    assert (picture.height, picture.width) == (2, 4)


def test_tensorboard_has_the_settings_as_a_text(events):
    (settings,) = events.Tensors("settings/text_summary")
    text = settings.tensor_proto.string_val[0].decode()
    assert json.loads(text.strip("`\n")) == SETTINGS.to_json()


def test_a_resumed_run_stays_one_run_without_repeated_steps(tmp_path, monkeypatch):
    # files of one second are sorted by this number, as text: a run of its own counts from 0
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    log_run(tmp_path, range(1, 6))
    log_run(tmp_path, range(4, 8), start=3)
    assert [path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()] == []
    events = read(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3, 4, 5, 6, 7]


def test_a_folder_that_takes_no_files_is_reported_in_one_line(tmp_path):
    with pytest.raises(WriteError, match=r"cannot be written to: .*No such file or directory"):
        RunLog(Accelerator(cpu=True), tmp_path / "gone", "none", SETTINGS, 0)


@pytest.fixture
def no_trackers(monkeypatch) -> None:
    monkeypatch.setattr("train_utils.monitoring.run_log.get_available_trackers", lambda: [])


def test_tracker_that_is_not_installed_is_left_out_with_a_line(capsys, no_trackers):
    assert available_tracker("wandb") == "none"
    assert capsys.readouterr().err.startswith("tracker wandb is not installed; training goes on without it")


def test_tracker_of_an_unknown_name_is_refused_with_the_known_ones(no_trackers):
    with pytest.raises(SettingsError, match=r"--tracker wandy is unknown; expected none or one of .*wandb"):
        available_tracker("wandy")


def test_a_tracker_that_fails_later_is_left_out_and_metrics_jsonl_goes_on(tmp_path, monkeypatch, capsys):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    log = RunLog(accelerator, tmp_path, "tensorboard", RunSettings(), 0)
    log.scalars(1, 0.1, {"train/loss": 1.0})

    def refuse(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(accelerator.get_tracker("tensorboard").writer, "add_scalar", refuse)
    for step in (2, 3, 4):
        log.scalars(step, 0.1, {"train/loss": 1.0})
        log.write_pictures(step, {})
    log.finish()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "No space left on device" in lines[0]
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3, 4]


@pytest.fixture
def main_process() -> SimpleNamespace:
    """The accelerator of a run without a tracker."""
    return SimpleNamespace(is_main_process=True)


def logged_steps(folder: Path) -> list[int]:
    return [record["step"] for record in records(folder)]


def test_log_that_is_gone_begins_again_with_a_line(tmp_path, main_process, capsys):
    RunLog(main_process, tmp_path, "none", SETTINGS, 3)
    assert capsys.readouterr().out == f"{tmp_path / 'metrics.jsonl'} is gone: it begins again behind step 3\n"


def test_log_of_a_resumed_run_ends_at_its_step(tmp_path, main_process, capsys):
    log = RunLog(main_process, tmp_path, "none", SETTINGS, 0)
    log.scalars(3, 1 / 3, {"train/loss": 1.0})
    log.scalars(4, 0.5, {"train/loss": 1.0})
    again = RunLog(main_process, tmp_path, "none", SETTINGS, 3)
    again.scalars(4, 0.5, {"train/loss": 2.0})
    assert logged_steps(tmp_path) == [3, 4]
    assert records(tmp_path)[1]["train/loss"] == 2.0
    assert capsys.readouterr().out == ""


def test_damaged_lines_of_a_resumed_log_are_counted(tmp_path, main_process, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": "2"}\n{"step": 3}\nno json\n{"step": 4}\n[]\n')
    RunLog(main_process, tmp_path, "none", SETTINGS, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    assert capsys.readouterr().out == f"{path}: 3 damaged lines are left out, 2 stay\n"


def test_line_without_an_end_is_left_out_so_that_no_other_is_glued_to_it(tmp_path, main_process):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    RunLog(main_process, tmp_path, "none", SETTINGS, 2).scalars(3, 0.5, {"train/loss": 2.0})
    assert logged_steps(tmp_path) == [1, 3]


def test_line_of_the_log_has_a_short_epoch_with_null_for_no_number(tmp_path, main_process):
    log = RunLog(main_process, tmp_path, "none", SETTINGS, 0)
    numbers = {"train/grad_norm": 0.5, "train/skipped_steps": 0}
    log.scalars(3, 1 / 3, {"train/loss": float("nan"), "eval/iou/a": None, "train/lr": float("inf"), **numbers})
    nothing = dict.fromkeys(("train/loss", "eval/iou/a", "train/lr"))
    assert records(tmp_path) == [{"step": 3, "epoch": 0.3333, **nothing, **numbers}]


def test_lines_that_the_disk_refuses_are_reported_once_and_written_when_it_is_back(tmp_path, main_process, capsys):
    log = RunLog(main_process, tmp_path, "none", SETTINGS, 0)
    (tmp_path / "metrics.jsonl").rename(tmp_path / "away")
    for step in (1, 2):
        log.scalars(step, 0.1, {"train/loss": 1.0})
    assert not log.is_saved()
    assert capsys.readouterr().out.count("could not be written") == 1
    (tmp_path / "away").rename(tmp_path / "metrics.jsonl")
    assert log.is_saved()
    assert logged_steps(tmp_path) == [1, 2]
