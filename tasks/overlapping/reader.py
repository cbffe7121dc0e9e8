"""The classes of each pixel, maybe several: from values that hold a bit for each class, or from labels of regions."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Self

import numpy as np
import torch

from data_utils.analysis.findings import Findings
from data_utils.bits import ALL_CLASSES, MOST_CLASSES, pack_bits, unpack_bits
from data_utils.class_map import ClassFields, ClassMap, ignored_fields, resolve_classes
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.reader import read_mask
from data_utils.mask_values import BEYOND_MASK, parse_values, show, sort_values
from data_utils.sources.overlapping import class_bits
from data_utils.sources.records import LabelSet, Record, Records
from data_utils.target import Target
from data_utils.targets.reader import LabelReader, resize_back
from data_utils.targets.sides import Sides, find_sides
from runtime.console import listing
from runtime.errors import DataError, SettingsError
from tasks.classes.check import check_classes
from tasks.classes.reader import classes_kept
from tasks.losses import class_weight_tensor
from tasks.overlapping.loss import Overlapping, Regions, regions_of_model
from tasks.overlapping.target import OverlapTarget, Region, region_bits
from unet.config import IGNORE_INDEX, MaskValue, UNetConfig

EXAMPLE = '--regions "whole=1+2+3;core=2+3;active=3"'
BACKGROUND_VALUE = 0


@dataclass(frozen=True)
class OverlapReader(LabelReader):
    """The bits of classes and of unknown classes, as the sources give them.

    Classes that an image is not labeled for are unknown everywhere in it.

    Args:
        class_names: in the order of their bits.
        class_values: the mask values of each class in the data set.
        shares: the share of each class in the known pixels; empty until pixels are counted.
        overlap: the share of pixels with several classes among the pixels with any.
        ignored: mask values of unknown pixels.
        sides: how the classes behave in the mirror; None if only a model is known.
    """

    class_names: tuple[str, ...] = ()
    class_values: tuple[tuple[MaskValue, ...], ...] = ()
    shares: tuple[float, ...] = ()
    overlap: float = 0.0
    ignored: tuple[MaskValue, ...] = field(default=(), kw_only=True)
    sides: Sides | None = field(default=None, kw_only=True)

    target = OverlapTarget
    background = None  # pixels of no class have no bit

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> "OverlapReader":
        bits = class_bits(classes)
        values: dict[str, list[MaskValue]] = {}  # in the order of bits
        for value, name in classes:
            if value in bits:
                values.setdefault(name, []).append(value)
        names = tuple(values)
        ignored = tuple(parse_values(config.ignore_index))
        return cls(names, tuple(map(tuple, values.values())), ignored=ignored, sides=find_sides(names, config.swap))

    @classmethod
    def of_model(cls, config: UNetConfig) -> "OverlapReader":
        return cls(Overlapping.from_config(config).names)

    @property
    def all_bits(self) -> np.int32:
        """The bits of all classes."""
        return np.int32(2 ** len(self.class_names) - 1)

    def labeled_bits(self, labeled_for: LabelSet | None) -> np.int32:
        """The bits of the classes that an image is labeled for."""
        classes = self.labeled_classes(labeled_for)
        if classes is None:
            return self.all_bits
        return np.int32(sum(1 << bit for bit in classes))

    def bits(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bits of the present classes and of the unknown ones, int32 each, of mask values of any shape."""
        return unpack_bits(values)

    def with_pixels(self, pixels: Mapping[LabelSet | None, dict[MaskValue, int]]) -> Self:
        parts = []
        for labeled_for, value_counts in pixels.items():
            bits = self.labeled_bits(labeled_for)
            truth, unknown = self.bits(np.array(list(value_counts), np.int64))
            pixel_counts = np.array(list(value_counts.values()), np.int64)
            parts.append((truth & bits, unknown | ~bits & self.all_bits, pixel_counts))
        truth, unknown, counts = map(np.concatenate, zip(*parts, strict=True))
        class_pixels: list[int] = []
        shares: list[float] = []
        for bit in range(len(self.class_names)):
            class_pixels.append(int(counts[truth >> bit & 1 == 1].sum()))
            shares.append(class_pixels[bit] / max(1, int(counts[unknown >> bit & 1 == 0].sum())))
        # taking 1 away leaves a bit only where there are two
        has_several = (truth & (truth - 1)) != 0
        overlap = counts[has_several].sum() / max(1, counts[truth != 0].sum())
        return replace(self, class_pixels=tuple(class_pixels), shares=tuple(shares), overlap=float(overlap))

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Overlapping:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        return Overlapping(self.class_names, loss, weights, self.class_partners, self.mirrors)

    @property
    def identity(self) -> list[str]:
        return list(self.class_names)

    def target_from_mask(self, values: np.ndarray, name: str) -> OverlapTarget:
        return self.target_from_volume(values, name)

    def target_from_volume(self, values: np.ndarray, name: str) -> OverlapTarget:
        truth, unknown = self.bits(values)
        return OverlapTarget(truth, ~unknown & self.all_bits)

    def target_for_record(self, target: Target, record: Record) -> Target:
        if self.label_sets is None:
            return target
        bits = self.labeled_bits(record.get("labeled"))
        return target.map(lambda classes: classes & bits)

    def shown_truth(self, target: Target) -> np.ndarray:
        assert isinstance(target, OverlapTarget)
        return pack_bits(target.truth, ~target.known & ALL_CLASSES)

    @property
    def mirrors(self) -> bool:
        return self.sides is None or self.sides.mirrors

    @property
    def class_partners(self) -> tuple[int, ...]:
        """For each class, the class that it becomes in the mirror."""
        return tuple(range(len(self.class_names))) if self.sides is None else self.sides.partners

    def mirror(self, target: Target) -> Target:
        return target.map(lambda bits: swap_bits(bits, self.class_partners))

    def to_preprocess(self) -> ClassFields:
        return {"class_names": self.class_names, **ignored_fields(self.ignored)}

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        scores = Overlapping(self.class_names).new_scores(1)
        for record in records:
            values = read_mask(record["target"], record["name"])
            back = self.target_from_mask(resize_back(values, scale), record["name"])
            target = self.target_for_record(self.target_from_mask(values, record["name"]), record)
            assert isinstance(target, OverlapTarget)
            scores.add(torch.from_numpy(back.truth), target.map(torch.from_numpy), 0)
        return scores.comparison

    def describe_classes(self) -> str:
        text = f"classes that may overlap {', '.join(self.class_names)}"
        if self.overlap:
            text += f" ({self.overlap:.1%} of their pixels have several)"
        return text

    def check(self, findings: Findings) -> Iterator[str]:
        """Which classes change places in the mirror, or why images are not mirrored; and those that fill all masks."""
        if self.sides is not None and self.sides.line:
            yield self.sides.line
        filling = [name for name, share in zip(self.class_names, self.shares, strict=True) if share == 1]
        if filling:
            yield f"all pixels of all masks are {listing(filling)}; are the masks drawn in their alpha channel?"

    def describe_records(self, splits: Sequence[Records]) -> list[str]:
        lines = ["classes that may overlap: share of the pixels of which it is known"]
        for name, share in zip(self.class_names, self.shares, strict=True):
            lines.append(f"  {100 * share:7.3f} %  {name}")
        lines.append(f"  {100 * self.overlap:7.3f} %  of the pixels of any class have several")
        return lines


