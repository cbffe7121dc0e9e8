"""The files of review.py: a page, a table, and a list for `train.py --exclude`."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_utils.visualize import outline_areas
from inference.review.areas import disagreeing_areas
from runtime.documents import TableWriter
from runtime.files import replace_file
from train_utils.reporting.embedding import reduce_picture
from train_utils.reporting.rendering import write_html
from train_utils.reporting.sections import new_section
from train_utils.review.masks import MaskReview
from train_utils.review.reviewed_run import predicted_examples

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
    views = {}
    for number, review in enumerate(shown_reviews):
        for title, pictures in _views(review):
            views[number, title] = pictures
    suspicious = sum(bool(review.problems) for review in reviews)
    write_html(
        file,
        "review.html.jinja",
        views,
        count=len(reviews),
        suspicious=suspicious,
        lines=lines,
        reviews=shown_reviews,
    )


def _views(review: MaskReview) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield the pictures of an image, or of each of the worst slices of a volume with its title, by label.

    They are (H, W, 3) uint8, as small as the page shows them.
    """
    image = review.images[0]
    section = new_section(image.run.info)
    for example in predicted_examples(image.run, image.number, image.slices):
        pictures: dict[str, np.ndarray] = {}
        for label, picture in section.views(example.image, example.truth, example.pred).items():
            pictures[LABELS.get(label, label)] = reduce_picture(picture)
        areas = disagreeing_areas(example.pred, example.truth)
        pictures[DISAGREEING] = outline_areas(pictures[DISAGREEING], areas, OUTLINE)
        yield example.name if image.run.has_volumes else "", pictures
