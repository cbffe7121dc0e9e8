"""The page of a comparison: settings, curves, and the same images as several runs have predicted them.

Module: train_utils/reporting/comparison/page.py.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.comparisons import HARD, run_compare, write_run, write_seeds
from support.reports import Page

from train_utils.reporting.comparison import page as page_module
from train_utils.reporting.comparison.page import IMAGES
from train_utils.reporting.embedding import Embedded, embed_all


def tag_count(page: Page, tag: str) -> int:
    """How many elements of a page have this tag."""
    return [name for name, _ in page.tags].count(tag)


def picture_labels(page: Page) -> list[str]:
    """The texts that stand for the pictures of a page."""
    return page.attributes("img", "alt")


EVIL = "<script>alert(1)"


@pytest.fixture(scope="module")
def evil(tmp_path_factory) -> SimpleNamespace:
    """The comparison of two runs whose names are HTML, with pictures of 12 images, of which number 11 is damaged.

    The images differ the more the higher their number. Returns the `result` of compare.py, its `page`, and the `names`.
    """
    folder = tmp_path_factory.mktemp("evil")
    names = {f"{EVIL}{index}": score for index, score in enumerate([*HARD, *HARD, *HARD])}
    signs = (1, -1, -1)
    worse = {name: score + 0.01 * index * signs[index % 3] for index, (name, score) in enumerate(names.items())}
    runs = [write_run(folder / f"{EVIL}-a", names, dataset=EVIL), write_run(folder / "b", worse, dataset="<u>")]
    for height, run in zip((20, 30), runs, strict=True):
        (run / "predictions").mkdir()
        for index, name in enumerate(names):
            Image.fromarray(np.zeros((height, 80 + index, 3), np.uint8)).save(run / "predictions" / f"{name}.png")
    (runs[0] / "predictions" / f"{EVIL}11.png").write_bytes(b"no picture")
    result = run_compare(runs, folder / "page.html")
    return SimpleNamespace(result=result, page=Page(result.page), names=[*names])


def test_the_page_escapes_names(evil):
    assert tag_count(evil.page, "script") == 0
    assert tag_count(evil.page, "u") == 0
    assert EVIL in evil.page.text


def test_the_page_loads_nothing(evil):
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', evil.result.page) == []


def test_the_page_shows_a_chart_of_score_validation_loss_training_loss(evil):
    assert tag_count(evil.page, "svg") == 3


def test_the_page_shows_the_images_that_differ_most_if_they_can_be_read(evil):
    assert [name for name in evil.names if f"{name}\n" in evil.page.text] == evil.names[3:11]
    assert tag_count(evil.page, "img") == 2 * IMAGES


def test_the_page_shows_each_image_as_both_runs_have_predicted_it(evil):
    sizes = re.findall(r'<img [^>]*width="(\d+)"\s+height="(\d+)"', evil.result.page)
    assert sizes[:4] == [("90", "20"), ("90", "30"), ("89", "20"), ("89", "30")]
    labels = [f"A: mean IoU {HARD[2]:.4f}", f"B: mean IoU {HARD[2] - 0.1:.4f}"]
    assert picture_labels(evil.page)[:2] == labels


def test_the_page_says_whether_a_recipe_is_better(evil):
    assert "One seed each does not say which recipe is better" in evil.page.text


def test_the_page_shows_settings_that_differ(evil):
    assert f"dataset\n{EVIL}\n<u>\n" in re.sub(r"\n\s*", "\n", evil.page.text)


def test_the_terminal_shows_settings_that_differ(evil):
    assert "A" in evil.result.lines[1].split()
    assert any(line.startswith("dataset ") for line in evil.result.lines)


def with_pictures(run: Path, *names: str) -> Path:
    (run / "predictions").mkdir()
    for name in names:
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(run / "predictions" / f"{name}.png")
    return run


@pytest.fixture(scope="module")
def of_seeds(tmp_path_factory) -> SimpleNamespace:
    """The comparison of three seeds that have all drawn two of their images: the `runs`, the `html` and the `page`.

    The third image, which the second run has not drawn, differs most in that run.
    """
    folder = tmp_path_factory.mktemp("seeds")
    scores = ([0.1, 0.7, 0.5, 0.6], [0.2, 0.75, 0.9, 0.7], [0.1, 0.2, 0.54, 0.6])
    runs = [write_run(folder / f"a-{seed}", run_scores, seed=seed) for seed, run_scores in enumerate(scores)]
    with_pictures(runs[0], "i0", "i1", "i2")
    with_pictures(runs[1], "i0", "i1", "i3")
    with_pictures(runs[2], "i0", "i1", "i2")
    html = run_compare(runs, folder / "page.html").page
    return SimpleNamespace(runs=runs, html=html, page=Page(html))


def test_seeds_of_one_recipe_are_said_to_spread(of_seeds):
    assert "What the score of another recipe has to exceed is their spread." in of_seeds.page.text
    assert "0, seed 1, seed 2" in of_seeds.page.text
    assert "folders" not in of_seeds.page.text


def test_seeds_of_one_recipe_are_shown_on_the_images_that_several_have_drawn_and_differ_in(of_seeds):
    first, second, third = of_seeds.runs
    scores = [(first, 0.7), (second, 0.75), (third, 0.2), (first, 0.1), (second, 0.2), (third, 0.1)]
    scores += [(first, 0.5), (third, 0.54)]
    assert picture_labels(of_seeds.page) == [f"{run}: mean IoU {score:.4f}" for run, score in scores]


def test_seeds_of_one_recipe_have_curves_of_one_color(of_seeds):
    lines = re.findall(r'id="([\w-]+-series-\d)">\s*<path [^>]*stroke: var\(--series-(\d)\)', of_seeds.html)
    titles = ("validation-mean-iou", "validation-loss", "training-loss")
    assert lines == [(f"{title}-series-{number}", "0") for title in titles for number in range(3)]


def test_seeds_of_one_recipe_have_their_own_curves(of_seeds):
    pattern = r'id="validation-mean-iou-series-\d">\s*<path d="(.*?)"'
    assert len(set(re.findall(pattern, of_seeds.html, flags=re.DOTALL))) == 3


def test_pictures_that_may_not_be_read_are_not_shown(tmp_path, monkeypatch):
    runs = [with_pictures(run, "i0") for run in write_seeds(tmp_path, "a", [0.0, 0.1])]
    monkeypatch.setattr(page_module, "overlaid", lambda title, lines: None)  # no charts
    monkeypatch.setattr(page_module, "read_image", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    result = run_compare(runs, tmp_path / "page.html")
    assert result.code == 0
    assert tag_count(Page(result.page), "img") == 0


def test_an_image_that_one_run_alone_has_scored_is_not_shown(tmp_path):
    both = write_run(tmp_path / "both", {"i0": 0.0, "i1": 0.9}, seed=0)
    one = write_run(tmp_path / "one", {"i0": 0.2}, seed=1)
    runs = [with_pictures(run, "i0", "i1") for run in (both, one)]
    page = Page(run_compare(runs, tmp_path / "page.html").page)
    assert sorted(picture_labels(page)) == [f"{both}: mean IoU 0.0000", f"{one}: mean IoU 0.2000"]


def test_an_image_is_shown_as_six_seeds_at_most_have_drawn_it(tmp_path):
    runs = [with_pictures(run, "i0") for run in write_seeds(tmp_path, "a", [0.01 * number for number in range(7)])]
    (runs[1] / "images.csv").write_text("image,mean IoU\ni1,0.5\n")
    page = Page(run_compare(runs, tmp_path / "page.html").page)
    scores = [": mean IoU 0.1000", "", *[f": mean IoU 0.1{number}00" for number in range(2, 6)]]
    assert picture_labels(page) == [f"{run}{score}" for run, score in zip(runs[:6], scores, strict=True)]


@pytest.fixture
def two_recipes(tmp_path) -> str:
    """The page of two recipes: the last run of the second has the seed and fold of the first run of the first."""
    runs = [with_pictures(write_run(tmp_path / "a", seed=1), "i0")]
    runs.append(with_pictures(write_run(tmp_path / "a0", [0.3] * 4), "i0"))
    for number, (seed, fold) in enumerate([(0, None), (1, "2/5"), (1, None)]):
        run = write_run(tmp_path / f"b{number}", [0.1 * number] * 4, seed=seed, fold=fold, epochs=9)
        runs.append(with_pictures(run, "i0"))
    return run_compare(runs, tmp_path / "page.html").page


def test_recipes_are_shown_by_runs_of_the_same_seed_with_the_same_fold(two_recipes):
    assert picture_labels(Page(two_recipes)) == ["A: mean IoU 0.1000", "B: mean IoU 0.2000"]
    assert "All runs are of one recipe" not in two_recipes


def test_curves_have_the_color_of_their_recipe(two_recipes):
    colors = re.findall(r'id="training-loss-series-\d">\s*<path [^>]*stroke: var\(--series-(\d)\)', two_recipes)
    assert colors == ["0", "0", "1", "1", "1"]


@pytest.fixture(scope="module")
def seven_recipes(tmp_path_factory) -> str:
    """The page of seven recipes of one run each, which have all drawn one image."""
    folder = tmp_path_factory.mktemp("recipes")
    runs = []
    for epochs in range(10, 17):
        runs.append(with_pictures(write_run(folder / f"c{epochs}", [0.9 - 0.01 * epochs] * 4, epochs=epochs), "i0"))
    return run_compare(runs, folder / "page.html").page


def test_an_image_is_shown_as_six_recipes_at_most_have_drawn_it(seven_recipes):
    labels = [f"{label}: mean IoU 0.{score}00" for label, score in zip("ABCDEF", range(80, 74, -1), strict=True)]
    assert picture_labels(Page(seven_recipes)) == labels


def test_curves_of_six_recipes_at_most_are_shown(seven_recipes):
    page = seven_recipes
    assert page.count('id="training-loss-series-') == 6
    assert Page(page).text.count("\nG\n") >= 1
    assert set(re.findall(r'class="key series-(\d)"', page)) == set("012345")


def test_a_recipe_without_the_seed_of_the_first_one_is_shown_by_its_first_run(tmp_path):
    runs = [with_pictures(write_run(tmp_path / "a", [0.9] * 4), "i0")]
    for seed, score in ((1, 0.5), (2, 0.6)):
        run = write_run(tmp_path / f"b{seed}", [score] * 4, seed=seed, epochs=9)
        runs.append(with_pictures(run, "i0"))
    page = Page(run_compare(runs, tmp_path / "page.html").page)
    assert picture_labels(page) == ["A: mean IoU 0.9000", "B: mean IoU 0.5000"]


@pytest.fixture
def wide_runs(tmp_path, monkeypatch) -> list[Path]:
    """Two runs with noisy pictures of 24 x 1200 pixels, of which no charts are drawn."""
    monkeypatch.setattr(page_module, "overlaid", lambda title, lines: None)
    noise = np.random.default_rng(0).integers(0, 256, (24, 1200, 3), dtype=np.uint8)
    runs = [with_pictures(run, "i0") for run in write_seeds(tmp_path, "a", [0.0, 0.1])]
    for run in runs:
        Image.fromarray(noise).save(run / "predictions" / "i0.png")
    return runs


def test_large_pictures_are_reduced_to_a_thousand_pixels(wide_runs, tmp_path):
    page = run_compare(wide_runs, tmp_path / "page.html").page
    assert re.findall(r'<img [^>]*width="(\d+)"\s+height="(\d+)"', page) == [("1000", "20")] * 2


def test_pictures_are_reduced_to_the_bytes_that_are_left(wide_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "MAX_PAGE", 40_000)
    budgets = []

    def embed_noted(pictures: list[np.ndarray], budget: int, side: int) -> list[Embedded]:
        budgets.append(budget)
        return embed_all(pictures, budget, side)

    monkeypatch.setattr(page_module, "embed_all", embed_noted)
    page = run_compare(wide_runs, tmp_path / "page.html").page
    assert 20_000 < len(page) <= 40_000
    bytes_of_rest = len(re.sub("<figure>.*?</figure>", "", page, flags=re.DOTALL))
    most, least = 40_000 - bytes_of_rest - 2 * 900, 40_000 - bytes_of_rest - 2 * 1_000  # without markup of two pictures
    assert least <= budgets[0] < most


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory) -> str:
    """The page of a run of classes and of one of landmarks."""
    folder = tmp_path_factory.mktemp("tasks")
    runs = [write_run(folder / "a"), write_run(folder / "points", task="landmarks")]
    return run_compare(runs, folder / "page.html").page


def test_the_score_of_each_task_has_a_chart(two_tasks):
    assert re.findall("<td>(.* 0.4750)</td>", two_tasks) == ["mean IoU 0.4750", "closeness 0.4750"]
    titles = re.findall("<h3>(.*?)</h3>", two_tasks)
    assert titles == ["Validation mean IoU", "Validation closeness", "Validation loss", "Training loss"]


def test_recipes_that_cannot_be_compared_are_not_said_to_be_one(two_tasks):
    assert "All runs are of one recipe" not in two_tasks


@pytest.mark.parametrize(("key", "title"), [("eval/loss", "Validation loss"), ("train/loss", "Training loss")])
def test_a_loss_that_no_run_has_logged_has_no_chart(tmp_path, key, title):
    run = write_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text(f'{{"step": 40, "eval/mean_iou": 0.5, "{key}": 0.1}}\n')
    page = run_compare([run], tmp_path / "page.html").page
    assert re.findall("<h3>(.*?)</h3>", page) == ["Validation mean IoU", title]
    assert tag_count(Page(page), "svg") == 2
