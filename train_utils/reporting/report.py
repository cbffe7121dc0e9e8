"""report.html: one self-contained page about a run, and the remarks that it begins with."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from runtime.console import counted, listing
from tasks.calibration import calibration_report
from tasks.charts import Line, line_chart, reliability_plot
from tasks.confusion import score_text
from tasks.section import Figure, Section
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import LogRecord, read_log, series
from train_utils.reporting.pages import Views, embed, plain_text, write_html
from train_utils.settings.record import RunSettings

FEW_STEPS = 500  # with fewer steps masks are often poor
FEW_IMAGES = 10  # fewer validation images say little, and no verdict rests on them
FEW_PIXELS = 30  # the share of right pixels among fewer is luck
RISEN_LOSS_FACTOR = 1.1  # a loss above this many times the lowest validation loss has risen
QUARTERS = 4  # parts of the evaluations; over-fitting is searched for after the first part
RISING_GAIN = 0.01  # a score that has gained more than this in the last quarter is still rising
MUCH_WAITING = 20  # percent of a step's time
LOSS_CURVES = {"Loss": {"training": "train/loss", "validation": "eval/loss"}}
CURVES = {
    "Learning rate": {"learning rate": "train/lr"},
    "Throughput": {"images/s": "perf/images_per_second"},
    "Gradient norm, before clipping": {"gradient norm": "train/grad_norm"},
    "Percent of a step's time": {"waiting for data": "perf/data_wait_percent"},
}
SPEED: Sequence[tuple[str, str, Callable[[list[float]], float], str]] = (
    ("images/s", "perf/images_per_second", median, "{:.3g}"),
    ("waiting for data", "perf/data_wait_percent", median, "{:.0f}%"),
    ("peak GPU memory", "perf/peak_memory_gb", max, "{:.3g} GB"),
)
CALIBRATION = (
    "How often pixels are right, by the probability of their class. Below the dashed line the model is too sure, above"
    " it not sure enough. Expected calibration error: {}, the mean distance from the line over all pixels."
)


def write_report(
    folder: Path,
    best: Evaluation | None,
    section: Section,
    *,
    views: Views,
    remarks: Sequence[str] = (),
    extent: Mapping[str, str] | None = None,
) -> None:
    """Write folder/report.html from its run.json and metrics.jsonl and the best evaluation.

    Args:
        best: None for a run that ended before its first evaluation.
        section: the part of the page that depends on the task.
        views: the pictures of images, in their order; they are shown as large as the page has room for.
        remarks: sentences on the meaning of the run's numbers, and on its speed.
        extent: the extent of the training, by label.
    """
    settings = RunSettings.read(folder)
    records, _ = read_log(folder)
    best_tiles = {}
    figures: list[Figure] = []
    if best is not None:
        values = best.scores.values
        best_tiles = {column.title: column.text(values) for column in best.scores.headline}
        best_tiles["best step"] = f"{best.step:,}"
        for figure in (*section.figures(best.scores), *_calibration(best)):
            if figure.picture is not None:
                figure = figure._replace(source=embed(figure.picture))
            figures.append(figure)
    # what the run really used, some in place of flags
    resolved = {name: value for name, value in vars(settings).items() if not isinstance(value, dict)}
    resolved |= {f"profile: {name}": value for name, value in settings.profile.items()}
    flags = {}
    for name, value in settings.flags.items():
        if value is not None and name not in resolved:
            flags[name] = value
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    machine = {"host CPUs": os.cpu_count(), "architecture": platform.machine(), "GPUs": ", ".join(gpus) or "none"}
    write_html(
        folder / "report.html",
        "report.html.jinja",
        views,
        name=folder.resolve().name,
        dataset=settings.flags["dataset"],
        started=settings.run["started"],
        remarks=remarks,
        best_tiles=best_tiles,
        extent=extent,
        curves=_curves(records, section, best),
        tables=best.scores.score_tables() if best else [],
        section=section,
        compared_by=best.scores.compared.title if best else "",
        figures=figures,
        speed=_speed(records, int(settings.profile["processes"])),
        settings=[_readable(flags), _readable(resolved)],
        environment=[machine, _readable(settings.run)],
    )


def _calibration(best: Evaluation) -> list[Figure]:
    """The calibration of the best evaluation, if it was counted."""
    report = calibration_report(best.scores.reliability)
    if report is None:
        return []
    text = CALIBRATION.format(score_text(report["expected_calibration_error"]))
    bins = [values for values in report["bins"] if values["pixels"] >= FEW_PIXELS]
    return [Figure("Calibration", text, source=reliability_plot(bins))]


def _speed(records: Sequence[LogRecord], processes: int) -> dict[str, str]:
    """Medians over the run's log lines, and the highest memory peak."""
    tiles = {}
    for title, key, summary, text in SPEED:
        values = [value for _, value in series(records, key)]
        if values:
            tiles[title] = text.format(summary(values))
    tiles["process" if processes == 1 else "processes"] = str(processes)
    return tiles