def swap_bits(bits: np.ndarray, partners: Sequence[int]) -> np.ndarray:
    """Bits of classes, each in the place of its partner's."""
    swapped = bits
    for bit, partner in enumerate(partners):
        if bit < partner:  # each pair once
            differs = (bits >> bit ^ bits >> partner) & 1
            swapped = swapped ^ (differs << bit | differs << partner)
    return swapped


@dataclass(frozen=True)
class RegionReader(OverlapReader):
    """The regions of mask values, which are unions of labels.

    Args:
        class_map: the labels of the masks; None if only a model is known.
    """

    class_values: tuple[tuple[int, ...], ...] = ()
    class_map: ClassMap | None = None

    has_classes = True

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> "RegionReader":
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
        names, values = zip(*regions, strict=True)
        # with --outside ignore these are also the values that are no class
        outside = [value for value in pixels if class_map.index_of(value) == IGNORE_INDEX]
        ignored = tuple(dict.fromkeys([*class_map.ignored_values, *sort_values(outside)]))
        return cls(names, values, ignored=ignored, class_map=class_map, sides=find_sides(names, config.swap))

    @classmethod
    def of_model(cls, config: UNetConfig) -> "RegionReader":
        names, values = zip(*regions_of_model(config), strict=True)
        labels = ClassMap.from_preprocess(config.preprocess, config.num_classes)
        return cls(names, values, ignored=labels.ignored_values)

    @property
    def regions(self) -> tuple[Region, ...]:
        """In the order of their bits."""
        return tuple(map(Region, self.class_names, self.class_values))

    def bits(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        truth = np.zeros(values.shape, np.int32)
        unknown = np.zeros(values.shape, np.int32)
        for value in set(chain.from_iterable(self.class_values)):
            truth[values == value] = region_bits(self.regions, value)
        for ignored in (*self.ignored, BEYOND_MASK):
            unknown[values == ignored] = self.all_bits
        return truth, unknown

    def labeled_in_map(self, labeled_for: LabelSet | None) -> Collection[int] | None:
        classes = self.labeled_classes(labeled_for)
        if classes is None:
            return None
        assert self.class_map is not None
        indices: set[int] = set()
        for index in classes:
            for value in self.class_values[index]:
                label = self.class_map.index_of(value)
                assert label is not None  # regions hold values of the masks
                indices.add(label)
        return indices

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Regions:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        return Regions(self.class_names, loss, weights, self.class_partners, self.mirrors, self.regions)

    @property
    def identity(self) -> list[str]:
        return [f"{region.name}={'+'.join(map(str, region.values))}" for region in self.regions]

    def target_from_mask(self, values: np.ndarray, name: str) -> OverlapTarget:
        if values.ndim == 3:
            raise DataError(f"{name} is a color mask, but regions are of numbers")
        return self.target_from_volume(values, name)

    def to_preprocess(self) -> ClassFields:
        return {**super().to_preprocess(), "class_values": tuple(values[0] for values in self.class_values)}

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        assert self.class_map is not None
        return classes_kept(self, self.class_map, records, scale)

    def check(self, findings: Findings) -> Iterator[str]:
        yield from check_classes(findings)
        yield from super().check(findings)

    def describe_classes(self) -> str:
        text = f"regions {', '.join(self.identity)}"
        if self.ignored:
            text += f", ignored {show(self.ignored)}"
        return text


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
        for earlier in regions:
            _check_pair(earlier, Region(name, numbers))
        regions.append(Region(name, numbers))
    if not 0 < len(regions) <= MOST_CLASSES:
        raise SettingsError(f"--regions has {len(regions)} regions, expected 1 to {MOST_CLASSES}, as in {EXAMPLE}")
    return tuple(regions)


def _check_pair(earlier: Region, later: Region) -> None:
    """Raises SettingsError if two regions cannot be told apart in the label map written from them."""
    first = earlier.values[0]
    if earlier.name == later.name:
        raise SettingsError(f"--regions: two regions are called {later.name}")
    if first in later.values:
        raise SettingsError(
            f"--regions: {earlier.name} would be written as {first}, which {later.name} holds too, so that it could not"
            f" be told from it; begin {earlier.name} with a value that is its own, or give it after {later.name}"
        )
