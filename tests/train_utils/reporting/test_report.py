"""report.html: it says what was measured, and needs nothing but itself.

Modules: train_utils/reporting/report.py, train_utils/reporting/rendering.py.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from jinja2 import UndefinedError
from PIL import Image
from support.in_process import run_train
from support.launches import launch
from support.reports import Page, class_scores, class_section, embedded_picture, noise, text_line
from support.run_files import records

import train_utils.reporting.report as report_module
from data_utils.visualize import class_colors
from inference import Predictor
from tasks.classes import Classes
from tasks.confusion import confusion_matrix, matrix_scores
from train_utils.evaluation import Evaluation
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.embedding import Embedded
from train_utils.reporting.rendering import page_bytes, render
from train_utils.reporting.report import CURVES, LOSS_CURVES, write_report
from train_utils.reporting.section import Metric

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
    write_report(folder, evaluation(names, matrix), section, Classes.compared_by, views=pictures, **options)
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
            local = value.startswith("#") or re.match(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+$", value)
            fetches = name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
            if (fetches and not local) or name.startswith("on"):
                foreign_tags.append(f"{tag} {name}={value[:60]}")
    markup = re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)
    return foreign_tags + re.findall(r"https?:|//[a-z]|url\((?!#)|@import|<!ENTITY|<!DOCTYPE svg|<\?xml", markup)


def test_the_page_needs_nothing_but_itself(tmp_path):
    html = report(tmp_path)
    assert {"svg", "table", "img", "figure"} <= {tag for tag, _ in Page(html).tags}
    assert foreign(html) == []


def test_a_report_that_is_written_leaves_no_other_file(tmp_path):
    report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "report.html", "run.json"]


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


def test_ids_in_the_page_are_unique(tmp_path):
    ids = [attributes["id"] for _, attributes in Page(report(tmp_path)).tags if "id" in attributes]
    assert len(set(ids)) == len(ids) > 0


def test_references_in_the_page_lead_to_an_id(tmp_path):
    page = Page(report(tmp_path))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {reference.removeprefix("#") for reference in page.attributes("use", "href")} <= ids


def test_titles_of_curves_differ_in_their_ids():
    titles = [*LOSS_CURVES, *ClassSection.curves, *CURVES]
    assert len({re.sub(r"\W+", "-", title.lower()) for title in titles}) == len(titles)


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
    sides = {max(embedded_picture(source).size) for source in sources}
    assert len(sources) == 32
    assert len(sides) == 1
    assert 200 <= sides.pop() <= 420


@pytest.mark.parametrize(
    ("note", "labels", "less"),
    [("a" * 100_001, "b", 100_000), ("a", "bc", 1_000)],
    ids=["a long note", "a further picture"],
)
def test_pictures_have_what_room_the_rest_of_the_page_leaves(tmp_path, monkeypatch, note, labels, less):
    rooms = []

    def embed_all(pictures: list[np.ndarray], room: int) -> list[Embedded]:
        rooms.append(room)
        return [Embedded("data:image/png;base64,", 1, 1)] * len(pictures)

    monkeypatch.setattr(report_module, "embed_all", embed_all)
    write_run(tmp_path, [])
    for remark, names in (("a", "b"), (note, labels)):
        views = {"image": dict.fromkeys(names, noise(4, 6))}
        write_report(tmp_path, None, class_section("a"), "mean IoU", views=views, remarks=[remark])
    page_size = (tmp_path / "report.html").stat().st_size
    assert rooms[0] - rooms[1] == less
    assert 4_000_000 - page_size - 3_000 < rooms[1] < 4_000_000 - 2_000


def test_the_page_is_made_for_phones(tmp_path):
    assert "width=device-width" in Page(report(tmp_path)).attributes("meta", "content")[0]


def test_the_page_is_made_for_dark_rooms(tmp_path):
    assert "prefers-color-scheme: dark" in report(tmp_path)


@pytest.mark.parametrize("text", [*NAMES, "<b>bad</b>: IoU 0.1000", "U-Net on shapes<i>", "32 48", "bf16"])
def test_a_name_a_title_or_a_setting_is_shown_as_text(tmp_path, text):
    assert text in Page(report(tmp_path)).text


def test_the_scores_shown_are_those_of_the_confusion_matrix(tmp_path):
    text = text_line(report(tmp_path))
    assert f"{(90 / 105 + 15 / 30) / 2:.4f} mean IoU" in text  # of the two classes present
    assert f"{105 / 120:.4f} pixel accuracy" in text
    assert f"{90 / 105:.4f} {180 / 195:.4f} {90 / 95:.4f} 0.9000 100" in text
    assert "c: #d n/a n/a n/a n/a 0" in text


def test_the_page_names_the_best_step(tmp_path):
    assert "30 best step" in text_line(report(tmp_path))


def test_the_matrix_shown_has_the_percents_of_its_rows(tmp_path):
    text = text_line(report(tmp_path))
    assert "90.0 10.0 0.0" in text
    assert "25.0 75.0 0.0" in text


def test_the_cells_of_the_matrix_tell_their_pixels(tmp_path):
    html = report(tmp_path)
    strong = re.findall(r'<td class="strong"[^>]*title="([^"]*)"', html)  # white on dark, above 55 percent
    names = ["&lt;script&gt;alert(1)&lt;/script&gt;", "a|b &amp; &#34;c&#34;"]
    assert strong == [f"{names[0]} as {names[0]}: 90 pixels", f"{names[1]} as {names[1]}: 15 pixels"]
    assert f"{names[0]} as {names[1]}: 10 pixels" in html


def test_classes_are_shown_with_their_colors(tmp_path):
    swatches = re.findall(r'class="swatch" style="background:rgb\((\d+), (\d+), (\d+)\)"', report(tmp_path))
    assert [[*map(int, color)] for color in swatches] == class_colors((0, 1, 2)).tolist()


def test_the_most_frequent_confusion_comes_first(tmp_path):
    pairs = text_line(report(tmp_path)).split("Most frequent confusions")[1]
    assert pairs.index(" 10 ") < pairs.index(" 5 ")


def test_the_report_begins_with_its_remarks(tmp_path):
    text = Page(report(tmp_path, pictures={}, remarks=["Only <5> steps were made.", "Second."])).text
    assert text.index("Only <5> steps were made.") < text.index("Best model")
    assert "Second." in text


def test_the_report_says_how_much_was_trained(tmp_path):
    extent = {"training images": "1,234", "minutes since the last start": "3.2"}
    text = text_line(report(tmp_path, pictures={}, extent=extent))
    assert "1,234 training images" in text
    assert "3.2 minutes since the last start" in text


def page_of(folder: Path, best: Evaluation | None = None) -> str:
    """The words of the report of a run whose files have been written, in one line."""
    best = best or Evaluation(30, None, class_scores("ab", torch.tensor([[6, 2], [1, 1]])))
    write_report(folder, best, class_section("ab"), Classes.compared_by, views={})
    return text_line((folder / "report.html").read_text())


def test_a_report_names_its_run_by_the_folder(tmp_path, monkeypatch):
    write_run(tmp_path / "cells-7", [])
    text = page_of(tmp_path / "cells-7")
    assert text.strip().startswith("cells-7 U-Net on shapes<i>, started 2026-01-02")
    monkeypatch.chdir(tmp_path / "cells-7")
    assert page_of(Path()) == text  # the folder that one is in has a name too


def test_a_report_names_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr("os.cpu_count", lambda: 77)
    monkeypatch.setattr("platform.machine", lambda: "z80")
    write_run(tmp_path, [])
    text = page_of(tmp_path)
    assert "host CPUs 77" in text
    assert "architecture z80" in text
    assert "GPUs card 0, card 1" in text


def test_a_report_without_a_log_has_the_scores_of_its_section(tmp_path, monkeypatch):
    means = [Metric("ap50", "AP@0.5", 0.5), Metric("f1", "F1", 0.25), Metric("x", "Mean x", None)]
    monkeypatch.setattr(ClassSection, "metrics", lambda section, scores: means)
    write_run(tmp_path, [])
    text = page_of(tmp_path)
    assert "0.5000 AP@0.5 0.2500 F1 n/a mean x 30 best step" in text


@pytest.mark.parametrize("name", ["num workers", "micro batch size", "encoder"])
def test_a_setting_stands_in_the_report_once(tmp_path, name):
    flags = SETTINGS["flags"] | {"num_workers": None, "micro_batch_size": "auto", "encoder": None}
    settings = SETTINGS | {"flags": flags, "num_workers": 2, "micro_batch_size": 4, "encoder": "a-backbone"}
    rows = [text.strip() for text in Page(report(tmp_path, settings=settings)).text.splitlines()]
    assert rows.count(name) == 1


@pytest.mark.parametrize(
    "row",
    [
        "image size 32 48",
        "crop size -",
        "profile: processes 2",
        "num workers 0",
        "git commit abc",
        "command train.py",
        "credentials left out dataset",
        "epochs 3",
        "seed 0",
        "GPUs none",
    ],
)
def test_a_setting_is_reported_as_it_is_typed(tmp_path, row):
    run = SETTINGS["run"] | {"git_commit": "abc"}
    write_run(tmp_path, [], SETTINGS | {"num_workers": 0, "run": run, "credentials_left_out": ["dataset"]})
    assert row in page_of(tmp_path)


def test_the_identity_of_a_run_is_not_told(tmp_path):
    """It holds no flag of training, nor one that came out otherwise."""
    write_run(tmp_path / "run", [])
    assert "identity" not in page_of(tmp_path / "run").removeprefix(tmp_path.name)


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
        ("images_per_second", (123.456,), " 123 images/s "),
        ("images_per_second", (4, 5), " 4.5 images/s "),
        ("images_per_second", (0,), " 0 images/s "),
        ("peak_flops_percent", (3000, 20, 40), " 40% of the device's peak "),
        ("peak_flops_percent", (20, 60, 25), " 25% of the device's peak "),
        ("peak_flops_percent", (0,), " 0% of the device's peak "),
        ("peak_memory_gb", (5, 8, 6), " 8 GB peak GPU memory "),
        ("peak_memory_gb", (1.5, 3.25, 2), " 3.25 GB peak GPU memory "),
        ("teraflops_per_device", (0.3, 0.002, 0.004), " 4 GFLOP/s of the model, on each device "),
        ("teraflops_per_device", (0.0015,), " 1.5 GFLOP/s "),
        ("teraflops_per_device", (1.5,), " 1.5 TFLOP/s "),
        ("teraflops_per_device", (1,), " 1 TFLOP/s "),
    ],
)
def test_the_speed_is_the_median_of_the_records_and_the_memory_their_peak(tmp_path, name, values, tile):
    records = [{"peak_flops_percent": 1, "teraflops_per_device": 1, name: value} for value in values]
    assert tile in speed_page(tmp_path, *records)


@pytest.mark.parametrize(("processes", "tile"), [(1, " 1 process "), (2, " 2 processes "), (4, " 4 processes ")])
def test_the_report_says_how_many_processes_trained(tmp_path, processes, tile):
    assert tile in speed_page(tmp_path, {"images_per_second": 5}, processes=processes)


@pytest.mark.parametrize("words", ["peak GPU memory", "of the device's peak", "images/s"])
def test_speeds_that_were_not_measured_are_not_shown(tmp_path, words):
    assert words not in speed_page(tmp_path, {"teraflops_per_device": 1.5})


@pytest.mark.parametrize("communication", [20, 0])
def test_the_shares_of_a_step_are_medians(tmp_path, communication):
    records = []
    for data in (60, 9, 3):
        shares = {"data_wait_percent": data, "compute_percent": 80 - data, "communication_percent": communication}
        records.append(shares)
    text = speed_page(tmp_path, *records)
    shares = re.findall(r"(computing|waiting for data|communication) (?:[^\d%]*)([\d.]+) ?%", text)
    assert {name: float(share) for name, share in shares} == {
        "computing": 71,
        "waiting for data": 9,
        "communication": communication,
    }


@pytest.mark.parametrize(
    "records", [[], [{"step": 1, "train/loss": 4.0, "perf/compute_percent": 90.0}]], ids=["no step", "a step"]
)
def test_a_run_that_ended_before_its_first_evaluation_has_a_report(tmp_path, records):
    write_run(tmp_path, records)
    write_report(tmp_path, None, class_section(NAMES), Classes.compared_by, views={})
    text = Page((tmp_path / "report.html").read_text()).text
    assert "None yet: the run ended before its first evaluation." in text
    assert "Confusion matrix" not in text
    assert "bf16" in text


def test_a_run_that_ended_before_its_first_evaluation_has_the_curves_of_its_log(tmp_path):
    write_run(tmp_path, [{"step": 1, "train/loss": 4.0, "train/lr": 0.5}])
    write_report(tmp_path, None, class_section(NAMES), Classes.compared_by, views={})
    html = (tmp_path / "report.html").read_text()
    assert "Loss training 4 " in text_line(html)
    assert "Learning rate learning rate 0.5 " in text_line(html)
    assert "best-step" not in html


def test_the_legend_of_the_page_says_the_last_value(tmp_path):
    assert "Loss training 0.1 validation 0.5" in text_line(report(tmp_path))


CURVE_RECORDS = (
    "train/loss",
    "eval/loss",
    "eval/mean_iou",
    "eval/mean_dice",
    "train/lr",
    "perf/images_per_second",
    "train/grad_norm",
    "perf/data_wait_percent",
    "perf/communication_percent",
)


@pytest.fixture(scope="module")
def curves_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run that has logged 10, 20 and so on under CURVE_RECORDS."""
    folder = tmp_path_factory.mktemp("curves")
    values = {name: 10.0 * number for number, name in enumerate(CURVE_RECORDS, 1)}
    write_run(folder, [{"step": 1000} | values, {"step": 2000} | values])
    page_of(folder, Evaluation(1500, None, class_scores("ab", torch.tensor([[6, 2], [1, 1]]))))
    return (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "legend",
    [
        "Loss training 10 validation 20",
        "Validation scores mean IoU 30 mean Dice 40",
        "Learning rate learning rate 50",
        "Throughput images/s 60",
        "Gradient norm, before clipping gradient norm 70",
        "Percent of a step's time waiting for data 80 communication 90",
    ],
)
def test_a_curve_shows_its_records(curves_page, legend):
    assert legend in text_line(curves_page)


