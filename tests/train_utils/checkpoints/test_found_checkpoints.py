"""The checkpoint that a run resumes from: found by its name, and read from its state.json.

Modules: train_utils/checkpoints/find.py, train_utils/checkpoints/checkpoint_state.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs import SMALL_MODEL
from support.saved_checkpoints import TASK, evaluation, first_checkpoints, save_all

from runtime.errors import CheckpointError
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import (
    FoundCheckpoint,
    find_checkpoint,
)
from train_utils.checkpoints.save import Checkpoints
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings


@pytest.mark.parametrize("resume", ["auto"])
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


@pytest.fixture
def checkpoints(tmp_path) -> Iterator[Checkpoints]:
    """The checkpoints of a new run."""
    with first_checkpoints(tmp_path) as checkpoints:
        yield checkpoints


def best_after_going_back(checkpoints: Checkpoints) -> float:
    """The best score that a run remembers which goes back to step 2."""
    return find_checkpoint(str(checkpoints.folder / "step-00000002"), checkpoints.folder).run_state().best


@pytest.mark.parametrize(("best_steps", "best"), [([2, 2], 0.6), ([2, 3], -1), ([2, 2, 4], -1)])
def test_a_run_that_goes_back_forgets_only_a_best_model_of_later_steps(checkpoints, best_steps, best):
    checkpoints.keep = 3
    for step, best_step in enumerate(best_steps, 2):
        checkpoints.save(RunState(step=step, best=0.6, best_step=best_step), None)
        checkpoints.wait()
    assert best_after_going_back(checkpoints) == best


@pytest.fixture
def newer_model(checkpoints) -> Path:
    """The file with the weights of the newer one of two checkpoints, each of which is the best so far."""
    for step in (1, 2):
        checkpoints.save(RunState(step=step, best=0.5, best_step=step, evaluations_since_best=1), None)
        checkpoints.wait()
    return checkpoints.folder / "step-00000002" / "model.safetensors"


@pytest.mark.parametrize(
    "damaged",
    [lambda content: content[:-1], lambda content: content[:-1] + b"\xff"],
    ids=["shorter", "other bytes"],
)
def test_a_damaged_checkpoint_is_passed_over(checkpoints, newer_model, damaged):
    content = newer_model.read_bytes()
    newer_model.write_bytes(damaged(content))
    assert newer_model.read_bytes() != content
    reason = "model.safetensors is damaged: its size or checksum differs from the manifest"
    assert find_checkpoint("auto", checkpoints.folder).passed_over == [f"{newer_model.parent}: {reason}"]


@pytest.mark.parametrize(
    "changed",
    [
        lambda manifest: manifest | {"../../other": manifest["state.json"]},
        lambda manifest: {name: manifest[name] for name in manifest if name != "model.safetensors"},
    ],
    ids=["another file", "no model"],
)
def test_a_manifest_that_lists_other_files_is_damaged(checkpoints, changed):
    save_all(checkpoints, (1, None), (2, None))
    file = checkpoints.folder / "step-00000002" / "manifest.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    (reason,) = checkpoint.passed_over
    assert checkpoint.run_state().step == 1
    assert reason == f"{file.parent}: manifest.json is damaged: it lists other files than a checkpoint has"


@pytest.mark.parametrize("content", ['{"run": []}', '{"run": {"best_step": "9"}}', "no json"])
def test_a_newer_checkpoint_that_holds_no_run_is_no_hindrance_to_an_older_one(checkpoints, content):
    save_all(checkpoints, (1, 0.6), (2, 0.2))
    (checkpoints.folder / "step-00000002" / "state.json").write_text(content)
    assert find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder).run_state().step == 1


@pytest.fixture
def saved(checkpoints) -> tuple[RunState, FoundCheckpoint]:
    """The state of a run that was best at its first of three evaluations, and its checkpoint."""
    state = RunState(step=4, skipped=1, window={"total": 0.5, "steps": 2})
    for step, mean_iou in ((4, 0.6), (5, 0.6), (6, 0.5)):
        state.update(evaluation(step, mean_iou))
    checkpoints.save(state, evaluation(4, 0.6))
    checkpoints.wait()
    return state, find_checkpoint("auto", checkpoints.folder)


def test_a_checkpoint_holds_the_state_of_its_run(saved):
    state, checkpoint = saved
    assert state.evaluations_since_best == 2
    assert state.best_step == 4
    assert checkpoint.run_state() == state


def test_a_checkpoint_holds_the_best_evaluation_with_its_images(saved):
    best = saved[1].run_state().best_evaluation(TASK)
    assert best.step == 4
    assert best.scores.names == TASK.names
    assert best.scores.sums.tolist() == evaluation(4, 0.6).scores.sums.tolist()
    assert best.scores.image_comparison == evaluation(4, 0.6).scores.image_comparison


STATE = CheckpointState(
    RunSettings(flags={"epochs": 3}, identity={"seed": 0}, total_steps=9),
    SMALL_MODEL,
    RunState(step=4),
    0.5,
    {"scale": 2.0},
)


@pytest.fixture
def content() -> dict:
    """The content of the state.json that holds STATE."""
    return json.loads(json.dumps(STATE.to_json()))


def test_a_state_survives_its_file(content):
    state = CheckpointState.from_json(content)
    assert state.config == SMALL_MODEL
    assert state.run_state == RunState(step=4)
    assert state.score == 0.5
    assert state.scaler == {"scale": 2.0}
    assert state.settings.total_steps == 9
    assert state.settings.identity["seed"] == 0
    assert state.settings.environment == {}  # which a checkpoint does not hold


def test_a_state_without_some_entries_is_refused_by_their_names(content):
    del content["flags"], content["run"]
    with pytest.raises(ValueError, match="lacks flags, run"):
        CheckpointState.from_json(content)


@pytest.mark.parametrize("name", ["model", "flags"])
def test_an_entry_of_a_state_that_is_no_object_is_refused(content, name):
    with pytest.raises(ValueError, match=f"^its {name} is no object$"):
        CheckpointState.from_json(content | {name: []})
