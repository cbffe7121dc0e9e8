"""Objects that may touch: the object of each pixel, and scores from matching true and predicted objects."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.target import Target
from runtime.device import full_precision
from tasks.classes.loss import Classes
from tasks.classes.target import ClassTarget
from tasks.objects.scores import SUMS, ObjectScores
from tasks.objects.target import ObjectTarget, RenderedObjects, normalized_depth
from tasks.task import Task
from unet.config import IGNORE_INDEX, UNetConfig

LEVELS = 255  # the depth and the certainty of a pixel are whole numbers from 0 to LEVELS
PEAK = 26
PEAKS = (PEAK, 60, 100)
BACKGROUND = "background"
OBJECT = "object"


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
        peak: how much deeper the seed of an object is than every path from it to a deeper place. Small objects that
            touch need a low one, and large objects, whose depth varies inside of them, a high one.
        tried_peaks: the peaks from which evaluations choose the best one.
    """

    classes: Classes = field(default_factory=lambda: Classes((BACKGROUND, OBJECT)))
    smallest: int = 1
    fills_holes: bool = False
    drops_border: bool = False
    in_pieces: bool = False
    peak: int = PEAK
    tried_peaks: tuple[int, ...] = ()

    name = "objects"
    scores = ObjectScores
    target = ObjectTarget
    terms = Classes.terms + 1
    needs_exact_tiles = True
    measured_fields = ("smallest", "fills_holes", "in_pieces", "peak")

    def with_variants(self) -> "Objects":
        return replace(self, tried_peaks=PEAKS)

    @property
    def variants(self) -> list["Objects"]:
        if not self.tried_peaks:
            return [self]
        return [replace(self, peak=peak, tried_peaks=()) for peak in self.tried_peaks]

    @property
    def output_names(self) -> tuple[str, ...]:
        return (*self.classes.names, "depth")

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
        names = self.classes.names[1:]
        shape = (len(names) * SUMS,)
        sums = torch.zeros(shape, dtype=torch.int64, device=device)
        return ObjectScores(names, sums, torch.zeros(images, *shape, dtype=torch.int64, device=device))

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
        if self.peak != PEAK:
            values["peak"] = self.peak
        return values

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Objects":
        assert config.task is not None
        task = config.task
        peak = int(task.get("peak", PEAK))
        if not 0 <= peak <= LEVELS:
            raise ValueError(f"peak is {peak}")
        return cls(
            Classes(tuple(task["classes"])),
            int(task["smallest"]),
            bool(task.get("fills_holes", False)),
            in_pieces=bool(task.get("in_pieces", False)),
            peak=peak,
        )
