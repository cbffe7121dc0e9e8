"""review.py: masks that were spoiled are found by a run that has not trained on them, and a list leaves them out.

Modules: train_utils/reporting/review/masks.py, train_utils/reporting/review/page.py,
train_utils/reporting/review/reviewed_run.py, train_utils/reporting/review/calibration.py.
"""

import contextlib
import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from in_process import run_train
from PIL import Image
from volumes import RAS, write_msd, write_nifti

import review
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords, Metadata
from data_utils.targets.classes import ClassReader
from inference import Predictor
from inference.review.agreement import Agreement
from inference.review.areas import IN_MASK, IN_PREDICTION, ComparedArea
from inference.review.temperature import at_temperature
from runtime.errors import DataError, UserError
from runtime.script import print_error
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.embedding import Embedded
from train_utils.reporting.review import calibration, masks, page, reviewed_run
from train_utils.reporting.review.calibration import Calibration, apply_temperature, confidence_counts
from train_utils.reporting.review.masks import (
    Doubt,
    Finding,
    HeldOutImage,
    MaskReview,
    findings_of,
    missing_object,
    worst_first,
)
from train_utils.reporting.review.reviewed_run import ReviewedRun, predicted_examples, read_example
from train_utils.reporting.section import Example
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig


def reviewed(*arguments: str | Path) -> SimpleNamespace:
    """What review.py prints with these arguments, and its exit code."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["review.py", *map(str, arguments)])
        try:
            review.main()
        except UserError as error:
            code = print_error(error)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return SimpleNamespace(code=code, text=out.getvalue(), errors=errors.getvalue())


@pytest.mark.parametrize("flag", ["--runs", "--model", "--output"])
def test_a_path_that_is_empty_is_refused(flag):
    result = reviewed("--runs", "run", flag, "")
    assert result.code == 2
    assert result.errors == f"review.py: error: argument {flag}: it is empty\n"


def test_the_help_says_how_it_is_called():
    assert reviewed("--help").text.startswith("usage: python review.py --runs RUN [RUN ...] [--output DIR]\n")


def test_a_model_that_the_disk_does_not_take_stays_as_it_is(monkeypatch):
    def full_disk(*arguments) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(review, "calibrate_run", full_disk)
    result = reviewed("--runs", "run", "--calibrate")
    assert result.code == 1
    assert result.text == "run: [Errno 28] No space left; its model stays as it is\n"
    assert "no model could be calibrated" in result.errors


def test_the_ten_worst_masks_are_named_and_those_with_problems_counted(monkeypatch, tmp_path):
    reviews = []
    for number in range(12):
        shifts = ["moved", "turned"] if number in (1, 11) else []
        reviews.append(MaskReview(f"{number}.png", number / 100, 0.0, 0.0, [], shifts, None, []))
    runs, written = [], []

    def review_runs(folders: list[Path], dataset: str | None, device: torch.device) -> tuple[list[MaskReview], list]:
        runs.append((folders, dataset))
        return reviews, ["runs/x: it is left out"]

    monkeypatch.setattr(review, "review_runs", review_runs)
    monkeypatch.setattr(review, "write_review", lambda *arguments: written.append(arguments))
    result = reviewed("--runs", "a", "b", "--model", "c/model", "--dataset", "d", "--output", tmp_path)
    lines = result.text.splitlines()
    assert lines[:3] == [
        "runs/x: it is left out",
        "score 0.0000, 0.png: nothing in particular",
        "score 0.0100, 1.png: moved; turned",
    ]
    assert lines[10:] == [
        "score 0.0900, 9.png: nothing in particular",
        f"12 masks reviewed, 2 look wrong; page in {tmp_path / 'review.html'}",
    ]
    assert runs == [([Path("a"), Path("b"), Path("c")], "d")]
    assert written == [(tmp_path, reviews, ["runs/x: it is left out"])]

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(review, "write_review", full_disk)
    result = reviewed("--runs", "a")
    assert result.errors == "review.py: error: --output review cannot be written (No space left); choose another\n"
    assert result.code == 1


def test_runs_without_any_mask_to_review_are_an_error(monkeypatch):
    monkeypatch.setattr(review, "review_runs", lambda *arguments: ([], []))
    result = reviewed("--runs", "a")
    assert result.code == 1
    assert result.text == ""
    assert "no mask could be reviewed" in result.errors


def test_a_run_that_cannot_be_calibrated_is_said_and_the_next_ones_are(monkeypatch, tmp_path):
    written = []

    def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> SimpleNamespace:
        if folder == Path("a"):
            raise DataError("it has no masks")
        return SimpleNamespace(folder=folder, sentence=lambda: f"{folder} is calibrated")

    monkeypatch.setattr(review, "calibrate_run", calibrate_run)
    monkeypatch.setattr(review, "write_calibration", lambda output, calibrations: written.append(len(calibrations)))
    result = reviewed("--runs", "a", "b", "c", "--output", tmp_path, "--calibrate")
    lines = result.text.splitlines()
    assert lines[:3] == ["a: it has no masks; its model stays as it is", "b is calibrated", "c is calibrated"]
    assert result.code == 0
    assert written == [2]

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(review, "write_calibration", full_disk)
    result = reviewed("--runs", "b", "--calibrate")
    assert result.errors == "review.py: error: --output review cannot be written (No space left); choose another\n"


def test_the_mask_of_an_example_is_the_one_that_pictures_show():
    target = object()
    reader = SimpleNamespace(read=lambda record, size, network_size: target, shown_truth=lambda read: [read])
    records = [{"image": np.zeros((4, 6), np.uint8), "target": None, "name": "a"}]
    run = SimpleNamespace(info=SimpleNamespace(val=SimpleNamespace(records=records), reader=reader))
    assert read_example(run, 0).truth == [target]


def test_each_run_is_calibrated_with_the_flags_and_shown_on_one_page(monkeypatch, tmp_path):
    runs, written = [], []

    def calibrate_run(folder: Path, dataset: str | None, device: torch.device) -> SimpleNamespace:
        runs.append((folder, dataset))
        return SimpleNamespace(folder=folder, sentence=lambda: f"{folder} is calibrated")

    def write_calibration(output: Path, calibrations: list[SimpleNamespace]) -> None:
        written.append((output, [calibration.folder for calibration in calibrations]))

    monkeypatch.setattr(review, "calibrate_run", calibrate_run)
    monkeypatch.setattr(review, "write_calibration", write_calibration)
    result = reviewed("--runs", "a", "b", "--dataset", "d", "--output", tmp_path, "--calibrate")
    folders = [Path("a"), Path("b")]
    assert runs == [(folder, "d") for folder in folders]
    assert written == [(tmp_path, folders)]
    lines = ["a is calibrated", "b is calibrated", f"page in {tmp_path / 'calibration.html'}"]
    assert result.text.splitlines() == lines


def test_spoiled_masks_come_first_and_their_list_leaves_them_out_of_training(trained, tiny_folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_folder, data)
    gone = data / "val" / "masks" / "cell_02.png"
    Image.fromarray(np.zeros_like(np.array(Image.open(gone)))).save(gone)
    copy = data / "val" / "images" / "cell_04.png"
    shutil.copyfile(copy, data / "train" / "images" / "cell_07.png")
    result = reviewed("--runs", trained, tmp_path / "nothing", "--dataset", data, "--output", tmp_path / "out")
    assert result.code == 0, result.errors
    assert f"{tmp_path / 'nothing'}: it is no folder of a run; it is left out" in result.text
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 5
    assert rows[0]["image"].endswith("cell_02.png")
    assert rows[0]["runs"] == str(trained)
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    assert scores[0] < 0.5 * scores[1]
    assert "foreground of" in rows[0]["problems"]
    assert "is missing in the mask" in rows[0]["problems"]
    problems = {row["image"][-11:]: row["problems"] for row in rows}
    assert re.search(r"the image is equal to the training image \S*cell_07\.png", problems["cell_04.png"])
    list_file = tmp_path / "out" / "suspicious.txt"
    names = list_file.read_text().splitlines()[1:]
    assert names[0] == rows[0]["image"]
    assert len(names) == sum(bool(row["problems"]) for row in rows)
    _, val = load_records(DataConfig(str(data), exclude=str(list_file)))
    assert len(val) == 5 - len(names)
    assert rows[0]["image"] not in [record["name"] for record in val]
    page = (tmp_path / "out" / "review.html").read_text()
    assert page.count("<img") == 4 * 5
    assert page.index(rows[0]["image"]) < page.index(rows[1]["image"])
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', page) == []


def rows_of(output: Path) -> list[dict]:
    """The rows of a review's table."""
    with open(output / "review.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_volumes_are_reviewed_by_their_worst_slices_and_calibrated(tmp_path):
    data = write_msd(tmp_path / "data", cases=12, shape=(16, 20, 12))
    flags = ["--max-steps", "90", "--base-channels", "4", "--learning-rate", "0.01", "--plan", "none"]
    flags += ["--augment", "none", "--batch-size", "2", "--eval-every", "45"]
    flags += ["--val-fraction", "0.4", "--num-workers", "0", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", data, *flags)
    assert run.exit_code == 0, run.output
    assert reviewed("--runs", run.folder, "--output", tmp_path / "before").code == 0
    before = rows_of(tmp_path / "before")
    assert len(before) == 5
    best = before[-1]["image"]
    label = data / "labelsTr" / f"{best}.nii.gz"
    values = np.asarray(nibabel.load(label).dataobj).copy()
    sizes = (values > 0).sum(axis=(0, 1))
    spoiled = set(np.argsort(-sizes)[:3].tolist())
    values[:, :, list(spoiled)] = 0
    write_nifti(label, values)
    result = reviewed("--runs", run.folder, "--output", tmp_path / "after")
    assert result.code == 0, result.errors
    first, *others = rows_of(tmp_path / "after")
    missing = re.findall(r"slice (\d+): [^;]* is missing in the mask", first["problems"])
    assert first["image"] == best
    assert missing
    assert set(map(int, missing)) <= spoiled
    assert {(row["image"], row["score"]) for row in others} == {(row["image"], row["score"]) for row in before[:-1]}
    page = (tmp_path / "after" / "review.html").read_text()
    shown = re.findall(r"<p>slice (\d+)</p>", page.partition(others[0]["image"])[0])
    assert page.count("<img") == 5 * 3 * 4
    assert set(map(int, shown)) == spoiled
    calibrated = reviewed("--runs", run.folder, "--calibrate", "--output", tmp_path / "calibrated")
    assert calibrated.code == 0, calibrated.errors
    assert json.loads((run.folder / "model" / "config.json").read_text())["temperature"] != 1


def test_each_column_of_the_table_holds_its_number():
    numbers = {"score": 0.25, "area_share": 0.5, "missing": 0.75}
    review = MaskReview("a.png", **numbers, findings=[], shifts=[], equal_to=None, images=[])
    (row,) = csv.DictReader(page.table_text([review]).splitlines())
    assert row["image"] == "a.png"
    assert row["score"] == "0.250000"
    assert row["areas"] == "0.500000"
    assert row["missing"] == "0.750000"
    assert "\r" not in page.table_text([review])


class Watched:
    """A run of two classes whose model has looked at images of which one is damaged."""

    has_volumes = False
    class_names = ("around", "cell")

    def __init__(self, name: str, probabilities: list[np.ndarray]) -> None:
        self.name = name
        self.probabilities = probabilities
        val = SimpleNamespace(bad={2: "cut"}, records=name)
        self.info = SimpleNamespace(train=SimpleNamespace(records=f"training of {name}"), val=Many(val))

    def shown_name(self, index: int) -> str:
        return f"{index}.png"


class Many:
    """Four validation images."""

    def __init__(self, split: SimpleNamespace) -> None:
        self.bad, self.records = split.bad, split.records

    def __len__(self) -> int:
        return 4


def seen(*boxes: tuple[int, int, int, int, float]) -> np.ndarray:
    """Probabilities (2, 20, 30) of a model that sees cells in boxes, each so surely."""
    cell = np.full((20, 30), 0.05, np.float32)
    for top, left, bottom, right, probability in boxes:
        cell[top:bottom, left:right] = probability
    return np.stack([1 - cell, cell])


def test_masks_are_reviewed_by_all_runs_that_have_not_trained_on_them(monkeypatch):
    runs = {
        "a": Watched("a", [seen((2, 2, 10, 12, 0.9)), seen((0, 20, 8, 28, 0.97))]),
        "b": Watched("b", [seen((2, 2, 10, 12, 0.8), (12, 20, 19, 29, 0.99)), seen()]),
    }
    mask = np.zeros((20, 30), np.int64)
    mask[2:10, 2:12] = 1

    def open_run(folder: Path, dataset: str | None, device: torch.device) -> Watched:
        if folder.name == "gone":
            raise UserError("it is no folder of a run")
        assert dataset == "data"
        assert device.type == "cpu"
        return runs[folder.name]

    def predicted(run: Watched, index: int):
        if index == 1:
            raise DataError("1.png: cut")
        yield run.probabilities[index // 3], mask if index == 0 else np.zeros_like(mask)

    monkeypatch.setattr(masks, "open_reviewed_run", open_run)
    monkeypatch.setattr(masks, "predicted_slices", predicted)
    monkeypatch.setattr(Agreement, "probabilities", lambda agreement: np.ones(len(agreement)))
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {"3.png": train} if val == "a" else {})
    to_b = runs["b"].probabilities[0]
    monkeypatch.setattr(masks, "best_shift", lambda seen, mask: (2, -1) if np.array_equal(seen, to_b) else None)

    def reviews_of(*names: str) -> tuple[dict[str, MaskReview], list[str]]:
        found, lines = masks.review_runs([Path(name) for name in names], "data", torch.device("cpu"))
        return {review.name: review for review in found}, lines

    both, lines = reviews_of("gone", "a", "b")
    assert lines == ["gone: it is no folder of a run; it is left out", *["1.png: cut; it is left out"] * 2]
    first, second = reviews_of("a")[0], reviews_of("b")[0]
    assert sorted(both) == ["0.png", "3.png"]
    for name, found in both.items():
        assert found.score == pytest.approx((first[name].score + second[name].score) / 2)
        assert found.area_share == pytest.approx((first[name].area_share + second[name].area_share) / 2)
        places = [(image.run.name, image.number, [*image.slices]) for image in found.images]
        assert places == [("a", int(name[0]), [0]), ("b", int(name[0]), [0])]
    assert first["0.png"].score != second["0.png"].score
    assert first["0.png"].area_share < second["0.png"].area_share
    assert both["0.png"].missing == pytest.approx(0.99 / 2)
    assert both["3.png"].missing == pytest.approx(0.97 / 2)
    assert both["0.png"].findings == []
    assert second["0.png"].findings != []
    assert both["0.png"].shifts == []
    assert len(second["0.png"].shifts) == 1
    (finding,) = both["3.png"].findings
    assert finding.text.startswith("cell of ")
    assert finding.confidence == pytest.approx(0.97)
    assert both["0.png"].equal_to is None
    assert both["3.png"].equal_to == "training of a"
    equal = "the image is equal to the training image training of a"
    assert both["3.png"].problems == [f"{finding.text} (97% sure)", equal]
    monkeypatch.setattr(Watched, "has_volumes", True)
    (in_slice,) = reviews_of("a", "b")[0]["3.png"].findings
    assert in_slice.text == f"slice 0: {finding.text}"


def test_images_behind_one_of_which_nothing_is_known_are_reviewed(monkeypatch):
    run = Watched("a", [seen((2, 2, 10, 12, 0.9))])
    unknown = np.full((20, 30), 255)
    monkeypatch.setattr(masks, "open_reviewed_run", lambda folder, dataset, device: run)
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {})

    def predicted(run: Watched, index: int):
        yield run.probabilities[0], np.zeros_like(unknown) if index else unknown

    monkeypatch.setattr(masks, "predicted_slices", predicted)
    reviews, lines = masks.review_runs([Path("a")], None, torch.device("cpu"))
    assert {review.name for review in reviews} == {"1.png", "3.png"}
    assert lines == []


def test_problems_of_a_mask_are_its_findings_its_shifts_and_an_equal_image():
    findings = [Finding("cell is missing", 0.914), Finding("cell is not seen", 0.75)]
    review = MaskReview("a.png", 0.5, 0.0, 0.0, findings, ["moved", "turned"], "b.png", [])
    assert review.problems == [
        "cell is missing (91% sure)",
        "cell is not seen (75% sure)",
        "moved",
        "turned",
        "the image is equal to the training image b.png",
    ]


def test_a_volume_is_judged_by_all_of_its_worst_slices(monkeypatch):
    run = Watched("a", [seen((2, 2, 10, 12, 0.9)), seen((0, 20, 8, 28, 0.97)), seen((12, 5, 18, 25, 0.99))])
    run.has_volumes = True
    run.info.val.bad = {1: "cut", 2: "cut", 3: "cut"}
    mask = np.zeros((20, 30), np.int64)
    mask[2:10, 2:12] = 1
    monkeypatch.setattr(masks, "open_reviewed_run", lambda folder, dataset, device: run)
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {})
    monkeypatch.setattr(masks, "best_shift", lambda probabilities, mask: (1, -2))
    monkeypatch.setattr(Agreement, "probabilities", lambda agreement: np.ones(len(agreement)))

    def reviews_of(mask: np.ndarray, *numbers: int) -> list[MaskReview]:
        slices = [(run.probabilities[number], mask) for number in numbers]
        monkeypatch.setattr(masks, "predicted_slices", lambda run, index: iter(slices))
        return masks.review_runs([Path("a")], None, torch.device("cpu"))[0]

    ((first,), (second,), (third,)) = (reviews_of(mask, number) for number in range(3))
    (volume,) = reviews_of(mask, 0, 1, 2)
    assert volume.score == pytest.approx((first.score + second.score + third.score) / 3)
    assert volume.area_share == pytest.approx((first.area_share + second.area_share + third.area_share) / 3)
    order = [*volume.images[0].slices]
    assert sorted(order) == [0, 1, 2]
    assert order[2] == 0
    moved = "the mask fits better when it is moved by +1 rows and -2 columns"
    assert volume.shifts == [f"slice {number}: {moved}" for number in order]
    told = [finding.text for finding in (*second.findings, *third.findings)]
    assert len(told) >= 2
    assert first.findings == []
    assert sorted(finding.text.partition(": ")[2] for finding in volume.findings) == sorted(
        text.partition(": ")[2] for text in told
    )
    assert {finding.text.partition(": ")[0] for finding in volume.findings} == {"slice 1", "slice 2"}
    (longer,) = reviews_of(mask, 0, 0, 1, 2)  # of four slices three are looked at
    assert {finding.text.partition(": ")[0] for finding in longer.findings} == {"slice 2", "slice 3"}
    assert reviews_of(np.full_like(mask, 255), 0, 1) == []  # nothing is known of it


