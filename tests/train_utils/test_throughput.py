"""Where the time of a step goes, and how many operations the model has.

Modules: train_utils/monitoring/flops.py.
"""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from train_utils.monitoring.flops import peak_of, training_flops
from train_utils.monitoring.throughput import Meter, WindowTotals
from unet import UNet, UNetConfig
from unet.model import DeeplySupervisedUNet


def measured(monkeypatch, *, steps: int, data: float = 0.0, compute: float = 1.0, flops=3e12, peak=None) -> Meter:
    """A meter that has seen `steps` steps of 4 images after the warm-up, by a clock that we turn."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr("train_utils.monitoring.throughput.peak_teraflops", lambda accelerator, precision: peak)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), flops, "no")
    for step in range(3 + steps):
        now += data if step >= 3 else 100
        meter.data_ready()
        with meter.paused():
            now += 20  # an evaluation: the next step's data are here already
        with meter.paused():
            now += 30  # a checkpoint
        with meter.communicating():
            now += 0
        now += compute if step >= 3 else 100
        meter.end_step(4)
    return meter


def test_throughput_counts_neither_warm_up_nor_evaluation_and_checkpoints(monkeypatch):
    values = measured(monkeypatch, steps=5, data=1.0, compute=3.0, peak=12).summary()
    assert values == {
        "perf/images_per_second": 1.0,
        "perf/teraflops_per_device": 3.0,
        "perf/peak_flops_percent": 25.0,
        "perf/data_wait_percent": 25.0,
        "perf/compute_percent": 75.0,
    }


def test_three_steps_are_the_warm_up(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1.0, "no")
    for seconds, expected in ((100, None), (50, None), (20, None), (2, 4.0), (8, 1.0)):
        meter.data_ready()
        now += seconds
        meter.end_step(8)
        assert meter.summary().get("perf/images_per_second") == expected  # of the steps since the last summary


def test_numbers_are_those_of_the_process_that_waits_longest_for_its_data(monkeypatch):
    meter = measured(monkeypatch, steps=2, data=1.0, compute=3.0)

    def gathered(own: list[tuple]) -> list[tuple]:
        ((times, memory),) = own
        waiting = replace(times, data=3.0, images=16.0)
        return [(times, memory), (waiting, memory), (replace(times, data=0.0), memory)]

    monkeypatch.setattr("train_utils.monitoring.throughput.gather_object", gathered)
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    values = meter.summary()
    assert values["perf/images_per_second"] == 2.0
    assert values["perf/data_wait_percent"] == 37.5
    assert values["perf/teraflops_per_device"] == 2.0  # 3 TFLOP an image, on three devices


def test_the_bottleneck_is_that_of_the_process_that_waits_longest(monkeypatch):
    meter = measured(monkeypatch, steps=20, compute=4.0)

    def gathered(own: list[tuple]) -> list[tuple]:
        ((times, memory),) = own
        return [(times, memory), (replace(times, data=40.0), memory)]  # of 80 seconds

    monkeypatch.setattr("train_utils.monitoring.throughput.gather_object", gathered)
    meter.summary()
    assert meter.bottleneck(2, cached=True) == "training waited for data 50% of the time: raise --num-workers from 2"


@pytest.mark.parametrize(("device", "steps"), [("cpu", 1), ("cuda", 20)])
def test_the_exchange_of_gradients_is_measured_in_each_step_where_that_costs_nothing(monkeypatch, device, steps):
    class Wrapped(nn.Module):
        def _set_ddp_runtime_logging_sample_rate(self, steps: int) -> None:
            self.steps_for_one_sample = steps

    monkeypatch.setattr("train_utils.monitoring.throughput.DistributedDataParallel", Wrapped)
    monkeypatch.setattr("train_utils.monitoring.throughput.peak_teraflops", lambda accelerator, precision: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(record=lambda: None))
    model = Wrapped()
    Meter(SimpleNamespace(device=torch.device(device)), model, 1.0, "no")
    assert model.steps_for_one_sample == steps


@pytest.mark.parametrize(("steps", "data", "is_named"), [(20, 0.2, True), (20, 0.19, False), (19, 0.9, False)])
def test_a_bottleneck_takes_a_fifth_of_the_time_over_twenty_steps(monkeypatch, steps, data, is_named):
    meter = measured(monkeypatch, steps=steps // 2, data=data, compute=1 - data)
    meter.summary()  # all steps count, not only those since the last log line
    continued = measured(monkeypatch, steps=steps - steps // 2, data=data, compute=1 - data)
    continued._total.add(meter._total)
    continued.summary()
    assert (continued.bottleneck(2, cached=False) is not None) == is_named


def test_time_between_two_steps_counts(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1.0, "no")
    for _ in range(3 + 4):
        meter.data_ready()
        with meter.communicating():
            now += 1
        meter.end_step(8)
        now += 3  # a log line, the next step's augmentation
    assert meter.summary()["perf/images_per_second"] == 2


def test_on_a_gpu_times_are_those_of_events_that_are_over(monkeypatch):
    # no GPU in the test machine: a stand-in whose clock is a step behind the host's
    clock = SimpleNamespace(now=0.0, over=0.0)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def query(self) -> bool:
            return self.at <= clock.over

        def elapsed_time(self, end: "Event") -> float:
            assert end.query(), "read before the device got there"
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3e9)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU of unknown peak")
    other_process = [(WindowTotals(), 2.0)]
    monkeypatch.setattr("train_utils.monitoring.throughput.gather_object", lambda own: [*own, *other_process])
    accelerator = SimpleNamespace(device=torch.device("cuda"), num_processes=1)
    meter = Meter(accelerator, nn.Linear(1, 1), 3e12, "no")
    for step in range(3 + 4):
        clock.now += 1
        meter.data_ready()
        with meter.communicating():
            clock.now += 1
        clock.now += 2 if step < 5 else 4
        meter.end_step(8)
        clock.over = clock.now - (4 if step < 5 else 6)  # the result of the step before was read
    clock.over = clock.now  # a log line: all results are read
    values = meter.summary()
    assert values["perf/images_per_second"] == 4 * 8 / (4 + 4 + 6 + 6)
    assert values["perf/data_wait_percent"] == 20
    assert values["perf/peak_memory_gb"] == 3  # that of the process which needs most
    other_process[0] = WindowTotals(), 5.0
    assert meter.summary() == {"perf/peak_memory_gb": 5}


def test_without_measured_steps_there_is_no_throughput(monkeypatch):
    assert measured(monkeypatch, steps=0).summary() == {}


def test_a_bottleneck_is_named_with_its_remedy(monkeypatch):
    def sentence(cached: bool = False, **times) -> str | None:
        meter = measured(monkeypatch, **times)
        meter.summary()
        return meter.bottleneck(2, cached)

    wanted = "training waited for data 43% of the time: raise --num-workers from 2, or give --cache"
    assert sentence(steps=20, data=0.43, compute=0.57) == wanted
    assert sentence(steps=20, data=0.43, compute=0.57, cached=True) == wanted.removesuffix(", or give --cache")
    assert sentence(steps=20, data=1.0, compute=4.0).startswith("training waited for data 20% of the time")
    assert sentence(steps=20, data=0.05, compute=0.95) is None
    assert sentence(steps=19, data=0.9, compute=0.1) is None


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
def test_flops_are_those_of_a_real_forward_and_backward_pass(upsample):
    network = UNet(UNetConfig(in_channels=1, base_channels=4, depth=3, upsample=upsample))
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 1, 48, 64)).sum().backward()
    assert training_flops(network, 1) == counter.get_total_flops() / (48 * 64)
    network.activation_checkpointing = True  # what is computed twice counts once
    assert training_flops(network, 1) == counter.get_total_flops() / (48 * 64)
    # the head alone: a multiply-add for each of 4 x 2 weights, once forward and twice backward
    assert training_flops(network, 1) > 3 * 2 * 4 * 2


def test_flops_of_training_are_also_those_of_the_heads_of_coarser_levels():
    config = UNetConfig(in_channels=1, base_channels=4, depth=3)
    network = DeeplySupervisedUNet(config)
    with FlopCounterMode(display=False) as counter:
        fine, coarse = network(torch.rand(1, 1, 48, 64))
        (fine.sum() + coarse.sum()).backward()
    assert training_flops(network.eval(), 1) == counter.get_total_flops() / (48 * 64) > training_flops(UNet(config), 1)


@pytest.mark.parametrize("dims", [2, 3])
def test_flops_are_those_of_the_model_and_not_of_saving_memory(dims):
    network = UNet(UNetConfig(in_channels=2, base_channels=1, depth=1, dims=dims))
    flops = training_flops(network, 2)
    network.activation_checkpointing = True
    assert training_flops(network, 2) == flops > 0
    assert network.activation_checkpointing
    assert {parameter.device.type for parameter in network.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989, 495),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H200", 989, 495),
        ("NVIDIA H200 NVL", 835, 418),
        ("NVIDIA H100 NVL", 835, 418),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("NVIDIA GH200 480GB", 989, 495),
        ("NVIDIA B200", 2250, 1125),
        ("NVIDIA GeForce RTX 3090", 71, 35.6),
        ("NVIDIA GeForce RTX 4090", 165, 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 5090", 209, 105),
        ("NVIDIA RTX A6000", 155, 77.4),
        ("NVIDIA RTX 6000 Ada Generation", 364, 182),
        ("NVIDIA L4", 121, 60),
        ("NVIDIA L40S", 362, 183),
        ("Tesla T4", 65, 8.1),
        ("NVIDIA A10G", None, None),
        ("NVIDIA A10", 125, 62.5),
        ("Tesla V100-SXM2-16GB", 125, 15.7),
        ("NVIDIA GeForce RTX 3090 Ti", None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 5090 D", None, None),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None, None),
        ("AMD Instinct MI300X", None, None),
    ],
)
def test_the_peak_is_that_of_the_device_or_unknown(name, half, single):
    assert (peak_of(name, half=True), peak_of(name, half=False)) == (half, single)
