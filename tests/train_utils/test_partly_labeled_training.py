"""A run on images that are labeled for some classes only: on one and two processes, resumed, and in its report."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import PROGRAMS, TINY, launch, predict
from in_process import in_float64, run_train
from PIL import Image

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


def test_a_run_learns_scores_resumes_and_reports(data, tmp_path):
    whole = run_train(tmp_path / "whole", "--dataset", data, *FLAGS, "--max-steps", "6", "--eval-every", "3")
    assert whole.exit_code == 0, whole.output
    assert "no validation image is labeled for blue, which cannot be scored" in whole.output
    first, second = whole.values("train/loss")[0], whole.values("train/loss")[-1]
    assert second < first
    assert whole.values("eval/iou/blue") == [None, None]
    assert min(whole.values("eval/iou/red")) >= 0
    for page in ("report.html", "model/README.md"):
        assert "No validation image is labeled for background, blue: these" in (whole.folder / page).read_text()
    assert "<p>No validation image is labeled for all classes.</p>" in (whole.folder / "report.html").read_text()
    # the model is one of plain classes
    masks = tmp_path / "masks"
    result = predict(whole.folder / "model", [data / "val" / "images"], masks, "--truth", data / "val" / "masks")
    assert result.returncode == 0, result.stderr
    assert len(list(masks.glob("*.png"))) == 4, result.stderr
    part = [*FLAGS, "--eval-every", "3", "--checkpoint-every", "3"]
    run_train(tmp_path / "parts", "--dataset", data, *part, "--max-steps", "3")
    parts = run_train(tmp_path / "parts", "--dataset", data, *part, "--max-steps", "6", "--resume", "auto")
    assert parts.values("train/loss") == whole.values("train/loss")
    assert parts.values("eval/mean_iou") == whole.values("eval/mean_iou")
    table = data / "classes.csv"
    text = table.read_text()
    table.write_text(text.replace("0.png,1;2;3", "0.png,1"))
    with pytest.raises(CheckpointError, match="content of the data set"):
        run_train(tmp_path / "parts", "--dataset", data, *part, "--max-steps", "9", "--resume", "auto")
    table.write_text(text)


def test_two_processes_make_the_steps_of_one(data, tmp_path):
    flags = [*FLAGS, "--max-steps", "2", "--micro-batch-size", "1"]
    arguments = ["train.py", "--dataset", data, "--output-dir", tmp_path / "run-2", *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    with in_float64():
        one = run_train(tmp_path / "run-1", "--dataset", data, *flags)
    two = [json.loads(line) for line in (tmp_path / "run-2" / "metrics.jsonl").read_text().splitlines()]
    for records in zip(one.records, two, strict=True):
        for key in ("train/loss", "train/grad_norm", "eval/loss", "eval/mean_iou", "eval/iou/red", "eval/dice/green"):
            values = [record.get(key) for record in records]
            assert values[1] == (values[0] and pytest.approx(values[0], abs=1e-9))
    assert len(one.values("train/loss")) == 2
