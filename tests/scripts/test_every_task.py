"""What runs of every task keep: the same numbers on two processes, and the last good model of one that diverges."""

from pathlib import Path

import pytest
from support.folders import write_folder
from support.in_process import in_float64, run_train
from support.launches import PROGRAMS, TINY, launch
from support.objects import write_discs
from support.overlaps import write_overlaps
from support.points import write_dots
from support.run_files import records

import train_utils.schedule
from runtime.errors import TrainingError
from unet import UNet

FLAGS = [*TINY, "--batch-size", "2", "--max-steps", "8", "--eval-every", "1", "--tracker", "none"]


def write_data(folder: Path, task: str) -> Path:
    if task == "classes":
        return write_folder(folder, 6, seed=0)
    if task == "objects":
        return write_discs(folder, [3, 4, 5, 6, 7, 8], seed=0)
    if task == "overlapping":
        return write_overlaps(folder, 6, seed=0)
    write_dots(folder, 6, seed=0, layout="deeplabcut", absent=0.3)
    return folder


def computed_values(record: dict) -> dict[str, float | None]:
    """The losses, gradients and scores of a line of metrics.jsonl."""
    keys = [key for key in record if key in ("train/loss", "train/grad_norm") or key.startswith("eval/")]
    return {key: record[key] for key in keys}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["overlapping", "objects", "landmarks"])
def test_two_processes_compute_what_one_does(tmp_path, task):
    """In float64, with steps and evaluations of three images, which two processes cannot share evenly."""
    data = write_data(tmp_path / "data", task)
    flags = ["--dataset", data, "--task", task, *TINY, "--max-steps", "3", "--batch-size", "3", "--tracker", "none"]
    flags += ["--log-every", "1", "--val-fraction", "0.5", "--absent", "not-there"]
    command = [PROGRAMS / "in_float64.py", "train.py", *flags, "--output-dir", tmp_path / "two"]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    with in_float64():
        one = run_train(tmp_path / "one", *flags)
    for first, second in zip(one.records, records(tmp_path / "two"), strict=True):
        assert computed_values(second) == pytest.approx(computed_values(first), rel=1e-9, abs=1e-9)
    assert sum(len(computed_values(record)) for record in one.records) > 10


AVERAGES = ["--ema-decay", "0.5"]


@pytest.mark.parametrize(
    ("task", "average"),
    [("classes", []), ("classes", AVERAGES), ("overlapping", []), ("objects", AVERAGES), ("landmarks", [])],
)
def test_a_run_that_diverges_ends_in_a_line_and_keeps_its_last_good_model(tmp_path, monkeypatch, task, average):
    # from its second step on the run makes steps that no network survives
    rate = train_utils.schedule.learning_rate
    monkeypatch.setattr(
        train_utils.schedule, "learning_rate", lambda step, *length: 1e30 if step else rate(step, *length)
    )
    data = write_data(tmp_path / "data", task)
    with pytest.raises(TrainingError, match=r"step \d: .*lower --learning-rate; the best model, of step 1, is kept$"):
        run_train(tmp_path / "run", "--dataset", data, "--task", task, *FLAGS, *average)
    model = UNet.from_pretrained(tmp_path / "run" / "model")
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
