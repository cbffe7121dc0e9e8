"""The files of review.py: a page, a table, and a list for `train.py --exclude`."""

import io
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.visualize import outline_areas
from inference.review.areas import disagreeing_areas
from runtime.documents import TableWriter
from runtime.files import replace_file
from train_utils.reporting.embedding import Embedded, embed_all, reduce_picture
from train_utils.reporting.rendering import page_bytes, render
from train_utils.reporting.report import FIGURE_BYTES, MAX_PAGE
from train_utils.reporting.review.masks import MaskReview
from train_utils.reporting.review.reviewed_run import predicted_examples
from train_utils.reporting.sections import new_section

PAGE = "review.html"
TABLE = "review.csv"
LIST = "suspicious.txt"
WORST_SHOWN = 40  # images on the page
DISAGREEING = "where they disagree"
LABELS = {"truth": "mask", "errors": DISAGREEING}  # the page's own labels for some pictures
OUTLINE = (255, 221, 0)  # yellow: errors are red
TITLES = ("image", "score", "areas", "missing", "problems", "runs")


class Views(NamedTuple):
    """Pictures of an image or of a slice by label, uint8 (H, W, 3).

    Args:
        title: the slice, in words; empty for an image.
        embedded: the pictures as the page embeds them.
    """

    title: str
    pictures: dict[str, np.ndarray]
    embedded: dict[str, Embedded]


def write_review(folder: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    """Write the page, the table and the list of suspicious images into a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / TABLE) as file:
        file.write(table_text(reviews).encode())
    suspicious = [review.name for review in reviews if review.problems]
    header = "# images whose masks look wrong, the worst first; take out those that are right, and train with --exclude"
    with replace_file(folder / LIST) as file:
        file.write("\n".join([header, *suspicious, ""]).encode())
    _write_page(folder / PAGE, reviews, lines)


def table_text(reviews: Sequence[MaskReview]) -> str:
    """The content of the table: a row for each mask, with its numbers and its problems."""
    text = io.StringIO()
    table = TableWriter(text)
    table.writerow(TITLES)
    for review in reviews:
        runs = " ".join(image.run.name for image in review.images)
        numbers = (f"{review.score:.6f}", f"{review.area_share:.6f}", f"{review.missing:.6f}")
        table.writerow((review.name, *numbers, "; ".join(review.problems), runs))
    return text.getvalue()


def _write_page(file: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    """Write review.html, at most about MAX_PAGE bytes, with the pictures of the first reviews."""
    shown_reviews = reviews[:WORST_SHOWN]
    content: dict[str, Any] = {
        "count": len(reviews),
        "suspicious": sum(bool(review.problems) for review in reviews),
        "lines": lines,
        "reviews": shown_reviews,
    }
    no_views: list[list[Views]] = [[] for _ in shown_reviews]
    bytes_without_views = len(page_bytes(render("review.html.jinja", **content, views=no_views)))
    views = [_views(review) for review in shown_reviews]
    slices = list(chain.from_iterable(views))
    pictures: list[np.ndarray] = []
    for slice_views in slices:
        pictures += slice_views.pictures.values()
    remaining = iter(embed_all(pictures, MAX_PAGE - bytes_without_views - FIGURE_BYTES * len(pictures)))
    for slice_views in slices:
        slice_views.embedded.update({label: next(remaining) for label in slice_views.pictures})
    page = render("review.html.jinja", **content, views=views)
    with replace_file(file) as output:
        output.write(page_bytes(page))


def _views(review: MaskReview) -> list[Views]:
    """The pictures of an image, or of the worst slices of a volume, as small as the page shows them."""
    image = review.images[0]
    section = new_section(image.run.info)
    views = []
    for example in predicted_examples(image.run, image.number, image.slices):
        pictures: dict[str, np.ndarray] = {}
        for label, picture in section.views(example.image, example.truth, example.pred).items():
            pictures[LABELS.get(label, label)] = reduce_picture(picture)
        areas = disagreeing_areas(example.pred, example.truth)
        pictures[DISAGREEING] = outline_areas(pictures[DISAGREEING], areas, OUTLINE)
        title = example.name if image.run.has_volumes else ""
        views.append(Views(title, pictures, {}))
    return views
