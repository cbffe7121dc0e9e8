"""The files of review.py: a page, a table, and a list for `train.py --exclude`."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime.documents import TableWriter
from runtime.files import replace_file
from tasks import new_section
from tasks.drawing import outline_areas
from train_utils.reporting.pages import reduce_picture, write_html
from train_utils.review.reviewed_masks import disagreeing_areas
from train_utils.review.reviews import MaskReview
from train_utils.review.runs import predicted_examples

PAGE = "review.html"
TABLE = "review.csv"
LIST = "suspicious.txt"
WORST_SHOWN = 40  # images on the page
DISAGREEING = "where they disagree"
LABELS = {"truth": "mask", "errors": DISAGREEING}  # the page's own labels for some pictures
OUTLINE = (255, 221, 0)  # yellow: errors are red
TITLES = ("image", "score", "areas", "missing", "problems", "runs")


def write_review(folder: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    """Write the page, the table and the list of suspicious images into a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / TABLE) as file:
        file.write(table_text(reviews).encode())
    suspicious = [review.name for review in reviews if review.problems]
    header = "# images whose masks look wrong, the worst first; take out those that are right, and train with --exclude"
    with replace_file(folder / LIST) as file:
        file.write("\n".join([header, *suspicious, ""]).encode())
    shown_reviews = reviews[:WORST_SHOWN]
    views = {}
    for number, review in enumerate(shown_reviews):
        for name, pictures in _views(review).items():
            views[number, name] = pictures
    write_html(
        folder / PAGE,
        "review.html.jinja",
        views,
        count=len(reviews),
        suspicious=len(suspicious),
        lines=lines,
        reviews=shown_reviews,
    )


def table_text(reviews: Sequence[MaskReview]) -> str:
    """The content of the table: a row for each mask, with its numbers and its problems."""
    text = io.StringIO()
    table = TableWriter(text)
    table.writerow(TITLES)
    for review in reviews:
        numbers = (f"{review.score:.6f}", f"{review.area_share:.6f}", f"{review.missing:.6f}")
        table.writerow((review.name, *numbers, "; ".join(review.problems), review.run.name))
    return text.getvalue()


def _views(review: MaskReview) -> dict[str, dict[str, np.ndarray]]:
    """The pictures by label, (H, W, 3) uint8, of an image, "", or of each of the worst slices of a volume."""
    section = new_section(review.run.info)
    views = {}
    for example in predicted_examples(review.run, review.index, review.slices):
        pictures: dict[str, np.ndarray] = {}
        for label, picture in section.views(example.image, example.truth, example.pred).items():
            pictures[LABELS.get(label, label)] = reduce_picture(picture)
        areas = disagreeing_areas(example.pred, example.truth)
        pictures[DISAGREEING] = outline_areas(pictures[DISAGREEING], areas, OUTLINE)
        views[example.name] = pictures
    return views
