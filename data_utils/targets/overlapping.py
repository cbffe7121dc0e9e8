"""The classes of each pixel, of which there may be several, from values that hold a bit for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data_utils.class_map import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.overlapping import class_bits
from data_utils.targets.classes import class_weight_tensor
from data_utils.targets.reader import MaskReader
from tasks.overlapping import MOST_CLASSES, Overlapping, OverlapTarget, packed, unpack_bits
from tasks.target import Target
from unet.config import MaskValue


@dataclass(frozen=True)
class OverlapReader(MaskReader):
    """The bits of classes and of what is unknown, as the sources give them.

    Args:
        names: the classes, in the order of their bits.
        shares: what share of the known pixels each class has; empty until they are counted.
        overlap: what share of the pixels of any class has several.
    """

    names: tuple[str, ...]
    class_pixels: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    overlap: float = 0.0

    target = OverlapTarget

    @classmethod
    def of_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "OverlapReader":
        return cls(class_bits(classes).names)

    def with_pixels(self, pixels: dict[MaskValue, int]) -> "OverlapReader":
        values = np.array(list(pixels), np.int64)
        counts = np.array(list(pixels.values()), np.int64)
        truth, unknown = unpack_bits(values)
        class_pixels = []
        shares = []
        for bit in range(len(self.names)):
            has_class = (truth >> bit & 1).astype(bool)
            is_known = ~(unknown >> bit & 1).astype(bool)
            class_pixels.append(int(counts[has_class].sum()))
            shares.append(class_pixels[bit] / max(1, int(counts[is_known].sum())))
        has_several = (truth & (truth - 1)) != 0  # taking 1 away leaves a bit only where there are two
        overlap = counts[has_several].sum() / max(1, counts[truth != 0].sum())
        return replace(self, class_pixels=tuple(class_pixels), shares=tuple(shares), overlap=float(overlap))

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Overlapping:
        return Overlapping(self.names, loss, class_weight_tensor(class_weights, self.class_pixels))

    @property
    def key(self) -> tuple:
        return (Overlapping.name,)  # the digest of the records says which bits they have

    @property
    def identity(self) -> list[str]:
        return list(self.names)

    def of_mask(self, values: np.ndarray, name: str) -> OverlapTarget:
        truth, unknown = unpack_bits(values)
        return OverlapTarget(truth, ~unknown & self.all_bits)

    of_label_volume = of_mask

    @property
    def all_bits(self) -> np.int32:
        """The bits of all classes."""
        return np.int32(2 ** len(self.names) - 1 & 2**MOST_CLASSES - 1)

    def shown_truth(self, target: Target) -> np.ndarray:
        return packed(target)

    def to_preprocess(self) -> dict[str, Any]:
        return {"class_names": self.names}

    def describe(self) -> str:
        text = f"classes that may overlap {', '.join(self.names)}"
        if self.overlap:
            text += f" ({self.overlap:.1%} of their pixels have several)"
        return text

    def describe_pixels(self) -> list[str]:
        lines = ["classes that may overlap: share of the pixels of which it is known"]
        for name, share in zip(self.names, self.shares, strict=True):
            lines.append(f"  {100 * share:7.3f} %  {name}")
        lines.append(f"  {100 * self.overlap:7.3f} %  of the pixels of any class have several")
        return lines
