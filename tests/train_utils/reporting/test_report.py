"""report.html: it says what was measured, and needs nothing but itself.

Modules: train_utils/reporting/report.py, train_utils/reporting/pages.py.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.reports import Page, charts_of, class_scores, class_section, embedded_picture, noise, text_line
from support.run_files import records

from train_utils.evaluation import Evaluation
from train_utils.reporting.pages import embed, embed_all
from train_utils.reporting.report import write_report

NAMES = ("<script>alert(1)</script>", 'a|b & "c"', "c: #d")
MATRIX = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])
SETTINGS = {
    "flags": {
        "dataset": "shapes<i>",
        "epochs": 3,
        "max_steps": None,
        "max_minutes": None,
        "seed": 0,
        "image_size": [32, 48],
        "crop_size": None,
        "loss": "ce+dice",
    },
    "profile": {"processes": 2, "mixed_precision": "bf16"},
    "total_steps": 40,
    "identity": {"dims": 2},
    "run": {"started": "2026-01-02T03:04:05+0000", "torch": "2.13.0", "accelerate": "1.15.0", "command": "train.py"},
}


def evaluation(names=NAMES, matrix=MATRIX) -> Evaluation:
    return Evaluation(30, 0.5, class_scores(names, matrix))


def write_run(folder: Path, records: list[dict], settings: dict = SETTINGS) -> None:
    """The files of a run that its report is made of."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def report(folder: Path, *, names=NAMES, matrix=MATRIX, settings=SETTINGS, pictures=None, **options) -> str:
    """The report of a run of 40 steps that was best after 30."""
    records = [{"step": step, "train/loss": 4 / step, "train/lr": 1e-3} for step in range(1, 41)]
    records += [{"step": 40, "eval/loss": 0.5, "eval/mean_iou": 0.6, "eval/mean_dice": None}]
    write_run(folder, records, settings)
    if pictures is None:
        pictures = {"<b>bad</b>: IoU 0.1000": {"image": noise(20, 30), "errors": noise(20, 30)}}
    section = class_section(names)
    write_report(folder, evaluation(names, matrix), section, views=pictures, **options)
    return (folder / "report.html").read_text()


def foreign(html: str) -> list[str]:
    """What a browser would fetch for a page, or run in it."""
    page = Page(html)
    foreign_tags = [
        tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "embed", "base", "foreignobject")
    ]
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            value = value or ""
            local = value.startswith("#") or re.match(r"data:image/(png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]+$", value)
            fetches = name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
            if (fetches and not local) or name.startswith("on"):
                foreign_tags.append(f"{tag} {name}={value[:60]}")
    markup = re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)
    return foreign_tags + re.findall(r"https?:|//[a-z]|url\((?!#)|@import|<!ENTITY|<!DOCTYPE svg|<\?xml", markup)


def test_the_page_needs_nothing_but_itself(tmp_path):
    html = report(tmp_path)
    page = Page(html)
    assert {"table", "img", "figure"} <= {tag for tag, _ in page.tags}
    assert foreign(html) == []


def test_a_page_of_noisy_pictures_stays_below_four_megabytes(tmp_path):
    labels = ("image", "truth", "prediction", "errors")
    views = {f"image {number}": dict.fromkeys(labels, noise(500, 750)) for number in range(8)}
    html = report(tmp_path, pictures=views)
    assert 2_000_000 < len(html.encode()) == (tmp_path / "report.html").stat().st_size < 4_000_000
    sources = [source for source in Page(html).attributes("img", "src") if not source.startswith("data:image/svg")]
    assert len(sources) == 32 + 1  # and the confusion matrix
    (side,) = {max(embedded_picture(source).size) for source in sources[:32]}
    assert 200 <= side <= 420


def test_a_name_a_title_or_a_setting_is_shown_as_text(tmp_path):
    text = Page(report(tmp_path)).text
    for words in (*NAMES, "<b>bad</b>: IoU 0.1000", "U-Net on shapes<i>", "32 48", "bf16"):
        assert words in text


