"""The objects of an image, from a mask that numbers them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data_utils.class_map import NamedClasses, pack
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import decode_mask
from data_utils.image_io.volumes import read_label_volume
from data_utils.sources.records import Record, Records
from data_utils.targets.classes import class_weight_tensor
from data_utils.targets.reader import MaskReader
from runtime.cache import cached, digest
from runtime.errors import DataError, SettingsError
from tasks.classes import Classes
from tasks.objects import BACKGROUND, OBJECT, Objects, ObjectTarget
from unet.config import IGNORE_INDEX, MaskValue

SAMPLED = 64  # masks whose objects are measured
SAMPLED_VOLUMES = 4
SMALL = 1  # percent of the objects that are smaller than those which say how small a prediction may be
SMALLEST_SHARE = 0.5  # of the size of such an object: predictions below are left out
LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class ObjectReader(MaskReader):
    """Numbers of objects as a mask has them: 0 is background, and numbers may have gaps.

    Args:
        ignored: numbers of pixels that count nowhere.
        smallest: pixels of an object, see `tasks.objects.Objects`.
    """

    ignored: tuple[int, ...] = ()
    smallest: int = 1
    class_pixels: tuple[int, ...] = ()

    target = ObjectTarget

    @classmethod
    def of_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "ObjectReader":
        texts = (config.ignore_index or "").split(",")
        try:
            ignored = tuple(int(text) for text in texts if text)
        except ValueError as error:
            raise SettingsError(f"--ignore-index {config.ignore_index}: expected numbers of objects") from error
        return cls(ignored)

    def with_pixels(self, pixels: dict[MaskValue, int]) -> "ObjectReader":
        background = pixels.get(0, 0)
        return replace(self, class_pixels=(background, sum(pixels.values()) - background))

    def with_records(self, records: Records) -> "ObjectReader":
        key = records.digest and digest("objects", records.digest)
        smallest = cached(key, lambda: {"smallest": smallest_object(records, self)})["smallest"]
        return replace(self, smallest=smallest)

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Objects:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        return Objects(Classes((BACKGROUND, OBJECT), loss, weights), self.smallest)

    @property
    def key(self) -> tuple:
        return (Objects.name, self.ignored)

    def of_mask(self, values: np.ndarray, name: str) -> ObjectTarget:
        return self._target(pack(values), name)

    def of_label_volume(self, values: np.ndarray, name: str) -> ObjectTarget:
        return self._target(values, name)

    def _target(self, numbers: np.ndarray, name: str) -> ObjectTarget:
        if numbers.min() < 0 or numbers.max() > LARGEST_NUMBER:
            extreme = numbers.min() if numbers.min() < 0 else numbers.max()
            raise DataError(
                f"{name}: mask holds {extreme:,}, but the numbers of objects are 1 to {LARGEST_NUMBER:,}, and 0 is none"
            )
        ids = numbers.astype(np.int32)
        mask = (ids > 0).astype(np.uint8)
        if self.ignored:
            is_ignored = np.isin(ids, self.ignored)
            mask[is_ignored] = IGNORE_INDEX
            ids[is_ignored] = 0
        return ObjectTarget(mask, ids)

    def to_preprocess(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "numbered objects"


def object_sizes(record: Record, reader: ObjectReader) -> list[int]:
    """The pixels of each object of a mask."""
    source = record["target"]
    if isinstance(source, VolumeFile):
        ids = reader.of_label_volume(read_label_volume(source, record["name"])[0], record["name"]).ids
    else:
        ids = reader.of_mask(decode_mask(source, record["name"]).values, record["name"]).ids
    _, counts = np.unique(ids[ids > 0], return_counts=True)
    return counts.tolist()


def smallest_object(records: Records, reader: ObjectReader) -> int:
    """How small a prediction may be: half as large as objects of which nearly all others are larger."""
    count = SAMPLED_VOLUMES if records.dims == 3 else SAMPLED
    sizes: list[int] = []
    for index in np.unique(np.linspace(0, len(records) - 1, count).astype(int)).tolist():
        try:
            sizes += object_sizes(records[index], reader)
        except DataError:  # it is named where all masks are read
            continue
    if not sizes:
        return 1
    return max(1, int(SMALLEST_SHARE * np.percentile(sizes, SMALL)))
