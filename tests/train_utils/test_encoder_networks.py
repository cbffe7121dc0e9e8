"""What training updates, keeps and spreads of a network with an encoder.

Modules: train_utils/optim.py, train_utils/sharding.py, train_utils/sync_batchnorm.py.
"""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from support.in_process import process_state_kept
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from data_utils.loading.batch_sampler import BatchSplit
from train_utils.optim import build_optimizer
from train_utils.settings.encoder import load_encoder
from train_utils.sharding import whole_network
from train_utils.sync_batchnorm import synchronize_batchnorm
from unet import UNet, UNetConfig


@pytest.fixture
def new_network(encoder_folders):
    """Networks with an encoder of random weights, by the name of its family; "lite0" is the built-in one."""

    def build(family: str, **settings: object) -> UNet:
        source: Path | str = family if family == "lite0" else encoder_folders[family]
        encoder = load_encoder(str(source), pretrained=False)
        return UNet(UNetConfig(base_channels=2, depth=encoder.depth, encoder=encoder.config, **settings))

    return build


def test_norms_of_an_encoder_see_the_images_of_both_processes(new_network, capsys):
    network = new_network("resnet", norm="group")
    synchronize_batchnorm(mock.Mock(num_processes=2), network, "auto", BatchSplit(8, 2, 2, 2))
    assert "batch norm sees 4 images at a time" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["swinv2"])
def test_tables_of_positions_with_those_of_scales_do_not_decay(new_network, family):
    network = new_network(family)
    groups = build_optimizer(network, "adamw", 1e-3, 0.1).param_groups
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    with_weights = torch.nn.Conv2d | torch.nn.ConvTranspose2d | torch.nn.Linear
    layers = [module for module in network.modules() if isinstance(module, with_weights)]
    assert decayed == {id(layer.weight) for layer in layers if layer.weight.requires_grad}


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("family", ["resnet", pytest.param("lite0", marks=pytest.mark.slow)])
def test_network_that_fsdp_has_spread_is_evaluated_whole_without_its_heads(new_network, process_group, family):
    spread = UNet(new_network(family).config, deep_supervision=True).eval()
    images = torch.rand(2, 3, 40, 56)
    with torch.no_grad():
        logits = spread(images)
    fully_shard(spread, mesh=init_device_mesh("cpu", (1,)))
    with process_state_kept():
        whole = whole_network(Accelerator(cpu=True), spread)
    assert type(whole) is UNet
    assert not whole.training
    with torch.inference_mode():
        assert torch.equal(whole(images), logits)
