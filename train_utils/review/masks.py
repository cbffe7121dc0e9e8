"""The masks of the validation images of runs, each reviewed by the models that have not trained on it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

from inference.review.agreement import Agreement
from inference.review.areas import IN_PREDICTION, ComparedArea, area_share, compare_areas
from inference.review.equal_images import equal_images
from inference.review.mask_quality import best_shift
from inference.review.worst_slices import ScoredSlice, worst_slices
from runtime.console import track
from runtime.errors import DataError, UserError
from train_utils.review.reviewed_run import ReviewedRun, open_reviewed_run, predicted_slices

MIN_CONFIDENCE = 0.7  # confidence from which on a finding is reported


class HeldOutImage(NamedTuple):
    """The place of a reviewed image: its number among the validation images of a run.

    Args:
        slices: the slices of a volume that look worst to the model of the run, the worst first.
    """

    run: ReviewedRun
    number: int
    slices: Sequence[int]


class Doubt(NamedTuple):
    """An area on which a mask and a model do not agree.

    Args:
        number: the number of the area among all compared areas.
    """

    number: int
    area: ComparedArea

    def confidence(self, agreements: Sequence[float]) -> float:
        """The model's probability, times the probability that masks agree with the model on such areas, in 0..1.

        Args:
            agreements: the probability that masks agree on an area, by its number.
        """
        return agreements[self.number] * self.area.probability


class Opinion(NamedTuple):
    """The opinion of one run's model on a mask.

    Args:
        shifts: how the mask, or the masks of slices, have to be moved, in words.
    """

    image: HeldOutImage
    name: str
    score: float
    area_share: float
    doubts: Sequence[Doubt]
    shifts: Sequence[str]


class Finding(NamedTuple):
    """A likely mistake, in words, and how likely it is, in 0..1."""

    text: str
    confidence: float


@dataclass(frozen=True, eq=False)
class MaskReview:
    """The findings on the mask of an image or a volume.

    Args:
        score: the mean over the models of `mask_score`, in 0..1, low if the mask looks wrong; for volumes, the score
            is a mean over the worst slices.
        area_share: the mean over the models of `area_share`, in 0..1, high if whole areas look wrong; for volumes, as
            for `score`.
        missing: the mean over the models of the confidence, in 0..1, that the mask lacks the likeliest of the missing
            objects; 0 if it lacks none.
        findings: the likely mistakes in the eyes of the first model, the surest first.
        shifts: how the mask has to be moved to fit the first model's prediction, in words.
        equal_to: an image with the same content that the model has trained on, if there is one.
        images: the image in each run that has not trained on it.
    """

    name: str
    score: float
    area_share: float
    missing: float
    findings: Sequence[Finding]
    shifts: Sequence[str]
    equal_to: str | None
    images: Sequence[HeldOutImage]

    @property
    def problems(self) -> list[str]:
        """The likely mistakes, in words."""
        texts = [f"{finding.text} ({finding.confidence:.0%} sure)" for finding in self.findings]
        texts += self.shifts
        if self.equal_to is not None:
            texts.append(f"the image is equal to the training image {self.equal_to}")
        return texts


def review_runs(
    folders: Sequence[Path], dataset: str | None, device: torch.device
) -> tuple[list[MaskReview], list[str]]:
    """A review of each image that a run has not trained on, the worst mask first, and a line for each failure.

    One image is in memory at a time.
    """
    lines: list[str] = []
    opinions: dict[str, list[Opinion]] = {}
    equal_names: dict[str, str] = {}
    agreement = Agreement()
    for folder in folders:
        try:
            run = open_reviewed_run(folder, dataset, device)
        except UserError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        equal_names |= equal_images(run.info.train.records, run.info.val.records)
        for opinion in track(_opinions(run, agreement, lines), len(run.info.val), f"reviewing {folder}"):
            opinions.setdefault(opinion.name, []).append(opinion)
    reviews = []
    agreements = agreement.probabilities().tolist()
    for name, image_opinions in opinions.items():
        score = mean(opinion.score for opinion in image_opinions)
        share = mean(opinion.area_share for opinion in image_opinions)
        missing = mean(missing_object(opinion.doubts, agreements) for opinion in image_opinions)
        findings = reported_findings(image_opinions[0].doubts, agreements)
        images = [opinion.image for opinion in image_opinions]
        shifts = image_opinions[0].shifts
        reviews.append(MaskReview(name, score, share, missing, findings, shifts, equal_names.get(name), images))
    return worst_first(reviews), lines


def doubted_areas(
    probabilities: np.ndarray, mask: np.ndarray, names: Sequence[str], agreement: Agreement, location: str = ""
) -> list[Doubt]:
    """The areas on which a mask (H, W) and a model do not agree; all compared areas are added to `agreement`.

    Args:
        probabilities: (classes, H, W).
        names: the names of the classes.
        location: a prefix of the problem's text.
    """
    doubts = []
    for area in compare_areas(probabilities, mask, names):
        number = agreement.add(area)
        if not area.agrees:
            # no finding is surer than the model is
            is_told = area.text is not None and area.probability >= MIN_CONFIDENCE
            text = f"{location}{area.text}" if is_told else None
            doubts.append(Doubt(number, area._replace(text=text)))
    return doubts


def missing_object(doubts: Sequence[Doubt], agreements: Sequence[float]) -> float:
    """The confidence of the likeliest object that a mask lacks, 0 if it lacks none; `agreements` as in `Doubt`."""
    confidences = [0.0]
    for doubt in doubts:
        if doubt.area.picture == IN_PREDICTION:
            confidences.append(doubt.confidence(agreements))
    return max(confidences)


def reported_findings(doubts: Sequence[Doubt], agreements: Sequence[float]) -> list[Finding]:
    """The doubts that are reported, the surest first; `agreements` as in `Doubt`."""
    findings = []
    for doubt in doubts:
        confidence = doubt.confidence(agreements)
        if doubt.area.text is not None and confidence >= MIN_CONFIDENCE:
            findings.append(Finding(doubt.area.text, confidence))
    return sorted(findings, key=attrgetter("confidence"), reverse=True)


def worst_first(reviews: Sequence[MaskReview]) -> list[MaskReview]:
    """Reviews in the order in which to look at them: shifted masks first, then by the product of three ranks.

    The factors are the rank by score, the rank by missing objects, and the square root of the rank by areas. The score
    counts all pixels: many unsure borders lower it as much as a forgotten object. Areas may be parts of objects.
    """
    from scipy.stats import rankdata  # takes a second

    score_ranks = rankdata([review.score for review in reviews], "ordinal")
    missing_ranks = rankdata([-review.missing for review in reviews], "ordinal")
    area_ranks = rankdata([-review.area_share for review in reviews], "ordinal")
    keys = []
    for review, score_rank, missing_rank, area_rank in zip(
        reviews, score_ranks, missing_ranks, area_ranks, strict=True
    ):
        # masks that lack no object have the last rank, and so do masks without wrong areas
        if review.missing == 0:
            missing_rank = len(reviews)
        if review.area_share == 0:
            area_rank = len(reviews)
        keys.append((not review.shifts, score_rank * missing_rank * math.sqrt(area_rank), review.name))
    order = sorted(range(len(reviews)), key=keys.__getitem__)
    return [reviews[index] for index in order]


def _compared_slices(
    run: ReviewedRun, index: int, agreement: Agreement, doubts: list[list[Doubt]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the `predicted_slices` of a validation record, and append the `doubted_areas` of each to `doubts`."""
    for number, (probabilities, mask) in enumerate(predicted_slices(run, index)):
        location = f"slice {number}: " if run.has_volumes else ""
        doubts.append(doubted_areas(probabilities, mask, run.class_names, agreement, location))
        yield probabilities, mask