def test_curves_of_loss_and_scores_come_first(curves_page):
    titles = re.findall("<figcaption><h3>(.*?)</h3>", curves_page)
    assert titles[:4] == ["Loss", "Validation scores", "Learning rate", "Throughput"]


def test_the_best_step_is_marked_where_it_is_chosen(curves_page):
    assert re.findall(r'id="([\w-]+)-best-step"', curves_page) == ["loss", "validation-scores"]


@pytest.mark.parametrize(
    ("counts", "errors"),
    [
        (None, []),
        ([[0, 0, 0]], []),
        ([[10, 0, 0]], ["0.0000"]),
        ([[10, 4, 0], [30, 30, 30 * 2**20]], ["0.1000"]),
    ],
)
def test_the_calibration_of_the_best_evaluation_is_shown_where_it_was_counted(tmp_path, counts, errors):
    write_run(tmp_path, [])
    scores = class_scores("ab", torch.tensor([[6, 2], [1, 1]]))
    scores.reliability = None if counts is None else torch.tensor(counts)
    page_of(tmp_path, Evaluation(30, None, scores))
    html = (tmp_path / "report.html").read_text()
    # of ten pixels of confidence 0 four are right, and all of thirty of confidence 1
    assert re.findall("Expected calibration error: <b>(.*?)</b>", html) == errors
    assert html.count('id="calibration-series-0"') == len(errors)


