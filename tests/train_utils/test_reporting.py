"""What report, card and pictures say, in numbers and words that are written out.

Modules: train_utils/reporting/judgement.py, train_utils/reporting/classes.py, train_utils/reporting/report.py,
train_utils/reporting/samples.py, train_utils/reporting/hub.py, train_utils/reporting/embedding.py,
train_utils/reporting/model_card.py, train_utils/reporting/rendering.py.
"""

import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.classes import ClassReader
from data_utils.visualize import outlined_overlay, panel
from runtime.errors import ImageError
from tasks.classes import ClassScores
from tasks.confusion import ClassCounts, score_text
from train_utils.evaluation import Evaluation
from train_utils.reporting import report
from train_utils.reporting.classes import ClassSection, confusions, occurring
from train_utils.reporting.embedding import Embedded, embed_all, embed_png
from train_utils.reporting.hub import push_to_hub
from train_utils.reporting.judgement import Facts, judge
from train_utils.reporting.report import write_report
from train_utils.reporting.samples import pictures_of_an_evaluation, sample_panels, save_pictures, worst_and_best
from train_utils.reporting.section import Metric

SOUND = {"steps": 500, "validation_images": 10, "unfound": [], "lacks_encoder": False, "is_generated": False}
NOTHING = "Nothing stands out: nothing was left unfound, and the validation loss has not risen."


def judged(records: list[dict], **changes) -> list[str]:
    return judge(records, Facts(**SOUND | changes, score="eval/mean_iou"))


def series(key: str, values: list[float]) -> list[dict]:
    return [{"step": 10 * number, key: value} for number, value in enumerate(values, 1)]


def test_a_run_of_five_hundred_steps_on_ten_images_is_sound():
    assert judged([]) == [NOTHING]
    (few_steps,) = judged([], steps=499)
    assert few_steps.startswith("Only 499 steps were made, and predictions are poor below 500:")
    (few_images,) = judged([], validation_images=9)
    assert few_images.startswith("The score is measured on 9 images only,")


def test_three_classes_that_were_not_found_are_named():
    (sentence,) = judged([], unfound=["a", "b", "c"])
    assert sentence.startswith("No pixel of a, b, c was found:")
    (sentence,) = judged([], unfound=["a", "b", "c", "d", "e"])
    assert sentence.startswith("No pixel of a, b, c, ")
    assert "d, e" not in sentence


