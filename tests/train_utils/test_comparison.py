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
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from scipy.stats import t

import compare
from runtime.cli import print_error
from runtime.errors import DataError, UserError
from train_utils.reporting.comparison.differences import compare_recipes, t_interval
from train_utils.reporting.comparison.page import IMAGES
from train_utils.reporting.comparison.recipes import differing_settings, group_runs
from train_utils.reporting.comparison.recorded_runs import read_run, read_runs
from train_utils.reporting.comparison.tables import terminal_text
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
        "profile": {"processes": 1, "mixed_precision": "no"},
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


def differences_of(folders: list[Path]) -> tuple[list, list[str]]:
    return compare_recipes(group_runs(read_runs(folders)[0]))


def test_runs_that_differ_by_seed_or_fold_alone_are_one_recipe(tmp_path):
    runs = seeds(tmp_path, "a", [0.0, 0.1, 0.2], num_workers=9, tracker="none")
    runs.append(write_run(tmp_path / "fold", fold="2/5"))
    (recipe,) = group_runs(read_runs(runs)[0])
    assert recipe.label == "A" and len(recipe.runs) == 4
    assert recipe.mean_score == pytest.approx(np.mean(HARD) + 0.3 / 4)
    assert recipe.spread == pytest.approx(np.std([0, 0, 0.1, 0.2], ddof=1))
    assert differences_of(runs) == ([], []) and differing_settings([recipe]) == {}


def test_two_runs_that_differ_by_one_seed_are_never_called_different(tmp_path):
    result = compared(seeds(tmp_path, "a", [0.0, 0.09]), tmp_path / "page.html")
    assert "all runs are of one recipe: they differ by seed and fold alone" in result.lines
    assert "is better" not in result.text + result.page


@pytest.mark.parametrize("seed", [0, 1])
def test_one_seed_each_does_not_say_which_recipe_is_better(tmp_path, seed):
    low = write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4])
    high = write_run(tmp_path / "b", [0.3, 0.3, 0.4, 0.4], seed=seed, epochs=9)
    (difference,), lines = differences_of([low, high])
    assert (difference.first, difference.second, difference.images) == ("A", "B", 4)  # the higher score comes first
    assert difference.value == pytest.approx(-0.1)
    assert difference.deviation == pytest.approx(np.std([-0.2, -0.1, -0.1, 0], ddof=1))
    assert (difference.better, difference.worse, difference.interval, difference.is_shown) == (0, 3, None, False)
    subject = "One seed each" if seed == 0 else "this"
    assert f"{subject} does not say which recipe is better" in difference.sentence()
    assert "--seed 0, 1 and 2" in difference.sentence() and lines == []


def test_two_seeds_are_too_few_and_three_that_agree_show_a_difference(tmp_path):
    one = seeds(tmp_path, "a", [0.0, 0.05, 0.02])
    other = seeds(tmp_path, "b", [0.05, 0.101, 0.072], epochs=9)
    (difference,), _ = differences_of(one[:2] + other[:2])
    assert difference.pairs == 2 and not difference.is_shown
    assert "2 seeds or folds do not say which recipe is better" in difference.sentence()
    (difference,), _ = differences_of(one + other)
    gains = np.array([0.05, 0.051, 0.052])  # of what the images have in common nothing is left
    half = t.ppf(0.975, 2) * gains.std(ddof=1) / np.sqrt(3)
    assert difference.interval == pytest.approx((-gains.mean() - half, -gains.mean() + half))
    assert difference.is_shown
    assert "95% interval -0.0535 to -0.0485: A is better on these data." in difference.sentence()


def test_seeds_that_disagree_show_nothing_and_repeats_of_one_seed_are_one(tmp_path):
    one = seeds(tmp_path, "a", [0.0, 0.0, 0.0])
    other = seeds(tmp_path, "b", [0.1, -0.05, 0.02], epochs=9)
    (difference,), _ = differences_of(one + other)
    assert difference.pairs == 3 and not difference.is_shown and "it holds 0" in difference.sentence()
    again = [write_run(tmp_path / f"a{index}") for index in range(3)]
    again += [write_run(tmp_path / f"b{index}", [score + 0.1 for score in HARD], epochs=9) for index in range(3)]
    (difference,), _ = differences_of(again)
    assert difference.pairs == 1 and difference.interval is None


