"""report.html: one self-contained page about a run, from what the run has written and its best evaluation."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from runtime.files import replaced_file
from train_utils.evaluation import Evaluation
from train_utils.reporting.charts import DARK, LABELLED_CLASSES, curve, matrix_picture
from train_utils.reporting.embedding import Embedded, embed_all, embed_png
from train_utils.reporting.rendering import render, score_text

MAX_PAGE = 4_000_000  # bytes: small enough for a mail
FIGURE_BYTES = 1_000  # of a picture's label and markup, at most
CONFUSIONS = 8  # most frequent ones that are listed
CURVES = {
    "Loss": {"training": "train/loss", "validation": "eval/loss"},
    "Validation scores": {"mean IoU": "eval/mean_iou", "mean Dice": "eval/mean_dice"},
    "Learning rate": {"learning rate": "train/lr"},
    "Throughput": {"images/s": "perf/images_per_second"},
    "Gradient norm, before clipping": {"gradient norm": "train/grad_norm"},
    "Percent of a step's time": {
        "waiting for data": "perf/data_wait_percent",
        "communication": "perf/communication_percent",
    },
}
PARTS = {"computing": "compute", "waiting for data": "data_wait", "communication": "communication"}  # of a step


def write_report(
    folder: Path,
    best: Evaluation | None,
    colors: np.ndarray,
    views: dict[str, dict[str, np.ndarray]],
    bottleneck: str | None,
) -> None:
    """Write folder/report.html, at most MAX_PAGE bytes, from its run.json and metrics.jsonl and the best evaluation.

    Args:
        best: None for a run that ended before its first evaluation.
        colors: (num_classes, 3) uint8, as in the pictures.
        views: {title: {label: (H, W, 3) uint8}}, in their order; as large as the rest of the page leaves room for.
        bottleneck: a sentence on what slowed the run down, without its full stop.
    """
    settings = json.loads((folder / "run.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    run = settings["run"]
    content: dict[str, Any] = {
        "name": folder.resolve().name,
        "dataset": settings["flags"]["dataset"],
        "started": run["started"],
        "best": None if best is None else _best(best, colors, records),
        "strong": DARK,
        "speed": _speed(records, settings["profile"]["processes"]),
        "shares": _shares(records),
        "bottleneck": bottleneck and bottleneck[0].upper() + bottleneck[1:],
        "curves": _curves(records),
        "flags": _readable(settings["flags"]),
        "resolved": _readable(_resolved(settings)),
        "machine": _machine(),
        "run": _readable(run),
    }
    rest = len(render("report.html.jinja", **content, views={}).encode())
    page = render("report.html.jinja", **content, views=_embedded(views, MAX_PAGE - rest))
    with replaced_file(folder / "report.html") as file:
        file.write(page.encode())


def _embedded(views: dict[str, dict[str, np.ndarray]], room: int) -> dict[str, dict[str, Embedded]]:
    """The views for the page, in at most `room` bytes of it."""
    pictures = [picture for labelled in views.values() for picture in labelled.values()]
    embedded = iter(embed_all(pictures, room - FIGURE_BYTES * len(pictures)))
    return {title: {label: next(embedded) for label in labelled} for title, labelled in views.items()}


def _best(best: Evaluation, colors: np.ndarray, records: Sequence[dict]) -> dict[str, Any]:
    """The best evaluation as the template lays it out."""
    counts, scores = best.matrix.numpy(), best.scores
    large = len(best.class_names) > LABELLED_CLASSES
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    classes = [
        {
            "name": name,
            "color": f"rgb{tuple(colors[index].tolist())}",
            "scores": [scores[metric][index] for metric in ("iou", "dice", "precision", "recall")],
            "pixels": int(counts[index].sum()),
            "cells": []
            if large
            else [{"share": share, "pixels": count} for share, count in zip(shares[index], counts[index], strict=True)],
        }
        for index, name in enumerate(best.class_names)
    ]
    tiles = {"mean IoU": "mean_iou", "mean Dice": "mean_dice", "pixel accuracy": "pixel_accuracy"}
    return {
        "tiles": {label: score_text(scores[key]) for label, key in tiles.items()}
        | {f"best step, of {records[-1]['step']:,}": f"{best.step:,}"},
        "mean_iou": scores["mean_iou"],
        "mean_dice": scores["mean_dice"],
        "classes": classes,
        "matrix_picture": embed_png(matrix_picture(counts, best.class_names)) if large else None,
        "confusions": _confusions(counts, best.class_names),
    }


def _confusions(counts: np.ndarray, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Truth, prediction and pixels of the most frequent confusions, the most frequent one first."""
    wrong = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
    places = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [(names[row], names[column], int(wrong[row, column])) for row, column in places if wrong[row, column]]


def _values(records: Sequence[dict], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in records if record.get(key) is not None]


def _middle(records: Sequence[dict], key: str) -> float | None:
    values = [value for _, value in _values(records, key)]
    return median(values) if values else None


def _speed(records: Sequence[dict], processes: int) -> dict[str, str]:
    """Medians over the run's log lines, and the highest memory peak."""
    tiles = {}
    if (rate := _middle(records, "perf/images_per_second")) is not None:
        tiles["images/s"] = f"{rate:.3g}"
    if (share := _middle(records, "perf/peak_flops_percent")) is not None:
        tiles["of the device's peak"] = f"{share:.3g}%"
    if memory := _values(records, "perf/peak_memory_gb"):
        tiles["peak GPU memory"] = f"{max(value for _, value in memory):.3g} GB"
    if (flops := _middle(records, "perf/teraflops_per_device")) is not None:
        tiles["of the model, on each device"] = f"{flops:.3g} TFLOP/s" if flops >= 1 else f"{1e3 * flops:.3g} GFLOP/s"
    tiles["process" if processes == 1 else "processes"] = str(processes)
    return tiles


def _shares(records: Sequence[dict]) -> dict[str, float]:
    """Percent of a step that each of its parts takes: medians over the run's log lines."""
    shares = {label: _middle(records, f"perf/{key}_percent") for label, key in PARTS.items()}
    return {label: share for label, share in shares.items() if share is not None}


def _curves(records: Sequence[dict]) -> list[Any]:
    drawn = (
        curve(title, {label: _values(records, key) for label, key in keys.items()}) for title, keys in CURVES.items()
    )
    return [chart for chart in drawn if chart is not None]


def _resolved(settings: dict) -> dict[str, Any]:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    return plain | {f"profile: {key}": value for key, value in settings["profile"].items()}


def _machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"host CPUs": os.cpu_count(), "architecture": platform.machine(), "GPUs": ", ".join(gpus) or "none"}


def _readable(values: dict[str, Any]) -> dict[str, str]:
    """Settings as text: words without underscores, lists without brackets."""
    return {key.replace("_", " "): _plain(value) for key, value in values.items()}


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