def test_sentences_come_in_the_order_of_their_weight():
    rising = series("eval/mean_iou", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    over = series("train/loss", [0.9, 0.8, 0.7, 0.6]) + series("eval/loss", [0.9, 0.5, 0.7, 0.8])
    changes = {"steps": 1, "unfound": ["a"], "validation_images": 1, "lacks_encoder": True}
    openings = ["Only 1 steps", "No pixel of a", "Over-fitting", "The score is measured on 1 image", "If these are"]
    names = list(changes)
    order = [names[0], names[1], None, names[2], names[3]]
    for number in range(4):
        later = {name: changes[name] for name in order[number:] if name}
        records = over + rising if number <= 2 else rising
        sentences = judged(records, **later)
        assert len(sentences) == 2
        assert sentences[0].startswith(openings[number])
        assert sentences[1].startswith(openings[number + 1])
    first, second = judged(rising, lacks_encoder=True)
    assert first.startswith("If these are photographs")
    assert second.startswith("The validation score was still rising")


@pytest.mark.parametrize(
    ("last", "train_after", "is_said"), [(0.55, 0.6, True), (0.549, 0.6, False), (0.9, 0.75, False), (0.9, 0.74, True)]
)
def test_over_fitting_is_a_validation_loss_a_tenth_above_its_lowest_while_training_goes_on(last, train_after, is_said):
    train = series("train/loss", [1.0, 0.5, train_after, train_after])
    sentences = judged(train + series("eval/loss", [0.9, 0.5, 0.5, last]))
    assert sentences[0].startswith("Over-fitting: since step 20 the validation loss") == is_said
    assert judged(train + series("eval/loss", [0.9, 0.5, last])) == [NOTHING]  # three evaluations say little


@pytest.mark.parametrize(
    ("scores", "is_said"),
    [
        ([0.5] * 6 + [0.5, 0.51], True),
        ([0.5] * 6 + [0.5, 0.509], False),
        ([0.5] * 5 + [0.6, 0.5, 0.605], False),
        ([0.5] * 6 + [0.6, 0.5], True),  # the last quarter are two evaluations
        ([0.5] * 5 + [0.6, 0.61], False),  # seven are too few
    ],
)
def test_a_score_that_gained_a_hundredth_in_the_last_quarter_still_rises(scores, is_said):
    sentences = judged(series("eval/mean_iou", scores))
    assert sentences[0].startswith("The validation score was still rising at the end") == is_said


def test_fewer_than_four_classes_without_pixels_are_rows_of_their_own():
    counts = np.zeros((6, 6), int)
    counts[0, 0] = counts[1, 2] = 5  # the third class is predicted only
    assert occurring(ClassCounts.of(torch.from_numpy(counts))) == ([0, 1, 2, 3, 4, 5], [])
    counts = np.zeros((7, 7), int)
    counts[0, 0] = counts[1, 2] = 5
    assert occurring(ClassCounts.of(torch.from_numpy(counts))) == ([0, 1, 2], [3, 4, 5, 6])


def test_the_eight_most_frequent_confusions_are_listed():
    names = [f"c{index}" for index in range(5)]
    counts = np.arange(25).reshape(5, 5)
    most_frequent = confusions(counts, names)
    assert most_frequent == [
        ("c4", "c3", 23),
        ("c4", "c2", 22),
        ("c4", "c1", 21),
        ("c4", "c0", 20),
        ("c3", "c4", 19),
        ("c3", "c2", 17),
        ("c3", "c1", 16),
        ("c3", "c0", 15),
    ]
    assert confusions(np.diag([3, 4, 5, 6, 7]), names) == []
    equal = np.full((9, 9), 2)
    many = [f"c{index}" for index in range(9)]
    assert confusions(equal, many) == [("c0", name, 2) for name in many[1:]]


def section(*names: str) -> ClassSection:
    return ClassSection(ClassReader(ClassMap(names, tuple(range(len(names))), None)))


def test_the_means_of_a_task_of_classes_have_their_names():
    scores = ClassScores(("a", "b"), torch.tensor([[6, 2], [0, 0]]), torch.zeros(0, 1))
    metrics = section("a", "b").metrics(scores)
    assert [metric.label for metric in metrics] == ["Mean IoU", "Mean Dice", "Pixel accuracy"]
    assert [metric.key for metric in metrics] == ["mean_iou", "mean_dice", "pixel_accuracy"]
    assert metrics[2].value == 0.75
    assert section("a", "b").description() == "Semantic segmentation into 2 classes: a, b."
    assert section("a", "b").label(0.125) == "IoU 0.1250"


def test_pictures_have_the_colors_of_the_masks():
    colors = ((0, 0, 0), (255, 128, 0), (0, 90, 200))
    painted = ClassSection(ClassReader(ClassMap(("a", "b", "c"), colors, None)))
    image = np.full((4, 6), 100, np.uint8)
    truth = np.zeros((4, 6), np.uint8)
    truth[:, 3:] = 1
    pred = np.zeros((4, 6), np.uint8)
    pred[:2] = 2
    picture = panel(image, truth, pred, np.array(colors, np.uint8))
    np.testing.assert_array_equal(painted.panel(image, truth, pred), picture)
    views = painted.views(image, truth, pred)
    np.testing.assert_array_equal(views["truth"], outlined_overlay(image, truth, np.array(colors, np.uint8)))
    np.testing.assert_array_equal(views["prediction"], outlined_overlay(image, pred, np.array(colors, np.uint8)))
    truth[0, 0] = 255
    truth[0, 2:] = 2
    truth[3, 2:] = 2  # where the first class was predicted
    errors = painted.views(image, truth, pred)["errors"].astype(int)
    ignored, wrong, right = errors[0, :3]
    assert np.ptp(ignored) == 0
    assert wrong[0] > wrong[1] + 100
    assert np.ptp(right) == 0
    assert (errors[3, 2:] == wrong).all()


def test_rows_of_the_matrix_for_trackers_are_the_truth(monkeypatch):
    monkeypatch.setattr("train_utils.reporting.classes.matrix_picture", lambda matrix, names: (matrix.tolist(), names))
    scores = ClassScores(("a", "b"), torch.tensor([[6, 2], [1, 4]]), torch.zeros(0, 1))
    assert section("a", "b").draw_pictures(scores) == {"eval/confusion_matrix": ([[6, 2], [1, 4]], ("a", "b"))}


def test_only_classes_that_masks_hold_count_as_not_found():
    matrix = torch.tensor([[5, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4]])
    scores = ClassScores(("a", "b", "c", "d"), matrix, torch.zeros(0, 1))
    assert section("a", "b", "c", "d").unfound(scores) == ["b"]


def test_scores_have_four_decimals():
    assert (score_text(0.5), score_text(None), score_text(0.0), score_text(1 / 3)) == (
        "0.5000",
        "n/a",
        "0.0000",
        "0.3333",
    )


SETTINGS = {
    "flags": {"dataset": "cells", "epochs": 3, "max_steps": None, "image_size": [32, 48], "crop_size": None},
    "profile": {"processes": 1, "mixed_precision": "no"},
    "total_steps": 40,
    "num_workers": 2,
    "identity": {"dims": 2},
    "run": {"started": "2026-01-02", "torch": "2.13.0", "accelerate": "1.15.0", "git_commit": "abc"},
}


def page_of(folder: Path, records: list[dict], settings: dict = SETTINGS, extent: dict | None = None) -> str:
    """The words of a report, in one line."""
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    scores = ClassScores(("a", "b"), torch.tensor([[6, 2], [1, 1]]), torch.zeros(0, 1))
    write_report(folder, Evaluation(1500, None, scores), section("a", "b"), "mean IoU", views={}, extent=extent)
    html = (folder / "report.html").read_text().split("</style>")[1]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)))


