"""Find masks that look wrong: each image is looked at by the models that have not trained on it.

After folds:   python review.py --runs runs/cells-*
One run:       python review.py --runs runs/cells, its validation images alone
How sure:      python review.py --runs runs/cells --calibrate
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import argparse
from pathlib import Path

import torch

from inference.output_folder import make_folder
from runtime.cli import Arguments, check_free
from runtime.console import counted, say
from runtime.device import best_device
from runtime.errors import DataError, SettingsError, UserError
from runtime.script import run_script
from runtime.settings import reader
from train_utils.review.calibration import calibrate_run
from train_utils.review.page import LIST, PAGE, TABLE, write_review
from train_utils.review.reviews import review_runs

WORST_SHOWN = 10  # images that are named on the terminal


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
    for review in reviews[:WORST_SHOWN]:
        say(f"score {review.score:.4f}, {review.name}: {'; '.join(review.problems) or 'nothing in particular'}")
    try:
        write_review(output, reviews, lines)
    except OSError as error:
        raise SettingsError(f"--output {output} cannot be written ({error.strerror}); choose another") from error
    suspicious = counted(sum(bool(review.problems) for review in reviews), "looks", "look")
    say(f"{counted(len(reviews), 'mask')} reviewed, {suspicious} wrong; page in {output / PAGE}")


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
