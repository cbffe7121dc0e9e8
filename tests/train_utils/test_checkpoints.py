"""Checkpoints in the order of what is written: nothing older goes before the new one is whole and on disk.

Modules: train_utils/checkpoints/save.py, train_utils/checkpoints/find.py, train_utils/checkpoints/best_model.py,
train_utils/run_state.py.
"""

import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from in_process import process_state_kept

from runtime import files
from tasks.classes import Classes, ClassScores
from train_utils.checkpoints import save
from train_utils.checkpoints.find import find_checkpoint
from train_utils.checkpoints.save import Checkpoints
from train_utils.ema import WeightAverage
from train_utils.evaluation import Evaluation
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig

TASK = Classes(("a", "b"))
SETTINGS = RunSettings(total_steps=9, micro_batch_size=1)


def evaluation(step: int, mean_iou: float) -> Evaluation:
    """One with this mean IoU, in percent, for both of its classes."""
    hits, misses = round(100 * mean_iou), 100 - round(100 * mean_iou)
    # of 100 pixels in the union of a class, `hits` are in the intersection
    matrix = torch.tensor([[2 * hits, misses], [misses, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[mean_iou]])))


@pytest.fixture
def checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    network = UNet(UNetConfig(base_channels=2, depth=1))
    with process_state_kept():
        accelerator = Accelerator(cpu=True)
        average = WeightAverage(network, 0.0)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        yield Checkpoints(accelerator, tmp_path, 2, network, optimizer, average, SETTINGS)


def steps(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))


def test_the_newest_and_the_best_are_kept_whatever_comes_later(checkpoints):
    for step, score in ((1, 0.2), (2, 0.6), (3, None), (4, 0.4), (5, 0.5), (6, 0.1)):
        checkpoints.save(RunState(step=step), None if score is None else evaluation(step, score))
        assert checkpoints.wait()
    assert steps(checkpoints) == [2, 5, 6]


@pytest.mark.parametrize(("main_has_the_best_model", "best"), [(True, 0.6), (False, -1.0)])
def test_all_processes_go_on_with_the_best_score_of_the_main_one(
    checkpoints, monkeypatch, main_has_the_best_model, best
):
    checkpoints.save(RunState(step=1, best=0.6), evaluation(1, 0.6))
    checkpoints.wait()
    if not main_has_the_best_model:  # this process's machine has it
        checkpoints.best_model.folder.mkdir()
    monkeypatch.setattr(save, "on_main", lambda accelerator, function: main_has_the_best_model)
    found = find_checkpoint("auto", checkpoints.folder)
    run = found.run_state()
    checkpoints.resume(found, run)
    assert run.best == best


def test_nothing_is_removed_before_the_new_checkpoint_is_whole_and_on_disk(checkpoints, monkeypatch):
    for step in (1, 2):
        checkpoints.save(RunState(step=step), None)
        checkpoints.wait()
    events = []
    sync, rename, remove = files.sync, Path.rename, save.shutil.rmtree

    def note_sync(path: Path) -> None:
        events.append(f"sync {path.name}")
        sync(path)

    def note_rename(path: Path, target: Path) -> Path:
        events.append(f"rename {target.name}")
        return rename(path, target)

    def note_remove(path: Path, **options: bool) -> None:
        if Path(path).exists():
            events.append(f"remove {Path(path).name}")
        remove(path, **options)

    monkeypatch.setattr(files, "sync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(save.shutil, "rmtree", note_remove)
    checkpoints.save(RunState(step=3), None)
    assert checkpoints.wait()
    written = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    order = [event for event in events if event.startswith("sync")]
    assert {event.removeprefix("sync ") for event in order[:4]} == written  # every file first
    assert order[4:] == ["sync .step-00000003.tmp", "sync checkpoints"]
    assert events[-3:] == ["rename step-00000003", "sync checkpoints", "remove step-00000001"]


def test_a_checkpoint_that_cannot_be_written_costs_no_older_one(checkpoints, monkeypatch, capsys):
    for step in (1, 2):
        checkpoints.save(RunState(step=step), None)
        checkpoints.wait()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "save_file", refuse)
    checkpoints.save(RunState(step=3), None)
    assert not checkpoints.wait() and not checkpoints.is_saved()
    assert "checkpoint step-00000003 could not be written" in capsys.readouterr().out
    assert steps(checkpoints) == [1, 2] and not [*checkpoints.folder.glob(".*")]
    assert find_checkpoint("auto", checkpoints.folder).run_state().step == 2


@pytest.mark.parametrize("damage", ["shorter", "longer", "other bytes", "absent"])
def test_a_damaged_checkpoint_is_passed_over(checkpoints, damage):
    for step in (1, 2):
        checkpoints.save(RunState(step=step), None)
        checkpoints.wait()
    file = checkpoints.folder / "step-00000002" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    changed = {"shorter": content[:-1], "longer": content + b"x", "other bytes": content}
    file.unlink() if damage == "absent" else file.write_bytes(changed[damage])
    found = find_checkpoint("auto", checkpoints.folder)
    assert found.run_state().step == 1 and len(found.passed_over) == 1


def test_a_run_state_survives_the_file_and_knows_its_best_evaluation(checkpoints):
    state = RunState(step=4, skipped=1, window={"sums": [0.5], "steps": 2})
    assert state.update(evaluation(4, 0.6)) and not state.update(evaluation(5, 0.6))  # as good is no better
    assert (state.evaluations_since_best, state.best_step) == (1, 4)
    checkpoints.save(state, evaluation(4, 0.6))
    checkpoints.wait()
    found = find_checkpoint("auto", checkpoints.folder)
    assert found.run_state() == state
    assert found.state.score == evaluation(4, 0.6).scores.comparison == 0.6
    best = found.run_state().best_evaluation(TASK)
    assert best.step == 4 and best.scores.names == TASK.names
    assert best.scores.sums.tolist() == evaluation(4, 0.6).scores.sums.tolist()
    assert best.scores.image_comparison == evaluation(4, 0.6).scores.image_comparison
    assert json.loads((found.path / "manifest.json").read_text()).keys() == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }
