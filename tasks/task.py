"""The base class of a task: the channels of the logits, the loss, the scores, and how a prediction is read."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from data_utils.target import OwnTarget, Target
from tasks.calibration import no_counts
from tasks.tables import Column, Table, as_text
from unet.config import UNetConfig

NO_DATA = np.iinfo(np.int32).min  # what a pixel without data decodes to: no object reaches into it, nor fills it


class Scores(ABC):
    """Scores of predictions, kept as sums until they are read.

    All that is shown of them are keys of `values` and of `by_name`.

    Attributes:
        compared: the score by which models and images are compared: in 0..1, higher is better.
        beside_image: the keys of the few scores of an image alone, the compared one among them.
        recorded_by_name: the keys of the scores of each class that metrics.jsonl and the trackers have.
        background: the index of the class that the means over cases and the counts of areas leave out; None if none is.
        sums: a tensor that adds up over images and processes.
        by_image: (images, ...), zero for images that were not added; adds up over processes. If a subclass does not
            say otherwise, its first column is the compared score of each image.
        reliability: (bins, 3) int64, the counts of `calibration.count_confidences`; None before the first count.
        entries: the entry of each predicted image or volume in metrics.json.
        boundaries: the `BoundaryScores` of the predicted images, if they are scored; tables show them too.
        areas: the summed results of `count_areas`, if pixels have classes.
    """

    compared: ClassVar[Column]
    beside_image: Sequence[str] = ()
    recorded_by_name: Sequence[str] = ()
    background: int | None = 0
    reliability: Tensor | None = None
    areas: np.ndarray | None = None

    def __init__(self, sums: Tensor, by_image: Tensor) -> None:
        self.sums = sums
        self.by_image = by_image
        self.entries: list[dict[str, Any]] = []
        self.boundaries: list[Any] = []

    @abstractmethod
    def add(self, prediction: Tensor, target: OwnTarget, index: int) -> None:
        """Count the prediction (1, *spatial) of image `index` against its target, (1, *spatial) too, on its device.

        Both may be of a part of the image; `image_comparison` may then be wrong for it. Call `finish_image` at its end.
        """

    def finish_image(self, index: int) -> None:
        """Count what depends on the whole image, after its last part; most tasks have counted all by then."""
        return

    @property
    @abstractmethod
    def headline(self) -> Sequence[Column]:
        """The means in the log's lines, on the report's tiles and in the card."""

    @property
    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The scores of all images and classes together, by key; None for undefined scores."""

    def by_name(self) -> dict[str, dict[str, Any]]:
        """The scores of each class or landmark, by its name; empty for a task without names."""
        return {}

    @property
    def recorded(self) -> Sequence[str]:
        """The keys of the scores that metrics.jsonl and the trackers have."""
        return [column.key for column in self.headline]

    @classmethod
    def score_key(cls) -> str:
        """The name of the compared score in metrics.jsonl."""
        return f"eval/{cls.compared.key}"

    @property
    def comparison(self) -> float:
        """The number by which models are compared, 0 if nothing was counted."""
        return self.values[self.compared.key] or 0.0

    @property
    def image_comparison(self) -> list[float]:
        """The comparison of each image, in 0..1."""
        return self.by_image[:, 0].tolist()

    @property
    def image_entries(self) -> list[dict[str, Any]]:
        """The `entries`, after all images were merged: a subclass can set what depends on the other images."""
        return self.entries

    def merge(self, other: "Scores") -> None:
        """Add the counts of `other`, which come from other images.

        `by_image` keeps the rows of its own images only, except in tasks that compute all scores from `by_image`.
        """
        self.sums += other.sums
        self.entries += other.entries
        self.boundaries += other.boundaries
        if other.reliability is not None:
            self.add_reliability(other.reliability)
        if other.areas is not None:
            self.areas = other.areas if self.areas is None else self.areas + other.areas

    def add_reliability(self, counts: Tensor) -> None:
        """Add counts (bins, 3) of confidences and of right predictions."""
        before = no_counts(counts.device) if self.reliability is None else self.reliability
        self.reliability = before + counts

    def record(self) -> dict[str, float | None]:
        """The scores under the names that metrics.jsonl and the trackers share; None for undefined scores."""
        values = self.values
        record = {f"eval/{key}": values[key] for key in self.recorded}
        by_name = self.by_name()
        for key in self.recorded_by_name:
            for name, scores in by_name.items():
                record[f"eval/{key}/{name}"] = scores[key]
        return record

    def brief(self) -> dict[str, float | None]:
        """The few scores that are shown beside an image."""
        values = self.values
        return {key: values[key] for key in self.beside_image or self.recorded}

    def report(self) -> dict[str, Any]:
        """The content of metrics.json except the images."""
        return self.values

    def score_tables(self) -> list[Table]:
        """The tables of all scores."""
        return []

    @property
    def remark(self) -> str:
        """What is strange about the predictions, in words."""
        return ""

    @property
    def unfound(self) -> list[str]:
        """Names of the classes that images hold and that the model has found nowhere."""
        return []

    def summary(self) -> str:
        """The headline in one line."""
        values = self.values
        texts = [f"{column.title} {column.text(values)}" for column in self.headline]
        line = ", ".join(texts)
        if self.remark:
            line += f"; {self.remark}"
        return line

    def table(self) -> str:
        """All scores as lines of plain text."""
        return "\n".join([*map(as_text, self.score_tables()), self.summary()])

    def to_json(self) -> dict[str, Any]:
        """The scores in the form of a checkpoint; `Task.scores_from_json` reads them."""
        state = {"sums": self.sums.tolist(), "by_image": self.by_image.tolist()}
        if self.reliability is not None and self.reliability.any():
            state["reliability"] = self.reliability.tolist()
        return state


