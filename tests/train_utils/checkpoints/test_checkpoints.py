"""Checkpoints in the order of what is written: nothing older goes before the new one is whole and on disk.

Module: train_utils/checkpoints/save.py.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file
from support.in_process import Run, run_train
from support.launches import TINY
from support.run_equality import different_tensors
from support.saved_checkpoints import SETTINGS, evaluation, first_checkpoints, new_checkpoints, save_all, steps

import train
from runtime.errors import CheckpointError
from train_utils.checkpoints import save
from train_utils.checkpoints.find import FoundCheckpoint, find_checkpoint, fingerprint, peek
from train_utils.checkpoints.save import Checkpoints
from train_utils.evaluation import Evaluation
from train_utils.run_state import RunState
from train_utils.sharding import whole_copies
from unet import UNet


@pytest.fixture
def checkpoints(tmp_path) -> Iterator[Checkpoints]:
    """The checkpoints of a new run."""
    with first_checkpoints(tmp_path) as checkpoints:
        yield checkpoints


def test_the_newest_checkpoints_are_kept_beside_the_best(checkpoints):
    save_all(checkpoints, (1, 0.2), (2, 0.6), (3, None), (4, 0.4), (5, 0.5), (6, 0.1))
    assert steps(checkpoints) == [2, 5, 6]


SCORES = {2: 0.6, 4: 0.3, 6: 0.1, 8: 0.5}  # of the evaluation after each of these steps


@pytest.fixture
def run(tiny_folder, tmp_path, monkeypatch) -> Callable[..., Run]:
    """A function that makes a run whose evaluations have SCORES, and which keeps one checkpoint beside the best."""
    evaluate = train.evaluate

    def evaluate_as(*arguments: object) -> Evaluation:
        result = evaluate(*arguments)
        result.scores.sums = evaluation(result.step, SCORES[result.step]).scores.sums
        return result

    monkeypatch.setattr(train, "evaluate", evaluate_as)
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--eval-every", "2", "--checkpoint-every", "3"]
    return partial(run_train, tmp_path / "run", *flags, "--keep-checkpoints", "1")


def test_the_checkpoint_of_the_best_model_outlasts_a_resumed_run(run):
    best = run("--max-steps", "6").model
    resumed = run("--max-steps", "8", "--resume", "auto")
    state = find_checkpoint("auto", resumed.folder / "checkpoints").run_state()
    assert resumed.checkpoints() == [2, 8], resumed.output
    assert state.best == 0.6
    assert state.best_step == 2
    assert different_tensors(resumed.model, best) == []


def test_a_run_that_goes_back_keeps_the_best_of_what_it_goes_on_from(checkpoints):
    save_all(checkpoints, (1, 0.6), (2, 0.2), (3, 0.9))
    more = new_checkpoints(checkpoints.folder.parent, checkpoints.network)
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000002"), checkpoints.folder)
    more.resume(checkpoint, checkpoint.run_state())
    assert steps(more) == [2]  # 1 was pruned, 3 is set aside
    save_all(more, (3, 0.3), (4, 0.1), (5, 0.1), (6, 0.1))
    assert steps(more) == [3, 5, 6]


def test_a_checkpoint_of_score_0_is_better_than_those_without_evaluation(checkpoints):
    save_all(checkpoints, (1, 0.0), (2, None), (3, None), (4, None), (5, None))
    assert steps(checkpoints) == [1, 4, 5]


def test_a_run_that_goes_on_with_its_best_model_remembers_how_good_it_was(checkpoints):
    save_all(checkpoints, (1, 0.6))
    run = RunState(step=1, best=0.6, best_step=1, evaluations_since_best=3)
    checkpoints.best_model.folder.mkdir()
    checkpoints.resume(find_checkpoint("auto", checkpoints.folder), run)
    assert run.best == 0.6
    assert run.evaluations_since_best == 3


def test_a_run_that_goes_on_without_its_best_model_forgets_how_good_it_was(checkpoints):
    save_all(checkpoints, (1, 0.6))
    run = RunState(step=1, best=0.6, best_step=1, evaluations_since_best=3)
    checkpoints.resume(find_checkpoint("auto", checkpoints.folder), run)
    assert run.best == -1.0
    assert run.evaluations_since_best == 0


def refuse_model(network: UNet, folder: Path) -> None:
    """Stand in for `save_pretrained` on a disk that is full."""
    (folder / "config.json").write_text("half")
    raise OSError(28, "No space left on device")


def test_a_best_model_that_is_refused_leaves_the_one_before(checkpoints, monkeypatch):
    model = checkpoints.best_model
    assert model.save(checkpoints.network, "first")
    before = {path.name: path.read_bytes() for path in model.folder.iterdir()}
    monkeypatch.setattr(UNet, "save_pretrained", refuse_model)
    assert not model.save(checkpoints.network, "second")
    assert {path.name: path.read_bytes() for path in model.folder.iterdir()} == before


def test_the_score_of_a_best_model_is_saved_when_the_disk_has_taken_the_model(checkpoints, monkeypatch):
    run = RunState(step=1, best=0.6, best_step=1)
    with monkeypatch.context() as patch:
        patch.setattr(UNet, "save_pretrained", refuse_model)
        checkpoints.best_model.save(checkpoints.network, "card")
        checkpoints.save(run, evaluation(1, 0.6))
        checkpoints.wait()
    assert find_checkpoint("auto", checkpoints.folder).run_state().best == -1
    assert run.best == 0.6
    checkpoints.save(RunState(step=2, best=0.6, best_step=1), None)  # the disk takes it now
    checkpoints.wait()
    assert find_checkpoint("auto", checkpoints.folder).run_state().best == 0.6
    assert (checkpoints.best_model.folder / "README.md").read_text() == "card"


def test_the_first_of_equal_scores_is_kept_whose_model_is_the_best(checkpoints):
    save_all(checkpoints, (1, 0.2), (2, 0.6), (3, 0.6), (4, 0.1), (5, 0.1), (6, 0.1))
    assert steps(checkpoints) == [2, 5, 6]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(SafetensorError("Error while serializing"), "Error while serializing")],
    ids=["of safetensors"],
)
def test_a_checkpoint_that_cannot_be_written_costs_no_older_one(checkpoints, monkeypatch, capsys, error, reason):
    save_all(checkpoints, (1, None), (2, None))

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(save, "save_file", refuse)
    checkpoints.save(RunState(step=3), None)
    assert not checkpoints.wait()
    assert not checkpoints.wait_until_saved()
    line = f"checkpoint step-00000003 could not be written ({reason}); training goes on without it\n"
    assert capsys.readouterr().out == line
    assert steps(checkpoints) == [1, 2]
    assert not [*checkpoints.folder.glob(".*")]
    assert find_checkpoint("auto", checkpoints.folder).run_state().step == 2


def test_a_checkpoint_that_is_written_late_holds_the_run_as_it_stood(checkpoints, monkeypatch):
    goes_on = threading.Event()
    write = save.save_file
    found_before = []

    def write_late(tensors: dict, file: Path) -> None:
        goes_on.wait(10)
        write(tensors, file)

    def copy(accelerator: Accelerator, tensors: dict) -> dict:
        found_before.append(steps(checkpoints))
        return whole_copies(accelerator, tensors)

    monkeypatch.setattr(save, "save_file", write_late)
    monkeypatch.setattr(save, "whole_copies", copy)
    weight = next(checkpoints.network.parameters())
    before = weight.detach().clone()
    run = RunState(step=1, best=0.5, best_step=1)
    checkpoints.save(run, None)
    run.step, run.best = 2, 0.9
    with torch.no_grad():
        weight.add_(1)
    threading.Timer(0.02, goes_on.set).start()
    checkpoints.save(run, None)
    assert checkpoints.wait()
    assert found_before == [[], [1]]
    first = checkpoints.folder / "step-00000001"
    assert peek(first)["run"] == asdict(RunState(step=1, best=0.5, best_step=1))
    assert any(value.equal(before) for value in load_file(first / "model.safetensors").values())


@pytest.fixture
def scaled(checkpoints) -> tuple[FoundCheckpoint, list[dict]]:
    """A checkpoint of a run with a scaler, and what its scaler loads from then on."""
    loaded = []
    checkpoints.accelerator.scaler = SimpleNamespace(state_dict=lambda: {"scale": 4.0}, load_state_dict=loaded.append)
    save_all(checkpoints, (1, None))
    return find_checkpoint("auto", checkpoints.folder), loaded


def test_the_scaler_goes_on_from_the_checkpoint(checkpoints, scaled):
    checkpoint, loaded = scaled
    checkpoints.restore(checkpoint.path, checkpoint.state)
    assert loaded == [{"scale": 4.0}]


@pytest.mark.parametrize(
    ("name", "content"),
    [("model", b"weights"), ("model", b"\x08\0\0\0\0\0\0\0{}      "), ("optimizer", b""), ("optimizer", b"weights")],
    ids=["model", "model without weights", "empty optimizer", "optimizer"],
)
def test_a_damaged_file_of_a_forged_manifest_is_a_one_line_error(checkpoints, name, content):
    save_all(checkpoints, (1, None))
    folder = checkpoints.folder / "step-00000001"
    file = folder / f"{name}.safetensors"
    file.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[file.name] = fingerprint(file)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    with pytest.raises(CheckpointError, match=rf"^{folder}: is damaged \("):
        checkpoints.restore(checkpoint.path, checkpoint.state)


@pytest.fixture
def going_on(checkpoints, capsys) -> list[str]:
    """The lines of a run of 12 steps that goes on from step 1 of 9, behind which stands a damaged checkpoint."""
    save_all(checkpoints, (1, None), (2, None))
    (checkpoints.folder / "step-00000002" / "manifest.json").unlink()
    aside = checkpoints.folder / "set-aside-step-00000002"  # of an earlier time
    aside.mkdir()
    (aside / "old").write_text("")
    (checkpoints.folder.parent / "finished.json").write_text("{}")
    more = new_checkpoints(checkpoints.folder.parent, checkpoints.network)
    more.settings = replace(SETTINGS, total_steps=12)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    more.resume(checkpoint, checkpoint.run_state())
    return capsys.readouterr().out.splitlines()


def test_a_run_that_goes_on_says_from_where_and_has_not_finished(checkpoints, going_on):
    newer = checkpoints.folder / "step-00000002"
    damaged, longer, newer_line, resumed = going_on
    assert damaged == f"{newer}: manifest.json is missing"
    assert longer.startswith("the run is now 12 steps long instead of 9: ")
    assert newer_line.startswith(f"{newer} is newer than the checkpoint to resume from")
    assert "renamed to set-aside-step-00000002" in newer_line
    assert resumed == f"resumed from {checkpoints.folder / 'step-00000001'}, at step 1 of 12"
    assert not (checkpoints.folder.parent / "finished.json").exists()
    names = sorted(path.name for path in (checkpoints.folder / "set-aside-step-00000002").iterdir())
    assert names == ["model.safetensors", "optimizer.safetensors", "state.json"]  # nothing of the one before


def test_a_run_that_goes_on_from_another_folder_leaves_that_as_it_is(checkpoints, tmp_path):
    save_all(checkpoints, (1, None), (2, None))
    (tmp_path / "finished.json").write_text("{}")
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    more = new_checkpoints(tmp_path / "new", checkpoints.network)
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000001"), more.folder)
    more.resume(checkpoint, checkpoint.run_state())
    assert steps(checkpoints) == [1, 2]
    assert steps(more) == []
    assert (tmp_path / "finished.json").exists()
