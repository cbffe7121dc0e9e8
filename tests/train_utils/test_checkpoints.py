"""Checkpoints in the order of what is written: nothing older goes before the new one is whole and on disk.

Modules: train_utils/checkpoints/save.py, train_utils/checkpoints/find.py.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from conftest import TINY
from in_process import Run, process_state_kept, run_train
from safetensors.torch import load_file
from same_runs import different_tensors

import train
from runtime import files
from runtime.documents import read_json
from tasks.classes import Classes, ClassScores
from train_utils.checkpoints import find, save
from train_utils.checkpoints.find import FoundCheckpoint, find_checkpoint, peek
from train_utils.checkpoints.save import Checkpoints
from train_utils.ema import WeightAverage
from train_utils.evaluation import Evaluation
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from train_utils.sharding import whole_copies
from unet import UNet, UNetConfig

TASK = Classes(("a", "b"))
SETTINGS = RunSettings(total_steps=9, micro_batch_size=1)


def evaluation(step: int, mean_iou: float) -> Evaluation:
    """An evaluation with this mean IoU for both of its classes."""
    # Of 100 pixels in the union of a class, `hits` are in the intersection.
    hits, misses = round(100 * mean_iou), 100 - round(100 * mean_iou)
    matrix = torch.tensor([[2 * hits, misses], [misses, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[mean_iou]])))


@pytest.fixture
def checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    network = UNet(UNetConfig(base_channels=2, depth=1))
    with process_state_kept():
        yield new_checkpoints(tmp_path, network)


def new_checkpoints(folder: Path, network: UNet) -> Checkpoints:
    """The checkpoints of a run that starts in a folder, or goes on in it; the two newest are kept."""
    average = WeightAverage(network, 0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return Checkpoints(Accelerator(cpu=True), folder, network, optimizer, average, SETTINGS, keep=2)


def save_all(checkpoints: Checkpoints, *scores: tuple[int, float | None]) -> None:
    """Save a checkpoint of each step, with the score of its evaluation, or None."""
    for step, score in scores:
        checkpoints.save(RunState(step=step), None if score is None else evaluation(step, score))
        assert checkpoints.wait()


def steps(checkpoints: Checkpoints) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))


def test_the_newest_checkpoints_are_kept_beside_the_best(checkpoints):
    save_all(checkpoints, (1, 0.2), (2, 0.6), (3, None), (4, 0.4), (5, 0.5), (6, 0.1))
    assert steps(checkpoints) == [2, 5, 6]


def test_a_resumed_run_keeps_the_best_of_the_run_before(checkpoints):
    save_all(checkpoints, (1, 0.2), (2, 0.6), (3, 0.4))
    more = new_checkpoints(checkpoints.folder.parent, checkpoints.network)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    more.resume(checkpoint, checkpoint.run_state())
    save_all(more, (4, 0.5), (5, None), (6, 0.1))
    assert steps(more) == [2, 5, 6]
    save_all(more, (7, 0.7), (8, 0.1), (9, 0.2))
    assert steps(more) == [7, 8, 9]  # better than all before, also before the run was resumed


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


def test_the_checkpoint_of_the_best_model_outlasts_a_worse_end(run):
    first = run("--max-steps", "6")
    assert first.checkpoints() == [2, 6], first.output


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


def best_after_going_back(checkpoints: Checkpoints) -> float:
    """The best score that a run remembers which goes back to step 2."""
    return find_checkpoint(str(checkpoints.folder / "step-00000002"), checkpoints.folder).run_state().best


@pytest.mark.parametrize(
    ("best_steps", "best"), [([1, 1], 0.6), ([2, 2], 0.6), ([2, 3], -1), ([2, 2, 4], -1), ([2, 3, 3], -1)]
)
def test_a_run_that_goes_back_forgets_only_a_best_model_of_later_steps(checkpoints, best_steps, best):
    checkpoints.keep = 3
    for step, best_step in enumerate(best_steps, 2):
        checkpoints.save(RunState(step=step, best=0.6, best_step=best_step), None)
        checkpoints.wait()
    assert best_after_going_back(checkpoints) == best


def test_a_run_that_goes_back_reads_over_a_damaged_state_between(checkpoints):
    checkpoints.keep = 3
    for step, best_step in ((2, 2), (3, 3), (4, 0)):
        checkpoints.save(RunState(step=step, best=0.6, best_step=best_step), None)
        checkpoints.wait()
    (checkpoints.folder / "step-00000004" / "state.json").write_text("damaged")
    assert best_after_going_back(checkpoints) == -1


def test_a_checkpoint_without_evaluation_has_no_score(checkpoints):
    save_all(checkpoints, (1, 0.0), (2, None))
    folders = sorted(checkpoints.folder.iterdir())
    scores = [find_checkpoint(str(folder), checkpoints.folder).state.score for folder in folders]
    assert scores == [0.0, None]


def test_a_checkpoint_of_score_0_is_better_than_those_without_evaluation(checkpoints):
    save_all(checkpoints, (1, 0.0), (2, None), (3, None), (4, None), (5, None))
    assert steps(checkpoints) == [1, 4, 5]


def test_the_score_of_an_incomplete_checkpoint_does_not_count(checkpoints):
    half = checkpoints.folder / "step-00000000"
    half.mkdir()
    (half / "state.json").write_text(json.dumps({"score": 0.99}))
    save_all(checkpoints, (1, 0.6), (2, 0.2), (3, 0.2), (4, 0.2))
    assert set(steps(checkpoints)) >= {1, 3, 4}
    assert 2 not in steps(checkpoints)


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


@pytest.fixture
def with_best_score(checkpoints) -> tuple[FoundCheckpoint, RunState]:
    """A checkpoint with a best score, and the state of the run that goes on from it."""
    checkpoints.save(RunState(step=1, best=0.6), evaluation(1, 0.6))
    checkpoints.wait()
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    return checkpoint, checkpoint.run_state()


def test_the_best_score_is_kept_where_the_main_process_alone_has_the_best_model(
    checkpoints, with_best_score, monkeypatch
):
    checkpoint, run = with_best_score
    monkeypatch.setattr(save, "on_main", lambda accelerator, function: True)
    checkpoints.resume(checkpoint, run)
    assert run.best == 0.6


def test_the_best_score_is_forgotten_where_the_main_process_has_no_best_model(
    checkpoints, with_best_score, monkeypatch
):
    checkpoint, run = with_best_score
    checkpoints.best_model.folder.mkdir()  # on this process's machine
    monkeypatch.setattr(save, "on_main", lambda accelerator, function: False)
    checkpoints.resume(checkpoint, run)
    assert run.best == -1.0


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """What is synced, renamed and removed, in this order, of all that exists."""
    events = []
    sync, rename, remove = files.sync, Path.rename, save.shutil.rmtree

    def note_sync(path: Path) -> None:
        events.append(f"sync {path.name}")
        sync(path)

    def note_rename(path: Path, target: Path) -> Path:
        events.append(f"rename {target.name}")
        return rename(path, target)

    def note_remove(path: Path, **options: bool) -> None:
        events.extend(f"remove {existing.name}" for existing in [Path(path)] if existing.exists())
        remove(path, **options)

    monkeypatch.setattr(files, "sync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(save.shutil, "rmtree", note_remove)
    return events


def test_nothing_is_removed_before_the_new_checkpoint_is_on_disk(checkpoints, events):
    save_all(checkpoints, (1, None), (2, None))
    events.clear()
    save_all(checkpoints, (3, None))
    written = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    order = [event for event in events if event.startswith("sync")]
    assert {event.removeprefix("sync ") for event in order[:4]} == written  # every file first
    assert order[4].startswith("sync .step-00000003.")
    assert order[5:] == ["sync checkpoints"]
    assert events[-3:] == ["rename step-00000003", "sync checkpoints", "remove step-00000001"]


def test_a_checkpoint_that_cannot_be_written_costs_no_older_one(checkpoints, monkeypatch, capsys):
    save_all(checkpoints, (1, None), (2, None))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "save_file", refuse)
    checkpoints.save(RunState(step=3), None)
    assert not checkpoints.wait()
    assert not checkpoints.wait_until_saved()
    reason = "[Errno 28] No space left on device"
    line = f"checkpoint step-00000003 could not be written ({reason}); training goes on without it\n"
    assert capsys.readouterr().out == line
    assert steps(checkpoints) == [1, 2]
    assert not [*checkpoints.folder.glob(".*")]
    assert find_checkpoint("auto", checkpoints.folder).run_state().step == 2


def refuse_removal(path: Path, ignore_errors: bool = False) -> None:
    """Stand in for `rmtree` of a folder that may not be removed."""
    if not ignore_errors:
        raise PermissionError(13, "Permission denied")


def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(checkpoints, monkeypatch):
    monkeypatch.setattr(save.shutil, "rmtree", refuse_removal)
    save_all(checkpoints, (1, None), (2, None), (3, None))
    assert steps(checkpoints) == [1, 2, 3]


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


def test_processes_wait_for_the_disk_before_they_copy(checkpoints, monkeypatch):
    calls = []
    for name in ("barrier_without_timeout", "share_statistics", "whole_copies"):
        function = getattr(save, name)

        def noted(*arguments: object, name: str = name, function: Callable = function) -> object:
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(save, name, noted)
    save_all(checkpoints, (1, None))
    assert calls == ["barrier_without_timeout", "share_statistics", "whole_copies"]


@pytest.fixture
def advanced(checkpoints) -> Callable[[int], None]:
    """A function that makes a step with AdamW and an average of weights."""
    checkpoints.optimizer = torch.optim.AdamW(checkpoints.network.parameters(), lr=0.1)
    checkpoints.average = WeightAverage(checkpoints.network, 0.9)

    def step(number: int) -> None:
        for parameter in checkpoints.network.parameters():
            parameter.grad = torch.full_like(parameter, number)
        checkpoints.optimizer.step()
        checkpoints.average.update(number, torch.tensor(1.0))

    return step


def saved_tensors(checkpoints: Checkpoints) -> list[torch.Tensor]:
    """The weights, their average, and the moments of the optimizer."""
    moments = [value for state in checkpoints.optimizer.state.values() for value in state.values()]
    return [*checkpoints.network.state_dict().values(), *checkpoints.average.tensors.values(), *moments]


def test_all_tensors_go_on_from_the_checkpoint(checkpoints, advanced):
    advanced(1)
    before = [value.clone() for value in saved_tensors(checkpoints)]
    save_all(checkpoints, (1, None))
    advanced(2)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    checkpoints.restore(checkpoint.path, checkpoint.state)
    assert all(value.equal(old) for value, old in zip(saved_tensors(checkpoints), before, strict=True))


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


def test_the_scaler_stays_as_it_is_after_a_run_in_float32(checkpoints, scaled):
    checkpoint, loaded = scaled
    checkpoints.restore(checkpoint.path, replace(checkpoint.state, scaler=None))
    assert loaded == []


def test_a_run_in_float32_goes_on_from_one_with_a_scaler(checkpoints, scaled):
    checkpoint, _ = scaled
    before = [value.clone() for value in saved_tensors(checkpoints)]
    checkpoints.accelerator.scaler = None
    checkpoints.restore(checkpoint.path, checkpoint.state)
    assert all(value.equal(old) for value, old in zip(saved_tensors(checkpoints), before, strict=True))


def test_the_main_process_alone_writes_checkpoints(checkpoints, monkeypatch):
    save_all(checkpoints, (1, None), (2, None))
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    save_all(checkpoints, (3, None))
    assert steps(checkpoints) == [1, 2]


def test_the_main_process_alone_changes_the_folder_of_a_resumed_run(checkpoints, monkeypatch):
    save_all(checkpoints, (1, None), (2, None))
    (checkpoints.folder.parent / "finished.json").write_text("{}")
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    monkeypatch.setattr(save, "on_main", lambda accelerator, function: True)
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder)
    checkpoints.resume(checkpoint, checkpoint.run_state())
    assert steps(checkpoints) == [1, 2]
    assert (checkpoints.folder.parent / "finished.json").exists()


@pytest.mark.parametrize("model_is_saved", [True, False])
def test_all_is_saved_where_model_with_checkpoint_are(checkpoints, monkeypatch, model_is_saved):
    write = save.save_file

    def write_late(tensors: dict, file: Path) -> None:
        time.sleep(0.02)  # the model alone is known before
        write(tensors, file)

    monkeypatch.setattr(checkpoints.best_model, "is_saved", lambda: model_is_saved)
    monkeypatch.setattr(save, "save_file", write_late)
    checkpoints.save(RunState(step=1), None)
    assert checkpoints.wait_until_saved() is model_is_saved
    assert steps(checkpoints) == [1]
    assert checkpoints.wait() is True


@pytest.mark.parametrize("model_is_saved", [True, False])
def test_a_checkpoint_that_fails_late_is_not_saved_whenever_one_asks(checkpoints, monkeypatch, model_is_saved):
    def fail_late(tensors: dict, file: Path) -> None:
        time.sleep(0.02)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.best_model, "is_saved", lambda: model_is_saved)
    monkeypatch.setattr(save, "save_file", fail_late)
    checkpoints.save(RunState(step=1), None)
    assert checkpoints.wait_until_saved() is False
    assert steps(checkpoints) == []
    assert checkpoints.wait() is False


@pytest.fixture
def newer_model(checkpoints) -> Path:
    """The file with the weights of the newer one of two checkpoints, each of which is the best so far."""
    for step in (1, 2):
        checkpoints.save(RunState(step=step, best=0.5, best_step=step, evaluations_since_best=1), None)
        checkpoints.wait()
    return checkpoints.folder / "step-00000002" / "model.safetensors"


@pytest.mark.parametrize(
    "damaged",
    [lambda content: content[:-1], lambda content: content + b"x", lambda content: content[:-1] + b"\xff"],
    ids=["shorter", "longer", "other bytes"],
)
def test_a_damaged_checkpoint_is_passed_over(checkpoints, newer_model, damaged):
    content = newer_model.read_bytes()
    newer_model.write_bytes(damaged(content))
    assert newer_model.read_bytes() != content
    reason = "model.safetensors is damaged: its size or checksum differs from the manifest"
    assert find_checkpoint("auto", checkpoints.folder).passed_over == [f"{newer_model.parent}: {reason}"]


def test_a_checkpoint_without_a_file_is_passed_over(checkpoints, newer_model):
    newer_model.unlink()
    reason = "model.safetensors is missing"
    assert find_checkpoint("auto", checkpoints.folder).passed_over == [f"{newer_model.parent}: {reason}"]


def test_the_best_score_of_a_checkpoint_that_is_passed_over_is_forgotten(checkpoints, newer_model):
    newer_model.unlink()
    assert find_checkpoint("auto", checkpoints.folder).run_state() == RunState(step=1, best=-1.0, best_step=1)


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


def test_a_run_that_goes_on_says_from_where(checkpoints, going_on):
    newer = checkpoints.folder / "step-00000002"
    damaged, longer, newer_line, resumed = going_on
    assert damaged == f"{newer}: manifest.json is missing"
    assert longer.startswith("the run is now 12 steps long instead of 9: ")
    assert newer_line.startswith(f"{newer} is newer than the checkpoint to resume from")
    assert "renamed to set-aside-step-00000002" in newer_line
    assert resumed == f"resumed from {checkpoints.folder / 'step-00000001'}, at step 1 of 12"


def test_a_run_that_goes_on_has_not_finished(checkpoints, going_on):
    assert not (checkpoints.folder.parent / "finished.json").exists()


def test_a_newer_checkpoint_takes_the_place_of_one_that_was_set_aside(checkpoints, going_on):
    names = sorted(path.name for path in (checkpoints.folder / "set-aside-step-00000002").iterdir())
    assert names == ["model.safetensors", "optimizer.safetensors", "state.json"]


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


@pytest.mark.parametrize(
    "changed",
    [
        lambda manifest: manifest | {"../../other": manifest["state.json"]},
        lambda manifest: {name: manifest[name] for name in manifest if name != "model.safetensors"},
        lambda manifest: {name: manifest[name] for name in manifest if name != "optimizer.safetensors"},
        lambda manifest: {name: manifest[name] for name in manifest if name != "state.json"},
    ],
    ids=["another file", "no model", "no optimizer", "no state"],
)
def test_a_manifest_that_lists_other_files_is_damaged(checkpoints, changed):
    save_all(checkpoints, (1, None), (2, None))
    file = checkpoints.folder / "step-00000002" / "manifest.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    (reason,) = checkpoint.passed_over
    assert checkpoint.run_state().step == 1
    assert reason == f"{file.parent}: manifest.json is damaged: it lists other files than a checkpoint has"


def test_all_damaged_checkpoints_are_told_the_newest_first(checkpoints):
    checkpoints.keep = 3
    save_all(checkpoints, (1, None), (2, None), (3, None))
    for step in (2, 3):
        (checkpoints.folder / f"step-{step:08}" / "state.json").unlink()
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    assert checkpoint.path == checkpoints.folder / "step-00000001"
    newer = [checkpoints.folder / f"step-{step:08}" for step in (3, 2)]
    assert checkpoint.passed_over == [f"{path}: state.json is missing" for path in newer]


@pytest.mark.parametrize("content", ['{"run": []}', '{"run": null}', '{"run": {"best_step": "9"}}', "{}", "no json"])
def test_a_newer_checkpoint_that_holds_no_run_is_no_hindrance_to_an_older_one(checkpoints, content):
    save_all(checkpoints, (1, 0.6), (2, 0.2))
    (checkpoints.folder / "step-00000002" / "state.json").write_text(content)
    assert find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder).run_state().step == 1


def test_a_newer_checkpoint_without_a_state_is_no_hindrance_to_an_older_one(checkpoints):
    save_all(checkpoints, (1, 0.6), (2, 0.2))
    (checkpoints.folder / "step-00000002" / "state.json").unlink()
    assert find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder).run_state().step == 1


def test_a_state_may_be_as_large_as_the_scores_of_all_images(checkpoints, monkeypatch):
    save_all(checkpoints, (1, None), (2, None))
    limits = []

    def read(file: Path, most_bytes: int = 2**26) -> dict:
        limits.append((file.parent.name[-1], file.name, most_bytes))
        return read_json(file, most_bytes=most_bytes)

    monkeypatch.setattr(find, "read_json", read)
    find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder)
    four_gigabytes = 2**32
    assert limits == [
        ("1", "manifest.json", 2**26),
        ("1", "state.json", four_gigabytes),
        ("2", "state.json", four_gigabytes),
    ]


@pytest.fixture
def saved(checkpoints) -> tuple[RunState, FoundCheckpoint]:
    """The state of a run that was best at its first of three evaluations, and its checkpoint."""
    state = RunState(step=4, skipped=1, window={"sums": [0.5], "steps": 2})
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


def test_a_checkpoint_holds_the_score_of_its_evaluation(saved):
    assert saved[1].state.score == 0.6
    assert evaluation(4, 0.6).scores.comparison == 0.6


def test_a_checkpoint_holds_the_best_evaluation_with_its_images(saved):
    best = saved[1].run_state().best_evaluation(TASK)
    assert best.step == 4
    assert best.scores.names == TASK.names
    assert best.scores.sums.tolist() == evaluation(4, 0.6).scores.sums.tolist()
    assert best.scores.image_comparison == evaluation(4, 0.6).scores.image_comparison


def test_a_manifest_names_the_files_of_a_checkpoint(saved):
    manifest = json.loads((saved[1].path / "manifest.json").read_text())
    assert manifest.keys() == {"model.safetensors", "optimizer.safetensors", "state.json"}
