"""The masks of the validation images of runs, each reviewed by the models that have not trained on it."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

from data_utils.sources.excluded import shown_name
from data_utils.sources.records import Records
from runtime.console import track
from runtime.errors import DataError, UserError
from runtime.files import checksum
from train_utils.review.agreement import Agreement
from train_utils.review.areas import IN_PREDICTION, ComparedArea, area_share, compare_areas
from train_utils.review.quality import best_shift, mask_score
from train_utils.review.runs import ReviewedRun, open_reviewed_run, predicted_slices

MIN_CONFIDENCE = 0.7  # confidence from which on a finding is reported
WORST_SLICES = 3  # slices that make up the score of a volume, and are shown


class Slice(NamedTuple):
    """A slice of a volume, counted from below, or an image; probabilities (classes, H, W), and the mask (H, W)."""

    number: int
    score: float
    probabilities: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True, eq=False)
class Opinion:
    """The opinion of one run's model on a mask.

    Args:
        index: the number of the image among the validation images of the run.
        slices: the numbers of the slices that look worst, the worst first; an image is a volume of one slice.
        areas: the areas on which mask and model do not agree, with their numbers among all compared areas.
        shifts: how the mask, or the masks of slices, have to be moved, in words.
    """

    run: ReviewedRun
    index: int
    slices: Sequence[int]
    score: float
    area_share: float
    areas: Sequence[tuple[int, ComparedArea]]
    shifts: Sequence[str]


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
        is_shifted: whether the mask has to be moved to fit the first model's prediction.
        problems: the likely mistakes in the eyes of the first model, in words, the surest first.
        opinions: of the models that have not trained on the image.
    """

    name: str
    score: float
    area_share: float
    missing: float
    is_shifted: bool
    problems: Sequence[str]
    opinions: Sequence[Opinion]


def review_runs(
    folders: Sequence[Path], dataset: str | None, device: torch.device
) -> tuple[list[MaskReview], list[str]]:
    """A review of each image that a run has not trained on, the worst mask first, and a line for each failure.

    One image is in memory at a time.
    """
    lines: list[str] = []
    opinions: dict[str, list[Opinion]] = defaultdict(list)
    equal_names: dict[str, str] = {}
    agreement = Agreement()
    for folder in folders:
        try:
            run = open_reviewed_run(folder, dataset, device)
        except UserError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        equal_names |= equal_images(run.info.train.records, run.info.val.records)
        for index in track(range(len(run.info.val)), len(run.info.val), f"reviewing {folder}"):
            if index in run.info.val.bad:
                continue
            try:
                opinion = ask(run, index, agreement)
            except DataError as error:
                lines.append(f"{error}; it is left out")
                continue
            if opinion is not None:
                opinions[run.shown_name(index)].append(opinion)
    agreements = agreement.probabilities()
    reviews = [summarize(name, by_run, agreements, equal_names.get(name)) for name, by_run in opinions.items()]
    return worst_first(reviews), lines


def ask(run: ReviewedRun, index: int, agreement: Agreement) -> Opinion | None:
    """The opinion of a run's model on a mask; None if nothing of it is labeled. All areas are added to `agreement`."""
    worst: list[Slice] = []
    areas: list[list[tuple[int, ComparedArea]]] = []  # of each slice
    for number, (probabilities, mask) in enumerate(predicted_slices(run, index)):
        areas.append([])
        for area in compare_areas(probabilities, mask, run.class_names):
            area_number = agreement.add(area)
            if area.agrees:
                continue
            if area.text:
                area = area._replace(text=_place(run, number) + area.text)
            areas[number].append((area_number, area))
        score = mask_score(probabilities, mask)
        if score is not None:
            # a copy, which does not keep the slices beside it in memory
            worst.append(Slice(number, score, probabilities.copy(), mask))
            worst.sort(key=attrgetter("score"))
            del worst[WORST_SLICES:]
    if not worst:
        return None
    shifts = []
    worst_areas: list[tuple[int, ComparedArea]] = []
    for number, _, probabilities, mask in worst:
        worst_areas += areas[number]
        shift = best_shift(probabilities, mask)
        if shift is not None:
            moved = f"{shift[0]:+d} rows and {shift[1]:+d} columns"
            shifts.append(f"{_place(run, number)}the mask fits better when it is moved by {moved}")
    return Opinion(
        run,
        index,
        slices=[scored.number for scored in worst],
        score=mean(scored.score for scored in worst),
        area_share=mean(area_share(scored.probabilities, scored.mask) for scored in worst),
        areas=worst_areas,
        shifts=shifts,
    )


