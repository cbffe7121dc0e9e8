"""--trace-steps: what the operators of some steps cost, and what held the memory when it ran out."""

import json
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from conftest import TINY, launch, records
from torch.autograd import DeviceType

from train_utils.monitoring import profiler


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
    table = result.stdout.split("operator ")[1].split("traces, a file for each process")[0]
    assert "aten::convolution_backward" in table
    last = [record for record in records(tmp_path / "run") if "perf/compute_percent" in record][-1]
    parts = [last[f"perf/{part}_percent"] for part in ("data_wait", "compute", "communication")]
    assert sum(parts) == pytest.approx(100, rel=1e-12)  # float64
    assert all(0 < part < 100 for part in parts)
    assert last["perf/teraflops_per_device"] > 0


def test_a_run_that_ends_before_its_traced_steps_leaves_no_profiler_running(tmp_path):
    # on a machine that does not share the folder which the main process has made
    steps = profiler.StepTrace(Accelerator(cpu=True), tmp_path / "run" / "traces", 5)
    for _ in range(3 + 2):
        steps.step()
    steps.close()
    steps.close()
    assert (tmp_path / "run" / "traces" / "process-0.json").exists()
    steps.step()


def test_running_out_of_memory_on_a_gpu_leaves_a_snapshot(tmp_path, monkeypatch):
    # no GPU in the test machine: the device's side is a stand-in
    observers, snapshots, said = [], [], []
    monkeypatch.setattr(profiler, "say", lambda line, **options: said.append((line, options)))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda max_entries: snapshots.append(max_entries))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: open(file, "wb").close())
    accelerator = SimpleNamespace(device=torch.device("cuda", 1), process_index=1, is_main_process=False)
    steps = profiler.StepTrace(accelerator, tmp_path / "traces", 1)
    (observer,) = observers
    assert snapshots == [100_000]
    observer(1, 2**30, 2**34, 0)
    assert (tmp_path / "traces" / "memory-process-1.pickle").exists()
    file = tmp_path / "traces" / "memory-process-1.pickle"
    line = f"out of memory on GPU 1: the allocations are in {file}; open it at pytorch.org/memory_viz"
    assert said == [(line, {"every_process": True})]
    steps.close()


@pytest.mark.parametrize(("process", "is_said"), [(0, True), (2, False)])
def test_a_trace_is_named_by_its_process_and_the_main_one_says_where_it_is(
    tmp_path, monkeypatch, capsys, process, is_said
):
    monkeypatch.setattr(profiler, "top_operators", lambda profile: "the table")
    accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=process, is_main_process=process == 0)
    steps = profiler.StepTrace(accelerator, tmp_path / "traces", 1)
    for _ in range(3 + 1):
        steps.step()
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [f"process-{process}.json"]
    said = f"the table\ntraces, a file for each process: {tmp_path / 'traces'}\n"
    assert capsys.readouterr().out == (said if is_said else "")


@pytest.mark.parametrize(("steps_made", "stops"), [(9, 0), (3, 1)])
def test_a_profiler_is_told_of_its_steps_alone_or_stopped_before_the_last_one(tmp_path, monkeypatch, steps_made, stops):
    calls: list[str] = []
    methods = {name: lambda name=name: calls.append(name) for name in ("start", "step", "stop")}
    monkeypatch.setattr(profiler.ProfileKwargs, "build", lambda options: SimpleNamespace(**methods))
    steps = profiler.StepTrace(Accelerator(cpu=True), tmp_path, 2)
    for _ in range(steps_made):
        steps.step()
    steps.close()
    assert calls == ["start", *["step"] * min(steps_made, 3 + 2), *["stop"] * stops]


def test_without_steps_nothing_is_traced(tmp_path):
    steps = profiler.StepTrace(Accelerator(cpu=True), tmp_path / "traces", 0)
    steps.step()
    steps.close()
    assert not (tmp_path / "traces").exists()


def test_twelve_operators_are_listed_with_their_share_of_all():
    rows = []
    for number in range(15):
        rows.append(
            SimpleNamespace(
                key=f"operator {number}",
                count=1,
                device_type=DeviceType.CPU,
                self_device_time_total=0,
                self_cpu_time_total=1000 * (number + 1),
            )
        )
    rows[14].key = f"operator 14 {'x' * 50}"
    step = SimpleNamespace(**vars(rows[0]) | {"key": "ProfilerStep#3", "self_cpu_time_total": 10**9})
    table = profiler.top_operators(SimpleNamespace(key_averages=lambda: [*rows, step]))
    _, *lines = table.splitlines()
    assert [line.split()[1] for line in lines] == [str(number) for number in range(14, 2, -1)]
    assert lines[0].split() == ["operator", "14", "x" * 38, "1", "15.0", "12.5%"]
