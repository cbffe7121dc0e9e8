"""What one evaluation on the validation images measured."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from tasks.confusion import format_table, scores, summary_line


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Evaluation:
    """The counts of one evaluation; every score follows from them.

    Attributes:
        step: the optimizer step of the weights.
        class_names: one for each class, in the order of the matrix.
        matrix: (num_classes, num_classes) int64 on the CPU, pixels, rows truth, columns prediction.
        loss: mean over the validation images, None where it was not kept.
        image_iou: the mean IoU of each validation image, in their order.
    """

    step: int
    class_names: tuple[str, ...]
    matrix: Tensor
    loss: float | None
    image_iou: list[float]

    @cached_property
    def scores(self) -> dict[str, Any]:
        """`unet.metrics.scores`: means by name, and a list over the classes by metric; None where there is no score."""
        return scores(self.matrix)

    @property
    def mean_iou(self) -> float:
        """What models are compared by; 0 where nothing was counted."""
        return self.scores["mean_iou"] or 0.0

    def record(self) -> dict[str, float | None]:
        """The scores under the names that metrics.jsonl and the trackers share."""
        means = {f"eval/{key}": self.scores[key] for key in ("mean_iou", "mean_dice", "pixel_accuracy")}
        record = {"eval/loss": self.loss} | means
        for metric in ("iou", "dice"):
            values = zip(self.class_names, self.scores[metric], strict=True)
            record |= {f"eval/{metric}/{name}": value for name, value in values}
        return record

    def summary(self) -> str:
        """The means in one line."""
        return summary_line(self.scores, self.class_names)

    def table(self) -> str:
        """The scores of each class, and the means, as plain text."""
        return format_table(self.matrix, self.class_names)
