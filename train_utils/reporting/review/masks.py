"""The masks of the validation images of runs, each looked at by the models that have not trained on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch

from inference.review.equal_images import equal_images
from inference.review.mask_quality import SHIFTED, Finding, area_share, find_problems
from inference.review.worst_slices import worst_slices
from runtime.console import track
from runtime.errors import DataError, UserError
from train_utils.reporting.review.reviewed_run import ReviewedRun, open_run, predicted_slices


class Place(NamedTuple):
    """Where the image of a review is: a number among the validation images of a run.

    slices: those of a volume that look worst to the model of the run, the worst first.
    """

    run: ReviewedRun
    number: int
    slices: Sequence[int]


class Opinion(NamedTuple):
    """What the model of one run says of a mask."""

    place: Place
    name: str
    score: float
    area_share: float
    findings: Sequence[Finding]


@dataclass(frozen=True, eq=False)
class MaskReview:
    """What was found of the mask of an image or a volume.

    Attributes:
        score: the mean over the models of `mask_score`, in 0..1, low where the mask looks wrong; for volumes the mean
            of that of their worst slices.
        area_share: the same of `area_share`, in 0..1, high where whole areas look wrong.
        findings: what looks wrong to the first model, the surest first.
        equal_to: an image with the same content that the model has trained on, if there is one.
        places: the image in each run that has not trained on it.
    """

    name: str
    score: float
    area_share: float
    findings: Sequence[Finding]
    equal_to: str | None
    places: Sequence[Place]

    @property
    def problems(self) -> list[str]:
        """What looks wrong, in words."""
        texts = [f"{finding.text} ({finding.confidence:.0%} sure)" for finding in self.findings]
        if self.equal_to is not None:
            texts.append(f"the image is equal to the training image {self.equal_to}")
        return texts


def review_runs(
    folders: Sequence[Path], dataset: str | None, device: torch.device
) -> tuple[list[MaskReview], list[str]]:
    """A review of each image that a run has not trained on, the worst mask first, and a line for all that failed.

    One image is in memory at a time.
    """
    lines: list[str] = []
    opinions: dict[str, list[Opinion]] = {}
    equal_names: dict[str, str] = {}
    for folder in folders:
        try:
            run = open_run(folder, dataset, device)
        except UserError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        equal_names |= equal_images(run.info.train.records, run.info.val.records)
        for opinion in track(_opinions(run, lines), len(run.info.val), f"reviewing {folder}"):
            opinions.setdefault(opinion.name, []).append(opinion)
    reviews = []
    for name, image_opinions in opinions.items():
        score = mean(opinion.score for opinion in image_opinions)
        share = mean(opinion.area_share for opinion in image_opinions)
        places = [opinion.place for opinion in image_opinions]
        findings = image_opinions[0].findings
        reviews.append(MaskReview(name, score, share, findings, equal_names.get(name), places))
    return worst_first(reviews), lines


def worst_first(reviews: Sequence[MaskReview]) -> list[MaskReview]:
    """Reviews in the order in which to look at them: shifted masks, then by the product of two ranks.

    These are the rank by score and the rank by areas. The score is that of all pixels, and many unsure borders lower
    it as a forgotten object does. Areas are whole objects, and count for more in an image of few.
    """
    score_ranks = _ranks([review.score for review in reviews])
    area_ranks = _ranks([-review.area_share for review in reviews])
    keys = []
    for review, score_rank, area_rank in zip(reviews, score_ranks, area_ranks, strict=True):
        is_shifted = any(finding.kind == SHIFTED for finding in review.findings)
        if review.area_share == 0:  # all of those without areas stand at the end
            area_rank = len(reviews)
        keys.append((not is_shifted, score_rank * area_rank, review.name))
    order = sorted(range(len(reviews)), key=keys.__getitem__)
    return [reviews[index] for index in order]


def _ranks(values: Sequence[float]) -> list[int]:
    """The place of each value when they are sorted, from 1; equal values keep their order."""
    ranks = [0] * len(values)
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__), start=1):
        ranks[index] = rank
    return ranks


def _opinions(run: ReviewedRun, lines: list[str]) -> Iterator[Opinion]:
    """What the model of a run says of each image that its mask says something about."""
    for index in range(len(run.info.val)):
        if index in run.info.val.bad:
            continue
        try:
            worst = worst_slices(predicted_slices(run, index))
        except DataError as error:
            lines.append(f"{error}; it is left out")
            continue
        if not worst:
            continue
        findings: list[Finding] = []
        for scored in worst:
            problems = find_problems(scored.probabilities, scored.mask, run.class_names)
            if run.has_volumes:
                problems = [problem.in_slice(scored.number) for problem in problems]
            findings += problems
        score = mean(scored.score for scored in worst)
        share = mean(area_share(scored.probabilities, scored.mask) for scored in worst)
        slices = [scored.number for scored in worst]
        yield Opinion(Place(run, index, slices), run.shown_name(index), score, share, findings)
