"""Numbered objects, and how deep each pixel lies inside its object."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_utils.target import Target, labels
from tasks.objects.labels import pack_labels
from unet.config import IGNORE_INDEX

DEEPEST = 20  # distance to the border, in pixels, from which on the depth of an object does not grow


@dataclass(frozen=True, eq=False)
class ObjectTarget(Target):
    """The class and the object of each pixel.

    Args:
        mask: the class of each pixel, 0 for background, 255 where ignored.
        ids: the number of each pixel's object, 0 for no object.
    """

    mask: Any = labels(unknown=IGNORE_INDEX)
    ids: Any = labels(unknown=0, dtype="int32")

    def renumber(self) -> "ObjectTarget":
        """The target with new numbers for its objects, so that no number is larger than the number of pixels."""
        return replace(self, ids=close_gaps(self.ids))

    @property
    def prediction(self) -> Any:
        return pack_labels(self.ids, self.mask)


@dataclass(frozen=True, eq=False)
class RenderedObjects(Target):
    """The class of each pixel, and the pixel's depth inside of its object.

    Args:
        mask: as in ObjectTarget.
        depth: 1 in the middle of an object, falling towards its border; 0 outside of objects.
    """

    mask: Any = labels(unknown=IGNORE_INDEX)
    depth: Any = labels(unknown=0, dtype="float32")


def close_gaps(ids: np.ndarray) -> np.ndarray:
    """The objects numbered from 1 without gaps, in the same order, int32; 0 stays 0."""
    present, numbers = np.unique(ids, return_inverse=True)
    first = 0 if present[0] == 0 else 1
    return (numbers + first).reshape(ids.shape).astype(np.int32)


def normalized_depth(ids: Tensor, is_known: Tensor) -> Tensor:
    """The depth of each pixel inside of its object: (B, *spatial) float32, 1 for the deepest pixels of each object.

    The distance to the border is counted in pixels, up to DEEPEST. It is an octagonal distance, which is close to the
    Euclidean one. Neither the border of the picture nor unknown pixels are the border of an object.

    Args:
        ids: (B, *spatial), the number of each pixel's object, at most the number of pixels of an image; 0 is no object.
        is_known: (B, *spatial) bool.
    """
    is_object = (ids > 0) & is_known
    depth = is_object.float()
    inside = ~_border_pixels(ids, is_known)
    for step in range(1, DEEPEST):
        depth += inside & is_object
        inside = _erode(inside, square=step % 2 == 0)
    return depth / _deepest(depth, ids).clamp_min(1)


def _border_pixels(ids: Tensor, is_known: Tensor) -> Tensor:
    """(B, *spatial) bool: known pixels with a neighbor along an axis that is known too and has another number."""
    borders = torch.zeros_like(is_known)
    for axis in range(1, ids.ndim):
        last = ids.shape[axis] - 1
        differ = ids.narrow(axis, 0, last) != ids.narrow(axis, 1, last)
        differ &= is_known.narrow(axis, 0, last) & is_known.narrow(axis, 1, last)
        borders.narrow(axis, 0, last).logical_or_(differ)
        borders.narrow(axis, 1, last).logical_or_(differ)
    return borders


def _erode(inside: Tensor, square: bool) -> Tensor:
    """(B, *spatial) bool: pixels whose neighbors are all inside, in a square (a cube) of side 3, or in a cross."""
    result = inside.clone()
    for axis in range(1, inside.ndim):
        source = result.clone() if square else inside
        last = inside.shape[axis] - 1
        result.narrow(axis, 0, last).logical_and_(source.narrow(axis, 1, last))
        result.narrow(axis, 1, last).logical_and_(source.narrow(axis, 0, last))
    return result


def _deepest(depth: Tensor, ids: Tensor) -> Tensor:
    """(B, *spatial): the largest depth in the object of each pixel."""
    numbers = ids.flatten(1)
    deepest = depth.new_zeros(len(ids), numbers.shape[1] + 1)
    deepest = deepest.scatter_reduce(1, numbers, depth.flatten(1), "amax")
    return deepest.gather(1, numbers).view_as(depth)
