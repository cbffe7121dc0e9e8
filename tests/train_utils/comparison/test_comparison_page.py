"""The page of a comparison: settings, curves, and the same images as several runs have predicted them.

Module: compare.py.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.comparisons import HARD, run_compare, write_run
from support.reports import Page, charts_of, embedded_picture

from compare import IMAGES
from tasks.charts import SERIES


def tag_count(page: Page, tag: str) -> int:
    """How many elements of a page have this tag."""
    return [name for name, _ in page.tags].count(tag)


def picture_labels(page: Page) -> list[str]:
    """The texts that stand for the pictures of a page."""
    return [attributes["alt"] for tag, attributes in page.tags if tag == "img" and "/svg" not in attributes["src"]]


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


def test_the_page_escapes_names_and_shows_the_images_that_differ_most_as_both_runs_have_predicted_them(evil):
    assert tag_count(evil.page, "script") == 0
    assert tag_count(evil.page, "u") == 0
    assert EVIL in evil.page.text
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', evil.result.page) == []
    assert f"dataset\n{EVIL}\n<u>\n" in re.sub(r"\n\s*", "\n", evil.page.text)
    assert [name for name in evil.names if f"{name}\n" in evil.page.text] == evil.names[3:11]
    assert len(picture_labels(evil.page)) == 2 * IMAGES
    sources = [source for source in evil.page.attributes("img", "src") if "/svg" not in source]
    assert [embedded_picture(source).size for source in sources[:4]] == [(90, 20), (90, 30), (89, 20), (89, 30)]
    labels = [f"A: mean IoU {HARD[2]:.4f}", f"B: mean IoU {HARD[2] - 0.1:.4f}"]
    assert picture_labels(evil.page)[:2] == labels


def with_pictures(run: Path, *names: str) -> Path:
    (run / "predictions").mkdir()
    for name in names:
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(run / "predictions" / f"{name}.png")
    return run


def test_seeds_of_one_recipe_are_said_to_spread_and_shown_on_images_that_several_have_drawn(tmp_path):
    scores = ([0.1, 0.7, 0.5, 0.6], [0.2, 0.75, 0.9, 0.7], [0.1, 0.2, 0.54, 0.6])
    runs = [write_run(tmp_path / f"a-{seed}", run_scores, seed=seed) for seed, run_scores in enumerate(scores)]
    with_pictures(runs[0], "i0", "i1", "i2")
    with_pictures(runs[1], "i0", "i1", "i3")
    with_pictures(runs[2], "i0", "i1", "i2")
    html = run_compare(runs, tmp_path / "page.html").page
    of_seeds = SimpleNamespace(runs=runs, html=html, page=Page(html))
    assert "all runs are of one recipe" in of_seeds.page.text
    assert "seed 0; seed 1; seed 2" in of_seeds.page.text
    first, second, third = of_seeds.runs
    scores = [(first, 0.7), (second, 0.75), (third, 0.2), (first, 0.1), (second, 0.2), (third, 0.1)]
    scores += [(first, 0.5), (third, 0.54)]
    assert picture_labels(of_seeds.page) == [f"{run}: mean IoU {score:.4f}" for run, score in scores]


def test_recipes_are_shown_by_runs_of_one_seed_and_fold_with_curves_of_their_color(tmp_path):
    """The last run of the second recipe has the seed and fold of the first run of the first."""
    runs = [with_pictures(write_run(tmp_path / "a", seed=1), "i0")]
    runs.append(with_pictures(write_run(tmp_path / "a0", [0.3] * 4), "i0"))
    for number, (seed, fold) in enumerate([(0, None), (1, "2/5"), (1, None)]):
        run = write_run(tmp_path / f"b{number}", [0.1 * number] * 4, seed=seed, fold=fold, epochs=9)
        runs.append(with_pictures(run, "i0"))
    page = run_compare(runs, tmp_path / "page.html").page
    assert picture_labels(Page(page)) == ["A: mean IoU 0.1000", "B: mean IoU 0.2000"]
    assert "all runs are of one recipe" not in page
    colors = re.findall(r'id="series-\d">\s*<path [^>]*stroke: (#\w+)', charts_of(page)[-1])
    assert colors == [SERIES[0]] * 2 + [SERIES[1]] * 3
