"""The tables of a comparison on the terminal.

Module: train_utils/reporting/comparison/tables.py.
"""

import json
import re
from dataclasses import replace

import pytest
from support.comparisons import write_run

from train_utils.reporting.comparison.recipes import group_runs
from train_utils.reporting.comparison.recorded_runs import read_runs
from train_utils.reporting.comparison.tables import terminal_text


@pytest.fixture
def lines(tmp_path) -> list[str]:
    """The lines on a recipe that has not finished, A, and on one of two folds, B."""
    runs = [write_run(tmp_path / "a", fold="3/5", seed=0), write_run(tmp_path / "b", [0.2] * 1003, fold="2/5", seed=0)]
    records = ({"step": 1005, "eval/mean_iou": 0.2}, {"step": 1009, "eval/mean_iou": 0.2})
    (tmp_path / "b" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    longer = json.loads((tmp_path / "b" / "run.json").read_text()) | {"total_steps": 5000}
    (tmp_path / "b" / "run.json").write_text(json.dumps(longer))
    runs.append(write_run(tmp_path / "c", {}, seed=7, finished=False))
    recipes = group_runs([replace(run, name=f"runs/{run.folder.name}") for run in read_runs(runs)[0]])
    return terminal_text(recipes, {"epochs": ["3", "9"]}).splitlines()


@pytest.mark.parametrize(
    ("number", "cells"),
    [
        (0, "recipe|runs|score|spread|lowest|highest|images|best step|seeds or folds|folders"),
        (1, "A|unfinished|mean IoU 0.5000|n/a|0.5000|0.5000|n/a|40 of 40|seed 7|runs/c"),
        (
            2,
            "B|2|mean IoU 0.3375|0.1945|0.2000|0.4750|4, 1,003|40 of 40, 1,005 of 1,009"
            "|fold 3/5, seed 0, fold 2/5, seed 0|runs/a, runs/b",
        ),
    ],
    ids=["titles", "unfinished", "folds"],
)
def test_a_row_of_the_terminal_has_scores_images_steps_seeds_folders(lines, number, cells):
    assert re.split(r" {2,}", lines[number]) == cells.split("|")


def test_differing_settings_are_a_table_behind_an_empty_line(lines):
    assert lines[3:] == ["", "setting  A  B", "epochs   3  9"]
