"""compare.py: what it says of runs whose settings and scores are written out.

Modules: train_utils/reporting/image_scores.py, train_utils/reporting/comparison/recorded_runs.py,
train_utils/reporting/comparison/recipes.py, train_utils/reporting/comparison/differences.py,
train_utils/reporting/comparison/tables.py, train_utils/reporting/comparison/page.py.
"""

import contextlib
import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from scipy.stats import t

import compare
from runtime.errors import DataError, UserError
from runtime.script import print_error
from train_utils.reporting.comparison import page as page_module
from train_utils.reporting.comparison.differences import Difference, compare_recipes, t_interval
from train_utils.reporting.comparison.page import IMAGES
from train_utils.reporting.comparison.recipes import Recipe, differing_settings, group_runs
from train_utils.reporting.comparison.recorded_runs import read_run, read_runs
from train_utils.reporting.comparison.tables import terminal_text
from train_utils.reporting.embedding import Embedded, embed_all
from train_utils.reporting.image_scores import read_image_scores, write_image_scores

FLAGS = {"dataset": "photos", "plan": "none", "learning_rate": 0.001, "epochs": 3, "fold": None, "num_workers": 2}
IDENTITY = {"task": "classes", "classes": ["a", "b"], "data set": "40 + 10 images (abc)"}
RUN = {"command": "train.py", "torch": "2.13.0", "git_commit": "abc"}
HARD = [0.1, 0.7, 0.5, 0.6]  # how well any run does on each of four images