def test_a_run_is_reviewed_with_the_data_and_the_classes_that_it_had(monkeypatch, tmp_path):
    settings = RunSettings(
        flags={"dataset": "photos", "val_fraction": 0.25, "unknown": 1},
        identity={"task": "classes", "data set": "40 + 10 images (abc)", "classes": ["a", "b"]},
    )
    configs, opened = [], []
    info = SimpleNamespace(reader=SimpleNamespace(identity=("a", "b")), fingerprint=lambda: "40 + 10 images (abc)")

    def load(config: DataConfig) -> SimpleNamespace:
        configs.append((config.dataset, config.val_fraction))
        return info

    monkeypatch.setattr(reviewed_run, "read_settings", lambda folder: settings)
    monkeypatch.setattr(reviewed_run, "load_dataset_info", load)
    monkeypatch.setattr(reviewed_run.Predictor, "from_pretrained", lambda *arguments: opened.append(arguments))
    for dataset in (None, "elsewhere"):
        run = reviewed_run.open_reviewed_run(tmp_path, dataset, torch.device("cpu"))
        assert run.name == str(tmp_path)
        assert run.info is info
    assert configs == [("photos", 0.25), ("elsewhere", 0.25)]
    assert opened == [(tmp_path / "model", torch.device("cpu"))] * 2
    info.reader.identity = ("a", "c")
    with pytest.raises(DataError, match=r"^the masks have other classes now than in the run$"):
        reviewed_run.open_reviewed_run(tmp_path, None, torch.device("cpu"))
    info.fingerprint = lambda: "39 + 10 images (abd)"
    with pytest.raises(DataError) as caught:
        reviewed_run.open_reviewed_run(tmp_path, None, torch.device("cpu"))
    assert str(caught.value) == (
        "the data set has changed since the run: it is 39 + 10 images (abd), and was 40 + 10 images (abc); which images"
        " the model has not trained on is not known any more"
    )
    del settings.identity["data set"]
    with pytest.raises(DataError, match="and was None; which images the model has not trained on is not known"):
        reviewed_run.open_reviewed_run(tmp_path, None, torch.device("cpu"))


