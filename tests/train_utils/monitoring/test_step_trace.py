"""--trace-steps: what the operators of some steps cost, and what held the memory when it ran out."""

import json
from pathlib import Path

import pytest
from accelerate import Accelerator
from support.launches import TINY, launch
from support.run_files import records

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


def test_a_run_that_ends_before_its_traced_steps_leaves_no_profiler_running(tmp_path):
    # on a machine that does not share the folder which the main process has made
    steps = step_trace_module.StepTrace(Accelerator(cpu=True), tmp_path / "run" / "traces", 5)
    for _ in range(3 + 2):
        steps.step()
    steps.close()
    steps.close()
    assert (tmp_path / "run" / "traces" / "process-0.json").exists()
    steps.step()


def test_traced_steps_are_printed_and_their_time_is_split(traced):
    output, text = traced
    assert "convolution_backward" in text.split("traces, a file for each process")[0]
    record = [record for record in records(output) if "perf/compute_percent" in record][-1]
    shares = [record[f"perf/{name}_percent"] for name in ("data_wait", "compute", "communication")]
    assert sum(shares) == pytest.approx(100, rel=1e-12)  # float64
    assert all(0 < share < 100 for share in shares)
    assert record["perf/teraflops_per_device"] > 0
