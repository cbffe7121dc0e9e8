"""The optimizer."""

import torch
from accelerate.utils import DistributedType
from torch import nn

from runtime.errors import SettingsError
from runtime.launch import SHARDING
from train_utils.muon import Muon
from train_utils.settings.train_settings import OPTIMIZERS
from unet.blocks import OutConv

DECAYED_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


def build_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    distributed_type: DistributedType = DistributedType.NO,
) -> torch.optim.Optimizer:
    """`adamw`, `sgd` with Nesterov momentum 0.9, or `muon`, for all weights that are not frozen.

    Weight decay applies to convolutions and linear layers only: norms, biases and tables of positions do not need it.
    Each parameter group has two entries of its own: `of_encoder`, since an encoder may have its own learning rate
    (`Schedule.set_learning_rate`), and `orthogonal`, for `Muon`.

    The optimizer is fused if possible: one kernel updates all weights, or none if a flag on the device forbids it
    (`StepGuard`).

    Raises SettingsError for `muon` if the weights are spread over processes: Muon needs whole weights; ValueError for
    an unknown name.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is none of {', '.join(OPTIMIZERS)}")
    if name == "muon" and distributed_type in SHARDING:
        raise SettingsError(
            "--optimizer muon: needs whole weights, and this launch profile spreads them over the processes; give"
            " --optimizer adamw, or a profile without FSDP and DeepSpeed"
        )
    # DeepSpeed has updates of its own; torch 2.13 has no fused SGD for FSDP's DTensors
    fused = distributed_type not in SHARDING or (distributed_type == DistributedType.FSDP and name == "adamw")
    head_weights: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, OutConv):
            head_weights.update(module.parameters())
    weights: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for path, module in model.named_modules():
        is_encoder = path.startswith("encoder.")
        for key, parameter in module.named_parameters(recurse=False):
            decay = weight_decay if key == "weight" and isinstance(module, DECAYED_LAYERS) else 0.0
            is_kernel = key == "weight" and isinstance(module, nn.modules.conv._ConvNd)
            # Muon is for hidden layers; encoders stay with AdamW, which has pretrained them
            orthogonal = name == "muon" and is_kernel and not is_encoder and parameter not in head_weights
            if parameter.requires_grad:
                weights.setdefault((is_encoder, decay, orthogonal), []).append(parameter)
    groups = []
    for (is_encoder, decay, orthogonal), parameters in weights.items():
        group = {"params": parameters, "of_encoder": is_encoder, "weight_decay": decay, "orthogonal": orthogonal}
        groups.append(group)
    if name == "muon":
        return Muon(groups, lr=learning_rate, fused=True)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True, fused=fused)