def test_areas_of_disagreement_are_outlined_on_a_reduced_picture(tmp_path, monkeypatch):
    image = np.full((900, 600), 100, np.uint8)
    truth = np.zeros((900, 600), np.uint8)
    truth[500:800] = 255  # nothing is known of it
    pred = np.zeros((900, 600), np.uint8)
    pred[90:390, 60:240] = 1
    pred[600:700, 100:200] = 1
    section = ClassSection(ClassReader(ClassMap(("a", "b"), (0, 1), None)))
    shown = []

    def embedded(pictures: list[np.ndarray], room: int) -> list[Embedded]:
        shown.extend(pictures)
        return [Embedded("", number, 1) for number in range(len(pictures))]

    monkeypatch.setattr(page, "predicted_examples", lambda *arguments: [Example("a", image, truth, pred)])
    monkeypatch.setattr(page, "new_section", lambda info: section)
    monkeypatch.setattr(page, "embed_all", embedded)
    images = [HeldOutImage(SimpleNamespace(name="run", info=None, has_volumes=False), 0, [0])]
    page.write_review(tmp_path, [MaskReview("a", 0.5, 0.0, 0.0, [], [], None, images)], [])
    assert {picture.shape for picture in shown} == {(420, 280, 3)}
    places = re.findall(r'<img alt="(.*?)" width="(\d)"', (tmp_path / "review.html").read_text())
    assert places == [("image", "0"), ("mask", "1"), ("prediction", "2"), ("where they disagree", "3")]
    outlines = [np.argwhere((picture == (255, 221, 0)).all(axis=2)) for picture in shown]
    assert [len(places) > 0 for places in outlines] == [False, False, False, True]
    (top, left), (bottom, right) = outlines[3].min(axis=0), outlines[3].max(axis=0)
    assert 30 < top < 42
    assert 20 < left < 28
    assert 182 < bottom < 195
    assert 112 < right < 122


