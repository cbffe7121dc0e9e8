"""report.html and the model card: what they say is what was measured, and the page needs nothing but itself.

Modules: train_utils/reporting/charts.py, train_utils/reporting/classes.py, train_utils/reporting/data_report.py,
train_utils/reporting/embedding.py, train_utils/reporting/matrix_picture.py, train_utils/reporting/model_card.py,
train_utils/reporting/rendering.py.
"""

import base64
import io
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import launch, records
from huggingface_hub import ModelCard
from in_process import run_train
from jinja2 import UndefinedError
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from PIL import Image

from data_utils.class_map import ClassMap
from data_utils.targets.classes import ClassReader
from data_utils.visualize import class_colors
from inference import Predictor
from tasks.classes import Classes, ClassScores
from tasks.confusion import confusion_matrix, scores
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from train_utils.evaluation import Evaluation
from train_utils.reporting import data_report
from train_utils.reporting.charts import Curve, curve, overlaid, reliability_plot
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.embedding import Embedded, embed_all, reduced
from train_utils.reporting.matrix_picture import LEAST_COLOR, MOST_COLOR, matrix_picture
from train_utils.reporting.rendering import page_bytes, render
from train_utils.reporting.report import CURVES, LOSS_CURVES, write_report

NAMES = ("<script>alert(1)</script>", 'a|b & "c"', "c: #d")
MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])
SETTINGS = {
    "flags": {"dataset": "shapes<i>", "epochs": 3, "image_size": [32, 48], "crop_size": None, "loss": "ce+dice"},
    "profile": {"processes": 2, "mixed_precision": "bf16"},
    "total_steps": 40,
    "identity": {"dims": 2},
    "run": {"started": "2026-01-02T03:04:05+0000", "torch": "2.13.0", "accelerate": "1.15.0", "command": "train.py"},
}


