"""The regions of each pixel, which are unions of labels, from the values of a mask."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from data_utils.bits import MOST_CLASSES
from data_utils.class_map import ClassFields, ClassMap, resolve_classes
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.mask_values import parse_values, show
from data_utils.sources.records import LabelSet, Record
from data_utils.targets.sides import find_sides
from runtime.errors import DataError, SettingsError
from tasks.classes.reader import classes_kept
from tasks.overlapping.bit_reader import BitReader
from tasks.overlapping.target import OverlapTarget
from tasks.pixels_and_regions import class_weight_tensor
from tasks.regions.loss import Regions
from tasks.regions.target import Region, region_bits
from unet.config import IGNORE_INDEX, MaskValue

EXAMPLE = '--regions "whole=1+2+3;core=2+3;active=3"'
BACKGROUND_VALUE = 0


def parse_regions(text: str) -> tuple[Region, ...]:
    """The regions of `whole=1+2;core=2`. Raises SettingsError for other texts and for indistinguishable regions."""
    regions: list[Region] = []
    for region_text in filter(None, map(str.strip, text.split(";"))):
        name, _, labels = (word.strip() for word in region_text.partition("="))
        try:
            values = parse_values(labels.replace("+", ","))
        except DataError as error:
            raise SettingsError(f"--regions: {error}; expected {EXAMPLE}") from error
        if not name or not values:
            raise SettingsError(f"--regions: {region_text!r} is no NAME=VALUE+VALUE; expected {EXAMPLE}")
        numbers = tuple(value for value in values if isinstance(value, int))
        if len(numbers) < len(values):
            raise SettingsError(f"--regions: {name} holds colors; regions are of masks of numbers")
        if BACKGROUND_VALUE in numbers:
            raise SettingsError(f"--regions: {name} holds {BACKGROUND_VALUE}, the background, which is in no region")
        if len(set(numbers)) < len(numbers):
            raise SettingsError(f"--regions: {name} lists a value twice")
        regions.append(Region(name, numbers))
    if not 0 < len(regions) <= MOST_CLASSES:
        raise SettingsError(f"--regions has {len(regions)} regions, expected 1 to {MOST_CLASSES}, as in {EXAMPLE}")
    for number, region in enumerate(regions):
        for earlier in regions[:number]:
            _check_pair(earlier, region)
    return tuple(regions)


def _check_pair(earlier: Region, later: Region) -> None:
    """Raises SettingsError if two regions cannot be told apart in the label map written from them."""
    first = earlier.values[0]
    if earlier.name == later.name:
        raise SettingsError(f"--regions: two regions are called {later.name}")
    if first == later.values[0]:
        raise SettingsError(
            f"--regions: {earlier.name} and {later.name} would both be written as {first}, the first value of each;"
            " begin one of them with a value that is its own"
        )
    if first in later.values:
        raise SettingsError(
            f"--regions: {earlier.name} would be written as {first}, which {later.name} holds too, so that it could not"
            f" be told from it; give {later.name} before {earlier.name}, or begin {earlier.name} with a value that is"
            " its own"
        )


@dataclass(frozen=True)
class RegionReader(BitReader):
    """The regions of mask values.

    Args:
        regions: in the order of their bits.
        ignored: mask values of unknown pixels.
        class_map: the labels of the masks; None if only a model is known.
    """

    regions: tuple[Region, ...]
    ignored: tuple[MaskValue, ...] = ()
    class_map: ClassMap | None = None

    has_classes = True

    @classmethod
    def from_values(cls, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig) -> "RegionReader":
        if not config.regions:
            raise SettingsError(f"--task {Regions.name} needs the regions: {EXAMPLE}")
        regions = parse_regions(config.regions)
        class_map = resolve_classes(pixels, classes, config.ignore_index, config.outside_rule)
        if class_map.has_colors:
            raise DataError(f"--regions: the masks hold colors, {show(class_map.values)}; regions are of numbers")
        for region in regions:
            unknown = [value for value in region.values if class_map.index_of(value) in (None, IGNORE_INDEX)]
            if unknown:
                raise DataError(
                    f"--regions: {region.name} holds {show(unknown)}, which is no value of the masks;"
                    f" they hold {show(class_map.values)}"
                )
        sides = find_sides([region.name for region in regions], config.swap)
        return cls(regions, class_map.ignored_values, class_map, sides=sides)

    def count_pixels(self, pixels: dict[MaskValue, int]) -> Sequence[int]:
        counts = []
        for region in self.regions:
            counts.append(sum(pixels.get(value, 0) for value in region.values))
        return counts

    @property
    def class_values(self) -> Sequence[Sequence[MaskValue]]:
        return [region.values for region in self.regions]

    def labeled_in_map(self, labeled_for: LabelSet | None) -> Collection[int] | None:
        classes = self.labeled_classes(labeled_for)
        if classes is None:
            return None
        assert self.class_map is not None
        indices: set[int] = set()
        for index in classes:
            for value in self.regions[index].values:
                label = self.class_map.index_of(value)
                assert label is not None  # regions hold values of the masks
                indices.add(label)
        return indices

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(region.name for region in self.regions)

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Regions:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        return Regions(self.class_names, loss, weights, self.class_partners, self.mirrors, self.regions)

    @property
    def key(self) -> tuple:
        key = (Regions.name, *self.identity, self.ignored)
        return key if self.label_sets is None else (*key, self.label_sets.flags)

    @property
    def identity(self) -> list[str]:
        return [f"{region.name}={'+'.join(map(str, region.values))}" for region in self.regions]

    def target_from_mask(self, values: np.ndarray, name: str) -> OverlapTarget:
        if values.ndim == 3:
            raise DataError(f"{name} is a color mask, but regions are of numbers")
        return self.target_from_volume(values, name)

    def target_from_volume(self, values: np.ndarray, name: str) -> OverlapTarget:
        truth = np.zeros(values.shape, np.int32)
        known_regions = np.full(values.shape, self.all_bits)
        for value in set(chain.from_iterable(region.values for region in self.regions)):
            truth[values == value] = region_bits(self.regions, value)
        for ignored in self.ignored:
            known_regions[values == ignored] = 0
        return OverlapTarget(truth, known_regions)

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        assert self.class_map is not None
        return classes_kept(self, self.class_map, records, scale)

    def to_preprocess(self) -> ClassFields:
        return {
            "class_names": self.class_names,
            "class_values": tuple(region.values[0] for region in self.regions),
            "ignore_value": self.ignored[0] if self.ignored else None,
            "joined_values": tuple((value, IGNORE_INDEX) for value in self.ignored[1:]),
        }

    def describe_classes(self) -> str:
        text = f"regions {', '.join(self.identity)}"
        if self.ignored:
            text += f", ignored {show(self.ignored)}"
        return text
