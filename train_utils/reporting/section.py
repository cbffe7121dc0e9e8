"""The part of the report, the model card and the trackers that depends on the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image
from data_utils.image_io.volumes import read_volume
from data_utils.targets.reader import TargetReader
from data_utils.visualize import join_in_row
from data_utils.visualize_volumes import busiest_voxel, orthogonal_slices
from inference.predictor import Predictor
from tasks.task import Scores


class Metric(NamedTuple):
    """A score for the front matter of a model card: its name there, in words, and its value."""

    key: str
    label: str
    value: float | None


class Example(NamedTuple):
    """A validation record with its truth and its prediction, as pictures show them.

    Args:
        image: (H, W, C).
        truth, pred: (H, W) masks, or the targets of another task.
    """

    name: str
    image: np.ndarray
    truth: Any
    pred: Any


OwnScores = TypeVar("OwnScores", bound=Scores)


class Section(ABC, Generic[OwnScores]):
    """The part of reports that depends on the task.

    Attributes:
        task_name: the Hub's name of the task.
        tags: the Hub's tags for the task.
        pipeline_tag: the Hub's pipeline tag for such models.
        mask_values: the meaning of the values in a mask of the predictor.
        answer: the line of the card's example that predicts from a {source}; empty if the answer is a mask.
        flags: flags of training that only this task has.
        gains_from_encoder: whether pretrained encoders have helped with photographs.
        curves: title -> {label: record}, at most two in one chart.
        score_key: the record that models are compared by.
        means: the means of `Scores.report` that the card and the top of the report show: key -> label.
        image_score: the name of the score of an image.
        good: the score, of those that models are compared by, from which on a model is good.
        views_hint: a sentence on the pictures of the worst and best images.
    """

    task_name: ClassVar[str]
    tags: ClassVar[Sequence[str]] = ()
    pipeline_tag: ClassVar[str] = "image-segmentation"
    mask_values: ClassVar[str] = ""
    answer: ClassVar[str] = ""
    flags: ClassVar[Sequence[str]] = ()
    gains_from_encoder: ClassVar[bool] = True
    curves: ClassVar[dict[str, dict[str, str]]]
    means: ClassVar[dict[str, str]]
    score_key: ClassVar[str]
    image_score: ClassVar[str] = "IoU"
    good: ClassVar[float] = 0.9
    views_hint: ClassVar[str]

    def __init__(self, reader: TargetReader) -> None:
        self.reader = reader

    @abstractmethod
    def description(self) -> str:
        """A sentence, in Markdown, on the answer of the model."""

    def metrics(self, scores: OwnScores) -> list[Metric]:
        """The means, for the front matter of the card and the top of the report."""
        values = scores.report()
        return [Metric(key, label, values[key]) for key, label in self.means.items()]

    def unfound(self, scores: OwnScores) -> list[str]:
        """Names of the classes in the validation images that the model has found nowhere."""
        return []

    def label(self, comparison: float) -> str:
        """The score of an image as its title shows it."""
        return f"{self.image_score} {comparison:.4f}"

    def example(self, info: DatasetInfo, index: int, predictor: Predictor) -> Example:
        """A validation record with its prediction.

        A volume is shown by three orthogonal slices, at the places that show most of the truth.
        """
        record = info.val.records[index]
        name = record["name"]
        target = info.reader.target
        unknown = target.unknown_value(target.field_names()[0])
        if info.val.records.dims == 3:
            voxels, header = read_volume(record["image"], name)
            truth = info.reader.shown_truth(info.reader.read_volume(record, header))
            center = busiest_voxel(truth)
            pred = predictor.predict_rows(record["image"], name).astype(truth.dtype, copy=False)
            image = orthogonal_slices(voxels, center, header.spacing)
            truth = orthogonal_slices(truth, center, header.spacing, fill=unknown)
            pred = orthogonal_slices(pred, center, header.spacing, fill=unknown)
            return Example(name, image, truth, pred)
        image = read_image(record["image"], name)
        size = image.shape[:2]
        truth = info.reader.shown_truth(info.reader.read(record, size, size))
        pred = predictor.predict_rows(record["image"], name)
        return Example(name, image, truth, pred)

    def panel(self, image: np.ndarray, truth: Any, pred: np.ndarray) -> np.ndarray:
        """One picture, uint8 (H, W, 3), of the image, the truth and the prediction of an `Example`."""
        return join_in_row(list(self.views(image, truth, pred).values()))

    @abstractmethod
    def views(self, image: np.ndarray, truth: Any, pred: np.ndarray) -> dict[str, np.ndarray]:
        """Separate pictures of image, truth and prediction by label, uint8 (H, W, 3)."""

    def render_pictures(self, scores: OwnScores) -> dict[str, np.ndarray]:
        """Pictures of the scores by tag, for trackers."""
        return {}

    @abstractmethod
    def html(self, scores: OwnScores) -> str:
        """<section> elements of the report, after the curves."""

    @abstractmethod
    def markdown(self, scores: OwnScores) -> str:
        """The part of the card on the scores, in Markdown."""
