"""For which shapes cuDNN times its kernels."""

import numpy as np
import pytest
import torch
from conftest import TINY, write_folder
from in_process import parsed, run_train
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

import train
import train_utils.kernel_tuning
from train_utils.kernel_tuning import KernelTuning, tune_kernels
from train_utils.memory.preflight import Preflight
from unet import UNet

SHAPES = np.array([(8, 8)] * 10 + [(8, 16)] * 6 + [(32, 32)] * 4)  # of twenty training images


def tuned(*flags: str, total_steps: int | None = None) -> set[tuple[int, ...]]:
    settings = parsed("--dataset", "shapes", "--plan", "none", "--batch-size", "4", *flags)
    return KernelTuning.from_args(settings, torch.device("cpu"), SHAPES, total_steps).shapes


@pytest.mark.parametrize(
    ("steps", "shapes"),
    [
        (1999, set()),
        (2000, {(8, 8)}),
        (3333, {(8, 8)}),
        (3334, {(8, 8), (8, 16)}),
        (4999, {(8, 8), (8, 16)}),
        (5000, {(8, 8), (8, 16), (32, 32)}),
    ],
)
def test_kernels_are_timed_for_shapes_of_a_thousand_steps(steps, shapes):
    assert tuned(total_steps=steps) == shapes
    assert tuned("--deterministic", total_steps=steps) == set()


def test_epochs_are_counted_in_steps_and_ten_minutes_pay_for_every_shape():
    assert tuned("--epochs", "399") == set()
    assert tuned("--epochs", "400") == {(8, 8)}
    assert tuned("--max-minutes", "10") == {(8, 8), (8, 16), (32, 32)}
    assert tuned("--max-minutes", "9.9") == set()
    assert tuned("--max-minutes", "1", total_steps=2000) == {(8, 8)}  # a resumed run knows its steps


@pytest.mark.parametrize(
    ("device", "shape", "is_timed"), [("cuda", (8, 16), True), ("cuda", (16, 8), False), ("cpu", (8, 16), False)]
)
def test_kernels_are_timed_for_a_shape_that_is_among_them_on_a_gpu(device, shape, is_timed):
    tuning = KernelTuning(torch.device(device), {(8, 16), (4, 4)})
    with tuning.for_shape(torch.Size(shape)):
        assert torch.backends.cudnn.benchmark is is_timed
    assert torch.backends.cudnn.benchmark is False


def test_kernels_are_timed_from_the_first_pass_of_a_shape_that_pays_for_it(tmp_path, monkeypatch):
    """The trial of the memory check meets the largest shape first, and what it finds stays."""
    sizes = [(64, 72)] * 4 + [(24, 32)] * 2 + [(48, 48)]  # 28 steps of batches of 1: 16, 8 and 4 of each
    for kind, count in (("train", 7), ("val", 1)):
        write_folder(tmp_path / kind, count, seed=0, size=(64, 72))
        for file in (tmp_path / kind).glob("*/*.png"):
            height, width = sizes[int(file.stem[-2:])]
            with Image.open(file) as image:
                cut = image.crop((0, 0, width, height))
            cut.save(file)
    first: dict[tuple[int, ...], bool] = {}  # whether kernels are timed in the first pass of a shape

    def note(module: torch.nn.Module, inputs: tuple) -> None:
        if isinstance(module, UNet) and module.training and inputs[0].device.type == "cpu":
            first.setdefault(tuple(inputs[0].shape[2:]), torch.backends.cudnn.benchmark)

    on_cuda = torch.device("cuda")
    monkeypatch.setattr(train_utils.kernel_tuning, "tune_kernels", lambda _, enabled: tune_kernels(on_cuda, enabled))
    monkeypatch.setattr(train_utils.kernel_tuning, "ENOUGH_STEPS", 8)
    monkeypatch.setattr(Preflight, "step_fits_by_estimate", Preflight.step_fits_by_trial)  # on the CPU as on a GPU
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    growing = []
    monkeypatch.setattr(train, "grow_segments", growing.append)
    flags = ["--dataset", tmp_path, *TINY, "--batch-size", "1", "--epochs", "4", "--tracker", "none"]
    with register_module_forward_pre_hook(note):
        run = run_train(tmp_path / "run", *flags, "--eval-every", "99", "--checkpoint-every", "99")
        assert run.exit_code == 0, run.output
        assert growing == [torch.device("cpu")]  # the shapes differ
        assert first == {(64, 72): True, (24, 32): True, (48, 48): False}
        first.clear()
        run = run_train(tmp_path / "repeatable", *flags, "--max-steps", "1", "--deterministic")
        assert run.exit_code == 0, run.output
    assert set(first.values()) == {False}
