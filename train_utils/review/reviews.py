"""The masks of the validation images of runs, each reviewed by the models that have not trained on it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.volumes import read_volume_header
from data_utils.sources.records import Records
from inference.predictor import Predictor
from runtime.console import track
from runtime.documents import as_json
from runtime.errors import DataError, UserError
from runtime.files import checksum, user_path
from runtime.values import checked
from tasks.classes.loss import Classes
from tasks.section import read_example
from train_utils.comparison.recipes import read_runs, read_settings
from train_utils.dataset import load_dataset_info
from train_utils.review.reviewed_masks import Area, area_share, best_shift, compare_areas, mask_score, rate_areas
from train_utils.settings.train_settings import TrainSettings

MIN_CONFIDENCE = 0.7  # confidence from which on a finding is reported
POOR_SCORE = 0.6  # mean IoU; below it a model contradicts right masks too
WORST_SLICES = 3  # slices that make up the score of a volume, and are shown


@dataclass(frozen=True, eq=False)
class ReviewedRun:
    """A run with the images or volumes that it has not trained on, `info.val`, and the predictor of its best model.

    Args:
        dataset: the path of its data set, or its id on the Hub.
    """

    name: str
    dataset: str
    info: DatasetInfo
    predictor: Predictor

    @property
    def has_volumes(self) -> bool:
        """Whether the run trained on volumes."""
        return self.info.val.records.dims == 3


def open_reviewed_run(folder: Path, dataset: str | None, device: torch.device) -> ReviewedRun:
    """A run whose masks can be reviewed. Raises DataError, without the name of the folder, if they cannot.

    Args:
        dataset: the present path of the data set; None for the recorded path.
    """
    settings = read_settings(folder)
    task = settings.identity["task"]
    if task != Classes.name:
        raise DataError(f"its task is {task}, and only masks of classes are reviewed")
    config = TrainSettings(**checked(TrainSettings, settings.flags))
    config = config if dataset is None else replace(config, dataset=dataset)
    info = load_dataset_info(config)
    recorded = settings.identity.get("data set")
    if info.fingerprint() != recorded:
        raise DataError(
            f"the data set has changed since the run: it is {info.fingerprint()}, and was"
            f" {recorded}; which images the model has not trained on is not known any more"
        )
    if as_json(info.reader.identity) != settings.identity.get("classes"):
        raise DataError("the masks have other classes now than in the run")
    place = user_path(config.dataset)
    dataset = str(place.resolve()) if place.exists() else config.dataset
    return ReviewedRun(str(folder), dataset, info, Predictor.from_pretrained(folder / "model", device))


def predicted_slices(run: ReviewedRun, index: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Probabilities (classes, H, W) and mask (H, W), class indices, of each slice of a validation record.

    An image is one slice. The slices of a volume come from bottom to top, and the probabilities of only a few slices
    are in memory at a time.
    """
    record = run.info.val.records[index]
    image, name = record["image"], record["name"]
    reader = run.info.reader
    if run.has_volumes:
        target = reader.read_volume(record, read_volume_header(image, name))
        yield from zip(run.predictor.slices(image, name), reader.shown_truth(target), strict=True)
    else:
        _, target, _ = read_example(record, reader)
        yield run.predictor(image, name).probabilities, reader.shown_truth(target)


class Slice(NamedTuple):
    """A slice of a volume, counted from below, or an image: its areas, probabilities (classes, H, W), mask (H, W)."""

    number: int
    score: float
    areas: list[Area]
    probabilities: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True, eq=False)
class MaskReview:
    """What the model of a run says of the mask of an image or a volume.

    Args:
        index: the number of the image among the validation images of the run.
        slices: the numbers of the slices that look worst, the worst first; an image is a volume of one slice.
        score: the mean over these slices of `mask_score`, in 0..1, low if the mask looks wrong.
        area_share: the mean over these slices of `area_share`, in 0..1, high if whole areas look wrong.
        areas: the areas in these slices on which mask and model do not agree.
        shifts: how the mask, or the masks of slices, have to be moved, in words.
        equal_to: an image with the same content that the model has trained on, if there is one.
    """

    name: str
    run: ReviewedRun
    index: int
    slices: Sequence[int]
    score: float
    area_share: float
    areas: Sequence[Area]
    shifts: Sequence[str]
    equal_to: str | None = None

    @property
    def missing(self) -> float:
        """The confidence, in 0..1, that the mask lacks the likeliest of the objects that it may lack."""
        return max((area.confidence for area in self.areas if not area.in_mask), default=0.0)

    @property
    def problems(self) -> list[str]:
        """The likely mistakes in words, the surest first."""
        problems = []
        for area in sorted(self.areas, key=attrgetter("confidence"), reverse=True):
            if area.text and area.confidence >= MIN_CONFIDENCE:
                problems.append(f"{area.text} ({area.confidence:.0%} sure)")
        problems += self.shifts
        if self.equal_to is not None:
            problems.append(f"the image is equal to the training image {self.equal_to}")
        return problems


