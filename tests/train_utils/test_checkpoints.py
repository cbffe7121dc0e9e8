"""Checkpoints in the order of what is written: nothing older goes before the new one is whole and on disk.

Modules: train_utils/checkpoints/save.py, train_utils/checkpoints/find.py, train_utils/checkpoints/best_model.py.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from conftest import TINY
from in_process import process_state_kept, run_train
from safetensors.torch import load_file

import train
from runtime import files
from runtime.documents import read_json
from tasks.classes import Classes, ClassScores
from train_utils.checkpoints import find, save
from train_utils.checkpoints.best_model import BestModel
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
        yield new_checkpoints(tmp_path, network)


def new_checkpoints(folder: Path, network: UNet) -> Checkpoints:
    """Those of a run that starts in a folder, or goes on in it; the two newest are kept."""
    average = WeightAverage(network, 0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return Checkpoints(Accelerator(cpu=True), folder, network, optimizer, average, SETTINGS, keep=2)


def save_all(checkpoints: Checkpoints, *scores: tuple[int, float | None]) -> None:
    """A checkpoint of each step, with the score of its evaluation, None where there was none."""
    for step, score in scores:
        checkpoints.save(RunState(step=step), None if score is None else evaluation(step, score))
        assert checkpoints.wait()


def steps(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))


def test_the_newest_and_the_best_are_kept_whatever_comes_later(checkpoints):
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


def test_the_best_models_checkpoint_outlasts_a_worse_end_and_a_resumed_run(tiny_folder, tmp_path, monkeypatch):
    scores = {2: 0.6, 4: 0.3, 6: 0.1, 8: 0.5}
    evaluate = train.evaluate

    def evaluate_as(*arguments: object) -> Evaluation:
        found = evaluate(*arguments)
        found.scores.sums = evaluation(found.step, scores[found.step]).scores.sums
        return found

    monkeypatch.setattr(train, "evaluate", evaluate_as)
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--eval-every", "2", "--checkpoint-every", "3"]
    flags += ["--keep-checkpoints", "1"]
    first = run_train(tmp_path / "run", *flags, "--max-steps", "6")
    best = first.model
    assert first.checkpoints() == [2, 6], first.output
    again = run_train(tmp_path / "run", *flags, "--max-steps", "8", "--resume", "auto")
    assert again.checkpoints() == [2, 8], again.output
    state = find_checkpoint("auto", tmp_path / "run" / "checkpoints").run_state()
    assert state.best == 0.6
    assert state.best_step == 2
    assert all(torch.equal(again.model[name], weight) for name, weight in best.items())


def test_a_run_that_goes_back_keeps_the_best_of_what_it_goes_on_from(checkpoints):
    save_all(checkpoints, (1, 0.6), (2, 0.2), (3, 0.9))
    more = new_checkpoints(checkpoints.folder.parent, checkpoints.network)
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000002"), checkpoints.folder)
    more.resume(checkpoint, checkpoint.run_state())
    assert steps(more) == [2]  # 1 was pruned, 3 is set aside
    save_all(more, (3, 0.3), (4, 0.1), (5, 0.1), (6, 0.1))
    assert steps(more) == [3, 5, 6]


@pytest.mark.parametrize(
    ("best_steps", "expected"),
    [([1, 1], 0.6), ([2, 2], 0.6), ([2, 3], -1), ([2, 2, 4], -1), ([2, 3, 3], -1), ([2, 3, None], -1)],
)
def test_a_run_that_goes_back_forgets_only_a_best_model_of_later_steps(checkpoints, best_steps, expected):
    checkpoints.keep = 3
    for step, best_step in enumerate(best_steps, 2):
        checkpoints.save(RunState(step=step, best=0.6, best_step=best_step or 0), None)
        checkpoints.wait()
        if best_step is None:
            (checkpoints.folder / f"step-{step:08}" / "state.json").write_text("damaged")
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000002"), checkpoints.folder)
    assert checkpoint.run_state().best == expected


def test_a_checkpoint_without_evaluation_has_no_score_and_one_of_score_0_has(checkpoints):
    checkpoints.save(RunState(step=1, best=0.9, best_step=1), evaluation(1, 0.0))
    checkpoints.save(RunState(step=2, best=0.9, best_step=1), None)
    checkpoints.wait()
    scores = [
        find_checkpoint(str(path), checkpoints.folder).state.score for path in sorted(checkpoints.folder.iterdir())
    ]
    assert scores == [0.0, None]
    save_all(checkpoints, (3, None), (4, None), (5, None))
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


def test_a_best_model_that_is_refused_leaves_the_one_before_without_its_score(checkpoints, monkeypatch):
    model, folder = checkpoints.best_model, checkpoints.best_model.folder
    assert model.save(checkpoints.network, "first")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write = UNet.save_pretrained

    def refuse(network: UNet, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UNet, "save_pretrained", refuse)
    assert not model.save(checkpoints.network, "second")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    run = RunState(step=1, best=0.6, best_step=1)
    checkpoints.save(run, evaluation(1, 0.6))
    checkpoints.wait()
    assert find_checkpoint("auto", checkpoints.folder).run_state().best == -1
    assert run.best == 0.6
    monkeypatch.setattr(UNet, "save_pretrained", write)
    checkpoints.save(RunState(step=2, best=0.6, best_step=1), None)  # the disk takes it now
    checkpoints.wait()
    assert find_checkpoint("auto", checkpoints.folder).run_state().best == 0.6
    assert (folder / "README.md").read_text() == "second"


def test_a_better_model_takes_the_place_of_one_that_the_disk_refused(tmp_path, capsys):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    best = BestModel(tmp_path / "gone" / "model")
    assert not best.save(network, "refused")
    line = capsys.readouterr().out
    assert line.startswith(f"{tmp_path / 'gone' / 'model'} could not be written ([Errno 2] No such file or directory: ")
    (tmp_path / "gone").mkdir()
    assert best.save(network, "better \u00e9 \udcff")
    assert best.is_saved()
    assert (tmp_path / "gone" / "model" / "README.md").read_text(encoding="utf-8") == "better \u00e9 \\udcff"


def test_a_best_model_that_the_disk_refused_is_kept_as_it_was(tmp_path, capsys):
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    best = BestModel(tmp_path / "gone" / "model")
    assert not best.save(network, "card")
    assert not best.is_saved()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    (tmp_path / "gone").mkdir()
    assert best.is_saved()
    assert best.is_saved()
    written = UNet.from_pretrained(tmp_path / "gone" / "model").state_dict()
    assert all(value.equal(before[name]) for name, value in written.items())
    assert (tmp_path / "gone" / "model" / "README.md").read_text() == "card"
    assert "training goes on, and tries again at every checkpoint" in capsys.readouterr().out


def test_a_refused_best_model_is_written_once_when_the_disk_takes_it(tmp_path):
    best = BestModel(tmp_path / "gone" / "model")
    assert not best.save(UNet(UNetConfig(in_channels=1, base_channels=2, depth=1)), "card")
    (tmp_path / "gone").mkdir()
    assert best.is_saved()
    (tmp_path / "gone" / "model" / "README.md").unlink()
    assert best.is_saved()
    assert not (tmp_path / "gone" / "model" / "README.md").exists()


def test_of_equal_scores_the_first_is_kept_whose_model_is_the_best(checkpoints):
    save_all(checkpoints, (1, 0.2), (2, 0.6), (3, 0.6), (4, 0.1), (5, 0.1), (6, 0.1))
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
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    run = checkpoint.run_state()
    checkpoints.resume(checkpoint, run)
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
    assert order[4].startswith("sync .step-00000003.")
    assert order[5:] == ["sync checkpoints"]
    assert events[-3:] == ["rename step-00000003", "sync checkpoints", "remove step-00000001"]


def test_a_checkpoint_that_cannot_be_written_costs_no_older_one(checkpoints, monkeypatch, capsys):
    for step in (1, 2):
        checkpoints.save(RunState(step=step), None)
        checkpoints.wait()

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


def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(checkpoints, monkeypatch):
    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(save.shutil, "rmtree", refuse)
    save_all(checkpoints, (1, None), (2, None), (3, None))
    assert steps(checkpoints) == [1, 2, 3]


def test_training_goes_on_while_a_checkpoint_is_written_as_the_run_stood(checkpoints, monkeypatch):
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


def test_processes_wait_for_the_disk_and_share_their_statistics_before_a_copy(checkpoints, monkeypatch):
    calls = []
    for name in ("barrier_without_timeout", "share_statistics", "whole_copies"):
        function = getattr(save, name)

        def noted(*arguments: object, name: str = name, function: Callable = function) -> object:
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(save, name, noted)
    save_all(checkpoints, (1, None))
    assert calls == ["barrier_without_timeout", "share_statistics", "whole_copies"]


def test_weights_optimizer_average_and_scaler_go_on_from_the_checkpoint(checkpoints):
    network = checkpoints.network
    checkpoints.optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    checkpoints.average = WeightAverage(network, 0.9)
    scaled = []
    checkpoints.accelerator.scaler = SimpleNamespace(state_dict=lambda: {"scale": 4.0}, load_state_dict=scaled.append)

    def step(number: int) -> None:
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, number)
        checkpoints.optimizer.step()
        checkpoints.average.update(number, torch.tensor(1.0))

    def tensors() -> list[torch.Tensor]:
        moments = [value for state in checkpoints.optimizer.state.values() for value in state.values()]
        return [*network.state_dict().values(), *checkpoints.average.tensors.values(), *moments]

    step(1)
    saved = [value.clone() for value in tensors()]
    checkpoints.save(RunState(step=1), None)
    checkpoints.wait()
    step(2)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    checkpoints.restore(checkpoint.path, checkpoint.state)
    assert all(value.equal(old) for value, old in zip(tensors(), saved, strict=True))
    checkpoints.restore(checkpoint.path, replace(checkpoint.state, scaler=None))  # of a run in float32
    assert scaled == [{"scale": 4.0}]
    checkpoints.accelerator.scaler = None  # the run goes on in float32
    checkpoints.restore(checkpoint.path, checkpoint.state)
    assert all(value.equal(old) for value, old in zip(tensors(), saved, strict=True))


def test_only_the_main_process_writes_renames_and_removes(checkpoints, monkeypatch):
    save_all(checkpoints, (1, None), (2, None))
    (checkpoints.folder.parent / "finished.json").write_text("{}")
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    checkpoints.save(RunState(step=3), None)
    assert checkpoints.wait()
    assert steps(checkpoints) == [1, 2]
    checkpoint = find_checkpoint(str(checkpoints.folder / "step-00000001"), checkpoints.folder)
    monkeypatch.setattr(save, "on_main", lambda accelerator, function: True)
    checkpoints.resume(checkpoint, checkpoint.run_state())
    assert steps(checkpoints) == [1, 2]
    assert (checkpoints.folder.parent / "finished.json").exists()


@pytest.mark.parametrize("model_is_saved", [True, False])
@pytest.mark.parametrize(("error", "written"), [(None, [1]), (OSError(28, "No space left on device"), [])])
def test_all_is_saved_where_model_and_checkpoint_are(checkpoints, monkeypatch, model_is_saved, error, written):
    write = save.save_file

    def write_late(tensors: dict, file: Path) -> None:
        time.sleep(0.02)  # the model alone is known before
        if error is not None:
            raise error
        write(tensors, file)

    monkeypatch.setattr(checkpoints.best_model, "is_saved", lambda: model_is_saved)
    monkeypatch.setattr(save, "save_file", write_late)
    checkpoints.save(RunState(step=1), None)
    assert checkpoints.wait_until_saved() is (model_is_saved and error is None)
    assert steps(checkpoints) == written
    assert checkpoints.wait() is (error is None)  # also when it is asked for again


@pytest.mark.parametrize("damage", ["shorter", "longer", "other bytes", "absent"])
def test_a_damaged_checkpoint_is_passed_over_with_the_best_score_of_its_steps(checkpoints, damage):
    for step in (1, 2):
        checkpoints.save(RunState(step=step, best=0.5, best_step=step, evaluations_since_best=1), None)
        checkpoints.wait()
    file = checkpoints.folder / "step-00000002" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    changed = {"shorter": content[:-1], "longer": content + b"x", "other bytes": content}
    file.unlink() if damage == "absent" else file.write_bytes(changed[damage])
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    assert checkpoint.run_state() == RunState(step=1, best=-1.0, best_step=1)
    reason = "is missing" if damage == "absent" else "is damaged: its size or checksum differs from the manifest"
    assert checkpoint.passed_over == [f"{checkpoints.folder / 'step-00000002'}: model.safetensors {reason}"]


def test_a_run_that_goes_on_says_from_where_and_sets_newer_checkpoints_aside_again(checkpoints, capsys):
    save_all(checkpoints, (1, None), (2, None))
    (checkpoints.folder / "step-00000002" / "manifest.json").unlink()
    aside = checkpoints.folder / "set-aside-step-00000002"  # of an earlier time
    aside.mkdir()
    (aside / "old").write_text("")
    more = new_checkpoints(checkpoints.folder.parent, checkpoints.network)
    more.settings = replace(SETTINGS, total_steps=12)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    (checkpoints.folder.parent / "finished.json").write_text("{}")
    more.resume(checkpoint, checkpoint.run_state())
    newer = checkpoints.folder / "step-00000002"
    assert capsys.readouterr().out.splitlines() == [
        f"{newer}: manifest.json is missing",
        "the run is now 12 steps long instead of 9: the learning rate follows the schedule of the new length",
        f"{newer} is newer than the checkpoint to resume from; it is renamed to set-aside-step-00000002",
        f"resumed from {checkpoints.folder / 'step-00000001'}, at step 1 of 12",
    ]
    assert not (checkpoints.folder.parent / "finished.json").exists()  # it goes on
    assert sorted(path.name for path in aside.iterdir()) == [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]


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


@pytest.mark.parametrize("entry", ["../../other", "model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_manifest_lists_all_files_of_a_checkpoint_and_none_elsewhere(checkpoints, entry):
    save_all(checkpoints, (1, None), (2, None))
    file = checkpoints.folder / "step-00000002" / "manifest.json"
    manifest = json.loads(file.read_text())
    if manifest.pop(entry, None) is None:
        manifest[entry] = manifest["state.json"]
    file.write_text(json.dumps(manifest))
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
    assert saved[1].state.score == evaluation(4, 0.6).scores.comparison == 0.6


def test_a_checkpoint_holds_the_best_evaluation_with_its_images(saved):
    best = saved[1].run_state().best_evaluation(TASK)
    assert best.step == 4
    assert best.scores.names == TASK.names
    assert best.scores.sums.tolist() == evaluation(4, 0.6).scores.sums.tolist()
    assert best.scores.image_comparison == evaluation(4, 0.6).scores.image_comparison


def test_a_manifest_names_the_files_of_a_checkpoint(saved):
    manifest = json.loads((saved[1].path / "manifest.json").read_text())
    assert manifest.keys() == {"model.safetensors", "optimizer.safetensors", "state.json"}
