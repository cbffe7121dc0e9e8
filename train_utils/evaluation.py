"""The results of one evaluation on the validation images, and the prediction of one image in strips."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_utils.sources.records import Records
from inference.decoding.decoder import Decoder
from runtime.console import listing
from runtime.errors import TrainingError
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
        unreadable: the indices of the images for which the network's answers are not finite numbers.
    """

    step: int
    loss: float | None
    scores: Scores
    unreadable: Sequence[int] = ()

    def check(self, records: Records, best_step: int) -> None:
        """Raise TrainingError if an answer of the network is not a finite number: its scores would mean nothing.

        Args:
            records: the validation records.
            best_step: the step of the best model so far, 0 before there is one.
        """
        if not self.unreadable:
            return
        count, total = len(self.unreadable), len(records)
        remedy = "try a lower --learning-rate"
        if count < total:
            names = listing([records.name(index) for index in self.unreadable[:4]])
            remedy = f"look at the values of {names}, or {remedy}"
        kept = f"; the best model, of step {best_step}, is kept" if best_step else ""
        raise TrainingError(
            f"step {self.step}: the network's answers for {count} of {total} validation images are not finite numbers;"
            f" {remedy}{kept}"
        )

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
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict an image from strips of its logits.

    Args:
        strips: (1, outputs, n, ...) each, from top to bottom, at the size of the target.
        target: (1, *spatial).
        reliability: (bins, 3), the confidence counts, to which this image's are added if the task has confidences.

    Returns:
        The prediction, with a first axis of 1; the sums of `Task.finish`; whether all logits and sums are finite, a
        bool on the device. Logits that are not finite count as 0, since no answer can be read from them.
    """
    rendered = task.render(target)
    answers: list[Tensor] = []
    sums: tuple[Tensor, ...] = ()
    is_finite = torch.ones((), dtype=torch.bool, device=reliability.device)
    top = 0
    for logits in strips:
        is_finite_here = logits.isfinite().all()
        is_finite = is_finite & is_finite_here
        logits.masked_fill_(~is_finite_here, 0)
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
    finished = task.finish(sums)
    return decoder.finish_on_device(answers), finished, is_finite & finished.isfinite().all()
