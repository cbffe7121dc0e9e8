"""Find masks that look wrong: each image is looked at by the models that have not trained on it.

After folds:   python review.py --runs runs/cells-*
One run:       python review.py --runs runs/cells, its validation images alone
"""

import argparse
from pathlib import Path

import torch

from runtime import cli as arg
from runtime.console import say
from runtime.errors import DataError, SettingsError
from train_utils.reporting.review.masks import review_runs
from train_utils.reporting.review.page import LIST, PAGE, TABLE, write_review

WORST = 10  # so many images are named on the terminal


def parse_args(description: str) -> argparse.Namespace:
    parser = arg.Arguments(description, usage="python review.py --runs RUN [RUN ...] [--output DIR]")
    runs = "output folders of train.py, such as those of the folds of a cross-validation"
    parser.add_argument("--runs", nargs="+", default=[], type=arg.path, metavar="RUN", help=runs)
    models = "the same by the folders of their models: runs/fold1/model"
    parser.add_argument("--model", nargs="+", default=[], type=arg.path, metavar="MODEL", help=models)
    moved = "the data set, where it is not where the runs have found it"
    parser.add_argument("--dataset", metavar="DATA", help=moved)
    folder = f"for {PAGE}, {TABLE} and {LIST}"
    parser.add_argument("--output", type=arg.path, default=Path("review"), metavar="DIR", help=folder)
    args = parser.parse_args()
    if not args.runs and not args.model:
        parser.error("give the runs that are to look at the masks: --runs runs/cells-*")
    return args


def main() -> None:
    args = parse_args(__doc__)
    folders = [*args.runs, *(model.parent for model in args.model)]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # 1. Review: one image at a time, by the models of the runs that hold it out
    reviews, lines = review_runs(folders, args.dataset, device)
    for line in lines:
        say(line)
    if not reviews:
        raise DataError("no mask could be reviewed; give finished runs of masks of classes: --runs runs/cells-*")

    # 2. Report: the worst on the terminal; page, table and a list for train.py --exclude
    for review in reviews[:WORST]:
        say(f"score {review.score:.4f}, {review.name}: {'; '.join(review.problems) or 'nothing in particular'}")
    try:
        write_review(args.output, reviews, lines)
    except OSError as error:
        raise SettingsError(f"--output {args.output} cannot be written ({error.strerror}); choose another") from error
    suspicious = sum(bool(review.problems) for review in reviews)
    say(f"{len(reviews)} masks reviewed, {suspicious} look wrong; page in {args.output / PAGE}")


if __name__ == "__main__":
    arg.run_script(main)