def test_slices_of_a_volume_are_looked_at_from_below_with_their_masks(monkeypatch):
    labels = np.arange(3 * 4 * 6).reshape(3, 4, 6) % 2
    record = {"image": "image", "target": "label", "name": "case"}
    opened = record, "header of image"
    reader = SimpleNamespace(
        shown_truth=lambda target: target + 5, read_volume=lambda *given: labels if given == opened else None
    )
    records = ListRecords([record])
    records.metadata = Metadata(dims=3)
    info = SimpleNamespace(reader=reader, val=SimpleNamespace(records=records))
    monkeypatch.setattr(reviewed_run, "read_volume_header", lambda image, name: f"header of {image}")
    predictor = SimpleNamespace(slices=lambda image, name: iter([f"{name} {number}" for number in range(3)]))
    found = list(reviewed_run.predicted_slices(ReviewedRun("run", info, predictor), 0))
    assert [probabilities for probabilities, _ in found] == ["case 0", "case 1", "case 2"]
    assert all(np.array_equal(mask, labels[number] + 5) for number, (_, mask) in enumerate(found))


def test_a_model_is_calibrated_on_all_validation_images_that_can_be_read(monkeypatch, tmp_path):
    run = Watched("run", [seen((0, 0, 20, 15, 0.99)), seen((0, 0, 20, 15, 0.9))])
    run.info.val.bad[3] = "cut"
    looked_at, applied = [], []
    truth = np.zeros((20, 30), np.int64)
    truth[:15, :15] = 1

    def predicted(run: Watched, index: int):
        looked_at.append(index)
        yield run.probabilities[index], truth

    monkeypatch.setattr(calibration, "open_reviewed_run", lambda folder, dataset, device: run)
    monkeypatch.setattr(calibration, "predicted_slices", predicted)
    monkeypatch.setattr(calibration, "apply_temperature", lambda *arguments: applied.append(arguments))
    found = calibration.calibrate_run(tmp_path, "data", torch.device("cpu"))
    assert looked_at == [0, 1, 0, 1]
    assert applied == [(tmp_path / "model", found.temperature)]
    assert found.name == "run"
    assert found.temperature > 1.5
    assert found.before.equal(sum(confidence_counts(values, truth) for values in run.probabilities))
    softened = [at_temperature(values, found.temperature) for values in run.probabilities]
    assert found.after.equal(sum(confidence_counts(values, truth) for values in softened))
    truth[:] = 255
    with pytest.raises(DataError, match=r"^no validation image has labeled pixels$"):
        calibration.calibrate_run(tmp_path, "data", torch.device("cpu"))


