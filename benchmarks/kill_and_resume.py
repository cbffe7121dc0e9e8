"""Kill a training at random moments, resume it every time, and compare what comes out with a run that nobody touched.

python benchmarks/kill_and_resume.py --kills 50 --processes 1
python benchmarks/kill_and_resume.py --kills 50 --processes 2

A run and its loaders get SIGKILL at once: one time in ten at any moment from their start on, four times in the middle
of a save, five times at any other moment of training. After each kill there must be a complete checkpoint (save before
the first), `--resume auto` must go on from it by itself, and at the end weights, optimizer state and all logged numbers
must be those of the untouched run, bit for bit. Exit code 1 if not.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train_utils.checkpoints import newest_first, read_undamaged

ROOT = Path(__file__).resolve().parent.parent

FLAGS = ["--base-channels", "8", "--depth", "2", "--norm", "group", "--log-every", "1", "--checkpoint-every", "2"]
FLAGS += ["--eval-every", "50", "--dropout", "0.1", "--ema-decay", "0.99", "--num-workers", "1", "--tracker", "none"]


def start(output: Path, processes: int, steps: int) -> subprocess.Popen:
    """The run, or what is left of it; what it says on standard error goes to a file beside its output."""
    launcher = []
    if processes > 1:
        profile = str(ROOT / "accelerate_configs" / "multi_cpu.yaml")
        launcher = ["-m", "accelerate.commands.launch", "--config_file", profile, "--main_process_port", "0"]
        launcher += ["--num_processes", str(processes)]
    command = ["train.py", *FLAGS, "--max-steps", str(steps), "--output-dir", str(output), "--resume", "auto"]
    with error_file(output).open("w") as errors:
        return subprocess.Popen(
            [sys.executable, *launcher, *command],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def error_file(output: Path) -> Path:
    """Where the last start of a run left its standard error."""
    return output.with_suffix(".txt")


def kill(run: subprocess.Popen) -> None:
    """End the run, its launcher and its loader processes without notice."""
    processes = [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)


def await_moment(run: subprocess.Popen, output: Path) -> None:
    """Until a random moment of the run: in its start, in a save or elsewhere; or until it has ended."""

    def wait_for(event: Callable[[], bool], pause: float) -> None:
        while run.poll() is None and not event():
            time.sleep(pause)

    before, kind = logged_step(output), random.random()
    if kind < 0.1:
        time.sleep(random.uniform(0, 8))
        return
    wait_for(lambda: logged_step(output) > before, 0.01)
    if kind < 0.5:
        wait_for(lambda: bool(half_saved(output)), 0)
        time.sleep(random.uniform(0, 0.005))
    else:
        time.sleep(random.uniform(0, 0.25))


def half_saved(output: Path) -> list[Path]:
    """The checkpoint that is being written, if any."""
    return list((output / "checkpoints").glob(".*.tmp"))


def logged_step(output: Path) -> int:
    """The last step in metrics.jsonl, 0 before the first."""
    log = output / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def numbers(output: Path) -> list[dict]:
    """What was logged, without what depends on the clock."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("perf/")} for line in lines]


def tensors(output: Path) -> dict:
    """Every tensor of the newest checkpoint."""
    path = read_undamaged(newest_first(output / "checkpoints")[0]).path
    return {(file.name, name): value for file in path.glob("*.safetensors") for name, value in load_file(file).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    steps = 8 * args.kills  # a life is to see some steps, and the run to outlast its kills
    with tempfile.TemporaryDirectory() as folder:
        untouched, killed = Path(folder) / "untouched", Path(folder) / "killed"
        run = start(untouched, args.processes, steps)
        assert run.wait() == 0, error_file(untouched).read_text()
        kills = half_saves = 0
        while kills < args.kills:
            run = start(killed, args.processes, steps)
            await_moment(run, killed)
            if run.poll() is not None:
                break
            has_metrics = (killed / "metrics.jsonl").exists()
            kill(run)
            kills += 1
            half_saves += bool(half_saved(killed))
            checkpoints = newest_first(killed / "checkpoints")
            assert checkpoints or not has_metrics
            if checkpoints:
                read_undamaged(checkpoints[0])
        run = start(killed, args.processes, steps)
        assert run.wait() == 0, error_file(killed).read_text()
        ours, theirs = tensors(killed), tensors(untouched)
        same = ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)
        logs = numbers(killed) == numbers(untouched)
    print(f"{kills} kills of {args.processes} process(es) in {steps} steps, {half_saves} of them in a save")
    print(f"weights, averages and optimizer state equal bit for bit: {same}; logged numbers equal: {logs}")
    sys.exit(0 if same and logs else 1)


if __name__ == "__main__":
    main()
