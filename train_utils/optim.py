"""The optimizer."""

import torch
from accelerate.utils import DistributedType
from torch import nn

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
    groups = []
    for (is_encoder, decay), parameters in weights.items():
        groups.append({"params": parameters, "of_encoder": is_encoder, "weight_decay": decay})
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True, fused=fused)
