"""A profile's dynamo_backend compiles the blocks of the network that trains, and the loss.

On a GPU, long runs are compiled and their kernels timed without having been asked to.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from support.class_loss import classes
from support.encoders import write_encoder
from support.folders import write_folder
from support.in_process import parsed, run_train
from torch._dynamo.utils import counters

from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes
from runtime.launch import allow_graphs
from tasks.classes.target import ClassTarget
from tasks.losses import LOSSES
from tasks.step_loss import StepLoss
from train_utils import compilation
from train_utils.compilation import compile_long_run, compile_training, tune_kernels
from train_utils.settings.encoder import load_encoder
from unet import UNet, UNetConfig

# unlike `eager`, this backend gives the compiled backward pass to autograd, as compilers do
PROFILE = SimpleNamespace(dynamo_plugin=TorchDynamoPlugin(backend="aot_eager"))
ACCELERATOR = SimpleNamespace(state=PROFILE, distributed_type=DistributedType.NO)
QUICK_PROFILE = SimpleNamespace(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
QUICK_ACCELERATOR = SimpleNamespace(state=QUICK_PROFILE, distributed_type=DistributedType.NO)
FLAGS = ["--base-channels", "2", "--depth", "1", "--num-workers", "0", "--batch-size", "2", "--tracker", "none"]
FLAGS += ["--plan", "none"]
FLAGS += ["--max-steps", "4", "--eval-every", "2", "--log-every", "2", "--norm", "group"]


@contextmanager
def compiling(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, a profile compiles, from a state without graphs."""
    patch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")  # traces as any backend does, and needs no compiler
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch):
    with compiling(monkeypatch):
        yield


def test_a_compiled_run_has_the_losses_of_one_that_is_not(tmp_path):
    write_folder(tmp_path / "data" / "train", 4, seed=0, size=(16, 24))
    write_folder(tmp_path / "data" / "val", 2, seed=1, size=(24, 16))
    plain = run_train(tmp_path / "plain", "--dataset", tmp_path / "data", *FLAGS)
    with pytest.MonkeyPatch.context() as patch, compiling(patch):
        ours = run_train(tmp_path / "compiled", "--dataset", tmp_path / "data", *FLAGS)
        assert counters["stats"]["unique_graphs"] > 0
    assert ours.settings["profile"]["dynamo_backend"] == "eager"
    for key in ("train/loss", "eval/loss"):
        assert ours.values(key) == pytest.approx(plain.values(key), rel=1e-5)


def trained(network: UNet, accelerator: SimpleNamespace | None, *, checkpointing: bool) -> UNet:
    """A copy of the network after two backward passes of a micro-batch each, compiled where there is an accelerator."""
    network = copy.deepcopy(network)
    network.activation_checkpointing = checkpointing
    size = (16, 16) if network.encoder is None else (64, 64)
    if accelerator is not None:
        compile_training(accelerator, network, torch.nn.Identity())
    for seed in range(2):
        images = torch.rand(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        network(images).square().mean().backward()
    return network


FAMILIES = [None, "swin", "resnet", "lite0"]


def network_of_family(family: str | None, folder: Path) -> UNet:
    """A network in float64, with an encoder of this family or without one."""
    config = UNetConfig(base_channels=2, depth=1)
    if family:
        source = "lite0" if family == "lite0" else write_encoder(folder / family, family)
        encoder = load_encoder(str(source), pretrained=True)
        config = UNetConfig(base_channels=2, depth=encoder.depth, encoder=encoder.config | {"drop_path_rate": 0.0})
    return UNet(config).double().train()


def check_same(ours: UNet, plain: UNet) -> None:
    """Both networks have the same gradients and statistics."""
    for value, other in zip(ours.parameters(), plain.parameters(), strict=True):
        gradients = [tensor.grad for tensor in (value, other) if tensor.grad is not None]
        assert len(gradients) != 1
        torch.testing.assert_close(gradients[:1], gradients[1:], rtol=1e-12, atol=1e-14)  # float64: measured 0
    for value, other in zip(ours.buffers(), plain.buffers(), strict=True):  # a batch is counted once
        assert torch.equal(value, other)
    assert ours.state_dict().keys() == plain.state_dict().keys()


# two kinds of networks are compiled backward too: it takes twice the time
ACCELERATORS = {None: ACCELERATOR, "resnet": ACCELERATOR, "swin": QUICK_ACCELERATOR, "lite0": QUICK_ACCELERATOR}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_blocks_compute_the_same(compiled, tmp_path, family):
    network = network_of_family(family, tmp_path)
    ours = trained(network, ACCELERATORS[family], checkpointing=False)
    assert counters["stats"]["unique_graphs"] >= len(network.blocks)
    check_same(ours, trained(network, None, checkpointing=False))


@pytest.mark.parametrize("family", [None, *[pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:]]])
def test_blocks_that_run_twice_are_not_compiled(compiled, tmp_path, family):
    network = network_of_family(family, tmp_path)
    ours = trained(network, ACCELERATORS[family], checkpointing=True)
    assert counters["stats"]["unique_graphs"] == 0
    check_same(ours, trained(network, None, checkpointing=False))


