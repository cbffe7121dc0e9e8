"""Run a script whose network fits into memory for images of up to 32 columns only.

`out_of_memory_if_wide.py gpu predict.py --flags ...`: beyond, it fails as torch does on a GPU, or on a CPU (`cpu`).
"""

import runpy
import sys

import torch

from unet import UNet

WIDEST = 32
ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA"),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
}

way_down = UNet._way_down
error = ERRORS[sys.argv[1]]


def way_down_if_narrow(self: UNet, images: torch.Tensor) -> list[torch.Tensor]:
    if images.shape[-1] > WIDEST:
        raise error
    return way_down(self, images)


UNet._way_down = way_down_if_narrow
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
