"""Objects that may touch: the object of each pixel, and scores from matching true and predicted objects."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.device import full_precision
from tasks.classes import Classes, ClassTarget
from tasks.matching import ObjectScores, pack_labels
from tasks.target import Target, labels
from tasks.task import Task
from unet.config import IGNORE_INDEX, UNetConfig

BACKGROUND = "background"
OBJECT = "object"
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


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Objects(Task):
    """The class of each pixel, and the pixel's depth inside of its object.

    Where two objects touch, both are shallow, so the deep parts are seeds from which a watershed separates the objects.
    The depth is the distance to the object's border divided by the object's largest distance, so that small objects are
    separated as well as large ones. The term of the depth is a binary cross-entropy per known pixel.

    Args:
        classes: the task of the first outputs; its first class is the background.
        smallest: the least number of pixels of a predicted object; smaller predictions are left out.
        fills_holes: whether a predicted object includes its holes, except pixels of other objects.
        drops_border: whether predicted objects that touch the border of the image are left out.
        in_pieces: whether masks tell objects apart as their connected pieces, not by numbers.
    """

    classes: Classes = field(default_factory=lambda: Classes((BACKGROUND, OBJECT)))
    smallest: int = 1
    fills_holes: bool = False
    drops_border: bool = False
    in_pieces: bool = False

    name = "objects"
    compared_by = "AP@0.5"
    target = ObjectTarget
    terms = Classes.terms + 1
    needs_exact_tiles = True
    measured_fields = ("smallest", "fills_holes", "in_pieces")

    @property
    def outputs(self) -> int:
        return self.classes.outputs + 1

    def render(self, targets: ObjectTarget) -> RenderedObjects:
        """The depth of each pixel, from the numbers of the objects; the host does not wait."""
        return RenderedObjects(targets.mask, normalized_depth(targets.ids, targets.mask != IGNORE_INDEX))

    def counts(self, targets: Target) -> Tensor:
        """(3,): the counts of the classes, and the number of known pixels."""
        mask = targets.main
        class_counts = self.classes.counts(ClassTarget(mask))
        known_pixels = (mask != IGNORE_INDEX).sum().to(class_counts.dtype)
        return torch.cat([class_counts, known_pixels[None]])

    def partial(self, logits: Tensor, targets: RenderedObjects) -> tuple[Tensor, ...]:
        logits = full_precision(logits)
        class_sums = self.classes.partial(logits[:, :-1], ClassTarget(targets.mask))
        depth = targets.depth.to(logits.dtype)
        errors = F.binary_cross_entropy_with_logits(logits[:, -1], depth, reduction="none")
        return (*class_sums, (errors * (targets.mask != IGNORE_INDEX)).sum())

    def finish(self, partial: tuple[Tensor, ...]) -> Tensor:
        *class_sums, depth = partial
        return torch.cat([self.classes.finish(tuple(class_sums)), depth[None]])

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> ObjectScores:
        return ObjectScores.empty(self.classes.names[1:], images, device)

    def scores_from_json(self, value: dict[str, Any]) -> ObjectScores:
        return ObjectScores(self.classes.names[1:], torch.tensor(value["sums"]), torch.tensor(value["by_image"]))

    def to(self, device: torch.device) -> "Objects":
        return replace(self, classes=self.classes.to(device))

    def to_config(self) -> dict[str, Any]:
        values = {
            "name": self.name,
            "classes": list(self.classes.names),
            "smallest": self.smallest,
            "fills_holes": self.fills_holes,
        }
        if self.in_pieces:
            values["in_pieces"] = True
        return values

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Objects":
        assert config.task is not None
        task = config.task
        return cls(
            Classes(tuple(task["classes"])),
            int(task["smallest"]),
            bool(task.get("fills_holes", False)),
            in_pieces=bool(task.get("in_pieces", False)),
        )


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
