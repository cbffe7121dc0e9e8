"""What one evaluation on the validation images measured."""

from dataclasses import dataclass

from tasks.task import Scores


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
