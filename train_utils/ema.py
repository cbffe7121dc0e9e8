"""Exponential moving average of the weights (Polyak & Juditsky 1992; decay as in Tarvainen & Valpola 2017)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from train_utils.sharding import local, shard_like


class WeightAverage:
    """Average of a model's floating-point weights and running statistics; with decay 0 it is the model itself.

    Args:
        model: the network, not wrapped.
        decay: the share of the average that each step keeps; it starts lower, at (1 + step) / (10 + step), so that
            early weights fade.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.tensors: dict[str, Tensor] = {}
        if decay:
            self.tensors = {name: value.clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self, step: int, is_made: Tensor) -> None:
        """Move towards the model's weights after optimizer step `step` (from 1), if the step `is_made`.

        `is_made` is a bool on the device.
        """
        if self.decay:
            weight = is_made * (1 - min(self.decay, (1 + step) / (10 + step)))
            averages = [local(tensor) for tensor in self.tensors.values()]
            live = [local(tensor) for tensor in self._live.values()]
            move_towards(averages, live, weight)

    @torch.no_grad()
    def restore(self, checkpoint: Path) -> None:
        """Continue from the averages in a checkpoint or, if it has none, from the model's weights."""
        file = checkpoint / "average.safetensors"
        saved = load_file(file) if file.is_file() else self._live
        for name, value in self.tensors.items():
            value.copy_(shard_like(saved[name], value))

    @contextmanager
    @torch.no_grad()
    def average_weights(self) -> Iterator[None]:
        """A context in which the model has the average weights."""
        own_values = {name: self._live[name].clone() for name in self.tensors}
        for name, value in self.tensors.items():
            self._live[name].copy_(value)
        try:
            yield
        finally:
            for name, value in own_values.items():
                self._live[name].copy_(value)


def move_towards(averages: list[Tensor], targets: list[Tensor], weight: Tensor) -> None:
    """Move tensors in place towards `targets`, by the share `weight`, a number on their device."""
    if weight.device.type == "cpu":
        torch._foreach_lerp_(averages, targets, [weight] * len(averages))
        return
    # `_foreach_lerp_` would launch a kernel for each tensor (torch 2.13), since the weight is on the device: these
    # three take a few launches for all tensors
    ways = torch._foreach_sub(targets, averages)
    torch._foreach_mul_(ways, weight)
    torch._foreach_add_(averages, ways)
