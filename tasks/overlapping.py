"""Classes that may overlap: a sigmoid and a 2 x 2 table for each class; cross-entropy and Dice from logits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.device import full_precision, widest_float
from runtime.errors import ModelError
from tasks.calibration import count_confidences
from tasks.confusion import ClassCounts, class_scores, class_table, image_iou
from tasks.losses import RegionSums
from tasks.pixels_and_regions import ClassMeans, PixelsAndRegions
from tasks.tables import Table
from tasks.target import Target, labels
from unet.config import UNetConfig

MOST_CLASSES = 31  # the bits of an int32 without its sign
ALL_CLASSES = 2**MOST_CLASSES - 1
PIXELS_AT_ONCE = 2**22  # each pixel takes some bytes while its bits are counted


@dataclass(frozen=True, eq=False)
class OverlapTarget(Target):
    """Bit k of a pixel stands for class k.

    Args:
        truth: the classes that are present.
        known: the classes whose presence or absence is known; a class in `truth` is known.
    """

    truth: Any = labels(unknown=0, dtype="int32")
    known: Any = labels(unknown=0, dtype="int32")


def pack_bits(truth: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """The bits of present classes and the bits of unknown classes, as one int64 for each pixel."""
    return truth.astype(np.int64) | (unknown.astype(np.int64) << MOST_CLASSES)


def pack_target(target: Target) -> np.ndarray:
    """A target of arrays, packed by `pack_bits`."""
    assert isinstance(target, OverlapTarget)
    return pack_bits(target.truth, ~target.known & ALL_CLASSES)


def unpack_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bits of present classes and of unknown classes, int32 each, from values of `pack_bits`."""
    numbers = values.astype(np.int64)
    return (numbers & ALL_CLASSES).astype(np.int32), (numbers >> MOST_CLASSES).astype(np.int32)


def planes(bits: Tensor, classes: int) -> Tensor:
    """Bits (B, *spatial) as planes (B, classes, *spatial) of 0 and 1."""
    per_pixel = (1,) * (bits.ndim - 1)
    shifts = torch.arange(classes, dtype=torch.int32, device=bits.device).view(-1, *per_pixel)
    return (bits.int().unsqueeze(1) >> shifts) & 1


def count_bits(bits: Tensor, classes: int) -> Tensor:
    """(classes,) int64: the number of pixels in which each bit is set."""
    return torch.stack([((bits >> shift) & 1).sum() for shift in range(classes)])


def class_tables(prediction: Tensor, truth: Tensor, known: Tensor, classes: int) -> Tensor:
    """Count pixels of three tensors of bits: (classes, 2, 2) int64, rows truth, columns prediction, absent first.

    Tables add up over images, strips and processes. Pixels in which a class is unknown are not counted for it.
    """
    tables = torch.zeros(classes, 2, 2, dtype=torch.int64, device=truth.device)
    parts = [bits.flatten().split(PIXELS_AT_ONCE) for bits in (prediction, truth, known)]
    for predicted, true, known_part in zip(*parts, strict=True):
        hits = count_bits(predicted & true & known_part, classes)
        predictions = count_bits(predicted & known_part, classes)
        truths = count_bits(true & known_part, classes)
        total = count_bits(known_part, classes)
        tables[:, 1, 1] += hits
        tables[:, 0, 1] += predictions - hits
        tables[:, 1, 0] += truths - hits
        tables[:, 0, 0] += total - predictions - truths + hits
    return tables


def foreground_counts(tables: Tensor) -> ClassCounts:
    """The pixels of the foreground of each class, from tables (N, 2, 2)."""
    return ClassCounts(tables[:, 1, 1], tables[:, 1].sum(dim=1), tables[:, :, 1].sum(dim=1))


def table_scores(tables: Tensor) -> dict[str, Any]:
    """The `class_scores` of the foregrounds of tables (N, 2, 2), without the accuracy of pixels."""
    values = class_scores(foreground_counts(tables))
    del values["pixel_accuracy"]
    return values


