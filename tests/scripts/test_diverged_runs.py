"""A run whose network no longer answers with numbers ends in one line, and its last good model stays."""

from pathlib import Path

import pytest
from support.folders import write_folder
from support.in_process import run_train
from support.launches import TINY
from support.objects import write_discs
from support.overlaps import write_overlaps
from support.points import write_dots

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
    write_dots(folder, 6, seed=0, layout="deeplabcut")
    return folder


@pytest.mark.parametrize("average", [[], ["--ema-decay", "0.5"]], ids=["weights", "averages"])
@pytest.mark.parametrize("task", ["classes", "overlapping", "objects", "landmarks"])
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