@pytest.mark.parametrize(("counts", "ratio"), [((40, 40, 40), 10 / 40), ((40, 20, 30), 10 / 20)])
def test_folds_have_a_longer_interval_since_they_share_training_images(tmp_path, counts, ratio):
    runs = []
    for number, count in enumerate(counts, 1):
        identity = {"data set": f"{count} + 10 images (abc)"}
        for name, gain, epochs in (("a", 0.0, 3), ("b", 0.01 * number, 9)):
            scores = {f"{number}-{index}": score + gain for index, score in enumerate(HARD)}
            folder = tmp_path / f"{name}-{number}"
            runs.append(write_run(folder, scores, fold=f"{number}/5", epochs=epochs, identity=identity))
    (difference,), _ = differences_of(runs)
    values = np.array([0.01, 0.02, 0.03])
    half = t.ppf(0.975, 2) * values.std(ddof=1) * np.sqrt(1 / 3 + ratio)
    assert difference.interval == pytest.approx((-0.02 - half, -0.02 + half)) and difference.images == 12


def test_the_level_is_divided_by_the_pairs_of_recipes(tmp_path):
    runs = []
    for number, epochs in enumerate((3, 4, 5)):
        runs += seeds(tmp_path, f"r{number}", [0.01 * number, 0.02 * number, 0.03 * number], epochs=epochs)
    runs.append(write_run(tmp_path / "stopped", epochs=6, finished=False))  # it is compared with none
    differences, _ = differences_of(runs)
    assert [(difference.first, difference.second) for difference in differences] == [("A", "B"), ("A", "C")]
    low, high = differences[0].interval
    assert high - low == pytest.approx(2 * t.ppf(1 - 0.05 / 6, 2) * 0.01 / np.sqrt(3))
    assert t_interval([1.0, 2.0, 3.0], 0.0)[0] == pytest.approx(2 - t.ppf(0.975, 2) / np.sqrt(3))


def test_what_the_plan_chose_belongs_to_no_recipe_and_what_was_typed_does(tmp_path):
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
    assert len(group_runs(read_runs([typed, planned])[0])) == 2


def test_a_cell_of_the_terminal_is_cut_at_60_characters_and_others_line_up(tmp_path):
    long, fitting = "x" * 61, "y" * 60
    runs = [write_run(tmp_path / "a", dataset=long), write_run(tmp_path / "b", dataset=fitting)]
    recipes = group_runs(read_runs(runs)[0])
    *_, line = terminal_text(recipes, differing_settings(recipes)).splitlines()
    assert line.split() == ["dataset", "x" * 57 + "...", fitting]
    assert terminal_text(recipes, {}).count("\n") == 2  # the titles and two recipes


def test_other_tasks_classes_images_and_files_are_said_in_a_line_each(tmp_path):
    first = write_run(tmp_path / "a")
    _, lines = differences_of([first, write_run(tmp_path / "points", task="landmarks")])
    assert lines == ["the runs have other tasks (classes, landmarks): only those of one task are compared"]
    _, lines = differences_of([first, write_run(tmp_path / "classes", identity={"classes": ["c"]})])
    assert lines == ["A and B have other classes: their scores cannot be compared"]
    fewer = write_run(tmp_path / "fewer", {"i0": 0.2, "i1": 0.9, "x": 1.0}, dataset="other")
    (difference,), lines = differences_of([first, fewer])
    assert difference.images == 2 and "have 3 and 4 validation images: the 2 of the same name are compared" in lines[0]
    _, lines = differences_of([first, write_run(tmp_path / "none", {"x": 0.2}, dataset="other")])
    assert lines == ["A and B have no validation image in common: they are not compared"]
    files = write_run(tmp_path / "files", dataset="other", identity={"content of the data set": "y"})
    _, lines = differences_of([first, files])
    assert len(lines) == 1 and "were made with other files: their validation images are paired by name" in lines[0]


