"""--max-minutes: a number of steps is measured before the first one, and from there on the run is that many steps."""

import json
import re
import shutil
from unittest import mock

import pytest
import torch
from conftest import TINY, launch
from in_process import parsed, run_train
from safetensors.torch import load_file

from train_utils.monitoring import rehearsal
from train_utils.monitoring.rehearsal import FINISH_SECONDS, Times, count_steps
from train_utils.reporting.samples import PICTURES
from train_utils.schedule import Schedule

FLAGS = [*TINY, "--batch-size", "4", "--micro-batch-size", "2", "--dropout", "0.1", "--ema-decay", "0.9"]
FLAGS += ["--eval-every", "3", "--log-every", "1", "--checkpoint-every", "2", "--tracker", "none"]


def schedule(*flags: str, images: int = 100) -> Schedule:
    return Schedule.from_args(parsed("--batch-size", "10", *flags), images, None)


def test_the_steps_that_fit_leave_time_for_evaluations_saves_and_the_report():
    plain = Times(step=0.5, image=0.0, save=0.0)
    assert count_steps(FINISH_SECONDS + 10.1, plain, 8, 1, schedule()) == 20
    assert count_steps(1, plain, 8, 1, schedule()) == 1  # the time is over already
    times = Times(step=0.5, image=0.02, save=3.0)
    steps = count_steps(600, times, 50, 2, schedule("--eval-every", "20", "--checkpoint-every", "5"))
    pictures = PICTURES * 0.02 * 2
    evaluation = 50 * 0.02 + pictures + 3.0 / 3
    needed = [
        n * 0.5 + (n / 20 + 1) * evaluation + (n / 5 + 1) * 3.0 + 3 * pictures + FINISH_SECONDS
        for n in (steps, steps + 1)
    ]
    assert needed[0] <= 600 < needed[1]


@pytest.fixture(scope="module")
def runs(tiny_folder, tmp_path_factory):
    """Seven steps that were measured, and seven that were asked for."""
    folder = tmp_path_factory.mktemp("runs")
    with mock.patch.object(rehearsal, "count_steps", return_value=7):
        measured = run_train(folder / "measured", "--dataset", tiny_folder, *FLAGS, "--max-minutes", "1")
    asked = run_train(folder / "asked", "--dataset", tiny_folder, *FLAGS, "--max-steps", "7")
    assert measured.exit_code == asked.exit_code == 0, measured.output
    return measured, asked


def without_times(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if not key.startswith("perf/")} for record in records]


def test_a_measured_run_equals_one_of_as_many_steps_bit_for_bit(runs):
    measured, asked = runs
    assert re.search(r"time: .* s a step, .* as --max-steps 7\n", measured.output)
    assert measured.checkpoints() == asked.checkpoints() and measured.checkpoints()[-1] == 7
    for kind in ("model", "optimizer", "average"):
        ours, theirs = measured.tensors(7, kind), asked.tensors(7, kind)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert without_times(measured.records) == without_times(asked.records)
    assert all(torch.equal(value, asked.model[key]) for key, value in measured.model.items())
    assert measured.values("train/lr")[-1] == asked.values("train/lr")[-1] < 1e-4  # the schedule came to its end
    assert measured.settings["total_steps"] == asked.settings["total_steps"] == 7
    assert measured.settings["flags"]["max_minutes"] == 1
    left = {path.name for path in measured.folder.iterdir()}
    assert left == {path.name for path in asked.folder.iterdir()}  # nothing of the rehearsal


def test_a_resumed_run_never_measures_again(tiny_folder, runs, tmp_path):

    measured, asked = runs
    folder = tmp_path / "run"
    shutil.copytree(measured.folder, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000007")
    (folder / "finished.json").unlink()
    with mock.patch.object(rehearsal, "count_steps", side_effect=AssertionError):
        flags = ["--max-minutes", "3", "--resume", "auto"]
        again = run_train(folder, "--dataset", tiny_folder, *FLAGS, *flags)
    assert again.exit_code == 0, again.output
    assert "--max-minutes was measured when the run began: it stays 7 steps long" in again.output
    assert "time: measuring" not in again.output
    assert without_times(again.records) == without_times(asked.records)
    assert all(torch.equal(value, asked.weights(7)[key]) for key, value in again.weights(7).items())


def test_all_processes_agree_on_the_steps(tiny_folder, tmp_path):
    """The times are real; that the processes exchange gradients at all shows that they have as many steps."""
    flags = ["--max-minutes", "0.2", "--eval-every", "100", "--checkpoint-every", "100", "--log-every", "0"]
    command = ["train.py", "--dataset", tiny_folder, "--output-dir", tmp_path / "run", *FLAGS, *flags]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    said = int(re.search(r"as --max-steps (\d+)", result.stdout).group(1))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["total_steps"] == said
    state = tmp_path / "run" / "checkpoints" / f"step-{said:08}"
    assert json.loads((state / "state.json").read_text())["total_steps"] == said
    assert load_file(state / "model.safetensors")


def test_minutes_beside_steps_are_refused(fails_with):
    result = launch("train.py", "--max-minutes", "3", "--max-steps", "5")
    fails_with(result, "--max-minutes and --max-steps both say how long the run is; give one of them", 2)
