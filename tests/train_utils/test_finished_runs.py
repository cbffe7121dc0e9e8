"""When a run counts as finished, so that it is not resumed; and runs that are repeated from their record.

Modules: train_utils/run_folder.py, train_utils/settings/flags.py.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest
from support.folders import write_splits
from support.in_process import Run, parsed, run_train
from support.launches import TINY
from support.run_equality import different_tensors
from support.runs import unplanned

import train
import train_utils.start
from runtime.errors import CheckpointError
from train_utils.checkpoints import checkpoint_folder
from train_utils.run_folder import finished_line, mark_finished
from train_utils.settings.record import RunSettings, flags_as_json
from train_utils.settings.train_settings import TrainSettings


def mark(folder: Path, settings: TrainSettings, *, steps: int = 30) -> Path:
    """Mark a run of these settings as finished after all its steps, with the checkpoint of the last one."""
    checkpoint_folder(folder / "checkpoints", steps).mkdir(parents=True)
    record = RunSettings(flags_as_json(settings) | {"depth": 4}, total_steps=steps)  # what was open is recorded
    (folder / "run.json").write_text(json.dumps(asdict(record)))
    mark_finished(folder, steps)
    return folder


def has_finished(folder: Path, *flags: str) -> bool:
    """Whether a command with these flags finds the run finished."""
    return finished_line(folder, unplanned(*flags)) is not None


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a run that has made all its steps."""
    return mark(tmp_path, unplanned())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--epochs 3", True),
        ("--max-steps 30 --epochs 11", True),
        ("--max-minutes 9", True),
        ("--epochs 11", False),
        ("--max-steps 31", False),
        ("--seed 1", False),
        ("--batch-size 5", False),
    ],
)
def test_a_run_has_finished_if_no_more_steps_and_no_other_settings_are_asked_for(run, flags, expected):
    assert has_finished(run, *flags.split()) is expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", True),
        ("--base-channels 24", True),
        ("--base-channels 16", False),
        ("--eval-every 0", False),
        ("--task landmarks", False),
        ("--no-place", False),
    ],
)
def test_flags_that_the_plan_or_the_data_decided_need_not_be_typed(tmp_path, flags, expected):
    planned = parsed("--dataset", "data", "--max-steps", "30")
    mark(tmp_path, replace(planned, base_channels=24, epochs=9, eval_every=50, task="classes", place=True))
    line = finished_line(tmp_path, parsed("--dataset", "data", "--max-steps", "30", *flags.split()))
    assert (line is not None) is expected


@pytest.mark.parametrize(("minutes", "expected"), [("3", True), ("3.1", False)])
def test_a_run_of_minutes_has_finished_unless_more_minutes_are_given(tmp_path, minutes, expected):
    mark(tmp_path, unplanned("--max-minutes", "3"), steps=20)
    assert has_finished(tmp_path, "--max-minutes", minutes) is expected


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


@pytest.fixture
def no_data() -> Iterator[None]:
    """A run that looks at its data fails."""
    with mock.patch.object(train_utils.start, "load_dataset_info", side_effect=AssertionError):
        yield


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resume(folder: Path, data: Path, *flags: str) -> Run:
    return run_train(folder, "--dataset", data, *FLAGS, "--resume", "auto", *flags)


def test_finished_run_that_is_started_again_loads_no_data(data, copied, no_data):
    before = contents(copied)
    run = resume(copied, data)
    assert run.exit_code == 0
    line = next(text for text in run.output.splitlines() if text.startswith(str(copied)))
    assert line.startswith(f"{copied}: the run has finished, at step 4 of 4;")
    assert "--epochs, --max-steps" in line
    assert contents(copied) == before


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


def test_run_that_ran_out_of_patience_has_finished_whatever_its_length(data, impatient, no_data):
    assert "no better mean IoU in 1 evaluation" in impatient.output
    again = resume(impatient.folder, data, *PATIENCE, "--epochs", "40")
    assert again.exit_code == 0
    assert "to continue it, give a larger --patience" in again.output


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