def test_broken_unfinished_and_missing_runs_are_a_line_each(tmp_path):
    sound = write_run(tmp_path / "sound")
    unfinished = write_run(tmp_path / "unfinished", finished=False, epochs=5)
    old = write_run(tmp_path / "old", {}, seed=3)
    broken = write_run(tmp_path / "broken")
    (broken / "run.json").write_text('{"flags": 3')
    listed = write_run(tmp_path / "listed")
    (listed / "run.json").write_text(json.dumps({"flags": [], "profile": {}, "identity": {}, "run": {}}))
    young = write_run(tmp_path / "young")
    (young / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2}\nno json\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    page = tmp_path / "page.html"
    folders = [sound, unfinished, old, broken, listed, young, empty, tmp_path / "missing", empty / ".." / "sound"]
    result = compared(folders, page)
    assert result.code == 0 and "Traceback" not in result.text
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
        assert words in line and line in Page(result.page).text, name
    assert len(read_runs(folders)[0]) == 3
    failed = compared([empty], tmp_path / "none.html")
    assert failed.code == 1 and "no run is left to compare" in failed.errors.getvalue() and not failed.page
    unwritable = compared([sound], tmp_path / "nowhere" / "page.html")
    assert unwritable.code == 1 and "cannot be written (No such file or directory)" in unwritable.errors.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name,score\n",
        "image,mean IoU\na,b\n",
        "image,x\na,nan\n",
        "image,x\na,1.1\n",
        'image,x\n"a',
        "image,x\na\n",
    ],
)
def test_a_damaged_file_of_images_is_a_line_and_the_run_stays(tmp_path, text):
    folder = write_run(tmp_path / "a")
    (folder / "images.csv").write_text(text)
    run, (line,) = read_run(folder)
    assert run.image_scores == {} and line.startswith("images.csv cannot be read (")


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
    worse = {name: score - 0.01 * index for index, (name, score) in enumerate(names.items())}
    runs = [write_run(tmp_path / f"{evil}-a", names, dataset=evil), write_run(tmp_path / "b", worse, dataset="<u>")]
    for shade, run in zip((0, 200), runs, strict=True):
        (run / "predictions").mkdir()
        for name in names:
            Image.fromarray(np.full((20, 86, 3), shade, np.uint8)).save(run / "predictions" / f"{name}.png")
    (runs[0] / "predictions" / f"{evil}11.png").write_bytes(b"no picture")
    result = compared(runs, tmp_path / "page.html")
    page = Page(result.page)
    assert "script" not in page.tags and "u" not in page.tags and evil in page.text
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', result.page) == []
    assert page.tags.count("svg") == 3 and page.tags.count("img") == 2 * IMAGES
    shown = [name for name in names if f"{name}\n" in page.text]
    assert shown == [f"{evil}{index}" for index in range(3, 11)]  # those that differ most, but for the damaged one
    assert page.alts[0] == f"A: mean IoU {HARD[2]:.4f}" and page.alts[1] == f"B: mean IoU {HARD[2] - 0.1:.4f}"
    assert "One seed each does not say which recipe is better" in page.text
    assert "dataset\n<script>alert(1)\n<u>\n" in re.sub(r"\n\s*", "\n", page.text)
    assert "A" in result.lines[1].split() and any(line.startswith("dataset ") for line in result.lines)


def test_the_score_of_each_image_survives_its_file_whatever_the_name(tmp_path):
    names = ["a,b", 'say "x"', "two\nlines", "bad", "twice", "twice", "half \udcff"]
    records = SimpleNamespace(name=names.__getitem__)
    val = SimpleNamespace(records=records, bad={3: "bad: unreadable"}, __len__=None)
    info = SimpleNamespace(val=Sized(val))
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, float(np.float32(2 / 3)), 0.7]
    write_image_scores(tmp_path, info, "mean IoU", scores)
    stored = read_image_scores(tmp_path)
    assert list(stored) == ["a,b", 'say "x"', r"two\nlines", "twice", "twice (2)", r"half \udcff"]
    assert np.float32(stored["twice (2)"]) == np.float32(2 / 3) and stored["a,b"] == 0.1
    (tmp_path / "images.csv").unlink()
    write_image_scores(tmp_path, info, "mean IoU", [])  # of a checkpoint of an earlier version
    assert not (tmp_path / "images.csv").exists()


class Sized:
    """A split of seven images."""

    def __init__(self, split: SimpleNamespace) -> None:
        self.records, self.bad = split.records, split.bad

    def __len__(self) -> int:
        return 7
