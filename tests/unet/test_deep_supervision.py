"""Deep supervision: coarser levels have heads in training and in checkpoints, and nowhere else."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.folders import write_folder
from support.in_process import Run, run_train
from support.networks import tiny

from runtime.errors import CheckpointError
from unet import UNet, UNetConfig

FLAGS = ["--plan", "none", "--base-channels", "2", "--depth", "3", "--norm", "group", "--num-workers", "0"]
FLAGS += ["--tracker", "none", "--checkpoint-every", "2", "--keep-checkpoints", "9", "--block", "residual"]


STRIDES = [(1, 2), (2, 2), (2, 1), (2, 2)]


def deep(**settings) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(3, 4, base_channels=2, **settings), deep_supervision=True)


def test_evaluation_knows_nothing_of_the_heads(tmp_path):
    network = deep(block="residual").eval()
    network.save_pretrained(tmp_path)
    assert not any(name.startswith("heads.") for name in load_file(tmp_path / "model.safetensors"))
    images = torch.rand(1, 3, 40, 56)
    with torch.inference_mode():
        assert torch.equal(UNet.from_pretrained(tmp_path)(images), network(images))


def test_logits_of_a_level_have_the_size_that_its_strides_leave():
    network = UNet(tiny(depth=4, strides=STRIDES), deep_supervision=True).train()
    logits = network(torch.rand(1, 1, 18, 34))
    assert [tuple(level.shape[2:]) for level in logits] == [(18, 34), (18, 17), (9, 8)]
    assert network(torch.rand(1, 1, 3, 34))[0].shape[2:] == (3, 34)  # a padded side is cut back


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of ten images."""
    return write_folder(tmp_path_factory.mktemp("deep") / "data", 10, seed=0)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of four steps."""
    run = run_train(tmp_path_factory.mktemp("whole") / "run", "--dataset", data, *FLAGS, "--max-steps", "4")
    assert run.exit_code == 0
    return run


@pytest.fixture(scope="module")
def resumed(data, whole, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that goes on from the second step of the whole one."""
    flags = ["--dataset", data, *FLAGS, "--max-steps", "4", "--resume", second_checkpoint(whole)]
    run = run_train(tmp_path_factory.mktemp("resumed") / "run", *flags)
    assert run.exit_code == 0, run.output
    return run


def second_checkpoint(run: Run) -> Path:
    return run.folder / "checkpoints" / "step-00000002"


@pytest.mark.parametrize("kind", ["model", "optimizer"])
def test_a_resumed_run_goes_on_with_its_heads_bit_for_bit(whole, resumed, kind):
    first = whole.tensors(4, kind)
    second = resumed.tensors(4, kind)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_does_not_go_on_without_its_heads(data, whole, tmp_path):
    flags = ["--dataset", data, *FLAGS, "--max-steps", "4", "--no-deep-supervision"]
    with pytest.raises(CheckpointError, match="the checkpoint's deep supervision is True, this run's is False"):
        run_train(tmp_path / "other", *flags, "--resume", second_checkpoint(whole))