class Page(HTMLParser):
    """Tags with their attributes, and the text, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f"{data}\n"

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


def evaluation(names=NAMES, matrix=MATRIX) -> Evaluation:
    return Evaluation(30, 0.5, ClassScores(names, matrix, torch.zeros(0, 1)))


def section(names=NAMES) -> ClassSection:
    return ClassSection(ClassReader(ClassMap(tuple(names), tuple(range(len(names))), None)))


def report(folder: Path, *, names=NAMES, matrix=MATRIX, settings=SETTINGS, pictures=None, speed_notes=()) -> str:
    records = [{"step": step, "train/loss": 4 / step, "train/lr": 1e-3} for step in range(1, 41)]
    records += [{"step": 40, "eval/loss": 0.5, "eval/mean_iou": 0.6, "eval/mean_dice": None}]
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if pictures is None:
        pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        pictures = {"<b>bad</b>: IoU 0.1000": {"image": pixels, "errors": pixels}}
    write_report(
        folder, evaluation(names, matrix), section(names), Classes.compared_by, views=pictures, speed_notes=speed_notes
    )
    return (folder / "report.html").read_text()


def opened(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(re.sub(r"^data:image/(png|jpeg);base64,", "", source))))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def foreign(html: str) -> list[str]:
    """What a browser would fetch for a page, or run in it."""
    page = Page(html)
    foreign_tags = [
        tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "embed", "base", "foreignobject")
    ]
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            value = value or ""
            local = value.startswith("#") or re.match(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+$", value)
            fetches = name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
            if (fetches and not local) or name.startswith("on"):
                foreign_tags.append(f"{tag} {name}={value[:60]}")
    markup = re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)
    return foreign_tags + re.findall(r"https?:|//[a-z]|url\((?!#)|@import|<!ENTITY|<!DOCTYPE svg|<\?xml", markup)


@pytest.mark.parametrize(("problems", "code"), [(0, 0), (1, 1), (3, 1)])
def test_a_report_on_data_ends_the_script_with_1_where_it_lists_problems(monkeypatch, capsys, problems, code):
    calls = []
    monkeypatch.setattr(data_report, "on_main", lambda accelerator, function: function())
    monkeypatch.setattr(data_report, "check_data", lambda config: (f"the report on {config}", problems))
    monkeypatch.setattr(data_report, "barrier_without_timeout", lambda accelerator: calls.append("barrier"))
    accelerator = SimpleNamespace(end_training=lambda: calls.append("end"))
    with pytest.raises(SystemExit) as caught:
        data_report.report_data(accelerator, "cells")
    assert int(caught.value.code) == code
    assert calls == ["barrier", "end"]
    assert capsys.readouterr().out == "the report on cells\n"


def test_the_page_needs_nothing_but_itself(tmp_path):
    html = report(tmp_path)
    used = {tag for tag, _ in Page(html).tags}
    assert {"svg", "table", "img", "figure"} <= used
    assert "i" not in used
    assert foreign(html) == []
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


@pytest.mark.parametrize(
    "markup",
    [
        "<script>1</script>",
        '<img src="https://example.org/a.png">',
        '<img src="a.png">',
        '<svg><use href="other.svg#a"/></svg>',
        "<style>@import 'a.css'</style>",
        '<p style="background:url(a.png)">',
        '<p style="background:url(//example.org/a.png)">',
        '<p onclick="run()">',
    ],
)
def test_anything_that_the_page_fetched_or_ran_would_be_found(tmp_path, markup):
    assert foreign(report(tmp_path) + markup)


def test_ids_in_the_page_are_unique_and_references_lead_to_one(tmp_path):
    page = Page(report(tmp_path))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids) > 0
    assert {reference.removeprefix("#") for reference in page.attributes("use", "href")} <= set(ids)
    curves = [*LOSS_CURVES, *ClassSection.curves, *CURVES]
    assert len({re.sub(r"\W+", "-", title.lower()) for title in curves}) == len(curves)


@pytest.mark.parametrize(
    ("size", "classes"),
    [
        ((1000, 1500), 3),
        pytest.param((360, 480), 150, marks=pytest.mark.slow),
        pytest.param((420, 420), 3, marks=pytest.mark.slow),
    ],
)
def test_a_page_of_noisy_pictures_stays_below_four_megabytes(tmp_path, size, classes):
    labels = ("image", "truth", "prediction", "errors")
    views = {f"image {number}": dict.fromkeys(labels, noise(*size)) for number in range(8)}
    matrix = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (classes, classes)))
    html = report(tmp_path, names=[f"class {index}" for index in range(classes)], matrix=matrix, pictures=views)
    assert 2_000_000 < len(html.encode()) == (tmp_path / "report.html").stat().st_size < 4_000_000
    sources = Page(html).attributes("img", "src")[-32:]
    sides = {max(opened(source).size) for source in sources}
    assert len(sources) == 32
    assert len(sides) == 1
    assert 200 <= sides.pop() <= 420


def test_the_page_is_made_for_phones_and_for_dark_rooms(tmp_path):
    html = report(tmp_path)
    assert "width=device-width" in Page(html).attributes("meta", "content")[0]
    assert "prefers-color-scheme: dark" in html


def test_names_titles_and_settings_are_shown_as_text(tmp_path):
    text = Page(report(tmp_path)).text
    for wanted in (*NAMES, "<b>bad</b>: IoU 0.1000", "U-Net on shapes<i>", "32 48", "bf16"):
        assert wanted in text


def test_the_scores_shown_are_those_of_the_confusion_matrix(tmp_path):
    html = report(tmp_path)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("</style>")[1]))
    # IoU of the two classes present: 90/105 and 15/30
    assert f"{(90 / 105 + 15 / 30) / 2:.4f} mean IoU" in text
    assert f"{105 / 120:.4f} pixel accuracy" in text
    assert "30 best step, of 40" in text
    assert f"{90 / 105:.4f} {180 / 195:.4f} {90 / 95:.4f} 0.9000 100" in text
    assert "c: #d n/a n/a n/a n/a 0" in text
    strong = re.findall(r'<td class="strong"[^>]*title="([^"]*)"', html)  # white on dark, above 55 percent
    names = ["&lt;script&gt;alert(1)&lt;/script&gt;", "a|b &amp; &#34;c&#34;"]
    assert strong == [f"{name} as {name}: {pixels} pixels" for name, pixels in zip(names, (90, 15), strict=True)]
    assert f"{names[0]} as {names[1]}: 10 pixels" in html
    swatches = re.findall(r'class="swatch" style="background:rgb\((\d+), (\d+), (\d+)\)"', html)
    assert [[*map(int, color)] for color in swatches] == class_colors((0, 1, 2)).tolist()
    assert "90.0 10.0 0.0" in text
    assert "25.0 75.0 0.0" in text
    pairs = text.split("Most frequent confusions")[1]
    assert pairs.index(" 10 ") < pairs.index(" 5 ")


def test_classes_without_pixels_are_folded_away(tmp_path):
    names = [f"class {index}" for index in range(30)]
    matrix = torch.zeros(30, 30, dtype=torch.int64)
    matrix[0, 0] = 50
    matrix[3, 3] = 1  # a single pixel is all of its row
    matrix[0, 7] = 5  # predicted, though no mask holds it
    html = report(tmp_path, names=names, matrix=matrix, pictures={})
    page = Page(html)
    assert "27 classes occur neither in the masks nor in the predictions" in page.text
    assert re.search(r"90\.9\s+0\.0\s+9\.1\s", page.text)
    assert re.search(r"0\.0\s+100\.0\s+0\.0\s", page.text)
    swatches = re.findall(r'class="swatch" style="background:rgb\(([\d, ]+)\)"', html)
    assert swatches == [", ".join(map(str, color)) for color in class_colors(tuple(range(30)))[[0, 3, 7]].tolist()]
    text = re.sub(r"\s+", " ", page.text)
    assert "class 1, class 2, class 4, class 5, class 6, class 8, " in text
    rows = {
        "class 0": [f"{50 / 55:.4f}", f"{100 / 105:.4f}", "1.0000", f"{50 / 55:.4f}", "55"],
        "class 3": ["1.0000", "1.0000", "1.0000", "1.0000", "1"],
        "class 7": ["0.0000", "0.0000", "0.0000", "n/a", "0"],
    }
    assert all(f" {name} {' '.join(cells)} " in text for name, cells in rows.items())
    text = section(names).markdown(evaluation(names, matrix).scores)
    assert text.count("| class") == 1 + 3
    assert "27 classes occur neither" in text
    assert all(f"| {name} | {' | '.join(cells)} |" in text for name, cells in rows.items())


@pytest.mark.parametrize(("count", "is_table"), [(20, True), (21, False)])
def test_the_matrix_of_twenty_classes_is_a_table_and_a_larger_one_a_picture(monkeypatch, count, is_table):
    monkeypatch.setattr("train_utils.reporting.classes.matrix_picture", lambda counts, names: noise(2, 2))
    names = [f"c{index}" for index in range(count)]
    html = section(names).html(evaluation(names, torch.eye(count, dtype=torch.int64)).scores)
    assert ('class="heat"' in html) is is_table
    assert ('alt="confusion matrix"' in html) is not is_table


def test_report_and_card_say_what_images_are_labeled_for_that_lack_classes():
    task = PartlyLabeledClasses(("a", "b", "c"), flags=torch.tensor([[1, 1, 1], [0, 1, 0]]).bool())
    partly_labeled = section(task.names)
    scores = task.new_scores(2)
    mask = torch.ones(1, 2, 2, dtype=torch.int64)
    unscored = "No validation image is labeled for a, c: these classes cannot be scored."
    counted = "It counts the images that are labeled for all classes."
    without_matrix = "No validation image is labeled for all classes."
    scores.add(mask, PartlyLabeledTarget(mask, torch.tensor([1])), 0)
    html, markdown = partly_labeled.html(scores), partly_labeled.markdown(scores)
    assert "Each class is scored on the images that are labeled for it." in html
    assert unscored in html
    assert without_matrix in html
    assert counted not in html
    assert unscored in markdown
    assert "of each class over the images that are labeled for it" in markdown
    scores.add(mask, PartlyLabeledTarget(mask, torch.tensor([0])), 1)
    html, markdown = partly_labeled.html(scores), partly_labeled.markdown(scores)
    assert counted in html
    assert "No validation image" not in html + markdown
    plain = evaluation(task.names, torch.zeros(3, 3, dtype=torch.int64)).scores  # every pixel is ignored
    html, markdown = partly_labeled.html(plain), partly_labeled.markdown(plain)
    assert 'class="heat"' in html
    assert "labeled for" not in html + markdown
    assert "from one confusion matrix over all of them" in markdown


def test_the_report_begins_with_its_judgement_and_says_how_much_was_trained(tmp_path):
    report(tmp_path)
    pictures: dict = {}
    extent = {"training images": "240", "minutes since the last start": "3.2"}
    sentences = ["Only <5> steps were made.", "Second."]
    write_report(
        tmp_path, evaluation(), section(), Classes.compared_by, views=pictures, judgement=sentences, extent=extent
    )
    text = Page((tmp_path / "report.html").read_text()).text
    assert text.index(sentences[0]) < text.index("Best model")
    assert sentences[1] in text
    assert "240" in text
    assert "minutes since the last start" in text


def test_a_setting_stands_in_the_report_once_and_as_it_came_out(tmp_path):
    flags = SETTINGS["flags"] | {"num_workers": None, "micro_batch_size": "auto", "encoder": None, "max_minutes": 3}
    settings = SETTINGS | {"flags": flags, "num_workers": 2, "micro_batch_size": 4, "encoder": "a-backbone"}
    page = Page(report(tmp_path, settings=settings))
    rows = [text.strip() for text in page.text.splitlines()]
    assert [rows.count(name) for name in ("num workers", "micro batch size", "encoder")] == [1, 1, 1]
    assert "epochs" not in rows  # the minutes stand for them


def test_curves_name_their_axis_and_mark_the_best_step():
    points = [(step, 1 / step) for step in range(1, 41)]
    marked = curve("Loss", {"training": points}, best_step=30)
    assert ">step<" in marked.svg
    assert marked.svg.count('id="loss-best-step"') == 1
    assert "best-step" not in curve("Loss", {"training": points}).svg


@pytest.mark.parametrize("communication", [20, 0])
def test_the_speed_shown_is_the_median_of_the_log_lines_and_the_memory_their_peak(tmp_path, communication):
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    lines = []
    for step, (rate, operations, data, memory) in enumerate([(70, 0.3, 60, 5), (4, 0.002, 9, 8), (5, 0.004, 3, 6)], 1):
        speed = {"images_per_second": rate, "teraflops_per_device": operations, "peak_flops_percent": operations * 1e4}
        shares = {"data_wait_percent": data, "compute_percent": 80 - data}
        shares["communication_percent"] = communication
        values = speed | shares | {"peak_memory_gb": memory}
        record = {"step": step, "train/loss": 4.0} | {f"perf/{name}": value for name, value in values.items()}
        lines.append(json.dumps(record) + "\n")
    lines.append(json.dumps({"step": 3, "eval/loss": 0.5}) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    write_report(tmp_path, None, section(), Classes.compared_by, views={})
    text = re.sub(r"\s+", " ", Page((tmp_path / "report.html").read_text()).text)
    for tile in (
        "5 images/s",
        "40% of the device's peak",
        "8 GB peak GPU memory",
        "4 GFLOP/s of the model, on each device",
        "2 processes",
    ):
        assert f" {tile} " in text, tile
    shares = re.findall(r"(computing|waiting for data|communication) (?:[^\d%]*)([\d.]+) ?%", text)
    assert {name: float(share) for name, share in shares} == {
        "computing": 71,
        "waiting for data": 9,
        "communication": communication,
    }


def test_a_run_that_ended_before_its_first_evaluation_has_a_report(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    for lines in ("", json.dumps({"step": 1, "train/loss": 4.0, "perf/compute_percent": 90.0}) + "\n"):
        (tmp_path / "metrics.jsonl").write_text(lines)
        write_report(tmp_path, None, section(), Classes.compared_by, views={})
        text = Page((tmp_path / "report.html").read_text()).text
        assert "None yet: the run ended before its first evaluation." in text
        assert "Confusion matrix" not in text
        assert "bf16" in text


def test_the_report_says_what_limited_the_run(tmp_path):
    html = report(tmp_path, speed_notes=["waiting for <data> 43% of the time", "compiling for the GPU took 3 s"])
    assert "Waiting for <data> 43% of the time." in Page(html).text
    assert "Compiling for the GPU took 3 s." in Page(html).text


def points_of(chart: Curve) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<g id="[\w-]+-series-\d">\s*<path d="([^"]+)"', chart.svg)
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", line)] for line in lines]


def test_a_curve_goes_through_its_points():
    (line,) = points_of(curve("Loss", {"training": [(10, 4.0), (20, 2.0), (30, 3.0), (40, 1.0)]}))
    x, y = np.array(line).T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], rtol=0, atol=1e-5)  # six decimals
    assert y[3] > y[0]  # down the page, where its coordinates grow
    np.testing.assert_allclose((y - y[0]) / (y[3] - y[0]), [0, 2 / 3, 1 / 3, 1], rtol=0, atol=1e-6)
    assert x.min() >= 0
    assert x.max() <= 480
    assert y.min() >= 0
    assert y.max() <= 240


def test_a_curve_begins_at_step_0_and_marks_its_last_point_and_a_best_step_at_its_end():
    chart = curve("Loss", {"training": [(10, 4.0), (20, 2.0), (40, 1.0)]}, best_step=40)
    (line,) = points_of(chart)
    best_step = line[-1][0]
    marker = re.search(r'<use [^>]*x="([\d.]+)"', chart.svg.partition("loss-series-0")[2])
    assert float(marker[1]) == pytest.approx(best_step)
    ticks = re.findall(r">([\d.]+)</text>", chart.svg.split("matplotlib.axis_2")[0])
    assert ticks == ["0", "10", "20", "30", "40"]
    assert 'id="loss-best-step"' in chart.svg
    dashed = re.search(r'id="loss-best-step">\s*<path d="M (\S+)', chart.svg)
    assert float(dashed[1]) == pytest.approx(best_step)
    assert 'role="img" aria-label="a &lt; b"' in curve("a < b", {"training": [(1, 1.0)]}).svg


def test_a_chart_ends_with_its_longest_line():
    short, long = points_of(curve("Loss", {"a": [(10, 1.0), (20, 2.0)], "b": [(10, 3.0), (40, 1.0)]}))
    assert short[0][0] == long[0][0]
    assert short[1][0] - short[0][0] == pytest.approx((long[1][0] - long[0][0]) / 3)
    assert long[1][0] <= 480


def test_a_reliability_plot_shows_the_share_of_right_pixels_over_their_confidence():
    points = [{"confidence": 0.2, "accuracy": 0.9}, {"confidence": 0.8, "accuracy": 0.1}]
    svg = reliability_plot("Calibration", points)

    def corners(name: str) -> np.ndarray:
        path = re.search(rf'id="calibration-{name}">\s*<path d="([^"]+)"', svg)[1]
        return np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)

    (left, bottom), (right, top) = corners("calibrated")
    assert 30 < left < 60
    assert 440 < right < 480
    assert 0 < top < 30
    assert 180 < bottom < 220
    expected = [[left + 0.2 * (right - left), bottom + 0.9 * (top - bottom)]]
    expected += [[left + 0.8 * (right - left), bottom + 0.1 * (top - bottom)]]
    np.testing.assert_allclose(corners("series-0"), expected, rtol=0, atol=1e-4)
    assert left < right
    assert top < bottom
    assert ">confidence<" in svg
    assert ">share of right pixels<" in svg


def test_long_curves_are_thinned_and_the_legend_says_the_last_value():
    chart = curve("Loss", {"training": [(step, math.sin(step / 9e3)) for step in range(100_001)]})
    (line,) = points_of(chart)
    assert 200 < len(line) <= 400
    assert chart.last == {"training": math.sin(100_000 / 9e3)}
    (line,) = points_of(curve("Loss", {"training": [(step, (step + step // 2) % 2) for step in range(800)]}))
    assert len(line) == 400
    assert len({y for _, y in line}) == 1


def test_the_legend_of_the_page_says_the_last_value(tmp_path):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", report(tmp_path).split("</style>")[1]))
    assert "Loss training 0.1 validation 0.5" in text


def test_values_that_are_no_numbers_are_left_out_of_a_curve():
    chart = curve("Loss", {"a": [(1, math.nan), (2, 1.0), (3, math.inf)], "b": [(1, math.nan)], "c": []})
    assert [len(line) for line in points_of(chart)] == [1]
    assert "nan" not in chart.svg
    assert chart.last == {"a": 1.0}
    later = curve("Loss", {"b": [(1, math.nan)], "a": [(1, 2.0), (2, 1.0)]}).svg
    assert "--series-0" in later
    assert "--series-1" not in later
    assert curve("Loss", {"b": [(1, math.nan)]}) is curve("Loss", {}) is None


def test_a_line_keeps_its_color_beside_one_without_values():
    nothing = [(1, math.nan), (2, math.inf)]
    svg = overlaid("Loss", [(2, [(1, 3.0), (2, 1.0)]), (0, nothing), (4, [(1, 2.0), (2, math.inf), (3, 1.0)])])
    colors = re.findall(r'-series-\d">\s*<path [^>]*stroke: var\(--series-(\d)\)', svg)
    assert colors == ["2", "4"]
    assert overlaid("Loss", [(0, nothing), (1, [])]) is None


def test_a_curve_has_the_colors_of_the_page_only():
    svg = curve("Loss", {"a": [(1, 1.0), (2, 2.0)], "b": [(1, 3.0), (2, 1.0)]}).svg
    colors = re.findall(r"(?:fill|stroke): ([^;\"]+)", svg)
    assert set(colors) == {"none", "var(--faint)", "var(--line)", "var(--series-0)", "var(--series-1)"}
    assert re.findall(r"<text (?![^>]*var\(--faint\))", svg) == []
    assert "<style" not in svg
    assert "<metadata" not in svg


@pytest.mark.parametrize("values", [(0, 0), (0.3, 0.3), (-2, -2), (1e-7, 3e-7), (-5, 1e6), (0.9999, 1)])
def test_an_axis_has_a_few_ticks_around_all_values(values):
    chart = curve("Loss", {"a": list(enumerate(values, start=1))})
    (line,) = points_of(chart)
    axis = chart.svg.split("matplotlib.axis_2")[1].split("series-0")[0]
    texts = [text.replace("\N{MINUS SIGN}", "-") for text in re.findall(r">([^<>\s]+)</text>", axis)]
    power = [float(text) for text in texts if text.startswith("1e")] or [1.0]  # above the axis
    ticks = [float(text) * power[0] for text in texts if not text.startswith("1e")]
    assert 3 <= len(ticks) <= 8
    assert len(set(ticks)) == len(ticks)
    assert ticks[0] <= values[0] * (1 + 1e-9) + 1e-12
    assert ticks[-1] >= values[1] * (1 - 1e-3)
    assert all(0 <= y <= 240 for _, y in line)


def places_of(pixels: np.ndarray, color: np.ndarray | tuple[int, int, int]) -> np.ndarray:
    """(n, 2) rows and columns of the pixels of a color, which matplotlib rounds."""
    return np.argwhere((np.abs(pixels.astype(int) - color) <= 1).all(axis=2))


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that are drawn, from now on."""
    drawn_figures = []
    save = Figure.savefig

    def noted_save(figure: Figure, *arguments: object, **options: object) -> None:
        drawn_figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted_save)
    return drawn_figures


