"""The class of each pixel, from the values of a mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_utils.class_map import ClassFields, ClassMap, resolve_classes
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.records import Record
from data_utils.targets.reader import LabelReader
from runtime.errors import SettingsError
from tasks.classes import Classes, ClassTarget
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from tasks.target import Target
from unet.config import IGNORE_INDEX, MaskValue


@dataclass(frozen=True)
class ClassReader(LabelReader):
    """Class indices of mask values, as the class map has them."""

    class_map: ClassMap

    has_classes = True

    @classmethod
    def from_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "ClassReader":
        if config.swap:
            raise SettingsError(f"--swap {config.swap}: for points and for classes that may overlap; leave it out")
        return cls(resolve_classes(pixels, classes, config.ignore_index, config.outside_rule))

    @property
    def target(self) -> type[ClassTarget | PartlyLabeledTarget]:  # type: ignore[override]
        return PartlyLabeledTarget if self.label_sets else ClassTarget

    def count_pixels(self, pixels: dict[MaskValue, int]) -> Sequence[int]:
        counts = [0] * len(self.class_map)
        for value, count in pixels.items():
            index = self.class_map.index_of(value)
            if index is not None and index != IGNORE_INDEX:
                counts[index] += count
        return counts

    @property
    def class_values(self) -> Sequence[Sequence[MaskValue]]:
        return self.class_map.values_by_class()

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Classes:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        if self.label_sets is None:
            return Classes(self.class_map.names, loss, weights)
        return PartlyLabeledClasses(self.class_map.names, loss, weights, flags=torch.tensor(self.label_sets.flags))

    @property
    def key(self) -> tuple:
        class_map = self.class_map
        key: tuple = (class_map.values, class_map.ignore_value)
        if class_map.joined or class_map.outside is not None:
            key += (class_map.joined, class_map.outside)
        if self.label_sets is not None:
            key += (self.label_sets.flags, tuple(self.label_sets.numbers.items()))
        return key

    def target_from_mask(self, values: np.ndarray, name: str) -> Target:
        return self._target(self.class_map.encode(values, name))

    def target_from_volume(self, values: np.ndarray, name: str) -> Target:
        return self._target(self.class_map.encode_volume(values, name))

    def _target(self, mask: np.ndarray, label_set: int = 0) -> Target:
        if self.label_sets is None:
            return ClassTarget(mask)
        return PartlyLabeledTarget(mask, np.array(label_set, np.int32))

    def target_for_record(self, target: Target, record: Record) -> Target:
        if self.label_sets is None:
            return target
        number = self.label_sets.number(record.get("labeled"))
        mask = target.main
        if not any(self.label_sets.flags[number]):  # an image without any known class
            mask = np.full_like(mask, IGNORE_INDEX)
        return self._target(mask, number)

    def known_labels(self, target: Target) -> np.ndarray:
        if self.label_sets is None:
            return target.main
        assert isinstance(target, PartlyLabeledTarget)
        # the classes that the image is not labeled for count as unknown
        table = np.full(IGNORE_INDEX + 1, IGNORE_INDEX, np.uint8)
        labeled = np.flatnonzero(self.label_sets.flags[int(target.label_set)])
        table[labeled] = labeled
        return table[target.mask]

    def shown_truth(self, target: Target) -> np.ndarray:
        return self.known_labels(target)

    def to_preprocess(self) -> ClassFields:
        return self.class_map.to_preprocess()

    def describe_classes(self) -> str:
        pairs = zip(self.class_map.values, self.class_map.names, strict=True)
        text = "classes " + ", ".join(f"{value}={name}" for value, name in pairs)
        ignored = self.class_map.ignore_value
        if ignored is not None:
            text += f", ignored {ignored}"
        return text


def class_weight_tensor(weights: Sequence[float | str] | None, class_pixels: Sequence[int]) -> Tensor | None:
    """(num_classes,) loss weights: the given ones, or none, or for ["auto"] inverse to the root of each class's pixels.

    The root weakens the effect of the frequency (docs/results.md). A class with the average number of pixels has weight
    1, and so has a class without pixels.

    Raises SettingsError if there is not one weight for each class.
    """
    if weights is None or list(weights) == ["none"]:
        return None
    if list(weights) == ["auto"]:
        pixels = torch.tensor(class_pixels, dtype=torch.float32)
        return torch.where(pixels > 0, (pixels.sum() / (len(pixels) * pixels)).sqrt(), 1)
    if "auto" in weights or "none" in weights or len(weights) != len(class_pixels):
        raise SettingsError(
            f"--class-weights has {len(weights)} values for {len(class_pixels)} classes;"
            " give `auto`, `none` or one for each class"
        )
    return torch.tensor(weights)
