"""What a task shows of itself in the report, the model card, the trackers and the review, beside its scores."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_image
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import read_volume
from data_utils.loading.image_input import hide_missing, missing_pixels
from data_utils.sources.records import Record
from data_utils.targets.reader import TargetReader
from tasks.drawing import busiest_voxel, orthogonal_slices, to_rgb
from tasks.tables import Table, markdown_text


class Figure(NamedTuple):
    """A plot or a table of the scores, below the images of the report.

    Args:
        picture: (H, W, 3) uint8; the trackers show it too.
        source: the address of a plot, in place of a picture.
        table: of the same numbers.
    """

    title: str
    text: str
    picture: np.ndarray | None = None
    source: str | None = None
    table: Table | None = None


class Section:
    """The part of reports that depends on the task, and its pictures of predictions.

    Attributes:
        task_name: the Hub's name of the task, in words.
        pipeline_tag: the Hub's pipeline tag for such models.
        mask_values: the meaning of the values in a mask of the predictor.
        usage: the line of the card's example that predicts from a {source}; empty if the prediction is a mask.
        flags: flags of training that only some tasks have, this one among them.
        curves: title -> {label: record}, at most two in one chart; empty for the first two of the scores' headline.
        good: the score, of those that models are compared by, from which on a model is good.
        scores_hint, views_hint: sentences on the tables, and on the pictures of the worst and best images.
        names: of the classes.
        colors: of the classes, (classes, 3) uint8; empty where names have no colors.
        background: the index of the class on which nothing is drawn, if there is one.
    """

    task_name: ClassVar[str] = "Semantic segmentation"
    pipeline_tag: ClassVar[str] = "image-segmentation"
    mask_values: ClassVar[str] = ""
    usage: ClassVar[str] = ""
    flags: ClassVar[Sequence[str]] = ("loss", "class_weights")
    curves: ClassVar[dict[str, dict[str, str]]] = {}
    good: ClassVar[float] = 0.9
    scores_hint: ClassVar[str] = ""
    views_hint: ClassVar[str] = ""
    colors: np.ndarray = np.zeros((0, 3), np.uint8)
    background: ClassVar[int | None] = None

    def __init__(self, reader: TargetReader) -> None:
        self.reader = reader
        self.names: Sequence[str] = reader.class_names

    def description(self) -> str:
        """A sentence, in Markdown, on the prediction of the model."""
        if not self.names:
            return f"{self.task_name}: {self.reader.describe()}."
        return f"{self.task_name} into {len(self.names)} classes: {self.listed_names()}."

    def listed_names(self) -> str:
        """The names of the classes, in Markdown."""
        return ", ".join(map(markdown_text, self.names))

    def css_colors(self) -> dict[str, str]:
        """The color of each name that has one, in CSS."""
        return {name: f"rgb{tuple(color)}" for name, color in zip(self.names, self.colors.tolist(), strict=False)}

    def pictures(self, record: Record, pred: np.ndarray) -> dict[str, np.ndarray]:
        """The `views` of a record and its prediction; of a volume those of the planes that show most of the truth."""
        image, target, spacing = read_example(record, self.reader)
        truth = self.reader.shown_truth(target)
        if spacing is None:
            return self.views(image, truth, pred)
        center = busiest_voxel(truth)
        unknown = self.reader.target.unknown_label()
        masks = [truth, pred.astype(truth.dtype, copy=False)]
        planes = [orthogonal_slices(mask, center, spacing, fill=unknown) for mask in masks]
        return self.views(orthogonal_slices(image, center, spacing), *planes)

    def views(self, image: np.ndarray, truth: Any, pred: np.ndarray) -> dict[str, np.ndarray]:
        """Pictures of one size, by label, of an image (H, W, C), its true and its predicted mask; uint8 (H, W, 3)."""
        pictures = {"image": to_rgb(image), "truth": self.draw(image, truth), "prediction": self.draw(image, pred)}
        return pictures | self.errors(image, truth, pred)

    def errors(self, image: np.ndarray, truth: Any, pred: np.ndarray) -> dict[str, np.ndarray]:
        """The picture of the errors in `views`, by its label; empty if there is none."""
        return {}

    def draw(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """An image (H, W[, C]) with a true or predicted mask on it, uint8 (H, W, 3)."""
        return self.colorize(labels)

    def colorize(self, labels: np.ndarray) -> np.ndarray:
        """A predicted mask (H, W) in colors, uint8 (H, W, 3)."""
        return to_rgb(labels)

    def shares(self, labels: np.ndarray) -> Sequence[float]:
        """The share of each class in the pixels of a prediction (H, W); empty where names have no pixels."""
        return []

    def legend_entries(self, labels: np.ndarray) -> list[tuple[str, str]]:
        """The lines that a page has below the picture of a prediction: a color in CSS, "" for none, and a text each."""
        shares = self.shares(labels)
        texts = self.names
        if shares:
            texts = [f"{name} {share:.1%}" for name, share in zip(self.names, shares, strict=True)]
        return list(zip(self.css_colors().values(), texts, strict=True))

    def figures(self, scores: Any) -> list[Figure]:
        """Figures of the scores, for the report."""
        return []


def read_example(record: Record, reader: TargetReader) -> tuple[np.ndarray, Any, Spacing | None]:
    """The image (H, W[, C]) of a record, its target at its own size, and None; or a volume, its target, its spacing.

    The target is unknown where the image holds no data.
    """
    name = record["name"]
    if isinstance(record["image"], VolumeFile):
        voxels, header = read_volume(record["image"], name)
        return voxels, reader.read_volume(record, header), header.spacing
    image = read_image(record["image"], name)
    size = (image.shape[0], image.shape[1])
    return image, hide_missing(reader.read(record, size, size), missing_pixels(image)), None