def test_the_picture_of_a_large_matrix_has_the_classes_that_occur(monkeypatch):
    matrices = []

    def picture_of(counts: np.ndarray, names: list[str]) -> np.ndarray:
        matrices.append((counts.diagonal().tolist(), names))
        return noise(2, 2)

    monkeypatch.setattr("train_utils.reporting.classes.matrix_picture", picture_of)
    names = [f"c{index}" for index in range(60)]
    matrix = torch.diag(torch.arange(60) * (torch.arange(60) % 2))
    section(names).html(evaluation(names, matrix).scores)
    assert matrices == [([*range(1, 60, 2)], names[1::2])]


def names_beside(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_confusion_matrix_of_many_classes_is_a_picture(tmp_path, monkeypatch, figures):
    monkeypatch.setattr("train_utils.reporting.classes.FOLDED", 200)  # classes without pixels are shown
    matrix = torch.zeros(150, 150, dtype=torch.int64)
    matrix[30, 70] = 1  # one pixel is all of its row
    html = report(tmp_path, names=[str(index) for index in range(150)], matrix=matrix, pictures={})
    (source,) = Page(html).attributes("img", "src")
    pixels = np.asarray(opened(source).convert("RGB"))
    assert "heat" not in {attributes.get("class") for _, attributes in Page(html).tags}
    low = places_of(pixels, LEAST_COLOR)
    top, left = low.min(axis=0)
    right = low[low[:, 0] == top][:, 1].max()
    rows = low[low[:, 1] == left][:, 0]
    bottom = rows[np.flatnonzero(np.diff(rows) > 1)[0]]  # the color bar is below a gap
    cells = places_of(pixels[: bottom + 1], MOST_COLOR).mean(axis=0) + 0.5
    row, column = (cells - (top, left)) / (bottom + 1 - top, right + 1 - left) * 150
    assert (int(row), int(column)) == (30, 70)
    (figure_of_matrix,) = [figure for figure in figures if len(figure.axes) == 2]
    axes, bar = figure_of_matrix.axes
    assert names_beside(axes.xaxis) == names_beside(axes.yaxis) == [str(index) for index in range(0, 150, 3)]
    assert axes.get_xticklabels()[0].get_rotation() == 90
    assert len(axes.texts) == 0
    assert bar.get_xlabel() == "share of the row's pixels"
    assert 0 < axes.get_position().y0 - bar.get_position().y1 < 0.05


def test_the_confusion_matrix_of_trackers_is_colored_by_shares_and_has_the_columns_in_order():
    matrix = np.array([[4, 0, 0], [0, 2, 2], [0, 0, 0]])
    pixels = matrix_picture(matrix, NAMES)
    assert pixels.dtype == np.uint8
    full, half, none = (
        places_of(pixels, color) for color in (MOST_COLOR, np.add(LEAST_COLOR, MOST_COLOR) / 2, LEAST_COLOR)
    )
    top, left = full.min(axis=0)
    assert (top, left) == (none[:, 0].min(), none[:, 1].min())  # the first row and column
    height, width = full.max(axis=0) - (top, left) + 1
    row, columns = (half[:, 0] - top) / height, (half[:, 1] - left) / width
    assert 1 <= row.min() < row.max() < 2.1  # second row
    assert 1 <= columns.min() < 1.1
    assert 2.9 < columns.max() < 3.1
    # the numbers cover some of it: measured 0.7% and 5.4%
    assert len(half) == pytest.approx(2 * len(full), rel=0.03)
    assert len(none) == pytest.approx(6 * len(full), rel=0.08)
    ink = (pixels[:top] < 128).all(axis=2)  # the columns' names
    first, last = ink[:, left : left + width].sum(), ink[:, left + 2 * width :].sum()
    assert first > 0
    assert last > 0


def test_the_confusion_matrix_of_trackers_names_its_rows_columns_and_percents(figures, monkeypatch):
    monkeypatch.setattr("train_utils.reporting.matrix_picture.LABELED_CLASSES", 3)  # the most that have numbers
    matrix_picture(np.array([[7, 0, 0], [0, 2, 1], [0, 0, 0]]), ("a", "b", "c" * 30))
    matrix_picture(np.eye(2, dtype=int), ("long", "name"))
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("prediction", "truth")
    assert names_beside(axes.xaxis) == names_beside(axes.yaxis) == ["a", "b", f"{'c' * 11}…{'c' * 12}"]
    (turned, _, _), (level, _) = axes.get_xticklabels(), figures[1].axes[0].get_xticklabels()
    assert (turned.get_rotation(), level.get_rotation()) == (45, 0)  # as long names have no room side by side
    *cells, unit = axes.texts
    places = {text.get_position(): text.get_text() for text in cells}
    assert places == {(0, 0): "100", (1, 1): "67", (2, 1): "33"}
    assert unit.get_text() == "% of the row's pixels"


@pytest.mark.parametrize(
    ("matrix", "share", "color"), [([[7]], 1, (255, 255, 255)), ([[1, 1], [1, 1]], 0.5, (28, 36, 48))]
)
def test_the_number_in_a_cell_is_white_on_a_dark_color_and_dark_on_a_light_one(matrix, share, color):
    pixels = matrix_picture(np.array(matrix), NAMES[: len(matrix)])
    cells = places_of(pixels, np.add(LEAST_COLOR, share * np.subtract(MOST_COLOR, LEAST_COLOR)))
    (top, left), (bottom, right) = cells.min(axis=0), cells.max(axis=0)
    assert len(places_of(pixels[top:bottom, left:right], color)) > 20
    assert bottom - top > 190
    assert right - left > 190


@pytest.mark.parametrize(("count", "inches"), [(1, 2), (11, 5.28), (21, 8), (50, 10), (150, 12)])
def test_the_matrix_of_trackers_grows_with_its_classes_up_to_a_bound(figures, count, inches):
    names = [f"a long class name of number {index}" for index in range(count)]
    height, width, _ = matrix_picture(np.eye(count, dtype=int), names).shape
    assert figures[0].get_size_inches() == pytest.approx([inches, inches])
    assert 40 * min(count, 20) < height < 1700
    assert 40 * min(count, 20) < width < 1700


def test_a_class_name_is_no_formula_and_any_script_is_taken(recwarn):
    pixels = matrix_picture(np.eye(3, dtype=int), ["$\\frac$", "a$b$c", "\N{CJK UNIFIED IDEOGRAPH-732B}"])
    assert pixels.ndim == 3
    assert [str(warning.message) for warning in recwarn] == []


def test_pictures_are_embedded_as_they_are_and_large_ones_reduced():
    small = noise(20, 30)
    (picture,) = embed_all([small], 10**6)
    np.testing.assert_array_equal(np.asarray(opened(picture.source)), small)
    assert (picture.width, picture.height) == (30, 20)
    exact, photo = embed_all([noise(70, 72), noise(80, 90)], 10**6)  # 15 and 22 thousand bytes as PNG
    assert exact.source.startswith("data:image/png;")
    assert photo.source.startswith("data:image/jpeg;")
    (picture,) = embed_all([np.zeros((1000, 2000, 3), np.uint8)], 10**6)
    assert opened(picture.source).size == (picture.width, picture.height) == (420, 210)


def test_photographs_are_jpegs_close_to_the_original_and_flat_pictures_stay_exact():
    across, down = np.meshgrid(np.linspace(0, 6, 300), np.linspace(0, 4, 200))
    photo = np.stack([127 + 90 * np.sin(across + shift) * np.cos(down) for shift in (0, 1, 2)], axis=2)
    photo = (photo + np.random.default_rng(0).normal(0, 3, photo.shape)).clip(0, 255).astype(np.uint8)
    flat = np.zeros((200, 300, 3), np.uint8)
    flat[50:100, 80:200] = (230, 30, 40)
    one, other = embed_all([photo, flat], 10**6)
    assert one.source.startswith("data:image/jpeg;")
    assert other.source.startswith("data:image/png;")
    assert np.abs(np.asarray(opened(one.source)).astype(int) - photo).mean() < 3  # the noise alone is 2.4, as measured
    np.testing.assert_array_equal(np.asarray(opened(other.source)), flat)


def test_a_thin_red_line_keeps_its_color_in_a_photograph():
    photo = np.repeat(np.random.default_rng(0).integers(90, 160, (200, 300, 1), dtype=np.uint8), 3, axis=2)
    photo[100] = (230, 30, 40)
    (picture,) = embed_all([photo], 10**6)
    assert picture.source.startswith("data:image/jpeg;")
    red, green, _ = np.asarray(opened(picture.source).convert("RGB"))[100].mean(axis=0)
    assert red - green > 150


def test_a_picture_that_is_smaller_as_png_stays_exact_however_large_it_is():
    mask = np.random.default_rng(0).choice(np.uint8([0, 255]), (300, 400, 1)).repeat(3, axis=2)
    (picture,) = embed_all([mask], 10**6)
    assert len(picture.source) > 20_000
    assert picture.source.startswith("data:image/png;")
    np.testing.assert_array_equal(np.asarray(opened(picture.source)), mask)


def test_a_large_picture_is_reduced_to_what_a_page_can_show_and_a_small_one_is_not():
    assert reduced(np.zeros((1000, 500, 3), np.uint8)).shape == (420, 210, 3)
    assert reduced(np.zeros((300, 600, 3), np.uint8), 100).shape == (50, 100, 3)
    np.testing.assert_array_equal(reduced(noise(30, 40)), noise(30, 40))


def test_pictures_stand_at_their_titles_and_labels_in_the_order_in_which_they_are_given(tmp_path):
    views = {"b": {"truth": noise(4, 6), "errors": noise(5, 7)}, "a": {"truth": noise(6, 8), "image": noise(7, 9)}}
    html = report(tmp_path, pictures=views)
    elements = re.findall(r'<h3>(.)</h3>|<img alt="(\w+)" width="(\d+)" height="(\d+)"', html)
    titles = [("b", "", "", ""), ("a", "", "", "")]
    pictures = [("", "truth", "6", "4"), ("", "errors", "7", "5"), ("", "truth", "8", "6"), ("", "image", "9", "7")]
    assert elements == [titles[0], *pictures[:2], titles[1], *pictures[2:]]


def test_pictures_share_what_room_there_is():
    def size(pictures: list[Embedded]) -> int:
        return sum(len(picture.source) for picture in pictures)

    pictures = [noise(400, 400)] * 3
    wide, narrow = embed_all(pictures, 2 * 10**6), embed_all(pictures, 10**5)
    assert 10**6 < size(wide) <= 2 * 10**6
    assert 4 * 10**4 < size(narrow) <= 10**5
    assert wide[0].width == 400
    assert narrow[0].width == 132
    assert embed_all([], 10**5) == []


def test_a_page_escapes_half_a_character_and_names_a_value_that_is_missing():
    assert page_bytes("a\udcffä") == b"a\\udcff\xc3\xa4"
    with pytest.raises(UndefinedError):
        render("calibration.html.jinja")


def test_a_run_ends_with_a_card_and_a_report_of_its_best_model(trained, tiny_folder):
    best = max((r for r in records(trained) if "eval/mean_iou" in r), key=lambda record: record["eval/mean_iou"])
    text = (trained / "model" / "README.md").read_text()
    measured = {result.metric_type: result.metric_value for result in ModelCard(text).data.eval_results}
    assert measured["mean_iou"] == round(best["eval/mean_iou"], 6)
    assert measured["mean_dice"] == round(best["eval/mean_dice"], 6)
    assert f"Weights of optimizer step {best['step']} of" in text
    assert str(tiny_folder.parent) not in text
    page = Page((trained / "report.html").read_text())
    assert f"{best['eval/mean_iou']:.4f}" in page.text
    lines = [attributes["id"] for tag, attributes in page.tags if tag == "g" and "-series-" in attributes.get("id", "")]
    assert len(lines) >= 4
    assert len(page.attributes("img", "src")) == 4 * 5


def test_the_worst_and_best_images_have_the_iou_of_their_own_masks(trained, tiny_folder):
    labels = re.findall(r"(\S+): IoU (\d\.\d+)", Page((trained / "report.html").read_text()).text)
    predictor, expected = Predictor.from_pretrained(trained / "model"), {}
    for image in (tiny_folder / "val" / "images").iterdir():
        truth = torch.from_numpy(np.asarray(Image.open(tiny_folder / "val" / "masks" / image.name)) // 255).long()
        matrix = confusion_matrix(torch.from_numpy(predictor.mask(image)).long(), truth, 2)
        expected[image.stem] = scores(matrix)["mean_iou"]
    assert len(set(expected.values())) > 2
    assert {Path(name).stem: float(iou) for name, iou in labels} == pytest.approx(
        expected, abs=6e-5
    )  # four digits, divided in float32
    assert [iou for _, iou in labels] == sorted(iou for _, iou in labels)


def test_the_code_in_the_card_runs(trained, tiny_folder):
    code = re.search(r"```python\n(.+?)```", (trained / "model" / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace("path or Hub id of this model", str(trained / "model"))
    image = next((tiny_folder / "val" / "images").iterdir())
    variables: dict = {}
    exec(code.replace("image.png", str(image)), variables)
    assert variables["mask"].shape == (40, 56)


def test_two_processes_find_the_same_worst_and_best_images(trained, tiny_folder, tmp_path):
    """One step too small to change a weight, and then the evaluation and the report."""
    titles = {}
    flags = ["--dataset", tiny_folder, "--init-from", trained / "model", "--learning-rate", "1e-30"]
    flags += ["--max-steps", "1", "--num-workers", "0", "--tracker", "none"]
    assert run_train(tmp_path / "one", *flags).exit_code == 0
    result = launch("train.py", *flags, "--output-dir", tmp_path / "two", profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    for name in ("one", "two"):
        titles[name] = re.findall(r"(\S+): IoU (\d\.\d+)", Page((tmp_path / name / "report.html").read_text()).text)
    assert titles["one"] == titles["two"]
    assert len(titles["one"]) == 5
    one, two = (records(tmp_path / name)[-1]["eval/calibration_error"] for name in ("one", "two"))
    assert one == two > 0
    assert (tmp_path / "one" / "images.csv").read_text() == (tmp_path / "two" / "images.csv").read_text()
    assert len({iou for _, iou in titles["one"]}) > 1


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [500, 1280])  # headless Chromium makes no window narrower than 500
def test_a_browser_shows_the_whole_page_without_scrolling_sideways(tmp_path, width):
    many = tuple(f"a rather long class name {index}" for index in range(15))
    html = report(tmp_path / "run", names=many, matrix=torch.eye(15, dtype=torch.int64) * 10**7 + 1)
    probe = """<script>addEventListener("load", () => { const root = document.documentElement;
        const broken = [...document.images].filter(image => !image.naturalWidth).length;
        const lines = [...document.querySelectorAll("g[id*='-series-'] > path")];
        const curves = lines.filter(line => line.getTotalLength() > 50).length;
        document.title = [root.scrollWidth, root.clientWidth, broken, document.images.length, curves].join();
        })</script>"""
    (tmp_path / "probe.html").write_text(html + probe)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},900", "--dump-dom"]
    process = subprocess.run(
        [CHROMIUM, *options, (tmp_path / "probe.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    scroll, client, broken, images, curves = map(int, re.search(r"<title>([\d,]+)</title>", process)[1].split(","))
    assert scroll <= client <= width
    assert client > width - 40
    assert (broken, images) == (0, 2)
    assert curves == 2  # training loss and learning rate; the evaluation's single points have no length
