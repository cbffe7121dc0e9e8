"""The files of review.py: a page, a table, and a list for `train.py --exclude`."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_utils.image_io.resize import resize_mask
from runtime.documents import write_row
from runtime.files import replace_file
from tasks import TASKS
from tasks.classes.loss import Classes
from tasks.drawing import outline_areas
from tasks.section import read_example
from train_utils.reporting.pages import reduce_picture, write_html
from train_utils.review.reviewed_masks import disagreeing_areas
from train_utils.review.reviews import MaskReview

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
    text = io.StringIO()
    write_row(text, TITLES)
    for review in reviews:
        numbers = (f"{review.score:.6f}", f"{review.area_share:.6f}", f"{review.missing:.6f}")
        write_row(text, (review.name, *numbers, "; ".join(review.problems), review.run.name))
    suspicious = [review.name for review in reviews if review.problems]
    header = "# images whose masks look wrong, the worst first; take out those that are right, and train with --exclude"
    for name, content in ((TABLE, text.getvalue()), (LIST, "\n".join([header, *suspicious, ""]))):
        with replace_file(folder / name) as file:
            file.write(content.encode())
    shown = reviews[:WORST_SHOWN]
    views = {}
    for number, review in enumerate(shown):
        for name, pictures in _views(review).items():
            views[number, name] = pictures
    counts = {"count": len(reviews), "suspicious": len(suspicious)}
    write_html(folder / PAGE, "review.html.jinja", views, **counts, lines=lines, reviews=shown)


def _views(review: MaskReview) -> dict[str, dict[str, np.ndarray]]:
    """The pictures by label, (H, W, 3) uint8, of an image, "", or of each of the worst slices of a volume."""
    section = TASKS[Classes.name].section(review.run.info.reader)
    views = {}
    for name, (image, truth, prediction) in _examples(review).items():
        pictures: dict[str, np.ndarray] = {}
        for label, picture in section.views(image, truth, prediction).items():
            pictures[LABELS.get(label, label)] = reduce_picture(picture)
        areas = disagreeing_areas(prediction, truth)
        pictures[DISAGREEING] = outline_areas(pictures[DISAGREEING], areas, OUTLINE)
        views[name] = pictures
    return views


def _examples(review: MaskReview) -> dict[str, list[np.ndarray]]:
    """The image, its mask and its prediction, or those of the worst slices of a volume, as radiologists see them."""
    record = review.run.info.val.records[review.index]
    prediction = review.run.predictor.labels(record["image"], record["name"])
    image, target, spacing = read_example(record, review.run.info.reader)
    labels = review.run.info.reader.shown_truth(target)
    if spacing is None:
        return {"": [image, labels, prediction]}
    _, row, column = spacing
    finest = min(row, column)
    size = (round(labels.shape[1] * row / finest), round(labels.shape[2] * column / finest))
    examples = {}
    for number in review.slices:
        # anterior is up, and the patient's right is on the left
        planes = [resize_mask(volume[number], size)[::-1, ::-1] for volume in (image, labels, prediction)]
        examples[f"slice {number}"] = planes
    return examples
