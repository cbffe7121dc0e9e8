"""When a process dies, hangs or never comes, the others end soon, with a line that says so.

Modules: runtime/distributed.py, runtime/errors.py.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.forks import ForkedRun, free_port
from support.launches import PROGRAMS, ROOT, TINY, launch

SCRIPT = """
import gc, weakref
import torch.distributed as dist
from accelerate import Accelerator
from runtime.launch import configure_process

accelerator = Accelerator()
configure_process(accelerator)
group = weakref.ref(dist.group.WORLD)
accelerator.end_training()
gc.collect()
print(dist.is_initialized(), group() is not None)
"""


def test_a_script_keeps_its_process_group_to_its_end(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    result = launch(tmp_path / "train.py", profile="multi_cpu")
    assert result.stdout.splitlines() == ["False True"] * 2, result.stderr


def endless_run(folder: Path, output: Path) -> list[str]:
    """Flags of a run that goes on until something ends it."""
    flags = ["--max-steps", "1000000", "--eval-every", "1000000", "--log-every", "1", "--tracker", "none"]
    return [*flags, "--dataset", str(folder), "--output-dir", str(output), *TINY]


def start(launcher: list, output: Path, folder: Path, script: tuple = ("train.py",)) -> subprocess.Popen:
    """A launcher of an endless run."""
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, [*launcher, *script, *endless_run(folder, output)])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def node(rank: int, port: int, *options: str) -> list:
    """`accelerate launch` of one of two machines on loopback, with one process each."""
    profile = ["accelerate.commands.launch", "--config_file", "accelerate_configs/multi_node.yaml", *options]
    address = ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    return [*profile, *address, "--machine_rank", str(rank)]


def torchrun(port: int) -> list:
    """`torchrun` of one of two machines on loopback; which is which is found out at the rendezvous."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"]
    return ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *rendezvous]


def wait_for_steps(*runs: subprocess.Popen | ForkedRun, output: Path) -> None:
    log = output / "metrics.jsonl"
    for _ in range(600):
        if log.exists() and '"step": 3,' in log.read_text():
            return
        assert all(run.poll() is None for run in runs), [run.communicate() for run in runs if run.poll() is not None]
        time.sleep(0.1)
    raise AssertionError("no step was made in a minute")


def worker_of(launcher: subprocess.Popen) -> int:
    process = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True)
    return int(process.stdout.split()[-1])


def errors(run: subprocess.Popen | ForkedRun, timeout: float) -> list[str]:
    """The lines of train.py's own that a run ended with."""
    try:
        stderr = run.communicate(timeout=timeout)[1]
    finally:
        run.kill()
    assert run.returncode != 0
    return [line for line in stderr.splitlines() if line.startswith("train.py: error: ")]


def test_a_process_ends_in_a_one_line_error_when_another_is_killed(tiny_folder, tmp_path):
    profile = ["--config_file", str(ROOT / "accelerate_configs" / "multi_cpu.yaml"), "--main_process_port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)}
    command = ["train.py", *endless_run(tiny_folder, tmp_path / "run")]
    run = ForkedRun(command, profile, environment, ROOT, tmp_path)
    try:
        wait_for_steps(run, output=tmp_path / "run")
        os.kill(run.pids[1], signal.SIGKILL)
        (line,) = errors(run, timeout=30)
    finally:
        run.kill()
    assert "lost another process, which has ended" in line
    assert "--resume auto" in line


CALLER = """
import sys
import train

def fail(*arguments, **options):
    raise KeyError("a bug")

train.train_step = fail
train.main()
"""


def test_a_script_that_calls_main_ends_after_an_error_with_loader_processes(tiny_folder, tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    command = ["caller.py", *endless_run(tiny_folder, tmp_path / "run"), "--num-workers", "1"]
    run = ForkedRun(command, None, os.environ | {"PYTHONPATH": str(ROOT)}, tmp_path, tmp_path)
    try:
        stderr = run.communicate(timeout=40)[1]
    finally:
        run.kill()
    assert run.returncode == 1
    assert stderr.splitlines()[-1] == "KeyError: 'a bug'"
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_killed_loader_process_ends_a_run_in_one_line(tiny_folder, tmp_path):
    command = ["train.py", *endless_run(tiny_folder, tmp_path / "run"), "--num-workers", "1"]
    run = ForkedRun(command, None, os.environ | {"PYTHONPATH": str(ROOT)}, ROOT, tmp_path)
    try:
        wait_for_steps(run, output=tmp_path / "run")
        (worker,) = psutil.Process(run.pid).children()
        worker.kill()
        (line,) = errors(run, timeout=30)
    finally:
        run.kill()
    assert "a process that loads images has ended" in line
    assert "--resume auto" in line


@pytest.mark.slow
@pytest.mark.parametrize("how", ["accelerate", "torchrun"])
def test_machines_that_waited_for_a_late_one_end_when_it_is_killed(tiny_folder, tmp_path, how):
    port = free_port()
    launchers = [torchrun(port)] * 2 if how == "torchrun" else [node(0, port), node(1, port)]
    first = start(launchers[0], tmp_path / "run", tiny_folder)
    time.sleep(3)
    late = start(launchers[1], tmp_path / "run", tiny_folder)
    try:
        wait_for_steps(first, late, output=tmp_path / "run")
        os.kill(worker_of(late), signal.SIGKILL)
        (line,) = errors(first, timeout=30)
        assert "lost another process, which has ended" in line
        assert "--resume auto" in line
        assert errors(late, timeout=30) == []
    finally:
        first.kill()
        late.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "last_words"), [(0, "1/2 clients joined"), (1, "timed out after 5000ms while trying to connect")]
)
def test_a_machine_waits_in_bounds_for_one_that_never_comes(tiny_folder, tmp_path, rank, last_words):
    run = start(node(rank, free_port(), "--rdzv_conf", "timeout=5"), tmp_path / "run", tiny_folder)
    stderr = run.communicate(timeout=40)[1]
    assert run.returncode != 0
    assert last_words in stderr.splitlines()[-1]


@pytest.mark.slow
def test_processes_wait_longer_for_pictures_than_for_a_collective(tiny_folder, tmp_path):
    flags = ["--max-steps", "3", "--eval-every", "1", "--checkpoint-every", "3", "--output-dir", tmp_path / "run"]
    flags += ["--learning-rate", "1e-20"]
    program = PROGRAMS / "slow_main_process.py"
    result = launch(program, "train.py", "--dataset", tiny_folder, *TINY, *flags, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_process_that_hangs_is_waited_for_in_bounds(tiny_folder, tmp_path):
    launcher = ["accelerate.commands.launch", "--config_file", "accelerate_configs/multi_cpu.yaml"]
    launcher += ["--main_process_port", "0"]
    run = start(launcher, tmp_path / "run", tiny_folder, (PROGRAMS / "short_timeout.py", "train.py"))
    wait_for_steps(run, output=tmp_path / "run")
    hanging = worker_of(run)
    os.kill(hanging, signal.SIGSTOP)
    (line,) = errors(run, timeout=100)
    assert "process 0 waited too long for another one, which hangs or has ended" in line
