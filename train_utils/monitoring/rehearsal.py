"""--max-minutes: how many steps fit into the time, measured before the first step."""

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from data_utils.loading.dataset import EvaluationBatch
from data_utils.loading.loaders import NetworkShapes, build_loaders
from runtime.console import counted, say
from runtime.device import wait_for
from runtime.distributed import first_on_each_machine, on_main
from runtime.errors import SettingsError
from runtime.launch import bf16_launch_line, has_bf16_instructions
from runtime.signals import exit_on_sigterm
from train_utils.checkpoints.save import Checkpoints
from train_utils.compilation import compiles
from train_utils.ema import WeightAverage
from train_utils.monitoring.pace import FINISH_SECONDS, seconds_since_start
from train_utils.reporting.samples import PICTURES, evaluation_pictures
from train_utils.run_state import RunState
from train_utils.schedule import FEW_STEPS, Schedule
from train_utils.settings.record import RunSettings
from train_utils.settings.train_settings import TrainSettings
from unet.model import UNet

Item = TypeVar("Item")

PLANNED_SHARE = 0.92  # share of the time: the run should end at 80 to 105% of it, however busy the machine becomes
GOOD_STEPS = 1000  # steps that give a first useful model
WARM_UP_STEPS = 3  # the least number of steps that are not timed
FIRST_STEPS = 2  # the first timed steps, whose time determines how many more are timed
# the share of the time that timing steps may take; a second timing, after the evaluation, takes half as much again
MEASURED_SHARE = 0.03
MOST_STEPS = 40
BF16_STEPS = 3  # steps that are timed in bf16, after one that is not timed
BF16_FASTER = 0.8  # bf16 is worth a line if a step takes at most this share of the time
EVALUATED_BATCHES = 3  # batches of each process that are evaluated
FOLDER = ".rehearsal"  # beside the checkpoints, for a checkpoint that is written to measure the time of a save


@dataclass
class MeasuredSeconds:
    """Seconds that a step takes, an evaluation, the prediction of one image, and a save."""

    step: float = 0.0
    evaluation: float = 0.0
    image: float = 0.0
    save: float = 0.0


class FirstBatches:
    """The first batches of a loader."""

    def __init__(self, loader: DataLoader, count: int) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.count = min(count, len(loader))
        self.images = 0  # images in the batches of the last pass

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[EvaluationBatch]:
        self.images = 0
        for batch in islice(self.loader, self.count):
            self.images += len(batch["indices"])
            yield batch


