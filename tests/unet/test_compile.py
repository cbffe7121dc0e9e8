"""A profile's dynamo_backend compiles the blocks of the network that trains, the loss, and the colors of augmentation.

Modules: train_utils/compilation.py, train_utils/monitoring/compile_gain.py.
"""

import copy
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin
from class_loss import classes
from conftest import write_folder
from encoders import write_encoder
from in_process import run_train
from networks import LITE, tiny
from torch._dynamo.utils import counters

import train
from data_utils.loading.augment import recolored
from tasks.classes import ClassTarget
from tasks.pixels_and_regions import LOSSES
from tasks.step_loss import StepLoss
from train_utils.compilation import compile_blocks, compile_loss, compiled_recolor, eager, not_compiled_whole
from train_utils.monitoring.compile_gain import CompileGain
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
    assert counters["stats"]["unique_graphs"] == graphs[-1][0]  # what compiling gains is measured without compiling
    pattern = r"compiling took \S+ s; forward and backward pass take \S+ s compiled, \S+ s not compiled: 4 steps lost"
    assert re.search(pattern, run.output)
    assert re.search(pattern.replace("compiling", "Compiling"), (run.folder / "report.html").read_text())
    monkeypatch.undo()
    plain = run_train(tmp_path / "plain", "--dataset", tmp_path, *FLAGS)
    assert "ompiling took" not in plain.output + (plain.folder / "report.html").read_text()
    assert run.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=1e-5)
    assert run.values("eval/loss") == pytest.approx(plain.values("eval/loss"), rel=1e-5)


def trained(network: UNet, accelerator: SimpleNamespace | None, *, checkpointing: bool) -> UNet:
    """A copy of the network after two backward passes of a micro-batch each, compiled where there is an accelerator."""
    network = copy.deepcopy(network)
    network.activation_checkpointing = checkpointing
    size = (16, 16) if network.encoder is None else (64, 64)
    if accelerator is not None:
        compile_blocks(accelerator, network)
    for seed in range(2):
        images = torch.rand(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        network(images).square().mean().backward()
    return network


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "family", [None, *[pytest.param(name, marks=pytest.mark.slow) for name in ("swin", "resnet", "lite0")]]
)
def test_compiled_blocks_compute_the_same_and_are_left_alone_where_they_run_twice(
    compiled, tmp_path, family, checkpointing
):
    config = UNetConfig(base_channels=2, depth=1)
    if family:
        source = "lite0" if family == "lite0" else write_encoder(tmp_path / family, family)
        encoder = load_encoder(str(source), pretrained=True)
        config = UNetConfig(base_channels=2, depth=encoder.depth, encoder=encoder.config | {"drop_path_rate": 0.0})
    network = UNet(config).double().train()
    plain = trained(network, None, checkpointing=False)
    # two kinds of networks are compiled backward too: it takes twice the time
    accelerator = ACCELERATOR if family in (None, "resnet") else QUICK_ACCELERATOR
    ours = trained(network, accelerator, checkpointing=checkpointing)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 0 if checkpointing else graphs >= len(network.blocks)
    for value, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (value.grad is None) == (other.grad is None)
        if value.grad is not None:
            torch.testing.assert_close(value.grad, other.grad, rtol=1e-12, atol=1e-14)  # float64: measured 0
    for value, other in zip(ours.buffers(), plain.buffers(), strict=True):  # a batch is counted once
        assert torch.equal(value, other)
    assert ours.state_dict().keys() == plain.state_dict().keys()


QUICK_LOSSES = {"ce+dice", "ce+logdice", "focal+dice"}  # what the others compute is part of one of them


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


def test_compiled_colors_are_one_graph_for_each_shape_and_equal(compiled):
    recolor = compiled_recolor(ACCELERATOR)
    assert recolor is not recolored
    for size in ((6, 8), (6, 8), (4, 4)):
        generator = torch.Generator().manual_seed(0)
        images = 255 * torch.rand(2, 3, *size, generator=generator)
        numbers = torch.rand(2, 2, 3, 1, 1, generator=generator).unbind()
        statistics = torch.rand(2, 3, 1, 1, generator=generator).unbind()
        assert torch.equal(recolor(images, *numbers, *statistics), recolored(images, *numbers, *statistics))
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize(
    ("plain", "compiled_seconds", "said"),
    [
        (1.0, 0.4, "10 steps gained 0.05 minutes"),  # 10 x 0.6 s, less 3 s
        (1.0, 0.9, "10 steps lost 0.033 minutes; it pays from about 30 steps on"),
        (1.0, 2.0, "10 steps lost 0.22 minutes; without dynamo_backend this run is faster"),
    ],
)
def test_a_run_says_whether_compiling_has_paid(monkeypatch, plain, compiled_seconds, said):
    gain = CompileGain(ACCELERATOR)
    gain.seconds = 3.0
    gain.steps = 10
    gain.passes[2, 3, 8, 8] = 10
    monkeypatch.setattr(gain, "pass_seconds", lambda network, criterion: (plain, compiled_seconds))
    sentence = gain.sentence(None, None)
    assert sentence.startswith("compiling took 3 s; ")
    assert sentence.endswith(said)


def test_a_gain_that_cannot_be_measured_fails_no_run(monkeypatch):
    def fails(network: UNet, criterion: StepLoss):
        raise RuntimeError("out of memory")

    gain = CompileGain(ACCELERATOR)
    gain.steps = 1
    monkeypatch.setattr(gain, "pass_seconds", fails)
    assert gain.sentence(None, None) == "compiling took 0 s; what it gains could not be measured (out of memory)"


@pytest.mark.parametrize(("backend", "dynamic"), [("inductor", None), ("aot_eager", True), ("no", None)])
def test_blocks_loss_and_colors_are_compiled_as_the_profile_says(monkeypatch, backend, dynamic):
    plugin = TorchDynamoPlugin(backend=backend, dynamic=dynamic, mode="reduce-overhead")
    accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin))
    calls = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: calls.append((module, options)))
    monkeypatch.setattr(torch, "compile", lambda function, **options: calls.append((function, options)))
    network = UNet(tiny(depth=5, in_channels=3, encoder=LITE))
    assert set(network.encoder.stages) < set(network.blocks)
    criterion = StepLoss(classes(2))
    compile_blocks(accelerator, network)
    compile_loss(accelerator, criterion)
    compiled_recolor(accelerator)
    expected = [*network.blocks, criterion.task.counts, criterion.task.partial, recolored] if backend != "no" else []
    assert [compiled for compiled, _ in calls] == expected
    for _, options in calls:
        wanted = {"backend": backend, "dynamic": bool(dynamic), "mode": "reduce-overhead"}
        assert {name: options[name] for name in wanted} == wanted
    calls.clear()
    network.activation_checkpointing = True
    compile_blocks(accelerator, network)
    assert calls == []


def test_preparing_compiles_nothing_and_evaluation_is_eager_only_where_something_is_compiled():
    for backend in ("eager", "no"):
        accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=TorchDynamoPlugin(backend=backend)))
        plugin = accelerator.state.dynamo_plugin
        before = plugin.backend
        with not_compiled_whole(accelerator):
            assert plugin.backend == DynamoBackend.NO
        with pytest.raises(KeyError), not_compiled_whole(accelerator):
            raise KeyError("a bug")
        assert plugin.backend == before
        assert isinstance(eager(accelerator), nullcontext) is (backend == "no")
