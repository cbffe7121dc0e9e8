"""The masks of the validation images of runs, each reviewed by a model that has not trained on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
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


class ReviewedSlice(NamedTuple):
    """What a model says of the mask of an image, or of a slice of a volume.

    Args:
        number: of the slice, counted from below.
        score, area_share, shift: as `mask_score`, `area_share` and `best_shift` give them.
        areas: those on which mask and model do not agree.
    """

    number: int
    score: float
    area_share: float
    shift: tuple[int, int] | None
    areas: Sequence[Area]


@dataclass(frozen=True, eq=False)
class MaskReview:
    """What the model of a run says of the mask of an image or a volume.

    Args:
        index: the number of the image among the validation images of the run.
        slices: the slices that look worst, the worst first; an image is a volume of one slice.
        equal_to: an image with the same content that the model has trained on, if there is one.
    """

    name: str
    run: ReviewedRun
    index: int
    slices: Sequence[ReviewedSlice]
    equal_to: str | None = None

    @property
    def score(self) -> float:
        """In 0..1, low if the mask looks wrong."""
        return mean(part.score for part in self.slices)

    @property
    def area_share(self) -> float:
        """In 0..1, high if whole areas look wrong."""
        return mean(part.area_share for part in self.slices)

    @property
    def missing(self) -> float:
        """The confidence, in 0..1, that the mask lacks the likeliest of the objects that it may lack."""
        highest = 0.0
        for part in self.slices:
            for area in part.areas:
                if not area.in_mask:
                    highest = max(highest, area.confidence)
        return highest

    @property
    def problems(self) -> list[str]:
        """The likely mistakes in words, the surest first."""
        findings = []
        others = []
        for part in self.slices:
            place = f"slice {part.number}: " if self.run.has_volumes else ""
            for area in part.areas:
                if area.text and area.confidence >= MIN_CONFIDENCE:
                    findings.append((area.confidence, f"{place}{area.text} ({area.confidence:.0%} sure)"))
            if part.shift is not None:
                rows, columns = part.shift
                moved = f"moved by {rows:+d} rows and {columns:+d} columns"
                others.append(f"{place}the mask fits better when it is {moved}")
        if self.equal_to is not None:
            others.append(f"the image is equal to the training image {self.equal_to}")
        findings.sort(key=itemgetter(0), reverse=True)
        return [text for _, text in findings] + others


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
                slices = worst_slices(run, index, areas)
            except DataError as error:
                lines.append(f"{error}; it is left out")
                continue
            if slices:
                reviews[name] = MaskReview(name, run, index, slices, equal_names.get(name))
    rate_areas(areas)
    return worst_first(list(reviews.values())), lines


def worst_slices(run: ReviewedRun, index: int, all_areas: list[Area]) -> list[ReviewedSlice]:
    """The slices of a record that look worst, none if nothing is labeled. All areas are added to `all_areas`."""
    assert isinstance(run.predictor.task, Classes)  # `open_reviewed_run` refuses all others
    background = run.predictor.task.background
    worst: list[tuple[float, int, list[Area], np.ndarray, np.ndarray]] = []
    for number, (probabilities, mask) in enumerate(predicted_slices(run, index)):
        areas = list(compare_areas(probabilities, mask, run.info.reader.class_names, background))
        all_areas += areas
        score = mask_score(probabilities, mask)
        if score is not None:
            # a copy, which does not keep the slices beside it in memory
            worst.append((score, number, areas, probabilities.copy(), mask))
            worst.sort(key=itemgetter(0))
            del worst[WORST_SLICES:]
    slices = []
    for score, number, areas, probabilities, mask in worst:
        share = area_share(probabilities, mask, background)
        shift = best_shift(probabilities, mask)
        slices.append(ReviewedSlice(number, score, share, shift, [area for area in areas if not area.agrees]))
    return slices


def worst_first(reviews: Sequence[MaskReview]) -> list[MaskReview]:
    """Reviews in the order in which to look at them: shifted masks first, then by the product of three ranks.

    The factors are the rank by score, the rank by missing objects, and the square root of the rank by areas. The score
    counts all pixels: many unsure borders lower it as much as a forgotten object. Areas may be parts of objects.
    """
    last = len(reviews)
    missing = np.array([review.missing for review in reviews])
    shares = np.array([review.area_share for review in reviews])
    # masks that lack no object have the last rank, and so do masks without wrong areas
    ranks = _ranks([review.score for review in reviews]) * np.where(missing > 0, _ranks(-missing), last)
    ranks = ranks * np.sqrt(np.where(shares > 0, _ranks(-shares), last))
    keys = {}
    for review, rank in zip(reviews, ranks.tolist(), strict=True):
        is_shifted = any(part.shift for part in review.slices)
        keys[review] = (not is_shifted, rank, review.name)
    return sorted(reviews, key=keys.__getitem__)


def _ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The rank of each value, 1 for the smallest; of equal ones the first has the lower rank."""
    return np.argsort(np.argsort(values, kind="stable")) + 1


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
