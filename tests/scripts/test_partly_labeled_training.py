"""A run on images that are labeled for some classes only: on one and two processes, resumed, and in its report."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.in_process import Run, in_float64, run_train
from support.launches import PROGRAMS, TINY, launch, predict
from support.run_equality import check_same_columns
from support.run_files import records

from runtime.errors import CheckpointError

CLASSES = "0=background,1=red,2=green,3=blue"
FLAGS = [*TINY, "--classes", CLASSES, "--tracker", "none", "--log-every", "1", "--batch-size", "3"]
FLAGS += ["--schedule", "constant", "--learning-rate", "0.01", "--crop-size", "16", "24", "--class-weights", "auto"]


def write_data(folder: Path) -> Path:
    """Pictures with a box of each class, whose masks show what their rows name; none for validation names blue."""
    rng = np.random.default_rng(0)
    rows = ["image,classes"]
    for split, count, labels in (("train", 7, [(1, 2, 3), (1,), (2, 3)]), ("val", 4, [(1, 2), (1,), (2,), ()])):
        for index in range(count):
            image = rng.integers(0, 80, (20, 32, 3), dtype=np.uint8)
            mask = np.zeros((20, 32), np.uint8)
            for value in (1, 2, 3):
                box = np.s_[2 : 2 + rng.integers(8, 16), 10 * value - 10 : 10 * value]
                image[box][..., value - 1] += 150
                mask[box] = value
            labeled = labels[index % len(labels)]
            mask[~np.isin(mask, labeled)] = 0
            for kind, pixels in (("images", image), ("masks", mask)):
                file = folder / split / kind / f"{index}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
            rows.append(f"{split}/images/{index}.png," + ";".join(map(str, labeled)))
    (folder / "classes.csv").write_text("\n".join(rows))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("partly"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six steps with two evaluations."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    flags = ["--max-steps", "6", "--eval-every", "3", "--checkpoint-every", "3"]
    run = run_train(output, "--dataset", data, *FLAGS, *flags)
    assert run.exit_code == 0, run.output
    return run


def test_run_learns_of_images_that_are_labeled_in_part_and_names_classes_that_have_no_score(whole):
    losses = whole.values("train/loss")
    assert losses[-1] < losses[0]
    assert min(whole.values("eval/iou/red")) >= 0
    assert "no validation image is labeled for blue, which cannot be scored" in whole.output
    assert whole.values("eval/iou/blue") == [None, None]
    report = (whole.folder / "report.html").read_text()
    assert "<p>No validation image is labeled for all classes.</p>" in report
    for page in (report, (whole.folder / "model" / "README.md").read_text()):
        assert "No image is labeled for background, blue" in page


def test_model_of_a_run_is_one_of_plain_classes(whole, data, tmp_path):
    result = predict(whole.folder / "model", [data / "val" / "images"], tmp_path, "--truth", data / "val" / "masks")
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("*.png"))) == 4, result.stderr


def resume(data: Path, whole: Run, output: Path, steps: int) -> Run:
    """The run that goes on from the third step."""
    checkpoint = whole.folder / "checkpoints" / "step-00000003"
    flags = ["--max-steps", str(steps), "--eval-every", "3", "--checkpoint-every", "3", "--resume", checkpoint]
    return run_train(output, "--dataset", data, *FLAGS, *flags)


def test_resumed_run_goes_on_as_if_it_had_never_stopped(data, whole, tmp_path):
    resumed = resume(data, whole, tmp_path / "run", 6)
    assert resumed.values("train/loss") == whole.values("train/loss")[3:]
    assert resumed.values("eval/mean_iou") == whole.values("eval/mean_iou")[1:]


def test_run_is_not_resumed_with_other_labels(data, whole, tmp_path):
    relabeled = Path(shutil.copytree(data, tmp_path / "data"))
    table = relabeled / "classes.csv"
    table.write_text(table.read_text().replace("0.png,1;2;3", "0.png,1"))
    with pytest.raises(CheckpointError, match="content of the data set"):
        resume(relabeled, whole, tmp_path / "run", 9)


def test_two_processes_make_the_steps_of_one(data, tmp_path):
    flags = [*FLAGS, "--max-steps", "2", "--micro-batch-size", "1"]
    arguments = ["train.py", "--dataset", data, "--output-dir", tmp_path / "two", *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    with in_float64():
        one = run_train(tmp_path / "one", "--dataset", data, *flags)
    columns = ("train/loss", "train/grad_norm", "eval/loss", "eval/mean_iou", "eval/iou/red", "eval/dice/green")
    check_same_columns(records(tmp_path / "two"), one.records, columns)
    assert len(one.values("train/loss")) == 2
