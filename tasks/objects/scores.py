"""Scores of objects, from the matches of true and predicted ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_utils.target import Target
from tasks.confusion import mean_of_present
from tasks.object_labels import label_classes
from tasks.object_sizes import SIZES, size_labels
from tasks.objects.matching import SUMS, THRESHOLDS, Matches, ObjectSums, Overlaps
from tasks.tables import Column, Table
from tasks.task import Scores
from unet.config import IGNORE_INDEX

MEANS = (
    Column("ap50", "AP@0.5"),
    Column("ap75", "AP@0.75"),
    Column("ap", "AP@0.5:0.95"),
    Column("panoptic_quality", "panoptic quality"),
    Column("f1", "F1"),
    Column("count_error", "count error"),
)
COUNTS = tuple(Column(name, name, ",") for name in ("objects", "predicted", "found", "split", "merged"))
SIZE_COLUMNS = (Column("objects", "objects", ","), Column("found", "found", ","), Column("share", "share", ".1%"))


class ObjectScores(Scores):
    """Scores of objects from whole numbers, which are the same on any number of processes.

    The parts of an image are kept until `finish_image`, since its objects can only be matched as a whole.

    Args:
        names: the classes of objects.
        sums: (classes * SUMS,) int64.
        by_image: (images, classes * SUMS) int64, the sums of each image.
    """

    compared = MEANS[0]
    headline = MEANS
    beside_image = ("ap50", *(column.key for column in COUNTS))

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        super().__init__(sums, by_image)
        self.names = tuple(names)
        self.recorded_by_name = ("ap50",) if len(self.names) > 1 else ()
        self._parts: list[Overlaps] = []  # of the image that is being added

    def add(self, prediction: Tensor, target: Target, index: int) -> None:
        """Count labels of `pack_labels`; pixels that the truth ignores belong to no object."""
        self.add_part(prediction, target, index)
        self.finish_image(index)

    def add_part(self, prediction: Tensor, target: Target, index: int) -> None:
        true = target.prediction.cpu().numpy()
        overlaps = Overlaps.between(prediction.cpu().numpy(), true)
        self._parts.append(overlaps.within(label_classes(overlaps.true) != IGNORE_INDEX))

    def finish_image(self, index: int) -> None:
        if not self._parts:
            return
        overlaps = Overlaps.join(self._parts)
        self._parts = []
        row: list[int] = []
        for class_index in range(1, len(self.names) + 1):
            true = np.where(label_classes(overlaps.true) == class_index, overlaps.true, 0)
            predicted = np.where(label_classes(overlaps.predicted) == class_index, overlaps.predicted, 0)
            matches = Matches.from_overlaps(Overlaps(predicted, true, overlaps.pixels))
            row += matches.sums().to_row()
        sums = torch.tensor(row, device=self.sums.device)
        self.sums += sums
        self.by_image[index] += sums

    def by_name(self) -> dict[str, dict[str, Any]]:
        rows = self.sums.view(len(self.names), SUMS)
        return {name: ObjectSums.from_row(row).scores() for name, row in zip(self.names, rows, strict=True)}

    @property
    def values(self) -> dict[str, Any]:
        """The means over the classes that occur, and the counts of all."""
        classes = self.by_name().values()
        values: dict[str, Any] = {}
        for name, _, _ in MEANS:
            values[name] = mean_of_present([scores[name] for scores in classes])
        for name, _, _ in COUNTS:
            values[name] = sum(scores[name] for scores in classes)
        for name in ("found_by_size", "objects_by_size"):
            values[name] = np.sum([scores[name] for scores in classes], axis=0).tolist()
        return values

    @property
    def image_comparison(self) -> list[float]:
        comparisons = []
        for row in self.by_image:
            score = ObjectScores(self.names, row, row[None]).values["ap50"]
            if score is None:  # there was no object, and none was predicted
                score = 1.0
            comparisons.append(score)
        return comparisons

    def record(self) -> dict[str, float | None]:
        values = self.values
        counts = {"missed": values["objects"] - values["found"], "split": values["split"], "merged": values["merged"]}
        return super().record() | {f"eval/{name}": count for name, count in counts.items()}

    def report(self) -> dict[str, Any]:
        return {**self.values, "iou_thresholds": THRESHOLDS, "sizes": SIZES, "by_class": self.by_name()}

    @property
    def remark(self) -> str:
        values = self.values
        return f"{values['predicted']:,} objects for {values['objects']:,}"

    @property
    def unfound(self) -> list[str]:
        unfound = []
        for name, scores in self.by_name().items():
            if scores["objects"] and not scores["found"]:
                unfound.append(name)
        return unfound

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        rows = list(self.by_name().items())
        values = self.values
        sizes = []
        for label, found, objects in zip(
            size_labels(), values["found_by_size"], values["objects_by_size"], strict=True
        ):
            if objects:
                sizes.append((label, {"objects": objects, "found": found, "share": found / objects}))
        by_class = Table("Objects", "class", (*MEANS, *COUNTS), rows)
        return [by_class, Table("Found by size", "pixels", SIZE_COLUMNS, sizes)]