def test_the_report_begins_with_its_remarks_and_says_how_much_was_trained(tmp_path):
    remarks = ["Only <5> steps were made.", "Second."]
    text = Page(report(tmp_path, pictures={}, remarks=remarks, extent={"training images": "1,234"})).text
    assert text.index(remarks[0]) < text.index(remarks[1]) < text.index("Best model")
    assert "1,234 training images" in " ".join(text.split())


def page_of(folder: Path, best: Evaluation | None = None) -> str:
    """The words of the report of a run whose files have been written, in one line."""
    best = best or Evaluation(30, None, class_scores("ab", torch.tensor([[6, 2], [1, 1]])))
    write_report(folder, best, class_section("ab"), views={})
    return text_line((folder / "report.html").read_text())


def test_settings_are_reported_as_they_are_typed(tmp_path):
    run = SETTINGS["run"] | {"git_commit": "abc"}
    write_run(tmp_path, [], SETTINGS | {"num_workers": 0, "run": run})
    text = page_of(tmp_path)
    for row in ("image size 32 48", "profile: processes 2", "num workers 0", "git commit abc"):
        assert row in text
    assert "crop size" not in text  # it is not set


def speed_page(folder: Path, *records: dict[str, float], processes: int = 2) -> str:
    """The words of a report of a run with these records of its speed."""
    lines = []
    for step, record in enumerate(records, 1):
        lines.append({"step": step, "train/loss": 4.0} | {f"perf/{name}": value for name, value in record.items()})
    lines.append({"step": len(records), "eval/loss": 0.5})
    write_run(folder, lines, SETTINGS | {"profile": {"processes": processes, "mixed_precision": "no"}})
    return page_of(folder)


@pytest.mark.parametrize(
    ("name", "values", "tile"),
    [
        ("images_per_second", (70, 4, 5), " 5 images/s "),
        ("data_wait_percent", (90, 20, 40), " 40% waiting for data "),
        ("peak_memory_gb", (5, 8, 6), " 8 GB peak GPU memory "),
    ],
)
def test_the_speed_is_the_median_of_the_records_and_the_memory_their_peak(tmp_path, name, values, tile):
    assert tile in speed_page(tmp_path, *({name: value} for value in values))


def test_a_run_that_ended_before_its_first_evaluation_has_a_report(tmp_path):
    write_run(tmp_path, [{"step": 1, "train/loss": 4.0}])
    write_report(tmp_path, None, class_section(NAMES), views={})
    text = text_line((tmp_path / "report.html").read_text())
    assert "None yet: the run ended before its first evaluation." in text
    assert "Confusion matrix" not in text
    assert any(">training 4<" in chart for chart in charts_of((tmp_path / "report.html").read_text()))


CURVE_RECORDS = (
    "train/loss",
    "eval/loss",
    "eval/mean_iou",
    "eval/mean_dice",
    "train/lr",
    "perf/images_per_second",
    "train/grad_norm",
    "perf/data_wait_percent",
)


