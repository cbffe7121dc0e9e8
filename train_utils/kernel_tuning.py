"""The image shapes for which cuDNN times its kernels, on a CUDA device."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from train_utils.schedule import Schedule
from train_utils.settings.train_settings import TrainSettings

# The number of steps of a shape that pay for timing its kernels, estimated from torch 2.13's source and not measured on
# a GPU. cuDNN builds up to ten kernels for each pass of each convolution and runs each twice. That takes as long as 50
# steps and a few seconds more; a step may then take 5 to 10% less.
ENOUGH_STEPS = 1000
ENOUGH_MINUTES = 10  # on a shared H200, timing one shape took 38 s of a run of one minute


class KernelTuning:
    """Lets cuDNN time its kernels for each image shape that occurs in enough steps of a run.

    The first forward pass of a shape decides for the whole run, even if it is a memory trial's: torch keeps the kernel
    that it has chosen, and does not check again whether it may time others (pytorch issue 45372).

    Args:
        shapes: the shapes to tune, (H, W) or (D, H, W).
    """

    def __init__(self, device: torch.device, shapes: set[tuple[int, ...]]) -> None:
        self.device = device
        self.shapes = shapes

    @classmethod
    def from_args(
        cls, args: TrainSettings, device: torch.device, shapes: np.ndarray, total_steps: int | None
    ) -> "KernelTuning":
        """Choose the shapes that have enough steps; none with --deterministic.

        Args:
            shapes: (N, n), the shape of each training image.
            total_steps: None for --epochs, and for --max-minutes, whose steps are not known yet. Then all shapes are
                tuned in runs of at least ENOUGH_MINUTES, and none in shorter ones.
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


@contextmanager
def tune_kernels(device: torch.device, enabled: bool) -> Iterator[None]:
    """In this context, cuDNN times its kernels for each new shape on a CUDA device, and uses the fastest one.

    The fastest kernel may differ between two runs, so do not use it for runs that must be repeated bit by bit, nor for
    evaluation, where every shape may be new.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled and device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
