"""Scalars and pictures to `metrics.jsonl` and to accelerate's trackers, under the same names."""

import atexit
import errno
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from runtime.console import say
from runtime.errors import LaunchError
from runtime.files import WriteError, replaced_file

WITHOUT_TRACKER = "training goes on without it, metrics.jsonl has the same numbers"
PACKAGES = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")


def run_dir(path: Path | None, resume: str | None) -> Path:
    """Make the folder of a run, by default runs/<time>; without `resume`, one that holds anything already is refused.

    A run resumed from a checkpoint goes on in the folder that the checkpoint is in, unless another is given. What is
    still empty at the end is removed: a run that failed at its start can be given its folder again.
    """
    if resume and resume != "auto":
        if not (Path(resume) / "manifest.json").is_file():
            raise LaunchError(f"--resume {resume} is no checkpoint; give a step-... folder, or auto with --output-dir")
        path = path or Path(resume).resolve().parent.parent
    path = path or Path("runs") / time.strftime("%Y-%m-%d-%H%M%S")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        raise LaunchError(f"--output-dir {path} is not an empty folder; choose another, so that nothing is overwritten")
    new = [folder for folder in (path / "checkpoints", path) if not folder.exists()]
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--output-dir {path} cannot be made: {error.strerror}") from error
    atexit.register(_remove_empty, new)
    return path


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def default_workers(device: torch.device) -> int:
    """Loader processes for this process: its share of the machine's CPUs; on a CPU, which computes too, one at most."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(1, max(0, share - 1)) if device.type == "cpu" else max(1, min(share, 16))


def describe_run() -> dict[str, str]:
    """Versions, platform, command and git commit: what a run needs beside its flags to be repeated."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        git = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    except OSError:  # no git here
        git = ""
    return {
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in PACKAGES},
        "git_commit": git.strip() or "unknown",
    }


def available_tracker(name: str) -> str:
    """The tracker, or `none` and a warning where it is not installed; LaunchError for an unknown name."""
    if name == "none" or name in map(str, get_available_trackers()):
        return name
    if name not in LOGGER_TYPE_TO_CLASS:
        known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise LaunchError(f"--tracker {name} is unknown; expected none or one of {known}")
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"tracker {name} is not installed; {WITHOUT_TRACKER}", file=sys.stderr)
    return "none"


def evaluation_record(result: dict, loss: float, names: Sequence[str]) -> dict[str, float | None]:
    """The scores of one evaluation under the names that metrics.jsonl and the trackers share."""
    record = {"eval/loss": loss} | {f"eval/{key}": result[key] for key in ("mean_iou", "mean_dice", "pixel_accuracy")}
    for metric in ("iou", "dice"):
        record |= {f"eval/{metric}/{name}": value for name, value in zip(names, result[metric], strict=True)}
    return record


class RunLog:
    """Writes from the main process; the other processes' calls do nothing.

    A tracker is other people's service: when it fails, at the start or later, that is said and training goes on. So it
    is with a disk that refuses a line of metrics.jsonl, which is written with a later one.

    Args:
        tracker: a name that accelerate knows, or `none`.
        settings: the run's resolved settings; nested ones are flattened, since trackers take plain values only.
        step: where the run starts. What a killed run had logged after it is dropped, so that curves have no repeats.
    """

    def __init__(self, accelerator: Accelerator, output_dir: Path, tracker: str, settings: dict, step: int) -> None:
        self.accelerator = accelerator
        self.tracker = tracker
        self.path = output_dir / "metrics.jsonl"
        self._refused = b""  # lines that are not on disk yet
        if accelerator.is_main_process:
            try:
                self._begin(output_dir / "run.json", settings, step)
            except OSError as error:
                raise WriteError(f"--output-dir {output_dir} cannot be written to: {error}") from error
        if tracker != "none":
            name = "tensorboard" if tracker == "tensorboard" else "unet-accelerate"
            options = {"tensorboard": {"purge_step": step + 1}} if step else {}
            with self._spared():
                accelerator.init_trackers(name, _flat(settings), init_kwargs=options)

    def _begin(self, run_file: Path, settings: dict, step: int) -> None:
        run_file.write_text(json.dumps(settings, indent=2) + "\n")
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        with replaced_file(self.path) as file:
            file.write("".join(kept).encode())

    def scalars(self, step: int, epoch: float, values: dict[str, float | None]) -> None:
        """One line of metrics.jsonl, and the same numbers to the tracker; None is an absent class's score."""
        if not self.accelerator.is_main_process:
            return
        # NaN is no JSON
        finite = {k: v if v is None or math.isfinite(v) else None for k, v in values.items()}
        self._append(json.dumps({"step": step, "epoch": round(epoch, 4), **finite}) + "\n")
        if self.tracker != "none":
            with self._spared():
                self.accelerator.log({key: value for key, value in values.items() if value is not None}, step=step)

    def _append(self, line: str) -> None:
        new, self._refused = not self._refused, self._refused + line.encode()
        try:
            with self.path.open("rb+", buffering=0) as file:  # a folder that is gone is not made again
                end = file.seek(0, os.SEEK_END)
                if file.write(self._refused) < len(self._refused):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._refused = b""
        except OSError as error:
            if new:
                say(f"{self.path} could not be written ({error}); training goes on, and tries again")

    def is_saved(self) -> bool:
        """Whether all that was logged is in metrics.jsonl; what was refused is tried again."""
        if self._refused:
            self._append("")
        return not self._refused

    def pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """(H, W, 3) uint8 pictures by tag, where the tracker takes pictures."""
        if not self.accelerator.is_main_process or self.tracker == "none":
            return
        tracker = self.accelerator.get_tracker(self.tracker)
        if not hasattr(tracker, "log_images"):
            return
        options = {"dataformats": "NHWC"} if self.tracker == "tensorboard" else {}
        with self._spared():
            tracker.log_images({tag: picture[None] for tag, picture in pictures.items()}, step=step, **options)

    def finish(self) -> None:
        """The run is over; every process must call it."""
        with self._spared():
            for tracker in self.accelerator.trackers:
                tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()

    @contextmanager
    def _spared(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a tracker may raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            say(f"tracker {self.tracker} failed ({reason}); {WITHOUT_TRACKER}")
            self.tracker, self.accelerator.trackers = "none", []


def _flat(settings: dict, prefix: str = "") -> dict[str, int | float | str | bool]:
    flat: dict[str, int | float | str | bool] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
