"""The cost and the gain of compiling, printed at the end of a run if its launch profile sets a `dynamo_backend`."""

import copy
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from runtime.device import wait_for
from runtime.errors import one_line
from tasks.step_loss import StepLoss
from train_utils.compilation import compile_blocks, compiles, eager
from train_utils.micro_batches import MicroBatch
from unet.blocks import channels_last
from unet.model import UNet

MEASURED_SECONDS = 2  # after this time no further pair of passes is timed
MOST_PAIRS = 5


class CompileGain:
    """Counts the seconds that this process compiles from now on, and the passes of training that may pay for them.

    A pass is the forward and the backward pass of one micro-batch.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.compiles = compiles(accelerator)
        self.seconds = 0.0
        self.steps = 0
        self.passes: Counter[tuple[int, ...]] = Counter()  # by the shape of the images
        self._begin = 0.0
        if self.compiles:
            from torch._dynamo.callback import callback_handler  # takes a second

            callback_handler.register_start_callback(self._note_begin)
            callback_handler.register_end_callback(self._note_end)

    def add_step(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Count a step that is about to be made."""
        self.steps += 1
        self.passes.update(micro_batch.images.shape for micro_batch in micro_batches)

    def sentence(self, network: UNet, criterion: StepLoss) -> str | None:
        """The cost and gain of compiling, without a full stop; None if nothing is compiled or no step was made.

        Call it on one process when the run is saved: it makes a few passes of a copy of the network. Runs of several
        processes make no such passes, since in some kinds of passes all processes would have to take part.
        """
        if not self.compiles:
            return None
        self._stop()
        if not self.steps:
            return None
        cost = f"compiling took {self.seconds:.3g} s"
        if self.accelerator.distributed_type != DistributedType.NO:
            return f"{cost} on the main process; what it gains is measured in runs of one process only"
        try:
            plain, compiled = self.pass_seconds(network, criterion)
        except (MemoryError, RuntimeError) as error:  # everything is saved: the run must not fail here
            return f"{cost}; what it gains could not be measured ({one_line(error)})"
        return f"{cost}; {self.balance_text(plain, compiled)}"

    def balance_text(self, plain: float, compiled: float) -> str:
        """The text on whether all passes gain more than compiling cost; the arguments are the seconds of one pass."""
        gain = self.passes.total() * (plain - compiled)
        minutes_gained = (gain - self.seconds) / 60
        outcome = "gained" if minutes_gained > 0 else "lost"
        text = (
            f"forward and backward pass take {compiled:.3g} s compiled, {plain:.3g} s not compiled:"
            f" {self.steps:,} steps {outcome} {abs(minutes_gained):.2g} minutes"
        )
        if plain <= compiled:
            return f"{text}; without dynamo_backend this run is faster"
        if minutes_gained <= 0:
            steps = self.seconds / gain * self.steps
            return f"{text}; it pays from about {steps:,.0f} steps on"
        return text

    def pass_seconds(self, network: UNet, criterion: StepLoss) -> tuple[float, float]:
        """The median seconds of a pass, not compiled and compiled, on images of the most frequent shape."""
        trial = copy.deepcopy(network).train()
        compile_blocks(self.accelerator, trial)
        device = self.accelerator.device
        shape = self.passes.most_common(1)[0][0]
        images = channels_last(torch.rand(shape, device=device))
        targets = criterion.task.zero_targets((shape[0], *shape[2:]), device)
        counts = criterion.counts(targets)

        def timed() -> float:
            wait_for(device)
            begin = time.perf_counter()
            criterion(trial(images), targets, counts).backward()
            wait_for(device)
            seconds = time.perf_counter() - begin
            trial.zero_grad()
            return seconds

        plain: list[float] = []
        compiled: list[float] = []
        begin = time.perf_counter()
        while len(plain) <= MOST_PAIRS:
            with eager(self.accelerator):
                plain.append(timed())
            with torch.compiler.set_stance("fail_on_recompile"):  # what was compiled in training serves the copy too
                compiled.append(timed())
            if len(plain) > 1 and time.perf_counter() - begin > MEASURED_SECONDS:
                break
        return median(plain[1:]), median(compiled[1:])  # the first pair warms up

    def _note_begin(self, _: Any) -> None:
        self._begin = time.perf_counter()

    def _note_end(self, _: Any) -> None:
        self.seconds += time.perf_counter() - self._begin

    def _stop(self) -> None:
        from torch._dynamo.callback import callback_handler

        callback_handler.remove_start_callback(self._note_begin)
        callback_handler.remove_end_callback(self._note_end)
