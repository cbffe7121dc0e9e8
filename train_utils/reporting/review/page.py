"""What review.py writes: a page, a table, and a list for `train.py --exclude`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.files import replaced_file
from train_utils.reporting.embedding import Embedded, embed_all, reduced
from train_utils.reporting.rendering import render
from train_utils.reporting.report import FIGURE_BYTES, MAX_PAGE
from train_utils.reporting.review.masks import MaskReview, read_example
from train_utils.reporting.sections import new_section

PAGE = "review.html"
TABLE = "review.csv"
LIST = "suspicious.txt"
SHOWN = 40  # images on the page
TITLES = ("image", "score", "problems", "runs")


def write_review(folder: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    """Write the page, the table and the list of suspicious images into a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with replaced_file(folder / TABLE) as file:
        file.write(_table(reviews).encode())
    suspicious = [review.name for review in reviews if review.problems]
    header = "# images whose masks look wrong, the worst first; take out those that are right, and train with --exclude"
    with replaced_file(folder / LIST) as file:
        file.write("\n".join([header, *suspicious, ""]).encode())
    _write_page(folder / PAGE, reviews, lines)


def _table(reviews: Sequence[MaskReview]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(TITLES)
    for review in reviews:
        runs = " ".join(place.run.name for place in review.places)
        table.writerow((review.name, f"{review.score:.6f}", "; ".join(review.problems), runs))
    return text.getvalue()


def _write_page(file: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    shown = reviews[:SHOWN]
    content: dict[str, Any] = {
        "count": len(reviews),
        "suspicious": sum(bool(review.problems) for review in reviews),
        "lines": lines,
        "reviews": shown,
    }
    nothing: list[dict[str, Embedded]] = [{} for _ in shown]
    rest = len(render("review.html.jinja", **content, views=nothing).encode(errors="backslashreplace"))
    views = [_views(review) for review in shown]
    pictures = [picture for labeled in views for picture in labeled.values()]
    remaining = iter(embed_all(pictures, MAX_PAGE - rest - FIGURE_BYTES * len(pictures)))
    embedded = [{label: next(remaining) for label in labeled} for labeled in views]
    page = render("review.html.jinja", **content, views=embedded)
    with replaced_file(file) as output:
        output.write(page.encode(errors="backslashreplace"))  # half a character in a name


def _views(review: MaskReview) -> dict[str, np.ndarray]:
    """Image, mask, prediction and where they disagree, by label, as small as the page shows them."""
    place = review.places[0]
    example = read_example(place.run, place.number)
    prediction = place.run.predictor.prediction(place.run.info.val.records[place.number]["image"], review.name)
    pictures = new_section(place.run.info).views(example.image, example.truth, prediction)
    return {label: reduced(picture) for label, picture in pictures.items()}
