"""Muon, an optimizer that makes all directions of a convolution's weights learn at the same speed."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
# Newton-Schulz iterations of degree five, with coefficients by which small singular values grow fast (Jordan et al.)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MATCHING_SCALE = 0.2  # a step then has the root mean square that AdamW's usually have (Liu et al.)


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
