"""The first step of a resumed run adds up gradients in the order of a run that was never interrupted."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from support.forks import call_in_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train_utils.sharding import rebuild_buckets
from unet import UNet, UNetConfig

PROCESSES = 4  # two add up in either order alike
PATIENCE = timedelta(seconds=60)  # of a process that waits for the others


def make_network() -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig(base_channels=4, depth=2))


def wrapped(network: UNet) -> DistributedDataParallel:
    """The model wrapped as accelerate does it for train.py."""
    return DistributedDataParallel(network, broadcast_buffers=False, gradient_as_bucket_view=True)


def gradients(model: nn.Module, images: Tensor) -> Tensor:
    """The gradients of all parameters, one after the other."""
    model.zero_grad()
    model(images).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def save_first_steps(rank: int, folder: Path) -> None:
    """Save the gradients of a step after the start, after another step, and after the start of a resumed run."""
    images = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(rank))
    model = wrapped(make_network())
    first = gradients(model, images)
    later = gradients(model, images)
    network = make_network()
    resumed = wrapped(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    rebuild_buckets(resumed, network)
    unchanged = all(value.equal(before[name]) for name, value in network.state_dict().items())
    left = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    result = {
        "first": first,
        "later": later,
        "resumed": gradients(resumed, images),
        "unchanged": unchanged,
        "left": left,
    }
    torch.save(result, folder / f"result-{rank}")


def first_steps(rank: int, processes: int, folder: Path) -> None:
    """The first steps in one of several processes, whose networks are gone before the group that they sum by."""
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", address, rank=rank, world_size=processes, timeout=PATIENCE)
    save_first_steps(rank, folder)
    dist.destroy_process_group()


def test_a_resumed_run_rounds_its_first_step_as_one_that_went_on(tmp_path):
    call_in_processes(first_steps, PROCESSES, tmp_path)
    for rank in range(PROCESSES):
        result = torch.load(tmp_path / f"result-{rank}")
        assert not result["first"].equal(result["later"]), "here the order does not matter, so nothing is shown"
        assert result["resumed"].equal(result["later"])
        assert result["unchanged"]
        assert not result["left"]