def review_runs(
    folders: Sequence[Path], dataset: str | None, device: torch.device
) -> tuple[list[MaskReview], list[str]]:
    """A review of each image that a run has not trained on, the worst first, and a line for each failure or poor model.

    An image that several runs hold out is reviewed by the first of them. One image is in memory at a time.
    """
    lines: list[str] = []
    first: ReviewedRun | None = None
    reviews: dict[str, MaskReview] = {}
    areas: list[Area] = []
    for folder in folders:
        try:
            run = open_reviewed_run(folder, dataset, device)
        except UserError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        first = first or run
        if run.dataset != first.dataset:
            others = f"{first.name} on {first.dataset}"
            lines.append(f"{folder}: it has trained on {run.dataset}, and {others}; review it alone; it is left out")
            continue
        recorded, _ = read_runs([folder])
        if recorded and recorded[0].score < POOR_SCORE:
            score = f"its mean IoU is {recorded[0].score:.2f}"
            lines.append(f"{folder}: {score}, and below {POOR_SCORE} a model contradicts right masks too; train longer")
        val = run.info.val
        equal_names = equal_images(run.info.train.records, val.records)
        for index in track(range(len(val)), len(val), f"reviewing {folder}"):
            name = val.records.shown_name(index)
            if index in val.bad or name in reviews:
                continue
            try:
                review = review_mask(run, index, areas, equal_names.get(name))
            except DataError as error:
                lines.append(f"{error}; it is left out")
                continue
            if review is not None:
                reviews[name] = review
    rate_areas(areas)
    return worst_first(list(reviews.values())), lines


def review_mask(run: ReviewedRun, index: int, all_areas: list[Area], equal_to: str | None) -> MaskReview | None:
    """The review of a mask by a run; None if nothing of it is labeled. All areas are added to `all_areas`."""
    assert isinstance(run.predictor.task, Classes)  # `open_reviewed_run` refuses all others
    background = run.predictor.task.background
    worst: list[Slice] = []
    for number, (probabilities, mask) in enumerate(predicted_slices(run, index)):
        areas = list(compare_areas(probabilities, mask, run.info.reader.class_names, background))
        all_areas += areas
        score = mask_score(probabilities, mask)
        if score is None:
            continue
        # a copy, which does not keep the slices beside it in memory
        worst.append(Slice(number, score, areas, probabilities.copy(), mask))
        worst.sort(key=attrgetter("score"))
        del worst[WORST_SLICES:]
    if not worst:
        return None
    shifts = []
    suspicious = []
    for scored in worst:
        place = f"slice {scored.number}: " if run.has_volumes else ""
        for area in scored.areas:
            if area.text:
                area.text = place + area.text
            if not area.agrees:
                suspicious.append(area)
        shift = best_shift(scored.probabilities, scored.mask)
        if shift is not None:
            rows, columns = shift
            shifts.append(f"{place}the mask fits better when it is moved by {rows:+d} rows and {columns:+d} columns")
    return MaskReview(
        run.info.val.records.shown_name(index),
        run,
        index,
        slices=[scored.number for scored in worst],
        score=mean(scored.score for scored in worst),
        area_share=mean(area_share(scored.probabilities, scored.mask, background) for scored in worst),
        areas=suspicious,
        shifts=shifts,
        equal_to=equal_to,
    )


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
        keys.append((not review.shifts, rank, review.name))
    return [reviews[index] for index in sorted(range(last), key=keys.__getitem__)]


def equal_images(train: Records, val: Records) -> dict[str, str]:
    """{name of a validation image: name of a training image} of files with the same content.

    Training images of other sizes are not read. Images without a file of their own are not compared.
    """
    val_files = dict(_files(val))
    sizes = {file.stat().st_size for file in val_files.values()}
    train_names: dict[str, str] = {}  # by content
    for name, file in _files(train):
        if file.stat().st_size in sizes:
            train_names.setdefault(checksum(file), name)
    equal = {}
    for name, file in val_files.items():
        if train_names and (content := checksum(file)) in train_names:
            equal[name] = train_names[content]
    return equal


def _files(records: Records) -> Iterator[tuple[str, Path]]:
    """The name and the file of each image that is a file of its own."""
    for index, record in enumerate(records):
        source = record["image"]
        if isinstance(source, str | Path) and Path(source).is_file():
            yield records.shown_name(index), Path(source)
