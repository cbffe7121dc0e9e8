"""The optimizers and how their learning rate falls. A new one is an entry of OPTIMIZERS or SCHEDULES."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.errors import SettingsError
from runtime.launch import SHARDING

DECAYED_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
# of Muon
MOMENTUM = 0.95
# Newton-Schulz iterations of degree five, with coefficients by which small singular values grow fast (Jordan et al.)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MATCHING_SCALE = 0.2  # a step then has the root mean square that AdamW's usually have (Liu et al.)


# the share of the peak, for a progress from 0 at the end of the warm-up to 1 at the end of the run
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,  # Loshchilov & Hutter 2017, arXiv:1608.03983
    "poly": lambda progress: (1 - progress) ** 0.9,  # Chen et al. 2018, arXiv:1606.00915
    "constant": lambda progress: 1.0,
}


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int, schedule: str) -> float:
    """The rate of optimizer step `step` (from 0): linear warm-up, then one of SCHEDULES.

    The rate depends on the progress alone: no state needs to be saved, and no scheduler advances once for each process.
    In a run by the clock all numbers are parts of its time.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * SCHEDULES[schedule](progress)


class Muon(torch.optim.AdamW):
    """Muon for the weights of groups with `orthogonal` set, AdamW for all others.

    A kernel (out, in, ...) is taken as a matrix of `out` rows. Its step is the gradient, averaged over steps, with all
    singular values brought near 1 (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon). Steps are as large
    as AdamW's, so that one learning rate and weight decay suit both (Liu et al. 2025, arXiv:2502.16982). torch's own
    Muon takes matrices only.

    As in fused AdamW, a step with `found_inf` set changes nothing, and the host does not wait for it.
    """

    param_groups: list[dict[str, Any]]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._step_orthogonally(weight, group["lr"], group["weight_decay"])
        return loss

    def _step_orthogonally(self, weight: Tensor, learning_rate: float, weight_decay: float) -> None:
        """Make the step of one weight (out, in, ...)."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        average = state["momentum_buffer"]
        new_average = average.lerp(weight.grad, 1 - MOMENTUM)
        direction = weight.grad.lerp(new_average, MOMENTUM).movedim(1, -1)  # Nesterov's, in channels-last order
        matrix = direction.flatten(1)
        scale = MATCHING_SCALE * math.sqrt(max(matrix.shape))
        step = orthogonalize(matrix).view(direction.shape).movedim(-1, 1)
        new_weight = weight * (1 - learning_rate * weight_decay) - learning_rate * scale * step
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None:
            new_average = torch.where(found_inf > 0, average, new_average)
            new_weight = torch.where(found_inf > 0, weight, new_weight)
        average.copy_(new_average)
        weight.copy_(new_weight)


def orthogonalize(matrix: Tensor) -> Tensor:
    """The matrix with the same singular vectors and with singular values of about 0.7 to 1.2, except vanishing ones.

    Each iteration multiplies by a polynomial of the matrix times its transpose. These polynomials are square matrices
    of the shorter side: they are multiplied with each other first, and with the matrix once at the end.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp_min(torch.finfo(matrix.dtype).tiny)
    square = wide @ wide.T
    identity = torch.eye(len(square), dtype=matrix.dtype, device=matrix.device)
    factor = identity
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        polynomial = first * identity + second * square + third * (square @ square)
        factor = polynomial @ factor
        square = polynomial @ square @ polynomial
    result = factor @ wide
    return result if matrix.shape[0] <= matrix.shape[1] else result.T


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {  # of groups of parameters, `lr` and `fused`
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "muon": Muon,
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
    (`StepGuard`). Raises SettingsError for Muon, which needs whole weights, if they are spread over processes.
    """
    orthogonalizes = OPTIMIZERS[name] is Muon
    if orthogonalizes and distributed_type in SHARDING:
        raise SettingsError(
            f"--optimizer {name}: needs whole weights, and this launch profile spreads them over the processes; give"
            " --optimizer adamw, or a profile without FSDP and DeepSpeed"
        )
    # DeepSpeed has updates of its own; the DTensors of FSDP suit the fused kernel of AdamW alone (torch 2.13)
    takes_shards = distributed_type == DistributedType.FSDP and name == "adamw"
    is_fused = distributed_type not in SHARDING or takes_shards
    groups = _parameter_groups(model, weight_decay, orthogonalizes)
    return OPTIMIZERS[name](groups, lr=learning_rate, fused=is_fused)


def _parameter_groups(model: nn.Module, weight_decay: float, orthogonalizes: bool) -> list[dict]:
    """The weights that train, by whether they are an encoder's, how they decay, and whether they are orthogonalized."""
    groups: dict[tuple[bool, float, bool], dict[str, Any]] = {}
    for path, module in model.named_modules():
        is_encoder = path.startswith("encoder.")
        is_head = path.startswith(("head.", "heads."))
        for key, parameter in module.named_parameters(recurse=False):
            decay = weight_decay if key == "weight" and isinstance(module, DECAYED_LAYERS) else 0.0
            is_kernel = key == "weight" and isinstance(module, nn.modules.conv._ConvNd)
            # it is for hidden layers; encoders stay with AdamW, which has pretrained them
            orthogonal = orthogonalizes and is_kernel and not is_encoder and not is_head
            if parameter.requires_grad:
                facts = {"of_encoder": is_encoder, "weight_decay": decay, "orthogonal": orthogonal}
                group = groups.setdefault((is_encoder, decay, orthogonal), {"params": [], **facts})
                group["params"].append(parameter)
    return list(groups.values())
