"""The class of each pixel, from the values of a mask."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from data_utils.class_map import ClassFields, ClassMap, resolve_classes
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.records import LabelSet, Record
from data_utils.targets.label_sets import LabelSets
from data_utils.targets.reader import MaskReader
from runtime.errors import SettingsError
from tasks.classes import Classes, ClassTarget
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from tasks.target import Target
from unet.config import IGNORE_INDEX, MaskValue


@dataclass(frozen=True)
class ClassReader(MaskReader):
    """Class indices of mask values, as the class map has them."""

    class_map: ClassMap
    class_pixels: tuple[int, ...] = ()

    target = ClassTarget
    has_classes = True

    @classmethod
    def from_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "ClassReader":
        if config.swap:
            raise SettingsError(f"--swap {config.swap}: for points and for classes that may overlap; leave it out")
        return cls(resolve_classes(pixels, classes, config.ignore_index, config.outside_rule))

    def with_pixels(self, pixels: dict[MaskValue, int]) -> "ClassReader":
        return replace(self, class_pixels=count_classes(pixels, self.class_map))

    def partly_labeled(
        self,
        place_by_set: Mapping[LabelSet, str],
        file_classes: NamedClasses,
        pixels: Mapping[LabelSet | None, dict[MaskValue, int]],
    ) -> "ClassReader":
        class_map = self.class_map
        values = class_map.values_by_class()
        sets = LabelSets.from_names(place_by_set, class_map.names, values, file_classes, class_map.background)
        if sets.are_complete:
            return self
        class_pixels = sets.class_pixels(pixels, partial(count_classes, class_map=class_map))
        return PartlyLabeledReader(class_map, class_pixels, label_sets=sets)

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Classes:
        return Classes(self.class_map.names, loss, class_weight_tensor(class_weights, self.class_pixels))

    @property
    def key(self) -> tuple:
        class_map = self.class_map
        key: tuple = (class_map.values, class_map.ignore_value)
        if class_map.joined or class_map.outside is not None:
            key += (class_map.joined, class_map.outside)
        return key

    def target_from_mask(self, values: np.ndarray, name: str) -> ClassTarget:
        return ClassTarget(self.class_map.encode(values, name))

    def target_from_volume(self, values: np.ndarray, name: str) -> ClassTarget:
        return ClassTarget(self.class_map.encode_volume(values, name))

    def to_preprocess(self) -> ClassFields:
        return self.class_map.to_preprocess()

    def describe(self) -> str:
        pairs = zip(self.class_map.values, self.class_map.names, strict=True)
        text = "classes " + ", ".join(f"{value}={name}" for value, name in pairs)
        ignored = self.class_map.ignore_value
        if ignored is not None:
            text += f", ignored {ignored}"
        return text


@dataclass(frozen=True)
class PartlyLabeledReader(ClassReader):
    """Class indices if some images are labeled for some of the classes only.

    Args:
        label_sets: the different sets of classes.
    """

    label_sets: LabelSets = field(kw_only=True)

    target = PartlyLabeledTarget

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> PartlyLabeledClasses:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        flags = torch.tensor(self.label_sets.flags)
        return PartlyLabeledClasses(self.class_map.names, loss, weights, flags=flags)

    @property
    def key(self) -> tuple:
        return (*super().key, self.label_sets.flags, tuple(self.label_sets.numbers.items()))

    def target_from_mask(self, values: np.ndarray, name: str) -> PartlyLabeledTarget:
        return PartlyLabeledTarget(self.class_map.encode(values, name), np.array(0, np.int32))

    def target_from_volume(self, values: np.ndarray, name: str) -> PartlyLabeledTarget:
        return PartlyLabeledTarget(self.class_map.encode_volume(values, name), np.array(0, np.int32))

    def target_for_record(self, target: Target, record: Record) -> PartlyLabeledTarget:
        number = self.label_sets.number(record.get("labeled"))
        mask = target.main
        if not any(self.label_sets.flags[number]):  # an image without any known class
            mask = np.full_like(mask, IGNORE_INDEX)
        return PartlyLabeledTarget(mask, np.array(number, np.int32))

    def labeled_classes(self, labeled_for: LabelSet | None) -> Collection[int]:
        return np.flatnonzero(self.label_sets.flags_of(labeled_for)).tolist()

    def known_labels(self, target: Target) -> np.ndarray:
        assert isinstance(target, PartlyLabeledTarget)
        flags = self.label_sets.flags[int(target.label_set)]
        # the classes that the image is not labeled for count as unknown
        table = np.full(IGNORE_INDEX + 1, IGNORE_INDEX, np.uint8)
        for index, is_labeled in enumerate(flags):
            if is_labeled:
                table[index] = index
        return table[target.mask]

    def shown_truth(self, target: Target) -> np.ndarray:
        return self.known_labels(target)

    def describe(self) -> str:
        return super().describe() + self.label_sets.describe()


def count_classes(pixels: dict[MaskValue, int], class_map: ClassMap) -> tuple[int, ...]:
    """Pixels of each class."""
    counts = [0] * len(class_map)
    for value, count in pixels.items():
        index = class_map.index_of(value)
        if index is not None and index != IGNORE_INDEX:
            counts[index] += count
    return tuple(counts)


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
