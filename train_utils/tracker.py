"""The tracker of a run, such as TensorBoard, without which training goes on if it fails."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from runtime.console import is_first_process, say, say_error
from runtime.errors import SettingsError, one_line
from runtime.redact import printable

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


def takes_pictures(name: str) -> bool:
    """Whether the tracker of this name is installed and shows pictures."""
    return name in map(str, get_available_trackers()) and hasattr(LOGGER_TYPE_TO_CLASS[name], "log_images")


class Tracker:
    """A tracker of accelerate; if it fails, at the start or later, a line is printed and training goes on without it.

    Args:
        name: a name that accelerate knows, or `none`.
        settings: the content of run.json.
        step: the step at which the run starts; TensorBoard drops later records of a killed run.
    """

    def __init__(self, accelerator: Accelerator, name: str, settings: dict[str, Any], step: int) -> None:
        self.accelerator = accelerator
        self.name = name
        with self._errors_reported():
            if name == "tensorboard":
                options = {"purge_step": step + 1} if step else {}
                # as hyper-parameters, TensorBoard would show the settings as a second run, named by the time
                accelerator.init_trackers(name, init_kwargs={name: options})
                accelerator.log({"settings": f"```\n{json.dumps(settings, indent=2)}\n```"}, step=step)
            else:
                accelerator.init_trackers("unet-accelerate", _flat(settings))

    def scalars(self, step: int, values: dict[str, float | None]) -> None:
        """Log the values that are not None."""
        numbers = {name: value for name, value in values.items() if value is not None}
        with self._errors_reported():
            self.accelerator.log(numbers, step=step)

    @property
    def takes_pictures(self) -> bool:
        """Whether the tracker shows pictures."""
        return any(hasattr(tracker, "log_images") for tracker in self.accelerator.trackers)

    def pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """Show (H, W, 3) uint8 pictures by tag, if the tracker `takes_pictures`."""
        options = {"dataformats": "NHWC"} if self.name == "tensorboard" else {}
        with self._errors_reported():
            tagged = {printable(tag): picture[None] for tag, picture in pictures.items()}
            for tracker in self.accelerator.trackers:
                tracker.log_images(tagged, step=step, **options)

    def finish(self) -> None:
        """End the log of the run; every process must call it."""
        with self._errors_reported():
            for tracker in self.accelerator.trackers:
                tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker may raise anything
            reason = f"{type(error).__name__}: {one_line(error, limit=200)}"
            say(f"tracker {self.name} failed ({reason}); {WITHOUT_TRACKER}")
            self.accelerator.trackers = []


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    """Nested settings as plain values, whose names have a dot for each level: trackers take no others."""
    flat: dict[str, int | float | str | bool] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            if not isinstance(value, int | float | str | bool):
                value = str(value)
            flat[prefix + key] = value
    return flat
