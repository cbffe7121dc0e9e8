"""Two sentences at the end of a run: the meaning of its numbers, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.console import listing
from train_utils.metrics_log import LogRecord, series
from train_utils.schedule import FEW_STEPS

FEW_IMAGES = 10  # fewer validation images say little
RISEN_LOSS_FACTOR = 1.1  # a loss above this many times the lowest validation loss has risen
QUARTERS = 4  # parts of the evaluations; over-fitting is searched for after the first part
RISING_GAIN = 0.01  # a score that has gained more than this in the last quarter is still rising
SENTENCES = 2


@dataclass(frozen=True)
class Facts:
    """The facts about a run that its log does not have.

    Args:
        steps: how many steps were made.
        validation_images: how many images the score is measured on.
        unfound: names of classes that occur in masks and in no prediction.
        lacks_encoder: whether the images are colored and the network has no pretrained encoder.
        is_generated: whether the data are generated, so that advice on them is of no use.
        score: the record that models are compared by, such as "eval/mean_iou".
    """

    steps: int
    validation_images: int
    unfound: Sequence[str]
    lacks_encoder: bool
    is_generated: bool
    score: str


def judge(records: Sequence[LogRecord], facts: Facts) -> list[str]:
    """At most two sentences, the most important first: the problem, the flag that helps, and the page about it.

    Args:
        records: the lines of metrics.jsonl.
    """
    sentences = [
        _few_steps(facts),
        _unfound(facts),
        _overfitting(records),
        _few_images(facts),
        _lacks_encoder(facts),
        _rising(records, facts.score),
    ]
    weightiest = [sentence for sentence in sentences if sentence][:SENTENCES]
    if weightiest:
        return weightiest
    return ["Nothing stands out: nothing was left unfound, and the validation loss has not risen."]


def _few_steps(facts: Facts) -> str | None:
    if facts.steps >= FEW_STEPS:
        return None
    return (
        f"Only {facts.steps:,} steps were made, and predictions are poor below {FEW_STEPS}: give more --max-minutes or"
        " --epochs (docs/choosing-settings.md)."
    )


def _unfound(facts: Facts) -> str | None:
    if not facts.unfound:
        return None
    names = listing(facts.unfound)
    return (
        f"No pixel of {names} was found: train longer, and give --class-weights auto or a larger --scale where the"
        " run had neither (docs/reading-the-report.md, Classes)."
    )


def _overfitting(records: Sequence[LogRecord]) -> str | None:
    losses = series(records, "eval/loss")
    if len(losses) < QUARTERS:
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


def _few_images(facts: Facts) -> str | None:
    if facts.validation_images >= FEW_IMAGES or facts.is_generated:
        return None
    images = "1 image" if facts.validation_images == 1 else f"{facts.validation_images} images"
    return (
        f"The score is measured on {images} only, so much of it is luck: --fold 1/5 to --fold 5/5 measure all images"
        " (docs/data.md, Validation images)."
    )


def _lacks_encoder(facts: Facts) -> str | None:
    if not facts.lacks_encoder or facts.is_generated:
        return None
    return (
        "If these are photographs, a pretrained encoder is often the largest gain: --encoder lite0 (docs/encoders.md)."
    )


def _rising(records: Sequence[LogRecord], score: str) -> str | None:
    values = series(records, score)
    if len(values) < 2 * QUARTERS:
        return None
    quarter = len(values) // QUARTERS
    best_before = max(value for _, value in values[:-quarter])
    best = max(value for _, value in values[-quarter:])
    if best < best_before + RISING_GAIN:
        return None
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