def test_doubts_are_told_where_the_model_is_sure_and_all_areas_are_counted(monkeypatch):
    areas = [
        ComparedArea(IN_MASK, "cell", 50, 0.9, True, None),
        ComparedArea(IN_PREDICTION, "cell", 50, 0.7, False, "cell is missing"),
        ComparedArea(IN_PREDICTION, "cell", 50, 0.69, False, "cell may be missing"),
        ComparedArea(IN_MASK, "cell", 50, 0.9, False, None),
    ]
    monkeypatch.setattr(masks, "compared_areas", lambda *arguments: iter(areas))
    agreement = Agreement()
    doubts = masks.doubted_areas(np.zeros((2, 4, 6)), np.zeros((4, 6)), ("around", "cell"), agreement, "slice 3: ")
    told = [(doubt.number, doubt.area.probability, doubt.area.text) for doubt in doubts]
    assert told == [(1, 0.7, "slice 3: cell is missing"), (2, 0.69, None), (3, 0.9, None)]
    assert len(agreement) == 4


def test_the_page_shows_forty_masks_and_table_and_list_name_all(tmp_path, monkeypatch):
    picture = np.zeros((4, 6), np.uint8)
    calls = []

    def examples(run: SimpleNamespace, number: int, slices: list[int]) -> list[Example]:
        calls.append((run.name, number, slices))
        return [Example(f"slice {index}", picture, picture, picture) for index in slices]

    section = ClassSection(ClassReader(ClassMap(("a", "b"), (0, 1), None)))
    monkeypatch.setattr(page, "predicted_examples", examples)
    monkeypatch.setattr(page, "new_section", lambda info: section)
    rooms = []
    embed_all = page.embed_all

    def embedded(pictures: list[np.ndarray], room: int) -> list[Embedded]:
        rooms.append((len(pictures), room))
        return embed_all(pictures, room)

    monkeypatch.setattr(page, "embed_all", embedded)
    runs = [SimpleNamespace(name=name, info=None, has_volumes=True) for name in ("runs/a", "runs/b")]
    reviews = []
    for number in range(41):
        shifts = ["moved", "turned"] if number in (3, 40) else []
        images = [HeldOutImage(run, number, [5, 2]) for run in runs]
        reviews.append(MaskReview(f"<{number}>", number / 100, 0.0, 0.0, [], shifts, None, images))
    page.write_review(tmp_path / "new" / "out", reviews, ["a <line>"])
    html = (tmp_path / "new" / "out" / "review.html").read_text()
    assert re.findall(r"<h3>(.*?)</h3>", html)[38:] == ["&lt;38&gt;: score 0.3800", "&lt;39&gt;: score 0.3900"]
    assert calls == [("runs/a", number, [5, 2]) for number in range(40)]
    assert re.findall(r'<img alt="(.*?)"', html)[:4] == ["image", "mask", "prediction", "where they disagree"]
    assert re.findall(r"<p>(slice \d|moved|turned)</p>", html)[6:10] == ["moved", "turned", "slice 5", "slice 2"]
    assert "<p>41 masks, looked at" in html
    assert "looks wrong with 2.</p>" in html
    assert "a &lt;line&gt;" in html
    rows = rows_of(tmp_path / "new" / "out")
    assert len(rows) == 41
    assert rows[40]["problems"] == "moved; turned"
    assert rows[40]["runs"] == "runs/a runs/b"
    assert (tmp_path / "new" / "out" / "suspicious.txt").read_text() == (
        "# images whose masks look wrong, the worst first; take out those that are right, and train with --exclude\n"
        "<3>\n<40>\n"
    )
    ((count, room),) = rooms
    assert count == 40 * 2 * 4
    assert 3_600_000 < room < 4_000_000 - 1_000 * count
    runs[0].has_volumes = False
    page.write_review(tmp_path / "new" / "out", reviews[:1], [])  # over the one before
    assert "<p>slice" not in (tmp_path / "new" / "out" / "review.html").read_text()


