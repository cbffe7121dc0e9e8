"""The order in which to annotate images: the least sure ones of each predicted class in turn, and some at random.

Entropy alone would choose one kind of image over and over, so images are dealt from strata, by the class that most of
their foreground is predicted as. One in four is drawn at random from all that are left: it shows mistakes that the
model is sure of. A random order is the rival of any such order: arXiv:2511.19183 reports that no strategy reliably
beats one that heeds the foreground, arXiv:2601.13677 one that does.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_utils.image_io.reader import read_image
from inference.outputs.jobs import UNCERTAINTY, Job
from inference.outputs.prediction_format import MaskFormat, PredictionFormat
from inference.scoring.truth import SCORED_ROWS, open_mask_rows
from runtime.console import track
from runtime.files import replaced_file

TABLE = "rank.csv"
RANDOM_SHARE = 4  # one image in so many is drawn at random
RIVAL = "a random order is the rival of this one: annotate some images of each, and compare the models"


@dataclass(frozen=True)
class Candidate:
    """An image that may be annotated next.

    Args:
        entropy: the mean over its pixels, in 0..1.
        stratum: the class that most of its foreground is predicted as, that of the background where there is none.
    """

    name: str
    entropy: float
    stratum: str


@dataclass(frozen=True)
class Ranked:
    """An image in its place, and why it is there."""

    candidate: Candidate
    reason: str


def rank(candidates: Sequence[Candidate], seed: int = 0) -> list[Ranked]:
    """All candidates in the order in which to annotate them; the same for the same names and predictions."""
    rng = np.random.default_rng(seed)
    strata: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=_least_sure_first):
        strata.setdefault(candidate.stratum, []).append(candidate)
    order: list[Ranked] = []
    turn = 0
    while strata:
        if len(order) % RANDOM_SHARE == RANDOM_SHARE - 1:
            remaining: list[Candidate] = []
            for group in strata.values():
                remaining += group
            remaining.sort(key=_name)
            chosen_candidate = remaining[int(rng.integers(len(remaining)))]
            reason = "at random"
            group = strata[chosen_candidate.stratum]
            group.remove(chosen_candidate)
        else:
            names = sorted(strata)
            group = strata[names[turn % len(names)]]
            turn += 1
            chosen_candidate = group.pop(0)
            reason = f"the least sure of {chosen_candidate.stratum}"
        order.append(Ranked(chosen_candidate, reason))
        if not group:
            del strata[chosen_candidate.stratum]
    return order


def find_candidates(jobs: Sequence[Job], output_format: PredictionFormat) -> list[Candidate]:
    """The images whose mask and uncertainty are written, one read at a time."""
    assert isinstance(output_format, MaskFormat)  # the model is one of classes
    candidates = []
    for job in track(jobs, len(jobs), "ranking", unit="image"):
        unsure = job.file(UNCERTAINTY)
        if not (unsure.is_file() and output_format.mask_file(job).is_file()):
            continue  # its prediction has failed, which is said elsewhere
        entropy = float(read_image(unsure, str(unsure)).mean()) / 255
        written = output_format.written_mask(job)
        pixels = np.zeros(len(output_format.names), np.int64)
        with open_mask_rows(written, output_format.reader_of(written)) as mask:
            height = mask.size[0]
            for top in range(0, height, SCORED_ROWS):
                rows = mask.read(top, min(top + SCORED_ROWS, height)).prediction
                pixels += np.bincount(rows[rows < len(pixels)].ravel(), minlength=len(pixels))
        foreground = pixels[1:]
        index = 1 + int(foreground.argmax()) if foreground.any() else 0
        candidates.append(Candidate(job.relative_name, entropy, output_format.names[index]))
    return candidates


def write_ranking(folder: Path, order: Sequence[Ranked]) -> None:
    """Write folder/rank.csv. Raises OSError."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("rank", "image", "entropy", "reason"))
    for number, ranked in enumerate(order, start=1):
        table.writerow((number, ranked.candidate.name, f"{ranked.candidate.entropy:.6f}", ranked.reason))
    with replaced_file(folder / TABLE) as file:
        file.write(text.getvalue().encode(errors="backslashreplace"))  # half a character in a name


def _least_sure_first(candidate: Candidate) -> tuple[float, str]:
    return -candidate.entropy, candidate.name


def _name(candidate: Candidate) -> str:
    return candidate.name