def test_the_report_says_how_far_the_run_went_and_which_step_was_best(tmp_path):
    records = [{"step": 1000, "epoch": 1.0, "train/loss": 1.0}, {"step": 2500, "epoch": 2.46, "train/loss": 0.5}]
    text = page_of(tmp_path, records, extent={"training images": "1,234"})
    assert "1,500 best step, of 2,500" in text
    assert "1,234 training images 2.5 epochs done" in text


def test_pictures_have_what_room_the_rest_of_the_page_leaves(tmp_path, monkeypatch):
    rooms = []

    def embed_all(pictures: list[np.ndarray], room: int) -> list[Embedded]:
        rooms.append(room)
        return [Embedded("data:image/png;base64,", 1, 1)] * len(pictures)

    monkeypatch.setattr(report, "embed_all", embed_all)
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "metrics.jsonl").write_text("")
    pixels = np.zeros((4, 6, 3), np.uint8)
    for note, labels in (("a", "b"), ("a" * 100_001, "b"), ("a", "bc")):
        views = {"image": dict.fromkeys(labels, pixels)}
        write_report(tmp_path, None, section("a"), "mean IoU", views=views, speed_notes=[note])
    page_size = (tmp_path / "report.html").stat().st_size
    assert rooms[0] - rooms[1] == 100_000
    assert rooms[0] - rooms[2] == 1_000
    assert 4_000_000 - page_size - 3_000 < rooms[2] < 4_000_000 - 2_000


def test_the_speed_of_one_process_is_told_in_its_unit(tmp_path):
    speed = {"perf/images_per_second": 123.456, "perf/teraflops_per_device": 1.5}
    text = page_of(tmp_path, [{"step": 1, **speed}])
    assert "123 images/s" in text
    assert "1.5 TFLOP/s" in text
    assert "1 process " in text
    assert "peak GPU memory" not in text
    assert "of the device's peak" not in text
    text = page_of(tmp_path, [{"step": 1, "perf/teraflops_per_device": 0.0015}])
    assert "1.5 GFLOP/s" in text
    assert "images/s" not in text
    assert "1 TFLOP/s" in page_of(tmp_path, [{"step": 1, "perf/teraflops_per_device": 1.0}])


def test_the_speed_of_several_processes_is_the_median_and_their_memory_the_peak(tmp_path):
    records = []
    for step, (rate, peak, memory) in enumerate([(10, 20.0, 1.5), (30, 60.0, 3.25), (20, 25.0, 2.0)], 1):
        speed = {"images_per_second": rate, "peak_flops_percent": peak, "peak_memory_gb": memory}
        records.append({"step": step} | {f"perf/{name}": value for name, value in speed.items()})
    settings = SETTINGS | {"profile": {"processes": 4, "mixed_precision": "no"}}
    text = page_of(tmp_path, records, settings)
    assert "20 images/s" in text
    assert "25% of the device's peak" in text
    assert "3.25 GB peak GPU memory" in text
    assert "4 processes" in text


def test_settings_are_told_as_they_are_typed(tmp_path):
    text = page_of(tmp_path, [])
    for row in (
        "image size 32 48",
        "crop size -",
        "profile: processes 1",
        "num workers 2",
        "git commit abc",
        "epochs 3",
        "GPUs none",
    ):
        assert row in text, row
    assert "identity" not in text  # no flag of training, nor one that came out otherwise
    flags = SETTINGS["flags"] | {"max_steps": 40}
    text = page_of(tmp_path, [], SETTINGS | {"flags": flags})
    assert "max steps 40" in text
    assert "epochs 3" not in text


