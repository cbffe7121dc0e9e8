"""What the benchmarks compute from their measurements: a speed, a share or a loss that is wrong would be published."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import recorded, same_numbers, same_rows
from benchmarks.data import bench_memory, write_pairs
from benchmarks.roofline import CAST_BYTES, NORM, RELU, WEIGHT_BYTES, layout_seconds, other_bytes
from benchmarks.sets import prepare
from benchmarks.side_by_side import VOID, class_iou
from benchmarks.train import step_seconds, write_stand_ins
from unet import UNet, UNetConfig

SMALL = UNetConfig(base_channels=8, depth=2)
OPERATORS = ("relu_", "threshold_backward", "cat", "add.Tensor", "max_pool2d_with_indices")
NORMS = ("native_batch_norm", "native_batch_norm_backward")


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


def test_memory_is_measured_after_each_of_five_epochs(tmp_path):
    write_pairs(tmp_path / "start", 10, (40, 48), distinct=10)
    memory = bench_memory(tmp_path, theirs_too=False)
    assert [*memory] == [f"epoch {number}" for number in range(1, 6)]
    assert all(value.endswith(" MiB") and float(value.split()[0]) > 0 for value in memory.values())


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


def test_scores_side_by_side_leave_out_void_pixels(tmp_path):
    for folder, rows in (("truth", [[0, 0, 7, VOID]]), ("masks", [[0, VOID, 7, 7]])):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.array(rows, np.uint8)).save(tmp_path / folder / "a.png")
    assert class_iou(tmp_path / "masks", tmp_path / "truth", [0, 7]) == [1 / 2, 1]


class BytesMoved(TorchDispatchMode):
    """Bytes of inputs and outputs by operator, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, int] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not operator.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.moved[operator.name()] = self.moved.get(operator.name(), 0) + size
        return result


def test_the_rooflines_bytes_are_those_of_the_networks_operators():
    with BytesMoved() as counted:
        UNet(SMALL)(torch.zeros(2, 3, 64, 96)).sum().backward()
    moved = {name: counted.moved[f"aten::{name}"] for name in (*OPERATORS, *NORMS)}
    relu = moved["relu_"] + moved["threshold_backward"]
    # an operator's tensors count once here, but a norm reads its input twice, and backward its gradient too
    norm = sum(moved[name] for name in NORMS) + relu * 3 / RELU
    assert norm == pytest.approx(relu * NORM / RELU, rel=0.01)  # beside the activations a few numbers a channel
    # of its three tensors, backward the pooling only touches those that it has forward
    rest = moved["cat"] + moved["add.Tensor"] + 2 * moved["max_pool2d_with_indices"]
    assert bytes_of(SMALL) == pytest.approx(norm + relu + rest, rel=0.01)
    assert bytes_of(SMALL, fused=True) == pytest.approx(norm + rest, rel=0.01)


def test_the_rooflines_bytes_follow_precision_and_weights():
    assert bytes_of(SMALL, weights=100) - bytes_of(SMALL) == 100 * WEIGHT_BYTES
    assert bytes_of(SMALL, weights=100, itemsize=2) - bytes_of(SMALL, itemsize=2) == 100 * (WEIGHT_BYTES + CAST_BYTES)
    relu = bytes_of(SMALL) - bytes_of(SMALL, fused=True)
    assert bytes_of(SMALL, itemsize=2) - bytes_of(SMALL, itemsize=2, fused=True) == relu / 2


def bytes_of(config: UNetConfig, weights: int = 0, itemsize: int = 4, fused: bool = False) -> float:
    """The bytes for two images of 64 x 96."""
    return other_bytes(config, (2, 64, 96), weights, itemsize, fused=fused)


def test_the_limit_has_every_convolution_in_both_layouts():
    times = layout_seconds(UNet(SMALL), (2, 3, 32, 48), torch.float32, repeats=1)
    assert len(times) == 2 * 5 + 2 + 1  # two in each of five blocks, two transposed ones, the last
    assert all(len(layouts) == 2 and min(layouts) > 0 for layouts in times)


def test_a_number_that_differs_is_named():
    (here,) = same_numbers.measure(recorded.ROOT, ["partly labeled"]).values()
    assert "metrics.jsonl: train/loss at step 24" in here
    there = here | {"metrics.jsonl: eval/loss at step 24": "0.5"}
    (line,) = recorded.differences({"case": here}, {"case": there})
    assert line.startswith("case: metrics.jsonl: eval/loss at step 24: ")
    assert line.endswith("0.5 there")


def test_rows_and_error_lines_of_a_layout_are_recorded():
    answers = same_rows.measure(recorded.ROOT, ["voc", "spoilt: two formats"])
    assert answers["voc"]["rows: training"] == "photo_00.jpg photo_05.jpg photo_02.jpg photo_01.jpg"
    assert "4 + 2 images" in answers["voc"]["identity: data set"]
    assert "annotations of 2 formats" in answers["spoilt: two formats"]["check: error"]