def test_curves_show_their_records_with_the_best_step_where_it_is_chosen(tmp_path):
    values = {name: 10.0 * number for number, name in enumerate(CURVE_RECORDS, 1)}
    write_run(tmp_path, [{"step": 1000} | values, {"step": 2000} | values])
    page_of(tmp_path, Evaluation(1500, None, class_scores("ab", torch.tensor([[6, 2], [1, 1]]))))
    charts = charts_of((tmp_path / "report.html").read_text())
    legends = [re.findall(r">([a-zA-Z /]+ \d+)<", chart) for chart in charts]
    assert legends == [
        ["training 10", "validation 20"],
        ["mean IoU 30", "mean Dice 40"],
        ["learning rate 50"],
        ["images/s 60"],
        ["gradient norm 70"],
        ["waiting for data 80"],
    ]
    assert ["best-step" in chart for chart in charts] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("counts", "errors"),
    [(None, []), ([[10, 4, 0], [30, 30, 30 * 2**20]], ["0.1000"])],
)
def test_the_calibration_of_the_best_evaluation_is_shown_where_it_was_counted(tmp_path, counts, errors):
    write_run(tmp_path, [])
    scores = class_scores("ab", torch.tensor([[6, 2], [1, 1]]))
    scores.reliability = None if counts is None else torch.tensor(counts)
    page_of(tmp_path, Evaluation(30, None, scores))
    html = (tmp_path / "report.html").read_text()
    # of ten pixels of confidence 0 four are right, and all of thirty of confidence 1
    assert re.findall("Expected calibration error: (.*?),", html) == errors
    plots = [chart for chart in charts_of(html) if "calibrated" in chart]
    # ten pixels say little of a share: only the thirty are a point
    assert [len(re.findall("<use", plot.partition('id="series-0"')[2])) for plot in plots] == [1] * len(errors)


@pytest.fixture(scope="module")
def best_record(trained_run) -> dict:
    """The record of the best evaluation of the run."""
    evaluations = [record for record in records(trained_run) if "eval/mean_iou" in record]
    return max(evaluations, key=lambda record: record["eval/mean_iou"])


def test_a_run_ends_with_a_card_of_its_best_model(trained_run, tiny_folder, best_record):
    text = (trained_run / "model" / "README.md").read_text()
    scores = {result.metric_type: result.metric_value for result in ModelCard(text).data.eval_results}
    assert scores["mean_iou"] == round(best_record["eval/mean_iou"], 6)
    assert scores["mean_dice"] == round(best_record["eval/mean_dice"], 6)
    assert f"Weights of optimizer step {best_record['step']} of" in text
    assert str(tiny_folder.parent) not in text


def test_a_run_ends_with_a_report_of_its_best_model(trained_run, best_record):
    html = (trained_run / "report.html").read_text()
    page = Page(html)
    assert f"{best_record['eval/mean_iou']:.4f}" in page.text
    charts = charts_of(html)
    assert sum(chart.count('id="series-') for chart in charts) >= 4
    assert len(page.attributes("img", "src")) == len(charts) + 4 * 5 + 1  # and the confusion matrix
    assert page.text.index("Worst and best validation images") < page.text.index("Confusion matrix")


def test_the_code_in_the_card_runs(trained_run, tiny_folder):
    code = re.search(r"```python\n(.+?)```", (trained_run / "model" / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace("path or Hub id of this model", str(trained_run / "model"))
    image = next((tiny_folder / "val" / "images").iterdir())
    variables: dict = {}
    exec(code.replace("image.png", str(image)), variables)
    assert variables["mask"].shape == (40, 56)


def test_small_and_flat_pictures_stay_exact():
    flat = np.zeros((200, 300, 3), np.uint8)
    flat[50:100, 80:200] = (230, 30, 40)
    binary = np.random.default_rng(0).choice(np.uint8([0, 255]), (300, 400, 1)).repeat(3, axis=2)
    for picture in (noise(20, 30), flat, binary):
        np.testing.assert_array_equal(np.asarray(embedded_picture(embed(picture))), picture)


def test_a_photograph_is_a_jpeg_in_which_a_thin_red_line_keeps_its_color():
    photo = np.repeat(np.random.default_rng(0).integers(90, 160, (200, 300, 1), dtype=np.uint8), 3, axis=2)
    photo[100] = (230, 30, 40)
    source = embed(photo)
    assert source.startswith("data:image/jpeg;")
    red, green, _ = np.asarray(embedded_picture(source).convert("RGB"))[100].mean(axis=0)
    assert red - green > 150


def test_pictures_are_reduced_to_the_side_that_a_page_can_show_and_never_enlarged():
    sizes = [embedded_picture(source).size for source in embed_all([noise(500, 1000), noise(8, 8)], 10**6)]
    assert sizes == [(420, 210), (8, 8)]
