"""The optimizer, and the weights of the classes in the loss."""

from collections.abc import Sequence

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from runtime.errors import SettingsError
from runtime.launch import SHARDING

DECAYED = (nn.modules.conv._ConvNd, nn.Linear)


def build_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    distributed_type: DistributedType = DistributedType.NO,
) -> torch.optim.Optimizer:
    """`adamw`, or `sgd` with Nesterov momentum 0.9, for all weights that are not frozen.

    Decay on convolutions and linear layers only: norms, biases and tables of positions have no use for it. Each group
    says whether it is `of_encoder`: those may have a learning rate of their own (`Schedule.set_learning_rate`).

    Fused where that can be: all weights are updated in one kernel, or none where the device says so (`StepGuard`).
    """
    # DeepSpeed has updates of its own; torch 2.13 has no fused SGD for FSDP's DTensors
    fused = distributed_type not in SHARDING or (distributed_type == DistributedType.FSDP and name == "adamw")
    weights: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for path, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            decay = weight_decay if key == "weight" and isinstance(module, DECAYED) else 0.0
            if parameter.requires_grad:
                weights.setdefault((path.startswith("encoder."), decay), []).append(parameter)
    groups = [{"params": p, "of_encoder": which, "weight_decay": decay} for (which, decay), p in weights.items()]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True, fused=fused)


def class_weight_tensor(weights: Sequence[float | str] | None, class_pixels: Sequence[int]) -> Tensor | None:
    """(num_classes,) loss weights: as given, or none, or for ["auto"] inverse to the root of each class's pixels.

    The root weakens the effect of the frequency (docs/results.md). A class with the average number of pixels has weight
    1, and so has one without any.

    Raises SettingsError where their number is not that of the classes.
    """
    if weights is None or list(weights) == ["none"]:
        return None
    if list(weights) == ["auto"]:
        pixels = torch.tensor(class_pixels, dtype=torch.float32)
        return torch.where(pixels > 0, (pixels.sum() / (len(pixels) * pixels)).sqrt(), 1)
    if {"auto", "none"} & {*weights} or len(weights) != len(class_pixels):
        given, classes = len(weights), len(class_pixels)
        raise SettingsError(
            f"--class-weights has {given} values for {classes} classes; give `auto`, `none` or one for each class"
        )
    return torch.tensor(weights)
