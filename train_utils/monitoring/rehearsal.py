"""--max-minutes: how many steps fit into the time, measured before the first step."""

import copy
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.optim import Optimizer

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, build_loaders
from runtime.console import say
from runtime.distributed import first_on_each_machine, on_main
from runtime.errors import SettingsError
from train_utils.checkpoints.run_state import RunState
from train_utils.checkpoints.save import Checkpoints
from train_utils.ema import WeightAverage
from train_utils.reporting.samples import PICTURES
from train_utils.schedule import Schedule
from unet.model import UNet

Item = TypeVar("Item")

PLANNED = 0.95  # of the time: the run should end at 80 to 105% of it
WARM_UP, FIRST_LOOK = 3, 2  # steps that are not timed; steps that say how many more are
MEASURED = 0.04  # of the time that measuring steps may take
MOST_STEPS = 40
FINISH_SECONDS = 4.0  # to write charts and the report, beside their pictures (2 to 4 s measured on one core)


@dataclass
class Times:
    """Seconds of a step, of a validation image over all processes, and of a save."""

    step: float = 0.0
    image: float = 0.0
    save: float = 0.0


class Rehearsal:
    """A copy of the model is trained, evaluated and saved for a moment, to see how long that takes.

    Stands in for the monitor of a run.

    Args:
        model: not wrapped, as it was built; stays as it is.
        output_dir: of the run, whose disk is written to.

    Attributes:
        info: of the data set, with some of the validation images.
        loaders: of steps enough, and of those validation images.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        args: Namespace,
        model: UNet,
        info: DatasetInfo,
        shapes: NetworkShapes,
        split: BatchSplit,
        output_dir: Path,
    ) -> None:
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise SettingsError("--max-minutes does not go with DeepSpeed, which trains one model; give --max-steps")
        self.accelerator, self.args, self.output_dir = accelerator, args, output_dir
        self.model, self.state, self.times = copy.deepcopy(model), RunState(), Times()
        self.schedule = Schedule.from_args(args, len(info.train), None)
        self.val_images, self.seconds = len(info.val), 60 * args.max_minutes
        chosen = np.unique(np.linspace(0, len(info.val) - 1, 4 * accelerator.num_processes).astype(int))
        self.info = replace(info, val=info.val.part(chosen))
        with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
            self.loaders = build_loaders(
                self.info,
                model.config,
                shapes._replace(val=shapes.val[chosen]),
                split,
                range(WARM_UP + FIRST_LOOK + MOST_STEPS),
                args.num_workers,
                accelerator.device,
            )
        scaler = accelerator.scaler
        self._scale = None if scaler is None else scaler.state_dict()
        say(f"time: measuring some steps for --max-minutes {args.max_minutes:g}")

    def data_ready(self, batches: list[dict[str, Any]]) -> None:
        """As `Monitor` has it."""

    def communicating(self) -> AbstractContextManager[None]:
        """As `Monitor` has it."""
        return nullcontext()

    def timed(self, steps: Iterator[Item]) -> Iterator[Item]:
        """As many of the steps as it takes, the same on all processes; each must be over when the next is asked for."""
        last, begin = math.inf, 0.0
        for number, step in enumerate(steps, 1):
            yield step
            if number == WARM_UP:
                begin = time.monotonic()
            if number == WARM_UP + FIRST_LOOK:
                seconds = self._slowest((time.monotonic() - begin) / FIRST_LOOK)
                last = number + min(MOST_STEPS, int(MEASURED * self.seconds / seconds))
            if number == last:
                break
        self.times.step = self._slowest((time.monotonic() - begin) / (last - WARM_UP))

    @contextmanager
    def timed_evaluation(self) -> Iterator[None]:
        """Around an evaluation of the part of the validation images; the last one counts."""
        begin = time.monotonic()
        yield
        self.times.image = self._slowest((time.monotonic() - begin) / len(self.info.val))

    def time_save(self, network: nn.Module, optimizer: Optimizer) -> None:
        """Save a checkpoint beside those of the run, and remove it."""
        average = WeightAverage(network, self.args.ema_decay)
        begin = time.monotonic()
        with TemporaryDirectory(dir=self.output_dir) as folder:
            (Path(folder) / "checkpoints").mkdir()
            checkpoints = Checkpoints(self.accelerator, Path(folder), 1, network, optimizer, average, settings={})
            checkpoints.save(self.state, None)
            checkpoints.is_saved()
        self.times.save = self._slowest(time.monotonic() - begin)

    def count_steps(self) -> int:
        """How many steps the run is to have; the copy of the model goes. Every process must call it."""
        self.accelerator.free_memory()
        del self.model, self.loaders
        if self._scale is not None:
            self.accelerator.scaler.load_state_dict(self._scale)
        found = on_main(self.accelerator, self._count)
        times, evaluation = self.times, self.val_images * self.times.image
        say(
            f"time: {times.step:.3g} s a step, {evaluation:.3g} s an evaluation, {times.save:.3g} s a save: "
            f"as --max-steps {found}"
        )
        return found

    def _count(self) -> int:
        left = PLANNED * self.seconds - (time.time() - psutil.Process().create_time())
        return count_steps(left, self.times, self.val_images, self.accelerator.num_processes, self.schedule)

    def _slowest(self, seconds: float) -> float:
        found = torch.tensor([seconds], dtype=torch.float32, device=self.accelerator.device)
        return self.accelerator.gather(found).max().item()


def count_steps(seconds: float, times: Times, val_images: int, processes: int, schedule: Schedule) -> int:
    """How many steps fit into the `seconds` that are left, at least one: with evaluations, saves and the report.

    Pictures, of which one process makes PICTURES at each evaluation and three times as many for the report, take
    about as long as their evaluation does.
    """
    pictures = PICTURES * times.image * processes
    evaluation = val_images * times.image + pictures + times.save / 3  # which may be the best, whose weights are saved
    last = evaluation + times.save + 3 * pictures + FINISH_SECONDS
    of_step = times.step + evaluation / schedule.eval_every + times.save / schedule.checkpoint_every
    return max(1, int((seconds - last) / of_step))
