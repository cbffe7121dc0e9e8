"""report.html: one self-contained page about a run, from what the run has written and its best scores."""

import json
import os
import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

import numpy as np
import torch

from runtime.files import replaced_file
from train_utils.reporting.charts import curve, heat_map, picture, stacked_bar

CONFUSIONS = 8  # most frequent ones that are listed
STYLE = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #fff; --text: #1c2430; --faint: #5c6675; --line: #dfe3e9;
  --series-0: #2563eb; --series-1: #d9480f; --series-2: #0f8a6d; }
@media (prefers-color-scheme: dark) { :root { --page: #12151a; --card: #1b2027; --text: #e4e8ee; --faint: #98a2b1;
  --line: #323a45; --series-0: #6ea0ff; --series-1: #ff9a5c; --series-2: #3fc9a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem; max-width: 1120px; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0 0; } h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
h3 { font-size: .95rem; margin: 0; } p { margin: .25rem 0 .5rem; color: var(--faint); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.1rem;
  margin-top: 1.1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .75rem; }
.tiles div { color: var(--faint); font-size: .85rem; }
.tiles b { display: block; font-size: 1.5rem; color: var(--text); }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(max(40%, min(100%, 300px)), 1fr));
  gap: 1.25rem; }
.matrix { max-width: 560px; }
.views { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(45%, 220px), 1fr)); gap: .5rem;
  margin-bottom: 1.25rem; }
