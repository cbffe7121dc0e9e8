"""The folder of a run, and what is written down of the run itself.

Modules: train_utils/settings/record.py.
"""

import atexit

import pytest
import torch

from runtime.errors import CheckpointError, SettingsError
from train_utils.run_dir import make_run_dir
from train_utils.settings.record import describe_run


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


def test_only_what_is_still_empty_at_the_end_is_removed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    for name in ("failed", "begun"):
        make_run_dir(tmp_path / name, None)
    (tmp_path / "begun" / "run.json").write_text("{}")
    for function, folders in calls:
        function(folders)
    assert [path.name for path in tmp_path.rglob("*")] == ["begun", "run.json"]


def test_what_is_written_down_of_a_run_says_how_to_repeat_it():
    run = describe_run()
    assert {"command", "started", "python", "platform", "torch", "accelerate", "git_commit"} <= set(run)
    assert run["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert all(isinstance(value, str) and value for value in run.values())
