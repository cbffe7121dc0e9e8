"""The remarks at the end of a run, in its report and on the terminal: what its numbers mean, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from runtime.console import counted, listing
from train_utils.metrics_log import LogRecord, series
from train_utils.schedule import FEW_STEPS

FEW_IMAGES = 10  # fewer validation images say little, and no verdict rests on them
RISEN_LOSS_FACTOR = 1.1  # a loss above this many times the lowest validation loss has risen
QUARTERS = 4  # parts of the evaluations; over-fitting is searched for after the first part
RISING_GAIN = 0.01  # a score that has gained more than this in the last quarter is still rising


@dataclass(frozen=True)
class Facts:
    """The facts about a run that its log does not have.

    Args:
        steps: how many steps were made.
        total_steps: how many were planned; 0 if the clock decides.
        resume: the command that makes the others, if the run was stopped.
        validation_images: how many images, or volumes, the score is measured on.
        unfound: names of classes that occur in masks and in no prediction.
        is_weighted: whether the loss weighs classes already.
        is_reduced: whether the network sees images smaller than they are.
        is_generated: whether the data are generated, so that advice on them is of no use.
        is_good: whether the best score is so good that general advice is of no use.
        score: the record that models are compared by, such as "eval/mean_iou".
        answers: what the model draws, such as "masks".
        examples: what it is measured on, "image" or "volume".
    """

    steps: int
    total_steps: int
    resume: str | None
    validation_images: int
    unfound: Sequence[str]
    is_generated: bool
    is_good: bool
    score: str
    is_weighted: bool = False
    is_reduced: bool = False
    answers: str = "masks"
    examples: str = "image"


def remarks_on(records: Sequence[LogRecord], facts: Facts) -> list[str]:
    """The remarks, the most important first: the finding, the flag that helps, and the page about it.

    One remark at most speaks of the length of the run, so that none advises against another.

    Args:
        records: the lines of metrics.jsonl.
    """
    remarks = []
    is_measured = facts.validation_images >= FEW_IMAGES
    if not is_measured and not facts.is_generated:
        images = counted(facts.validation_images, facts.examples)
        remarks.append(
            f"The score is measured on {images} only, so much of it is luck: --fold 1/5 to --fold 5/5 measure all"
            " (docs/data.md, Validation images)."
        )
    # the loss may rise while the score does too: then the score counts
    is_rising = is_measured and _is_rising(series(records, facts.score))
    over_fitting = None
    if is_measured and not is_rising:
        over_fitting = _over_fitting(records)
    if over_fitting:
        remarks.append(over_fitting)
    elif facts.steps < FEW_STEPS and not facts.is_good:
        remarks.append(_few_steps(facts))
    elif is_rising and facts.resume:
        remarks.append(f"The validation score was still rising when the run was stopped: {facts.resume} goes on.")
    elif is_rising:
        remarks.append(
            "The validation score was still rising at the end: more --max-minutes or --epochs may help"
            " (docs/choosing-settings.md)."
        )
    if facts.unfound:
        remedies = []
        if not facts.is_weighted:
            remedies.append("give --class-weights auto")
        if facts.is_reduced:
            remedies.append("give a larger --scale")
        remedies.append(f"add {facts.examples}s of {'it' if len(facts.unfound) == 1 else 'them'}")
        length = "" if over_fitting else "train longer, and "
        remarks.append(
            f"Nothing of {listing(facts.unfound)} was found: {length}{' or '.join(remedies)}"
            " (docs/reading-the-report.md, Classes)."
        )
    if not remarks and series(records, facts.score):
        remarks.append("Nothing stands out: every class was found, and the validation loss has not risen.")
    return remarks


def _few_steps(facts: Facts) -> str:
    made = counted(facts.steps, "step")
    poor = f"below {FEW_STEPS} the {facts.answers} are often poor"
    if facts.resume:
        planned = ""
        if facts.total_steps:
            planned = f" of {facts.total_steps:,}"
        return f"Only {made}{planned} were made, and {poor}: {facts.resume} goes on."
    verb = "was" if facts.steps == 1 else "were"
    return f"Only {made} {verb} made, and {poor}: give more --max-minutes or --epochs (docs/choosing-settings.md)."


def _over_fitting(records: Sequence[LogRecord]) -> str | None:
    """A sentence on a validation loss that has risen since its lowest value while the training loss fell."""
    losses = series(records, "eval/loss")
    if len(losses) < QUARTERS:
        return None
    lowest, lowest_step = min((loss, step) for step, loss in losses)
    last_step, last = losses[-1]
    training = series(records, "train/loss")
    before = [loss for step, loss in training if step <= lowest_step]
    after = [loss for step, loss in training if lowest_step < step <= last_step]
    if not before or not after or last < RISEN_LOSS_FACTOR * lowest or mean(after) >= mean(before):
        return None
    return (
        f"Over-fitting: since step {lowest_step:,} the validation loss has risen from {lowest:.3g} to {last:.3g} while"
        " the training loss fell; more images help, or --augment strong (docs/reading-the-report.md, Curves)."
    )


def _is_rising(scores: Sequence[tuple[int, float]]) -> bool:
    """Whether the last quarter of the evaluations has the best score by far."""
    values = [value for _, value in scores]
    quarter = len(values) // QUARTERS
    if len(values) < 2 * QUARTERS:
        return False
    return max(values[-quarter:]) >= max(values[:-quarter]) + RISING_GAIN