def _curves(records: Sequence[LogRecord], section: Section, best: Evaluation | None) -> dict[str, str]:
    """The charts of the run by title; the best step is marked on those that decide on the best model."""
    deciding = LOSS_CURVES | section.curves
    if best is not None and not section.curves:
        scores = best.scores.headline[:2]
        deciding["Validation scores"] = {column.title: f"eval/{column.key}" for column in scores}
    best_step = None if best is None else best.step
    charts = {}
    for title, keys in (deciding | CURVES).items():
        lines = []
        for color, (label, key) in enumerate(keys.items()):
            lines.append(Line(series(records, key), color, label))
        chart = line_chart(lines, best_step if title in deciding else None)
        if chart is not None:
            charts[title] = chart
    return charts


def _readable(values: dict[str, Any]) -> dict[str, str]:
    """Settings as text: words without underscores, lists without brackets."""
    return {key.replace("_", " "): plain_text(value) for key, value in values.items()}


def remarks_on(
    records: Sequence[LogRecord],
    *,
    score: str,
    steps: str,
    is_short: bool,
    longer: str,
    images: int,
    image_kind: str,
    is_fold: bool,
    unfound: Sequence[str],
    weights_classes: bool,
    is_generated: bool,
    is_cached: bool,
) -> list[str]:
    """The remarks, the most important first: the finding, the flag that helps, and the page about it.

    One remark at most speaks of the length of the run, so that none advises against another.

    Args:
        records: the lines of metrics.jsonl.
        score: the record that models are compared by, such as "eval/mean_iou".
        steps: the steps that were made, and how many were planned.
        is_short: whether a model is often poor after so few steps, and this one is not good.
        longer: what makes the run longer: a command or a flag.
        images: how many images, or volumes, the score is measured on; `image_kind` is what one of them is called.
        is_fold: whether the run is one of a cross-validation (--fold).
        unfound: names of classes that occur in masks and in no prediction.
        weights_classes: whether rare classes weigh more already.
        is_generated: whether the data are generated, so that advice on them is of no use.
        is_cached: whether the run reads decoded images (--cache).
    """
    remarks = []
    is_measured = images >= FEW_IMAGES
    if series(records, score) and not is_measured and not is_generated:
        remedy = "--fold 1/5 to --fold 5/5 measure all, if all are in one split (docs/data.md, Validation images)"
        if is_fold:
            remedy = "compare.py computes the mean of all folds (docs/comparing-runs.md)"
        number = counted(images, image_kind)
        remarks.append(f"The score is measured on {number} only, so much of it is luck: {remedy}.")
    # the loss may rise while the score does too: then the score counts
    is_rising = is_measured and _is_rising(series(records, score))
    over_fitting = None
    if is_measured and not is_rising:
        over_fitting = _over_fitting(records)
    if over_fitting:
        remarks.append(over_fitting)
    elif is_short:
        remarks.append(f"Only {steps} were made, and below {FEW_STEPS} a model is often poor: {longer}.")
    elif is_rising:
        remarks.append(f"The validation score was still rising when the run ended: {longer}.")
    if unfound:
        length = "" if over_fitting else "train longer, and "
        remedies = [] if weights_classes else ["--class-weights auto"]
        if image_kind == "image":  # volumes have no --scale
            remedies.append("a larger --scale")
        remedies.append(f"{image_kind}s that show it")
        remarks.append(
            f"Nothing of {listing(unfound)} was found: {length}give {' or '.join(remedies)}"
            " (docs/reading-the-report.md, Classes)."
        )
    waits = [percent for _, percent in series(records, "perf/data_wait_percent")]
    if len(waits) > 1 and median(waits) >= MUCH_WAITING:
        remedy = "raise --num-workers" if is_cached else "raise --num-workers, or give --cache"
        remarks.append(f"Training waited for data {median(waits):.0f}% of the time: {remedy} (docs/performance.md).")
    if not remarks and series(records, score):
        remarks.append("Nothing stands out: every class was found, and the validation loss has not risen.")
    return remarks


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