def test_pictures_stand_at_their_titles_in_the_order_in_which_they_are_given(tmp_path):
    views = {"b": {"truth": noise(4, 6), "errors": noise(5, 7)}, "a": {"truth": noise(6, 8), "image": noise(7, 9)}}
    html = report(tmp_path, pictures=views)
    elements = re.findall(r'<h3>(.)</h3>|<img alt="(\w+)" width="(\d+)" height="(\d+)"', html)
    assert elements == [
        ("b", "", "", ""),
        ("", "truth", "6", "4"),
        ("", "errors", "7", "5"),
        ("a", "", "", ""),
        ("", "truth", "8", "6"),
        ("", "image", "9", "7"),
    ]


def test_half_a_character_is_escaped_in_a_page():
    assert page_bytes("a\udcffä") == b"a\\udcff\xc3\xa4"
    assert page_bytes("a\x1b\a\u202e\n\tb") == b"a\\x1b\\x07\\u202e\n\tb"


def test_a_value_that_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError):
        render("calibration.html.jinja")


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
    page = Page((trained_run / "report.html").read_text())
    assert f"{best_record['eval/mean_iou']:.4f}" in page.text
    lines = [identifier for identifier in page.attributes("g", "id") if "-series-" in identifier]
    assert len(lines) >= 4
    assert len(page.attributes("img", "src")) == 4 * 5


