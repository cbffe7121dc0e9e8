"""The folder of a run, and what is written down of the run itself.

Modules: train_utils/run_dir.py, train_utils/settings/record.py.
"""

import atexit
import json
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from in_process import parsed

from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from runtime.errors import CheckpointError, SettingsError
from runtime.lock import locks_released
from train_utils import run_dir
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import FoundCheckpoint
from train_utils.memory.limit import MemoryLimit
from train_utils.run_dir import OpenedRun, make_run_dir, open_run
from train_utils.run_state import RunState
from train_utils.settings.plan import Plan
from train_utils.settings.record import RunSettings, describe_environment
from unet import UNet, UNetConfig
from unet.config import Preprocess

MODEL = UNetConfig(base_channels=2, depth=1)


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
    with pytest.raises(CheckpointError, match=r"is not a checkpoint; give a step-\.\.\. folder"):
        make_run_dir(None, str(tmp_path))
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    assert make_run_dir(None, str(checkpoint)) == tmp_path
    assert make_run_dir(tmp_path / "other", str(checkpoint)) == tmp_path / "other"
    monkeypatch.chdir(checkpoint)
    assert make_run_dir(None, ".") == tmp_path


def test_a_run_without_a_folder_has_one_that_is_named_by_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    folder = make_run_dir(None, None)
    assert folder.parent == Path("runs")
    assert (tmp_path / folder / "checkpoints").is_dir()
    assert abs(datetime.now() - datetime.strptime(folder.name, "%Y-%m-%d-%H%M%S")) < timedelta(minutes=1)


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        make_run_dir(tmp_path / name, None)
    make_run_dir(tmp_path / "begun", "auto")  # which was there before
    (tmp_path / "made").mkdir()  # by the user
    make_run_dir(tmp_path / "made", None)
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, folders in calls:
        function(folders)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["begun", "made", "run.json"]