class Task(ABC):
    """The meaning of the network's outputs: their loss, their scores, and the prediction that is read from them.

    A loss is a sum of terms. Each term is a sum over things that can be counted from the targets before the forward
    pass, so it does not depend on how a step is split.

    Logits are (B, outputs, *spatial), of whole images or of some of their rows. `decode` keeps what a prediction needs
    of them. If that of all rows is not yet the prediction, `labels_and_objects` makes it of them; `labels_of_variants`
    does the same for evaluations.

    Attributes:
        name: the task's name in --task and config.json.
        scores: the class of its scores.
        target: the class of its targets.
        terms: T, the number of terms of its loss.
        has_exclusive_classes: whether each pixel of a prediction has one class; boundaries and areas can then be
            scored.
        needs_exact_tiles: whether one differing pixel may change other pixels of the prediction; --tile-size is then
            the side of the part that is used of a tile.
        partners: for each output, the output that it becomes in the mirror image; empty if no output changes.
        mirrors: whether a mirrored image has a right target too, so that images may be mirrored.
        measured_fields: the fields of `to_config` that come from training; models of an ensemble may differ in them.
        reading: how another program reads the prediction from the logits, in words.
        at_image_size: whether logits are resized to the image's own size before they are read; else they stay at
            the size of the network's input.
    """

    name: ClassVar[str]
    scores: ClassVar[type[Scores]]
    target: ClassVar[type[Target]]
    terms: ClassVar[int] = 1
    has_exclusive_classes: ClassVar[bool] = False
    needs_exact_tiles: ClassVar[bool] = False
    partners: tuple[int, ...] = ()
    mirrors: bool = True
    measured_fields: ClassVar[tuple[str, ...]] = ()
    reading: ClassVar[str] = ""
    at_image_size: ClassVar[bool] = True

    @property
    @abstractmethod
    def output_names(self) -> Sequence[str]:
        """The meaning of each channel of the logits."""

    @property
    def outputs(self) -> int:
        """Channels of the logits."""
        return len(self.output_names)

    def with_variants(self) -> "Task":
        """The task whose `variants` are tried in training."""
        return self

    @property
    def variants(self) -> Sequence["Task"]:
        """The task with each way to read a prediction from the same logits; evaluations keep the best one."""
        return [self]

    @property
    def averages_mirrored(self) -> bool:
        """Whether a prediction is the mean of two, of the image and of its mirror image."""
        return False

    def unknown_target(self, shape: Sequence[int]) -> Target:
        """A target of NumPy arrays for an image of a shape (*spatial) about which nothing is known.

        A process that has read a data set gets the same from `TargetReader.unknown_target`.
        """
        return self.target.unknown(shape)

    def unknown_batch(self, shape: Sequence[int], device: torch.device) -> Target:
        """A batch of unknown targets of a shape (B, *spatial), as large in memory as a batch in training."""
        target = self.unknown_target(shape[1:]).map(torch.from_numpy)
        return self.target.stack([target] * shape[0]).to(device).for_loss()

    def at_level(self, targets: OwnTarget, factors: Sequence[int]) -> Target:
        """The targets (B, *spatial) of a coarser level of deep supervision.

        Each of its pixels is the middle one of the pixels that pooling joins, `factors` along each axis.
        """
        index = [slice(None)]  # all images
        for side, factor in zip(targets.shape[1:], factors, strict=True):
            index.append(slice(factor // 2, side // factor * factor, factor))
        return targets.at(tuple(index))

    def render(self, targets: OwnTarget) -> Target:
        """Render targets (B, *spatial) of whole images or crops, on the device, into targets to compare logits with."""
        return targets

    @abstractmethod
    def counts(self, targets: OwnTarget) -> Tensor:
        """(T,): the divisor of each term's sum, from targets (B, *spatial)."""

    @abstractmethod
    def partial(self, logits: Tensor, targets: OwnTarget) -> tuple[Tensor, ...]:
        """Sums that add up over the strips or slabs of images, and through which gradients flow.

        Args:
            logits: (B, outputs, *spatial).
            targets: (B, *spatial), rendered.
        """

    def finish(self, partial: tuple[Tensor, ...], targets: OwnTarget) -> Tensor:
        """(T,): the sum of each term, from the sums of whole images; these add up over images and processes.

        Args:
            targets: of these images, or of any strips of them.
        """
        return torch.stack(partial)

    def count_certainty(self, certainty: Tensor, prediction: Tensor, targets: OwnTarget) -> Tensor:
        """(bins, 3) counts of confidences and right predictions, which add up over strips and images.

        Args:
            certainty, prediction: `certainty` and `decode` of logits (B, outputs, *spatial); only a task that says how
                sure it is has such counts.
        """
        raise NotImplementedError(f"{self.name}: it says nothing of certainty")

    @abstractmethod
    def new_scores(self, images: int, device: torch.device | str = "cpu") -> Scores:
        """Empty scores for a number of images."""

    def scores_from_json(self, value: dict[str, Any]) -> Scores:
        """The scores from a value of `Scores.to_json`."""
        scores = self.new_scores(len(value["by_image"]))
        scores.sums = torch.tensor(value["sums"], dtype=scores.sums.dtype).view(scores.sums.shape)
        scores.by_image = torch.tensor(value["by_image"], dtype=scores.by_image.dtype).view(scores.by_image.shape)
        return scores

    def to(self, device: torch.device) -> "Task":
        """The task with its tensors on a device."""
        return self

    def to_config(self) -> dict[str, Any] | None:
        """The task's entry in config.json; None for classes, since the first versions had no other task."""
        return {"name": self.name}

    @property
    def meaning(self) -> dict[str, Any]:
        """The meaning of the outputs, which is equal for tasks whose outputs can be averaged."""
        values = self.to_config() or {}
        return {field: value for field, value in values.items() if field not in self.measured_fields}

    def ensemble_task(self, others: Sequence["Task"]) -> "Task":
        """The task for the averaged outputs of its own network and of the networks of `others`."""
        return self

    @abstractmethod
    def decode(self, logits: Tensor) -> Tensor:
        """What is kept of logits, mostly a class for each pixel (B, *spatial), on their device.

        It has the type of the prediction.
        """

    def labels_and_objects(self, decoded: np.ndarray) -> tuple[np.ndarray, Sequence[Any]]:
        """The prediction of an image or volume from all that was kept of it, and its objects."""
        return decoded, ()

    def labels_of_variants(self, decoded: Tensor) -> list[Tensor]:
        """The prediction of each of the `variants`; it and `decoded` are on the device, with a first axis of 1."""
        return [decoded]

    def mask(self, labels: np.ndarray) -> np.ndarray:
        """The labels of a prediction, in the form that `Predictor` returns."""
        return labels

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities in the shape of the logits; they are averaged over networks and views, and may be written.

        Here, and in what follows, each output is a separate yes-or-no question.
        """
        return logits.sigmoid()

    def logits_from_probabilities(self, probabilities: Tensor) -> Tensor:
        """Logits that have these `probabilities`."""
        # the logarithm of 0 could not be interpolated
        return probabilities.logit(eps=torch.finfo(probabilities.dtype).eps)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the prediction at each pixel, (B, *spatial): 0 if sure, 1 if all are as likely.

        Of several questions it is that of the least sure one.
        """
        probabilities = self.probabilities(logits)
        output_entropy = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
        return output_entropy.amax(dim=1) / math.log(2)

    def certainty(self, logits: Tensor) -> Tensor | None:
        """The certainty for `count_certainty`; None if the task counts none."""
        return None

    def mean_of_views(self, views: Sequence[Tensor]) -> Tensor:
        """Logits whose probabilities are the mean over the logits of several views, which are on one device."""
        mean = sum(map(self.probabilities, views)) / len(views)
        return self.logits_from_probabilities(mean)

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Task":
        """The task of a trained model."""
        return cls()
