"""Whether cuDNN times its kernels, on a CUDA device."""

import numpy as np
import torch

from data_utils.loading.loaders import NetworkShapes
from train_utils.settings.train_settings import TrainSettings

FEW_SHAPES = 4  # timing a shape takes as long as some tens of steps
ENOUGH_MINUTES = 10  # on a shared H200, timing one shape took 38 s of a run of one minute


def tune_kernels(args: TrainSettings, device: torch.device, shapes: NetworkShapes) -> None:
    """Let cuDNN time its kernels for each shape and take the fastest, where images have few shapes and the run is long.

    Call it before the first forward pass, even that of a memory trial: torch keeps the kernel that it has chosen for a
    shape (pytorch issue 45372). The fastest kernel may differ between two runs, so not with --deterministic.
    """
    count = len(np.unique(np.concatenate([shapes.train, shapes.val]), axis=0))
    is_long = not args.max_minutes or args.max_minutes >= ENOUGH_MINUTES
    is_tuned = device.type == "cuda" and not args.deterministic and is_long and count <= FEW_SHAPES
    torch.backends.cudnn.benchmark = is_tuned