def test_what_is_written_down_of_a_run_says_how_to_repeat_it():
    run = describe_environment()
    assert {"command", "started", "python", "platform", "torch", "accelerate", "git_commit"} <= set(run)
    assert run["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert all(isinstance(value, str) and value for value in run.values())


@pytest.mark.parametrize(
    ("answer", "commit"),
    [("abc1234-dirty\n", "abc1234-dirty"), ("", "unknown"), (FileNotFoundError("git"), "unknown")],
)
def test_the_commit_of_a_run_is_unknown_without_git_or_its_folder(monkeypatch, answer, commit):
    monkeypatch.setattr(
        subprocess, "run", Mock(side_effect=[answer if isinstance(answer, OSError) else Mock(stdout=answer)])
    )
    assert describe_environment()["git_commit"] == commit


def test_a_run_that_is_opened_is_locked_swept_and_remembers_what_fits(tmp_path):
    leftover = tmp_path / ".run.json.0123abcd.tmp"
    leftover.write_text("half")
    (tmp_path / "memory.json").write_text('{"micro_batch_size": 2, "activation_checkpointing": true}')
    args = parsed("--output-dir", str(tmp_path), "--resume", "auto", "--init-from", "m")
    with locks_released():
        start = open_run(args)
        assert (start.output_dir, start.init_from, start.finished_line) == (tmp_path, "m", None)
        assert start.memory_limit == (2, True)
        assert not leftover.exists()
        with pytest.raises(SettingsError, match="is in use by process"):
            open_run(args)


@pytest.mark.parametrize("resume", ["auto", "step-00000004", None])
def test_only_a_run_that_goes_on_by_itself_is_found_finished(tmp_path, monkeypatch, resume):
    calls = []
    state = CheckpointState(
        RunSettings(flags={"dataset": "url"}, credentials_left_out=["dataset"]), MODEL, RunState(), None, None
    )
    found = FoundCheckpoint(tmp_path, state, [])

    def find(resume: str | None, folder: Path) -> FoundCheckpoint:
        calls.append((resume, folder))
        return FoundCheckpoint(None, None, []) if resume is None else found

    monkeypatch.setattr(run_dir, "make_run_dir", lambda path, resume: path)
    monkeypatch.setattr(run_dir, "finished_line", lambda folder, args: f"{folder}: it has finished")
    monkeypatch.setattr(run_dir, "find_checkpoint", find)
    monkeypatch.setattr(run_dir, "say_credentials", lambda args, *recorded: calls.append(recorded))
    args = replace(parsed("--dataset", "data"), output_dir=tmp_path, resume=resume)
    with locks_released():
        start = open_run(args)
    has_finished = resume == "auto"
    assert start.finished_line == (f"{tmp_path}: it has finished" if has_finished else None)
    searched = (None if has_finished else resume, tmp_path / "checkpoints")
    credentials = [({"dataset": "url"}, ["dataset"])] if resume == "step-00000004" else []
    assert calls == [searched, *credentials]


def test_a_run_that_goes_on_needs_neither_its_first_model_nor_a_new_plan(tmp_path, capsys):
    info = SimpleNamespace(config=DataConfig(task="classes"), train=SimpleNamespace(records=ListRecords([])))
    flags = {name: None for name in Plan.names()} | {"batch_size": 7}
    state = CheckpointState(RunSettings(flags=flags), MODEL, RunState(), None, None)
    start = OpenedRun(tmp_path, FoundCheckpoint(None, state, []), MemoryLimit(), "gone")
    assert start.initial_model is None
    settings = start.with_plan(parsed("--dataset", "data"), info)
    assert (settings.task, settings.batch_size) == ("classes", 7)
    assert capsys.readouterr().out == ""
    with pytest.raises(SettingsError, match="--crop-size 4 4 4: data holds images"):
        start.with_plan(parsed("--dataset", "data", "--crop-size", "4", "4", "4"), info)


def test_a_run_that_goes_on_without_its_encoder_has_none_of_its_flags(tmp_path):
    info = SimpleNamespace(config=DataConfig(task="classes"), train=SimpleNamespace(records=ListRecords([])))
    flags = {name: None for name in Plan.names()} | {"encoder_weights": "pretrained", "freeze_encoder": True}
    state = CheckpointState(RunSettings(flags=flags), MODEL, RunState(), None, None)
    start = OpenedRun(tmp_path, FoundCheckpoint(None, state, []), MemoryLimit())
    settings = start.with_plan(parsed("--dataset", "data", "--encoder", "none"), info)
    assert (settings.encoder_weights, settings.freeze_encoder) == (None, None)
    settings = start.with_plan(parsed("--dataset", "data"), info)
    assert (settings.encoder_weights, settings.freeze_encoder) == ("pretrained", True)


def test_a_new_run_loads_its_first_model_once(tmp_path):
    UNet(MODEL).save_pretrained(tmp_path / "model")
    start = OpenedRun(tmp_path, FoundCheckpoint(None, None, []), MemoryLimit(), str(tmp_path / "model"))
    assert start.initial_model.config == MODEL
    assert start.initial_model is start.initial_model
    assert OpenedRun(tmp_path, FoundCheckpoint(None, None, []), MemoryLimit()).initial_model is None


def test_tiffs_are_read_as_the_run_or_the_model_before_read_them(tmp_path):
    """One of a version before does not say that it reads places: it reads pictures."""

    def reads_places(config: UNetConfig | None, *flags: str) -> bool:
        state = None if config is None else CheckpointState(RunSettings(), config, RunState(), None, None)
        args = parsed("--dataset", "data", *flags)
        start = OpenedRun(tmp_path, FoundCheckpoint(None, state, []), MemoryLimit(), args.init_from)
        return start.reads_places(args)

    old = UNetConfig(base_channels=2, depth=1)
    new = UNetConfig(base_channels=2, depth=1, preprocess=Preprocess(place=True))
    assert (reads_places(None), reads_places(new), reads_places(old)) == (True, True, False)
    assert (reads_places(None, "--no-place"), reads_places(old, "--place")) == (False, True)
    for flags in (("--val-blocks",), ("--bands", "1"), ("--label-column", "kind")):  # which ask for places
        assert reads_places(old, *flags)
    for config, expected in ((old, False), (new, True)):
        UNet(config).save_pretrained(tmp_path / "model")
        assert reads_places(None, "--init-from", str(tmp_path / "model")) == expected
    for flags, expected in (({"epochs": 3}, False), ({"epochs": 3, "place": True}, True)):
        (tmp_path / "run.json").write_text(json.dumps({"flags": {"dataset": "data", **flags}}))
        assert parsed("--like", str(tmp_path / "run.json")).place is expected