def _place(run: ReviewedRun, number: int) -> str:
    if not run.has_volumes:
        return ""
    return f"slice {number}: "


def summarize(name: str, opinions: Sequence[Opinion], agreements: np.ndarray, equal_to: str | None) -> MaskReview:
    """The review of a mask, from the opinions of its models.

    Args:
        agreements: the probability that masks agree on an area, by its number.
        equal_to: an image with the same content that a model has trained on, if there is one.
    """
    first = opinions[0]
    findings = confidences(first, agreements)
    problems = []
    for area, sure in findings:
        if area.text and sure >= MIN_CONFIDENCE:
            problems.append(f"{area.text} ({sure:.0%} sure)")
    problems += first.shifts
    if equal_to is not None:
        problems.append(f"the image is equal to the training image {equal_to}")
    return MaskReview(
        name,
        score=mean(opinion.score for opinion in opinions),
        area_share=mean(opinion.area_share for opinion in opinions),
        missing=mean(_missing_object(opinion, agreements) for opinion in opinions),
        is_shifted=bool(first.shifts),
        problems=problems,
        opinions=opinions,
    )


def confidences(opinion: Opinion, agreements: np.ndarray) -> list[tuple[ComparedArea, float]]:
    """The areas on which a model and a mask do not agree, each with how likely the mask is wrong, the likeliest first.

    This is the model's probability, times the probability that masks agree with the model on such areas.
    """
    areas = []
    for number, area in opinion.areas:
        areas.append((area, float(agreements[number]) * area.probability))
    return sorted(areas, key=itemgetter(1), reverse=True)


def _missing_object(opinion: Opinion, agreements: np.ndarray) -> float:
    """The confidence of the likeliest object that a mask lacks, 0 if it lacks none."""
    for area, confidence in confidences(opinion, agreements):
        if area.picture == IN_PREDICTION:
            return confidence
    return 0.0


def worst_first(reviews: Sequence[MaskReview]) -> list[MaskReview]:
    """Reviews in the order in which to look at them: shifted masks first, then by the product of three ranks.

    The factors are the rank by score, the rank by missing objects, and the square root of the rank by areas. The score
    counts all pixels: many unsure borders lower it as much as a forgotten object. Areas may be parts of objects.
    """
    from scipy.stats import rankdata  # takes a second

    last = len(reviews)
    score_ranks = rankdata([review.score for review in reviews], "ordinal")
    missing_ranks = rankdata([-review.missing for review in reviews], "ordinal")
    area_ranks = rankdata([-review.area_share for review in reviews], "ordinal")
    keys = []
    for index, review in enumerate(reviews):
        # masks that lack no object have the last rank, and so do masks without wrong areas
        missing_rank = missing_ranks[index] if review.missing else last
        area_rank = area_ranks[index] if review.area_share else last
        rank = score_ranks[index] * missing_rank * math.sqrt(area_rank)
        keys.append((not review.is_shifted, rank, review.name))
    return [reviews[index] for index in sorted(range(last), key=keys.__getitem__)]


def equal_images(train: Records, val: Records) -> dict[str, str]:
    """{name of a validation image: name of a training image} of files with the same content.

    Files are compared by size first, so that few are read. Images without a file of their own are not compared.
    """
    val_files = list(_files(val))
    sizes = {file.stat().st_size for _, file in val_files}
    train_names: dict[str, str] = {}  # by content
    train_sizes = set()
    for name, file in _files(train):
        size = file.stat().st_size
        if size in sizes:
            train_sizes.add(size)
            train_names.setdefault(checksum(file), name)
    equal = {}
    for name, file in val_files:
        if file.stat().st_size in train_sizes and (content := checksum(file)) in train_names:
            equal[name] = train_names[content]
    return equal


def _files(records: Records) -> Iterator[tuple[str, Path]]:
    """The name and the file of each image that is a file of its own."""
    for index, record in enumerate(records):
        source = record["image"]
        if isinstance(source, str | Path) and Path(source).is_file():
            yield shown_name(records, index), Path(source)
