"""Deep supervision: coarser levels have heads in training and in checkpoints, and nowhere else."""

import pytest
import torch
from safetensors.torch import load_file
from support.folders import write_folder
from support.in_process import run_train
from support.networks import tiny
from support.run_equality import different_tensors

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


def test_a_resumed_run_goes_on_with_its_heads_bit_for_bit_and_not_without_them(tmp_path):
    data = write_folder(tmp_path / "data", 10, seed=0)
    flags = ["--dataset", data, *FLAGS, "--max-steps", "4"]
    whole = run_train(tmp_path / "whole", *flags)
    flags += ["--resume", whole.folder / "checkpoints" / "step-00000002"]
    resumed = run_train(tmp_path / "resumed", *flags)
    assert resumed.exit_code == 0, resumed.output
    for kind in ("model", "optimizer"):
        assert different_tensors(resumed.tensors(4, kind), whole.tensors(4, kind)) == []
    with pytest.raises(CheckpointError, match="the checkpoint's deep supervision is True, this run's is False"):
        run_train(tmp_path / "other", *flags, "--no-deep-supervision")
