"""How many operations a model has, and how many a device can make in a second.

Modules: train_utils/monitoring/flops.py.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from train_utils.monitoring.flops import peak_flops, peak_teraflops, training_flops
from unet import UNet, UNetConfig
from unet.model import DeeplySupervisedUNet


@pytest.fixture(params=["transpose", "bilinear"])
def network(request) -> UNet:
    return UNet(UNetConfig(in_channels=1, base_channels=4, depth=3, upsample=request.param))


def flops_of_a_pixel(network: UNet) -> float:
    """What a real forward and backward pass counts for each pixel."""
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 1, 48, 64)).sum().backward()
    return counter.get_total_flops() / (48 * 64)


def test_flops_are_those_of_a_real_forward_and_backward_pass(network):
    assert training_flops(network, 1) == flops_of_a_pixel(network)


def test_flops_of_a_voxel_are_those_of_a_real_pass():
    network = UNet(UNetConfig(in_channels=1, base_channels=1, depth=1, dims=3))
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 1, 4, 6, 8)).sum().backward()
    assert training_flops(network, 1) == counter.get_total_flops() / (4 * 6 * 8)


def test_flops_of_training_are_also_those_of_the_heads_of_coarser_levels():
    config = UNetConfig(in_channels=1, base_channels=4, depth=3)
    network = DeeplySupervisedUNet(config)
    with FlopCounterMode(display=False) as counter:
        fine, coarse = network(torch.rand(1, 1, 48, 64))
        (fine.sum() + coarse.sum()).backward()
    flops = training_flops(network.eval(), 1)
    assert flops == counter.get_total_flops() / (48 * 64)
    assert flops > training_flops(UNet(config), 1)


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989, 495),
        ("NVIDIA H200 NVL", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
    ],
)
def test_peak_is_that_of_the_device_or_unknown(name, half, single):
    assert peak_flops(name, half=True) == half
    assert peak_flops(name, half=False) == single


@pytest.mark.parametrize(("precision", "peak"), [("no", 156), ("bf16", 312)])
def test_peak_of_a_gpu_is_that_of_the_runs_precision(monkeypatch, precision, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert peak_teraflops(SimpleNamespace(device=torch.device("cuda", 0)), precision) == peak


def test_peak_of_a_device_without_cuda_is_unknown():
    assert peak_teraflops(SimpleNamespace(device=torch.device("cpu")), "bf16") is None
