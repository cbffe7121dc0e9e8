"""For which shapes cuDNN times its kernels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.folders import write_folder
from support.in_process import parsed, run_train
from support.launches import TINY
from torch.nn.modules.module import register_module_forward_pre_hook

import train
import train_utils.kernel_tuning
from train_utils.kernel_tuning import KernelTuning, tune_kernels
from train_utils.memory.preflight import Preflight
from unet import UNet

SHAPES = np.array([(8, 8)] * 10 + [(8, 16)] * 6 + [(32, 32)] * 4)  # of twenty training images


def tuned(*flags: str, total_steps: int | None = None) -> set[tuple[int, ...]]:
    """The shapes for which a run with these flags times kernels."""
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


def test_kernels_are_timed_for_no_shape_of_a_deterministic_run():
    assert tuned("--deterministic", total_steps=5000) == set()


@pytest.mark.parametrize(
    ("flags", "total_steps", "shapes"),
    [
        pytest.param(["--epochs", "399"], None, set(), id="1995 steps"),
        pytest.param(["--epochs", "400"], None, {(8, 8)}, id="2000 steps"),
        pytest.param(["--max-minutes", "10"], None, {(8, 8), (8, 16), (32, 32)}, id="ten minutes"),
        pytest.param(["--max-minutes", "9.9"], None, set(), id="less than ten minutes"),
        pytest.param(["--max-minutes", "1"], 2000, {(8, 8)}, id="a resumed run knows its steps"),
    ],
)
def test_kernels_are_timed_where_the_length_of_a_run_pays_for_it(flags, total_steps, shapes):
    assert tuned(*flags, total_steps=total_steps) == shapes


@pytest.mark.parametrize(
    ("device", "shape", "is_timed"),
    [
        ("cuda", (8, 16), True),
        ("cuda", (16, 8), False),
        ("cpu", (8, 16), False),
        ("cuda", (4, 32, 16), True),
        ("cuda", (2, 32, 16), False),
    ],
)
def test_kernels_are_timed_for_a_shape_that_is_among_them_on_a_gpu(device, shape, is_timed):
    tuning = KernelTuning(torch.device(device), {(8, 16), (4, 4), (4, 32, 16)})
    with tuning.for_shape(torch.Size(shape)):
        assert torch.backends.cudnn.benchmark is is_timed
    assert torch.backends.cudnn.benchmark is False


class FirstPasses:
    """Notes of each shape, when the network trains on it for the first time, whether kernels are timed."""

    def __init__(self) -> None:
        self.are_timed: dict[tuple[int, ...], bool] = {}

    def __call__(self, module: torch.nn.Module, inputs: tuple) -> None:
        if isinstance(module, UNet) and module.training and inputs[0].device.type == "cpu":
            self.are_timed.setdefault(tuple(inputs[0].shape[2:]), torch.backends.cudnn.benchmark)


SIZES = [(64, 72)] * 4 + [(24, 32)] * 2 + [(48, 48)]  # four epochs in batches of one: 16, 8 and 4 steps of each


@pytest.fixture(scope="module")
def sizes_folder(tmp_path_factory) -> Path:
    """Seven training images of SIZES."""
    folder = tmp_path_factory.mktemp("sizes")
    for kind, count in (("train", 7), ("val", 1)):
        write_folder(folder / kind, count, seed=0, size=(64, 72))
        for file in (folder / kind).glob("*/*.png"):
            height, width = SIZES[int(file.stem[-2:])]
            with Image.open(file) as image:
                cut = image.crop((0, 0, width, height))
            cut.save(file)
    return folder


@pytest.fixture
def as_on_cuda(monkeypatch) -> list[torch.device]:
    """Have runs time kernels as on a GPU, for shapes of eight steps; the devices whose segments may grow."""
    on_cuda = torch.device("cuda")
    growing = []
    monkeypatch.setattr(train_utils.kernel_tuning, "tune_kernels", lambda _, enabled: tune_kernels(on_cuda, enabled))
    monkeypatch.setattr(train_utils.kernel_tuning, "ENOUGH_STEPS", 8)
    monkeypatch.setattr(Preflight, "step_fits_by_estimate", Preflight.step_fits_by_trial)
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    monkeypatch.setattr(train, "grow_segments", growing.append)
    return growing


RUN_FLAGS = [*TINY, "--batch-size", "1", "--tracker", "none", "--eval-every", "99", "--checkpoint-every", "99"]


def test_kernels_are_timed_from_the_first_pass_of_a_shape_that_pays_for_it(sizes_folder, tmp_path, as_on_cuda):
    """The trial of the memory check meets the largest shape first, and what it finds stays."""
    passes = FirstPasses()
    with register_module_forward_pre_hook(passes):
        run = run_train(tmp_path / "run", "--dataset", sizes_folder, *RUN_FLAGS, "--epochs", "4")
    assert run.exit_code == 0, run.output
    assert as_on_cuda == [torch.device("cpu")]  # the shapes differ
    assert passes.are_timed == {(64, 72): True, (24, 32): True, (48, 48): False}


def test_kernels_of_a_deterministic_run_are_not_timed(sizes_folder, tmp_path, as_on_cuda):
    passes = FirstPasses()
    flags = ["--max-steps", "1", "--deterministic"]
    with register_module_forward_pre_hook(passes):
        run = run_train(tmp_path / "run", "--dataset", sizes_folder, *RUN_FLAGS, *flags)
    assert run.exit_code == 0, run.output
    assert set(passes.are_timed.values()) == {False}
