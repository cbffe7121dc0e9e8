"""The optimizers. A new one is an entry of OPTIMIZERS."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from accelerate.utils import DistributedType
from torch import nn
from torch.optim import Optimizer

from runtime.errors import SettingsError
from runtime.launch import SHARDING
from train_utils.muon import Muon

DECAYED_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


class OptimizerKind(NamedTuple):
    """An optimizer, and what is known of it.

    Args:
        build: makes it from groups of parameters, `lr` and `fused`.
        moments: how many numbers it keeps for each weight.
        orthogonalizes: whether hidden kernels are a group of their own; such an optimizer needs whole weights.
        fuses_shards: whether its fused kernel takes the DTensors of FSDP (torch 2.13).
    """

    build: Callable[..., Optimizer]
    moments: int
    orthogonalizes: bool = False
    fuses_shards: bool = False


OPTIMIZERS = {
    "adamw": OptimizerKind(torch.optim.AdamW, moments=2, fuses_shards=True),
    "sgd": OptimizerKind(partial(torch.optim.SGD, momentum=0.9, nesterov=True), moments=1),
    "muon": OptimizerKind(Muon, moments=2, orthogonalizes=True),
}


def build_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    distributed_type: DistributedType = DistributedType.NO,
) -> Optimizer:
    """One of OPTIMIZERS for all weights that are not frozen.

    Weight decay applies to convolutions and linear layers only: norms, biases and tables of positions do not need it.
    Each parameter group has two entries of its own: `of_encoder`, since an encoder may have its own learning rate
    (`Schedule.set_learning_rate`), and `orthogonal`, for `Muon`.

    The optimizer is fused if possible: one kernel updates all weights, or none if a flag on the device forbids it
    (`StepGuard`).

    Raises SettingsError for an optimizer that needs whole weights if they are spread over processes.
    """
    kind = OPTIMIZERS[name]
    if kind.orthogonalizes and distributed_type in SHARDING:
        raise SettingsError(
            f"--optimizer {name}: needs whole weights, and this launch profile spreads them over the processes; give"
            " --optimizer adamw, or a profile without FSDP and DeepSpeed"
        )
    # DeepSpeed has updates of its own
    is_fused = distributed_type not in SHARDING or (distributed_type == DistributedType.FSDP and kind.fuses_shards)
    return kind.build(_parameter_groups(model, weight_decay, kind.orthogonalizes), lr=learning_rate, fused=is_fused)


def _parameter_groups(model: nn.Module, weight_decay: float, orthogonalizes: bool) -> list[dict]:
    """The weights that train, by whether they are an encoder's, how they decay, and whether they are orthogonalized."""
    weights: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for path, module in model.named_modules():
        is_encoder = path.startswith("encoder.")
        is_head = path.startswith(("head.", "heads."))
        for key, parameter in module.named_parameters(recurse=False):
            decay = weight_decay if key == "weight" and isinstance(module, DECAYED_LAYERS) else 0.0
            is_kernel = key == "weight" and isinstance(module, nn.modules.conv._ConvNd)
            # it is for hidden layers; encoders stay with AdamW, which has pretrained them
            orthogonal = orthogonalizes and is_kernel and not is_encoder and not is_head
            if parameter.requires_grad:
                weights.setdefault((is_encoder, decay, orthogonal), []).append(parameter)
    groups = []
    for (is_encoder, decay, orthogonal), parameters in weights.items():
        group = {"params": parameters, "of_encoder": is_encoder, "weight_decay": decay, "orthogonal": orthogonal}
        groups.append(group)
    return groups
