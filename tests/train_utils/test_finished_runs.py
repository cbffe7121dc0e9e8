"""When a run counts as finished, so that it is not resumed: its finished.json against the flags of a command.

Module: train_utils/opened_run.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.clocks import NO_CLOCK
from support.in_process import parsed
from support.runs import unplanned

from train_utils.checkpoints import checkpoint_folder
from train_utils.opened_run import finished_line, mark_finished
from train_utils.schedule import Schedule
from train_utils.settings.train_settings import TrainSettings

STEPS = 30  # ten epochs of three steps


def mark(folder: Path, settings: TrainSettings, *, step: int = STEPS, total_steps: int = STEPS) -> Path:
    """Mark a run of twelve images as finished at a step, with the checkpoint of this step."""
    checkpoint_folder(folder / "checkpoints", step).mkdir(parents=True)
    mark_finished(folder, Schedule(settings, 3, total_steps, NO_CLOCK), step)
    return folder


def has_finished(folder: Path, *flags: str) -> bool:
    """Whether a command with these flags finds the run finished."""
    return finished_line(folder, unplanned(*flags)) is not None


def change_record(folder: Path, **changes: object) -> None:
    """Change entries of finished.json."""
    file = folder / "finished.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def recorded_flags(folder: Path) -> dict:
    return json.loads((folder / "finished.json").read_text())["flags"]


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


def test_a_flag_that_is_newer_than_a_finished_run_counts_as_unchanged(run):
    flags = recorded_flags(run)
    del flags["num_workers"]
    change_record(run, flags=flags)
    assert has_finished(run, "--num-workers", "7")


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
    mark(tmp_path, unplanned("--max-minutes", "3"), step=20, total_steps=20)  # fewer than the ten epochs of --epochs
    assert has_finished(tmp_path, "--max-minutes", minutes) is expected
