"""review.py: masks that were spoiled are found by a run that has not trained on them, and a list leaves them out."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from support.in_process import run_main, run_train
from support.reviews import mask_review
from support.volumes import write_msd, write_nifti

import review
from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from inference import Predictor
from train_utils.review.reviews import MaskReview


def run_review(*arguments: str | Path) -> subprocess.CompletedProcess:
    """What review.py prints with these arguments, and its exit code."""
    return run_main(review.main, "review.py", *arguments)


def table_rows(output: Path) -> list[dict]:
    """The rows of a review's table."""
    with open(output / "review.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("flag", ["--runs", "--output"])
def test_a_path_that_is_empty_is_refused(flag):
    result = run_review("--runs", "run", flag, "")
    assert result.returncode == 2
    assert f"argument {flag}: '' is not a " in result.stderr


@pytest.mark.parametrize("flags", [["--output", "review"], ["--overwrite"]])
def test_a_calibration_takes_no_flag_of_a_review(flags):
    result = run_review("--runs", "run", "--calibrate", *flags)
    assert result.returncode == 2
    assert "--output and --overwrite are for the review of masks" in result.stderr


REVIEWS = [mask_review(f"{number}.png", number / 100, shifted=number in (1, 11)) for number in range(12)]


@pytest.fixture
def stand_in(monkeypatch) -> SimpleNamespace:
    """Reviews that take no time: which `runs` were asked for, and what was `written`."""
    calls = SimpleNamespace(runs=[], written=[])

    def review_runs(folders: list[Path], dataset: str | None, device: torch.device) -> tuple[list[MaskReview], list]:
        calls.runs.append((folders, dataset))
        return REVIEWS, ["runs/x: it is left out"]

    monkeypatch.setattr(review, "review_runs", review_runs)
    monkeypatch.setattr(review, "write_review", lambda *arguments: calls.written.append(arguments))
    return calls


@pytest.mark.parametrize("name", ["review.csv", "suspicious.txt"])
def test_files_that_are_there_are_replaced_only_if_asked(stand_in, tmp_path, name):
    (tmp_path / name).write_text("mine")
    result = run_review("--runs", "a", "--output", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path / name} is there already; choose another, or give --overwrite" in result.stderr
    assert not stand_in.written
    run_review("--runs", "a", "--output", tmp_path, "--overwrite")
    assert stand_in.written


def test_a_folder_that_cannot_be_made_is_refused_before_masks_are_reviewed(stand_in, tmp_path):
    (tmp_path / "file").touch()
    result = run_review("--runs", "a", "--output", tmp_path / "file")
    assert result.returncode == 1
    assert "file: cannot be written (File exists)" in result.stderr
    assert not stand_in.runs


def test_the_ten_worst_masks_are_named_and_those_with_problems_counted(stand_in, tmp_path):
    failure, *masks, last_line = run_review("--runs", "a", "--output", tmp_path).stdout.splitlines()
    assert failure == "runs/x: it is left out"
    moved = "the mask fits better when it is moved by +5 rows and -4 columns"
    assert masks[:2] == ["score 0.0000, 0.png: nothing in particular", f"score 0.0100, 1.png: {moved}"]
    assert masks[9:] == ["score 0.0900, 9.png: nothing in particular"]
    assert last_line == f"12 masks reviewed, 2 look wrong; page in {tmp_path / 'review.html'}"


@pytest.fixture(scope="module")
def spoiled(trained_run, tiny_folder, tmp_path_factory) -> SimpleNamespace:
    """The review of a data set in which the mask of cell_02 is empty, and cell_04 stands among the training images.

    Returns `data`, its folder, `output`, the folder of the review, its `result`, and `rows`, those of its table.
    """
    folder = tmp_path_factory.mktemp("spoiled")
    data = folder / "data"
    shutil.copytree(tiny_folder, data)
    mask = data / "val" / "masks" / "cell_02.png"
    Image.fromarray(np.zeros_like(np.array(Image.open(mask)))).save(mask)
    shutil.copyfile(data / "val" / "images" / "cell_04.png", data / "train" / "images" / "cell_07.png")
    result = run_review("--runs", trained_run, folder / "nothing", "--dataset", data, "--output", folder / "out")
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(data=data, output=folder / "out", result=result, rows=table_rows(folder / "out"))


def test_a_spoiled_mask_is_the_worst_by_far_and_an_image_that_is_trained_on_is_named(spoiled, trained_run):
    scores = [float(row["score"]) for row in spoiled.rows]
    assert len(spoiled.rows) == 5
    assert spoiled.rows[0]["image"].endswith("cell_02.png")
    assert scores == sorted(scores)
    assert scores[0] < 0.5 * scores[1]
    assert f"{spoiled.output.parent / 'nothing'}: it is no folder of a run; it is left out" in spoiled.result.stdout
    problems = spoiled.rows[0]["problems"]
    assert "foreground of" in problems
    assert "is missing in the mask" in problems
    assert spoiled.rows[0]["runs"] == str(trained_run)
    problems = {row["image"][-11:]: row["problems"] for row in spoiled.rows}
    assert re.search(r"the image is equal to the training image \S*cell_07\.png", problems["cell_04.png"])


def test_the_list_of_a_review_leaves_its_masks_out_of_training(spoiled):
    list_file = spoiled.output / "suspicious.txt"
    names = list_file.read_text().splitlines()[1:]
    _, val = load_records(DataConfig(str(spoiled.data), exclude=str(list_file)))
    assert names[0] == spoiled.rows[0]["image"]
    assert len(names) == sum(bool(row["problems"]) for row in spoiled.rows)
    assert len(val) == 5 - len(names)
    assert names[0] not in [record["name"] for record in val]


def test_the_page_of_a_review_holds_all_pictures_from_the_worst_mask_on(spoiled):
    page = (spoiled.output / "review.html").read_text()
    assert page.count("<img") == 4 * 5
    assert page.index(spoiled.rows[0]["image"]) < page.index(spoiled.rows[1]["image"])
    assert re.findall(r'(?:src|href)="(?!data:image/|#)', page) == []


@pytest.fixture(scope="module")
def volumes(tmp_path_factory) -> SimpleNamespace:
    """Reviews of a data set of volumes, `before` and `after` three slices of one mask were emptied.

    Returns the folder of the `run`, the rows of both tables, the `page` after, the `name` of the volume, and the
    numbers of its `slices`, the three that have held most.
    """
    folder = tmp_path_factory.mktemp("volumes")
    data = write_msd(folder / "data", cases=12, shape=(16, 20, 12))
    flags = ["--max-steps", "90", "--base-channels", "4", "--learning-rate", "0.01", "--plan", "none"]
    flags += ["--augment", "none", "--batch-size", "2", "--eval-every", "45"]
    flags += ["--val-fraction", "0.4", "--num-workers", "0", "--tracker", "none"]
    run = run_train(folder / "run", "--dataset", data, *flags)
    assert run.exit_code == 0, run.output
    assert run_review("--runs", run.folder, "--output", folder / "before").returncode == 0
    before = table_rows(folder / "before")
    best = before[-1]["image"]
    label = data / "labelsTr" / f"{best}.nii.gz"
    values = np.asarray(nibabel.load(label).dataobj).copy()
    sizes = (values > 0).sum(axis=(0, 1))
    slices = np.argsort(-sizes)[:3].tolist()
    values[:, :, slices] = 0
    write_nifti(label, values)
    result = run_review("--runs", run.folder, "--output", folder / "after")
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(
        run=run.folder,
        before=before,
        after=table_rows(folder / "after"),
        page=(folder / "after" / "review.html").read_text(),
        name=best,
        slices={*slices},
    )


def test_a_spoiled_volume_comes_first_and_shows_the_slices_that_lack_an_object(volumes):
    first = volumes.after[0]
    missing = re.findall(r"slice (\d+): [^;]* is missing in the mask", first["problems"])
    assert first["image"] == volumes.name
    assert missing
    assert set(map(int, missing)) <= volumes.slices
    first, _, _ = volumes.page.partition(volumes.after[1]["image"])
    assert volumes.page.count("<img") == 5 * 3 * 4
    assert set(map(int, re.findall(r"<p>slice (\d+)</p>", first))) == volumes.slices


def test_a_poor_model_is_said_to_contradict_right_masks(trained_run, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run")
    line = f"{run}: its mean IoU is 0.40, and below 0.6 a model contradicts right masks too"
    for score, is_said in ((0.4, True), (0.6, False)):
        (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "eval/mean_iou": score}) + "\n")
        result = run_review("--runs", run, "--output", tmp_path / "out", "--overwrite")
        assert (line in result.stdout) is is_said


