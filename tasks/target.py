"""Targets: what the network is to say about an image, as arrays of a few kinds.

Crops, padding, resizing and augmentation know the kind of a field and nothing of its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = Any  # a NumPy array or a tensor; of one target all fields are of one of the two
AnyTarget = TypeVar("AnyTarget", bound="Target")


def labels(unknown: int, dtype: str = "uint8") -> Any:
    """A field of whole numbers, one for each pixel: (*spatial), in a batch (B, *spatial).

    They are resized to the nearest one, and moved by picking. Where nothing is known of a pixel, in padding and
    fillers, they are `unknown`.
    """
    return field(metadata={"unknown": unknown, "dtype": dtype})


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Target:
    """The target of one image, or of a batch: a subclass for each task declares its fields by `labels`."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(known.name for known in fields(cls))

    @classmethod
    def unknown_value(cls, name: str) -> int:
        """What a field holds where nothing is known."""
        return next(known.metadata["unknown"] for known in fields(cls) if known.name == name)

    @classmethod
    def unknown(cls: type[AnyTarget], shape: Sequence[int]) -> AnyTarget:
        """NumPy arrays of a shape (*spatial) of which nothing is known."""
        return cls(
            **{
                known.name: np.full(shape, known.metadata["unknown"], np.dtype(known.metadata["dtype"]))
                for known in fields(cls)
            }
        )

    @classmethod
    def zeros(cls: type[AnyTarget], shape: Sequence[int], device: torch.device) -> AnyTarget:
        """Tensors of a batch (B, *spatial) of zeros, as large in memory as those that training sees."""
        return cls(**{name: torch.zeros(tuple(shape), dtype=torch.int64, device=device) for name in cls.names()})

    @classmethod
    def stack(cls: type[AnyTarget], targets: Sequence[AnyTarget]) -> AnyTarget:
        """A batch of targets of one shape, whose fields are tensors."""
        return cls(**{name: torch.stack([getattr(target, name) for target in targets]) for name in cls.names()})

    def arrays(self) -> list[Array]:
        """The fields, in the order of `names`."""
        return [getattr(self, name) for name in self.names()]

    def map(self: AnyTarget, function: Callable[[Array], Array]) -> AnyTarget:
        """A target of what a function makes of each field."""
        return type(self)(**{name: function(getattr(self, name)) for name in self.names()})

    def map_with_unknown(self: AnyTarget, function: Callable[[Array, int], Array]) -> AnyTarget:
        """As `map`; the function is also told what the field holds where nothing is known."""
        values = {name: function(getattr(self, name), self.unknown_value(name)) for name in self.names()}
        return type(self)(**values)

    def at(self: AnyTarget, place: Any) -> AnyTarget:
        """The part of each field at an index: a slice of each axis, or an image of a batch."""
        return self.map(lambda array: array[place])

    @property
    def main(self) -> Array:
        """The first field, which crops are centered on."""
        return self.arrays()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """(*spatial), of a batch (B, *spatial)."""
        return tuple(self.main.shape)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.main.device

    def to(self: AnyTarget, device: torch.device, non_blocking: bool = False) -> AnyTarget:
        """The tensors on another device; accelerate calls this, as it calls that of a tensor."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: AnyTarget) -> AnyTarget:
        """The tensors in memory that a GPU reads without waiting; a loader calls this, as it calls that of a tensor."""
        return self.map(Tensor.pin_memory)
