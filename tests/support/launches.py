"""The scripts launched as a user would."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.forks import launch_forked

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAMS = ROOT / "tests" / "programs"

TINY = ["--plan", "none", "--base-channels", "4", "--depth", "2", "--norm", "group", "--num-workers", "0"]


def launch(
    *command: str | Path,
    profile: str | None = None,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    forked: bool = True,
) -> subprocess.CompletedProcess:
    """Run `train.py ...` or `predict.py ...` by python, or by `accelerate launch` with a profile; bounded in time.

    Args:
        options: of `accelerate launch`.
        env: environment variables.
        forked: fork a process that has imported the libraries and our modules, and draws no figures. Not where the
            interpreter, the launcher's process, the process's memory or variables that libraries read are what matters.
    """
    words = list(map(str, command))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"ACCELERATE_USE_CPU": "true"} if profile == "multi_cpu" else {}
    environment |= env or {}
    flags: list[str] | None = None
    if profile is not None:
        flags = ["--config_file", str(ROOT / f"accelerate_configs/{profile}.yaml"), *options]
        if profile.startswith("multi"):
            flags += ["--main_process_port", "0"]
    if forked and (words[0].endswith(".py") or words[0] == "-m"):
        return launch_forked(words, flags, environment, ROOT)
    launcher = [] if flags is None else ["-m", "accelerate.commands.launch", *flags]
    return subprocess.run(
        [sys.executable, *launcher, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def predict(model: Path, inputs: Sequence[str | Path], output: Path, *flags, **options) -> subprocess.CompletedProcess:
    """Run predict.py in this process; with `options`, which are those of `launch`, in others."""
    arguments = ["--model", model, "--input", *inputs, "--output", output, *flags]
    if options:
        return launch("predict.py", *arguments, **options)
    from support.in_process import run_predict

    return run_predict(*arguments)
