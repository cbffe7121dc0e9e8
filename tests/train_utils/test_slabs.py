"""Slabs of volumes on several processes: losses and weights are those of one process, in float64."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import DistributedType, DynamoBackend
from support.forks import call_in_processes
from support.in_process import in_float64, run_train
from support.launches import PROGRAMS, launch
from support.run_equality import check_same_columns
from support.run_files import records
from support.volumes import write_msd
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.target import Target
from runtime.errors import LaunchError, SettingsError
from tasks.classes.loss import Classes
from tasks.classes.target import ClassTarget
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from tasks.objects.loss import Objects
from tasks.objects.target import ObjectTarget
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.task import Task
from train_utils.settings import encoder
from train_utils.slabs import Slabs, check_slabs, convolve_slab, split_volumes
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet import UNet, UNetConfig
from unet.blocks import channels_last

IMAGES = 2
CLASSES = 3
STEPS = 2
VOLUMES = {"kernels": ((1, 3, 3), (3, 3, 1), (3, 3, 3)), "strides": ((1, 2, 2), (2, 2, 2))}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "volume": ({"norm": "batch", "depth": 2, "dims": 3, **VOLUMES}, (64, 6, 5)),
    "volume, group": (
        {"norm": "group", "depth": 2, "dims": 3, "block": "residual"},
        (76, 4, 4),  # slabs of 16, 20, 20 and 20 slices
    ),
    "image, landmarks": ({"norm": "batch", "depth": 3}, (71, 12)),
}
MORE_CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "volume, instance, odd": ({"norm": "instance", "depth": 2, "dims": 3}, (67, 4, 5)),
    "image, odd": ({"norm": "batch", "depth": 2}, (67, 11)),
    "image": ({"norm": "batch", "depth": 3}, (64, 10)),
    "image, residual": ({"norm": "group", "block": "residual", "depth": 2}, (64, 9)),
    "image, instance": ({"norm": "instance", "depth": 2}, (64, 12)),
    "image, group, odd": ({"norm": "group", "depth": 3}, (71, 13)),
    "volume, group, odd": ({"norm": "group", "depth": 2, "dims": 3, "block": "residual", **VOLUMES}, (65, 5, 6)),
    "volume, instance": ({"norm": "instance", "depth": 2, "dims": 3, **VOLUMES}, (64, 4, 8)),
    "volume, overlapping": ({"norm": "batch", "depth": 3, "dims": 3}, (64, 8, 8)),
    "image, objects": ({"norm": "batch", "depth": 3}, (71, 12)),
}
PROCESSES = 4
SIZES = {"1 x 4": 4, "2 x 2": 2}  # how many processes share a volume


def task_and_targets(case: str, size: tuple[int, ...]) -> tuple[Task, Target]:
    """The task that the name of a case ends with, of three outputs, and its targets."""
    masks = torch.randint(0, CLASSES, (IMAGES, *size))
    masks[:, :3] = 255
    if case.endswith("overlapping"):
        bits = torch.randint(0, 8, (2, IMAGES, *size))
        return Overlapping(tuple("abc")), OverlapTarget(truth=bits[0] & bits[1], known=bits[1])
    if case.endswith("objects"):
        ids = torch.div(torch.arange(size[0]), 9, rounding_mode="floor").view(1, -1, *[1] * (len(size) - 1)) + 1
        mask = masks.clamp_max(1).where(masks < 255, 255)
        return Objects(), ObjectTarget(mask=mask, ids=ids.expand_as(mask) * (mask == 1))
    if case.endswith("landmarks"):
        points = torch.rand(IMAGES, CLASSES, len(size), dtype=torch.float64) * torch.tensor(size)
        states = torch.tensor([[PRESENT, ABSENT, PRESENT], [PRESENT, PRESENT, UNKNOWN]])
        shapes = torch.tensor(size).expand(IMAGES, -1)
        return Landmarks(tuple("abc"), nowhere=3.0), PointTarget(points, states, shapes, shapes.double())
    return Classes(tuple("abc"), weights=torch.tensor([0.5, 1, 2])), ClassTarget(masks)


def train(case: str, slabs: Slabs, processes: int, recompute: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each step, and the weights at the end."""
    options, size = (CASES | MORE_CASES)[case]
    torch.manual_seed(0)
    config = UNetConfig(1, CLASSES, base_channels=2, **options)
    network = UNet(config, deep_supervision=True).double().train()
    network.activation_checkpointing = recompute
    images = torch.randn(IMAGES, 1, *size, dtype=torch.float64)
    task, targets = task_and_targets(case, size)
    model: torch.nn.Module = network
    if processes > 1:
        for name, layer in list(network.named_modules()):
            if isinstance(layer, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
                network.set_submodule(name, SynchronizedBatchNorm.from_norm(layer))
    criterion = split_volumes(network, task, slabs)
    if processes > 1:
        model = DistributedDataParallel(network, broadcast_buffers=False)
    groups = processes // slabs.size
    own = slice(slabs.group * IMAGES // groups, (slabs.group + 1) * IMAGES // groups)
    inputs = channels_last(images[own])
    targets = targets.at(own)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
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


def train_in_one_of_several(rank: int, processes: int, cases: list[str], folder: Path) -> None:
    """What each of the cases comes to on each mesh; a file for each process."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    results = {}
    for name, size in SIZES.items():
        for case in cases:
            options, _ = (CASES | MORE_CASES)[case]
            slabs = Slabs.of_process(rank, processes, size, UNetConfig(**options).divisors[0])
            results[name, case] = train(case, slabs, processes, recompute=size == 2)
    torch.save(results, folder / f"results-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("cases", [list(CASES), pytest.param(list(MORE_CASES), marks=pytest.mark.slow)])
def test_every_mesh_gives_the_losses_and_weights_of_one_process(tmp_path, cases):
    call_in_processes(train_in_one_of_several, PROCESSES, cases, tmp_path)
    results = torch.load(tmp_path / "results-0", weights_only=False)
    last_process = torch.load(tmp_path / f"results-{PROCESSES - 1}", weights_only=False)
    assert len(results) == 2 * len(cases)
    of_one_process = {case: train(case, Slabs(), 1, recompute=False) for case in cases}
    for key, (losses, weights) in results.items():
        whole_losses, whole_weights = of_one_process[key[1]]
        assert losses.tolist() == pytest.approx(whole_losses.tolist(), abs=1e-9), key
        assert losses[-1] < losses[0], key
        for name, values in weights.items():
            assert torch.allclose(values, whole_weights[name], rtol=0, atol=1e-9), (key, name)
            assert torch.equal(values, last_process[key][1][name]), (key, name)


def test_run_on_one_process_goes_on_where_it_stopped_on_two(tmp_path):
    """Volumes in patches, batch norm, deep supervision; the two processes make the first half of the steps."""
    write_msd(tmp_path / "data", 5, (16, 16, 36))
    flags = ["--dataset", tmp_path / "data", "--plan", "none", "--base-channels", "2", "--depth", "3"]
    flags += ["--crop-size", "32", "16", "16", "--batch-size", "2", "--schedule", "constant", "--warmup-steps", "0"]
    flags += ["--log-every", "1", "--num-workers", "0", "--tracker", "none", "--resume", "auto"]
    shared = [*flags, "--output-dir", tmp_path / "shared"]
    slabs = ["--max-steps", "1", "--processes-per-volume", "2"]
    half = launch(PROGRAMS / "in_float64.py", "train.py", *shared, *slabs, profile="multi_cpu")
    assert half.returncode == 0, half.stderr
    assert "2 in a micro-batch x 1 group of 2 processes" in half.stdout
    with in_float64():
        rest = run_train(tmp_path / "shared", *flags, "--max-steps", "2")
        whole = run_train(tmp_path / "whole", *flags, "--eval-every", "1", "--max-steps", "2")
    assert rest.exit_code == whole.exit_code == 0, rest.output
    assert "processes_per_volume" not in rest.output, rest.output
    columns = ("step", "train/loss", "train/grad_norm", "eval/loss", "eval/mean_iou")
    check_same_columns(records(tmp_path / "shared"), whole.records, columns)


def accelerator_of(
    kind: DistributedType = DistributedType.MULTI_CPU, backend: DynamoBackend = DynamoBackend.NO
) -> SimpleNamespace:
    """An accelerator of several processes of this kind, which compiles with this backend."""
    plugin = SimpleNamespace(backend=backend)
    return SimpleNamespace(distributed_type=kind, state=SimpleNamespace(dynamo_plugin=plugin))


def network_of(**settings: Any) -> SimpleNamespace:
    """A network of which there are only the settings."""
    return SimpleNamespace(config=UNetConfig(3, 2, base_channels=2, **{"depth": 3} | settings))


REFUSED_CASES = {
    "encoder": (network_of(encoder=encoder.LITE0_CONFIG), {}, "give --encoder none"),
    "interpolation": (network_of(upsample="bilinear"), {}, "--upsample bilinear; give transpose"),
    "dropout": (network_of(dropout=0.1), {}, "--dropout 0.1; give 0"),
    "FSDP": (network_of(), {"kind": DistributedType.FSDP}, "does not work with FSDP"),
    "DeepSpeed": (
        network_of(),
        {"kind": DistributedType.DEEPSPEED},
        "does not work with DEEPSPEED; use a profile of DDP",
    ),
    "compiled": (network_of(), {"backend": DynamoBackend.INDUCTOR}, "leave out --dynamo_backend"),
}


@pytest.mark.parametrize(("network", "launch_settings", "problem"), REFUSED_CASES.values(), ids=REFUSED_CASES)
def test_network_that_cannot_be_cut_is_refused(network, launch_settings, problem):
    with pytest.raises(SettingsError, match=f"^--processes-per-volume .*{problem}"):
        check_slabs(accelerator_of(**launch_settings), network, Slabs(2, divisor=8), 32, "auto")


def test_batch_norm_of_each_process_alone_is_refused():
    check_slabs(accelerator_of(), network_of(), Slabs(), 32, "off")
    with pytest.raises(SettingsError, match=r"^--processes-per-volume .*leave out --sync-batchnorm off"):
        check_slabs(accelerator_of(), network_of(), Slabs(2, divisor=8), 32, "off")


def test_each_process_needs_two_strides_of_a_volume():
    check_slabs(accelerator_of(), network_of(), Slabs(3, divisor=8), 48, "auto")
    line = "^--processes-per-volume 3 needs 48 or more slices along the first axis, 16 for each process, .* have 47"
    with pytest.raises(SettingsError, match=line):
        check_slabs(accelerator_of(), network_of(), Slabs(3, divisor=8), 47, "auto")


def test_groups_must_hold_all_processes():
    line = r"^--processes-per-volume 4 needs a multiple of 4 processes, but 6 were started; give --num_processes 8$"
    with pytest.raises(LaunchError, match=line):
        Slabs.of_process(0, 6, 4)


@pytest.mark.parametrize("bias", [True, False])
def test_convolution_of_a_slab_has_the_precision_of_autocast(bias):
    whole = torch.nn.Conv2d(2, 3, 3, padding=1, bias=bias)
    alone = SimpleNamespace(exchange=lambda *borders: tuple(map(torch.zeros_like, borders)))
    x = torch.rand(1, 2, 6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        output, expected = convolve_slab(whole, x, alone), whole(x)
    assert output.dtype == torch.bfloat16
    assert expected.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, rtol=0, atol=1 / 32)
