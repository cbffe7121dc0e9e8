"""Run a script whose process 1 runs out of memory in its seventh step: `out_of_memory_later.py train.py --flags ...`.

From then on it has no room for training on micro-batches of more than two images.
"""

import os
import runpy
import sys

import torch

from unet import UNet

STEPS_THAT_FIT, IMAGES_THAT_FIT = 6, 2

way_down = UNet._way_down
large_batches: list[torch.Tensor] = []


def way_down_with_little_memory(self: UNet, images: torch.Tensor) -> list[torch.Tensor]:
    # its largest tensor is counted on the meta device
    if self.training and images.device.type == "cpu" and len(images) > IMAGES_THAT_FIT and os.environ["RANK"] == "1":
        large_batches.append(images)
        if len(large_batches) > STEPS_THAT_FIT:
            raise torch.OutOfMemoryError("CUDA out of memory.")
    return way_down(self, images)


UNet._way_down = way_down_with_little_memory
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
