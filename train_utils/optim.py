"""The optimizer, and the weights of the classes in the loss."""

from collections.abc import Sequence

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from runtime.errors import SettingsError
from runtime.launch import SHARDING


def build_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    distributed_type: DistributedType = DistributedType.NO,
) -> torch.optim.Optimizer:
    """`adamw`, or `sgd` with Nesterov momentum 0.9; decay on convolutions only: norms and biases have no use for it.

    Fused where that can be: all weights are updated in one kernel, or none where the device says so (`StepGuard`).
    """
    # DeepSpeed has updates of its own; torch 2.13 has no fused SGD for FSDP's DTensors
    fused = distributed_type not in SHARDING or (distributed_type == DistributedType.FSDP and name == "adamw")
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True, fused=fused)


def class_weight_tensor(weights: Sequence[float | str] | None, class_pixels: Sequence[int]) -> Tensor | None:
    """(num_classes,) loss weights: as given, or for ["auto"] inverse to the classes' pixels.

    Raises SettingsError where their number is not that of the classes.
    """
    if weights is None:
        return None
    if list(weights) == ["auto"]:
        pixels = torch.tensor(class_pixels, dtype=torch.float32)
        return pixels.sum() / (len(pixels) * pixels.clamp_min(1))
    if "auto" in weights or len(weights) != len(class_pixels):
        given, classes = len(weights), len(class_pixels)
        raise SettingsError(
            f"--class-weights has {given} values for {classes} classes; give `auto` or one for each class"
        )
    return torch.tensor(weights)
