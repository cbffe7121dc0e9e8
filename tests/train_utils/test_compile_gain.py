"""What compiling gains or loses over all passes of a run."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from train_utils.monitoring import compile_gain
from train_utils.monitoring.compile_gain import CompileGain
from unet import UNet, UNetConfig


def test_the_seconds_of_a_pass_are_the_median_without_the_first_pair(monkeypatch):
    seconds = iter([90.0, 80.0, 0.3, 0.1, 0.5, 0.2, 0.4, 0.3, 2.0, 2.0, 9.0, 9.0])  # not compiled, compiled, and so on
    clock = SimpleNamespace(now=500.0, perf_counter=lambda: clock.now)
    queued: list[float] = []  # seconds that the device will take
    modes: list[str] = []  # that of each pass
    mode: list[str] = []

    @contextmanager
    def in_mode(name: str) -> Iterator[None]:
        mode.append(name)
        yield
        mode.clear()

    def wait(device: torch.device) -> None:
        clock.now += sum(queued)
        queued.clear()

    def criterion(logits, targets, counts):
        assert logits.shape[0] == 2
        assert targets == (2, 4, 6)
        assert counts == "counts of (2, 4, 6)"
        modes.extend(mode)
        queued.append(next(seconds))
        return logits.sum()

    criterion.task = SimpleNamespace(zero_targets=lambda shape, device: shape)
    criterion.counts = lambda targets: f"counts of {targets}"
    monkeypatch.setattr(compile_gain, "time", clock)
    monkeypatch.setattr(compile_gain, "wait_for", wait)
    monkeypatch.setattr(compile_gain, "compile_blocks", lambda accelerator, network: None)
    monkeypatch.setattr(compile_gain, "eager", lambda accelerator: in_mode("eager"))
    monkeypatch.setattr(torch.compiler, "set_stance", in_mode)
    monkeypatch.setattr(compile_gain, "MEASURED_SECONDS", 173)
    gain = object.__new__(CompileGain)
    gain.accelerator = SimpleNamespace(device=torch.device("cpu"))
    gain.passes = Counter({(1, 3, 4, 6): 1, (2, 3, 4, 6): 2})  # the most frequent shape
    network = UNet(UNetConfig(base_channels=1, depth=1))
    assert gain.pass_seconds(network, criterion) == pytest.approx((0.45, 0.25))
    assert modes == ["eager", "fail_on_recompile"] * 5


@pytest.mark.parametrize(("seconds", "passes"), [(3.0, 2 * 2), (0.6, 2 * 2), (0.3, 2 * 4), (0.01, 2 * 6)])
def test_pairs_of_passes_are_timed_for_two_seconds_and_six_at_most(monkeypatch, seconds, passes):
    clock = SimpleNamespace(now=500.0, perf_counter=lambda: clock.now)
    calls = []

    def criterion(logits, targets, counts):
        calls.append(logits.requires_grad)
        clock.now += seconds
        return logits.sum()

    criterion.task = SimpleNamespace(zero_targets=lambda shape, device: None)
    criterion.counts = lambda targets: None
    monkeypatch.setattr(compile_gain, "time", clock)
    compiled = []
    monkeypatch.setattr(compile_gain, "compile_blocks", lambda accelerator, network: compiled.append(network))
    monkeypatch.setattr(compile_gain, "eager", lambda accelerator: nullcontext())
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: nullcontext())
    gain = object.__new__(CompileGain)
    gain.accelerator = SimpleNamespace(device=torch.device("cpu"))
    gain.passes = Counter({(1, 3, 4, 4): 1})
    network = UNet(UNetConfig(base_channels=1, depth=1)).eval()
    trains = []
    run = []

    def note(module: UNet, arguments: tuple[torch.Tensor]) -> None:
        trains.append(module.training)
        run.append(module)
        assert arguments[0].is_contiguous(memory_format=torch.channels_last)
        assert all(parameter.grad is None for parameter in module.parameters())  # each pass begins anew

    network.register_forward_pre_hook(note)
    assert gain.pass_seconds(network, criterion) == pytest.approx((seconds, seconds))
    assert len(calls) == passes
    assert trains == [True] * passes
    assert not network.training
    assert all(parameter.grad is None for parameter in network.parameters())  # a copy was measured
    assert compiled == [run[0]]
    assert run[0] is not network


def test_cost_and_gain_of_compiling_are_a_sentence():
    gain = CompileGain(SimpleNamespace(state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend="NO"))))
    assert not gain.compiles
    assert gain.sentence(None, None) is None
    stopped = []
    gain._stop = lambda: stopped.append(True)
    gain.compiles = True
    gain.seconds = 12.345
    assert gain.sentence(None, None) is None
    assert stopped == [True]
    gain.add_step([SimpleNamespace(images=torch.zeros(shape)) for shape in ((2, 3, 4, 4), (2, 3, 4, 4), (1, 3, 4, 4))])
    gain.add_step([SimpleNamespace(images=torch.zeros(1, 3, 4, 4))])
    assert gain.steps == 2
    assert gain.passes == Counter({(2, 3, 4, 4): 2, (1, 3, 4, 4): 2})
    gain.accelerator.distributed_type = DistributedType.MULTI_CPU
    cost = "compiling took 12.3 s"
    line = f"{cost} on the main process; what it gains is measured in runs of one process only"
    assert gain.sentence(None, None) == line
    gain.accelerator.distributed_type = DistributedType.NO
    gain.pass_seconds = lambda network, criterion: (60.0, 30.0)
    assert gain.sentence(None, None) == f"{cost}; {gain.balance_text(60.0, 30.0)}"

    for kind in (RuntimeError, MemoryError):

        def fail(*arguments: object, kind: type[Exception] = kind) -> None:
            raise kind("out of\nmemory")

        gain.pass_seconds = fail
        assert gain.sentence(None, None) == f"{cost}; what it gains could not be measured (out of memory)"


def test_a_run_listens_to_the_compiler_until_its_end(monkeypatch):
    listeners = []
    handler = SimpleNamespace(
        register_start_callback=listeners.append,
        register_end_callback=listeners.append,
        remove_start_callback=listeners.remove,
        remove_end_callback=listeners.remove,
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=handler))
    clock = SimpleNamespace(now=100.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(compile_gain, "time", clock)
    gain = CompileGain(SimpleNamespace(state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend="INDUCTOR"))))
    begin, end = listeners
    for seconds in (3.0, 4.0):
        begin(None)
        clock.now += seconds
        end(None)
        clock.now += 50  # in which nothing is compiled
    assert gain.seconds == 7
    assert gain.sentence(None, None) is None
    assert listeners == []


def test_compiling_pays_by_all_passes_of_a_run():
    gain = object.__new__(CompileGain)
    gain.seconds = 0.0
    gain.passes = Counter({(2, 3, 8, 8): 60, (1, 3, 8, 8): 40})
    gain.steps = 50
    for seconds in (20, 40):
        gain._note_begin(None)
        gain._begin -= seconds
        gain._note_end(None)
    assert gain.seconds == pytest.approx(60, abs=0.1)
    gain.seconds = 60.0
    text = "forward and backward pass take 1 s compiled, {} s not compiled: 50 steps {}"
    assert gain.balance_text(2.0, 1.0) == text.format("2", "gained 0.67 minutes")
    assert gain.balance_text(1.5, 1.0) == text.format("1.5", "lost 0.17 minutes; it pays from about 60 steps on")
    gain.seconds = 50.0
    assert gain.balance_text(1.5, 1.0) == text.format("1.5", "lost 0 minutes; it pays from about 50 steps on")
    gain.seconds = 60.0
    gain.steps = 12_000
    outcome = "12,000 steps lost 0.17 minutes; it pays from about 14,400 steps on"
    assert gain.balance_text(1.5, 1.0).endswith(outcome)
    assert gain.balance_text(1.0, 1.0).endswith("lost 1 minutes; without dynamo_backend this run is faster")
