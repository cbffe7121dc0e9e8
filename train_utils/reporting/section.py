"""What the report, the model card and the trackers show of one task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from data_utils.targets.reader import TargetReader
from tasks.task import Scores


class Metric(NamedTuple):
    """A score for the front matter of a model card: its name there, in words, and its value."""

    key: str
    label: str
    value: float | None


class Section(ABC):
    """The part of reports that knows the task.

    Attributes:
        task_name: what the Hub calls the task.
        tags: the tags that it has there.
        mask_values: what a mask of the predictor holds.
        flags: flags of training that only this task has.
        curves: title -> {label: record}, at most two in one chart.
        compared: the records that stand beside the hyper-parameters in TensorBoard.
        views_hint: a sentence on the pictures of the worst and best images.
    """

    task_name: ClassVar[str]
    tags: ClassVar[Sequence[str]] = ()
    mask_values: ClassVar[str]
    flags: ClassVar[Sequence[str]] = ()
    curves: ClassVar[dict[str, dict[str, str]]]
    compared: ClassVar[Sequence[str]]
    views_hint: ClassVar[str]

    def __init__(self, reader: TargetReader) -> None:
        self.reader = reader

    @abstractmethod
    def description(self) -> str:
        """A sentence, in Markdown, on what the model answers."""

    @abstractmethod
    def metrics(self, scores: Scores) -> list[Metric]:
        """The means, for the front matter of the card and the top of the report."""

    def unfound(self, scores: Scores) -> list[str]:
        """Names of what the validation images hold and the model has found nowhere."""
        return []

    @abstractmethod
    def label(self, comparison: float) -> str:
        """The score of an image in its title."""

    @abstractmethod
    def panel(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> np.ndarray:
        """One picture, uint8 (H, W, 3), of an image (H, W, C), its truth and its prediction, (H, W) each."""

    @abstractmethod
    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        """Pictures of the same by label, uint8 (H, W, 3)."""

    def pictures(self, scores: Scores) -> dict[str, np.ndarray]:
        """Pictures of the scores by tag, for trackers."""
        return {}

    @abstractmethod
    def html(self, scores: Scores) -> str:
        """<section> elements of the report, after the curves."""

    @abstractmethod
    def markdown(self, scores: Scores) -> str:
        """What the card says of the scores, in Markdown."""
