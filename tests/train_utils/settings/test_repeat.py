"""Runs that are started again: one that has finished, and one that is repeated from its record.

Modules: train_utils/settings/flags.py.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from support.folders import write_splits
from support.in_process import Run, parsed, run_train
from support.launches import TINY
from support.run_equality import different_tensors

import train
import train_utils.start
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


@pytest.fixture
def no_data() -> Iterator[None]:
    """A run that looks at its data fails."""
    with mock.patch.object(train_utils.start, "load_dataset_info", side_effect=AssertionError):
        yield


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resume(folder: Path, data: Path, *flags: str) -> Run:
    return run_train(folder, "--dataset", data, *FLAGS, "--resume", "auto", *flags)


@pytest.mark.parametrize(
    "flags", [(), ("--epochs", "1"), ("--max-steps", "4")], ids=["same length", "shorter", "as many steps"]
)
def test_finished_run_that_is_started_again_loads_no_data(data, copied, no_data, flags):
    before = contents(copied)
    run = resume(copied, data, *flags)
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
        mock.patch.object(train.Publisher, "write_results", side_effect=InterruptedError),
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


def test_a_damaged_marker_does_not_count(data, copied):
    (copied / "finished.json").write_text('{"step": 3}')
    run = resume(copied, data)
    assert run.exit_code == 0
    assert "resumed from" in run.output
    assert json.loads((copied / "finished.json").read_text())["step"] == 4


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


@pytest.fixture
def like(tmp_path: Path):
    """Arguments of train.py for a record whose flags are changed."""

    def arguments(changed: dict, *flags: str, **record):
        flags_of_run = json.loads(json.dumps(vars(parsed(*FLAGS)), default=str)) | changed
        (tmp_path / "run.json").write_text(json.dumps({"flags": flags_of_run, "total_steps": 70} | record))
        return parsed("--like", str(tmp_path / "run.json"), *flags)

    return arguments


def test_measured_minutes_become_the_steps_that_they_were_unless_a_length_is_given(like):
    args = like({"max_minutes": 3.0, "output_dir": "/x", "resume": "auto", "push_to_hub": "me/cells"})
    assert (args.max_steps, args.max_minutes) == (70, None)
    assert (args.output_dir, args.resume, args.push_to_hub) == (None, None, None)  # of that run alone
    assert like({"max_minutes": 3.0}, "--max-minutes", "5").max_steps is None
    args = like({"max_minutes": 3.0}, "--epochs=5")
    assert (args.epochs, args.max_steps, args.max_minutes) == (5, None, None)


def refused_line(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    """What train.py says of a record that it cannot use, in one line."""
    with pytest.raises(SystemExit) as ended:
        parsed("--like", str(file))
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "cannot be read ("),
        ('{"run": {}}', "cannot be read (it lacks flags)"),
        ('{"flags": {"wings": 2}}', "holds flags that are not known here: wings"),
    ],
)
def test_record_that_cannot_be_used_is_a_one_line_error(tmp_path, capsys, content, line):
    file = tmp_path / "run.json"
    file.write_text(content)
    assert f"--like {file} {line}" in refused_line(capsys, file)
