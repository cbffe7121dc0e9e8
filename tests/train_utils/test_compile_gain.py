"""What compiling gains or loses over all passes of a run."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from train_utils.monitoring import compile_gain
from train_utils.monitoring.compile_gain import CompileGain
from unet import UNet, UNetConfig


def test_the_seconds_of_a_pass_are_the_median_without_the_first_pair(monkeypatch):
    seconds = iter([90.0, 80.0, 0.3, 0.1, 0.5, 0.2, 0.4, 0.3, 2.0, 2.0, 9.0, 9.0])  # not compiled, compiled, and so on
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)

    def criterion(logits, targets, counts):
        clock.now += next(seconds)
        return logits.sum()

    criterion.task = SimpleNamespace(zero_targets=lambda shape, device: None)
    criterion.counts = lambda targets: None
    monkeypatch.setattr(compile_gain, "time", clock)
    monkeypatch.setattr(compile_gain, "compile_blocks", lambda accelerator, network: None)
    monkeypatch.setattr(compile_gain, "eager", lambda accelerator: nullcontext())
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: nullcontext())
    monkeypatch.setattr(compile_gain, "MEASURED_SECONDS", 173)
    gain = object.__new__(CompileGain)
    gain.accelerator = SimpleNamespace(device=torch.device("cpu"))
    gain.passes = Counter({(1, 3, 4, 4): 1, (2, 3, 4, 4): 2})
    network = UNet(UNetConfig(base_channels=1, depth=1))
    assert gain.pass_seconds(network, criterion) == pytest.approx((0.45, 0.25))


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
    assert gain.balance_text(1.0, 1.0).endswith("lost 1 minutes; without dynamo_backend this run is faster")