@pytest.mark.parametrize(("sides", "coarse_axis"), [([1.0, 0.5, 3.0, 1.0], 1), ([0.5, 1.0, 3.0, 1.0], 0)])
def test_slices_are_shown_as_radiologists_see_them_with_square_pixels(tmp_path, sides, coarse_axis):
    voxels = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    labels = (voxels % 2).astype(np.uint8)
    affine = RAS @ np.diag(sides)
    image = VolumeFile((str(write_nifti(tmp_path / "image.nii", voxels, affine)),))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    records = ListRecords([{"image": image, "target": label, "name": "case"}])
    records.metadata = Metadata(dims=3)
    info = SimpleNamespace(
        reader=ClassReader(ClassMap(("a", "b"), (0, 1), None)), val=SimpleNamespace(records=records, bad={})
    )
    prediction = 1 - labels.transpose(2, 1, 0)
    run = ReviewedRun("run", info, SimpleNamespace(predict_rows=lambda source, name: prediction))
    assert run.has_volumes
    assert run.class_names == ("a", "b")
    upper, lower = predicted_examples(run, 0, [1, 0])
    assert upper.name == "slice 1"
    assert lower.name == "slice 0"
    for number, example in ((1, upper), (0, lower)):
        shown = voxels.transpose(2, 1, 0)[number].repeat(2, axis=coarse_axis)[::-1, ::-1]
        assert np.array_equal(np.squeeze(example.image), shown)
        assert np.array_equal(example.truth, shown % 2)
        assert np.array_equal(example.pred, 1 - shown % 2)


