"""The log of scalars and pictures: `metrics.jsonl` and accelerate's trackers, under the same names."""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from runtime.console import counted, is_first_process, say, say_error
from runtime.documents import read_json_lines
from runtime.errors import SettingsError, WriteError, one_line
from runtime.files import replace_file, tolerate_write_errors
from runtime.redact import printable
from train_utils.metrics_log import is_record
from train_utils.settings.record import RunSettings

WITHOUT_TRACKER = "training goes on without it, metrics.jsonl has the same numbers"


def available_tracker(name: str) -> str:
    """The tracker's name, or `none` and a warning if it is not installed; SettingsError for an unknown name."""
    if name == "none" or name in map(str, get_available_trackers()):
        return name
    if name not in LOGGER_TYPE_TO_CLASS:
        tracker_list = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise SettingsError(f"--tracker {name} is unknown; expected none or one of {tracker_list}")
    if is_first_process():
        say_error(f"tracker {name} is not installed; {WITHOUT_TRACKER}")
    return "none"


class RunLog:
    """The log of a run, which the main process writes; calls on other processes do nothing.

    If a tracker fails, at the start or later, a line is printed and training goes on. If the disk refuses a line of
    metrics.jsonl, a line is printed too, and the refused line is written with a later one.

    Args:
        tracker: a name that accelerate knows, or `none`.
        settings: resolved settings of the run; nested ones are flattened, since trackers take plain values only.
        step: the step at which the run starts. Later records of a killed run are dropped, so that curves have no
            repeats.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        output_dir: Path,
        tracker: str,
        settings: RunSettings,
        step: int,
    ) -> None:
        self.accelerator = accelerator
        self.output_dir = output_dir
        self.settings = settings
        self.tracker = tracker
        self.path = output_dir / "metrics.jsonl"
        self._refused = b""  # lines that are not on disk yet
        if accelerator.is_main_process:
            try:
                self._begin(output_dir / "run.json", settings, step)
            except OSError as error:
                raise WriteError(f"--output-dir {output_dir} cannot be written to: {error}") from error
        if tracker != "none":
            with self._tracker_errors_reported():
                self._start_tracker(settings.to_json(), step)

    def _begin(self, run_file: Path, settings: RunSettings, step: int) -> None:
        with replace_file(run_file) as file:
            file.write((json.dumps(settings.to_json(), indent=2) + "\n").encode())
        earlier = b"".join(_lines_up_to(self.path, step))
        with replace_file(self.path) as file:
            file.write(earlier)

    def _start_tracker(self, settings: dict[str, Any], step: int) -> None:
        if self.tracker != "tensorboard":
            self.accelerator.init_trackers("unet-accelerate", _flat(settings))
            return
        # as hyper-parameters, TensorBoard would show the settings as a second run, named by the time
        options = {"purge_step": step + 1} if step else {}
        self.accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": options})
        self.accelerator.log({"settings": f"```\n{json.dumps(settings, indent=2)}\n```"}, step=step)

    def record_length(self, steps: int) -> None:
        """Write into run.json how many steps a run by the clock has made, for --like; call it on the main process."""
        record = replace(self.settings, total_steps=steps)
        with tolerate_write_errors("run.json"), replace_file(self.output_dir / "run.json") as file:
            file.write((json.dumps(record.to_json(), indent=2) + "\n").encode())

    def scalars(self, step: int, epoch: float, values: dict[str, float | None]) -> None:
        """Write one line of metrics.jsonl, and send its numbers to the tracker; an absent class has the score None."""
        if not self.accelerator.is_main_process:
            return
        record: dict[str, float | None] = {"step": step, "epoch": round(epoch, 4)}
        for name, value in values.items():
            is_number = value is not None and math.isfinite(value)  # NaN is no JSON
            record[name] = value if is_number else None
        self._append(json.dumps(record) + "\n")
        if self.tracker != "none":
            present = {name: value for name, value in values.items() if value is not None}
            with self._tracker_errors_reported():
                self.accelerator.log(present, step=step)

    def _append(self, line: str) -> None:
        """Append the lines that the disk has refused so far and then this line to metrics.jsonl, all or none."""
        is_first = not self._refused
        self._refused += line.encode()
        try:
            with self.path.open("rb+", buffering=0) as file:  # a folder that has vanished is not made again
                end = file.seek(0, os.SEEK_END)
                if file.write(self._refused) < len(self._refused):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._refused = b""
        except OSError as error:
            if is_first:
                say(f"{self.path} could not be written ({error}); training goes on, and tries again")

    def is_saved(self) -> bool:
        """Whether all logged lines are in metrics.jsonl; refused lines are written again first."""
        if self._refused:
            self._append("")
        return not self._refused

    def takes_pictures(self) -> bool:
        """Whether the tracker of this process shows pictures."""
        if not self.accelerator.is_main_process or self.tracker == "none":
            return False
        return hasattr(self.accelerator.get_tracker(self.tracker), "log_images")

    def write_pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """Show (H, W, 3) uint8 pictures by tag, if the tracker `takes_pictures`."""
        if not self.takes_pictures():
            return
        tracker = self.accelerator.get_tracker(self.tracker)
        options = {"dataformats": "NHWC"} if self.tracker == "tensorboard" else {}
        with self._tracker_errors_reported():
            tagged = {printable(tag): picture[None] for tag, picture in pictures.items()}
            tracker.log_images(tagged, step=step, **options)

    def finish(self) -> None:
        """End the log of the run; every process must call it."""
        with self._tracker_errors_reported():
            for tracker in self.accelerator.trackers:
                tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()

    @contextmanager
    def _tracker_errors_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker may raise anything
            reason = f"{type(error).__name__}: {one_line(error, limit=200)}"
            say(f"tracker {self.tracker} failed ({reason}); {WITHOUT_TRACKER}")
            self.tracker = "none"
            self.accelerator.trackers = []


def _lines_up_to(log: Path, step: int) -> list[bytes]:
    """The lines of a metrics.jsonl that a run has logged until `step`; other content is left out with a message."""
    try:
        lines, damaged = read_json_lines(log)
    except FileNotFoundError:
        if step:
            say(f"{log} is gone: it begins again behind step {step}")
        return []
    except OSError as error:
        raise WriteError(f"{log} cannot be read ({one_line(error)}); move it away") from error
    earlier = []
    for line, record in lines:
        if not is_record(record):
            damaged += 1
        elif record["step"] <= step and line.endswith(b"\n"):
            earlier.append(line)
    if damaged:
        say(f"{log}: {counted(damaged, 'damaged line is', 'damaged lines are')} left out, {len(earlier)} stay")
    return earlier


def _flat(settings: dict, prefix: str = "") -> dict[str, int | float | str | bool]:
    """Nested settings as plain values, whose names have a dot for each level."""
    flat: dict[str, int | float | str | bool] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float | str | bool):
            flat[prefix + key] = value
        else:
            flat[prefix + key] = str(value)
    return flat
