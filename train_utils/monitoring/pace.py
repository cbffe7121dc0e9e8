"""The pace of a run with --max-minutes: whether it will end in time."""

import time

import psutil

from runtime.console import say

PACE_STEPS = 20  # before this many steps the pace of a run is not known
EARLY_SHARE = 0.1  # before this share of its steps the pace is not known either
LATE_SHARE = 1.05  # a run that takes more than this share of its time is late
FINISH_SECONDS = 4.0  # for charts and the report, without their pictures (2 to 4 s measured on one core)
# when the process began, on a monotonic clock
PROCESS_START = time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())


def seconds_since_start() -> float:
    """The seconds since this process began."""
    return time.monotonic() - PROCESS_START


class Pace:
    """Watches the clock of a run with --max-minutes, and prints once, early on, that the run will be late.

    Args:
        minutes: the minutes that the rehearsal filled; None if no limit was set.
        steps: the steps to make.
        resume: the command that goes on with the run.
    """

    def __init__(self, minutes: float | None, steps: range, resume: str) -> None:
        self.minutes = minutes
        self.steps = steps
        self.resume = resume
        self.begin = time.monotonic()

    def check(self, step: int) -> None:
        """Call it after a step, with the number of steps made."""
        steps_made = step - self.steps.start
        if self.minutes is None or steps_made < max(PACE_STEPS, EARLY_SHARE * len(self.steps)):
            return
        now = time.monotonic()
        seconds_left = (self.steps.stop - step) * (now - self.begin) / steps_made
        minutes = (seconds_since_start() + seconds_left + FINISH_SECONDS) / 60
        if minutes > LATE_SHARE * self.minutes:
            say(
                f"time: steps are slower than in the rehearsal, so the run will end after {minutes:.3g} minutes instead"
                f" of {self.minutes:g}; is the machine busy? Ctrl-C saves, and this goes on: {self.resume}"
            )
            self.minutes = None  # once is enough
