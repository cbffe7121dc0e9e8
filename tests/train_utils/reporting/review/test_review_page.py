"""The files of a review: the page with the worst masks, the table of all, and the list for --exclude.

Modules: train_utils/reporting/review/page.py.
"""

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.reports import class_section
from support.reviews import table_rows

from data_utils.visualize import RED
from train_utils.reporting.embedding import Embedded, embed_all
from train_utils.reporting.review import page
from train_utils.reporting.review.masks import HeldOutImage, MaskReview
from train_utils.reporting.section import Example


def test_each_column_of_the_table_holds_its_number():
    numbers = {"score": 0.25, "area_share": 0.5, "missing": 0.75}
    review = MaskReview("a.png", **numbers, findings=[], shifts=[], equal_to=None, images=[])
    text = page.table_text([review])
    (row,) = csv.DictReader(text.splitlines())
    assert row["image"] == "a.png"
    assert row["score"] == "0.250000"
    assert row["areas"] == "0.500000"
    assert row["missing"] == "0.750000"
    assert "\r" not in text


def write_page(folder: Path, *, count: int = 41, has_volumes: bool = True) -> SimpleNamespace:
    """Write the review of masks that two runs hold out; masks 3 and 40 look wrong.

    Returns what was asked for on the way: `examples`, (run, image, slices) of each prediction, and `budgets`, the
    number and the bytes of all pictures.
    """
    examples, budgets = [], []
    picture = np.zeros((4, 6), np.uint8)

    def predicted_examples(run: SimpleNamespace, number: int, slices: list[int]) -> list[Example]:
        examples.append((run.name, number, slices))
        return [Example(f"slice {index}", picture, picture, picture) for index in slices]

    def embed_noted(pictures: list[np.ndarray], budget: int) -> list[Embedded]:
        budgets.append((len(pictures), budget))
        return embed_all(pictures, budget)

    runs = [SimpleNamespace(name=name, info=None, has_volumes=has_volumes) for name in ("runs/a", "runs/b")]
    reviews = []
    for number in range(count):
        shifts = ["moved", "turned"] if number in (3, 40) else []
        images = [HeldOutImage(run, number, [5, 2]) for run in runs]
        reviews.append(MaskReview(f"<{number}>", number / 100, 0.0, 0.0, [], shifts, None, images))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "predicted_examples", predicted_examples)
        patch.setattr(page, "new_section", lambda info: class_section("ab"))
        patch.setattr(page, "embed_all", embed_noted)
        page.write_review(folder, reviews, ["a <line>"])
    return SimpleNamespace(examples=examples, budgets=budgets, html=(folder / "review.html").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the files of 41 masks."""
    return tmp_path_factory.mktemp("review") / "new" / "out"


@pytest.fixture(scope="module")
def written(folder) -> SimpleNamespace:
    """The page of 41 masks."""
    return write_page(folder)


def test_the_page_shows_the_first_forty_masks(written):
    headings = re.findall(r"<h3>(.*?)</h3>", written.html)
    assert headings[38:] == ["&lt;38&gt;: score 0.3800", "&lt;39&gt;: score 0.3900"]


def test_the_page_counts_all_masks(written):
    assert "<p>41 masks, looked at" in written.html
    assert "looks wrong with 2.</p>" in written.html


def test_the_page_shows_what_the_first_run_predicts(written):
    assert written.examples == [("runs/a", number, [5, 2]) for number in range(40)]


def test_the_page_shows_four_pictures_of_each_slice(written):
    assert re.findall(r'<img alt="(.*?)"', written.html)[:4] == ["image", "mask", "prediction", "where they disagree"]
    assert re.findall(r"<p>(slice \d|moved|turned)</p>", written.html)[6:10] == [
        "moved",
        "turned",
        "slice 5",
        "slice 2",
    ]


def test_the_page_escapes_lines(written):
    assert "a &lt;line&gt;" in written.html


def test_the_pictures_fill_a_page_of_bounded_size(written):
    ((count, budget),) = written.budgets
    assert count == 40 * 2 * 4
    assert 3_600_000 < budget < 4_000_000 - 1_000 * count


def test_the_table_names_all_masks(written, folder):
    rows = table_rows(folder)
    assert len(rows) == 41
    assert rows[40]["problems"] == "moved; turned"
    assert rows[40]["runs"] == "runs/a runs/b"


def test_the_list_names_all_masks_that_look_wrong(written, folder):
    header, *names, rest = (folder / "suspicious.txt").read_text().split("\n")
    assert header.startswith("# ")
    assert "--exclude" in header
    assert names == ["<3>", "<40>"]
    assert rest == ""


def test_the_page_of_images_replaces_an_earlier_one_of_slices(tmp_path):
    assert "<p>slice" in write_page(tmp_path, count=1).html
    assert "<p>slice" not in write_page(tmp_path, count=1, has_volumes=False).html


def test_areas_of_disagreement_are_outlined_on_a_reduced_picture(tmp_path, monkeypatch):
    image = np.full((900, 600), 100, np.uint8)
    truth = np.zeros((900, 600), np.uint8)
    truth[500:800] = 255  # nothing is known of it
    pred = np.zeros((900, 600), np.uint8)
    pred[90:390, 60:240] = 1
    pred[600:700, 100:200] = 1
    shown = []

    def embed_noted(pictures: list[np.ndarray], budget: int) -> list[Embedded]:
        shown.extend(pictures)
        return [Embedded("", number, 1) for number in range(len(pictures))]

    monkeypatch.setattr(page, "predicted_examples", lambda *arguments: [Example("a", image, truth, pred)])
    monkeypatch.setattr(page, "new_section", lambda info: class_section("ab"))
    monkeypatch.setattr(page, "embed_all", embed_noted)
    images = [HeldOutImage(SimpleNamespace(name="run", info=None, has_volumes=False), 0, [0])]
    page.write_review(tmp_path, [MaskReview("a", 0.5, 0.0, 0.0, [], [], None, images)], [])
    assert {picture.shape for picture in shown} == {(420, 280, 3)}
    labels = re.findall(r'<img alt="(.*?)" width="(\d)"', (tmp_path / "review.html").read_text())
    assert labels == [("image", "0"), ("mask", "1"), ("prediction", "2"), ("where they disagree", "3")]
    assert (shown[3] == RED).all(axis=2).any()
    outlines = [np.argwhere((picture == (255, 221, 0)).all(axis=2)) for picture in shown]
    assert [len(pixels) > 0 for pixels in outlines] == [False, False, False, True]
    top, left = outlines[3].min(axis=0)
    bottom, right = outlines[3].max(axis=0)
    assert 30 < top < 42
    assert 20 < left < 28
    assert 182 < bottom < 195
    assert 112 < right < 122
