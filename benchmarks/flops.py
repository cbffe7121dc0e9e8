"""Floating-point operations of a network, and the peak of a GPU."""

import copy
import math
import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from unet import UNet

# Dense peaks in teraFLOPS by a pattern of the device's name, from NVIDIA's data sheets; sparse figures are halved.
# The first is for half precision, the second for float32, which convolutions compute in TF32 if the device has it.
PEAKS = {
    r"\bB200\b": (2250, 1125),
    r"\bH200\b(?! NVL)|\bH100 80GB HBM3|\bGH200\b": (989, 495),
    r"\bA100\b": (312, 156),
    r"\bL4\b": (121, 60),
    r"\bRTX 4090\b(?! D| Laptop)": (165, 82.6),
    r"\bT4\b": (65, 8.1),
}


def training_flops(network: UNet, channels: int) -> float:
    """FLOPs of a forward and backward pass for one pixel, counted on the meta device; a multiply-add is two."""
    trial = copy.deepcopy(network).to("meta").train()
    trial.activation_checkpointing = False
    size = (256,) * network.config.dims  # a multiple of what pooling needs at any sensible depth
    with FlopCounterMode(display=False) as counter:
        logits = trial(torch.empty((2, channels, *size), device="meta"))
        outputs = [logits] if isinstance(logits, torch.Tensor) else logits
        sum(output.sum() for output in outputs).backward()
    return counter.get_total_flops() / (2 * math.prod(size))


def peak_flops(name: str, *, half: bool) -> float | None:
    """The dense peak of a device in teraFLOPS, by its name; None if it is not in the table, or is a part of a GPU."""
    if re.search(r"\bMIG\b", name):
        return None
    for pattern, (half_peak, float32_peak) in PEAKS.items():
        if re.search(pattern, name):
            return half_peak if half else float32_peak
    return None
