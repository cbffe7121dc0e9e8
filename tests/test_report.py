"""report.html and the model card: what they say is what was measured, and the page needs nothing but itself."""

import base64
import io
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import TINY, launch
from huggingface_hub import ModelCard
from PIL import Image

from train_utils.charts import CELL, MAX_PICTURE, MAX_POINTS, curve, heat_map, matrix_picture, picture
from train_utils.model_card import model_card
from train_utils.report import write_report
from unet import Predictor
from unet.metrics import confusion_matrix, scores

NAMES = ("<script>alert(1)</script>", 'a|b & "c"', "c: #d")
MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])
SETTINGS = {
    "flags": {"dataset": "shapes<i>", "epochs": 3, "image_size": [32, 48], "crop_size": None, "loss": "ce+dice"},
    "profile": {"processes": 2, "mixed_precision": "bf16"},
    "total_steps": 40,
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


def report(folder: Path, *, names=NAMES, matrix=MATRIX, settings=SETTINGS, pictures=None) -> str:
    records = [{"step": step, "train/loss": 4 / step, "train/lr": 1e-3} for step in range(1, 41)]
    records += [{"step": 40, "eval/loss": 0.5, "eval/mean_iou": 0.6, "eval/mean_dice": None}]
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if pictures is None:
        pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        pictures = {"<b>bad</b>: IoU 0.1000": {"image": pixels, "errors": pixels}}
    colors = np.arange(3 * len(names)).reshape(-1, 3)
    write_report(folder, step=30, names=names, colors=colors, matrix=matrix, result=scores(matrix), pictures=pictures)
    return (folder / "report.html").read_text()


def decode(source: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,")))))


def test_the_page_needs_nothing_but_itself(tmp_path):
    html = report(tmp_path)
    page = Page(html)
    assert all(source.startswith("data:image/png;base64,") for source in page.attributes("img", "src"))
    used = {tag for tag, _ in page.tags}
    assert {"svg", "table", "img", "figure"} <= used
    assert not used & {"script", "link", "iframe", "object", "i"}
    assert not re.search(r"https?:|url\(|@import", html)
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


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
    assert "30 step, of 40" in text
    assert f"{90 / 105:.4f} {180 / 195:.4f} {90 / 95:.4f} 0.9000 100" in text
    assert "c: #d n/a n/a n/a n/a 0" in text
    assert "90.0 10.0 0.0" in text
    assert "25.0 75.0 0.0" in text
    pairs = text.split("Most frequent confusions")[1]
    assert pairs.index(" 10 ") < pairs.index(" 5 ")


def test_a_run_that_ended_before_its_first_evaluation_has_a_report(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    for lines in ("", json.dumps({"step": 1, "train/loss": 4.0, "perf/compute_percent": 90.0}) + "\n"):
        (tmp_path / "metrics.jsonl").write_text(lines)
        write_report(tmp_path, names=NAMES, colors=np.zeros((3, 3)))
        text = Page((tmp_path / "report.html").read_text()).text
        assert "None yet: the run ended before its first evaluation." in text
        assert "Confusion matrix" not in text
        assert "bf16" in text


def test_the_report_says_what_limited_the_run(tmp_path):
    report(tmp_path)
    write_report(tmp_path, names=NAMES, colors=np.zeros((3, 3)), bottleneck="waiting for <data> 43% of the time")
    assert "Waiting for <data> 43% of the time." in Page((tmp_path / "report.html").read_text()).text


def points_of(figure: str) -> list[list[tuple[float, float]]]:
    lines = Page(figure).attributes("polyline", "points")
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def test_a_curve_goes_through_its_points():
    (line,) = points_of(curve("Loss", {"training": [(10, 4.0), (20, 2.0), (30, 3.0), (40, 1.0)]}))
    x, y = np.array(line).T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], atol=0.11)
    assert y[3] > y[0]  # down the page, where its coordinates grow
    np.testing.assert_allclose((y - y[0]) / (y[3] - y[0]), [0, 2 / 3, 1 / 3, 1], atol=0.01)
    assert x.min() >= 0 and x.max() <= 480 and y.min() >= 0 and y.max() <= 240


def test_long_curves_are_thinned_and_the_legend_says_the_last_value():
    figure = curve("Loss", {"training": [(step, math.sin(step / 9e3)) for step in range(100_001)]})
    (line,) = points_of(figure)
    assert MAX_POINTS / 2 < len(line) <= MAX_POINTS
    assert f"<b>{math.sin(100_000 / 9e3):.4g}</b>" in figure


def test_values_that_are_no_numbers_are_left_out_of_a_curve():
    figure = curve("Loss", {"a": [(1, math.nan), (2, 1.0), (3, math.inf)], "b": [(1, math.nan)], "c": []})
    assert [len(line) for line in points_of(figure)] == [1]
    assert "nan" not in figure
    assert curve("Loss", {"b": [(1, math.nan)]}) == curve("Loss", {}) == ""


@pytest.mark.parametrize("values", [(0, 0), (0.3, 0.3), (-2, -2), (1e-7, 3e-7), (-5, 1e6), (0.9999, 1)])
def test_an_axis_has_a_few_ticks_around_all_values(values):
    figure = curve("Loss", {"a": list(enumerate(values, start=1))})
    (line,) = points_of(figure)
    ticks = re.findall(r'text-anchor="end">([^<]+)<', figure)
    assert 3 <= len(ticks) <= 8
    assert len(set(ticks)) == len(ticks)
    assert float(ticks[0]) <= values[0] * (1 + 1e-9) + 1e-12 and float(ticks[-1]) >= values[1] * (1 - 1e-3)
    assert all(0 <= y <= 240 for _, y in line)


def test_a_confusion_matrix_of_many_classes_is_a_picture():
    matrix = np.zeros((150, 150), int)
    matrix[3, 7] = 5
    (source,) = Page(heat_map(matrix, [str(index) for index in range(150)])).attributes("img", "src")
    pixels = decode(source)
    row, column = (int((index + 0.5) * 720 / 150) for index in (3, 7))
    assert tuple(pixels[row, column]) == (37, 99, 235)
    assert tuple(pixels[column, row]) == (238, 241, 246)


def test_the_confusion_matrix_of_trackers_is_coloured_by_shares_and_has_the_columns_in_order():
    matrix = np.array([[4, 0, 0], [0, 2, 2], [0, 0, 0]])
    pixels = matrix_picture(matrix, NAMES)
    corner = len(pixels) - 3 * CELL
    cells = pixels[corner + 2 :: CELL, corner + 2 :: CELL]  # beside the numbers
    assert tuple(cells[0, 0]) == (37, 99, 235)
    assert tuple(cells[1, 1]) == tuple(cells[1, 2]) == tuple(np.array([37 + 238, 99 + 241, 235 + 246]) // 2)
    assert tuple(cells[0, 1]) == tuple(cells[2, 2]) == (238, 241, 246)
    first, second = (pixels[:corner, corner + CELL * number :][:, :CELL] for number in (0, 1))
    assert (first < 128).sum() > 1.5 * (second < 128).sum() > 0  # the first name is the longest
    assert matrix_picture(np.eye(30, dtype=int), [str(index) for index in range(30)]).shape == (720, 720, 3)


def test_pictures_are_embedded_as_they_are_and_large_ones_reduced():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    (source,) = Page(picture(pixels, "a<b")).attributes("img", "src")
    np.testing.assert_array_equal(decode(source), pixels)
    (source,) = Page(picture(np.zeros((1000, 2000, 3), np.uint8), "large")).attributes("img", "src")
    assert decode(source).shape == (MAX_PICTURE // 2, MAX_PICTURE, 3)


def card(**changes) -> str:
    settings = SETTINGS | {"flags": SETTINGS["flags"] | changes.pop("flags", {})}
    arguments = {"step": 30, "names": NAMES, "matrix": MATRIX, "result": scores(MATRIX)} | changes
    return model_card(settings, **arguments)


def test_the_card_says_what_was_measured_in_the_form_the_hub_reads():
    data = ModelCard(card()).data
    assert (data.library_name, data.pipeline_tag) == ("unet-accelerate", "image-segmentation")
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured == {
        "mean_iou": pytest.approx((90 / 105 + 15 / 30) / 2, abs=1e-6),
        "mean_dice": pytest.approx((180 / 195 + 30 / 45) / 2, abs=1e-6),
        "pixel_accuracy": pytest.approx(105 / 120, abs=1e-6),
    }
    assert {result.dataset_name for result in data.eval_results} == {"shapes<i>"}


def test_the_card_survives_names_that_mean_something_in_yaml_and_markdown():
    text = card(flags={"dataset": 'a: "b" # {c}\\'})
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == 'a: "b" # {c}\\'
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "\\|" in line]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 7
    assert "| c: #d | n/a | n/a | n/a | n/a | 0 |" in text


def test_the_card_does_not_tell_where_files_lay(tmp_path):
    folder = tmp_path / "secret" / "cells"
    folder.mkdir(parents=True)
    text = card(flags={"dataset": str(folder), "init_from": str(folder)})
    assert "cells" in text
    assert "secret" not in text
    assert "owner/cells" in card(flags={"dataset": "owner/cells"})


def test_the_card_names_steps_or_epochs_whichever_ended_the_training():
    assert "| epochs | 10 |" in card(flags={"epochs": 10, "max_steps": None})
    assert "| epochs |" not in card(flags={"epochs": 10, "max_steps": 40})


def test_a_card_without_any_score_is_still_a_card():
    empty = torch.zeros(3, 3, dtype=torch.int64)
    text = card(matrix=empty, result=scores(empty))
    assert "n/a" in text
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "unet-accelerate"


def records(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_a_run_ends_with_a_card_and_a_report_of_its_best_model(trained, tiny_folder):
    best = max((r for r in records(trained) if "eval/mean_iou" in r), key=lambda record: record["eval/mean_iou"])
    text = (trained / "model" / "README.md").read_text()
    measured = {result.metric_type: result.metric_value for result in ModelCard(text).data.eval_results}
    assert measured["mean_iou"] == pytest.approx(best["eval/mean_iou"], abs=1e-6)
    assert measured["mean_dice"] == pytest.approx(best["eval/mean_dice"], abs=1e-6)
    assert f"Weights of optimizer step {best['step']} of" in text
    assert str(tiny_folder.parent) not in text
    page = Page((trained / "report.html").read_text())
    assert f"{best['eval/mean_iou']:.4f}" in page.text
    assert len(page.attributes("polyline", "points")) >= 4
    assert len(page.attributes("img", "src")) == 4 * 5


def test_the_worst_and_best_images_have_the_iou_of_their_own_masks(trained, tiny_folder):
    shown = re.findall(r"(\S+): IoU (\d\.\d+)", Page((trained / "report.html").read_text()).text)
    predictor, expected = Predictor.from_pretrained(trained / "model"), {}
    for image in (tiny_folder / "val" / "images").iterdir():
        truth = torch.from_numpy(np.asarray(Image.open(tiny_folder / "val" / "masks" / image.name)) // 255).long()
        matrix = confusion_matrix(torch.from_numpy(predictor.mask(image)).long(), truth, 2)
        expected[image.stem] = scores(matrix)["mean_iou"]
    assert len(set(expected.values())) > 2
    assert {Path(name).stem: float(iou) for name, iou in shown} == pytest.approx(expected, abs=1e-4)
    assert [iou for _, iou in shown] == sorted(iou for _, iou in shown)


def test_the_code_in_the_card_runs(trained, tiny_folder):
    code = re.search(r"```python\n(.+?)```", (trained / "model" / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace("path or Hub id of this model", str(trained / "model"))
    image = next((tiny_folder / "val" / "images").iterdir())
    variables: dict = {}
    exec(code.replace("image.png", str(image)), variables)
    assert variables["mask"].shape == (40, 56)


def test_two_processes_find_the_same_worst_and_best_images(tiny_folder, tmp_path):
    titles = {}
    command = ["train.py", "--dataset", tiny_folder, *TINY, "--max-steps", "3", "--tracker", "none", "--output-dir"]
    for name, profile in (("one", "cpu"), ("two", "multi_cpu")):
        result = launch(*command, tmp_path / name, profile=profile)
        assert result.returncode == 0, result.stderr
        titles[name] = re.findall(r"(\S+): IoU (\d\.\d+)", Page((tmp_path / name / "report.html").read_text()).text)
    assert [name for name, _ in titles["one"]] == [name for name, _ in titles["two"]]
    for (_, one), (_, two) in zip(titles["one"], titles["two"], strict=True):
        assert float(one) == pytest.approx(float(two), abs=2e-4)
    assert len(titles["one"]) == 5


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [500, 1280])  # headless Chromium makes no window narrower than 500
def test_a_browser_shows_the_whole_page_without_scrolling_sideways(tmp_path, width):
    many = tuple(f"a rather long class name {index}" for index in range(15))
    html = report(tmp_path / "run", names=many, matrix=torch.eye(15, dtype=torch.int64) * 10**7 + 1)
    probe = """<script>addEventListener("load", () => { const root = document.documentElement;
        const broken = [...document.images].filter(image => !image.naturalWidth).length;
        const curves = [...document.querySelectorAll("polyline")].filter(line => line.getTotalLength() > 50).length;
        document.title = [root.scrollWidth, root.clientWidth, broken, document.images.length, curves].join();
        })</script>"""
    (tmp_path / "probe.html").write_text(html + probe)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},900", "--dump-dom"]
    shown = subprocess.run(
        [CHROMIUM, *options, (tmp_path / "probe.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    scroll, client, broken, images, curves = map(int, re.search(r"<title>([\d,]+)</title>", shown)[1].split(","))
    assert scroll <= client <= width
    assert client > width - 40
    assert (broken, images) == (0, 2)
    assert curves == 2  # training loss and learning rate; the evaluation's single points have no length
