"""--trace-steps: what the operators of some steps cost, and what held the memory when it ran out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from support.launches import TINY, launch
from support.run_files import records
from torch.autograd import DeviceType

from train_utils.monitoring import step_trace as step_trace_module


@pytest.fixture(scope="module")
def traced(tiny_folder, tmp_path_factory) -> tuple[Path, str]:
    """The output folder of a run of two processes with two traced steps, and what it printed."""
    output = tmp_path_factory.mktemp("traced") / "run"
    flags = ["--max-steps", "8", "--log-every", "4", "--trace-steps", "2", "--tracker", "none"]
    command = ["train.py", "--dataset", tiny_folder, *TINY, *flags, "--output-dir", output]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    return output, result.stdout


@pytest.mark.parametrize("process", [0, 1])
def test_every_process_writes_a_trace_of_the_steps_behind_the_first_three(traced, process):
    output, _ = traced
    events = json.loads((output / "traces" / f"process-{process}.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#3", "ProfilerStep#4"}
    assert any(event["name"] == "aten::convolution_backward" for event in events)


def test_traces_of_two_processes_are_two_files(traced):
    output, _ = traced
    assert sorted(path.name for path in (output / "traces").iterdir()) == ["process-0.json", "process-1.json"]


def test_operators_of_traced_steps_are_printed(traced):
    _, text = traced
    table = text.split("operator ")[1].split("traces, a file for each process")[0]
    assert "aten::convolution_backward" in table


@pytest.fixture
def last_record(traced) -> dict:
    """The last record of the run's training."""
    output, _ = traced
    return [record for record in records(output) if "perf/compute_percent" in record][-1]


def test_time_of_a_step_is_split_into_data_computation_and_communication(last_record):
    shares = [last_record[f"perf/{name}_percent"] for name in ("data_wait", "compute", "communication")]
    assert sum(shares) == pytest.approx(100, rel=1e-12)  # float64
    assert all(0 < share < 100 for share in shares)


def test_operations_in_a_second_are_counted(last_record):
    assert last_record["perf/teraflops_per_device"] > 0


def test_a_run_that_ends_before_its_traced_steps_leaves_no_profiler_running(tmp_path):
    # on a machine that does not share the folder which the main process has made
    steps = step_trace_module.StepTrace(Accelerator(cpu=True), tmp_path / "run" / "traces", 5)
    for _ in range(3 + 2):
        steps.step()
    steps.close()
    steps.close()
    assert (tmp_path / "run" / "traces" / "process-0.json").exists()
    steps.step()


def test_running_out_of_memory_on_a_gpu_leaves_a_snapshot(tmp_path, monkeypatch):
    # no GPU in the test machine: the device's side is a stand-in
    observers, snapshots, said = [], [], []
    monkeypatch.setattr(step_trace_module, "say", lambda line, **options: said.append((line, options)))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda max_entries: snapshots.append(max_entries))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: open(file, "wb").close())
    accelerator = SimpleNamespace(device=torch.device("cuda", 1), process_index=3, is_main_process=False)
    steps = step_trace_module.StepTrace(accelerator, tmp_path / "traces", 1)
    (observer,) = observers
    assert snapshots == [100_000]
    observer(1, 2**30, 2**34, 0)
    assert (tmp_path / "traces" / "memory-process-3.pickle").exists()
    file = tmp_path / "traces" / "memory-process-3.pickle"
    line = f"out of memory on GPU 1: the allocations are in {file}; open it at pytorch.org/memory_viz"
    assert said == [(line, {"every_process": True})]
    steps.close()


@pytest.mark.parametrize(("process", "is_said"), [(0, True), (2, False)])
def test_a_trace_is_named_by_its_process_and_the_main_one_says_where_it_is(
    tmp_path, monkeypatch, capsys, process, is_said
):
    monkeypatch.setattr(step_trace_module, "top_operators", lambda profile: "the table")
    accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=process, is_main_process=process == 0)
    steps = step_trace_module.StepTrace(accelerator, tmp_path / "traces", 1)
    for _ in range(3 + 1):
        steps.step()
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [f"process-{process}.json"]
    said = f"the table\ntraces, a file for each process: {tmp_path / 'traces'}\n"
    assert capsys.readouterr().out == (said if is_said else "")


@pytest.mark.parametrize(("steps_made", "stops"), [(9, 0), (3, 1)])
def test_a_profiler_is_told_of_its_steps_alone_or_stopped_before_the_last_one(tmp_path, monkeypatch, steps_made, stops):
    calls: list[str] = []
    methods = {name: lambda name=name: calls.append(name) for name in ("start", "step", "stop")}
    monkeypatch.setattr(step_trace_module.ProfileKwargs, "build", lambda options: SimpleNamespace(**methods))
    steps = step_trace_module.StepTrace(Accelerator(cpu=True), tmp_path, 2)
    for _ in range(steps_made):
        steps.step()
    steps.close()
    assert calls == ["start", *["step"] * min(steps_made, 3 + 2), *["stop"] * stops]


def test_without_steps_nothing_is_traced(tmp_path):
    steps = step_trace_module.StepTrace(Accelerator(cpu=True), tmp_path / "traces", 0)
    steps.step()
    steps.close()
    assert not (tmp_path / "traces").exists()


def row(key: str, count: int, cpu: float, device: float, kind: DeviceType = DeviceType.CPU) -> SimpleNamespace:
    """An operator with the microseconds that it takes itself, on the host and on the device."""
    return SimpleNamespace(
        key=key, count=count, self_cpu_time_total=cpu, self_device_time_total=device, device_type=kind
    )


def table_of(*rows: SimpleNamespace) -> list[list[str]]:
    text = step_trace_module.top_operators(SimpleNamespace(key_averages=lambda: rows))
    return [line.split() for line in text.splitlines()]


def test_operators_are_listed_by_the_time_that_they_take_themselves():
    rows = [row("add", 7, 1000, 0), row("conv", 2, 3000, 0)]
    assert table_of(*rows) == [
        ["operator", "calls", "ms", "share"],
        ["conv", "2", "3.0", "75.0%"],
        ["add", "7", "1.0", "25.0%"],
    ]


def test_step_of_the_profiler_is_no_operator():
    assert table_of(row("add", 7, 1000, 0), row("ProfilerStep#4", 1, 9e9, 0))[1:] == [["add", "7", "1.0", "100.0%"]]


def test_operators_on_a_device_are_listed_by_its_time():
    rows = [
        row("add", 7, 9000, 1500),
        row("conv", 2, 10, 500),
        row("kernel", 9, 0, 5000, DeviceType.CUDA),
        row("view", 3, 7000, 0),  # which the host does alone
    ]
    assert table_of(*rows)[1:] == [
        ["add", "7", "1.5", "75.0%"],
        ["conv", "2", "0.5", "25.0%"],
        ["view", "3", "0.0", "0.0%"],
    ]


def test_operators_that_take_no_time_have_no_share():
    assert table_of(row("idle", 1, 0, 0))[1] == ["idle", "1", "0.0", "0.0%"]


def test_twelve_operators_are_listed_with_their_share_of_all():
    rows = [row(f"op{number}", 1, 1000 * (number + 1), 0) for number in range(15)]
    _, *lines = table_of(*rows)
    assert [name for name, *_ in lines] == [f"op{number}" for number in range(14, 2, -1)]
    assert lines[0] == ["op14", "1", "15.0", "12.5%"]


def test_long_name_of_an_operator_is_cut():
    (_, name, *_) = table_of(row(f"operator {'x' * 50}", 1, 1000, 0))[1]
    assert name == "x" * 41
