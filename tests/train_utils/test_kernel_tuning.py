"""When cuDNN times its kernels, and which runs on a GPU are compiled without having been asked to."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from support.accelerators import new_accelerator
from support.in_process import parsed

from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes
from train_utils import kernel_tuning
from train_utils.kernel_tuning import compile_long_run, kernel_seconds, tune_kernels
from unet import UNet, UNetConfig

FEW = NetworkShapes(np.array([(8, 8), (8, 16)] * 5), np.array([(8, 8), (32, 32)]))
MANY = NetworkShapes(np.array([(8, 8 * width) for width in range(1, 6)]), np.array([(8, 8)]))


@pytest.mark.parametrize(
    ("device", "shapes", "flags", "is_tuned"),
    [
        ("cuda", FEW, [], True),
        ("cuda", FEW, ["--max-minutes", "10"], True),
        ("cuda", FEW, ["--max-minutes", "9.9"], False),
        ("cuda", FEW, ["--deterministic"], False),
        ("cuda", MANY, [], False),
        ("cpu", FEW, [], False),
    ],
)
def test_kernels_are_timed_on_a_gpu_for_few_shapes_in_a_long_run(device, shapes, flags, is_tuned):
    with torch.backends.cudnn.flags(benchmark=not is_tuned):
        tune_kernels(parsed("--dataset", "shapes", *flags), torch.device(device), shapes)
        assert torch.backends.cudnn.benchmark == is_tuned


LONG = ["--max-steps", "100000"]
ONE = NetworkShapes(np.array([(64, 64)] * 8), np.array([(64, 64)]))
FULL_AND_SHORT = NetworkShapes(np.array([(64, 64)] * 10), np.array([(64, 64)]))
THOUSANDS = NetworkShapes(np.full((80_000, 2), 64), np.array([(64, 64)]))


class Images(list):
    """The training images of a folder."""

    records = SimpleNamespace(group_sizes=None)


def compiled(
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    *,
    shapes: NetworkShapes = ONE,
    recorded: dict | None = None,
    kind: DistributedType = DistributedType.NO,
    checkpointing: bool = False,
) -> TorchDynamoPlugin:
    """What a run with these flags on a GPU that can compile asks of the compiler."""
    monkeypatch.setattr(kernel_tuning, "can_compile", lambda device: device.type == "cuda")
    monkeypatch.setattr(kernel_tuning, "allow_graphs", lambda falls_back: None)
    info = SimpleNamespace(train=Images(shapes.train), config=SimpleNamespace(seed=0))
    accelerator = new_accelerator(device="cuda", kind=kind)
    accelerator.state = SimpleNamespace(dynamo_plugin=TorchDynamoPlugin(backend="no"))
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = checkpointing
    compile_long_run(
        accelerator,
        parsed("--dataset", "shapes", "--batch-size", "4", *flags),
        info,
        network,
        BatchSplit(4, 1, 4, 1),
        shapes,
        recorded,
    )
    return accelerator.state.dynamo_plugin


@pytest.mark.parametrize(
    ("flags", "options", "is_compiled"),
    [
        (LONG, {}, True),
        (["--epochs", "30000"], {}, True),  # of two steps, which take a hundredth of a second
        (["--epochs", "29999"], {}, False),
        (["--max-steps", "1000"], {}, False),
        (["--max-minutes", "10"], {}, True),
        (["--max-minutes", "9.9"], {}, False),
        (["--max-minutes", "9.9", "--epochs", "30000"], {}, False),
        (["--max-minutes", "14"], {"shapes": FEW}, False),  # two shapes and their mixture take 15 minutes to pay
        (["--max-minutes", "15"], {"shapes": FEW}, True),
        (["--max-minutes", "10"], {"shapes": FULL_AND_SHORT}, True),
        (["--max-minutes", "60"], {"shapes": THOUSANDS}, False),  # a shape might come too late
        (["--max-minutes", "90"], {"shapes": THOUSANDS}, True),
        ([*LONG, "--deterministic"], {}, False),
        ([*LONG, "--processes-per-volume", "2"], {}, False),
        (LONG, {"kind": DistributedType.FSDP}, False),
        (LONG, {"checkpointing": True}, False),
        (LONG, {"recorded": {"processes": 1}}, False),  # the run that goes on was not compiled
        (["--max-steps", "1000"], {"recorded": {"dynamo_backend": "inductor"}}, True),
    ],
)
def test_a_long_run_on_a_gpu_is_compiled(monkeypatch, capsys, flags, options, is_compiled):
    plugin = compiled(monkeypatch, flags, **options)
    assert plugin.backend == (DynamoBackend.INDUCTOR if is_compiled else DynamoBackend.NO)
    assert ("--dynamo_backend no" in capsys.readouterr().out) == is_compiled


@pytest.mark.parametrize("backend", ["NO", "EAGER"])
def test_a_launch_that_names_a_backend_decides(monkeypatch, backend):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", backend)
    assert compiled(monkeypatch, LONG).backend == DynamoBackend.NO  # as this stand-in's profile says


def test_a_step_of_the_size_that_was_measured_has_its_time():
    measured = kernel_seconds(UNetConfig(base_channels=32), (512, 512), images=16)
    assert measured == pytest.approx(0.0387, rel=0.1)
    volumes = kernel_seconds(UNetConfig(base_channels=32, dims=3, in_channels=1), (128, 128, 128), images=1)
    assert volumes == pytest.approx(0.057, rel=0.1)
