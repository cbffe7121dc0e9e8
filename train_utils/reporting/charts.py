"""Curves, heat maps and pictures as HTML that stands alone: inline SVG, tables, PNGs within the page."""

import base64
import io
import math
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 480, 240  # of a chart, in its own units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 60, 30, 12, 26
MAX_POINTS = 400  # more cannot be told apart
MAX_PICTURE = 420  # pixels of the longer side: keeps a report of 8 images within a few megabytes
CELL = 44  # pixels of a class in the picture of a confusion matrix
LABELLED_CLASSES = 20  # a larger confusion matrix is a picture without numbers

Points = Sequence[tuple[float, float]]


def curve(title: str, series: dict[str, Points]) -> str:
    """A line chart of {label: [(x, y), ...]} over steps, as <figure>; empty where no series has a finite point."""
    series = {label: [point for point in points if math.isfinite(point[1])] for label, points in series.items()}
    last = {label: points[-1][1] for label, points in series.items() if points}
    series = {label: _thin(series[label]) for label in last}
    if not series:
        return ""
    xs, ys = ([point[axis] for points in series.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = [tick for tick in _ticks(0, max(xs)) if tick <= max(xs)], _ticks(min(ys), max(ys))
    digits = max(4, 2 + math.ceil(math.log10(max(map(abs, y_ticks)) / (y_ticks[1] - y_ticks[0]))))
    x_low, x_high, y_low, y_high = 0, max(xs), y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.{digits}g}</text>')
    for tick in x_ticks:
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{tick:,.6g}</text>')
    legend = []
    for number, (label, points) in enumerate(series.items()):
        placed = [place(*point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="series-{number}" points="{line}"/>')
        x, y = placed[-1]
        parts.append(f'<circle class="series-{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        legend.append(_legend(number, f"{escape(label)} <b>{last[label]:.4g}</b>"))
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3><p>{' '.join(legend)}</p></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _legend(number: int, text: str) -> str:
    return f'<span class=entry><span class="key series-{number}"></span>{text}</span>'


def _thin(points: Points) -> Points:
    """At most MAX_POINTS: the means of equal runs of points."""
    run = math.ceil(len(points) / MAX_POINTS)
    if run <= 1:
        return points
    groups = [points[start : start + run] for start in range(0, len(points), run)]
    return [tuple(sum(values) / len(group) for values in zip(*group, strict=True)) for group in groups]


def _ticks(low: float, high: float) -> list[float]:
    """A few round numbers from at most `low` to at least `high`."""
    if high <= low:
        margin = abs(low) / 2 or 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def stacked_bar(shares: dict[str, float]) -> str:
    """Percentages that add up to 100 as one bar, with its legend."""
    parts, legend = [], []
    for number, (label, share) in enumerate(shares.items()):
        parts.append(f'<div class="series-{number}" style="width:{share:.2f}%"></div>')
        legend.append(_legend(number, f"{escape(label)} <b>{share:.0f}%</b>"))
    return f"<div class=bar>{''.join(parts)}</div><p>{' '.join(legend)}</p>"


def heat_map(matrix: np.ndarray, names: Sequence[str]) -> str:
    """A confusion matrix (num_classes, num_classes), rows truth; colours are shares of the row."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    if len(names) > LABELLED_CLASSES:
        picture = _shaded(shares).resize((720, 720), Image.Resampling.NEAREST)
        note = "<p>Rows: truth. Columns: prediction, in the order of the table above.</p>"
        return f"{note}<div class=matrix>{_image(picture, 'confusion matrix')}</div>"
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    rows = []
    for name, counts, row in zip(names, matrix.tolist(), shares.tolist(), strict=True):
        cells = "".join(
            f'<td style="background:rgba(37,99,235,{share:.3f})"{" class=strong" if share > 0.55 else ""}'
            f' title="{count:,} pixels">{100 * share:.1f}</td>'
            for count, share in zip(counts, row, strict=True)
        )
        rows.append(f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>")
    return (
        "<p>Rows: truth. Columns: prediction. Percent of the row's pixels.</p>"
        f"<div class=scroll><table class=heat><thead><tr><th></th>{head}</tr></thead>{''.join(rows)}</table></div>"
    )


def matrix_picture(matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The same for trackers: uint8 (H, W, 3), with names and percentages where there are not too many classes."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = CELL * len(names)
    if len(names) > LABELLED_CLASSES:
        return np.asarray(_shaded(shares).resize((720, 720), Image.Resampling.NEAREST))
    font = ImageFont.load_default(13)
    margin = CELL + int(max(font.getlength(name) for name in names))
    page = Image.new("RGB", (margin + side, margin + side), "white")
    page.paste(_shaded(shares).resize((side, side), Image.Resampling.NEAREST), (margin, margin))
    draw = ImageDraw.Draw(page)
    draw.text((margin / 2, margin / 2), "truth \\ prediction", "#5c6675", font, anchor="mm")
    headings = Image.new("RGB", (margin, side), "white")  # of the columns; turned in the end, to read upwards
    columns = ImageDraw.Draw(headings)
    for number, name in enumerate(names):
        middle = (number + 0.5) * CELL
        draw.text((margin - 8, margin + middle), name, "black", font, anchor="rm")
        columns.text((8, middle), name, "black", font, anchor="lm")
        for other, share in enumerate(shares[number]):
            ink = "white" if share > 0.55 else "black"
            place = (margin + (other + 0.5) * CELL, margin + middle)
            draw.text(place, f"{100 * share:.0f}", ink, font, anchor="mm")
    page.paste(headings.transpose(Image.Transpose.ROTATE_90), (margin, 0))
    return np.asarray(page)


def _shaded(shares: np.ndarray) -> Image.Image:
    ink = np.array([37, 99, 235]) * shares[..., None] + np.array([238, 241, 246]) * (1 - shares[..., None])
    return Image.fromarray(ink.astype(np.uint8))


def picture(pixels: np.ndarray, label: str) -> str:
    """A (H, W, 3) uint8 picture with its label, as <figure>."""
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_PICTURE, MAX_PICTURE))
    return f"<figure>{_image(image, label)}<figcaption>{escape(label)}</figcaption></figure>"


def _image(image: Image.Image, label: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    width, height = image.size
    return f'<img alt="{escape(label)}" width={width} height={height} src="data:image/png;base64,{data}">'