def test_temperatures_multiply_and_divide_all_of_the_last_layer(tmp_path):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    before = [parameter.detach().clone() for parameter in network.head.parameters()]
    network.save_pretrained(tmp_path)
    for temperature in (2.0, 3.0):
        apply_temperature(tmp_path, temperature)
    calibrated = UNet.from_pretrained(tmp_path)
    assert calibrated.config.temperature == 6.0
    assert len(before) == 2
    for parameter, old in zip(calibrated.head.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old / 6)


def test_confidences_are_counted_where_the_mask_is_known():
    probabilities = np.array([[[0.75, 0.25, 0.625]], [[0.25, 0.75, 0.375]]], np.float32)
    counts = confidence_counts(probabilities, np.array([[0, 0, 255]]))
    assert counts.sum(dim=0).tolist() == [2, 1, 1.5 * 2**20]


def test_a_calibration_says_the_error_before_and_after():
    unsure = torch.tensor([[10, 4, 0]])  # of ten pixels four are right, and all of confidence 0
    well_calibrated = torch.tensor([[10, 0, 0]])
    text = Calibration("runs/a", 1.5, unsure, well_calibrated).sentence()
    assert text.startswith("runs/a: temperature 1.500, expected calibration error 0.4000 before and 0.0000 after, on")


def test_the_page_of_a_calibration_shows_each_model_before_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "reliability_curve", lambda counts: counts.tolist())
    monkeypatch.setattr(calibration, "reliability_plot", lambda title, points: f"<svg>{title}: {points}</svg>")
    unsure = torch.tensor([[10, 4, 0]])
    sure = torch.tensor([[10, 0, 0]])
    models = [Calibration("runs/<a>", 1.5, unsure, sure), Calibration("runs/b", 2.0, 2 * unsure, 2 * sure)]
    calibration.write_calibration(tmp_path / "new" / "out", models)
    calibration.write_calibration(tmp_path / "new" / "out", models)  # over the page of an earlier time
    html = (tmp_path / "new" / "out" / "calibration.html").read_text()
    assert re.findall(r"<svg>(.*?)</svg>", html) == [
        "model 1, before: [[10, 4, 0]]",
        "model 1, after: [[10, 0, 0]]",
        "model 2, before: [[20, 8, 0]]",
        "model 2, after: [[20, 0, 0]]",
    ]
    assert re.findall(r"<h3>(.*?)</h3>", html) == ["before", "after"] * 2
    sentences = re.findall(r"<h2>(.*?)</h2>", html)
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "runs/&lt;a&gt;: temperature 1.500",
        "runs/b: temperature 2.000",
    ]


@pytest.mark.parametrize(("are_of_volume", "where"), [(True, "slice 4: "), (False, "")])
def test_a_shift_is_said_with_its_rows_and_columns(monkeypatch, are_of_volume, where):
    monkeypatch.setattr(masks, "best_shift", lambda probabilities, mask: mask)
    slices = [
        SimpleNamespace(number=number, probabilities=None, mask=mask) for number, mask in ((3, None), (4, (0, -1)))
    ]
    line = f"{where}the mask fits better when it is moved by +0 rows and -1 columns"
    assert masks.shift_lines(slices, are_of_volume) == [line]


def test_shifted_masks_come_first_and_others_by_the_product_of_their_places():
    reviews = [
        MaskReview("worst by score", 0.1, 0.0, 0.0, [], [], None, []),
        MaskReview("early in all", 0.2, 0.3, 0.3, [], [], None, []),
        MaskReview("likeliest to lack an object", 0.5, 0.1, 0.5, [], [], None, []),
        MaskReview("worst by areas", 0.4, 0.5, 0.0, [], [], None, []),
        MaskReview("shifted", 0.7, 0.0, 0.0, [], ["moved"], None, []),
        MaskReview("right", 0.8, 0.0, 0.0, [], [], None, []),
        MaskReview("may lack an object", 0.9, 0.0, 0.1, [], [], None, []),
    ]
    # products of places: 18.5, 5.7, 6.9, 21, -, 111.1 and 55.6
    order = [4, 1, 2, 0, 3, 6, 5]
    assert worst_first(reviews) == [reviews[index] for index in order]
    assert worst_first(reviews[::-1]) == worst_first(reviews)


