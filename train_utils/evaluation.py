"""The results of one evaluation on the validation images, and the prediction of one image in strips."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.decoding.decoder import Decoder
from tasks.calibration import calibration_error
from tasks.target import Target
from tasks.task import Scores, Task


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Evaluation:
    """The result of one evaluation.

    Args:
        step: the optimizer step of the weights.
        loss: the mean over the validation images; None if it was not kept.
        scores: the scores of the validation images, in their order, on the CPU.
    """

    step: int
    loss: float | None
    scores: Scores

    def record(self) -> dict[str, float | None]:
        """The scores by their names in metrics.jsonl and in the trackers."""
        record = {"eval/loss": self.loss} | self.scores.record()
        counts = self.scores.reliability
        error = None if counts is None else calibration_error(counts)
        if error is not None:
            record["eval/calibration_error"] = error
        return record


def read_strips(
    task: Task, decoder: Decoder, strips: Iterable[Tensor], target: Target, reliability: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Predict an image from strips of its logits.

    Args:
        strips: (1, outputs, n, ...) each, from top to bottom, at the size of the target.
        target: (1, *spatial).
        reliability: (bins, 3), the confidence counts, to which this image's are added if the task has confidences.

    Returns:
        The prediction, with a first axis of 1, and the sums of `Task.partial`.
    """
    rendered = task.render(target)
    answers: list[Tensor] = []
    sums: tuple[Tensor, ...] = ()
    top = 0
    for logits in strips:
        bottom = top + logits.shape[2]
        partial = task.partial(logits, rendered.strip(top, bottom))
        counts = task.reliability(logits, target.strip(top, bottom))
        if counts is not None:
            reliability += counts
        answer = decoder.add_on_device(logits)
        if answer is not None:
            answers.append(answer)
        sums = tuple(map(torch.add, sums, partial)) if sums else partial
        top = bottom
    return decoder.finish_on_device(answers), sums
