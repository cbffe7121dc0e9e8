"""Runs that review masks, without any network, and review.py in the test's own process."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import review
from data_utils.sources.records import ListRows, Records
from support.in_process import run_main
from train_utils.review.reviewed_masks import Area
from train_utils.review.reviews import MaskReview


class RunStandIn:
    """A ReviewedRun of two classes with four validation images, of which number 2 is damaged.

    Args:
        probabilities: what its model says, (2, H, W) for each image or slice that a test shows to it.
    """

    has_volumes = False
    dataset = "data"

    def __init__(self, name: str, probabilities: list[np.ndarray]) -> None:
        self.name = name
        self.probabilities = probabilities
        reader = SimpleNamespace(class_names=("around", "cell"))
        self.info = SimpleNamespace(reader=reader, train=SimpleNamespace(records=None), val=FourImages())


class FourImages:
    """The validation images of a RunStandIn."""

    def __init__(self) -> None:
        rows = ListRows([{"image": None, "target": None, "name": f"{index}.png"} for index in range(4)])
        self.records = Records(rows)
        self.bad = {2: "cut"}

    def __len__(self) -> int:
        return 4


def mask_review(
    name: str, score: float = 0.5, share: float = 0.0, missing: float = 0.0, shifted: bool = False
) -> MaskReview:
    """A review by the run "run" whose only problem may be a shift."""
    run = SimpleNamespace(name="run", info=None, has_volumes=False)
    areas = [Area(False, "car", 50, 1.0, False, None, missing)]
    return MaskReview(name, run, 0, [0], score, share, areas, ["moved"] if shifted else [])


def cell_probabilities(*boxes: tuple[int, int, int, int, float]) -> np.ndarray:
    """(2, 20, 30), the answer of a model that sees cells in boxes (top, left, bottom, right), each so surely."""
    cell = np.full((20, 30), 0.05, np.float32)
    for top, left, bottom, right, probability in boxes:
        cell[top:bottom, left:right] = probability
    return np.stack([1 - cell, cell])


def run_review(*arguments: str | Path) -> SimpleNamespace:
    """What review.py prints with these arguments, and its exit code."""
    result = run_main(review.main, "review.py", *arguments)
    return SimpleNamespace(code=result.returncode, text=result.stdout, errors=result.stderr)


def table_rows(output: Path) -> list[dict]:
    """The rows of a review's table."""
    with open(output / "review.csv", newline="") as file:
        return list(csv.DictReader(file))
