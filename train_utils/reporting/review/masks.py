"""The masks of the validation images of runs, each looked at by the models that have not trained on it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import NamedTuple

import torch

from data_utils.analysis.dataset_info import DatasetInfo, load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.sources.excluded import shown_name
from inference.predictor import Predictor
from inference.review.equal_images import equal_images
from inference.review.mask_quality import Finding, find_problems, mask_score
from runtime.console import track
from runtime.errors import DataError, UserError
from tasks.classes import Classes
from train_utils.reporting.comparison.recorded_runs import read_settings
from train_utils.reporting.section import Example


@dataclass(frozen=True, eq=False)
class ReviewedRun:
    """A run with the images that it has not trained on, `info.val`, and the predictor of its best model."""

    name: str
    info: DatasetInfo
    predictor: Predictor


class Place(NamedTuple):
    """Where the image of a review is: a number among the validation images of a run."""

    run: ReviewedRun
    number: int


@dataclass(frozen=True, eq=False)
class MaskReview:
    """What was found of the mask of an image.

    Attributes:
        score: the mean over the models of `mask_score`, in 0..1, low where the mask looks wrong.
        findings: what looks wrong to the first model, the surest first.
        equal_to: an image with the same content that the model has trained on, if there is one.
        places: the image in each run that has not trained on it.
    """

    name: str
    score: float
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


def open_run(folder: Path, dataset: str | None, device: torch.device) -> ReviewedRun:
    """A run whose masks can be reviewed. DataError, without the name of the folder, where they cannot.

    Args:
        dataset: where the data set is now; None for where the run has found it.
    """
    settings = read_settings(folder)
    if settings.identity["task"] != Classes.name:
        raise DataError(f"its task is {settings.identity['task']}, and only masks of classes are reviewed")
    flags = SimpleNamespace(**{field.name: settings.flags.get(field.name) for field in fields(DataConfig)})
    config = DataConfig.from_args(flags)
    info = load_dataset_info(config if dataset is None else replace(config, dataset=dataset))
    if info.val.records.dims == 3:
        raise DataError("it was made with volumes, and only masks of images are reviewed")
    if info.fingerprint() != settings.identity.get("data set"):
        raise DataError(
            f"the data set has changed since the run: it is {info.fingerprint()}, and was"
            f" {settings.identity.get('data set')}; which images the model has not trained on is not known any more"
        )
    if json.loads(json.dumps(info.reader.identity)) != settings.identity.get("classes"):
        raise DataError("the masks have other classes now than in the run")
    return ReviewedRun(str(folder), info, Predictor.from_pretrained(folder / "model", device))


def review_runs(
    folders: Sequence[Path], dataset: str | None, device: torch.device
) -> tuple[list[MaskReview], list[str]]:
    """A review of each image that a run has not trained on, the worst mask first, and a line for all that failed.

    One image is in memory at a time.
    """
    lines: list[str] = []
    scores: dict[str, list[float]] = {}
    findings: dict[str, list[Finding]] = {}
    places: dict[str, list[Place]] = {}
    equal: dict[str, str] = {}
    for folder in folders:
        try:
            run = open_run(folder, dataset, device)
        except UserError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        equal |= equal_images(run.info.train.records, run.info.val.records)
        for index, name, score, found in track(_reviewed(run, lines), len(run.info.val), f"reviewing {folder}"):
            scores.setdefault(name, []).append(score)
            findings.setdefault(name, found)
            places.setdefault(name, []).append(Place(run, index))
    reviews = []
    for name, of_image in scores.items():
        reviews.append(MaskReview(name, mean(of_image), findings[name], equal.get(name), places[name]))
    reviews.sort(key=_score)
    return reviews, lines


def _reviewed(run: ReviewedRun, lines: list[str]) -> Iterator[tuple[int, str, float, list[Finding]]]:
    """Index, name, score and findings of each image that its mask says something about."""
    for index in range(len(run.info.val)):
        if index in run.info.val.bad:
            continue
        try:
            example = read_example(run, index)
            record = run.info.val.records[index]
            probabilities = run.predictor(record["image"], record["name"]).probabilities
        except DataError as error:
            lines.append(f"{error}; it is left out")
            continue
        score = mask_score(probabilities, example.truth)
        if score is not None:
            yield index, example.name, score, find_problems(probabilities, example.truth, names_of(run))


def read_example(run: ReviewedRun, index: int) -> Example:
    """An image and its mask, (H, W) class indices; its prediction is left out."""
    record = run.info.val.records[index]
    image = read_image(record["image"], record["name"])
    size = image.shape[:2]
    truth = run.info.reader.shown_truth(run.info.reader.read(record, size, size))
    return Example(shown_name(run.info.val.records, index), image, truth, None)


def names_of(run: ReviewedRun) -> Sequence[str]:
    """The names of the classes."""
    class_map = run.info.reader.class_map
    assert class_map is not None  # the task is that of classes
    return class_map.names


def _score(review: MaskReview) -> float:
    return review.score
