"""When cuDNN times its kernels, and which runs on a GPU are compiled without having been asked to.

Module: train_utils/compilation.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from support.accelerators import new_accelerator
from support.in_process import parsed

from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes
from train_utils import compilation
from train_utils.compilation import compile_long_run, tune_kernels
from unet import UNet, UNetConfig

FEW = NetworkShapes(np.array([(8, 8), (8, 16)] * 5), np.array([(8, 8), (32, 32)]))
MANY = NetworkShapes(np.array([(8, 8 * width) for width in range(1, 6)]), np.array([(8, 8)]))
ONE = NetworkShapes(np.array([(64, 64)] * 8), np.array([(64, 64)]))
THOUSANDS = NetworkShapes(np.full((80_000, 2), 64), np.array([(64, 64)]))
LARGE = NetworkShapes(np.array([(2048, 2048)] * 8), np.array([(64, 64)]))
LONG = ["--max-steps", "100000"]


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


@pytest.mark.parametrize(
    ("flags", "options", "is_compiled"),
    [
        (LONG, {}, True),
        (["--epochs", "30000"], {}, True),  # of two steps, which take a hundredth of a second
        (["--epochs", "29999"], {}, False),
        (["--max-steps", "4000"], {"shapes": LARGE}, True),  # of a sixth of a second
        (["--max-minutes", "10"], {}, True),
        (["--max-minutes", "9.9"], {}, False),
        (["--max-minutes", "9.9", "--epochs", "30000"], {}, False),
        (["--max-minutes", "20"], {"shapes": MANY}, False),  # five shapes take 25 minutes to pay
        (["--max-minutes", "60"], {"shapes": THOUSANDS}, False),  # a shape might come too late
        (["--max-minutes", "90"], {"shapes": THOUSANDS}, True),
        ([*LONG, "--deterministic"], {}, False),
        ([*LONG, "--processes-per-volume", "2"], {}, False),
        (LONG, {"kind": DistributedType.FSDP}, False),
        (LONG, {"checkpointing": True}, False),
        (LONG, {"named": "NO"}, False),  # by the launch
        (LONG, {"recorded": {"processes": 1}}, False),  # the run that goes on was not compiled
        (["--max-steps", "1000"], {"recorded": {"dynamo_backend": "inductor"}}, True),
    ],
)
def test_a_long_run_on_a_gpu_is_compiled(monkeypatch, capsys, flags, options, is_compiled):
    monkeypatch.setattr(compilation, "can_compile", lambda device: device.type == "cuda")
    monkeypatch.setattr(compilation, "allow_graphs", lambda falls_back: None)
    if "named" in options:
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", options["named"])
    plugin = TorchDynamoPlugin(backend="no")
    accelerator = new_accelerator(device="cuda", kind=options.get("kind", DistributedType.NO))
    accelerator.state = SimpleNamespace(dynamo_plugin=plugin)
    network = UNet(UNetConfig(base_channels=32, depth=1))
    network.activation_checkpointing = "checkpointing" in options
    args = parsed("--dataset", "shapes", "--batch-size", "4", *flags)
    shapes = options.get("shapes", ONE)
    compile_long_run(accelerator, args, network, BatchSplit(4, 1, 4, 1), shapes, options.get("recorded"))
    assert plugin.backend == (DynamoBackend.INDUCTOR if is_compiled else DynamoBackend.NO)
    assert ("--dynamo_backend no" in capsys.readouterr().out) == is_compiled
