"""Slabs of volumes on several processes: losses and weights are those of one process, in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import call_in_processes
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from runtime.distributed import seed_step
from runtime.errors import LaunchError
from runtime.mesh import Mesh
from tasks.classes import Classes, ClassTarget
from train_utils.spatial import Slabs, split_network, step_loss
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet import UNetConfig
from unet.blocks import channels_last
from unet.model import DeeplySupervisedUNet

IMAGES = 2
CLASSES = 3
STEPS = 8
VOLUMES = {"kernels": ((1, 3, 3), (3, 3, 3), (3, 3, 3)), "strides": ((1, 2, 2), (2, 2, 2))}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "batch": ({"norm": "batch", "depth": 3}, (64, 10)),
    "group, residual": ({"norm": "group", "block": "residual", "depth": 2}, (64, 9)),
    "instance, bilinear": ({"norm": "instance", "upsample": "bilinear", "depth": 2}, (64, 12)),
    "odd side": ({"norm": "batch", "depth": 2, "upsample": "bilinear"}, (67, 11)),
    "odd side, group": ({"norm": "group", "depth": 3}, (71, 13)),
    "dropout": ({"norm": "group", "depth": 2, "dropout": 0.3}, (64, 8)),
    "volume": ({"norm": "batch", "depth": 2, "dims": 3, **VOLUMES}, (64, 6, 5)),
    "volume, group, odd": ({"norm": "group", "depth": 2, "dims": 3, "block": "residual", **VOLUMES}, (65, 5, 6)),
    "volume, trilinear": ({"norm": "instance", "depth": 2, "dims": 3, "upsample": "bilinear"}, (64, 4, 8)),
}
MESHES = {"1 x 2": (2, 2), "1 x 4": (4, 4), "2 x 2": (4, 2)}  # processes, and how many share a volume


def train(case: str, mesh: Mesh, processes: int, recompute: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each step, and the weights at the end."""
    options, size = CASES[case]
    torch.manual_seed(0)
    config = UNetConfig(1, CLASSES, base_channels=2, **options)
    network = DeeplySupervisedUNet(config).double().train()
    network.activation_checkpointing = recompute
    images = torch.randn(IMAGES, 1, *size, dtype=torch.float64)
    masks = torch.randint(0, CLASSES, (IMAGES, *size))
    masks[:, :3] = 255
    slabs = Slabs(mesh, config.divisors[0])
    criterion = step_loss(Classes(tuple("abc"), weights=torch.tensor([0.5, 1, 2])), network.head_strides, slabs)
    model: torch.nn.Module = network
    if processes > 1:
        for name, layer in list(network.named_modules()):
            if isinstance(layer, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
                network.set_submodule(name, SynchronizedBatchNorm.of(layer))
        split_network(network, slabs)
        model = DistributedDataParallel(network, broadcast_buffers=False)
    groups = processes // mesh.size
    own = slice(mesh.group * IMAGES // groups, (mesh.group + 1) * IMAGES // groups)
    inputs = channels_last(images[own])
    targets = ClassTarget(masks[own])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        seed_step(0, step, mesh.group)
        counts = criterion.counts(targets)
        logits = model(inputs)
        if processes > 1:
            dist.all_reduce(counts)
        loss = criterion(logits, targets, counts)
        (loss * processes).backward()
        loss = loss.detach()
        if processes > 1:
            dist.all_reduce(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return torch.stack(losses), network.state_dict()


def train_in_one_of_several(rank: int, processes: int, size: int, recompute: bool, folder: Path) -> None:
    """What each case comes to, of the first process, which the others must equal."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    mesh = Mesh.of_process(rank, processes, size)
    results = {}
    for case in CASES:
        if CASES[case][0].get("dropout") and processes > size:
            continue  # every group has numbers of its own
        results[case] = train(case, mesh, processes, recompute)
    torch.save(results, folder / f"results-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_gives_the_losses_and_weights_of_one_process(tmp_path, name, recompute):
    processes, size = MESHES[name]
    if recompute and name != "1 x 2":
        pytest.skip("one mesh is enough")
    call_in_processes(train_in_one_of_several, processes, size, recompute, tmp_path)
    results = torch.load(tmp_path / "results-0", weights_only=False)
    last_process = torch.load(tmp_path / f"results-{processes - 1}", weights_only=False)
    for case, (losses, weights) in results.items():
        whole_losses, whole_weights = train(case, Mesh(), 1, recompute)
        assert losses.tolist() == pytest.approx(whole_losses.tolist(), abs=1e-9), case
        assert losses[-1] < losses[0], case
        for key, values in weights.items():
            assert torch.allclose(values, whole_weights[key], rtol=0, atol=1e-9), (case, key)
            assert torch.equal(values, last_process[case][1][key]), (case, key)


def test_groups_must_hold_all_processes():
    assert Mesh.of_process(5, 8, 4) == Mesh(4, 1, 1)
    with pytest.raises(LaunchError, match="multiple of 4 processes, but 6 were started; give --num_processes 8"):
        Mesh.of_process(0, 6, 4)
