"""Where the time of a step goes, how many operations the model has, and traces of what they cost."""

import json
import time
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from conftest import TINY, launch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from train_utils.monitoring import profiler
from train_utils.monitoring.flops import peak_of, training_flops
from train_utils.monitoring.throughput import ENOUGH_STEPS, WARMUP_STEPS, Meter
from unet import UNet, UNetConfig


def measured(monkeypatch, *, steps: int, data: float = 0.0, compute: float = 1.0, flops=3e12, peak=None) -> Meter:
    """A meter that has seen `steps` steps of 4 images after the warm-up, by a clock that we turn."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), flops, peak)
    for step in range(WARMUP_STEPS + steps):
        meter.start_step()
        now += data if step >= WARMUP_STEPS else 100
        meter.data_ready()
        with meter.communicating():
            now += 0
        now += compute if step >= WARMUP_STEPS else 100
        meter.end_step(4)
        now += 50  # evaluation, checkpoints
    return meter


def test_throughput_counts_neither_warm_up_nor_what_happens_between_steps(monkeypatch):
    values = measured(monkeypatch, steps=5, data=1.0, compute=3.0, peak=12).summary()
    assert values == pytest.approx(
        {
            "perf/images_per_second": 1.0,
            "perf/teraflops_per_device": 3.0,
            "perf/peak_flops_percent": 25.0,
            "perf/data_wait_percent": 25.0,
            "perf/compute_percent": 75.0,
        }
    )


def test_on_a_gpu_times_are_those_of_events_that_are_over(monkeypatch):
    # no GPU in the test machine: a stand-in whose clock is one step behind the host's
    clock = SimpleNamespace(now=0.0, over=0.0)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def elapsed_time(self, end: "Event") -> float:
            assert end.at <= clock.over, "read before the device got there"
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: setattr(clock, "over", clock.now))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3e9)
    monkeypatch.setattr("train_utils.monitoring.throughput.gather_object", lambda found: found)
    accelerator = SimpleNamespace(device=torch.device("cuda"), num_processes=1)
    meter = Meter(accelerator, nn.Linear(1, 1), 3e12, None)
    for _ in range(WARMUP_STEPS + 4):
        meter.start_step()
        clock.now += 1
        meter.data_ready()
        with meter.communicating():
            clock.now += 1
        clock.over = clock.now  # the norm of the gradient was read
        clock.now += 2
        meter.end_step(8)
    values = meter.summary()
    assert values["perf/images_per_second"] == pytest.approx(2)
    assert values["perf/data_wait_percent"] == pytest.approx(25)
    assert values["perf/peak_memory_gb"] == 3


def test_without_measured_steps_there_is_no_throughput(monkeypatch):
    assert measured(monkeypatch, steps=0).summary() == {}


def test_a_bottleneck_is_named_with_its_remedy(monkeypatch):
    def sentence(cached: bool = False, **times) -> str | None:
        meter = measured(monkeypatch, **times)
        meter.summary()
        return meter.bottleneck(2, cached)

    wanted = "waiting for data 43% of the time: raise --num-workers from 2, or --cache"
    assert sentence(steps=ENOUGH_STEPS, data=0.43, compute=0.57) == wanted
    assert sentence(steps=ENOUGH_STEPS, data=0.43, compute=0.57, cached=True) == wanted.removesuffix(", or --cache")
    assert sentence(steps=ENOUGH_STEPS, data=0.05, compute=0.95) is None
    assert sentence(steps=ENOUGH_STEPS - 1, data=0.9, compute=0.1) is None


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
def test_flops_are_those_of_a_real_forward_and_backward_pass(upsample):
    network = UNet(UNetConfig(in_channels=1, base_channels=4, depth=3, upsample=upsample))
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 1, 48, 64)).sum().backward()
    assert training_flops(network, 1) == pytest.approx(counter.get_total_flops() / (48 * 64))
    # the head alone: a multiply-add for each of 4 x 2 weights, once forward and twice backward
    assert training_flops(network, 1) > 3 * 2 * 4 * 2


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989, 495),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H200", 989, 495),
        ("NVIDIA H200 NVL", None, None),
        ("NVIDIA L4", 121, 60),
        ("NVIDIA L40S", 362, 183),
        ("Tesla T4", 65, 8.1),
        ("NVIDIA A10G", None, None),
        ("AMD Instinct MI300X", None, None),
    ],
)
def test_the_peak_is_that_of_the_device_or_unknown(name, half, single):
    assert (peak_of(name, half=True), peak_of(name, half=False)) == (half, single)


def test_every_process_writes_a_trace_and_the_step_is_split(tiny_folder, tmp_path):
    flags = ["--max-steps", "8", "--log-every", "4", "--trace-steps", "2", "--tracker", "none"]
    command = ["train.py", "--dataset", tiny_folder, *TINY, *flags, "--output-dir", tmp_path / "run"]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in (tmp_path / "run" / "traces").iterdir())
    assert names == ["process-0.json", "process-1.json"]
    for name in names:
        events = json.loads((tmp_path / "run" / "traces" / name).read_text())["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep")}
        assert steps == {"ProfilerStep#3", "ProfilerStep#4"}
        assert any(event["name"] == "aten::convolution_backward" for event in events)
    table = result.stdout.split("operator ")[1].split("trace of each process")[0]
    assert "aten::convolution_backward" in table
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "perf/compute_percent" in record][-1]
    parts = [last[f"perf/{part}_percent"] for part in ("data_wait", "compute", "communication")]
    assert sum(parts) == pytest.approx(100)
    assert all(0 < part < 100 for part in parts)
    assert last["perf/teraflops_per_device"] > 0


def test_a_run_that_ends_before_its_traced_steps_leaves_no_profiler_running(tmp_path):
    steps = profiler.StepTrace(Accelerator(cpu=True), tmp_path / "traces", 5)
    for _ in range(WARMUP_STEPS + 2):
        steps.step()
    steps.close()
    steps.close()
    assert (tmp_path / "traces" / "process-0.json").exists()
    steps.step()


def test_running_out_of_memory_on_a_gpu_leaves_a_snapshot(tmp_path, monkeypatch, capsys):
    # no GPU in the test machine: the device's side is a stand-in
    observers, kept = [], []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda max_entries: kept.append(max_entries))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: open(file, "wb").close())
    accelerator = SimpleNamespace(device=torch.device("cuda", 1), process_index=1, is_main_process=False)
    steps = profiler.StepTrace(accelerator, tmp_path / "traces", 1)
    (observer,) = observers
    assert kept == [profiler.MEMORY_EVENTS]
    observer(1, 2**30, 2**34, 0)
    assert (tmp_path / "traces" / "memory-process-1.pickle").exists()
    assert "out of memory on GPU 1" in capsys.readouterr().out
    steps.close()
