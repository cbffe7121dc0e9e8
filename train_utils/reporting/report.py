"""report.html: one self-contained page about a run, from the files of the run and its best evaluation."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from runtime.documents import read_json
from tasks.calibration import calibration_report
from tasks.confusion import score_text
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import LogRecord, read_log, series
from train_utils.reporting.charts import Curve, Points, curve, reliability_plot
from train_utils.reporting.rendering import plain_text, write_html
from train_utils.reporting.section import Section
from train_utils.settings.record import RunSettings

LOSS_CURVES = {"Loss": {"training": "train/loss", "validation": "eval/loss"}}
CURVES = {
    "Learning rate": {"learning rate": "train/lr"},
    "Throughput": {"images/s": "perf/images_per_second"},
    "Gradient norm, before clipping": {"gradient norm": "train/grad_norm"},
    "Percent of a step's time": {"waiting for data": "perf/data_wait_percent"},
}


def write_report(
    folder: Path,
    best: Evaluation | None,
    section: Section,
    compared_by: str,
    *,
    views: dict[str, dict[str, np.ndarray]],
    remarks: Sequence[str] = (),
    extent: Mapping[str, str] | None = None,
) -> None:
    """Write folder/report.html, at most MAX_PAGE bytes, from its run.json and metrics.jsonl and the best evaluation.

    Args:
        best: None for a run that ended before its first evaluation.
        section: the part of the page that depends on the task.
        compared_by: the name of the score that models and images are compared by.
        views: {title: {label: (H, W, 3) uint8}}, in their order; they are shown as large as the page has room for.
        remarks: sentences on the meaning of the run's numbers, and on its speed.
        extent: the extent of the training, by label.
    """
    settings = RunSettings.from_json(read_json(folder / "run.json"))
    records = read_log(folder)
    content: dict[str, Any] = {
        "name": folder.resolve().name,
        "dataset": settings.flags["dataset"],
        "started": settings.environment["started"],
        "remarks": remarks,
        "extent": extent,
        "compared_by": compared_by,
        "views_hint": section.views_hint,
        "speed": _speed(records, int(settings.profile["processes"])),
        "flags": _readable(_flags(settings)),
        "resolved": _readable(_resolved_settings(settings)),
        "machine": _machine(),
        "run": _readable(settings.environment),
    }
    content |= _best_content(best, section, records)
    write_html(folder / "report.html", "report.html.jinja", views, **content)


def _best_content(best: Evaluation | None, section: Section, records: Sequence[LogRecord]) -> dict[str, Any]:
    """The values of the best evaluation by the template's names; {} if there is no evaluation."""
    if best is None:
        return {
            "best_tiles": {},
            "task_sections": "",
            "calibration": None,
            "curves": _curves(records, section, best_step=None),
        }
    return {
        "best_tiles": _tiles(best, section),
        "task_sections": section.html(best.scores),
        "calibration": _calibration(best),
        "curves": _curves(records, section, best.step),
    }


def _calibration(best: Evaluation) -> dict[str, Any] | None:
    """The calibration of the best evaluation, with its curve; None if it was not counted."""
    report = calibration_report(best.scores.reliability)
    if report is None:
        return None
    return {"error": report["expected_calibration_error"], "plot": reliability_plot(report["bins"])}


def _tiles(best: Evaluation, section: Section) -> dict[str, str]:
    """The means of the best evaluation, and its step."""
    tiles = {_lower_first(metric.label): score_text(metric.value) for metric in section.metrics(best.scores)}
    return tiles | {"best step": f"{best.step:,}"}


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text  # AP@0.5 and F1 stay


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


def _curves(records: Sequence[LogRecord], section: Section, best_step: int | None) -> list[Curve]:
    charts = []
    marked_titles = (LOSS_CURVES | section.curves).keys()  # the curves that decide on the best model
    for title, keys in (LOSS_CURVES | section.curves | CURVES).items():
        lines: dict[str, Points] = {label: series(records, key) for label, key in keys.items()}
        chart = curve(title, lines, best_step if title in marked_titles else None)
        if chart is not None:
            charts.append(chart)
    return charts


def _flags(settings: RunSettings) -> dict[str, Any]:
    """The flags, without those among the resolved settings, which show the values that the run really used."""
    resolved = _resolved_settings(settings)
    return {name: value for name, value in settings.flags.items() if name not in resolved}


def _resolved_settings(settings: RunSettings) -> dict[str, Any]:
    plain = {key: value for key, value in settings.to_json().items() if not isinstance(value, dict)}
    return plain | {f"profile: {key}": value for key, value in settings.profile.items()}


def _machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"host CPUs": os.cpu_count(), "architecture": platform.machine(), "GPUs": ", ".join(gpus) or "none"}


def _readable(values: dict[str, Any]) -> dict[str, str]:
    """Settings as text: words without underscores, lists without brackets."""
    return {key.replace("_", " "): plain_text(value) for key, value in values.items()}
