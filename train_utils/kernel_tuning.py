"""The image shapes for which cuDNN times its kernels, on a CUDA device."""

import math
from contextlib import AbstractContextManager

import numpy as np
import torch

from runtime.launch import tune_kernels
from train_utils.schedule import Schedule
from train_utils.settings.train_settings import TrainSettings

# Steps of a shape that pay for timing its kernels, by torch 2.13's source; no GPU has shown it. Up to ten kernels are
# built for each pass of each convolution and run twice. That takes as long as 50 steps, and some seconds beside; a step
# may then take 5 to 10% less.
ENOUGH_STEPS = 1000
ENOUGH_MINUTES = 10  # on a shared H200 the timing of one shape took 38 s of a minute


class KernelTuning:
    """Has cuDNN time its kernels for each shape that enough steps of a run have.

    The first forward pass of a shape decides for the whole run, a trial's too: torch keeps the kernel that it has
    chosen, and does not ask again whether it may time others (pytorch issue 45372).

    Args:
        shapes: (H, W) or (D, H, W), those to tune.
    """

    def __init__(self, device: torch.device, shapes: set[tuple[int, ...]]) -> None:
        self.device = device
        self.shapes = shapes

    @classmethod
    def from_args(
        cls, args: TrainSettings, device: torch.device, shapes: np.ndarray, total_steps: int | None
    ) -> "KernelTuning":
        """None of the shapes (N, n) of the training images with --deterministic, else those that have enough steps.

        `total_steps` is None for --epochs, and for --max-minutes, whose steps are not known yet: all pay then in runs
        of ENOUGH_MINUTES, and none in shorter ones.
        """
        if args.deterministic:
            return cls(device, set())
        steps: float = Schedule.from_args(args, len(shapes), total_steps).total_steps
        if total_steps is None and args.max_minutes:
            steps = math.inf if args.max_minutes >= ENOUGH_MINUTES else 0
        distinct, counts = np.unique(shapes, axis=0, return_counts=True)
        tuned = distinct[counts * (steps / len(shapes)) >= ENOUGH_STEPS]
        return cls(device, set(map(tuple, tuned.tolist())))

    def for_shape(self, shape: tuple[int, ...]) -> AbstractContextManager[None]:
        """A context for passes of images of this shape."""
        return tune_kernels(self.device, enabled=shape in self.shapes)
