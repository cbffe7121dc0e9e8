"""The folder of a run, and what is written down of the run itself.

Modules: train_utils/run_dir.py, train_utils/settings/record.py.
"""

import atexit
import json
import subprocess
from unittest.mock import Mock

import pytest
import torch
from in_process import parsed

from runtime.errors import CheckpointError, SettingsError
from runtime.lock import locks_released
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import FoundCheckpoint
from train_utils.microbatch import MemoryLimit
from train_utils.run_dir import OpenedRun, make_run_dir, open_run
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings, describe_environment
from unet import UNet, UNetConfig
from unet.config import Preprocess


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


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        make_run_dir(tmp_path / name, None)
    make_run_dir(tmp_path / "begun", "auto")  # which was there before
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, folders in calls:
        function(folders)
    assert [path.name for path in tmp_path.rglob("*")] == ["begun", "run.json"]


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
        assert start.limit == (2, True) and not leftover.exists()
        with pytest.raises(SettingsError, match="is in use by process"):
            open_run(args)


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