def test_a_report_names_its_run_its_machine_and_scores_as_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr("os.cpu_count", lambda: 77)
    monkeypatch.setattr("platform.machine", lambda: "z80")
    means = [Metric("ap50", "AP@0.5", 0.5), Metric("f1", "F1", 0.25), Metric("x", "Mean x", None)]
    monkeypatch.setattr(ClassSection, "metrics", lambda section, scores: means)
    (tmp_path / "cells-7").mkdir()
    text = page_of(tmp_path / "cells-7", [])
    assert text.strip().startswith("cells-7 U-Net on cells, started 2026-01-02")
    monkeypatch.chdir(tmp_path / "cells-7")
    assert page_of(Path(), []) == text  # the folder that one is in has a name too
    assert "0.5000 AP@0.5 0.2500 F1 n/a mean x 1,500 best step, of 1,500" in text  # somebody has removed the log
    assert "host CPUs 77" in text
    assert "architecture z80" in text
    assert "GPUs card 0, card 1" in text
    assert "epochs done" not in text


def test_curves_are_these_and_the_best_step_is_marked_where_it_is_chosen(tmp_path):
    names = ("train/loss", "eval/loss", "eval/mean_iou", "eval/mean_dice", "train/lr", "perf/images_per_second")
    names += ("train/grad_norm", "perf/data_wait_percent", "perf/communication_percent")
    values = {name: 10.0 * (number + 1) for number, name in enumerate(names)}
    text = page_of(tmp_path, [{"step": 1000} | values, {"step": 2000} | values])
    for legend in (
        "Loss training 10 validation 20",
        "Validation scores mean IoU 30 mean Dice 40",
        "Learning rate learning rate 50",
        "Throughput images/s 60",
        "Gradient norm, before clipping gradient norm 70",
        "Percent of a step's time waiting for data 80 communication 90",
    ):
        assert legend in text
    html = (tmp_path / "report.html").read_text()
    titles = re.findall("<figcaption><h3>(.*?)</h3>", html)
    assert titles[:4] == ["Loss", "Validation scores", "Learning rate", "Throughput"]
    assert re.findall(r'id="([\w-]+)-best-step"', html) == ["loss", "validation-scores"]


@pytest.mark.parametrize(
    ("counts", "is_shown"), [(None, False), ([[0, 0, 0]], False), ([[10, 4, 0], [30, 30, 30 * 2**20]], True)]
)
def test_the_calibration_of_the_best_evaluation_is_shown_where_it_was_counted(tmp_path, counts, is_shown):
    (tmp_path / "run.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "metrics.jsonl").write_text("")
    scores = ClassScores(("a", "b"), torch.tensor([[6, 2], [1, 1]]), torch.zeros(0, 1))
    scores.reliability = None if counts is None else torch.tensor(counts)
    write_report(tmp_path, Evaluation(30, None, scores), section("a", "b"), "mean IoU", views={})
    html = (tmp_path / "report.html").read_text()
    # of ten pixels of confidence 0 four are right, and all of thirty of confidence 1
    assert ("Expected calibration error: <b>0.1000</b>" in html) is is_shown
    assert ('id="calibration-series-0"' in html) is is_shown


def data_set(images: int, dims: int = 2, bad: tuple[int, ...] = ()) -> DatasetInfo:
    """Grey images of which the n-th is n all over; their masks hold 0 and 1."""
    mask = np.zeros((4, 6), np.uint8)
    mask[:, 3:] = 1
    records = []
    for index in range(images):
        image = np.full((4, 6), index, np.uint8)
        records.append({"image": image, "target": Image.fromarray(mask), "name": f"i{index}"})
    listed_records = ListRecords(records)
    listed_records.metadata = Metadata(dims=dims)
    split = Split(listed_records, np.full((images, 2), (4, 6)), dict.fromkeys(bad, "cut"))
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), None), (1, 1))
    config = DataConfig(on_bad_sample="skip")
    return DatasetInfo(config, split, split, reader, Normalization((1.0,), (1.0,), ("uint8",)))


def predictor_of(broken: str = "") -> SimpleNamespace:
    def predict_rows(source: object, name: str) -> np.ndarray:
        if name == broken:
            raise ImageError(f"{name}: cut")
        return np.zeros((4, 6), np.uint8)

    return SimpleNamespace(predict_rows=predict_rows)


