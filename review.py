"""Find masks that look wrong: each image is looked at by the models that have not trained on it.

After folds:   python review.py --runs runs/cells-*
One run:       python review.py --runs runs/cells, its validation images alone
How sure:      python review.py --runs runs/cells --calibrate
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from data_utils.image_io.resize import resize_mask
from inference.output_folder import make_folder
from runtime.cli import Arguments, check_free
from runtime.console import counted, say
from runtime.device import best_device
from runtime.documents import write_row
from runtime.errors import DataError, SettingsError, UserError
from runtime.files import replace_file
from runtime.script import run_script
from runtime.settings import reader
from tasks import TASKS
from tasks.classes.loss import Classes
from tasks.drawing import outline_areas
from tasks.section import read_example
from train_utils.reporting.pages import reduce_picture, write_html
from train_utils.review.calibration import calibrate_run
from train_utils.review.reviewed_masks import disagreeing_areas
from train_utils.review.reviews import MaskReview, review_runs

PAGE = "review.html"
TABLE = "review.csv"
LIST = "suspicious.txt"
TITLES = ("image", "score", "areas", "missing", "problems", "runs")
WORST_NAMED = 10  # images that are named on the terminal
WORST_SHOWN = 40  # images on the page
LABELS = ("image", "mask", "prediction", "where they disagree")
OUTLINE = (255, 221, 0)  # yellow: errors are red


def parse_args(description: str) -> argparse.Namespace:
    parser = Arguments(description, usage="python review.py --runs RUN [RUN ...] [--output DIR] [--overwrite]")
    runs = "output folders of train.py, such as those of the folds of a cross-validation"
    parser.add_argument(
        "--runs", nargs="+", action="extend", required=True, type=reader(Path), metavar="RUN", help=runs
    )
    parser.add_argument("--dataset", metavar="DATA", help="the data set, where it is not where the runs have found it")
    output = f"for {PAGE}, {TABLE} and {LIST} (default: review)"
    parser.add_argument("--output", type=reader(Path), metavar="DIR", help=output)
    temperature = (
        "instead, fit one temperature for each run's model, so that it is as sure as it is right; model/ changes"
    )
    parser.add_argument("--calibrate", action="store_true", help=temperature)
    parser.add_argument("--overwrite", action="store_true", help="replace the files that are there")
    args = parser.parse_args()
    if args.calibrate and (args.output or args.overwrite):
        parser.error("--output and --overwrite are for the review of masks, and --calibrate changes the models")
    return args


def review_masks(folders: list[Path], dataset: str | None, device: torch.device, output: Path) -> None:
    """Review the masks that the runs hold out: print the worst, and write a page, a table and a list of all."""
    reviews, lines = review_runs(folders, dataset, device)
    for line in lines:
        say(line)
    if not reviews:
        raise DataError("no mask could be reviewed; give finished runs of masks of classes: --runs runs/cells-*")
    for review in reviews[:WORST_NAMED]:
        say(f"score {review.score:.4f}, {review.name}: {'; '.join(review.problems) or 'nothing in particular'}")
    try:
        write_review(output, reviews, lines)
    except OSError as error:
        raise SettingsError(f"--output {output} cannot be written ({error.strerror}); choose another") from error
    suspicious = counted(sum(bool(review.problems) for review in reviews), "looks", "look")
    say(f"{counted(len(reviews), 'mask')} reviewed, {suspicious} wrong; page in {output / PAGE}")


def write_review(folder: Path, reviews: Sequence[MaskReview], lines: Sequence[str]) -> None:
    """Write the table of all masks, the list of suspicious ones and the page of the worst. Raises OSError."""
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
        for title, pictures in draw_review(review).items():
            views[number, title] = pictures
    counts = {"count": len(reviews), "suspicious": len(suspicious)}
    write_html(folder / PAGE, "review.html.jinja", views, **counts, lines=lines, reviews=shown)


def draw_review(review: MaskReview) -> dict[str, dict[str, np.ndarray]]:
    """The pictures by label, (H, W, 3) uint8, of an image, "", or of each of the worst slices of a volume."""
    reader = review.run.info.reader
    section = TASKS[Classes.name].section(reader)
    record = review.run.info.val.records[review.index]
    prediction = review.run.predictor.labels(record["image"], record["name"])
    image, target, spacing = read_example(record, reader)
    example = [image, reader.shown_truth(target), prediction]
    views = {}
    for part in review.slices:
        title = ""
        planes = example
        if spacing is not None:
            title = f"slice {part.number}"
            planes = [axial_slice(volume[part.number], spacing) for volume in example]
        pictures = [reduce_picture(picture) for picture in section.views(*planes).values()]
        areas = disagreeing_areas(planes[2], planes[1])
        pictures[-1] = outline_areas(pictures[-1], areas, OUTLINE)
        views[title] = dict(zip(LABELS, pictures, strict=True))
    return views


def axial_slice(plane: np.ndarray, spacing: Sequence[float]) -> np.ndarray:
    """A slice (H, W[, C]) of a volume with square pixels: anterior is up, and the patient's right is on the left."""
    _, row, column = spacing
    finest = min(row, column)
    size = (round(plane.shape[0] * row / finest), round(plane.shape[1] * column / finest))
    return resize_mask(plane, size)[::-1, ::-1]


def calibrate_models(folders: list[Path], dataset: str | None, device: torch.device) -> None:
    """Calibrate the model of each run, and print the gain."""
    calibrated = 0
    for folder in folders:
        try:
            say(calibrate_run(folder, dataset, device))
            calibrated += 1
        except (UserError, OSError) as error:
            say(f"{folder}: {error}; its model stays as it is")
    if not calibrated:
        raise DataError("no model could be calibrated; give finished runs of masks of classes: --runs runs/cells")


def main() -> None:
    args = parse_args(__doc__)
    device = best_device()
    if args.calibrate:
        calibrate_models(args.runs, args.dataset, device)
        return
    output = args.output or Path("review")
    check_free(f"--output {output}", [output / name for name in (PAGE, TABLE, LIST)], overwrite=args.overwrite)
    make_folder(output)  # now, since a review may take hours
    review_masks(args.runs, args.dataset, device, output)


if __name__ == "__main__":
    run_script(main)
