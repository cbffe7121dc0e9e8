"""The clock of a run with --max-minutes: how far the run is, and when it has to stop."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from runtime.console import counted, say
from train_utils.run_state import RunState, StepResult

FINISH = 2500  # milliseconds for charts and the report, without their pictures (2 to 4 s on one busy core)
RESERVE = 1.25  # the last evaluation and save get so many times what the longest ones took
RECENT_STEPS = 5  # the longest of these says how long the next step may take
FIRST_EVALUATION = 10  # at the latest this part of the time is over when the first evaluation begins
EVALUATION_PART = 10  # evaluations take at most one part in so many of the time since training began
FEW_STEPS = 500  # with fewer steps masks are often poor
# when the process began, on the monotonic clock: it has imported modules before this line
PROCESS_START = time.monotonic() - (time.time() - psutil.Process().create_time())


def milliseconds_since_start() -> int:
    """The time since this process began."""
    return int(1000 * (time.monotonic() - PROCESS_START))


class Clock:
    """The progress of a run by time, `done` of `total` milliseconds, the same numbers on all processes.

    The main process's time travels with the exchange of each step, so no process waits for it. `total` is the part of
    the run's minutes that is for training: the last evaluation, the last save and the report come after it. In a run
    without minutes nothing here does anything.

    Args:
        minutes: the length of the run; None if its steps are counted.
        minutes_used: what the run had used of them when its checkpoint was saved.
        report_share: how many times as long as an evaluation the report's pictures take.
        spaces_evaluations: whether evaluations wait until they keep to their part of the time.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        minutes: float | None,
        minutes_used: float,
        *,
        report_share: float = 0.0,
        spaces_evaluations: bool = True,
    ) -> None:
        self.accelerator = accelerator
        self.budget = int(60_000 * (minutes or 0))
        self.before = int(60_000 * minutes_used)
        self.report_share = report_share
        self.spaces_evaluations = spaces_evaluations
        self.evaluated = 0  # milliseconds of all evaluations
        self.begin = 0  # of the first step of this process
        self.done = 0
        self.total = self.budget
        self.is_over = False  # whether the next step would cross the end; only `note` changes it
        self._evaluations: list[int] = []  # milliseconds of each
        self._saves: list[int] = []
        self._last: StepResult | None = None  # the last step, unless there was a pause behind it
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)

    def now(self) -> int:
        """Milliseconds that the run has used, on this process's own clock."""
        return self.before + milliseconds_since_start()

    @property
    def measures_save(self) -> bool:
        """Whether a save should be waited for, since nobody knows yet how long one takes."""
        return bool(self.budget) and not self._saves

    def note(self, results: Iterable[StepResult], step: int) -> None:
        """Take over the times at which steps began, after `step` steps; all processes have the same results."""
        if not self.budget:
            return
        for result in results:
            if self._last is not None:
                self._steps.append((result.began - self._last.began) / (result.step - self._last.step))
            self._last = result
            self.done = max(self.done, result.began)
            # the steps after this one are made or queued, and the next one comes behind them
            steps_ahead = step - result.step + 2
            self.is_over = result.began + steps_ahead * self._longest_step > self.total

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context for an evaluation; every process must enter it."""
        begin = self.now()
        yield
        self._evaluations.append(self.now() - begin)
        self.synchronize()

    @contextmanager
    def saving(self, state: RunState) -> Iterator[None]:
        """A context for a save, which notes the time in the state; every process must enter it."""
        begin = self.now()
        state.elapsed = begin if self.budget else 0
        yield
        self._saves.append(self.now() - begin)
        self.synchronize()

    def start(self) -> None:
        """Begin the training; every process must call it."""
        self.synchronize()
        self.begin = self.done

    def synchronize(self) -> None:
        """Take over the main process's time, and what it keeps for the end of the run; every process must call it."""
        if not self.budget:
            return
        report = FINISH + self.report_share * self._evaluation
        end = int(RESERVE * (self._evaluation + max(self._saves, default=0)) + report)
        times = torch.tensor([self.now(), self.budget - end, sum(self._evaluations)], device=self.accelerator.device)
        now, total, self.evaluated = broadcast(times).tolist()
        before = self.done
        self.done = max(self.done, now)
        # the share that is done never falls, even if the evaluations become faster
        most = self.done * self.total // before if before else total
        self.total = max(1, min(most, total))
        self._last = None

    def needs_evaluation(self, epochs: float) -> bool:
        """Whether an epoch or a tenth of the time has passed without any evaluation, whose length nobody knows yet."""
        is_late = epochs >= 1 or FIRST_EVALUATION * (self.done - self.begin) >= self.total - self.begin
        return bool(self.budget) and not self._evaluations and is_late

    @property
    def affords_evaluation(self) -> bool:
        """Whether all evaluations keep to their part of the time if another one follows; the first one always does."""
        if not self.budget or not self.spaces_evaluations or not self._evaluations:
            return True
        with_another = self.evaluated + self.evaluated / len(self._evaluations)
        return EVALUATION_PART * with_another <= self.done - self.begin

    def say_forecast(self, step: int, eval_every: int) -> None:
        """Print about how many steps the run will have, after its first evaluation."""
        if not self.budget or not self._steps or len(self._evaluations) != 1:
            return
        steps = step + int((self.total - self.done) / (self._longest_step + self._evaluation / eval_every))
        durations = f"a step takes {self._longest_step / 1000:.3g} s, an evaluation {self._evaluation / 1000:.3g} s"
        say(f"time: {durations}: time for about {counted(steps, 'step')}")
        if steps < FEW_STEPS:
            say(f"time: below {FEW_STEPS} steps a model is often poor; give more --max-minutes")

    @property
    def _evaluation(self) -> int:
        """Milliseconds of the longest evaluation, without the first one, which warms up, if there are others."""
        return max(self._evaluations[1:] or self._evaluations, default=0)

    @property
    def _longest_step(self) -> float:
        return max(self._steps, default=0.0)