QUICK_LOSSES = {"ce+logdice", "focal+dice"}  # what the others compute is part of one of them


@pytest.mark.parametrize(
    "loss", [loss if loss in QUICK_LOSSES else pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES]
)
def test_a_compiled_loss_is_one_graph_for_each_shape(compiled, loss):
    plain = StepLoss(classes(3, loss))
    ours = StepLoss(classes(3, loss))
    ours.compile(backend="eager", fullgraph=True, dynamic=False)
    for size in ((6, 8), (6, 8), (4, 4)):
        logits = torch.randn(2, 3, *size, dtype=torch.float64)
        targets = ClassTarget(torch.randint(0, 3, (2, *size)))
        counts = plain.counts(targets)
        torch.testing.assert_close(ours.counts(targets), counts, rtol=1e-12, atol=0)
        torch.testing.assert_close(ours(logits, targets, counts), plain(logits, targets, counts), rtol=1e-12, atol=0)
    assert counters["stats"]["unique_graphs"] == 2 * 2  # counts and sums of two shapes


def no_compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
    raise RuntimeError("no compiler is installed")


def test_what_a_run_compiles_by_itself_runs_as_it_is_where_the_compiler_fails(compiled, capfd):
    plain = torch.nn.Linear(2, 3)
    ours = copy.deepcopy(plain)
    ours.compile(backend=no_compiler)
    x = torch.rand(4, 2)
    allow_graphs(falls_back=True)
    try:
        assert torch.equal(ours(x), plain(x))
    finally:
        allow_graphs()
        torch._logging.set_logs()
    assert capfd.readouterr().err == ""


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
    ],
)
def test_a_long_run_on_a_gpu_is_compiled(monkeypatch, capsys, flags, options, is_compiled):
    monkeypatch.setattr(compilation, "can_compile", lambda device: device.type == "cuda")
    monkeypatch.setattr(compilation, "allow_graphs", lambda falls_back: None)
    if "named" in options:
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", options["named"])
    plugin = TorchDynamoPlugin(backend="no")
    accelerator = SimpleNamespace(
        device=torch.device("cuda"),
        distributed_type=options.get("kind", DistributedType.NO),
        state=SimpleNamespace(dynamo_plugin=plugin),
    )
    network = UNet(UNetConfig(base_channels=32, depth=1))
    network.activation_checkpointing = "checkpointing" in options
    args = parsed("--dataset", "shapes", "--batch-size", "4", *flags)
    shapes = options.get("shapes", ONE)
    compile_long_run(accelerator, args, network, BatchSplit(4, 1, 4, 1), shapes)
    assert plugin.backend == (DynamoBackend.INDUCTOR if is_compiled else DynamoBackend.NO)
    assert ("--dynamo_backend no" in capsys.readouterr().out) == is_compiled
