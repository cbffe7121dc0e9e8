"""When a run counts as finished, so that it is not resumed: its records against the flags of a command.

Module: train_utils/opened_run.py.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.in_process import parsed
from support.runs import unplanned

from train_utils.checkpoints import checkpoint_folder
from train_utils.opened_run import finished_line, mark_finished
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
