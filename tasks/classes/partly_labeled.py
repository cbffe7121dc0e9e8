"""Classes, if some images are labeled for only some of the classes: nothing is known about the others there."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from data_utils.target import image_label
from runtime.device import full_precision
from tasks.classes.loss import Classes
from tasks.classes.scores import ClassScores
from tasks.classes.target import ClassTarget
from tasks.confusion import ClassCounts, confusion_matrix, image_iou
from tasks.losses import RegionSums
from tasks.tables import Table
from unet.config import IGNORE_INDEX

COUNTS = 4  # columns of `PartlyLabeledScores.sums` behind the confusion matrix


@dataclass(frozen=True, eq=False)
class PartlyLabeledTarget(ClassTarget):
    """The classes of pixels, and the set of classes that an image is labeled for.

    If a pixel's class in the mask is not in the set, the pixel may be of any class outside of the set.

    Args:
        mask: the class index of each pixel, 255 where ignored.
        label_set: the index of the set of classes; 0 for all classes.
    """

    label_set: Any = image_label(unknown=0)


class PartlyLabeledScores(ClassScores):
    """Scores of each class over the images that are labeled for it.

    Args:
        flags: (sets, num_classes) bool, as in `PartlyLabeledClasses`.
        sums: (num_classes, num_classes + COUNTS) int64: the confusion matrix of the images that are labeled for all
            classes; then four counts for each class, over the images that are labeled for it: true positives, pixels
            in the truth, pixels in the prediction, and all pixels.
        by_image: (images, 1), the mean IoU of each image over the classes that it is labeled for.
    """

    def __init__(self, names: tuple[str, ...], flags: Tensor, sums: Tensor, by_image: Tensor) -> None:
        super().__init__(names, sums, by_image)
        self.flags = flags

    def add(self, prediction: Tensor, target: PartlyLabeledTarget, index: int) -> None:  # type: ignore[override]  # its own target
        is_labeled = self.flags[target.label_set.long()][0]
        matrix = confusion_matrix(prediction, target.mask, len(self.names))
        counts = ClassCounts.from_matrix(matrix)
        all_pixels = matrix.sum().expand_as(counts.hits)
        columns = torch.stack([counts.hits, counts.truth, counts.predicted, all_pixels], dim=1)
        columns = columns * is_labeled[:, None]
        self.sums += torch.cat([matrix * is_labeled.all(), columns], dim=1)
        hits, truth, predicted, _ = columns.T
        self.by_image[index, 0] += image_iou(ClassCounts(hits, truth, predicted))  # a filler adds 0

    @property
    def matrix(self) -> Tensor:
        return self.sums[:, :-COUNTS]

    @property
    def counts(self) -> ClassCounts:
        hits, truth, predicted, _ = self.sums[:, -COUNTS:].T
        return ClassCounts(hits, truth, predicted)

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        (table,) = super().score_tables(boundary)
        note = "Each class is scored on the images that are labeled for it."
        pixels = self.sums[:, -1].tolist()
        unscored = []
        for name, count in zip(self.names, pixels, strict=True):
            if not count:
                unscored.append(name)
        if unscored:
            note += f" No image is labeled for {', '.join(unscored)}: these classes cannot be scored."
        return [table._replace(note=f"{note} {table.note}".rstrip())]


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class PartlyLabeledClasses(Classes):
    """The loss of `Classes`, if an image may be labeled for only some of the classes.

    A pixel outside of the labeled classes can be of any other class, the background included: its term is computed from
    the summed probability of these other classes, with weight 1 (marginal loss: Shi et al. 2021, arXiv:2007.03868).
    Dice counts the classes that an image is labeled for.

    Args:
        flags: (sets, num_classes) bool, whether images of each set are labeled for each class; the first set has all.
    """

    flags: Tensor = field(kw_only=True)

    target = PartlyLabeledTarget

    def counts(self, targets: PartlyLabeledTarget) -> Tensor:  # type: ignore[override]  # its own target
        labeled_target, is_other_class = self._divide(targets)
        counts = super().counts(labeled_target)
        counts[0] += is_other_class.sum()
        return counts

    def partial(self, logits: Tensor, targets: PartlyLabeledTarget) -> tuple[Tensor, ...]:  # type: ignore[override]  # its own target
        logits = full_precision(logits)
        labeled_target, others = self._divide(targets)
        pixels, *regions = super().partial(logits, labeled_target)
        log_probs = logits.log_softmax(dim=1)
        pixel_term = self.loss_terms.pixels
        if pixel_term is not None:
            # if an image is labeled for all classes, no pixel counts; the lowest number keeps the gradient finite
            per_pixel = (1,) * (logits.ndim - 2)
            is_other = ~self._flags_of(targets).view(*logits.shape[:2], *per_pixel)
            lowest = torch.finfo(logits.dtype).min
            log_others = log_probs.masked_fill(~is_other, lowest).logsumexp(dim=1)
            weights = others.to(logits.dtype)
            pixels = pixels - (pixel_term(weights, log_others) * log_others).sum()
        if not regions:
            return (pixels,)
        labeled_sums = RegionSums(*regions)
        spatial = tuple(range(2, logits.ndim))
        predicted_elsewhere = (log_probs.exp() * others.unsqueeze(1)).sum(dim=spatial)
        return (pixels, *labeled_sums._replace(predicted=labeled_sums.predicted + predicted_elsewhere))

    def reliability(self, logits: Tensor, targets: PartlyLabeledTarget) -> Tensor:  # type: ignore[override]  # its own target
        """The counts of the pixels whose class the image is labeled for."""
        labeled_target, _ = self._divide(targets)
        return super().reliability(logits, labeled_target)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> PartlyLabeledScores:
        classes = len(self.names)
        sums = torch.zeros(classes, classes + COUNTS, dtype=torch.int64, device=device)
        return PartlyLabeledScores(self.names, self.flags.to(device), sums, torch.zeros(images, 1, device=device))

    def to(self, device: torch.device) -> "PartlyLabeledClasses":
        return replace(self, weights=self.class_weights.to(device), flags=self.flags.to(device))

    def _flags_of(self, targets: PartlyLabeledTarget) -> Tensor:
        """(B, num_classes) bool, the classes that each image is labeled for."""
        return self.flags[targets.label_set.long()]

    def _divide(self, targets: PartlyLabeledTarget) -> tuple[ClassTarget, Tensor]:
        """Divide the pixels into labeled classes and others.

        Returns:
            The target of the classes that each image is labeled for, with all other pixels ignored; and (B, *spatial)
            bool, the pixels of other classes.
        """
        mask = targets.mask.long()
        is_valid = mask != IGNORE_INDEX
        truth = mask.where(is_valid, 0)
        is_labeled = self._flags_of(targets).gather(1, truth.flatten(1)).view_as(mask)
        labeled_target = ClassTarget(mask.where(is_labeled, IGNORE_INDEX))
        return labeled_target, is_valid & ~is_labeled
