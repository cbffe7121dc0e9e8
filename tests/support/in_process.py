"""`main` of train.py and predict.py in the test's own process: nothing to wait for, and all can be looked at."""

import contextlib
import io
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import predict
import train
from runtime.errors import UserError
from runtime.files import release_folders
from runtime.parallel import end_workers
from runtime.script import print_error
from support.figures import without_figures
from train_utils.settings.flags import parse_args

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True)
class Run:
    """A finished run: its output folder, what it printed, and how it ended."""

    folder: Path
    output: str
    exit_code: int

    @cached_property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def values(self, key: str) -> list[float]:
        """A column of metrics.jsonl."""
        return [record[key] for record in self.records if key in record]

    def steps(self, key: str) -> list[int]:
        """The steps at which a column of metrics.jsonl was written."""
        return [record["step"] for record in self.records if key in record]

    @cached_property
    def settings(self) -> dict:
        return json.loads((self.folder / "run.json").read_text())

    @cached_property
    def config(self) -> dict:
        """config.json of the best model."""
        return json.loads((self.folder / "model" / "config.json").read_text())

    @cached_property
    def model(self) -> dict[str, Tensor]:
        """Weights of the best model."""
        return load_file(self.folder / "model" / "model.safetensors")

    def weights(self, step: int) -> dict[str, Tensor]:
        """Weights of a checkpoint."""
        return self.tensors(step, "model")

    def tensors(self, step: int, kind: str) -> dict[str, Tensor]:
        """A file of a checkpoint: model, optimizer or average. It is read once."""
        file = self.folder / "checkpoints" / f"step-{step:08}" / f"{kind}.safetensors"
        if file not in self._tensors:
            self._tensors[file] = load_file(file)
        return self._tensors[file]

    @cached_property
    def _tensors(self) -> dict[Path, dict[str, Tensor]]:
        return {}

    def checkpoints(self) -> list[int]:
        """The steps of all checkpoints."""
        return sorted(int(path.name.removeprefix("step-")) for path in (self.folder / "checkpoints").glob("step-*"))


@contextlib.contextmanager
def process_state_kept() -> Iterator[None]:
    """Within, a run may change what belongs to the process: signals, random states, arguments, accelerate's state."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    arguments, deterministic = sys.argv, torch.are_deterministic_algorithms_enabled()
    most_pixels = Image.MAX_IMAGE_PIXELS
    _forget_accelerator()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        end_workers()  # as scripts do when their process ends
        release_folders()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.use_deterministic_algorithms(deterministic)
        Image.MAX_IMAGE_PIXELS = most_pixels
        sys.argv = arguments
        _forget_accelerator()


def _forget_accelerator() -> None:
    """One process has one accelerator state; the next run may want another."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run_train(folder: Path, *flags: str | Path, figures: bool = False) -> Run:
    """A run with the output folder `folder`; `figures`: its report shows them."""
    output, code = io.StringIO(), 0
    drawing = contextlib.nullcontext() if figures else without_figures()
    with process_state_kept(), drawing, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        sys.argv = ["train.py", "--output-dir", str(folder), *map(str, flags)]
        try:
            train.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Run(folder, output.getvalue(), code)


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Within, networks compute in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def run_main(main: Callable[[], object], name: str, *arguments: str | Path) -> subprocess.CompletedProcess:
    """What a script prints with these arguments, and its exit code."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with process_state_kept(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        sys.argv = [name, *map(str, arguments)]
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except UserError as error:
            code = print_error(error)
    return subprocess.CompletedProcess(sys.argv, code, output.getvalue(), errors.getvalue())


def run_predict(*arguments: str | Path) -> subprocess.CompletedProcess:
    """What predict.py prints with these arguments, and its exit code."""
    return run_main(predict.main, "predict.py", *arguments)


def parsed(*flags: str | Path):
    """The arguments of train.py."""
    with process_state_kept():
        sys.argv = ["train.py", *map(str, flags)]
        return parse_args("")
