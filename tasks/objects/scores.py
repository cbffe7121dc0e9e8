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

    headline = MEANS

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        self.names = tuple(names)
        self.sums = sums
        self.by_image = by_image
        self._parts: list[Overlaps] = []  # of the image that is being added

    @classmethod
    def empty(cls, names: Sequence[str], images: int, device: torch.device | str) -> "ObjectScores":
        """Empty scores for a number of images."""
        length = len(names) * SUMS
        sums = torch.zeros(length, dtype=torch.int64, device=device)
        return cls(names, sums, torch.zeros(images, length, dtype=torch.int64, device=device))

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

    @property
    def classes(self) -> list[dict[str, Any]]:
        """The scores of each class, by name."""
        return [ObjectSums.from_row(row).scores() for row in self.sums.view(len(self.names), SUMS)]

    @property
    def values(self) -> dict[str, Any]:
        """The means over the classes that occur, and the counts of all."""
        classes = self.classes
        values: dict[str, Any] = {}
        for name, _, _ in MEANS:
            values[name] = mean_of_present([scores[name] for scores in classes])
        for name, _, _ in COUNTS:
            values[name] = sum(scores[name] for scores in classes)
        for name in ("found_by_size", "objects_by_size"):
            values[name] = np.sum([scores[name] for scores in classes], axis=0).tolist()
        return values

    @property
    def comparison(self) -> float:
        return self.values["ap50"] or 0.0

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
        record = {}
        for name, _, _ in MEANS:
            record[f"eval/{name}"] = values[name]
        record["eval/missed"] = values["objects"] - values["found"]
        for name in ("split", "merged"):
            record[f"eval/{name}"] = values[name]
        if len(self.names) > 1:
            for name, scores in zip(self.names, self.classes, strict=True):
                record[f"eval/ap50/{name}"] = scores["ap50"]
        return record

    def brief(self) -> dict[str, float | None]:
        values = self.values
        brief = {"ap50": values["ap50"]}
        for name, _, _ in COUNTS:
            brief[name] = values[name]
        return brief

    def report(self) -> dict[str, Any]:
        by_class = dict(zip(self.names, self.classes, strict=True))
        return {**self.values, "iou_thresholds": THRESHOLDS, "sizes": SIZES, "by_class": by_class}

    @property
    def means(self) -> dict[str, Any]:
        return self.values

    @property
    def remark(self) -> str:
        values = self.values
        return f"{values['predicted']:,} objects for {values['objects']:,}"

    @property
    def unfound(self) -> list[str]:
        unfound = []
        for name, scores in zip(self.names, self.classes, strict=True):
            if scores["objects"] and not scores["found"]:
                unfound.append(name)
        return unfound

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        rows = list(zip(self.names, self.classes, strict=True))
        values = self.values
        sizes = []
        for label, found, objects in zip(
            size_labels(), values["found_by_size"], values["objects_by_size"], strict=True
        ):
            if objects:
                sizes.append((label, {"objects": objects, "found": found, "share": found / objects}))
        by_class = Table("Objects", "class", (*MEANS, *COUNTS), rows)
        return [by_class, Table("Found by size", "pixels", SIZE_COLUMNS, sizes)]
