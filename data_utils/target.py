"""Targets: the right answers for an image, as arrays of a few kinds.

Crops, padding, resizing and augmentation know the kind of a field, labels or points, but not its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = Any  # a NumPy array or a tensor; all fields of one target are of one of the two
OwnTarget = Any  # a target of the one kind that a task has; the task names this kind in its signatures
AnyTarget = TypeVar("AnyTarget", bound="Target")


def labels(unknown: int, dtype: str = "uint8") -> Any:
    """A field of whole numbers, one for each pixel: (*spatial), in a batch (B, *spatial).

    Resizing and moving pick the nearest label. The label is `unknown` where nothing is known about a pixel, as in
    padding and fillers.
    """
    return field(metadata={"unknown": unknown, "dtype": dtype, "is_image_label": False})


def image_label(unknown: int) -> Any:
    """A field of one whole number for each image: (), in a batch (B,).

    Crops, padding, resizing and moving do not change it. A filler holds `unknown`.
    """
    return field(metadata={"unknown": unknown, "dtype": "int32", "is_image_label": True})


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Target:
    """The target of one image or of a batch. A subclass for each task declares fields by `labels` and `image_label`."""

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(entry.name for entry in fields(cls))

    @classmethod
    def unknown(cls: type[AnyTarget], shape: Sequence[int]) -> AnyTarget:
        """The target of one image, NumPy arrays of a shape (*spatial), in which nothing is known."""
        arrays = []
        for entry in fields(cls):
            field_shape = () if entry.metadata["is_image_label"] else shape
            arrays.append(np.full(field_shape, entry.metadata["unknown"], entry.metadata["dtype"]))
        return cls(*arrays)

    @classmethod
    def stack(cls: type[AnyTarget], targets: Sequence[AnyTarget]) -> AnyTarget:
        """A batch of targets of one shape, whose fields are tensors."""
        return cls(*map(torch.stack, zip(*(target.arrays() for target in targets), strict=True)))

    def arrays(self) -> list[Array]:
        """The fields, in the order of `field_names`."""
        return [getattr(self, entry.name) for entry in fields(self)]

    def map(self: AnyTarget, function: Callable[[Array], Array]) -> AnyTarget:
        """A target whose fields are the results of a function of each field."""
        return type(self)(*map(function, self.arrays()))

    def map_with_unknown(self: AnyTarget, function: Callable[[Array, int], Array]) -> AnyTarget:
        """A target whose labels are replaced by the results of a function; other fields are kept.

        The second argument of the function is the field's value for unknown pixels.
        """
        arrays = []
        for entry, array in zip(fields(self), self.arrays(), strict=True):
            is_label = not entry.metadata["is_image_label"]
            arrays.append(function(array, entry.metadata["unknown"]) if is_label else array)
        return type(self)(*arrays)

    def at(self: AnyTarget, index: Any) -> AnyTarget:
        """The part of each field at an index: a slice of each axis, or an image of a batch.

        Fields of one number for each image have only the axis of the batch.
        """
        indices = index if isinstance(index, tuple) else (index,)
        return self.map(lambda array: array[(*indices[: array.ndim], ...)])

    def as_batch(self: AnyTarget) -> AnyTarget:
        """The target of one image as a batch of one."""
        return self.map(lambda array: array[None])

    def pad(self: AnyTarget, shape: Sequence[int]) -> AnyTarget:
        """The target of one image (NumPy arrays), padded at the end of each axis to a shape (*spatial)."""
        widths = [(0, side - own) for side, own in zip(shape, self.shape, strict=True)]
        return self.map_with_unknown(lambda array, unknown: np.pad(array, widths, constant_values=unknown))

    def crop(self: AnyTarget, window: Sequence[slice]) -> AnyTarget:
        """The target of a crop; `window` has a slice of each axis."""
        return self.at(tuple(window))

    def strip(self: AnyTarget, start: int, stop: int) -> AnyTarget:
        """The target of rows or slices [start, stop) of each image of a batch, whose losses add up over the strips."""
        return self.at((slice(None), slice(start, stop)))

    def for_loss(self: AnyTarget) -> AnyTarget:
        """The batch in the types that losses need: whole numbers become int64."""
        return self.map(Tensor.long)

    def move(
        self: AnyTarget,
        move_labels: Callable[[Tensor, int], Tensor],
        move_points: Callable[[Tensor], Tensor],
    ) -> AnyTarget:
        """The batch moved like its images. A target without points uses only `move_labels`.

        Args:
            move_labels: moves labels (B, *spatial); its second argument is the label of unknown pixels.
            move_points: moves points (B, K, axes).
        """
        return self.map_with_unknown(move_labels)

    def locations(self) -> list[np.ndarray] | None:
        """Pixels (n, axes) that training crops may be centered on; None if the labels of `main` decide it."""
        return None

    @property
    def main(self) -> Array:
        """The first field, by whose labels crops are centered."""
        return self.arrays()[0]

    @classmethod
    def unknown_label(cls) -> int:
        """The value of `main` for unknown pixels."""
        return fields(cls)[0].metadata["unknown"]

    @property
    def prediction(self) -> Array:
        """The target in the form of a prediction, for scores and pictures that compare the two."""
        return self.main

    def renumber(self: AnyTarget) -> AnyTarget:
        """The target of an image or crop for training, with new numbers for objects.

        The numbers in the whole image may be too large for a crop, and have no meaning there.
        """
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (*spatial); for a batch (B, *spatial)."""
        return tuple(self.main.shape)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.main.device

    def to(self: AnyTarget, device: torch.device, non_blocking: bool = False) -> AnyTarget:
        """The target on another device; accelerate calls this as it calls `Tensor.to`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: AnyTarget) -> AnyTarget:
        """The target in pinned memory, for copies to a GPU; a loader calls this as it calls `Tensor.pin_memory`."""
        return self.map(Tensor.pin_memory)
