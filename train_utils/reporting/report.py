"""report.html: one self-contained page about a run, from the files of the run and its best evaluation."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from runtime.documents import read_json
from tasks.calibration import calibration_report
from tasks.charts import Line, line_chart, reliability_plot
from tasks.confusion import score_text
from tasks.section import Figure, Section
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import LogRecord, read_log, series
from train_utils.reporting.pages import Views, embed, plain_text, write_html
from train_utils.settings.record import RunSettings

LOSS_CURVES = {"Loss": {"training": "train/loss", "validation": "eval/loss"}}
CURVES = {
    "Learning rate": {"learning rate": "train/lr"},
    "Throughput": {"images/s": "perf/images_per_second"},
    "Gradient norm, before clipping": {"gradient norm": "train/grad_norm"},
    "Percent of a step's time": {"waiting for data": "perf/data_wait_percent"},
}
CALIBRATION = (
    "How often pixels are right, by the probability of their answer. Below the dashed line the model is too sure, above"
    " it not sure enough. Expected calibration error: {}, the mean distance from the line over all pixels."
)


def write_report(
    folder: Path,
    best: Evaluation | None,
    section: Section,
    compared_by: str,
    *,
    views: Views,
    remarks: Sequence[str] = (),
    extent: Mapping[str, str] | None = None,
) -> None:
    """Write folder/report.html from its run.json and metrics.jsonl and the best evaluation.

    Args:
        best: None for a run that ended before its first evaluation.
        section: the part of the page that depends on the task.
        compared_by: the name of the score that models and images are compared by.
        views: the pictures of images, in their order; they are shown as large as the page has room for.
        remarks: sentences on the meaning of the run's numbers, and on its speed.
        extent: the extent of the training, by label.
    """
    settings = RunSettings.from_json(read_json(folder / "run.json"))
    records = read_log(folder)
    best_tiles = {}
    figures: list[Figure] = []
    if best is not None:
        values = best.scores.values
        best_tiles = {column.title: column.text(values) for column in best.scores.headline}
        best_tiles["best step"] = f"{best.step:,}"
        figures = [_embedded(figure) for figure in (*section.figures(best.scores), *_calibration(best))]
    resolved = _resolved_settings(settings)
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
        compared_by=compared_by,
        figures=figures,
        speed=_speed(records, int(settings.profile["processes"])),
        settings=[
            _readable({name: value for name, value in settings.flags.items() if name not in resolved}),
            _readable(resolved),
        ],
        environment=[_machine(), _readable(settings.run)],
    )


def _embedded(figure: Figure) -> Figure:
    """The figure with its picture in the page itself."""
    if figure.picture is None:
        return figure
    return figure._replace(source=embed(figure.picture))


def _calibration(best: Evaluation) -> list[Figure]:
    """The calibration of the best evaluation, if it was counted."""
    report = calibration_report(best.scores.reliability)
    if report is None:
        return []
    text = CALIBRATION.format(score_text(report["expected_calibration_error"]))
    return [Figure("Calibration", text, source=reliability_plot(report["bins"]))]


def _median(records: Sequence[LogRecord], key: str) -> float | None:
    """The median of a column of the log; None if the column is empty."""
    values = [value for _, value in series(records, key)]
    return median(values) if values else None


def _speed(records: Sequence[LogRecord], processes: int) -> dict[str, str]:
    """Medians over the run's log lines, and the highest memory peak."""
    tiles = {}
    rate = _median(records, "perf/images_per_second")
    if rate is not None:
        tiles["images/s"] = f"{rate:.3g}"
    wait = _median(records, "perf/data_wait_percent")
    if wait is not None:
        tiles["waiting for data"] = f"{wait:.0f}%"
    memory = series(records, "perf/peak_memory_gb")
    if memory:
        tiles["peak GPU memory"] = f"{max(value for _, value in memory):.3g} GB"
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


def _resolved_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings that the run really used, some in place of flags."""
    plain = {key: value for key, value in vars(settings).items() if not isinstance(value, dict)}
    return plain | {f"profile: {key}": value for key, value in settings.profile.items()}


def _machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"host CPUs": os.cpu_count(), "architecture": platform.machine(), "GPUs": ", ".join(gpus) or "none"}


def _readable(values: dict[str, Any]) -> dict[str, str]:
    """Settings as text: words without underscores, lists without brackets."""
    return {key.replace("_", " "): plain_text(value) for key, value in values.items()}