def test_masks_without_areas_stand_behind_all_others_by_areas_and_equal_ones_by_name():
    reviews = [
        MaskReview("no areas", 0.2, 0.0, 0.9, [], [], None, []),
        MaskReview("areas", 0.1, 0.5, 0.5, [], [], None, []),
        MaskReview("less", 0.3, 0.0, 0.6, [], [], None, []),
        MaskReview("least", 0.4, 0.0, 0.0, [], [], None, []),
    ]
    # products of places: 4, 3, 12 and 32
    assert worst_first(reviews) == [reviews[index] for index in (1, 0, 2, 3)]
    b = MaskReview("b", 0.1, 0.0, 0.1, [], [], None, [])
    a = MaskReview("a", 0.2, 0.0, 0.2, [], [], None, [])
    assert worst_first([b, a]) == [a, b]


def test_a_finding_is_as_sure_as_the_model_is_and_as_masks_agree_with_it():
    areas = [
        ComparedArea(IN_PREDICTION, "car", 50, 0.9, False, "car is missing"),
        ComparedArea(IN_PREDICTION, "sign", 50, 0.9, False, "sign is missing"),
        ComparedArea(IN_MASK, "car", 50, 1.0, False, "car is not seen"),
        ComparedArea(IN_PREDICTION, "car", 50, 1.0, False, None),
        ComparedArea(IN_MASK, "car", 50, 0.7, False, "car is hardly seen"),
    ]
    agreements = [0.8, 0.7, 0.9, 0.75, 1.0]
    doubts = [Doubt(number, area) for number, area in enumerate(areas)]
    findings = findings_of(doubts, agreements)
    assert [finding.text for finding in findings] == ["car is not seen", "car is missing", "car is hardly seen"]
    assert [finding.confidence for finding in findings] == pytest.approx([0.9, 0.72, 0.7])
    assert missing_object(doubts, agreements) == pytest.approx(0.75)  # whether or not it is told
    assert missing_object(doubts[:2], agreements) == pytest.approx(0.72)
    assert missing_object(doubts[2:3], agreements) == 0


def test_runs_that_cannot_say_anything_are_a_line_each(trained, tiny_folder, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(tiny_folder, changed)
    for kind in ("images", "masks"):
        (changed / "val" / kind / "cell_01.png").unlink()
    points = tmp_path / "points"
    points.mkdir()
    record = json.loads((trained / "run.json").read_text())
    record["identity"]["task"] = "landmarks"
    (points / "run.json").write_text(json.dumps(record))
    result = reviewed("--model", trained / "model", points / "model", "--dataset", changed, "--output", tmp_path / "o")
    assert result.code == 1
    assert "no mask could be reviewed" in result.errors
    assert f"{trained}: the data set has changed since the run: it is 14 + 4 images" in result.text
    assert f"{points}: its task is landmarks, and only masks of classes are reviewed" in result.text
    assert reviewed().code == 2


def test_a_calibrated_model_has_the_same_masks_and_is_as_sure_as_it_is_right(trained, tiny_folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    data = tmp_path / "data"
    shutil.copytree(tiny_folder, data)
    rng = np.random.default_rng(0)
    for file in (data / "val" / "masks").iterdir():  # a tenth is wrong: no model may be surer than that
        mask = np.array(Image.open(file))
        Image.fromarray(np.where(rng.random(mask.shape) < 0.1, 255 - mask, mask)).save(file)
    image = data / "val" / "images" / "cell_00.png"
    before = Predictor.from_pretrained(run / "model")(image)
    flags = ("--calibrate", "--dataset", data, "--output", tmp_path / "out")
    result = reviewed("--runs", run, tmp_path / "nothing", *flags)
    assert result.code == 0, result.errors
    assert f"{tmp_path / 'nothing'}: it is no folder of a run; its model stays as it is" in result.text
    config = json.loads((run / "model" / "config.json").read_text())
    temperature = config["temperature"]
    after = Predictor.from_pretrained(run / "model")(image)
    expected = at_temperature(before.probabilities, temperature)
    np.testing.assert_allclose(after.probabilities, expected, rtol=0, atol=1e-5)
    assert np.array_equal(after.mask, before.mask)
    assert temperature != 1
    assert f"{run}: temperature {temperature:.3f}, expected calibration error" in result.text
    page = (tmp_path / "out" / "calibration.html").read_text()
    assert page.count("<svg") == 2
    assert "before" in page
    assert "after" in page
    assert (run / "model" / "README.md").read_bytes() == (trained / "model" / "README.md").read_bytes()
    before_and_after = re.search(r"error (\S+) before and (\S+) after", result.text)
    assert float(before_and_after[2]) < float(before_and_after[1])
    again = reviewed("--runs", run, *flags)
    assert again.code == 0
    assert re.search(r"temperature (0\.99\d|1\.00\d)", again.text)
    total = json.loads((run / "model" / "config.json").read_text())["temperature"]
    assert total == pytest.approx(temperature, rel=0.01)
    assert "temperature" not in json.loads((trained / "model" / "config.json").read_text())
    failed = reviewed("--runs", tmp_path / "nothing", *flags)
    assert failed.code == 1
    assert "no model could be calibrated" in failed.errors
