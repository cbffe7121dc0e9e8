"""The checkpoint that a run resumes from: found by its name, and read from its state.json.

Modules: train_utils/checkpoints/find.py, train_utils/checkpoints/checkpoint_state.py.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
from runs import SMALL_MODEL

from runtime.errors import CheckpointError
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import checkpoint_folder, find_checkpoint, fingerprint, newest_first, peek
from train_utils.run_state import RunState
from train_utils.settings.record import RunIdentity, RunSettings


def test_a_checkpoint_is_named_by_its_step_in_eight_digits(tmp_path):
    assert checkpoint_folder(tmp_path, 42) == tmp_path / "step-00000042"


def test_checkpoints_are_ordered_by_their_names(tmp_path):
    names = ("step-00000009", "step-00000010", "set-aside-step-00000011", "step-00000002")
    for time, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time, time))  # a copy of a folder may have any
    assert [path.name[-2:] for path in newest_first(tmp_path)] == ["10", "09", "02"]


def test_a_folder_that_is_missing_holds_no_checkpoints(tmp_path):
    assert newest_first(tmp_path / "none") == []


def test_the_fingerprint_of_a_file_is_its_size_with_its_checksum(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert fingerprint(tmp_path / "file") == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}


def test_a_folder_without_a_state_is_peeked_into_in_vain(tmp_path):
    assert peek(tmp_path) == {}


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_without_checkpoints_begins_anew(tmp_path, resume):
    checkpoint = find_checkpoint(resume, tmp_path)
    assert checkpoint == (None, None, [])
    assert checkpoint.run_state() == RunState()
    assert checkpoint.model_config() is None


def test_a_checkpoint_that_is_named_must_be_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"step-00000004: manifest\.json is missing"):
        find_checkpoint(str(tmp_path / "step-00000004"), tmp_path)


@pytest.fixture
def incomplete(tmp_path) -> list[Path]:
    """Two checkpoints without files, the newest first."""
    folders = [tmp_path / "step-00000006", tmp_path / "step-00000004"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_checkpoints_that_are_all_incomplete_are_refused_with_each_reason(tmp_path, incomplete):
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("auto", tmp_path)
    reasons = [f"{folder}: manifest.json is missing" for folder in incomplete]
    assert str(caught.value) == f"no checkpoint to resume from: {'; '.join(reasons)}"


def test_a_checkpoint_whose_manifest_cannot_be_opened_is_refused_with_the_reason(tmp_path, incomplete):
    (incomplete[0] / "manifest.json").mkdir()
    with pytest.raises(CheckpointError, match=r"step-00000006: cannot be read \(.*Is a directory"):
        find_checkpoint(str(incomplete[0]), tmp_path)


def test_incomplete_checkpoints_do_not_hinder_a_new_run(tmp_path, incomplete):
    assert find_checkpoint(None, tmp_path) == (None, None, [])


STATE = CheckpointState(
    RunSettings(flags={"epochs": 3}, identity=RunIdentity({"seed": 0}), total_steps=9),
    SMALL_MODEL,
    RunState(step=4),
    0.5,
    {"scale": 2.0},
)


@pytest.fixture
def content() -> dict:
    """The content of the state.json that holds STATE."""
    return json.loads(json.dumps(STATE.to_json()))


def test_the_entries_of_a_state_are_those_of_model_run_and_settings(content):
    assert {"model", "run", "score", "scaler", "flags", "identity", "total_steps"} <= content.keys()


def test_a_state_survives_its_file(content):
    state = CheckpointState.from_json(content)
    assert state.config == SMALL_MODEL
    assert state.run_state == RunState(step=4)
    assert state.score == 0.5
    assert state.scaler == {"scale": 2.0}
    assert state.settings.total_steps == 9
    assert state.settings.identity.entries["seed"] == 0
    assert state.settings.environment == {}  # which a checkpoint does not hold


def test_a_state_without_some_entries_is_refused_by_their_names(content):
    del content["flags"], content["run"]
    with pytest.raises(ValueError, match="lacks flags, run"):
        CheckpointState.from_json(content)


@pytest.mark.parametrize("name", ["score", "scaler"])
def test_a_state_may_lack_the_score_or_the_scaler(content, name):
    del content[name]
    assert getattr(CheckpointState.from_json(content), name) is None


@pytest.mark.parametrize("name", ["model", "run", "flags", "identity"])
def test_an_entry_of_a_state_that_is_no_object_is_refused(content, name):
    with pytest.raises(ValueError, match=f"^its {name} is no object$"):
        CheckpointState.from_json(content | {name: []})


def test_unknown_entries_of_a_state_are_refused_in_order(content):
    with pytest.raises(ValueError, match="holds arms, wings, "):
        CheckpointState.from_json(content | {"wings": 2, "arms": 2})
