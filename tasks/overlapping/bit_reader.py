"""Targets with bits for the classes of each pixel; some images may be labeled for some classes only."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from data_utils.sources.records import LabelSet, Record, Records
from data_utils.target import Target
from data_utils.targets.reader import LabelReader
from data_utils.targets.sides import Sides
from tasks.overlapping.target import OverlapTarget, pack_target


@dataclass(frozen=True)
class BitReader(LabelReader):
    """Bits of classes; classes that an image is not labeled for are unknown everywhere in it.

    Args:
        sides: how the classes behave in the mirror; None if only a model is known.
    """

    sides: Sides | None = field(default=None, kw_only=True)

    target = OverlapTarget

    @property
    def background(self) -> None:
        """There is no background class: pixels of no class have no bit."""
        return None

    def labeled_bits(self, labeled_for: LabelSet | None) -> int:
        """The bits of the classes that an image is labeled for."""
        classes = self.labeled_classes(labeled_for)
        assert classes is not None
        return sum(1 << bit for bit in classes)

    @property
    def all_bits(self) -> np.int32:
        """The bits of all classes."""
        return np.int32(2 ** len(self.class_names) - 1)

    def target_for_record(self, target: Target, record: Record) -> Target:
        if self.label_sets is None:
            return target
        bits = np.int32(self.labeled_bits(record.get("labeled")))
        return target.map(lambda classes: classes & bits)

    @property
    def mirrors(self) -> bool:  # type: ignore[override]  # decided by the names of the classes
        return self.sides is None or self.sides.mirrors

    @property
    def class_partners(self) -> tuple[int, ...]:
        """For each class, the class that it becomes in the mirror."""
        return tuple(range(len(self.class_names))) if self.sides is None else self.sides.partners

    def mirror(self, target: Target) -> Target:
        return target.map(lambda bits: swap_bits(bits, self.class_partners))

    def warnings(self, splits: Sequence[Records]) -> tuple[str, ...]:
        if self.sides is None or not self.sides.line:
            return ()
        return (self.sides.line,)

    def shown_truth(self, target: Target) -> np.ndarray:
        return pack_target(target)


def swap_bits(bits: np.ndarray, partners: Sequence[int]) -> np.ndarray:
    """Bits of classes, each in the place of its partner's."""
    swapped = bits
    for bit, partner in enumerate(partners):
        if bit < partner:  # each pair once
            differs = (bits >> bit ^ bits >> partner) & 1
            swapped = swapped ^ (differs << bit | differs << partner)
    return swapped