def image_labels(folder: Path) -> list[tuple[str, float]]:
    """The images that a run's report shows, with their IoU."""
    text = Page((folder / "report.html").read_text()).text
    return [(name, float(iou)) for name, iou in re.findall(r"(\S+): IoU (\d\.\d+)", text)]


def test_the_worst_and_best_images_have_the_iou_of_their_own_masks(trained_run, tiny_folder):
    predictor = Predictor.from_pretrained(trained_run / "model")
    expected = {}
    for image in (tiny_folder / "val" / "images").iterdir():
        truth = torch.from_numpy(np.asarray(Image.open(tiny_folder / "val" / "masks" / image.name)) // 255).long()
        matrix = confusion_matrix(torch.from_numpy(predictor.mask(image)).long(), truth, 2)
        expected[image.stem] = matrix_scores(matrix)["mean_iou"]
    assert len(set(expected.values())) > 2
    shown = {Path(name).stem: iou for name, iou in image_labels(trained_run)}
    assert shown == pytest.approx(expected, abs=6e-5)  # four digits, divided in float32


def test_the_worst_images_come_first(trained_run):
    scores = [iou for _, iou in image_labels(trained_run)]
    assert scores == sorted(scores)


def test_the_code_in_the_card_runs(trained_run, tiny_folder):
    code = re.search(r"```python\n(.+?)```", (trained_run / "model" / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace("path or Hub id of this model", str(trained_run / "model"))
    image = next((tiny_folder / "val" / "images").iterdir())
    variables: dict = {}
    exec(code.replace("image.png", str(image)), variables)
    assert variables["mask"].shape == (40, 56)


@pytest.fixture(scope="module")
def two_sizes(tiny_folder, tmp_path_factory) -> Path:
    """The data set with two narrower validation images: images of each size are a batch, so two processes have one."""
    folder = tmp_path_factory.mktemp("two_sizes") / "data"
    shutil.copytree(tiny_folder, folder)
    for image in sorted((folder / "val" / "images").iterdir())[1:3]:
        for path in (image, folder / "val" / "masks" / image.name):
            Image.open(path).crop((0, 0, 48, 40)).save(path)
    return folder


@pytest.fixture(scope="module")
def one_and_two(trained_run, two_sizes, tmp_path_factory) -> tuple[Path, Path]:
    """Runs of one and of two processes: a step too small to change a weight, then evaluation and report."""
    folder = tmp_path_factory.mktemp("processes")
    flags = ["--dataset", two_sizes, "--init-from", trained_run / "model", "--learning-rate", "1e-30"]
    flags += ["--max-steps", "1", "--num-workers", "0", "--tracker", "none"]
    assert run_train(folder / "one", *flags).exit_code == 0
    result = launch("train.py", *flags, "--output-dir", folder / "two", profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    return folder / "one", folder / "two"


def test_two_processes_find_the_same_worst_and_best_images(one_and_two):
    one, two = map(image_labels, one_and_two)
    assert one == two
    assert len(one) == 5
    assert len({iou for _, iou in one}) > 1


def test_two_processes_have_the_same_calibration(one_and_two):
    one, two = (records(folder)[-1]["eval/calibration_error"] for folder in one_and_two)
    assert one == two > 0


def test_two_processes_have_the_same_scores_of_images(one_and_two):
    one, two = ((folder / "images.csv").read_text() for folder in one_and_two)
    assert one == two


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
    assert broken == 0
    assert images == 2
    assert curves == 2  # training loss and learning rate; the evaluation's single points have no length