class OverlapScores(ClassMeans):
    """Every score from one table of whole numbers for each class.

    Args:
        names: the classes.
        sums: (classes, 2, 2) int64, the tables of `class_tables`.
        by_image: (images, 1), the mean IoU of each image.
    """

    has_background = False

    def add(self, prediction: Tensor, target: OverlapTarget, index: int) -> None:
        tables = self.tables(prediction, target)
        self.sums += tables
        self.by_image[index, 0] += image_iou(foreground_counts(tables[: len(self.names)]))  # a filler adds 0

    def tables(self, prediction: Tensor, target: OverlapTarget) -> Tensor:
        """The tables of an image, or of a part of an image."""
        return class_tables(prediction, target.truth, target.known, len(self.names))

    @property
    def values(self) -> dict[str, Any]:
        """Means over the classes by name, and a list over the classes by metric."""
        return table_scores(self.sums[: len(self.names)])

    def brief(self) -> dict[str, float | None]:
        values = self.values
        return {"mean_iou": values["mean_iou"], "mean_dice": values["mean_dice"]}

    def report(self) -> dict[str, Any]:
        return {"classes": self.names, **self.values, "tables": self.sums[: len(self.names)].tolist()}

    @property
    def counts(self) -> ClassCounts:
        return foreground_counts(self.sums[: len(self.names)])

    @property
    def remark(self) -> str:
        return f"nothing was found of {', '.join(self.unfound)}" if self.unfound else ""

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        values = self.values | (boundary or {})
        return [class_table("Classes", "class", self.names, values, self.counts, errors=True)]


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Overlapping(PixelsAndRegions):
    """Binary cross-entropy (or focal) per known pixel, plus soft Dice per (image, class in its truth).

    Each class has a sigmoid of its own. The cross-entropy of a pixel is the sum over its classes: with a mean, Dice
    would outweigh the cross-entropy, the more so the more classes there are. Dice of image b and class c is defined as
    in `Classes`, over the pixels in which c is known. The names are in the order of the classes' bits, and the weights
    are factors on the cross-entropy of each class.

    Args:
        partners: for each class, the index of the class that it becomes in the mirror image; empty if no class changes.
        mirrors: whether images may be mirrored.
    """

    partners: tuple[int, ...] = ()
    mirrors: bool = True

    name = "overlapping"
    compared_by = "mean IoU"
    target = OverlapTarget

    def counts(self, targets: OverlapTarget) -> Tensor:
        """(2,): the weight of the known pixels, averaged over the classes; the number of (image, class) pairs."""
        dtype = widest_float(targets.truth.device)
        known_pixels = count_bits(targets.known, self.outputs).to(dtype)
        pairs = torch.zeros((), dtype=dtype, device=known_pixels.device)
        for truth in targets.truth:
            pairs = pairs + (count_bits(truth, self.outputs) > 0).sum().to(dtype)
        return torch.stack([(known_pixels * self.class_weights).mean(), pairs])

    def partial(self, logits: Tensor, targets: OverlapTarget) -> tuple[Tensor, ...]:
        """The sum of the pixel term; if the loss has a region term, also the three of `RegionSums`."""
        logits = full_precision(logits)
        truth = planes(targets.truth, self.outputs).to(logits.dtype)
        is_known = planes(targets.known, self.outputs).to(logits.dtype)
        log_probs = F.logsigmoid(logits)
        spatial = tuple(range(2, logits.ndim))
        pixels = logits.new_zeros(())
        pixel_term, region_term = self.loss_terms
        if pixel_term is not None:
            entropy = (1 - truth) * logits - log_probs  # cross-entropy of the sigmoid against 0 or 1
            by_class = (pixel_term(entropy, -entropy) * is_known).sum(dim=(0, *spatial))
            pixels = (by_class * self.class_weights.to(logits.dtype)).sum()
        if region_term is None:
            return (pixels,)
        probs = log_probs.exp() * is_known
        regions = RegionSums(
            overlap=(probs * truth).sum(dim=spatial), predicted=probs.sum(dim=spatial), size=truth.sum(dim=spatial)
        )
        return (pixels, *regions)

    def reliability(self, logits: Tensor, targets: OverlapTarget) -> Tensor:
        """The counts of each pixel and class; the confidence is the probability of the likelier answer, yes or no."""
        return self.count_certainty(logits.float().sigmoid(), logits, targets)

    def count_certainty(self, certainty: Tensor, prediction: Tensor, targets: OverlapTarget) -> Tensor:
        """The counts from each class's probability (B, classes, *spatial), which decides the prediction too."""
        truth = planes(targets.truth, self.outputs).bool()
        is_known = planes(targets.known, self.outputs).bool()
        is_right = (certainty > 0.5) == truth
        return count_confidences(torch.maximum(certainty, 1 - certainty), is_right, is_known)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> OverlapScores:
        sums = torch.zeros(self.outputs, 2, 2, dtype=torch.int64, device=device)
        return OverlapScores(self.names, sums, torch.zeros(images, 1, device=device))

    def scores_from_json(self, value: dict[str, Any]) -> OverlapScores:
        return OverlapScores(self.names, torch.tensor(value["sums"]), torch.tensor(value["by_image"]).view(-1, 1))

    def to_config(self) -> dict[str, Any]:
        values: dict[str, Any] = {"name": self.name}
        if self.partners not in ((), tuple(range(self.outputs))):
            values["partners"] = list(self.partners)
        if not self.mirrors:
            values["mirrors"] = False
        return values

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Overlapping":
        names = config.preprocess.class_names or tuple(map(str, range(1, config.num_classes + 1)))
        partners, mirrors = mirroring_of_model(config)
        return cls(names, partners=partners, mirrors=mirrors)


def mirroring_of_model(config: UNetConfig) -> tuple[tuple[int, ...], bool]:
    """Each class's partner in the mirror, and whether images may be mirrored. Raises ModelError for wrong values."""
    values = config.task or {}
    order = list(range(config.num_classes))
    partners = values.get("partners", order)
    mirrors = values.get("mirrors", True)
    try:
        is_order = sorted(partners) == order
    except TypeError:
        is_order = False
    if not is_order or not isinstance(mirrors, bool):
        raise ModelError(f"config.json: the sides of the task {config.task} are damaged; use another copy")
    return tuple(partners), mirrors
