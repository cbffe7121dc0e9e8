"""When a run counts as finished, so that it is not resumed; and runs that are repeated from their record.

Modules: train_utils/checkpoints.py, train_utils/settings/flags.py.
"""

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from support.folders import write_splits
from support.in_process import Run, run_train
from support.launches import TINY
from support.run_equality import different_tensors

import train
from runtime.errors import CheckpointError

FLAGS = [*TINY, "--epochs", "2", "--batch-size", "4", "--log-every", "1", "--tracker", "none", "--seed", "3"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return write_splits(folder, 8, 3, size=(16, 24))


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_train(tmp_path_factory.mktemp("runs") / "done", "--dataset", data, *FLAGS)


@pytest.fixture
def copied(done: Run, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(done.folder, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resume(folder: Path, data: Path, *flags: str) -> Run:
    return run_train(folder, "--dataset", data, *FLAGS, "--resume", "auto", *flags)


@pytest.mark.parametrize("flags", ["", "--epochs 1 --max-steps 4", "--output-dir .", "--epochs 1", "--loss ce"])
def test_a_finished_run_that_is_started_again_stays_as_it_is(data, copied, monkeypatch, flags):
    monkeypatch.chdir(copied)
    before = contents(copied)
    run = resume(copied, data, *flags.split())
    assert run.exit_code == 0
    line = run.output.splitlines()[-1]
    assert ": the run has finished, at step 4 of 4; to continue it, give more --epochs, --max-steps or" in line
    assert contents(copied) == before


def test_flags_that_the_plan_has_decided_need_not_be_given_again(data, tmp_path):
    flags = ["--dataset", data, "--base-channels", "2", "--num-workers", "0", "--max-steps", "2", "--tracker", "none"]
    assert run_train(tmp_path / "run", *flags).exit_code == 0
    again = run_train(tmp_path / "run", *flags, "--resume", "auto")
    assert "the run has finished, at step 2 of 2" in again.output
    other = run_train(tmp_path / "run", *flags, "--resume", "auto", "--eval-every", "1", "--max-steps", "3")
    assert "and is now 1\n" in other.output
    assert "the run has finished" not in other.output


def test_a_run_killed_before_the_marker_does_the_finish_again(data, done, copied):
    (copied / "finished.json").unlink()
    (copied / "report.html").unlink()
    run = resume(copied, data)
    assert run.exit_code == 0
    assert (copied / "report.html").exists()
    assert (copied / "finished.json").exists()
    assert run.records == done.records
    assert different_tensors(run.weights(4), done.weights(4)) == []


def test_a_run_whose_last_checkpoint_was_removed_goes_on_from_the_one_before(data, done, copied):
    shutil.rmtree(copied / "checkpoints" / "step-00000004")
    run = resume(copied, data)
    assert "step-00000002, at step 2 of 4" in run.output
    assert run.values("train/loss") == done.values("train/loss")


def test_a_run_that_goes_on_is_not_finished_until_it_ends_again(data, copied):
    with (
        mock.patch.object(train.RunLog, "write_results", side_effect=InterruptedError),
        pytest.raises(InterruptedError),
    ):
        resume(copied, data, "--epochs", "3")
    assert not (copied / "finished.json").exists()


PATIENCE = ("--patience", "1", "--learning-rate", "1e-9", "--epochs", "20", "--checkpoint-every", "100")


@pytest.fixture(scope="module")
def impatient(data, tmp_path_factory) -> Run:
    """A run that has learned nothing, and stopped."""
    return run_train(tmp_path_factory.mktemp("runs") / "impatient", "--dataset", data, *FLAGS, *PATIENCE)


@pytest.mark.parametrize("flags", [PATIENCE, PATIENCE[2:]], ids=["the same flags", "no --patience"])
def test_a_run_that_ran_out_of_patience_has_finished(data, impatient, flags):
    assert "no better mean IoU in 1 evaluation" in impatient.output
    again = resume(impatient.folder, data, *flags)
    assert again.exit_code == 0
    assert "to continue it, give a larger --patience" in again.output


def test_a_finished_run_that_is_given_less_patience_than_it_had_says_so(data, tmp_path):
    for flags in ((), ("--patience", "1", "--epochs", "40")):
        run = resume(tmp_path / "run", data, "--learning-rate", "1e-9", *flags)
    assert "to continue it, give a larger --patience" in run.output


def test_a_run_that_ran_out_of_patience_makes_no_more_steps_whatever_its_length(data, impatient, tmp_path):
    folder = Path(shutil.copytree(impatient.folder, tmp_path / "run"))
    again = resume(folder, data, *PATIENCE, "--epochs", "40")
    assert again.exit_code == 0
    assert again.records == impatient.records


def test_a_run_that_was_stopped_does_not_end_without_an_evaluation_of_its_last_step(data, tmp_path):
    run = resume(tmp_path / "run", data, "--checkpoint-every", "1", "--keep-checkpoints", "9")
    for step in (2, 3, 4):
        shutil.rmtree(run.folder / "checkpoints" / f"step-{step:08}")
    with pytest.raises(CheckpointError, match="after 1 step, and has none left"):
        resume(run.folder, data, "--max-steps", "1")
    assert json.loads((run.folder / "run.json").read_text())["total_steps"] == 4


def test_a_finished_run_is_published_if_it_is_asked_to_later(data, copied, monkeypatch):
    published = []
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr("train_utils.run_log.push_to_hub", lambda folder, name: published.append(name) or True)
    assert resume(copied, data, "--push-to-hub", "me/cells").exit_code == 0
    assert published == ["me/cells"]


def test_flags_of_no_continuation_leave_a_finished_run_finished(data, copied):
    with pytest.raises(CheckpointError, match="batch size is 4, this run's is 2"):
        resume(copied, data, "--batch-size", "2")
    assert (copied / "finished.json").exists()  # a mistake costs nothing


@pytest.fixture(scope="module")
def repeated(done, tmp_path_factory) -> Run:
    """The finished run, from its record."""
    return run_train(tmp_path_factory.mktemp("runs") / "again", "--like", done.folder / "run.json")


def test_run_is_repeated_from_its_record_bit_for_bit(done, repeated):
    assert repeated.exit_code == 0
    assert f"like {done.folder}/run.json, without a change\n" in repeated.output
    assert different_tensors(repeated.weights(4), done.weights(4)) == []
    assert repeated.values("train/loss") == done.values("train/loss")


def test_repeated_run_is_repeated_with_a_change(repeated, tmp_path):
    third = run_train(tmp_path / "third", "--like", repeated.folder, "--batch-size", "2")
    assert "but batch_size 2 (was 4)\n" in third.output
    assert third.steps("train/loss")[-1] == 8
    assert third.settings["flags"]["seed"] == 3