def _opinions(run: ReviewedRun, agreement: Agreement, lines: list[str]) -> Iterator[Opinion]:
    """Yield the opinion of a run's model on each image with a labeled mask; all areas are added to `agreement`."""
    for index in range(len(run.info.val)):
        if index in run.info.val.bad:
            continue
        doubts: list[list[Doubt]] = []
        try:
            worst = worst_slices(_compared_slices(run, index, agreement, doubts))
        except DataError as error:
            lines.append(f"{error}; it is left out")
            continue
        if not worst:
            continue
        scores = [scored.score for scored in worst]
        shares = [area_share(scored.probabilities, scored.mask) for scored in worst]
        slices = [scored.number for scored in worst]
        worst_doubts: list[Doubt] = []
        for number in slices:
            worst_doubts += doubts[number]
        shifts = shift_lines(worst, run.has_volumes)
        image = HeldOutImage(run, index, slices)
        yield Opinion(image, run.shown_name(index), mean(scores), mean(shares), worst_doubts, shifts)


def shift_lines(slices: Sequence[ScoredSlice], has_slices: bool) -> list[str]:
    """How the masks of slices have to be moved, in words."""
    shifts = []
    for scored in slices:
        shift = best_shift(scored.probabilities, scored.mask)
        if shift is not None:
            rows, columns = shift
            location = f"slice {scored.number}: " if has_slices else ""
            shifts.append(f"{location}the mask fits better when it is moved by {rows:+d} rows and {columns:+d} columns")
    return shifts
