"""What the benchmarks compute from their measurements: a speed, a share or a loss that is wrong would be published."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import recorded, same_numbers, same_rows
from benchmarks.sets import prepare
from benchmarks.speedrun import VOID, class_iou, speedrun_table
from benchmarks.train import programs_table, step_seconds, write_stand_ins


def test_steps_of_pytorch_unet_are_timed_after_the_warm_up():
    ends = [(10, True), (11, True), (12, True), (14, True), (20, False), (23, True), (27, True)]
    marks = [{"seconds": seconds, "step": step} for seconds, step in ends]
    assert step_seconds(marks) == [14 - 12, 23 - 20, 27 - 23]


def test_the_stand_in_for_wandb_marks_steps_and_evaluations(tmp_path, monkeypatch):
    write_stand_ins(tmp_path / "stand_ins")
    spec = importlib.util.spec_from_file_location("wandb_stand_in", tmp_path / "stand_ins" / "wandb.py")
    spec.loader.exec_module(wandb := importlib.util.module_from_spec(spec))
    monkeypatch.setenv("MARKS", str(tmp_path / "marks.jsonl"))
    run = wandb.init(project="U-Net", resume="allow", anonymous="must")
    run.config.update({"epochs": 1})
    run.log({"train loss": 0.5, "step": 1, "epoch": 1})
    run.log(
        {"validation Dice": 0.5, "images": wandb.Image(torch.zeros(1)), "Weights/x": wandb.Histogram(torch.ones(1))}
    )
    marks = [json.loads(line) for line in (tmp_path / "marks.jsonl").read_text().splitlines()]
    assert [mark["step"] for mark in marks] == [True, False]
    assert marks[0]["seconds"] < marks[1]["seconds"]


def test_programs_are_compared_by_their_speed_and_memory():
    args = SimpleNamespace(steps=10, batch_size=2)
    here = {"steady": 3.0, "seconds": 8.0, "memory": 1.5}
    there = {"steady": 2.0, "seconds": 10.0, "memory": 1.2}
    *_, row, other, ratio = programs_table(args, {"here": here, "Pytorch-UNet": there})
    assert row == "| here | 3 images/s | 2.5 images/s | 1.50 GB |"
    assert other == "| Pytorch-UNet | 2 images/s | 2 images/s | 1.20 GB |"
    assert ratio == "| ratio | 1.50 | 1.25 | 1.25 |"


def test_every_fifth_photograph_validates(tmp_path):
    for folder, ending in (("Training_Images", "jpg"), ("Ground_Truth", "png")):
        (tmp_path / "people" / folder).mkdir(parents=True)
        for number in range(1, 12):
            (tmp_path / "people" / folder / f"{number}.{ending}").touch()
    folder = prepare(tmp_path, tmp_path / "results", ["people"])["people"]
    numbers = {}
    for path in folder.glob("*/*"):
        numbers[str(path.relative_to(folder))] = sorted(int(file.stem) for file in path.iterdir())
    training = [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert numbers == {
        "train/images": training,
        "train/masks": training,
        "val/images": [5, 10],
        "val/masks": [5, 10],
    }


def test_scores_of_a_speedrun_leave_out_void_pixels(tmp_path):
    for folder, rows in (("truth", [[0, 0, 7, VOID]]), ("masks", [[0, VOID, 7, 7]])):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.array(rows, np.uint8)).save(tmp_path / folder / "a.png")
    assert class_iou(tmp_path / "masks", tmp_path / "truth", [0, 7]) == [1 / 2, 1]


def test_a_row_of_the_speedrun_is_the_mean_over_seeds_and_sets():
    lines = []
    for number, name in enumerate(("camvid", "isbi", "people", "pavement", "hippocampus")):
        for seed, score in enumerate((0.5, 0.7)):
            run = {"program": "ours", "commit": "12ab", "minutes": 3.0, "set": name, "seed": seed}
            lines.append(run | {"mean_iou": score + number / 10, "seconds": 180 + seed, "gb": 1 + seed})
    lines.append(lines[0] | {"program": "other", "mean_iou": 0.25})
    *_, ours, other = speedrun_table(lines)
    scores = " | ".join(f"{score:.3f} ± 0.100" for score in (0.6, 0.7, 0.8, 0.9, 1.0))
    assert ours == f"| ours | 12ab | 3 | {scores} | 0.800 | 180 | 2.00 |"
    missing = " | ".join(["nan ± nan"] * 4)
    assert other == f"| other | 12ab | 3 | 0.250 ± 0.000 | {missing} | nan | 180 | 1.00 |"


def test_a_number_that_differs_is_named():
    here = {"metrics.jsonl: train/loss at step 24": "0.25", "metrics.jsonl: eval/loss at step 24": "0.75"}
    there = here | {"metrics.jsonl: eval/loss at step 24": "0.5"}
    (line,) = recorded.differences({"case": here}, {"case": there})
    assert line == "case: metrics.jsonl: eval/loss at step 24: 0.75 here, 0.5 there"


@pytest.mark.slow
def test_the_numbers_of_a_run_are_recorded():
    (numbers,) = same_numbers.measure(recorded.ROOT, ["partly labeled"]).values()
    assert "metrics.jsonl: train/loss at step 24" in numbers


@pytest.mark.slow
def test_rows_and_error_lines_of_a_layout_are_recorded():
    answers = same_rows.measure(recorded.ROOT, ["voc", "spoilt: two formats"])
    assert answers["voc"]["rows: training"] == "photo_00.jpg photo_05.jpg photo_02.jpg photo_01.jpg"
    assert "4 + 2 images" in answers["voc"]["identity: data set"]
    assert "annotations of 2 formats" in answers["spoilt: two formats"]["check: error"]
