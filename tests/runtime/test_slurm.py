"""The Slurm scripts, with stand-ins for srun and scontrol: two nodes on loopback, stopped in time, requeued."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launches import ROOT, TINY

SLURM = ROOT / "accelerate_configs" / "slurm"
SRUN = """#!/bin/bash
# as srun does: the command once on each node; signals go to all of them
shift
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks="$tasks $!"; done
trap 'kill -USR1 $tasks' USR1
status=0
for task in $tasks; do
    while kill -0 $task 2>/dev/null; do wait $task; code=$?; done
    [ $code = 0 ] || status=$code
done
exit $status
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf '127.0.0.1\\n127.0.0.2\\n'; else echo "scontrol $*"; fi
"""


def wait_for_loss(log: Path, run: subprocess.Popen) -> None:
    """Wait until a run has logged a loss or ended, a minute at most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and run.poll() is None:
        if log.exists() and "train/loss" in log.read_text():
            return
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_two_nodes_that_are_asked_to_stop_are_requeued(tiny_folder, tmp_path):
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = random.randrange(12000)  # which gives the port
    variables = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
    variables |= {"SLURM_GPUS_ON_NODE": "1", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    variables["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = tmp_path / "run"
    flags = ["--dataset", tiny_folder, "--output-dir", output, *TINY, "--max-steps", "100000", "--log-every", "1"]
    run = subprocess.Popen(
        ["bash", SLURM / "train.sbatch", *map(str, flags), "--tracker", "none", "--eval-every", "100000"],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_loss(output / "metrics.jsonl", run)
    run.send_signal(signal.SIGUSR1)
    stdout, stderr = run.communicate(timeout=100)
    assert run.returncode == 0, stderr
    assert "profile: processes 2, machines 2" in stdout
    assert "all is saved; continue with: " in stdout
    assert stdout.splitlines()[-1] == f"scontrol requeue {job}"
    newest = sorted((output / "checkpoints").glob("step-*"))[-1]
    assert newest.name > "step-00000000"
