"""The class of each pixel, from the values of a mask."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from data_utils.analysis.findings import Findings
from data_utils.class_map import ClassFields, ClassMap, resolve_classes
from data_utils.class_names import NamedClasses, is_background
from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource, RenderedMask
from data_utils.image_io.reader import read_mask
from data_utils.mask_values import value_text
from data_utils.sources.records import LabelSet, Record, Records
from data_utils.target import Target
from data_utils.targets.reader import LabelReader, MaskReader, resize_back
from runtime.errors import DataError, SettingsError
from tasks.classes.check import check_classes
from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.confusion import ClassCounts, class_scores, confusion_matrix
from tasks.losses import class_weight_tensor
from unet.config import IGNORE_INDEX, MaskValue, UNetConfig


@dataclass(frozen=True)
class ClassReader(LabelReader):
    """Class indices of mask values, as the class map has them."""

    class_map: ClassMap

    has_classes = True

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> "ClassReader":
        if config.swap:
            raise SettingsError(f"--swap {config.swap}: for points and for classes that may overlap; leave it out")
        return cls(resolve_classes(pixels, classes, config.ignore_index, config.outside_rule))

    @classmethod
    def of_model(cls, config: UNetConfig) -> "ClassReader":
        return cls(ClassMap.from_preprocess(config.preprocess, config.num_classes))

    @property
    def target(self) -> type[ClassTarget | PartlyLabeledTarget]:
        return PartlyLabeledTarget if self.label_sets else ClassTarget

    def with_pixels(self, pixels: Mapping[LabelSet | None, dict[MaskValue, int]]) -> Self:
        counts = [0] * len(self.class_map)
        for labeled_for, value_counts in pixels.items():
            classes = self.labeled_classes(labeled_for)
            for value, count in value_counts.items():
                index = self.class_map.index_of(value)
                if index is not None and index != IGNORE_INDEX and (classes is None or index in classes):
                    counts[index] += count
        return replace(self, class_pixels=tuple(counts))

    @property
    def class_values(self) -> Sequence[Sequence[MaskValue]]:
        return self.class_map.values_by_class()

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Classes:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        if self.label_sets is None:
            return Classes(self.class_map.names, loss, weights)
        return PartlyLabeledClasses(self.class_map.names, loss, weights, flags=torch.tensor(self.label_sets.flags))

    def prepared(self, source: ImageSource, name: str, *, whole: bool = True) -> tuple[ImageSource, MaskReader]:
        if isinstance(source, AnnotatedClasses):  # its values are class indices, which stay as they are
            names = self.class_map.names
            return source, ClassReader(ClassMap(names, values=tuple(range(len(names))), ignore_value=IGNORE_INDEX))
        return source, self

    def target_from_mask(self, values: np.ndarray, name: str) -> Target:
        return self._target(self.class_map.encode(values, name))

    def target_from_volume(self, values: np.ndarray, name: str) -> Target:
        mask = np.empty(values.shape, np.uint8)
        for index, plane in enumerate(values):
            mask[index] = self.class_map.encode(plane, name)
        return self._target(mask)

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

    def check(self, findings: Findings) -> Iterator[str]:
        return check_classes(findings)

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        return classes_kept(self, self.class_map, records, scale)

    def to_preprocess(self) -> ClassFields:
        return self.class_map.to_preprocess()

    def describe_classes(self) -> str:
        pairs = zip(self.class_map.values, self.class_map.names, strict=True)
        text = "classes " + ", ".join(f"{value_text(value)}={name}" for value, name in pairs)
        ignored = self.class_map.ignore_value
        if ignored is not None:
            text += f", ignored {value_text(ignored)}"
        return text


def classes_kept(reader: LabelReader, class_map: ClassMap, records: Iterable[Record], scale: float) -> float:
    """Mean IoU, over the classes of a class map, of the masks with themselves resized by `scale` and back.

    The most frequent class, mostly a background that loses nothing, does not count beside others.
    """
    classes = len(class_map)
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for record in records:
        mask = class_map.encode(read_mask(record["target"], record["name"]), record["name"])
        labeled = reader.labeled_in_map(record.get("labeled"))
        if labeled is not None:
            mask[~np.isin(mask, list(labeled))] = IGNORE_INDEX
        restored = resize_back(mask, scale)
        valid = (mask != IGNORE_INDEX) & (restored != IGNORE_INDEX)
        predicted, true = (torch.from_numpy(labels[valid]).long() for labels in (restored, mask))
        matrix += confusion_matrix(predicted, true, classes)
    pixels = matrix.sum(dim=1)
    is_counted = pixels > 0
    if is_counted.sum() > 1:
        is_counted[pixels.argmax()] = False
    counts = ClassCounts.from_matrix(matrix)
    return class_scores(ClassCounts(*(count[is_counted] for count in counts)))["mean_iou"] or 0.0


@dataclass(frozen=True)
class AnnotatedClasses(RenderedMask):
    """True classes, from annotations.

    Args:
        source: renders their mask values.
        name: the annotated image.
        index_by_value: for each mask value, the model's index of its class, `IGNORE_INDEX` if it is ignored.
        unknown: the names of the values that are no classes of the model.
    """

    source: RenderedMask
    name: str
    index_by_value: tuple[int, ...]
    unknown: tuple[tuple[int, str], ...] = ()

    def render(self) -> np.ndarray:
        """(H, W) uint8 class indices. Raises DataError for a pixel of an unknown class."""
        values = self.source.render()
        for value, name in self.unknown:
            if (values == value).any():
                raise DataError(f"{self.name}: is annotated with {name}, which is no class of the model")
        return np.array(self.index_by_value, np.uint8)[values]

    @classmethod
    def from_names(
        cls, source: RenderedMask, name: str, classes: NamedClasses, class_map: ClassMap
    ) -> "AnnotatedClasses":
        """True classes whose values have the names `classes`; the name does not matter if there is one class."""
        background = class_map.background
        others = [index for index in range(len(class_map)) if index != background]
        objects = [name for _, name in classes if not is_background(name)]
        has_one_class = len(others) == 1 and not set(objects) & set(class_map.names)
        values = [value for value, _ in classes if isinstance(value, int)]
        indices = [IGNORE_INDEX] * (max([IGNORE_INDEX, *values]) + 1)
        unknown = []
        for value, class_name in classes:
            if not isinstance(value, int) or value == IGNORE_INDEX:
                continue
            if class_name in class_map.names:
                index: int | None = class_map.names.index(class_name)
            elif is_background(class_name) and background is not None:
                index = background
            elif has_one_class:
                index = others[0]
            else:
                index = class_map.outside
            if index is None:
                unknown.append((value, class_name))
            else:
                indices[value] = index
        return cls(source, name, tuple(indices), tuple(unknown))
