"""The cut of volumes into slabs."""

import math

from torch import Tensor

from tasks.target import Target
from train_utils.slabs.mesh import Mesh
from unet.blocks import channels_last

FIRST_AXIS = 2  # the first spatial axis of (B, C, *spatial)


class Slabs:
    """The cut of each volume into slabs, one for each process of a group.

    Args:
        divisor: the factor by which the first axis is divided on the way to the lowest level.

    Attributes:
        length: the first side of the volume that was cut last.
    """

    def __init__(self, mesh: Mesh, divisor: int) -> None:
        self.mesh = mesh
        self.divisor = divisor
        self.length = 0

    def rows(self, length: int) -> slice:
        """The range of this process's slab in a volume whose first side is `length`; the last slab takes the rest."""
        strides = length // self.divisor
        start = strides * self.mesh.slab // self.mesh.size * self.divisor
        end = strides * (self.mesh.slab + 1) // self.mesh.size * self.divisor
        return slice(start, length if self.mesh.is_last else end)

    def largest(self, length: int) -> int:
        """The number of rows of the largest slab of a volume whose first side is `length`."""
        strides = length // self.divisor
        most_strides = math.ceil(strides / self.mesh.size)
        return most_strides * self.divisor + length % self.divisor

    def cut(self, images: Tensor) -> Tensor:
        """This process's slab of images (B, C, *spatial)."""
        self.length = images.shape[FIRST_AXIS]
        return laid_out_like(images, images[:, :, self.rows(self.length)])

    def cut_targets(self, targets: Target) -> Target:
        """This process's slab of targets (B, *spatial)."""
        rows = self.rows(targets.shape[1])
        return targets.strip(rows.start, rows.stop)


def laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """The values in the memory format of x: it determines the kernels, and the order in which a mask is drawn."""
    return values.contiguous() if x.is_contiguous() else channels_last(values)
