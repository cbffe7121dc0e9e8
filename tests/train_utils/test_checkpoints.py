"""Checkpoints are complete or absent: what is kept, what a damaged one leads to, and what a run goes on from.

Modules: train_utils/checkpoints.py, train_utils/run_state.py.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file
from support.in_process import process_state_kept
from support.saved_checkpoints import SETTINGS, TASK, evaluation, steps

from runtime.errors import CheckpointError
from train_utils import checkpoints as module
from train_utils.checkpoints import Checkpoints, find_checkpoint, fingerprint
from train_utils.ema import WeightAverage
from train_utils.run_state import LossWindow, RunState
from unet import UNet, UNetConfig, model_files


def new_checkpoints(folder: Path, network: UNet) -> Checkpoints:
    """The checkpoints of a run that starts in a folder, or goes on in it; the two newest are kept."""
    average = WeightAverage(network, 0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return Checkpoints(Accelerator(cpu=True), folder, network, optimizer, average, SETTINGS, keep=2)


def save_all(checkpoints: Checkpoints, *scores: tuple[int, float | None], run: RunState | None = None) -> RunState:
    """Save a checkpoint of each step of a run, which has an evaluation with this score there, unless it is None."""
    run = run or RunState()
    for step, score in scores:
        run.step = step
        if score is not None:
            result = evaluation(step, score)
            run.update(result, result.scores.comparison > run.best)
        checkpoints.save(run)
        assert checkpoints.wait()
    return run


@pytest.fixture
def checkpoints(tmp_path) -> Iterator[Checkpoints]:
    """The checkpoints of a new run of a tiny network."""
    (tmp_path / "checkpoints").mkdir()
    with process_state_kept():
        yield new_checkpoints(tmp_path, UNet(UNetConfig(base_channels=2, depth=1)))


def folder_of(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.folder / f"step-{step:08}"


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([0.2, 0.6, None, 0.4, 0.5, 0.1], [2, 5, 6]),
        ([0.2, 0.6, 0.6, 0.1, 0.1, 0.1], [2, 5, 6]),
        ([0.0, None, None, None, None], [1, 4, 5]),
        ([None, None, None], [2, 3]),
    ],
    ids=["best", "first of equal ones", "a score of 0", "no evaluation"],
)
def test_the_newest_checkpoints_are_kept_beside_the_best(checkpoints, scores, kept):
    save_all(checkpoints, *enumerate(scores, 1))
    assert steps(checkpoints) == kept


def test_the_files_of_a_checkpoint_have_the_modes_of_other_new_files(checkpoints, tmp_path):
    (tmp_path / "other").touch()
    save_all(checkpoints, (1, 0.6))
    modes = {file.stat().st_mode for file in folder_of(checkpoints, 1).iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}


def go_on(checkpoints: Checkpoints, resume: str | Path, folder: Path | None = None) -> tuple[Checkpoints, RunState]:
    """A run that goes on from a checkpoint, in the same folder or another one."""
    more = new_checkpoints(folder or checkpoints.folder.parent, checkpoints.network)
    more.settings = replace(SETTINGS, total_steps=12)
    checkpoint = find_checkpoint(str(resume), more.folder)
    run = checkpoint.state
    more.resume(checkpoint, run, more.network, is_over=False)
    return more, run


@pytest.mark.parametrize(
    ("scores", "best", "kept"),
    [([0.6, 0.2, 0.1], 0.6, [1, 5, 6]), ([0.2, 0.6, 0.1], 0.6, [2, 5, 6]), ([0.4, 0.6, 0.8], -1.0, [4, 5, 6])],
    ids=["earlier", "of this step", "of a later step"],
)
def test_a_run_that_goes_back_remembers_the_best_model_if_it_is_still_there(checkpoints, scores, best, kept):
    checkpoints.keep = 3
    checkpoints.save_model(checkpoints.network, "card")
    save_all(checkpoints, *enumerate(scores, 1))
    more, run = go_on(checkpoints, folder_of(checkpoints, 2))
    assert run.best == best
    assert steps(more) == [1, 2]  # 3 is set aside
    save_all(more, (3, 0.1), (4, 0.3), (5, 0.1), (6, 0.1), run=run)
    assert steps(more) == kept


def test_a_run_that_goes_on_without_its_best_model_forgets_how_good_it_was(checkpoints):
    save_all(checkpoints, (1, 0.6), (2, 0.5))
    run = go_on(checkpoints, "auto")[1]
    assert run.best == -1.0
    assert run.evaluations_since_best == 0


@pytest.mark.parametrize("content", ['{"run": []}', '{"run": {"best_step": "9"}}', "no json"])
def test_a_newer_checkpoint_that_holds_no_run_is_no_hindrance_to_an_older_one(checkpoints, content):
    save_all(checkpoints, (1, 0.6), (2, 0.2))
    (folder_of(checkpoints, 2) / "state.json").write_text(content)
    assert go_on(checkpoints, folder_of(checkpoints, 1))[1].step == 1


def test_a_run_that_goes_on_says_from_where_and_has_not_finished(checkpoints, capsys):
    save_all(checkpoints, (1, None), (2, None))
    newer = folder_of(checkpoints, 2)
    (newer / "manifest.json").unlink()
    aside = checkpoints.folder / "set-aside-step-00000002"  # of an earlier time
    aside.mkdir()
    (aside / "old").write_text("")
    (checkpoints.folder.parent / "finished.json").write_text("{}")
    go_on(checkpoints, "auto")
    damaged, longer, newer_line, resumed = capsys.readouterr().out.splitlines()
    assert damaged == f"{newer}: manifest.json is missing"
    assert longer.startswith("the run is now 12 steps long instead of 9: ")
    assert newer_line.startswith(f"{newer} is newer than the checkpoint to resume from")
    assert "renamed to set-aside-step-00000002" in newer_line
    assert resumed == f"resumed from {folder_of(checkpoints, 1)}, at step 1 of 12"
    assert not (checkpoints.folder.parent / "finished.json").exists()
    names = sorted(path.name for path in aside.iterdir())
    assert names == ["model.safetensors", "optimizer.safetensors", "state.json"]  # nothing of the one before


def test_a_run_that_goes_on_from_another_folder_leaves_that_as_it_is(checkpoints, tmp_path):
    save_all(checkpoints, (1, None), (2, None))
    (tmp_path / "finished.json").write_text("{}")
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    more, _ = go_on(checkpoints, folder_of(checkpoints, 1), tmp_path / "new")
    assert steps(checkpoints) == [1, 2]
    assert steps(more) == []
    assert (tmp_path / "finished.json").exists()


def refuse_model(network: UNet, folder: Path) -> None:
    """Stand in for `save_pretrained` on a disk that is full."""
    (folder / "config.json").write_text("half")
    raise OSError(28, "No space left on device")


def test_a_best_model_that_is_refused_leaves_the_one_before(checkpoints, monkeypatch):
    assert checkpoints.save_model(checkpoints.network, "\u00e9 \udcff")
    before = {path.name: path.read_bytes() for path in checkpoints.model_folder.iterdir()}
    assert before["README.md"].decode() == "\u00e9 \\udcff"
    with monkeypatch.context() as patch:
        patch.setattr(UNet, "save_pretrained", refuse_model)
        assert not checkpoints.save_model(checkpoints.network, "second")
    assert not checkpoints.wait()
    assert {path.name: path.read_bytes() for path in checkpoints.model_folder.iterdir()} == before
    assert checkpoints.save_model(checkpoints.network, "third")
    assert checkpoints.wait()


def test_a_checkpoint_that_cannot_be_written_costs_no_older_one(checkpoints, monkeypatch, capsys):
    save_all(checkpoints, (1, None), (2, None))

    def refuse(*_: object) -> None:
        raise SafetensorError("Error while serializing")

    monkeypatch.setattr(model_files, "save_file", refuse)
    checkpoints.save(RunState(step=3))
    assert not checkpoints.wait()
    line = "checkpoint step-00000003 could not be written (Error while serializing); training goes on without it\n"
    assert capsys.readouterr().out == line
    assert not [*checkpoints.folder.glob(".*")]
    assert steps(checkpoints) == [1, 2]


def test_a_checkpoint_that_is_written_late_holds_the_run_as_it_stood(checkpoints, monkeypatch):
    goes_on = threading.Event()
    write = module.write_weights

    def write_late(tensors: dict, file: Path) -> None:
        goes_on.wait(10)
        write(tensors, file)

    monkeypatch.setattr(module, "write_weights", write_late)
    weight = next(checkpoints.network.parameters())
    before = weight.detach().clone()
    run = RunState(step=1, best=0.5, best_step=1)
    checkpoints.save(run)
    run.step, run.best = 2, 0.9
    with torch.no_grad():
        weight.add_(1)
    threading.Timer(0.02, goes_on.set).start()
    checkpoints.save(run)
    assert checkpoints.wait()
    first = folder_of(checkpoints, 1)
    assert json.loads((first / "state.json").read_text())["run"] == asdict(RunState(step=1, best=0.5, best_step=1))
    assert any(value.equal(before) for value in load_file(first / "model.safetensors").values())


def test_a_checkpoint_holds_the_state_of_its_run_and_its_scaler(checkpoints):
    loaded = []
    checkpoints.accelerator.scaler = SimpleNamespace(state_dict=lambda: {"scale": 4.0}, load_state_dict=loaded.append)
    run = RunState(skipped=1, window=LossWindow(0.5, 2))
    save_all(checkpoints, (4, 0.6), (5, 0.6), (6, 0.5), run=run)
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    assert checkpoint.state == run
    best = checkpoint.state.best_evaluation(TASK)
    assert best.step == 4
    assert best.scores.sums.tolist() == evaluation(4, 0.6).scores.sums.tolist()
    assert best.scores.image_comparison == evaluation(4, 0.6).scores.image_comparison
    checkpoints.resume(checkpoint, run, checkpoints.network, is_over=False)
    assert loaded == [{"scale": 4.0}]


def test_checkpoints_that_are_all_incomplete_are_refused_with_each_reason(tmp_path):
    folders = [tmp_path / "step-00000006", tmp_path / "step-00000004"]
    for folder in folders:
        folder.mkdir()
    reasons = [f"{folder}: manifest.json is missing" for folder in folders]
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("auto", tmp_path)
    assert str(caught.value) == f"no checkpoint to resume from: {'; '.join(reasons)}"


def without_model(manifest: dict) -> dict:
    return {name: entry for name, entry in manifest.items() if name != "model.safetensors"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            lambda manifest: manifest | {"../../other": manifest["state.json"]},
            "manifest.json is damaged: it lists other",
        ),
        (without_model, "manifest.json is damaged: it lists other files"),
        (lambda manifest: manifest | {"model.safetensors": {}}, "model.safetensors is damaged: its size or checksum"),
    ],
    ids=["another file", "no model", "another checksum"],
)
def test_a_checkpoint_that_differs_from_its_manifest_is_passed_over(checkpoints, capsys, changed, reason):
    save_all(checkpoints, (1, None), (2, None))
    file = folder_of(checkpoints, 2) / "manifest.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    checkpoint = find_checkpoint("auto", checkpoints.folder)
    assert checkpoint.state.step == 1
    assert capsys.readouterr().out.startswith(f"{file.parent}: {reason}")


@pytest.mark.parametrize(
    ("name", "content"),
    [("model", b"weights"), ("model", b"\x08\0\0\0\0\0\0\0{}      "), ("optimizer", b""), ("optimizer", b"weights")],
    ids=["model", "model without weights", "empty optimizer", "optimizer"],
)
def test_a_damaged_file_of_a_forged_manifest_is_a_one_line_error(checkpoints, name, content):
    save_all(checkpoints, (1, None))
    folder = folder_of(checkpoints, 1)
    file = folder / f"{name}.safetensors"
    file.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[file.name] = fingerprint(file)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=rf"^{folder}: is damaged \("):
        go_on(checkpoints, "auto")


OLD = {"step": 4, "best": 0.5, "best_matrix": [[1, 0], [0, 1]], "best_images": [[0.5]]}


def test_the_state_of_an_earlier_version_is_read_and_that_of_a_later_one_refused():
    state = RunState.from_json(OLD)
    assert state.best_scores == {"sums": [[1, 0], [0, 1]], "by_image": [[0.5]]}
    assert (state.step, state.skipped, state.window) == (4, 0, LossWindow())
    with pytest.raises(ValueError, match=r"its run holds wheels, wings, .* made by a newer version"):
        RunState.from_json(OLD | {"wings": 2, "wheels": 4})
