"""The classes of each pixel, maybe several, from values that hold a bit for each class."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from data_utils.bits import pack_bits, unpack_bits
from data_utils.class_map import ClassFields
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.reader import decode_mask
from data_utils.sources.overlapping import class_bits
from data_utils.sources.records import LabelSet, Record
from data_utils.targets.reader import resize_back
from data_utils.targets.sides import find_sides
from tasks.overlapping.bit_reader import BitReader
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.pixels_and_regions import class_weight_tensor
from unet.config import MaskValue


@dataclass(frozen=True)
class OverlapReader(BitReader):
    """The bits of classes and of unknown classes, as the sources give them.

    Args:
        names: the classes, in the order of their bits.
        shares: the share of each class in the known pixels; empty until pixels are counted.
        overlap: the share of pixels with several classes among the pixels with any.
        values: the mask values of each class in the data set.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...] = ()
    overlap: float = 0.0
    values: tuple[tuple[MaskValue, ...], ...] = ()

    @classmethod
    def from_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "OverlapReader":
        bits = class_bits(classes)
        values: list[list[MaskValue]] = [[] for _ in bits.names]
        for value, bit in bits.bit_by_value.items():
            values[bit].append(value)
        return cls(bits.names, values=tuple(map(tuple, values)), sides=find_sides(bits.names, config.swap))

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def class_values(self) -> Sequence[Sequence[MaskValue]]:
        return self.values

    def count_pixels(self, pixels: dict[MaskValue, int]) -> Sequence[int]:
        truth, _ = unpack_bits(np.array(list(pixels), np.int64))
        counts = np.array(list(pixels.values()), np.int64)
        return [int(counts[(truth >> bit & 1).astype(bool)].sum()) for bit in range(len(self.names))]

    def with_pixels(self, pixels: dict[MaskValue, int]) -> Self:
        counts = np.array(list(pixels.values()), np.int64)
        truth, unknown = unpack_bits(np.array(list(pixels), np.int64))
        class_pixels = self.count_pixels(pixels)
        shares: list[float] = []
        for bit, class_count in enumerate(class_pixels):
            is_known = ~(unknown >> bit & 1).astype(bool)
            shares.append(class_count / max(1, int(counts[is_known].sum())))
        # taking 1 away leaves a bit only where there are two
        has_several = (truth & (truth - 1)) != 0
        overlap = counts[has_several].sum() / max(1, counts[truth != 0].sum())
        return replace(self, class_pixels=tuple(class_pixels), shares=tuple(shares), overlap=float(overlap))

    def with_labeled_pixels(self, pixels: Mapping[LabelSet | None, dict[MaskValue, int]]) -> Self:
        totals: Counter[MaskValue] = Counter()
        for labeled_for, counts in pixels.items():
            bits = np.int64(self.labeled_bits(labeled_for))
            truth, unknown = unpack_bits(np.array(list(counts), np.int64))
            values = pack_bits(truth & bits, unknown | ~bits & self.all_bits).tolist()
            for value, count in zip(values, counts.values(), strict=True):
                totals[value] += count
        return self.with_pixels(totals)

    def is_empty(self, value: MaskValue) -> bool:
        truth, _ = unpack_bits(np.array(value))
        return not truth

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Overlapping:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        return Overlapping(self.names, loss, weights, self.class_partners, self.mirrors)

    @property
    def key(self) -> tuple:
        # the digest of the records depends on their bits and label sets
        return (Overlapping.name,) if self.label_sets is None else (Overlapping.name, self.label_sets.flags)

    @property
    def identity(self) -> list[str]:
        return list(self.names)

    def target_from_mask(self, values: np.ndarray, name: str) -> OverlapTarget:
        truth, unknown = unpack_bits(values)
        return OverlapTarget(truth, ~unknown & self.all_bits)

    target_from_volume = target_from_mask

    def to_preprocess(self) -> ClassFields:
        return {"class_names": self.names}

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        scores = Overlapping(self.names).new_scores(1)
        for record in records:
            values = decode_mask(record["target"], record["name"]).values
            back = self.target_from_mask(resize_back(values, scale), record["name"])
            target = self.target_for_record(self.target_from_mask(values, record["name"]), record)
            assert isinstance(target, OverlapTarget)
            scores.add(torch.from_numpy(back.truth), target.map(torch.from_numpy), 0)
        return scores.comparison

    def describe_classes(self) -> str:
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
