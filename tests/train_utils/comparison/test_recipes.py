"""Runs as a comparison reads them; recipes, runs that differ by seed and fold alone; the settings that differ.

Module: train_utils/comparison/recipes.py.
"""

import json
import os
from pathlib import Path

import pytest
from support.comparisons import recipes_of, write_run, write_seeds

from runtime.errors import DataError
from train_utils.comparison.recipes import read_run, read_runs, recipe_table, settings_table


def change_record(run: Path, part: str, **values: object) -> None:
    """Change values in a part of run.json; None removes one."""
    record = json.loads((run / "run.json").read_text())
    record[part] = {key: value for key, value in (record[part] | values).items() if value is not None}
    (run / "run.json").write_text(json.dumps(record))


def test_runs_that_differ_by_seed_or_fold_alone_are_one_recipe(tmp_path):
    runs = write_seeds(tmp_path, "a", [0.0, 0.1, 0.2], num_workers=9, tracker="none")
    runs.append(write_run(tmp_path / "fold", fold="2/5"))
    change_record(runs[0], "run", git_commit="z")
    recipes = recipes_of(runs)
    assert list(recipes) == ["A"]
    assert len(recipes["A"]) == 4
    assert settings_table(recipes).rows == []


def test_settings_that_were_typed_belong_to_a_recipe(tmp_path):
    runs = []
    for epochs in (7, 9):
        folder = tmp_path / str(epochs)
        runs.append(write_run(folder, plan="auto", epochs=epochs, command=f"train.py --epochs {epochs}"))
    recipes = recipes_of(runs)
    assert len(recipes) == 2
    assert settings_table(recipes).cells()[1:] == [["epochs", "7", "9"]]


def test_a_typed_setting_is_of_another_recipe_than_a_chosen_one_whatever_the_order_of_runs(tmp_path):
    typed = {"plan": "auto", "command": "train.py --epochs 8"}
    runs = [write_run(tmp_path / f"{epochs}", plan="auto", epochs=epochs, fold=f"{epochs}/9") for epochs in (7, 8)]
    runs += [write_run(tmp_path / "typed", epochs=8, **typed), write_run(tmp_path / "c", epochs=8, seed=3, **typed)]
    for order in (runs, runs[::-1]):
        groups = [{run.folder.name for run in group} for group in recipes_of(order).values()]
        assert sorted(groups, key=len) in ([{"7", "8"}, {"typed", "c"}], [{"typed", "c"}, {"7", "8"}])


@pytest.mark.parametrize(
    ("word", "setting", "values"),
    [
        ("--no-freeze-encoder", "freeze_encoder", (False, True)),
        ("--freeze-encoder", "freeze_encoder", (True, False)),
        ("--batch-size=4", "batch_size", (4, 8)),
    ],
)
def test_a_setting_is_typed_as_a_switch_or_with_its_value(tmp_path, word, setting, values):
    typed = write_run(tmp_path / "typed", plan="auto", command=f"train.py {word}", **{setting: values[0]})
    planned = write_run(tmp_path / "planned", plan="auto", command="train.py", **{setting: values[1]})
    assert len(recipes_of([typed, planned])) == 2


def test_settings_without_effect_on_the_numbers_belong_to_no_recipe(tmp_path):
    first = write_run(tmp_path / "a")
    switches = dict.fromkeys(("activation_checkpointing", "cache", "deterministic", "check_data"), True)
    intervals = dict.fromkeys(("checkpoint_every", "keep_checkpoints", "log_every", "num_workers", "trace_steps"), 7)
    places = dict.fromkeys(("tracker", "like", "output_dir", "resume", "push_to_hub"), "x")
    second = write_run(tmp_path / "b", **switches, **intervals, **places, processes_per_volume=2)
    (recipe,) = recipes_of([first, second]).values()
    assert len(recipe) == 2


def test_differing_settings_have_a_value_for_each_recipe(tmp_path):
    """Folders of a run, of one with a newer flag, and of one with another precision and another version of torch."""
    runs = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", newer=0),
        write_run(tmp_path / "c", precision="bf16"),
    ]
    change_record(runs[2], "run", torch="2.14.0")
    cells = settings_table(recipes_of(runs)).cells()
    assert cells[0] == ["setting", "A", "B", "C"]
    assert sorted(cells[1:]) == [
        ["newer", "-", "0", "-"],
        ["precision", "no", "no", "bf16"],
        ["torch", "2.13.0", "2.13.0", "2.14.0"],
    ]


def test_a_version_that_one_run_has_not_recorded_is_no_difference(tmp_path):
    runs = [*write_seeds(tmp_path, "a", [0.0, 0.0]), write_run(tmp_path / "b", epochs=9)]
    change_record(runs[1], "run", torch=None)
    assert settings_table(recipes_of(runs)).cells()[1:] == [["epochs", "3", "9"]]


def test_a_row_of_a_recipe_has_scores_images_steps_seeds_and_folders(tmp_path):
    runs = [write_run(tmp_path / "a", fold="3/5", seed=0), write_run(tmp_path / "b", [0.2] * 1003, fold="2/5", seed=0)]
    runs.append(write_run(tmp_path / "c", {}, seed=7, finished=False))
    _, unfinished, folds = recipe_table(recipes_of(runs)).cells()
    cells = ["unfinished", "mean IoU", "0.5000", "n/a", "0.5000", "0.5000", "n/a", "40 of 40", "seed 7", str(runs[2])]
    assert unfinished == ["A", *cells]
    assert folds[:7] == ["B", "2", "mean IoU", "0.3375", "0.1945", "0.2000", "0.4750"]
    assert folds[7:10] == ["4, 1,003", "40 of 40", "fold 3/5, seed 0; fold 2/5, seed 0"]


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


def test_damaged_lines_of_the_log_are_counted(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").write_text('{"step": 10, "eval/mean_iou": 0.5}\nno json\n{"step": "2"}\n')
    _, remarks = read_run(folder)
    assert remarks == ["2 lines of metrics.jsonl are damaged and left out"]


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
        ("name,score\n", ""),
        ("image,x\na,nan\n", WRONG_LINE),
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
