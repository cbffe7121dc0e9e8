"""Run a script with one more task, "grey", for tests of the seam alone: `grey_task.py train.py --task grey ...`.

The network learns the grey value of a mask of 8 bits, divided by 255: one output, whose sigmoid is the value.
"""

import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.target import Target, labels
from data_utils.targets.reader import MaskReader
from runtime.errors import DataError
from tasks import TASKS
from tasks.decoder import Decoder
from tasks.drawing import colorize, to_rgb
from tasks.kind import TaskKind
from tasks.prediction_format import MaskFormat
from tasks.section import Section
from tasks.tables import Column, Table
from tasks.task import Scores, Task
from unet.config import MaskValue, UNetConfig

UNKNOWN = -1
WHITE = 255
RAMP = np.arange(WHITE + 1, dtype=np.uint8)[:, None].repeat(3, axis=1)  # the color of each value


@dataclass(frozen=True, eq=False)
class GreyTarget(Target):
    """grey: the value of each pixel, -1 where it is unknown."""

    grey: Any = labels(unknown=UNKNOWN, dtype="int16")


class GreyScores(Scores):
    """The mean absolute error, from whole numbers: on any number of processes it is the same.

    Args:
        sums: (2,) int64, the absolute errors of all known pixels together, and their number.
        by_image: (images, 2) int64, the same of each image.
    """

    headline = (Column("closeness", "closeness"), Column("grey_error", "grey error"))

    def __init__(self, sums: Tensor, by_image: Tensor) -> None:
        self.sums, self.by_image = sums, by_image

    def add(self, prediction: Tensor, target: GreyTarget, index: int) -> None:
        known, truth = target.grey != UNKNOWN, target.grey.long()
        errors = (prediction.long() - truth).abs() * known
        counted = torch.stack([errors.sum(), known.sum()])
        self.sums += counted
        self.by_image[index] += counted

    @property
    def error(self) -> float | None:
        """The mean absolute error in grey values; None where nothing was counted."""
        total, pixels = self.sums.tolist()
        return total / pixels if pixels else None

    @property
    def closeness(self) -> float | None:
        """1 where all is right, 0 where black is white; None where nothing was counted."""
        return None if self.error is None else 1 - self.error / WHITE

    @property
    def comparison(self) -> float:
        return self.closeness or 0.0

    @property
    def image_comparison(self) -> list[float]:
        return [GreyScores(sums, self.by_image).comparison for sums in self.by_image]

    @property
    def means(self) -> dict[str, float | None]:
        return {"closeness": self.closeness, "grey_error": self.error}

    def record(self) -> dict[str, float | None]:
        return {f"eval/{name}": value for name, value in self.means.items()}

    def brief(self) -> dict[str, float | None]:
        return self.means

    def report(self) -> dict[str, Any]:
        return {**self.means, "pixels": self.sums[1].item()}

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        return []


class Grey(Task):
    """The squared error of sigmoid(logit) against value / 255, per known pixel."""

    name = "grey"
    compared_by = "closeness"
    target = GreyTarget
    terms = 1

    @property
    def outputs(self) -> int:
        return 1

    def counts(self, targets: GreyTarget) -> Tensor:
        return (targets.grey != UNKNOWN).sum(dtype=torch.float64)[None]

    def partial(self, logits: Tensor, targets: GreyTarget) -> tuple[Tensor, ...]:
        known = targets.grey != UNKNOWN
        errors = logits.float().sigmoid().squeeze(1) - targets.grey / WHITE
        return ((errors.square() * known).sum(),)

    def finish(self, partial: tuple[Tensor, ...]) -> Tensor:
        return torch.stack(partial)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> GreyScores:
        sums, by_image = (torch.zeros(shape, dtype=torch.int64, device=device) for shape in (2, (images, 2)))
        return GreyScores(sums, by_image)

    def scores_from_json(self, value: dict[str, Any]) -> GreyScores:
        return GreyScores(torch.tensor(value["sums"]), torch.tensor(value["by_image"]).view(-1, 2))

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Grey":
        return cls()


class GreyReader(MaskReader):
    """The values of a mask as they are."""

    target = GreyTarget

    @classmethod
    def from_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "GreyReader":
        return cls()

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Grey:
        return Grey()

    @property
    def key(self) -> tuple:
        return (Grey.name,)

    def target_from_mask(self, values: np.ndarray, name: str) -> GreyTarget:
        if values.ndim != 2 or values.min() < 0 or values.max() > WHITE:
            raise DataError(f"{name}: mask is not grey with values from 0 to {WHITE}")
        return GreyTarget(values.astype(np.int16))

    def to_preprocess(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "grey values"


class GreyDecoder(Decoder):
    """The nearest grey value; the probability is that of white."""

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        return (WHITE * logits.sigmoid()).round().to(torch.uint8).squeeze(dim)

    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        return logits.sigmoid()

    def logits_from_probabilities(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        return probabilities.logit(eps=torch.finfo(probabilities.dtype).eps)


class GreyFormat(MaskFormat):
    """Masks hold the values themselves."""

    def __init__(self) -> None:
        self.reader, self.names, self.colors = GreyReader(), tuple(map(str, range(WHITE + 1))), RAMP

    @classmethod
    def from_config(cls, config: UNetConfig) -> "GreyFormat":
        return cls()

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def shades(self, labels: np.ndarray) -> np.ndarray:
        return labels.clip(0).astype(np.uint8)


class GreySection(Section):
    """The error in numbers, and the values side by side."""

    task_name = "Grey regression"
    mask_values = "grey values"
    curves = {"Validation scores": {"closeness": "eval/closeness"}}  # noqa: RUF012
    score_key = "eval/closeness"
    image_score = "closeness"
    views_hint = "Unknown pixels are of another grey."

    def description(self) -> str:
        return "The grey value of each pixel."

    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": to_rgb(image), "truth": colorize(truth, RAMP), "prediction": colorize(pred, RAMP)}


def register() -> None:
    """Make the task known."""
    TASKS[Grey.name] = TaskKind(Grey, GreyReader, GreyDecoder, GreyFormat, GreySection)


if __name__ == "__main__":
    # what is pickled must be found again by other processes: by this name, and not in their own __main__
    import grey_task

    grey_task.register()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