def test_eight_pictures_are_spread_from_the_first_image_to_the_last():
    panels = sample_panels(data_set(22), predictor_of(), section("a", "b"))
    assert list(panels) == ["i0", "i3", "i6", "i9", "i12", "i15", "i18", "i21"]
    assert list(sample_panels(data_set(3), predictor_of(), section("a", "b"))) == ["i0", "i1", "i2"]
    assert list(sample_panels(data_set(22), predictor_of(), section("a", "b"), 2)) == ["i0", "i21"]
    predicted = []
    predictor = SimpleNamespace(predict_rows=lambda source, name: predicted.append(name) or np.zeros((4, 6), np.uint8))
    sample_panels(data_set(3), predictor, section("a", "b"))
    assert predicted == ["i0", "i1", "i2"]  # each once


def test_images_that_cannot_be_read_have_no_picture():
    panels = sample_panels(data_set(4, bad=(0, 2)), predictor_of("i3"), section("a", "b"))
    assert list(panels) == ["i1"]
    assert list(sample_panels(data_set(4), predictor_of("i1"), section("a", "b"))) == ["i0", "i2", "i3"]


@pytest.mark.parametrize(("count", "shown"), [(8, "5 3 0 4 1"), (6, "5 3 0 4 1"), (5, "5 0 4 1"), (3, "4 1")])
def test_the_worst_images_come_first_and_those_that_cannot_be_read_are_left_out(count, shown):
    comparisons = [0.5, 0.9, 0.1, 0.4, 0.8, 0.2, 0.0]
    info = data_set(7, bad=(2,))
    views = worst_and_best(info, predictor_of("i6"), section("a", "b"), comparisons, count)
    assert list(views) == [f"i{index}: IoU {comparisons[int(index)]:.4f}" for index in shown.split()]


def test_of_equal_images_the_first_and_the_last_are_shown():
    views = worst_and_best(data_set(40), predictor_of(), section("a", "b"), [0.5] * 40, 4)
    assert [title.partition(":")[0] for title in views] == ["i0", "i1", "i38", "i39"]


def test_eight_images_or_two_volumes_are_shown_at_each_evaluation():
    assert pictures_of_an_evaluation(data_set(3)) == 8
    assert pictures_of_an_evaluation(data_set(3, dims=3)) == 2


def test_pictures_are_named_after_their_images_and_stay_in_their_folder(tmp_path):
    picture = np.zeros((4, 6, 3), np.uint8)
    names = ("sub/b.PNG", "a.tif", "../c", "/d.jpg", "e" * 200 + "d" * 100, "..", "1.2.840", "1.2.841", "f\x1bg")
    save_pictures(tmp_path / "shown", dict.fromkeys(names, picture))
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    expected_names = [
        "a.png",
        "c.png",
        "d.png",
        f"{'e' * 200}.png",
        "image.png",
        "sub/b.png",
        "1.2.840.png",
        "1.2.841.png",
    ]
    expected_names.append("f\\x1bg.png")  # which a terminal prints
    assert files == sorted(f"shown/{name}" for name in expected_names)


def test_pictures_that_never_fit_are_eight_pixels_wide():
    pixels = np.random.default_rng(0).integers(0, 256, (900, 600, 3), dtype=np.uint8)
    (picture,) = embed_all([pixels], 10)
    assert (picture.width, picture.height) == (5, 8)
    assert (embed_png(pixels).width, embed_png(pixels).height) == (600, 900)
    (first, second) = embed_all([pixels[:300, :300], pixels[:8, :8]], 10**6)
    assert (first.width, second.width) == (300, 8)  # none is enlarged


def test_a_model_is_published_with_its_folder(tmp_path, monkeypatch, capsys):
    assert push_to_hub(tmp_path, None) is True
    assert capsys.readouterr().out == ""
    calls = []

    class Url(str):
        repo_id = "me/cells"

    def create(repo_id: str, exist_ok: bool) -> Url:
        assert exist_ok, "a second upload would be refused"
        return Url(f"https://hub/{repo_id}")

    monkeypatch.setattr(huggingface_hub, "create_repo", create)
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **arguments: calls.append(arguments))
    assert push_to_hub(tmp_path, "cells") is True
    message = "U-Net and its model card"
    assert calls == [{"repo_id": "me/cells", "folder_path": tmp_path, "commit_message": message}]
    assert capsys.readouterr().out == "model published: https://hub/cells\n"

    def refuse(**_: object) -> None:
        raise OSError("no network " + "x" * 300)

    monkeypatch.setattr(huggingface_hub, "upload_folder", refuse)
    assert push_to_hub(tmp_path, "cells") is False
    line = f"could not upload to cells (OSError: no network {'x' * 189}); to try again: hf upload cells {tmp_path}\n"
    assert capsys.readouterr().out == line