figure { margin: 0; } figcaption { color: var(--faint); font-size: .85rem; }
img { width: 100%; height: auto; display: block; border-radius: 6px; image-rendering: pixelated; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--faint); }
svg .grid { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
polyline.series-0 { stroke: var(--series-0); } circle.series-0, .key.series-0 { fill: var(--series-0);
  background: var(--series-0); }
polyline.series-1 { stroke: var(--series-1); } circle.series-1, .key.series-1 { fill: var(--series-1);
  background: var(--series-1); } .series-2 { background: var(--series-2); }
.bar { display: flex; height: .9rem; border-radius: 6px; overflow: hidden; margin: 1rem 0 .5rem; }
.bar .series-0 { background: var(--series-0); } .bar .series-1 { background: var(--series-1); }
.entry { white-space: nowrap; margin-right: 1.2em; } .note { color: var(--text); font-weight: 600; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .4em; }
.swatch { display: inline-block; width: .9em; height: .9em; border-radius: 3px; margin-right: .5em;
  border: 1px solid var(--line); vertical-align: -.1em; }
.scroll { overflow-x: auto; overflow-wrap: normal; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; } th[scope=row], .pairs td { text-align: left; } thead th { color: var(--faint); }
.classes { width: 100%; white-space: nowrap; } .pairs th { font-weight: 400; color: var(--faint); }
.pairs { width: 100%; table-layout: fixed; } .heat td { text-align: center; border: 1px solid var(--card); }
.strong { color: #fff; } tfoot th, tfoot td { border: 0; font-weight: 600; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); gap: 1.5rem;
  align-items: start; }
"""


def write_report(
    folder: Path,
    *,
    names: Sequence[str],
    colors: np.ndarray,
    bottleneck: str | None = None,
    step: int = 0,
    matrix: torch.Tensor | None = None,
    result: dict | None = None,
    pictures: dict[str, dict[str, np.ndarray]] | None = None,
) -> None:
    """Write folder/report.html from its run.json and metrics.jsonl, and from the scores of the best model.

    Without `step`, `matrix`, `result` and `pictures`, it is the report of a run that ended before its first evaluation.

    Args:
        colors: (num_classes, 3) uint8, as in the pictures.
        bottleneck: a sentence on what the run waited for.
        step: the optimizer step of the best model.
        matrix: (num_classes, num_classes) pixels, rows truth.
        result: means by `mean_iou`, `mean_dice`, `pixel_accuracy`, and a list over the classes by `iou`, `dice`,
            `precision`, `recall`; None where a class has no score.
        pictures: {title: {label: (H, W, 3) uint8}}, in their order.
    """
    settings = json.loads((folder / "run.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    name = folder.resolve().name
    page = (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{escape(name)}: training report</title><style>{STYLE}</style><h1>{escape(name)}</h1>"
        f"<p>U-Net on {escape(str(settings['flags']['dataset']))}, started {escape(settings['run']['started'])}</p>"
    )
    if matrix is None or result is None:
        page += _section("Best model", "<p>None yet: the run ended before its first evaluation.</p>")
    else:
        page += _section("Best model", f"<div class=tiles>{_scores(step, result, records)}</div>")
    page += _section("Speed", _speed(records, settings, bottleneck))
    if curves := _curves(records):
        page += _section("Curves", f"<div class=curves>{curves}</div>")
    if matrix is not None and result is not None:
        counts = matrix.cpu().numpy()
        page += _section("Classes", _class_table(names, colors, counts, result))
        page += _section("Confusion matrix", heat_map(counts, names) + _confusions(counts, names))
    if pictures:
        shown = "".join(
            f"<h3>{escape(title)}</h3><div class=views>" + "".join(map(picture, views.values(), views)) + "</div>"
            for title, views in pictures.items()
        )
        page += _section("Worst and best validation images", f"<p>By their own mean IoU, worst first.</p>{shown}")
    page += _section("Settings", f"<div class=columns>{_pairs(settings['flags'])}{_pairs(_resolved(settings))}</div>")
    page += _section("Environment", f"<div class=columns>{_pairs(_machine())}{_pairs(settings['run'])}</div>")
    with replaced_file(folder / "report.html") as file:
        file.write(page.encode())


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _values(records: Sequence[dict], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in records if record.get(key) is not None]


def _scores(step: int, result: dict, records: Sequence[dict]) -> str:
    tiles = {"mean IoU": _score(result["mean_iou"]), "mean Dice": _score(result["mean_dice"])}
    tiles |= {"pixel accuracy": _score(result["pixel_accuracy"]), f"step, of {records[-1]['step']:,}": f"{step:,}"}
    return _tiles(tiles)


def _speed(records: Sequence[dict], settings: dict, bottleneck: str | None) -> str:
    """Medians over the run's log lines; the share of each part of a step as a bar."""
    tiles = {}
    for label, key, unit in (
        ("images/s", "perf/images_per_second", ""),
        ("of the device's peak", "perf/peak_flops_percent", "%"),
        ("peak GPU memory", "perf/peak_memory_gb", " GB"),
    ):
        if values := [value for _, value in _values(records, key)]:
            tiles[label] = f"{max(values) if 'memory' in label else median(values):.3g}{unit}"
    if values := [value for _, value in _values(records, "perf/teraflops_per_device")]:
        flops = median(values)
        tiles["model FLOPS of each device"] = f"{flops:.3g} tera" if flops >= 1 else f"{1e3 * flops:.3g} giga"
    processes = settings["profile"]["processes"]
    tiles["process" if processes == 1 else "processes"] = str(processes)
    parts = {"computing": "compute", "waiting for data": "data_wait", "communication": "communication"}
    shares = {label: _values(records, f"perf/{key}_percent") for label, key in parts.items()}
    medians = {label: median(value for _, value in values) for label, values in shares.items() if values}
    note = f"<p class=note>{escape(bottleneck[0].upper() + bottleneck[1:])}.</p>" if bottleneck else ""
    return f"<div class=tiles>{_tiles(tiles)}</div>" + (stacked_bar(medians) if medians else "") + note


def _tiles(tiles: dict[str, str]) -> str:
    return "".join(f"<div><b>{value}</b>{label}</div>" for label, value in tiles.items())


def _curves(records: Sequence[dict]) -> str:
    charts = {
        "Loss": {"training": "train/loss", "validation": "eval/loss"},
        "Validation scores": {"mean IoU": "eval/mean_iou", "mean Dice": "eval/mean_dice"},
        "Learning rate": {"learning rate": "train/lr"},
        "Throughput": {"images/s": "perf/images_per_second"},
        "Gradient norm, before clipping": {"gradient norm": "train/grad_norm"},
        "Percent of a step": {
            "waiting for data": "perf/data_wait_percent",
            "communication": "perf/communication_percent",
        },
    }
    return "".join(
        curve(title, {label: _values(records, key) for label, key in keys.items()}) for title, keys in charts.items()
    )


def _class_table(names: Sequence[str], colors: np.ndarray, counts: np.ndarray, result: dict) -> str:
    metrics = ("iou", "dice", "precision", "recall")
    rows = []
    for index, (name, color, pixels) in enumerate(zip(names, colors.tolist(), counts.sum(axis=1), strict=True)):
        swatch = f'<span class=swatch style="background:rgb{tuple(color)}"></span>'
        cells = "".join(f"<td>{_score(result[metric][index])}</td>" for metric in metrics)
        rows.append(f"<tr><th scope=row>{swatch}{escape(name)}</th>{cells}<td>{pixels:,}</td></tr>")
    return (
        "<div class=scroll><table class=classes><thead><tr><th scope=row>class</th><th>IoU</th><th>Dice</th>"
        f"<th>precision</th><th>recall</th><th>pixels</th></tr></thead><tbody>{''.join(rows)}</tbody><tfoot><tr>"
        f"<th scope=row>mean</th><td>{_score(result['mean_iou'])}</td><td>{_score(result['mean_dice'])}</td>"
        "<td></td><td></td><td></td></tr></tfoot></table></div>"
    )


def _confusions(counts: np.ndarray, names: Sequence[str]) -> str:
    wrong = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
    heads = [f"<th scope=row>{escape(name)}</th>" for name in names]
    rows = "".join(
        f"<tr>{heads[truth]}{heads[predicted]}<td>{pixels:,}</td></tr>"
        for truth, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if (pixels := wrong[truth, predicted])
    )
    return rows and (
        "<h3 style='margin-top:1rem'>Most frequent confusions</h3><div class=scroll><table><thead><tr>"
        f"<th scope=row>truth</th><th scope=row>predicted as</th><th>pixels</th></tr></thead>{rows}</table></div>"
    )


def _resolved(settings: dict) -> dict:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    return plain | {f"profile: {key}": value for key, value in settings["profile"].items()}


def _machine() -> dict:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"host CPUs": os.cpu_count(), "architecture": platform.machine(), "GPUs": ", ".join(gpus) or "none"}


def _pairs(values: dict) -> str:
    rows = (
        f"<tr><th scope=row>{escape(str(key).replace('_', ' '))}</th><td>{escape(_plain(value))}</td></tr>"
        for key, value in values.items()
    )
    return f"<table class=pairs>{''.join(rows)}</table>"


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _score(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