def recorded_temperature(run: Path) -> float:
    """The temperature that config.json of a run's model records."""
    return json.loads((run / "model" / "config.json").read_text())["temperature"]


def test_runs_that_cannot_say_anything_are_a_line_each(trained_run, tiny_folder, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(tiny_folder, changed)
    for kind in ("images", "masks"):
        (changed / "val" / kind / "cell_01.png").unlink()
    points = tmp_path / "points"
    points.mkdir()
    record = json.loads((trained_run / "run.json").read_text())
    record["identity"]["task"] = "landmarks"
    (points / "run.json").write_text(json.dumps(record))
    result = run_review("--runs", trained_run, points, "--dataset", changed, "--output", tmp_path / "out")
    assert result.returncode == 1
    assert "no mask could be reviewed" in result.stderr
    assert f"{trained_run}: the data set has changed since the run: it is 14 + 4 images" in result.stdout
    assert f"{points}: its task is landmarks, and only masks of classes are reviewed" in result.stdout


def test_a_run_of_another_data_set_is_left_out(trained_run, tiny_folder, tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(trained_run, run)
    shutil.copytree(tiny_folder, data)
    record = json.loads((run / "run.json").read_text())
    record["flags"]["dataset"] = str(data)
    (run / "run.json").write_text(json.dumps(record))
    result = run_review("--runs", trained_run, run, "--output", tmp_path / "out")
    assert f"{run}: it has trained on {data}, and {trained_run} on {tiny_folder}" in result.stdout
    assert len(table_rows(tmp_path / "out")) == 5


def test_a_run_of_other_classes_is_refused(trained_run, tiny_folder, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    record = json.loads((trained_run / "run.json").read_text())
    record["identity"]["classes"] = ["a"]
    (run / "run.json").write_text(json.dumps(record))
    result = run_review("--runs", run, "--dataset", tiny_folder, "--output", tmp_path / "out")
    assert f"{run}: the masks have other classes now than in the run; it is left out" in result.stdout


@pytest.fixture(scope="module")
def noisy_data(tiny_folder, tmp_path_factory) -> Path:
    """The tiny data set with a tenth of each validation mask wrong: no model may be surer than that."""
    data = tmp_path_factory.mktemp("noisy") / "data"
    shutil.copytree(tiny_folder, data)
    rng = np.random.default_rng(0)
    for file in (data / "val" / "masks").iterdir():
        mask = np.array(Image.open(file))
        Image.fromarray(np.where(rng.random(mask.shape) < 0.1, 255 - mask, mask)).save(file)
    return data


@pytest.fixture(scope="module")
def calibrated(trained_run, noisy_data, tmp_path_factory) -> SimpleNamespace:
    """A copy of the trained run that is calibrated on noisy masks: `run`, `result` and `temperature`."""
    folder = tmp_path_factory.mktemp("calibrated")
    run = folder / "run"
    shutil.copytree(trained_run, run)
    result = run_review("--runs", run, folder / "nothing", "--calibrate", "--dataset", noisy_data)
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(run=run, result=result, temperature=recorded_temperature(run))


def test_a_calibrated_model_has_the_same_masks_by_softened_probabilities(calibrated, trained_run, noisy_data):
    image = noisy_data / "val" / "images" / "cell_00.png"
    before = Predictor.from_pretrained(trained_run / "model")(image)
    after = Predictor.from_pretrained(calibrated.run / "model")(image)
    powers = before.probabilities ** (1 / calibrated.temperature)
    np.testing.assert_allclose(after.probabilities, powers / powers.sum(axis=0), rtol=0, atol=1e-5)
    assert np.array_equal(after.mask, before.mask)
    assert calibrated.temperature != 1


def test_a_calibration_prints_its_temperature_and_lowers_the_error(calibrated):
    text = calibrated.result.stdout
    assert f"{calibrated.run}: temperature {calibrated.temperature:.3f}, expected calibration error" in text
    before, after = re.search(r"error (\S+) before and (\S+) after", text).groups()
    assert float(after) < float(before)
    assert f"{calibrated.run.parent / 'nothing'}: it is no folder of a run; its model stays as it is" in text


def test_a_run_of_volumes_is_calibrated(volumes, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(volumes.run, run)
    result = run_review("--runs", run, "--calibrate")
    assert result.returncode == 0, result.stderr
    assert recorded_temperature(run) != 1
