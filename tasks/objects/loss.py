"""Objects that may touch: the object of each pixel, and scores from matching true and predicted objects."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.target import Target
from runtime.device import full_precision
from runtime.errors import SettingsError
from tasks.classes.loss import Classes, class_entropy, most_likely
from tasks.classes.target import ClassTarget
from tasks.objects.decode import DetectedObject, find_objects, pack_pixels
from tasks.objects.labels import LEVELS, PEAK, label_numbers
from tasks.objects.scores import SUMS, ObjectScores
from tasks.objects.target import ObjectTarget, RenderedObjects, normalized_depth
from tasks.task import Task
from unet.config import IGNORE_INDEX, UNetConfig

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
    reading = (
        "all logits but the last are those of classes; the sigmoid of the last is the depth within an object, from 0 at"
        " its border to 1, and predict.py grows each object from a peak of it"
    )

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

    def finish(self, partial: tuple[Tensor, ...], targets: Target) -> Tensor:
        *class_sums, depth = partial
        return torch.cat([self.classes.finish(tuple(class_sums), targets), depth[None]])

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> ObjectScores:
        names = self.classes.names[1:]
        shape = (len(names) * SUMS,)
        sums = torch.zeros(shape, dtype=torch.int64, device=device)
        return ObjectScores(names, sums, torch.zeros(images, *shape, dtype=torch.int64, device=device))

    def decode(self, logits: Tensor) -> Tensor:
        """The class, the depth and the certainty of not being background of each pixel, as one number."""
        class_logits = logits[:, :-1]
        classes = most_likely(class_logits).int()
        depth = (logits[:, -1].sigmoid() * LEVELS).round().int()
        certainty = ((1 - class_logits.softmax(dim=1)[:, 0]) * LEVELS).round().int()
        return pack_pixels(classes, depth, certainty).masked_fill(classes == 0, 0)

    def labels_and_objects(self, decoded: np.ndarray) -> tuple[np.ndarray, list[DetectedObject]]:
        """Labels as `pack_labels` makes them, and the objects."""
        return find_objects(decoded, [self])[0]

    def labels_of_variants(self, decoded: Tensor) -> list[Tensor]:
        found = find_objects(decoded[0].cpu().numpy(), self.variants)
        return [torch.from_numpy(labels).to(decoded.device)[None] for labels, _ in found]

    def mask(self, labels: np.ndarray) -> np.ndarray:
        return label_numbers(labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probabilities of the classes, and then the depth."""
        return torch.cat([logits[:, :-1].softmax(dim=1), logits[:, -1:].sigmoid()], dim=1)

    def logits_from_probabilities(self, probabilities: Tensor) -> Tensor:
        limits = torch.finfo(probabilities.dtype)
        class_logits = probabilities[:, :-1].clamp_min(limits.tiny).log()
        return torch.cat([class_logits, probabilities[:, -1:].logit(eps=limits.eps)], dim=1)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the classes."""
        return class_entropy(logits[:, :-1])

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


def choose_objects(task: Task, smallest: int | None, *, drops_border: bool) -> Task:
    """The task with other rules for objects that are left out. Raises SettingsError if the task has no objects.

    Args:
        smallest: the least number of pixels of an object; None keeps the number from the training data.
        drops_border: whether objects that touch the border of the image are left out.
    """
    if smallest is None and not drops_border:
        return task
    if not isinstance(task, Objects):
        flag = "--drop-border" if drops_border else "--min-size"
        raise SettingsError(f"{flag}: is for models of objects, and this is one of {task.name}; leave the flag out")
    if smallest is None:
        smallest = task.smallest
    return replace(task, smallest=smallest, drops_border=drops_border)
