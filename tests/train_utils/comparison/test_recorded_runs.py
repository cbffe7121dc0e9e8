"""Runs as a comparison reads them: their best score, and records that are damaged.

Modules: train_utils/comparison/recipes.py.
"""

import json
import os

import pytest
from support.comparisons import write_run

from runtime.errors import DataError
from train_utils.comparison.recipes import read_run, read_runs


@pytest.mark.parametrize(
    ("scores", "best_step", "best_score"),
    [([0.5, 0.5, 0.4], 10, 0.5), ([0.4, 1.0, 1.1], 20, 1.0), ([0.0, -0.1, None], 10, 0.0)],
)
def test_the_score_of_a_run_is_the_first_of_its_best_ones_from_0_to_1(tmp_path, scores, best_step, best_score):
    folder = write_run(tmp_path / "a")
    lines = [json.dumps({"step": 10 * number, "eval/mean_iou": score}) for number, score in enumerate(scores, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    run, _ = read_run(folder)
    assert run.best_step == best_step
    assert run.score == best_score


@pytest.mark.parametrize("damaged", [["no json"], ["no json", '{"step": "2"}']], ids=["one", "two"])
def test_damaged_lines_of_the_log_are_counted(tmp_path, damaged):
    folder = write_run(tmp_path / "a")
    lines = ['{"step": 10, "eval/mean_iou": 0.5}', *damaged, ""]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    _, remarks = read_run(folder)
    lines = "1 line of metrics.jsonl is" if len(damaged) == 1 else f"{len(damaged)} lines of metrics.jsonl are"
    assert remarks == [f"{lines} damaged and left out"]


def test_a_run_that_has_not_finished_is_reported_with_its_last_step(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").write_text('{"step": 10, "eval/mean_iou": 0.5}\n{"step": 1234}\n')
    run, remarks = read_run(folder)
    assert run.steps == 1234
    assert remarks == ["the run has not finished (step 1,234 of 40); it is shown, and left out of the differences"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("flags", []), ("run", []), ("total_steps", None), ("encoder", ["a"]), ("profile", {"device": [1]})],
)
def test_a_record_with_an_impossible_value_is_refused(tmp_path, name, value):
    folder = write_run(tmp_path / "a")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {name: value}))
    with pytest.raises(DataError, match=rf"^run\.json .*{name}"):
        read_run(folder)


@pytest.mark.parametrize(
    ("make", "reason"), [(os.mkdir, "Is a directory"), (os.mkfifo, "it is not a regular file")], ids=["folder", "pipe"]
)
@pytest.mark.parametrize(
    ("name", "is_needed"), [("run.json", True), ("metrics.jsonl", True), ("images.csv", False)], ids=lambda value: value
)
def test_a_file_of_a_run_that_cannot_be_read_is_reported(tmp_path, name, is_needed, make, reason):
    folder = write_run(tmp_path / "a")
    (folder / name).unlink()
    make(folder / name)
    runs, (line,) = read_runs([folder])
    assert line.startswith(f"{folder}: {name} cannot be read ({reason})")
    assert len(runs) == (not is_needed)


@pytest.mark.parametrize("task", ["dreams", ["classes"]])
def test_a_run_without_a_known_task_is_refused(tmp_path, task):
    folder = write_run(tmp_path / "a", identity={"task": task})
    with pytest.raises(DataError, match="is not known to this version"):
        read_run(folder)


WRONG_LINE = "line 2 is not a name and a score from 0 to 1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("name,score\n", ""),
        ("image,x\na,nan\n", WRONG_LINE),
        ("image,x\na,1.1\n", WRONG_LINE),
        ('image,x\n"a"b,0.5\n', ""),
        ('image,x\n"a', ""),
        ("image,x\na,0.5,0.5\n", WRONG_LINE),
    ],
)
def test_a_damaged_file_of_images_is_a_line_beside_the_run(tmp_path, text, reason):
    folder = write_run(tmp_path / "a")
    (folder / "images.csv").write_text(text)
    run, (line,) = read_run(folder)
    assert run.image_scores == {}
    assert line.startswith(f"images.csv cannot be read ({reason}")