class Rehearsal:
    """Trains, evaluates and saves a copy of the model for a moment, to measure how long that takes.

    The copy learns nothing: its learning rate is 0.

    Args:
        model: the model that was built, not wrapped; it is not changed.
        output_dir: the folder of the run, to whose disk a checkpoint is written.

    Attributes:
        model: the copy.
        loaders: the loader of enough training steps, and the loader of the validation images.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        args: TrainSettings,
        model: UNet,
        *,
        info: DatasetInfo,
        shapes: NetworkShapes,
        batch_split: BatchSplit,
        output_dir: Path,
    ) -> None:
        assert args.max_minutes is not None
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise SettingsError("--max-minutes does not work with DeepSpeed; give --max-steps")
        exit_on_sigterm()  # there is nothing to save yet, but something to remove
        self.accelerator = accelerator
        self.args = args
        self.info = info
        self.batch_split = batch_split
        self.times = MeasuredSeconds()
        self.folder = output_dir / "checkpoints" / FOLDER
        self.model = copy.deepcopy(model)
        self.state = RunState()
        self.schedule = replace(Schedule.from_args(args, len(info.train), total_steps=1), peak=0.0)
        sampler = TrainingSampler(shapes.train, batch_split, args.seed, range(0), info.train.records.group_sizes)
        step_shapes = [batch.shape for batch in sampler.batches(epoch=0)]
        warm_up, timed = rehearsed_steps(step_shapes, is_slow_at_first(accelerator))
        self._warm_up = len(warm_up)
        steps = [*warm_up, *timed]
        with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
            self.loaders = build_loaders(
                info,
                model.config,
                shapes,
                batch_split,
                steps,
                num_workers=args.num_workers,
                device=accelerator.device,
            )
        scaler = accelerator.scaler
        self._scaler_state = None if scaler is None else scaler.state_dict()
        self._timed_steps = 0
        self._bf16_step: float | None = None
        self._can_use_bf16 = accelerator.mixed_precision == "no" and has_bf16_instructions(accelerator.device)
        self.seconds = 60 * args.max_minutes
        say(f"time: measuring some steps, to fill --max-minutes {args.max_minutes:g}")

    def time_steps(self, make_step: Callable[[Item], None], steps: Iterator[Item]) -> None:
        """Make the same number of steps on all processes; the steps that warm up are not timed.

        The clock is read once the device has made them all: waiting after every step would add to the time.
        """
        _make(make_step, steps, self._warm_up)
        begin = self._now()
        _make(make_step, steps, FIRST_STEPS)
        seconds = self._slowest((self._now() - begin) / FIRST_STEPS)
        more_steps = min(MOST_STEPS, int(MEASURED_SHARE * self.seconds / seconds))
        _make(make_step, steps, more_steps)
        self._timed_steps = FIRST_STEPS + more_steps
        self.times.step = self._slowest((self._now() - begin) / self._timed_steps)

    def time_steps_again(self, make_step: Callable[[Item], None], steps: Iterator[Item]) -> None:
        """Make half as many steps as before, at another moment, since other programs may use the machine."""
        count = self._timed_steps // 2
        seconds = self._step_seconds(make_step, steps, count)
        total = self._timed_steps + count
        self.times.step = (self._timed_steps * self.times.step + count * seconds) / total

    @property
    def tries_bf16(self) -> bool:
        """Whether this CPU has instructions for bf16, the run computes in float32, and there is time for both."""
        return self._can_use_bf16 and 2 * BF16_STEPS * self.times.step <= MEASURED_SHARE * self.seconds

    def time_bf16_steps(self, make_step: Callable[[Item], None], steps: Iterator[Item]) -> None:
        """Make a few steps in bf16; the first step is not timed."""
        _make(make_step, steps, 1)
        self._bf16_step = self._step_seconds(make_step, steps, BF16_STEPS)

    def _step_seconds(self, make_step: Callable[[Item], None], steps: Iterator[Item], count: int) -> float:
        """Make `count` steps, and return the seconds that one of them has taken on the slowest process."""
        begin = self._now()
        _make(make_step, steps, count)
        return self._slowest((self._now() - begin) / count)

    def time_evaluation(self, evaluate: Callable[[FirstBatches], object], loader: DataLoader) -> None:
        """Evaluate a part of the validation images twice, since the first time warms up."""
        batches = FirstBatches(loader, EVALUATED_BATCHES)
        for _ in range(2):
            begin = time.monotonic()
            evaluate(batches)
            seconds = time.monotonic() - begin
        self.times.evaluation = self._slowest(seconds * len(loader) / max(1, len(batches)))
        per_image = seconds / batches.images if batches.images else 0.0
        self.times.image = self._slowest(per_image)

    def time_save(self, network: UNet, optimizer: Optimizer) -> None:
        """Save a checkpoint among those of the run, and remove it."""
        average = WeightAverage(network, self.args.ema_decay)
        checkpoints = Checkpoints(self.accelerator, self.folder, network, optimizer, average, RunSettings(), keep=1)
        begin = time.monotonic()
        try:
            if self.accelerator.is_main_process:
                shutil.rmtree(self.folder, ignore_errors=True)  # a run that was killed here leaves its folder
                checkpoints.folder.mkdir(parents=True)
            checkpoints.save(self.state, None)
            checkpoints.wait()
        finally:
            if self.accelerator.is_main_process:
                shutil.rmtree(self.folder, ignore_errors=True)
        self.times.save = self._slowest(time.monotonic() - begin)

    def finish(self) -> int:
        """End the rehearsal, free the copy, and return the number of steps of the run.

        Every process must call it.
        """
        self.accelerator.free_memory()
        del self.model, self.loaders
        if self._scaler_state is not None:
            self.accelerator.scaler.load_state_dict(self._scaler_state)
        steps = max(1, on_main(self.accelerator, self._steps_left))
        self._say_times(steps)
        return steps

    def _say_times(self, steps: int) -> None:
        """Print what was measured, how many steps fit, and what a longer or faster run would give."""
        times = self.times
        say(
            f"time: a step takes {times.step:.3g} s, an evaluation {times.evaluation:.3g} s, a save {times.save:.3g} s:"
            f" time for {counted(steps, 'step')} (the same as --max-steps {steps})"
        )
        if self._bf16_step is not None and self._bf16_step < BF16_FASTER * times.step:
            say(
                f"precision: in bf16 a step takes {self._bf16_step:.3g} s; the next run is faster with"
                f" {bf16_launch_line(self.accelerator.num_processes)}"
            )
        if steps < FEW_STEPS:
            minutes = math.ceil(GOOD_STEPS * times.step / 60 / PLANNED_SHARE)
            say(
                f"time: below {FEW_STEPS} steps the {self.info.reader.answers} are often poor; {GOOD_STEPS:,} steps"
                f" take at least {counted(minutes, 'minute')} here"
            )

    def _steps_left(self) -> int:
        """How many steps fit into the time that is left now; a number below 1 if none do."""
        seconds_left = PLANNED_SHARE * self.seconds - seconds_since_start()
        return steps_that_fit(seconds_left, self.times, self.schedule, evaluation_pictures(self.info))

    def _now(self) -> float:
        """Wait until the device has finished its queue, and return the seconds on the clock."""
        wait_for(self.accelerator.device)
        return time.monotonic()

    def _slowest(self, seconds: float) -> float:
        """The most seconds that a process has measured; every process must call it."""
        seconds_tensor = torch.tensor([seconds], dtype=torch.float32, device=self.accelerator.device)
        return self.accelerator.gather(seconds_tensor).max().item()


def _make(make_step: Callable[[Item], None], steps: Iterator[Item], count: int) -> None:
    """Make the next `count` steps; the last one may still be queued when this returns."""
    for step in islice(steps, count):
        make_step(step)


def is_slow_at_first(accelerator: Accelerator) -> bool:
    """Whether the first step of a shape takes longer than the next ones: kernels are chosen, or compiled, for it."""
    return accelerator.device.type != "cpu" or compiles(accelerator)


def rehearsed_steps(shapes: Sequence[tuple[int, ...]], meets_all: bool) -> tuple[list[int], list[int]]:
    """The indices of the steps of a rehearsal: the steps that warm up, and the steps to time.

    However few of the steps to time are made, each shape is about as frequent in them as in a whole epoch.

    Args:
        shapes: the (H, W) or (D, H, W) of each step of an epoch.
        meets_all: whether every shape occurs among the steps that warm up.
    """
    timed = FIRST_STEPS + MOST_STEPS
    timed_again = timed // 2
    count = WARM_UP_STEPS + timed + timed_again + 1 + BF16_STEPS  # one warms up in bf16
    first_steps: dict[tuple[int, ...], int] = {}
    for step, shape in enumerate(shapes):
        first_steps.setdefault(shape, step)
    if len(first_steps) == 1:  # steps keep the order of the run, in which a stream is read
        return list(range(WARM_UP_STEPS)), list(range(WARM_UP_STEPS, count))
    pixels = [math.prod(shape) for shape in shapes]
    by_size = np.argsort(pixels, kind="stable").tolist()
    # multiples of the golden ratio spread evenly over 0..1, however few there are
    spread = [0.5 + index * (math.sqrt(5) - 1) / 2 for index in range(count)]
    steps = [by_size[int(len(shapes) * (position % 1))] for position in spread]
    warm_up = steps[:WARM_UP_STEPS]
    if meets_all:
        warm_up += first_steps.values()
    return warm_up, steps[WARM_UP_STEPS:]


def steps_that_fit(seconds: float, times: MeasuredSeconds, schedule: Schedule, pictures: int) -> int:
    """How many steps fit into the time that is left, with evaluations, saves and the report; below 1 if none do.

    The weights of a best model take a third of a checkpoint's time. A best model at a step without a scheduled
    checkpoint gets a checkpoint too.

    Args:
        seconds: the time that is left.
        pictures: how many pictures one process makes at each evaluation; for the report it makes 3 * PICTURES.
    """
    best_model = times.save / 3
    if schedule.eval_every % schedule.checkpoint_every:
        best_model += times.save
    evaluation = times.evaluation + pictures * times.image + best_model
    end = evaluation + times.save + 3 * PICTURES * times.image + FINISH_SECONDS
    step = times.step + evaluation / schedule.eval_every + times.save / schedule.checkpoint_every
    return int((seconds - end) / step)
