"""What one evaluation on the validation images measured, and how one image is read for it."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.decoding.decoder import Decoder
from tasks.target import Target
from tasks.task import Scores, Task


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Evaluation:
    """The result of one evaluation.

    Attributes:
        step: the optimizer step of the weights.
        loss: the mean over the validation images, None where it was not kept.
        scores: the scores of the validation images, in their order, on the CPU.
    """

    step: int
    loss: float | None
    scores: Scores

    def record(self) -> dict[str, float | None]:
        """The scores under the names that metrics.jsonl and the trackers share."""
        return {"eval/loss": self.loss} | self.scores.record()


def read_bands(
    task: Task, decoder: Decoder, bands: Iterable[Tensor], target: Target
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The prediction (1, *spatial) of an image and the sums of `Task.partial`, from bands of its logits.

    Args:
        bands: (1, outputs, n, ...) each, from top to bottom, at the size of the target.
        target: (1, *spatial).
    """
    drawn = task.draw(target)
    answers = []
    sums: tuple[Tensor, ...] = ()
    top = 0
    for logits in bands:
        rows = slice(top, top + logits.shape[2])
        partial = task.partial(logits, drawn.at((slice(None), rows)))
        answers.append(decoder.decode(logits, dim=1).to(getattr(torch, decoder.dtype)))
        sums = tuple(map(torch.add, sums, partial)) if sums else partial
        top = rows.stop
    return decoder.predict(torch.cat(answers, dim=1)), sums
