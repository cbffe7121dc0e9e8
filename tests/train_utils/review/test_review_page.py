"""The files of a review: the page with the worst masks, the table of all, and the list for --exclude.

Modules: train_utils/review/page.py.
"""

import csv
import re

import numpy as np
from support.reports import Page, class_section, embedded_picture
from support.reviews import mask_review

from tasks.section import Example
from train_utils.review import page


def test_each_column_of_the_table_holds_its_number():
    text = page.table_text([mask_review("a.png", 0.25, 0.5, 0.75)])
    (row,) = csv.DictReader(text.splitlines())
    assert row["image"] == "a.png"
    assert row["score"] == "0.250000"
    assert row["areas"] == "0.500000"
    assert row["missing"] == "0.750000"
    assert "\r" not in text


def test_areas_of_disagreement_are_outlined_on_a_reduced_picture(tmp_path, monkeypatch):
    image = np.full((900, 600), 100, np.uint8)
    truth, pred = np.zeros((2, 900, 600), np.uint8)
    pred[90:390, 60:240] = 1
    monkeypatch.setattr(page, "predicted_examples", lambda *arguments: [Example("a", image, truth, pred)])
    monkeypatch.setattr(page, "new_section", lambda info: class_section("ab"))
    page.write_review(tmp_path, [mask_review("a", 0.5)], [])
    html = (tmp_path / "review.html").read_text()
    assert re.findall(r'<img alt="(.*?)"', html) == ["image", "mask", "prediction", "where they disagree"]
    shown = np.asarray(embedded_picture(Page(html).attributes("img", "src")[3]).convert("RGB"))
    assert shown.shape == (420, 280, 3)
    outline = np.argwhere((shown == (255, 221, 0)).all(axis=2))
    np.testing.assert_allclose(outline.min(axis=0), (42, 28), atol=6)
    np.testing.assert_allclose(outline.max(axis=0), (182, 112), atol=10)
