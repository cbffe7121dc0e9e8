"""The files of a review: the page with the worst masks, the table of all, and the list for --exclude.

Modules: train_utils/reporting/review/page.py.
"""

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.reports import Page, class_section, embedded_picture
from support.reviews import table_rows

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


def write_page(folder: Path) -> SimpleNamespace:
    """Write the review of masks that two runs hold out; masks 3 and 40 look wrong.

    Returns `examples`, (run, image, slices) of each prediction, and the `html` of the page.
    """
    examples = []
    picture = np.zeros((4, 6), np.uint8)

    def predicted_examples(run: SimpleNamespace, number: int, slices: list[int]) -> list[Example]:
        examples.append((run.name, number, slices))
        return [Example(f"slice {index}", picture, picture, picture) for index in slices]

    runs = [SimpleNamespace(name=name, info=None, has_volumes=True) for name in ("runs/a", "runs/b")]
    reviews = []
    for number in range(41):
        shifts = ["moved", "turned"] if number in (3, 40) else []
        images = [HeldOutImage(run, number, [5, 2]) for run in runs]
        reviews.append(MaskReview(f"<{number}>", number / 100, 0.0, 0.0, [], shifts, None, images))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "predicted_examples", predicted_examples)
        patch.setattr(page, "new_section", lambda info: class_section("ab"))
        page.write_review(folder, reviews, ["a <line>"])
    return SimpleNamespace(examples=examples, html=(folder / "review.html").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the files of 41 masks."""
    return tmp_path_factory.mktemp("review") / "new" / "out"


@pytest.fixture(scope="module")
def written(folder) -> SimpleNamespace:
    """The page of 41 masks."""
    return write_page(folder)


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


def test_the_page_shows_the_first_forty_masks_in_bounded_size(written):
    headings = re.findall(r"<h3>(.*?)</h3>", written.html)
    assert headings[38:] == ["&lt;38&gt;: score 0.3800", "&lt;39&gt;: score 0.3900"]
    assert "<p>41 masks, looked at" in written.html
    assert "looks wrong with 2.</p>" in written.html
    assert "a &lt;line&gt;" in written.html
    assert written.examples == [("runs/a", number, [5, 2]) for number in range(40)]
    assert len(written.html) < 4_000_000


def test_areas_of_disagreement_are_outlined_on_a_reduced_picture(tmp_path, monkeypatch):
    image = np.full((900, 600), 100, np.uint8)
    truth, pred = np.zeros((2, 900, 600), np.uint8)
    pred[90:390, 60:240] = 1
    monkeypatch.setattr(page, "predicted_examples", lambda *arguments: [Example("a", image, truth, pred)])
    monkeypatch.setattr(page, "new_section", lambda info: class_section("ab"))
    images = [HeldOutImage(SimpleNamespace(name="run", info=None, has_volumes=False), 0, [0])]
    page.write_review(tmp_path, [MaskReview("a", 0.5, 0.0, 0.0, [], [], None, images)], [])
    html = (tmp_path / "review.html").read_text()
    assert re.findall(r'<img alt="(.*?)"', html) == ["image", "mask", "prediction", "where they disagree"]
    shown = np.asarray(embedded_picture(Page(html).attributes("img", "src")[3]).convert("RGB"))
    assert shown.shape == (420, 280, 3)
    outline = np.argwhere((shown == (255, 221, 0)).all(axis=2))
    np.testing.assert_allclose(outline.min(axis=0), (42, 28), atol=6)
    np.testing.assert_allclose(outline.max(axis=0), (182, 112), atol=10)
