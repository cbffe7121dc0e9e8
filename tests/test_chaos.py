"""Faults of a cluster, drawn from a seed: a resumed run equals that of a quiet cluster, and a difference is noticed."""

import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from support.launches import ROOT

from benchmarks.chaos import FAULTS, TOLERANCE, Problem, compare, random_faults, resumed_at

SECONDS = 5400  # for 20 faults, on a machine with other work too


def test_all_kinds_of_faults_come_in_turn_in_an_order_of_the_seed():
    one, again, other = (list(islice(random_faults(list(FAULTS), seed), 2 * len(FAULTS))) for seed in (1, 1, 2))
    assert one == again != other
    assert sorted(one[: len(FAULTS)]) == sorted(one[len(FAULTS) :]) == sorted(FAULTS)


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    """A run of three steps."""
    run = tmp_path / "quiet"
    for folder in ("checkpoints/step-00000003", "model"):
        (run / folder).mkdir(parents=True)
        save_file({"weight": torch.ones(2)}, run / folder / "model.safetensors")
    (run / "checkpoints" / "step-00000003" / "manifest.json").write_text("{}")
    write_log(run, [0.5, 0.25, 0.125])
    return run


def write_log(run: Path, losses: list[float], first: int = 1) -> None:
    """A line for each step, with a speed that differs from run to run."""
    lines = []
    for step, loss in enumerate(losses, first):
        lines.append(json.dumps({"step": step, "train/loss": loss, "perf/images_per_second": id(run)}) + "\n")
    (run / "metrics.jsonl").write_text("".join(lines))


def problem(quiet: Path, run: Path, processes: int, *, lines_may_lack: bool = False) -> str:
    """What the comparison of a run that was resumed at step 1 says; "" where it finds nothing."""
    scene = SimpleNamespace(run=run, lines_may_lack=lines_may_lack, resumed_at=1)
    try:
        compare(quiet, scene, {"processes": processes})
    except Problem as found:
        return str(found)
    return ""


@pytest.fixture
def run(quiet, tmp_path) -> Path:
    """A run that equals the quiet one, but for its speed."""
    run = Path(shutil.copytree(quiet, tmp_path / "run"))
    write_log(run, [0.5, 0.25, 0.125])
    return run


def test_a_run_that_equals_the_quiet_one_is_no_problem(quiet, run):
    assert problem(quiet, run, 4) == ""
    assert problem(quiet, run, 2) == ""


def test_another_loss_is_a_problem_for_as_many_processes(quiet, run):
    write_log(run, [0.5, 0.25, 0.125 + TOLERANCE / 2])
    assert problem(quiet, run, 4) == "records differ"


def test_a_loss_of_other_processes_may_differ_by_its_tolerance(quiet, run):
    write_log(run, [0.5, 0.25, 0.125 + TOLERANCE / 2])
    assert problem(quiet, run, 2) == ""
    write_log(run, [0.5, 0.25, 0.125 + 2 * TOLERANCE])
    assert problem(quiet, run, 2) == "losses differ by 2.0e-05"


def test_a_line_before_the_step_of_a_resumption_may_lack(quiet, run):
    write_log(run, [0.25, 0.125], first=2)
    assert problem(quiet, run, 4, lines_may_lack=True) == ""
    assert problem(quiet, run, 4) == "records differ"
    assert problem(quiet, run, 1) == "the logged steps differ"


def test_a_line_after_the_step_of_a_resumption_may_not_lack(quiet, run):
    write_log(run, [0.125], first=3)
    assert "the log lacks the steps [1, 2]" in problem(quiet, run, 4, lines_may_lack=True)


@pytest.mark.parametrize(
    ("folder", "text"), [("checkpoints/step-00000003", "weights, averages"), ("model", "the best models")]
)
def test_other_weights_are_a_problem(quiet, run, folder, text):
    save_file({"weight": torch.tensor([1, 1 + 2**-23])}, run / folder / "model.safetensors")
    assert text in problem(quiet, run, 4)


def test_a_resumed_run_says_where_it_goes_on():
    assert resumed_at("profile: ...\nresumed from runs/a/checkpoints/step-00000012, at step 12 of 40\n") == 12
    assert resumed_at("profile: ...\n") is None


@pytest.mark.slow
def test_twenty_faults_leave_the_numbers_of_a_quiet_run(tmp_path):
    command = [sys.executable, "benchmarks/chaos.py", str(tmp_path / "chaos"), "--faults", "20", "--seed", "1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len((tmp_path / "chaos" / "faults.jsonl").read_text().splitlines()) == 20
