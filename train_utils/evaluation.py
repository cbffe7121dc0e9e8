"""The evaluation of a model on the validation images, and its results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader

from data_utils.sources.records import Records
from data_utils.target import Target
from inference.views import predict_strips
from runtime.console import listing, track
from runtime.errors import TrainingError
from tasks.calibration import calibration_error, no_counts
from tasks.step_loss import StepLoss
from tasks.task import Scores, Task
from train_utils.compilation import eager
from train_utils.sharding import share_statistics, whole_network


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Evaluation:
    """The result of one evaluation.

    Args:
        step: the optimizer step of the weights.
        loss: the mean over the validation images; None if it was not kept.
        scores: the scores of the validation images, in their order, on the CPU.
        unreadable: the indices of the images for which the network's outputs are not finite numbers.
        task: the one of `Task.variants` that the scores are of; None if it was not kept.
    """

    step: int
    loss: float | None
    scores: Scores
    unreadable: Sequence[int] = ()
    task: Task | None = None

    def check(self, records: Records, best_step: int) -> None:
        """Raise TrainingError if an output of the network is not a finite number: its scores would mean nothing.

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
            f"step {self.step}: the network's outputs for {count} of {total} validation {records.image_kind}s are not"
            f" finite numbers; {remedy}{kept}"
        )

    def record(self) -> dict[str, float | None]:
        """The scores by their names in metrics.jsonl and in the trackers."""
        record = {"eval/loss": self.loss} | self.scores.record()
        counts = self.scores.reliability
        error = None if counts is None else calibration_error(counts)
        if error is not None:
            record["eval/calibration_error"] = error
        return record


@torch.inference_mode()
def evaluate(
    accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader, criterion: StepLoss, step: int
) -> Evaluation:
    """Evaluate the model: scores and loss at the targets' own sizes, exact on any number of processes.

    The scores are those of the best of the task's variants.
    """
    model.eval()
    share_statistics(accelerator, model)
    task = criterion.task
    network = accelerator.unwrap_model(model)
    whole = whole_network(accelerator, network)  # processes have different numbers of tiles: none waits for the others
    evaluated = model if whole is network else whole
    device = accelerator.device
    variants = task.variants
    scores_of_variants = [variant.new_scores(len(loader.dataset), device) for variant in variants]
    sums = torch.zeros(task.terms, device=device)
    counts = torch.zeros(task.terms, device=device)
    reliability = no_counts(device)
    unreadable = torch.zeros(len(loader.dataset), device=device)
    with eager(accelerator):
        for batch in track(loader, len(loader), "evaluating", unit="batch"):
            sizes = [target.shape for target in batch["targets"]]
            images = predict_strips(evaluated, batch["images"], sizes, network.config, task)
            for strips, target, index in zip(images, batch["targets"], batch["indices"], strict=True):
                target = target.as_batch()
                predictions, image_sums, is_finite = read_strips(task, strips, target, reliability)
                for scores, prediction in zip(scores_of_variants, predictions, strict=True):
                    scores.add(prediction, target, index)
                    scores.finish_image(index)
                unreadable[index] = ~is_finite
                counts = counts + task.counts(target)
                sums = sums + image_sums.to(counts.dtype)
    model.train()
    sums, counts, reliability, unreadable = accelerator.reduce([sums, counts, reliability, unreadable], "sum")
    reliability = reliability.to("cpu", non_blocking=True)
    unreadable = unreadable.to("cpu", non_blocking=True)
    for scores in scores_of_variants:
        totals = accelerator.reduce([scores.sums, scores.by_image], "sum")
        scores.sums, scores.by_image = (total.to("cpu", non_blocking=True) for total in totals)
        scores.reliability = reliability
    loss = (sums / torch.where(counts > 0, counts, 1)).sum().item()  # the host waits, and all copies above are complete
    best = max(range(len(variants)), key=lambda index: scores_of_variants[index].comparison)
    unreadable_indices = unreadable.nonzero().flatten().tolist()
    return Evaluation(step, loss, scores_of_variants[best], unreadable_indices, variants[best])


def read_strips(
    task: Task, strips: Iterable[Tensor], target: Target, reliability: Tensor
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Predict an image from strips of its logits.

    Args:
        strips: (1, outputs, n, ...) each, from top to bottom, at the size of the target.
        target: (1, *spatial).
        reliability: (bins, 3), the confidence counts, to which this image's are added if the task has confidences.

    Returns:
        The prediction of each of the task's variants, with a first axis of 1; the sums of `Task.finish`; whether all
        logits and sums are finite, a bool on the device. Logits that are not finite count as 0, since no prediction can
        be read from them.
    """
    rendered = task.render(target)
    decoded: list[Tensor] = []
    sums: tuple[Tensor, ...] = ()
    is_finite = torch.ones((), dtype=torch.bool, device=reliability.device)
    top = 0
    for logits in strips:
        is_finite_here = logits.isfinite().all()
        is_finite = is_finite & is_finite_here
        logits.masked_fill_(~is_finite_here, 0)
        bottom = top + logits.shape[2]
        partial = task.partial(logits, rendered.strip(top, bottom))
        decoded.append(task.decode(logits))
        certainty = task.certainty(logits)
        if certainty is not None:
            reliability += task.count_certainty(certainty, decoded[-1], target.strip(top, bottom))
        sums = tuple(map(torch.add, sums, partial)) if sums else partial
        top = bottom
    finished = task.finish(sums, rendered)
    whole = torch.cat(decoded, dim=2 - logits.ndim)  # the axis of rows
    predictions = task.labels_of_variants(whole)
    return predictions, finished, is_finite & finished.isfinite().all()