def write_run(
    folder: Path,
    scores: list[float] | dict[str, float] = HARD,
    *,
    task: str = "classes",
    finished: bool = True,
    command: str = "train.py",
    precision: str = "no",
    identity: dict | None = None,
    **flags,
) -> Path:
    """The folder of a run with these flags, which scores so on its images."""
    folder.mkdir(parents=True)
    if not isinstance(scores, dict):
        scores = {f"i{index}": score for index, score in enumerate(scores)}
    record = {
        "flags": FLAGS | {"seed": 0, "output_dir": str(folder)} | flags,
        "identity": IDENTITY | {"task": task} | (identity or {}),
        "profile": {"processes": 1, "mixed_precision": precision},
        "total_steps": 40,
        "run": RUN | {"command": command},
    }
    (folder / "run.json").write_text(json.dumps(record))
    key = {"classes": "eval/mean_iou", "landmarks": "eval/closeness"}[task]
    mean = float(np.mean([*scores.values()])) if scores else 0.5
    lines = [{"step": step, "train/loss": 4 / step} for step in range(1, 41)]
    lines += [{"step": 20, "eval/loss": 0.7, key: mean - 0.1}, {"step": 40, "eval/loss": 0.5, key: mean}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if scores:
        rows = "".join(f"{name},{score}\n" for name, score in scores.items())
        (folder / "images.csv").write_text(f"image,mean IoU\n{rows}", encoding="utf-8")
    if finished:
        (folder / "finished.json").write_text("{}")
    return folder


def seeds(folder: Path, name: str, gains: list[float], first: int = 0, **flags) -> list[Path]:
    """Runs of one recipe, a seed each, which score by so much more than HARD."""
    runs = []
    for seed, gain in enumerate(gains, start=first):
        runs.append(write_run(folder / f"{name}-{seed}", [score + gain for score in HARD], seed=seed, **flags))
    return runs


def compared(folders: list[Path], output: Path) -> SimpleNamespace:
    """What compare.py prints of the folders, and the page that it writes."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["compare.py", *map(str, folders), "--output", str(output)])
        try:
            compare.main()
        except UserError as error:
            code = print_error(error)
    page = output.read_text() if output.exists() else ""
    return SimpleNamespace(code=code, lines=out.getvalue().splitlines(), text=out.getvalue(), errors=errors, page=page)


@pytest.mark.parametrize("arguments", [[""], ["run", "--output", ""]], ids=["a run", "the page"])
def test_a_path_that_is_empty_is_refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    assert capsys.readouterr().err.endswith(": it is empty\n")


def test_the_help_says_how_it_is_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        compare.main()
    assert capsys.readouterr().out.startswith("usage: python compare.py RUN RUN ... [--output FILE]\n")


def differences_of(folders: list[Path]) -> tuple[list, list[str]]:
    return compare_recipes(group_runs(read_runs(folders)[0]))


def test_runs_that_differ_by_seed_or_fold_alone_are_one_recipe(tmp_path):
    runs = seeds(tmp_path, "a", [0.0, 0.1, 0.2], num_workers=9, tracker="none")
    runs.append(write_run(tmp_path / "fold", fold="2/5"))
    (recipe,) = group_runs(read_runs(runs)[0])
    assert recipe.label == "A"
    assert len(recipe.runs) == 4
    assert recipe.mean_score == pytest.approx(np.mean(HARD) + 0.3 / 4)
    assert recipe.spread == pytest.approx(np.std([0, 0, 0.1, 0.2], ddof=1))
    assert differences_of(runs) == ([], [])
    assert differing_settings([recipe]) == {}


def test_runs_of_another_precision_are_another_recipe(tmp_path):
    runs = [write_run(tmp_path / precision, precision=precision) for precision in ("no", "bf16")]
    recipes = group_runs(read_runs(runs)[0])
    assert len(recipes) == 2
    assert differing_settings(recipes) == {"precision": ["no", "bf16"]}


def test_two_runs_that_differ_by_one_seed_are_never_called_different(tmp_path):
    result = compared(seeds(tmp_path, "a", [0.0, 0.09]), tmp_path / "page.html")
    assert "all runs are of one recipe: they differ by seed and fold alone" in result.lines
    assert "is better" not in result.text + result.page


@pytest.mark.parametrize("seed", [0, 1])
def test_one_seed_each_does_not_say_which_recipe_is_better(tmp_path, seed):
    low = write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4])
    high = write_run(tmp_path / "b", [0.3, 0.3, 0.4, 0.4], seed=seed, epochs=9)
    (difference,), lines = differences_of([low, high])
    assert difference.first == "A"  # the higher score comes first
    assert difference.second == "B"
    assert difference.images == 4
    assert difference.compared_by == "mean IoU"
    assert difference.value == pytest.approx(-0.1)
    assert difference.deviation == pytest.approx(np.std([-0.2, -0.1, -0.1, 0], ddof=1))
    assert difference.better == 0
    assert difference.worse == 3
    assert difference.interval is None
    assert difference.is_shown is False
    subject = "One seed each" if seed == 0 else "this"
    assert f"{subject} does not say which recipe is better" in difference.sentence()
    assert "--seed 0, 1 and 2" in difference.sentence()
    assert lines == []


FEW = "train both with --seed 0, 1 and 2, or with --fold 1/5 to 5/5."
OVER = "Over 3 seeds or folds, 95% interval"


@pytest.mark.parametrize(
    ("value", "pairs", "interval", "judgement"),
    [
        (0.05, 0, None, f"They have no seed and fold in common, so this does not say which recipe is better: {FEW}"),
        (0.05, 1, None, f"One seed each does not say which recipe is better: {FEW}"),
        (0.05, 2, None, f"2 seeds or folds do not say which recipe is better: {FEW}"),
        (0.05, 3, (0.04, 0.06), f"{OVER} +0.0400 to +0.0600: B is better on these data."),
        (-0.05, 3, (-0.06, -0.04), f"{OVER} -0.0600 to -0.0400: A is better on these data."),
        (
            0.05,
            3,
            (0.0, 0.1),
            f"{OVER} +0.0000 to +0.1000: it holds 0, so the runs do not say which recipe is better.",
        ),
    ],
)
def test_a_difference_is_told_in_these_words(value, pairs, interval, judgement):
    difference = Difference("A", "B", "mean IoU", 1234, value, 0.1, 1190, 34, pairs, interval)
    counted = (
        f"B - A: mean IoU {value:+.4f} on average over 1,234 images (standard deviation over images 0.1000;"
        " B is better on 1,190, worse on 34)"
    )
    assert difference.sentence() == f"{counted}. {judgement}"


def test_equal_runs_are_not_shown_to_differ(tmp_path):
    (difference,), lines = differences_of(seeds(tmp_path, "a", [0.0] * 3) + seeds(tmp_path, "b", [0.0] * 3, epochs=9))
    assert difference.interval == (0.0, 0.0)
    assert difference.is_shown is False
    assert lines == []


@pytest.mark.parametrize("counts", ["unknown", "0 + 10 images"])
def test_runs_that_do_not_say_how_many_images_they_have_have_no_interval(tmp_path, counts):
    runs = []
    for number in range(3):
        for name, epochs in (("c", 3), ("d", 9)):
            scores = {f"{number}": 0.5}
            identity = {"data set": counts}
            runs.append(write_run(tmp_path / f"{name}{number}", scores, seed=number, epochs=epochs, identity=identity))
    (difference,), _ = differences_of(runs)
    assert difference.pairs == 3
    assert difference.images == 3
    assert difference.interval is None


def test_repeats_of_a_seed_are_averaged_over_the_images_that_all_of_them_have(tmp_path):
    first = write_run(tmp_path / "a", {"i0": 0.9, "i1": 0.8, "i2": 0.7})
    second = write_run(tmp_path / "b", {"i0": 0.1, "i1": 0.1, "i2": 0.1}, epochs=9)
    again = write_run(tmp_path / "c", {"i0": 0.3, "i1": 0.5}, epochs=9)
    (difference,), lines = differences_of([first, second, again])
    assert difference.pairs == 1
    assert difference.images == 2
    assert difference.value == pytest.approx((0.2 - 0.9 + 0.3 - 0.8) / 2)
    assert len(lines) == 1
    assert difference.deviation == pytest.approx(np.sqrt(0.02))  # of -0.7 and -0.5


def test_a_seed_whose_images_were_not_kept_is_no_pair_and_needs_no_line(tmp_path):
    first = [write_run(tmp_path / "a0", {}), write_run(tmp_path / "a1", seed=1)]
    second = [write_run(tmp_path / f"b{seed}", seed=seed, epochs=9) for seed in (0, 1)]
    (difference,), lines = differences_of(first + second)
    assert difference.pairs == 1
    assert difference.images == 4
    assert lines == []


def test_without_a_seed_in_common_the_first_runs_are_compared_on_the_images_of_both(tmp_path):
    first = [write_run(tmp_path / "a0", {"i0": 0.9}), write_run(tmp_path / "a1", {"i0": 0.5, "i1": 0.9}, seed=1)]
    second = [write_run(tmp_path / f"b{seed}", {"i0": 0.1 * seed, "i2": 0.1}, seed=seed, epochs=9) for seed in (2, 3)]
    (difference,), lines = differences_of(first + second)
    numbers = (difference.first, difference.pairs, difference.images, difference.deviation, lines)
    assert numbers == ("A", 0, 1, 0.0, [])
    assert difference.value == pytest.approx(-0.7)


def test_two_seeds_are_too_few_and_three_that_agree_show_a_difference(tmp_path):
    one = seeds(tmp_path, "a", [0.0, 0.05, 0.02])
    other = seeds(tmp_path, "b", [0.05, 0.101, 0.072], epochs=9)
    (difference,), _ = differences_of(one[:2] + other[:2])
    assert difference.pairs == 2
    assert not difference.is_shown
    assert "2 seeds or folds do not say which recipe is better" in difference.sentence()
    (difference,), _ = differences_of(one + other)
    gains = np.array([0.05, 0.051, 0.052])  # of what the images have in common nothing is left
    half = t.ppf(0.975, 2) * gains.std(ddof=1) / np.sqrt(3)
    assert difference.interval == pytest.approx((-gains.mean() - half, -gains.mean() + half))
    assert difference.is_shown
    assert "95% interval -0.0535 to -0.0485: A is better on these data." in difference.sentence()


def test_an_image_counts_by_the_mean_of_its_differences(tmp_path):
    first = [write_run(tmp_path / f"a{seed}", [0.5, 0.5, 0.9], seed=seed) for seed in (0, 1)]
    second = [write_run(tmp_path / "b0", [0.1, 0.6, 0.1], epochs=9)]
    second.append(write_run(tmp_path / "b1", [0.3, 0.2, 0.1], seed=1, epochs=9))
    (difference,), _ = differences_of(first + second)
    assert difference.pairs == 2
    assert difference.better == 0
    assert difference.worse == 3
    assert difference.value == pytest.approx(-0.4)
    assert difference.deviation == pytest.approx(np.std([-0.3, -0.1, -0.8], ddof=1))


def test_a_pair_of_runs_counts_once_however_many_images_it_has(tmp_path):
    first = [write_run(tmp_path / "a0", [0.5, 0.5, 0.5]), write_run(tmp_path / "a1", {"other": 0.5}, seed=1)]
    second = [write_run(tmp_path / "b0", [0.4, 0.4, 0.4], epochs=9)]
    second.append(write_run(tmp_path / "b1", {"other": 0.1}, seed=1, epochs=9))
    (difference,), _ = differences_of(first + second)
    assert difference.pairs == 2
    assert difference.images == 4
    assert difference.value == pytest.approx(-0.25)


def test_seeds_that_disagree_show_nothing_and_repeats_of_one_seed_are_one(tmp_path):
    one = seeds(tmp_path, "a", [0.0, 0.0, 0.0])
    other = seeds(tmp_path, "b", [0.1, -0.05, 0.02], epochs=9)
    (difference,), _ = differences_of(one + other)
    assert difference.pairs == 3
    assert not difference.is_shown
    assert "it holds 0" in difference.sentence()
    again = [write_run(tmp_path / f"a{index}") for index in range(3)]
    again += [write_run(tmp_path / f"b{index}", [score + 0.1 for score in HARD], epochs=9) for index in range(3)]
    (difference,), _ = differences_of(again)
    assert difference.pairs == 1
    assert difference.interval is None


@pytest.mark.parametrize(("counts", "ratio"), [((40, 40, 40), 10 / 40), ((40, 20, 30), 10 / 20)])
def test_folds_have_a_longer_interval_since_they_share_training_images(tmp_path, counts, ratio):
    runs = []
    for number, count in enumerate(counts, 1):
        for name, gain, epochs, images in (("a", 0.0, 3, 80), ("b", 0.01 * number, 9, count)):
            identity = {"data set": f"{images} + 10 images (abc)"}
            scores = {f"{number}-{index}": score + gain for index, score in enumerate(HARD)}
            folder = tmp_path / f"{name}-{number}"
            runs.append(write_run(folder, scores, fold=f"{number}/5", epochs=epochs, identity=identity))
    (difference,), _ = differences_of(runs)
    values = np.array([0.01, 0.02, 0.03])
    half = t.ppf(0.975, 2) * values.std(ddof=1) * np.sqrt(1 / 3 + ratio)
    assert difference.interval == pytest.approx((-0.02 - half, -0.02 + half))
    assert difference.images == 12


def test_the_level_is_divided_by_the_pairs_of_recipes(tmp_path):
    runs = []
    for number, epochs in enumerate((3, 4, 5)):
        runs += seeds(tmp_path, f"r{number}", [0.01 * number, 0.02 * number, 0.03 * number], epochs=epochs)
    runs.append(write_run(tmp_path / "stopped", epochs=6, finished=False))  # it is compared with none
    differences, _ = differences_of(runs)
    assert [(difference.first, difference.second) for difference in differences] == [("A", "B"), ("A", "C")]
    low, high = differences[0].interval
    assert high - low == pytest.approx(2 * t.ppf(1 - 0.05 / 6, 2) * 0.01 / np.sqrt(3))
    assert t_interval([1.0, 2.0, 3.0], 0.0, 0.95)[0] == pytest.approx(2 - t.ppf(0.975, 2) / np.sqrt(3))


def test_settings_belong_to_a_recipe_if_they_were_typed(tmp_path):
    planned = [
        write_run(tmp_path / f"p{epochs}", seed=epochs, plan="auto", epochs=epochs, command="train.py --seed 1")
        for epochs in (7, 8)
    ]
    typed = [
        write_run(tmp_path / f"t{epochs}", plan="auto", epochs=epochs, command=f"train.py --epochs {epochs}")
        for epochs in (7, 9)
    ]
    assert len(group_runs(read_runs(planned)[0])) == 1
    assert len(group_runs(read_runs(typed)[0])) == 2
    assert differing_settings(group_runs(read_runs(typed)[0])) == {"epochs": ["7", "9"]}


def test_settings_without_effect_on_the_numbers_belong_to_no_recipe(tmp_path):
    first = write_run(tmp_path / "a")
    switches = dict.fromkeys(("activation_checkpointing", "cache", "deterministic"), True)
    intervals = dict.fromkeys(("checkpoint_every", "keep_checkpoints", "log_every", "num_workers", "trace_steps"), 7)
    places = dict.fromkeys(("tracker", "like", "output_dir", "resume", "push_to_hub", "check_data"), "x")
    second = write_run(tmp_path / "b", **switches, **intervals, **places, processes_per_volume=2)
    (recipe,) = group_runs(read_runs([first, second])[0])
    assert len(recipe.runs) == 2


def test_precision_and_flags_that_one_run_alone_has_make_another_recipe(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", newer=0)]
    runs.append(write_run(tmp_path / "c"))
    record = json.loads((runs[2] / "run.json").read_text())
    record["profile"]["mixed_precision"] = "bf16"
    record["run"]["torch"] = "2.14.0"
    (runs[2] / "run.json").write_text(json.dumps(record))
    for order in (runs, runs[::-1]):
        recipes = group_runs(read_runs(order)[0])
        assert [recipe.runs[0].folder for recipe in recipes] == order  # of equal scores
    rows = differing_settings(group_runs(read_runs(runs)[0]))
    assert rows == {
        "precision": ["no", "no", "bf16"],
        "torch": ["2.13.0", "2.13.0", "2.14.0"],
        "newer": ["-", "0", "-"],
    }


def test_settings_of_a_recipe_are_the_different_ones_of_its_runs_in_their_order(tmp_path):
    runs = [write_run(tmp_path / name, seed=name) for name in "abc"]
    runs.append(write_run(tmp_path / "d", [0.0] * 4, crop_size=[32, 48], epochs=9))
    for run, version in zip(runs, ({}, {"git_commit": "z"}, {"git_commit": "y"}, {}), strict=True):
        record = json.loads((run / "run.json").read_text())
        del record["run"]["git_commit"]
        record["run"] |= version
        (run / "run.json").write_text(json.dumps(record))
    rows = differing_settings(group_runs(read_runs(runs)[0]))
    assert rows == {"epochs": ["3", "9"], "git_commit": ["- / z / y", "-"], "crop_size": ["-", "32 48"]}


def test_runs_that_have_not_finished_are_a_recipe_each_and_labels_go_on_behind_z(tmp_path):
    (run,), _ = read_runs([write_run(tmp_path / "a", finished=False)])
    finished = replace(run, is_finished=True)
    assert len(group_runs([run, finished])) == len(group_runs([finished, run])) == 2
    recipes = group_runs([run] * 54)
    labels = [recipe.label for recipe in recipes]
    assert [*labels[:2], *labels[25:28], *labels[51:]] == ["A", "B", "Z", "AA", "AB", "AZ", "BA", "BB"]
    assert not Recipe("A", [finished, run]).is_finished


def test_recipes_are_in_the_order_of_the_mean_score_of_their_runs(tmp_path):
    runs = seeds(tmp_path, "a", [0.2, -0.1]) + seeds(tmp_path, "b", [0.1], epochs=9)
    assert [recipe.runs[0].folder for recipe in group_runs(read_runs(runs)[0])] == [runs[2], runs[0]]


def test_a_plan_has_chosen_all_settings_of_a_run_that_records_no_command(tmp_path):
    runs = [write_run(tmp_path / f"{epochs}", plan="auto", epochs=epochs) for epochs in (7, 8)]
    for run in runs:
        record = json.loads((run / "run.json").read_text())
        del record["run"]["command"]
        (run / "run.json").write_text(json.dumps(record))
    assert len(group_runs(read_runs(runs)[0])) == 1


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
    for order in ([typed, planned], [planned, typed]):
        assert len(group_runs(read_runs(order)[0])) == 2


def test_a_cell_of_the_terminal_is_cut_at_60_characters_and_others_line_up(tmp_path):
    long, fitting = "x" * 61, "y" * 60
    runs = [write_run(tmp_path / "a", dataset=long), write_run(tmp_path / "b", dataset=fitting)]
    recipes = group_runs(read_runs(runs)[0])
    *_, line = terminal_text(recipes, differing_settings(recipes)).splitlines()
    assert line.split() == ["dataset", "x" * 57 + "...", fitting]
    assert terminal_text(recipes, {}).count("\n") == 2  # the titles and two recipes


def test_the_table_of_the_terminal_is_this(tmp_path):
    runs = [write_run(tmp_path / "a", fold="1/5", seed=0), write_run(tmp_path / "b", [0.2] * 1003, fold="2/5", seed=0)]
    records = ({"step": 1005, "eval/mean_iou": 0.2}, {"step": 1009, "eval/mean_iou": 0.2})
    (tmp_path / "b" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    longer = json.loads((tmp_path / "b" / "run.json").read_text()) | {"total_steps": 5000}
    (tmp_path / "b" / "run.json").write_text(json.dumps(longer))
    runs.append(write_run(tmp_path / "c", {}, seed=7, finished=False))
    recipes = group_runs([replace(run, name=run.folder.name) for run in read_runs(runs)[0]])
    lines = terminal_text(recipes, {"epochs": ["3", "9"]}).splitlines()
    rows = [re.split(r" {2,}", line) for line in lines]
    assert rows[0][:6] == ["recipe", "runs", "score", "spread", "lowest", "highest"]
    assert rows[0][6:] == ["images", "best step", "seeds or folds", "folders"]
    assert rows[1][:6] == ["A", "unfinished", "mean IoU 0.5000", "n/a", "0.5000", "0.5000"]
    assert rows[1][6:] == ["n/a", "40 of 40", "seed 7", "c"]
    assert rows[2][:6] == ["B", "2", "mean IoU 0.3375", "0.1945", "0.2000", "0.4750"]
    assert rows[2][6:] == ["4, 1,003", "40 of 40, 1,005 of 5,000", "fold 1/5, seed 0, fold 2/5, seed 0", "a, b"]
    assert {line.index(cell) for line, cell in zip(lines, ("spread", "n/a", "0.1945"), strict=False)} == {37}
    assert lines[3:] == ["", "setting  A  B", "epochs   3  9"]


@pytest.mark.parametrize(
    ("scores", "best"),
    [([0.5, 0.5, 0.4], (10, 0.5)), ([0.4, 1.0, 1.1], (20, 1.0)), ([0.0, -0.1, None], (10, 0.0))],
)
def test_the_score_of_a_run_is_the_first_of_its_best_ones_from_0_to_1(tmp_path, scores, best):
    folder = write_run(tmp_path / "a", finished=False)
    lines = [json.dumps({"step": 10 * number, "eval/mean_iou": score}) for number, score in enumerate(scores, 1)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 1234}', "no json", '{"step": "2"}', ""]))
    run, remarks = read_run(folder)
    assert (run.best_step, run.score) == best
    assert remarks == [
        "2 lines of metrics.jsonl are damaged and left out",
        "the run has not finished (step 1,234 of 40); it is shown, and left out of the differences",
    ]


@pytest.mark.parametrize("name", ["flags", "profile", "identity", "run"])
def test_a_record_without_one_of_its_parts_is_refused(tmp_path, name):
    folder = write_run(tmp_path / "a")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {name: []}))
    with pytest.raises(DataError, match=f"^run.json is damaged: its {name} is no object$"):
        read_run(folder)


@pytest.mark.parametrize("total_steps", ["40", True, 40.0, None])
def test_a_record_without_a_whole_number_of_steps_is_refused(tmp_path, total_steps):
    folder = write_run(tmp_path / "a")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"total_steps": total_steps}))
    with pytest.raises(DataError, match=r"^run.json is damaged: its total_steps is no whole number$"):
        read_run(folder)


def test_a_run_without_its_log_is_refused(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match=r"^metrics.jsonl cannot be read \(No such file or directory\)$"):
        read_run(folder)


def test_other_tasks_classes_images_and_files_are_said_in_a_line_each(tmp_path):
    first = write_run(tmp_path / "a")
    _, lines = differences_of([first, write_run(tmp_path / "points", task="landmarks")])
    assert lines == ["the runs have other tasks (classes, landmarks): only those of one task are compared"]
    runs = [tmp_path / "points", write_run(tmp_path / "more points", [0.9] * 4, task="landmarks", epochs=9), first]
    runs.append(write_run(tmp_path / "more", [0.2] * 4, epochs=9))
    differences, lines = differences_of(runs)
    assert [recipe.runs[0].folder for recipe in group_runs(read_runs(runs)[0])] == [first, runs[3], runs[1], runs[0]]
    assert [(found.first, found.second) for found in differences] == [("A", "B"), ("C", "D")]
    assert len(lines) == 1
    _, lines = differences_of([first, write_run(tmp_path / "classes", identity={"classes": ["c"]})])
    assert lines == ["A and B have other classes: their scores cannot be compared"]
    fewer = write_run(tmp_path / "fewer", {"i0": 0.2, "i1": 0.9, "x": 1.0}, dataset="other")
    (difference,), lines = differences_of([first, fewer])
    assert difference.images == 2
    counts = "have 3 and 4 validation images: the 2 of the same name are compared"
    assert lines == [f"{fewer} and {first} {counts}"]
    part = write_run(tmp_path / "part", {"i0": 0.2, "i1": 0.9, "i2": 0.1}, dataset="other")
    _, lines = differences_of([first, part])
    assert lines == [f"{first} and {part} have 4 and 3 validation images: the 3 of the same name are compared"]
    _, lines = differences_of([first, write_run(tmp_path / "none", {"x": 0.2}, dataset="other")])
    assert lines == ["A and B have no validation image in common: they are not compared"]
    files = write_run(tmp_path / "files", dataset="other", identity={"content of the data set": "y"})
    _, lines = differences_of([first, files])
    assert len(lines) == 1
    assert "were made with other files: their validation images are paired by name" in lines[0]


def test_remarks_and_differences_are_said_on_the_terminal_and_on_the_page(tmp_path):
    first = write_run(tmp_path / "a")
    fewer = write_run(tmp_path / "b", {"i0": 0.2, "i1": 0.9}, epochs=9)
    result = compared([first, fewer], tmp_path / "page.html")
    remark = f"{fewer} and {first} have 2 and 4 validation images: the 2 of the same name are compared"
    sentence = "One seed each does not say which recipe is better"
    assert remark in result.lines
    assert sentence in result.text
    assert remark in Page(result.page).text
    assert sentence in Page(result.page).text


def test_each_recipe_is_compared_with_the_first_of_its_task(tmp_path):
    first = write_run(tmp_path / "a", [0.9] * 4)
    runs = [first, write_run(tmp_path / "b", [0.8] * 4, identity={"classes": ["c"]})]
    runs.append(write_run(tmp_path / "c", {"x": 0.7}, epochs=5))
    runs.append(write_run(tmp_path / "d7", [0.6] * 4, seed=7, epochs=6))  # without another run of this seed
    runs += [write_run(tmp_path / "d0", {"i0": 0.6}, epochs=6), write_run(tmp_path / "e", [0.5] * 3, epochs=7)]
    runs.append(write_run(tmp_path / "points", task="landmarks"))
    differences, lines = differences_of(runs)
    assert [(found.first, found.second) for found in differences] == [("A", "D"), ("A", "E")]
    assert lines == [
        "the runs have other tasks (classes, landmarks): only those of one task are compared",
        "A and B have other classes: their scores cannot be compared",
        "A and C have no validation image in common: they are not compared",
        f"{first} and {runs[4]} have 4 and 1 validation images: the 1 of the same name are compared",
        f"{first} and {runs[5]} have 4 and 3 validation images: the 3 of the same name are compared",
    ]


def test_a_run_that_records_no_seed_has_none(tmp_path):
    ((run,), _) = read_runs([write_run(tmp_path / "a")])
    settings = replace(run.settings, flags={})
    assert replace(run, settings=settings).replicate == ("None", None)


def test_a_run_is_named_by_its_folder_as_it_was_typed(tmp_path):
    write_run(tmp_path / "a")
    typed = tmp_path / "a" / ".." / "a"
    other = write_run(tmp_path / "others" / "a")
    ((run, second), _) = read_runs([typed, other])
    assert run.name == str(typed)
    assert run.folder == typed
    assert second.folder == other


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "images.csv"])
def test_a_file_of_a_run_that_cannot_be_read_is_said(tmp_path, name):
    folder = write_run(tmp_path / "a")
    (folder / name).unlink()
    (folder / name).mkdir()
    runs, (line,) = read_runs([folder])
    assert line.startswith(f"{folder}: {name} cannot be read (Is a directory)")
    assert len(runs) == (name == "images.csv")


def test_broken_unfinished_and_missing_runs_are_a_line_each(tmp_path):
    sound = write_run(tmp_path / "sound")
    unfinished = write_run(tmp_path / "unfinished", finished=False, epochs=5)
    old = write_run(tmp_path / "old", {}, seed=3)
    broken = write_run(tmp_path / "broken")
    (broken / "run.json").write_text('{"flags": 3')
    listed_run = write_run(tmp_path / "listed")
    (listed_run / "run.json").write_text(json.dumps({"flags": [], "profile": {}, "identity": {}, "run": {}}))
    young = write_run(tmp_path / "young")
    (young / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2}\nno json\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    page = tmp_path / "page.html"
    folders = [sound, unfinished, old, broken, listed_run, young, empty, tmp_path / "missing", empty / ".." / "sound"]
    result = compared(folders, page)
    assert result.code == 0
    assert "Traceback" not in result.text
    for name, words in (
        ("unfinished", "has not finished (step 40 of 40)"),
        ("old", "there is no images.csv"),
        ("broken", "run.json cannot be read"),
        ("listed", "its flags is no object"),
        ("young", "the run has no evaluation yet; it is left out"),
        ("empty", "it holds no run.json"),
        ("missing", "it is no folder of a run"),
    ):
        (line,) = [line for line in result.lines if line.startswith(f"{tmp_path / name}: ")]
        assert words in line, name
        assert line in Page(result.page).text, name
    assert "all runs are of one recipe" not in result.text
    assert len(read_runs(folders)[0]) == 3
    failed = compared([empty, tmp_path / "missing"], tmp_path / "none.html")
    assert failed.code == 1
    assert "no run is left to compare" in failed.errors.getvalue()
    assert not failed.page
    assert f"{empty}: it holds no run.json" in failed.errors.getvalue()
    assert f"{tmp_path / 'missing'}: it is no folder of a run" in failed.errors.getvalue()
    unwritable = compared([sound], tmp_path / "nowhere" / "page.html")
    assert unwritable.code == 1
    assert "cannot be written (No such file or directory)" in unwritable.errors.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name,score\n",
        "image,mean IoU\na,b\n",
        "image,x\na,nan\n",
        "image,x\na,1.1\n",
        "image,x\na,-0.1\n",
        'image,x\n"a"b,0.5\n',
        'image,x\n"a',
        "image,x\na\n",
        "image,x,y\na,0.5\n",
        "image,x\na,0.5,0.5\n",
    ],
)
def test_a_damaged_file_of_images_is_a_line_and_the_run_stays(tmp_path, text):
    folder = write_run(tmp_path / "a")
    (folder / "images.csv").write_text(text)
    run, (line,) = read_run(folder)
    assert run.image_scores == {}
    assert line.startswith("images.csv cannot be read (")
    if text.startswith("image,x\na"):
        assert "(line 2 is not a name and a score from 0 to 1)" in line


def test_a_run_without_a_known_task_is_refused(tmp_path):
    for index, task in enumerate(("dreams", ["classes"])):
        folder = write_run(tmp_path / str(index), identity={"task": task})
        with pytest.raises(DataError, match="is not known to this version"):
            read_run(folder)


class Page(HTMLParser):
    """The text of a page, in one line for each element, and its pictures and tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.alts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.alts += [value for name, value in attrs if name == "alt"]

    def handle_data(self, data):
        self.text += f"{data}\n"


def test_the_page_shows_settings_curves_and_the_same_images_and_escapes_names(tmp_path):
    evil = "<script>alert(1)"
    names = {f"{evil}{index}": score for index, score in enumerate([*HARD, *HARD, *HARD])}
    signs = (1, -1, -1)
    worse = {name: score + 0.01 * index * signs[index % 3] for index, (name, score) in enumerate(names.items())}
    runs = [write_run(tmp_path / f"{evil}-a", names, dataset=evil), write_run(tmp_path / "b", worse, dataset="<u>")]
    for height, run in zip((20, 30), runs, strict=True):
        (run / "predictions").mkdir()
        for index, name in enumerate(names):
            Image.fromarray(np.zeros((height, 80 + index, 3), np.uint8)).save(run / "predictions" / f"{name}.png")
    (runs[0] / "predictions" / f"{evil}11.png").write_bytes(b"no picture")
    result = compared(runs, tmp_path / "page.html")
    page = Page(result.page)
    assert "script" not in page.tags
    assert "u" not in page.tags
    assert evil in page.text
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', result.page) == []
    assert page.tags.count("svg") == 3
    assert page.tags.count("img") == 2 * IMAGES
    names_on_page = [name for name in names if f"{name}\n" in page.text]
    assert names_on_page == [
        f"{evil}{index}" for index in range(3, 11)
    ]  # those that differ most, but for the damaged one
    sizes = re.findall(r'<img [^>]*width="(\d+)"\s+height="(\d+)"', result.page)
    assert sizes[:4] == [("90", "20"), ("90", "30"), ("89", "20"), ("89", "30")]  # those of the last two
    assert page.alts[0] == f"A: mean IoU {HARD[2]:.4f}"
    assert page.alts[1] == f"B: mean IoU {HARD[2] - 0.1:.4f}"
    assert "One seed each does not say which recipe is better" in page.text
    assert "dataset\n<script>alert(1)\n<u>\n" in re.sub(r"\n\s*", "\n", page.text)
    assert "A" in result.lines[1].split()
    assert any(line.startswith("dataset ") for line in result.lines)


def with_pictures(run: Path, *names: str) -> Path:
    (run / "predictions").mkdir()
    for name in names:
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(run / "predictions" / f"{name}.png")
    return run


def test_seeds_of_one_recipe_are_shown_beside_each_other(tmp_path):
    runs = seeds(tmp_path, "a", [0.0, 0.1])
    with_pictures(runs[0], "i0", "i1", "i2")
    with_pictures(runs[1], "i0", "i1", "i3")
    result = compared(runs, tmp_path / "page.html")
    page = Page(result.page)
    assert "What the score of another recipe has to exceed is their spread." in page.text
    assert "0, seed 1" in page.text
    assert "folders" not in page.text
    scores = ((runs[0], 0.1), (runs[1], 0.2), (runs[0], 0.7), (runs[1], 0.8))  # of the images that both have drawn
    assert sorted(page.alts) == sorted(f"{run}: mean IoU {score:.4f}" for run, score in scores)
    lines = re.findall(r'id="([\w-]+-series-\d)">\s*<path [^>]*stroke: var\(--series-(\d)\)', result.page)
    scores = re.findall(r'id="validation-mean-iou-series-\d">\s*<path d="(.*?)"', result.page, flags=re.DOTALL)
    assert len(set(scores)) == 2  # each run's own
    titles = ("validation-mean-iou", "validation-loss", "training-loss")
    assert lines == [(f"{title}-series-{number}", "0") for title in titles for number in range(2)]


def test_pictures_that_may_not_be_read_are_not_shown(tmp_path, monkeypatch):
    runs = [with_pictures(run, "i0") for run in seeds(tmp_path, "a", [0.0, 0.1])]
    monkeypatch.setattr(page_module, "overlaid", lambda title, lines: None)  # no charts
    monkeypatch.setattr(page_module, "read_image", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    result = compared(runs, tmp_path / "page.html")
    assert result.code == 0
    assert "img" not in Page(result.page).tags


def test_an_image_that_one_run_alone_has_scored_is_not_shown(tmp_path):
    both = write_run(tmp_path / "both", {"i0": 0.1, "i1": 0.9}, seed=0)
    one = write_run(tmp_path / "one", {"i0": 0.2}, seed=1)
    runs = [with_pictures(run, "i0", "i1") for run in (both, one)]
    page = Page(compared(runs, tmp_path / "page.html").page)
    assert sorted(page.alts) == [f"{both}: mean IoU 0.1000", f"{one}: mean IoU 0.2000"]


def test_an_image_is_shown_as_six_seeds_at_most_have_drawn_it(tmp_path):
    runs = [with_pictures(run, "i0") for run in seeds(tmp_path, "a", [0.01 * number for number in range(7)])]
    (runs[1] / "images.csv").write_text("image,mean IoU\ni1,0.5\n")
    page = Page(compared(runs, tmp_path / "page.html").page)
    scores = [": mean IoU 0.1000", "", *[f": mean IoU 0.1{number}00" for number in range(2, 6)]]
    assert page.alts == [f"{run}{score}" for run, score in zip(runs[:6], scores, strict=True)]


def test_runs_of_the_same_seed_and_fold_are_shown_and_six_recipes_at_most(tmp_path):
    first = with_pictures(write_run(tmp_path / "a", seed=1), "i0")
    other_folders = []
    for number, (seed, fold) in enumerate([(0, None), (1, "2/5"), (1, None)]):
        run = write_run(tmp_path / f"b{number}", [0.1 * number] * 4, seed=seed, fold=fold, epochs=9)
        other_folders.append(with_pictures(run, "i0"))
    result = compared([first, *other_folders], tmp_path / "page.html")
    assert Page(result.page).alts == ["A: mean IoU 0.1000", "B: mean IoU 0.2000"]
    assert "All runs are of one recipe" not in result.page
    colors = re.findall(r'id="training-loss-series-\d">\s*<path [^>]*stroke: var\(--series-(\d)\)', result.page)
    assert colors == ["0", "1", "1", "1"]
    many = [write_run(tmp_path / f"c{epochs}", [0.9 - 0.01 * epochs] * 4, epochs=epochs) for epochs in range(10, 17)]
    result = compared(many, tmp_path / "many.html")
    assert result.page.count('id="training-loss-series-') == 6
    assert Page(result.page).text.count("\nG\n") >= 1
    assert set(re.findall(r'class="key series-(\d)"', result.page)) == set("012345")


def test_a_recipe_without_the_seed_of_the_first_one_is_shown_by_its_first_run(tmp_path):
    runs = [with_pictures(write_run(tmp_path / "a", [0.9] * 4), "i0")]
    for seed, score in ((1, 0.5), (2, 0.6)):
        run = write_run(tmp_path / f"b{seed}", [score] * 4, seed=seed, epochs=9)
        runs.append(with_pictures(run, "i0"))
    page = Page(compared(runs, tmp_path / "page.html").page)
    assert page.alts == ["A: mean IoU 0.9000", "B: mean IoU 0.5000"]


def test_pictures_of_a_thousand_pixels_are_reduced_to_the_room_that_is_left(tmp_path, monkeypatch):
    runs = [with_pictures(run, "i0") for run in seeds(tmp_path, "a", [0.0, 0.1])]
    monkeypatch.setattr(page_module, "overlaid", lambda title, lines: None)  # no charts
    noise = np.random.default_rng(0).integers(0, 256, (24, 1200, 3), dtype=np.uint8)
    for run in runs:
        Image.fromarray(noise).save(run / "predictions" / "i0.png")
    page = compared(runs, tmp_path / "large.html").page
    assert re.findall(r'<img [^>]*width="(\d+)"\s+height="(\d+)"', page) == [("1000", "20")] * 2
    monkeypatch.setattr(page_module, "MAX_PAGE", 40_000)
    rooms = []

    def embedded(pictures: list[np.ndarray], room: int, side: int) -> list[Embedded]:
        rooms.append(room)
        return embed_all(pictures, room, side)

    monkeypatch.setattr(page_module, "embed_all", embedded)
    page = compared(runs, tmp_path / "small.html").page
    assert 20_000 < len(page) <= 40_000
    bytes_of_rest = len(re.sub("<figure>.*?</figure>", "", page, flags=re.DOTALL))
    assert 40_000 - bytes_of_rest - 2 * 1_000 <= rooms[0] < 40_000 - bytes_of_rest - 2 * 900  # markup of two pictures


def test_the_score_of_each_task_has_a_chart_and_is_named_in_the_table(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "points", task="landmarks")]
    page = compared(runs, tmp_path / "page.html").page
    assert re.findall("<td>(.* 0.4750)</td>", page) == ["mean IoU 0.4750", "closeness 0.4750"]
    titles = re.findall("<h3>(.*?)</h3>", page)
    assert titles == ["Validation mean IoU", "Validation closeness", "Validation loss", "Training loss"]


def test_a_loss_that_no_run_has_logged_has_no_chart(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text('{"step": 40, "eval/mean_iou": 0.5, "eval/loss": 0.1}\n')
    page = Page(compared([run], tmp_path / "page.html").page)
    assert "Validation loss" in page.text
    assert "Training loss" not in page.text
    assert page.tags.count("svg") == 2


def test_the_score_of_each_image_survives_its_file_whatever_the_name(tmp_path):
    names = ["a,b", 'say "x"', "two\nlines", "thrice", "thrice", "thrice", "thrice", "half \udcff"]
    records = SimpleNamespace(name=names.__getitem__)
    val = SimpleNamespace(records=records, bad={3: "thrice: unreadable"}, __len__=None)
    info = SimpleNamespace(val=Sized(val))
    scores = [0.1, 0.0, 1.0, 0.4, 0.5, 0.10012562572956085, 0.6, 0.7]
    write_image_scores(tmp_path, info, "mean IoU", scores)
    stored = read_image_scores(tmp_path)
    assert list(stored) == ["a,b", 'say "x"', r"two\nlines", "thrice", "thrice (2)", "thrice (3)", r"half \udcff"]
    assert np.float32(stored["thrice (2)"]) == np.float32(0.10012562572956085)
    assert [*stored.values()][:3] == [0.1, 0.0, 1.0]
    assert (tmp_path / "images.csv").read_bytes().startswith(b'image,mean IoU\n"a,b",0.1\n')
    write_image_scores(tmp_path, info, "mean IoU", scores[:3])  # of another number of images
    assert read_image_scores(tmp_path) == stored
    (tmp_path / "images.csv").unlink()
    write_image_scores(tmp_path, info, "mean IoU", [])  # of a checkpoint of an earlier version
    assert not (tmp_path / "images.csv").exists()


class Sized:
    """A split of eight images."""

    def __init__(self, split: SimpleNamespace) -> None:
        self.records, self.bad = split.records, split.bad

    def __len__(self) -> int:
        return 8
