"""A profile's dynamo_backend compiles the blocks of the network that trains, and the loss, and nothing else.

Modules: train_utils/compilation.py.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from accelerate.utils import TorchDynamoPlugin
from class_loss import classes
from conftest import write_folder
from encoders import write_encoder
from in_process import run_train
from torch._dynamo.utils import counters

import train
from tasks.classes import LOSSES, ClassTarget
from tasks.step_loss import StepLoss
from train_utils.compilation import compile_blocks
from train_utils.settings.encoder import load_encoder
from unet import UNet, UNetConfig

# unlike `eager`, this backend gives the compiled backward pass to autograd, as compilers do
ACCELERATOR = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=TorchDynamoPlugin(backend="aot_eager")))
FLAGS = ["--base-channels", "2", "--depth", "1", "--num-workers", "0", "--batch-size", "2", "--tracker", "none"]
FLAGS += ["--plan", "none"]
FLAGS += ["--max-steps", "4", "--eval-every", "2", "--log-every", "2", "--norm", "group"]


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")  # traces as any backend does, and needs no compiler
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_evaluation_takes_the_network_as_it_is(compiled, tmp_path, monkeypatch):
    write_folder(tmp_path / "train", 4, seed=0, size=(16, 24))
    write_folder(tmp_path / "val", 2, seed=1, size=(24, 16))
    graphs = []
    evaluate = train.evaluate

    def counted(*arguments):
        before = counters["stats"]["unique_graphs"]
        evaluation = evaluate(*arguments)
        graphs.append((before, counters["stats"]["unique_graphs"] - before))
        return evaluation

    monkeypatch.setattr(train, "evaluate", counted)
    run = run_train(tmp_path / "compiled", "--dataset", tmp_path, *FLAGS)
    assert run.settings["profile"]["dynamo_backend"] == "eager"
    assert [(before > 0, during) for before, during in graphs] == [(True, 0), (True, 0)]
    monkeypatch.undo()
    plain = run_train(tmp_path / "plain", "--dataset", tmp_path, *FLAGS)
    assert run.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=1e-5)
    assert run.values("eval/loss") == pytest.approx(plain.values("eval/loss"), rel=1e-5)


def trained(network: UNet, *, compiles: bool, checkpointing: bool) -> UNet:
    """A copy of the network after two backward passes, each of a micro-batch of its own."""
    network = copy.deepcopy(network)
    network.activation_checkpointing = checkpointing
    if compiles:
        compile_blocks(ACCELERATOR, network)
    for seed in range(2):
        images = torch.rand(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        network(images).square().mean().backward()
    return network


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", [None, "resnet", "swin", "lite0"])
def test_compiled_blocks_compute_the_same_and_are_left_alone_where_they_run_twice(
    compiled, tmp_path, family, checkpointing
):
    config = UNetConfig(base_channels=2, depth=2)
    if family:
        source = "lite0" if family == "lite0" else write_encoder(tmp_path / family, family)
        encoder = load_encoder(str(source), pretrained=True)
        config = UNetConfig(base_channels=2, depth=encoder.depth, encoder=encoder.config | {"drop_path_rate": 0.0})
    network = UNet(config).double().train()
    plain = trained(network, compiles=False, checkpointing=False)
    ours = trained(network, compiles=True, checkpointing=checkpointing)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 0 if checkpointing else graphs >= len(network.blocks)
    for value, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (value.grad is None) == (other.grad is None)
        if value.grad is not None:
            torch.testing.assert_close(value.grad, other.grad, rtol=1e-12, atol=1e-14)  # float64: measured 0
    for value, other in zip(ours.buffers(), plain.buffers(), strict=True):  # a batch is counted once
        assert torch.equal(value, other)
    assert ours.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_compiled_loss_is_one_graph_for_each_shape(compiled, loss):
    plain = StepLoss(classes(3, loss))
    ours = StepLoss(classes(3, loss))
    ours.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    for size in ((6, 8), (6, 8), (4, 4)):
        logits = torch.randn(2, 3, *size, dtype=torch.float64)
        targets = ClassTarget(torch.randint(0, 3, (2, *size)))
        counts = plain.counts(targets)
        torch.testing.assert_close(ours.counts(targets), counts, rtol=1e-12, atol=0)
        torch.testing.assert_close(ours(logits, targets, counts), plain(logits, targets, counts), rtol=1e-12, atol=0)
    assert counters["stats"]["unique_graphs"] == 2 * 2  # counts and sums of two shapes
