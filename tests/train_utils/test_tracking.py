"""metrics.jsonl, TensorBoard's one run with its hyper-parameters, and trackers that fail, which costs no run.

Modules: train_utils/monitoring/tracking.py, train_utils/monitoring/monitor.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import Accelerator
from conftest import records
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.summary.writer import event_file_writer

from runtime.errors import SettingsError, WriteError
from train_utils.monitoring.tracking import RunLog, available_tracker
from train_utils.reporting.classes import ClassSection
from train_utils.settings.record import RunSettings

SETTINGS = RunSettings(
    flags={"learning_rate": 0.01, "loss": "ce", "crop_size": [32, 32], "cache": False}, total_steps=40
)


def log_run(folder: Path, steps: range, start: int = 0) -> None:
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(folder))
    log = RunLog(accelerator, folder, "tensorboard", SETTINGS, ClassSection.compared, start)
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
    assert start["flags.cache"].number_value == 0
    assert start["total_steps"].number_value == 40
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    compared = {info.name.tag for info in experiment.metric_infos}
    assert compared == {"eval/mean_iou", "eval/mean_dice", "eval/loss"}
    assert compared - set(events.Tags()["scalars"]) == {"eval/mean_dice"}  # which this run did not log
    assert metadata.SESSION_END_INFO_TAG in content


def test_a_resumed_run_stays_one_run_without_repeated_steps(tmp_path, monkeypatch):
    # files of one second are sorted by this number, as text: a run of its own counts from 0
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    log_run(tmp_path, range(1, 6))
    log_run(tmp_path, range(4, 8), start=3)
    assert [path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()] == []
    events = read(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3, 4, 5, 6, 7]
    assert metadata.SESSION_START_INFO_TAG in events.PluginTagToContent(metadata.PLUGIN_NAME)


@pytest.mark.parametrize(("name", "reason"), [("gone", "No such file or directory"), ("file", "Not a directory")])
def test_a_folder_that_takes_no_files_is_said_in_one_line(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    accelerator = Accelerator(cpu=True)
    with pytest.raises(WriteError, match=rf"cannot be written to: .*{reason}"):
        RunLog(accelerator, tmp_path / name, "none", SETTINGS, ClassSection.compared, 0)


def test_a_tracker_that_is_not_installed_is_said_and_left_out(capsys, monkeypatch):
    monkeypatch.setattr("train_utils.monitoring.tracking.get_available_trackers", lambda: [])
    assert available_tracker("wandb") == "none"
    assert capsys.readouterr().err.startswith("tracker wandb is not installed; training goes on without it")
    assert available_tracker("none") == "none"
    with pytest.raises(SettingsError, match=r"--tracker wandy is unknown; expected none or one of .*wandb"):
        available_tracker("wandy")


def test_a_tracker_that_fails_later_is_left_out_and_metrics_jsonl_goes_on(tmp_path, monkeypatch, capsys):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    log = RunLog(accelerator, tmp_path, "tensorboard", RunSettings(), ClassSection.compared, 0)
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


@pytest.mark.parametrize(("name", "options"), [("tensorboard", {"dataformats": "NHWC"}), ("wandb", {})])
def test_a_tracker_gets_finite_numbers_with_pictures_by_printable_tags(tmp_path, name, options):
    calls = []
    tracker = SimpleNamespace(log_images=lambda pictures, **given: calls.append((pictures, given)))
    log = RunLog(Accelerator(cpu=True), tmp_path, "none", SETTINGS, (), 0)
    log.tracker = name
    log.accelerator = SimpleNamespace(
        is_main_process=True,
        get_tracker=lambda name: tracker,
        log=lambda values, step: calls.append((values, step)),
    )
    log.scalars(3, 0.5, {"train/loss": 0.0, "eval/iou/a": None})
    picture = np.zeros((2, 4, 3), np.uint8)
    log.write_pictures(5, {"pictures/a\x1bb": picture, "pictures/c": picture[:1]})
    (numbers, step), (pictures, given) = calls
    assert numbers == {"train/loss": 0.0}
    assert step == 3
    assert given == {"step": 5, **options}
    assert pictures["pictures/a\\x1bb"].shape == (1, 2, 4, 3)
    assert pictures["pictures/c"].shape == (1, 1, 4, 3)
    log.accelerator.is_main_process = False
    log.write_pictures(6, {"pictures/a": picture})
    log.scalars(6, 0.5, {"train/loss": 1.0})
    assert len(calls) == 2
    assert not log.takes_pictures()


def test_another_tracker_gets_the_settings_or_fails_at_no_cost(tmp_path, capsys):
    calls = []
    accelerator = SimpleNamespace(is_main_process=True, trackers=["wandb"])
    accelerator.init_trackers = lambda *given: calls.append(given)
    accelerator.get_tracker = lambda name: object()  # one without pictures
    settings = replace(SETTINGS, flags=SETTINGS.flags | {"nested": {"deeper": 1}})
    log = RunLog(accelerator, tmp_path, "wandb", settings, (), 0)
    ((project, settings),) = calls
    assert project == "unet-accelerate"
    assert settings["flags.crop_size"] == "[32, 32]"
    assert settings["total_steps"] == 40
    assert settings["flags.cache"] is False
    assert settings["flags.nested.deeper"] == 1
    assert not log.takes_pictures()

    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("first\nsecond " + "x" * 300)

    accelerator.log = fail
    log.scalars(8, 0.5, {"train/loss": 1.0})
    assert log.tracker == "none"
    assert accelerator.trackers == []
    line = capsys.readouterr().out
    assert line.startswith("tracker wandb failed (RuntimeError: first second xxx")
    assert 200 < len(line) < 400
    assert line.endswith("training goes on without it, metrics.jsonl has the same numbers\n")
    accelerator.get_tracker = lambda name: SimpleNamespace(log_images=fail)
    log.tracker = "wandb"
    log.write_pictures(8, {"a": np.zeros((2, 4, 3), np.uint8)})
    accelerator.init_trackers = fail
    assert RunLog(accelerator, tmp_path, "wandb", SETTINGS, (), 8).tracker == "none"
    assert capsys.readouterr().out.count("tracker wandb failed (RuntimeError: first second") == 2
    assert [record["step"] for record in records(tmp_path)] == [8]


@pytest.mark.parametrize(("start", "options"), [(0, {}), (5, {"purge_step": 6})])
def test_a_resumed_run_drops_what_tensorboard_has_after_its_step(tmp_path, monkeypatch, start, options):
    calls = []
    writer = SimpleNamespace(file_writer=SimpleNamespace(add_summary=lambda summary: calls.append("summary")))
    writer.flush = lambda: calls.append("flush")
    accelerator = SimpleNamespace(is_main_process=True, get_tracker=lambda name, unwrap: writer)
    accelerator.init_trackers = lambda *given, **arguments: calls.append((given, arguments))
    RunLog(accelerator, tmp_path, "tensorboard", SETTINGS, (), start)
    begun = (("tensorboard",), {"init_kwargs": {"tensorboard": options}})
    assert calls == [begun, "summary", "summary", "flush"]
    accelerator.is_main_process = False
    RunLog(accelerator, tmp_path / "gone", "tensorboard", SETTINGS, (), start)
    assert calls[4:] == [begun]


def test_records_that_do_not_belong_into_a_resumed_log_are_counted(tmp_path, capsys):
    accelerator = SimpleNamespace(is_main_process=True)
    path = tmp_path / "metrics.jsonl"
    RunLog(accelerator, tmp_path, "none", SETTINGS, (), 0)
    assert capsys.readouterr().out == ""
    assert path.read_bytes() == b""
    path.unlink()
    RunLog(accelerator, tmp_path, "none", SETTINGS, (), 3)
    assert capsys.readouterr().out == f"{path} is gone: it begins again behind step 3\n"
    path.write_text('{"step": 1}\n{"step": "2"}\n{"step": 3}\nno json\n{"step": 4}\n[]\n')
    RunLog(accelerator, tmp_path, "none", SETTINGS, (), 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    assert capsys.readouterr().out == f"{path}: 3 damaged lines are left out, 2 stay\n"


def test_only_the_first_process_says_that_a_tracker_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("train_utils.monitoring.tracking.get_available_trackers", lambda: [])
    monkeypatch.setattr("train_utils.monitoring.tracking.is_first_process", lambda: False)
    assert available_tracker("wandb") == "none"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_tracker_is_finished_once(tmp_path, capsys, fails):
    calls = []

    def finish() -> None:
        calls.append("finish")
        if fails:
            raise OSError("gone")

    log = RunLog(Accelerator(cpu=True), tmp_path, "none", SETTINGS, (), 0)
    log.tracker = "wandb"
    accelerator = SimpleNamespace(trackers=[SimpleNamespace(finish=finish)])
    accelerator.end_training = lambda: calls.extend(["end", *(tracker.finish() for tracker in accelerator.trackers)])
    log.accelerator = accelerator
    log.finish()
    assert calls == ["finish", "end"]
    assert ("tracker wandb failed (OSError: gone)" in capsys.readouterr().out) is fails


class Disk:
    """A file of a disk that takes a part of what is written, once."""

    def __init__(self, path: Path, room: int) -> None:
        self.path = path
        self.room = room

    def open(self, mode: str, buffering: int):
        file = self.path.open(mode, buffering=buffering)
        write = file.write
        disk = self

        class Limited:
            def __enter__(self):
                return self

            def __exit__(self, *error) -> None:
                file.close()

            seek, truncate = file.seek, file.truncate

            def write(self, content: bytes) -> int:
                written = write(content[: disk.room])
                disk.room = 10**6
                return written

        return Limited()

    def __str__(self) -> str:
        return "metrics.jsonl"


def test_a_line_that_was_written_in_part_is_cut_off_and_written_with_the_next_one(tmp_path, capsys):
    log = RunLog(SimpleNamespace(is_main_process=True), tmp_path, "none", SETTINGS, (), 0)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"first\n")
    log.path = Disk(path, room=3)
    log.scalars(2, 0, {})
    assert path.read_bytes() == b"first\n"
    log.path.room = 2
    assert not log.is_saved()
    assert path.read_bytes() == b"first\n"
    log.scalars(3, 0, {})
    assert path.read_bytes() == b'first\n{"step": 2, "epoch": 0}\n{"step": 3, "epoch": 0}\n'
    assert log.is_saved()
    assert capsys.readouterr().out.count("metrics.jsonl could not be written") == 1
