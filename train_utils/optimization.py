"""Optimizer and learning rate."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runtime.errors import LaunchError

SCHEDULES = ("cosine", "poly", "constant")


def build_optimizer(model: nn.Module, name: str, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """`adamw`, or `sgd` with Nesterov momentum 0.9; decay on convolutions only: norms and biases have no use for it."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate)
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True)


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int, schedule: str) -> float:
    """Of optimizer step `step` (from 0): linear warm-up, then `cosine`, `poly` (power 0.9) or `constant`.

    A function of the step alone: nothing to save, and nothing that advances once for each process.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    return peak * (1 - done) ** 0.9 if schedule == "poly" else peak


def class_weight_tensor(weights: Sequence[float | str] | None, class_pixels: Sequence[int]) -> Tensor | None:
    """(num_classes,) loss weights: as given, or for ["auto"] inverse to the classes' pixels.

    Raises LaunchError where their number is not that of the classes.
    """
    if weights is None:
        return None
    if list(weights) == ["auto"]:
        pixels = torch.tensor(class_pixels, dtype=torch.float32)
        return pixels.sum() / (len(pixels) * pixels.clamp_min(1))
    if "auto" in weights or len(weights) != len(class_pixels):
        given, classes = len(weights), len(class_pixels)
        raise LaunchError(
            f"--class-weights has {given} values for {classes} classes; give `auto` or one for each class"
        )
    return torch.tensor(weights)
