"""The remarks at the end of a run, in its report and on the terminal: what its numbers mean, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.console import counted, listing
from train_utils.clock import FEW_STEPS
from train_utils.metrics_log import LogRecord, series

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
        lacks_encoder: whether the images are colored and the network has no pretrained encoder.
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
    lacks_encoder: bool
    is_generated: bool
    is_good: bool
    score: str
    answers: str = "masks"
    examples: str = "image"

    @property
    def is_measured(self) -> bool:
        """Whether there are enough validation images for a verdict."""
        return self.validation_images >= FEW_IMAGES


def judge(records: Sequence[LogRecord], facts: Facts) -> list[str]:
    """The remarks, the most important first: the finding, the flag that helps, and the page about it.

    One remark at most speaks of the length of the run, so that none advises against another.

    Args:
        records: the lines of metrics.jsonl.
    """
    rising = _rising(records, facts)
    # the loss may rise while the score does too: then the score counts
    over_fitting = None if rising else _over_fitting(records, facts)
    remarks = [
        _few_images(facts),
        over_fitting or _few_steps(facts) or rising,
        _unfound(facts, trains_longer=over_fitting is None),
        _lacks_encoder(facts),
    ]
    said = [remark for remark in remarks if remark]
    if not said and series(records, facts.score):
        return ["Nothing stands out: nothing was left unfound, and the validation loss has not risen."]
    return said


def _few_images(facts: Facts) -> str | None:
    if facts.is_measured or facts.is_generated:
        return None
    return (
        f"The score is measured on {counted(facts.validation_images, facts.examples)} only, so much of it is luck:"
        " --fold 1/5 to --fold 5/5 measure all (docs/data.md, Validation images)."
    )


def _few_steps(facts: Facts) -> str | None:
    if facts.steps >= FEW_STEPS or facts.is_good:
        return None
    made = counted(facts.steps, "step")
    if facts.resume:
        planned = f" of {facts.total_steps:,}" if facts.total_steps else ""
        return (
            f"Only {made}{planned} were made, and below {FEW_STEPS} the {facts.answers} are often poor:"
            f" {facts.resume} goes on."
        )
    verb = "was" if facts.steps == 1 else "were"
    return (
        f"Only {made} {verb} made, and below {FEW_STEPS} the {facts.answers} are often poor: give more --max-minutes or"
        " --epochs (docs/choosing-settings.md)."
    )


def _unfound(facts: Facts, *, trains_longer: bool) -> str | None:
    if not facts.unfound:
        return None
    remedy = "train longer, and give" if trains_longer else "give"
    return (
        f"Nothing of {listing(facts.unfound)} was found: {remedy} --class-weights auto or a larger --scale where the"
        " run had neither (docs/reading-the-report.md, Classes)."
    )


def _over_fitting(records: Sequence[LogRecord], facts: Facts) -> str | None:
    losses = series(records, "eval/loss")
    if len(losses) < QUARTERS or not facts.is_measured:
        return None
    lowest_step, lowest = min(losses, key=_value)
    last_step, last = losses[-1]
    before = _mean(records, "train/loss", 0, lowest_step)
    after = _mean(records, "train/loss", lowest_step, last_step)
    if before is None or after is None or last < RISEN_LOSS_FACTOR * lowest or after >= before:
        return None
    return (
        f"Over-fitting: since step {lowest_step:,} the validation loss has risen from {lowest:.3g} to {last:.3g} while"
        " the training loss fell; more images help, or --augment strong (docs/reading-the-report.md, Curves)."
    )


def _lacks_encoder(facts: Facts) -> str | None:
    if not facts.lacks_encoder or facts.is_generated or facts.is_good:
        return None
    return (
        "If these are photographs, a pretrained encoder is often the largest gain: --encoder lite0 (docs/encoders.md)."
    )


def _rising(records: Sequence[LogRecord], facts: Facts) -> str | None:
    values = series(records, facts.score)
    if len(values) < 2 * QUARTERS or not facts.is_measured:
        return None
    quarter = len(values) // QUARTERS
    best_before = max(value for _, value in values[:-quarter])
    best = max(value for _, value in values[-quarter:])
    if best < best_before + RISING_GAIN:
        return None
    if facts.resume:
        return f"The validation score was still rising when the run was stopped: {facts.resume} goes on."
    return (
        "The validation score was still rising at the end: more --max-minutes or --epochs may help"
        " (docs/choosing-settings.md)."
    )


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _mean(records: Sequence[LogRecord], key: str, first: int, last: int) -> float | None:
    """The mean of the values after step `first`, up to step `last`."""
    values = [value for step, value in series(records, key) if first < step <= last]
    return sum(values) / len(values) if values else None
