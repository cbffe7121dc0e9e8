"""The objects of an image, from a mask that numbers them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from data_utils.analysis.findings import Findings
from data_utils.class_map import ClassFields, ignored_fields, ignored_values
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource, RenderedMask, SceneWindow, VolumeFile, is_drawn
from data_utils.image_io.reader import read_mask
from data_utils.image_io.volumes import read_label_volume
from data_utils.mask_values import BEYOND_MASK, value_key, value_keys
from data_utils.sources.records import LabelSet, Record, Records, spread_indices
from data_utils.targets.reader import MaskReader, resize_back
from runtime.cache import digest, load_or_compute
from runtime.console import counted, listing
from runtime.errors import DataError, SettingsError
from tasks.classes.check import covered_objects
from tasks.classes.loss import Classes
from tasks.losses import class_weight_tensor
from tasks.objects.labels import (
    AnnotatedObjects,
    LabeledObjects,
    has_hole,
    label_classes,
    label_numbers,
    touching_pairs,
)
from tasks.objects.loss import BACKGROUND, OBJECT, Objects
from tasks.objects.target import ObjectTarget, close_gaps
from unet.config import IGNORE_INDEX, MaskValue, UNetConfig

SAMPLED_MASKS = 64  # masks whose objects are measured
SAMPLED_VOLUMES = 4
SMALL_PERCENT = 1  # percentile of the sizes of objects that limits how small a prediction may be
FEW_HOLES = 0.05  # share of the objects that may have holes, by mistake, where predictions have none
SMALLEST_SHARE = 0.5  # smaller predictions, as a share of the size of such an object, are left out
LARGEST_NUMBER = 2**31 - 1
SPECK = 4  # pixels: numbers that are interpolated along a border name objects of hardly more
SPECK_SHARE = 0.1  # of the largest piece of a mask: smaller ones may be specks


@dataclass(frozen=True)
class ObjectReader(MaskReader):
    """Numbers of objects as a mask has them: 0 is background, and numbers may have gaps.

    Args:
        ignored: numbers of ignored pixels.
        classes: mask value and name of each class that annotations give to objects, without the background; for label
            images, which have none, one class.
        outside: the meaning of objects of other classes: no object, or, with 255, ignored pixels.
        smallest, fills_holes: see `tasks.objects.loss.Objects`.
        reads_labels: whether values are the labels of `LabeledObjects`.
        in_pieces: whether each connected piece of a mask is an object.
    """

    ignored: tuple[int, ...] = ()
    classes: tuple[tuple[int, str], ...] = ((1, OBJECT),)
    outside: int = 0
    smallest: int = 1
    fills_holes: bool = False
    class_pixels: tuple[int, ...] = ()
    reads_labels: bool = False
    in_pieces: bool = False

    target = ObjectTarget
    may_shrink = False  # the gap between two objects may be a pixel wide

    @classmethod
    def from_records(
        cls, records: Records | None, pixels: dict[MaskValue, int], classes: NamedClasses, config: DataConfig
    ) -> "ObjectReader":
        texts = (config.ignore_index or "").split(",")
        try:
            ignored = tuple(int(text) for text in texts if text)
        except ValueError as error:
            raise SettingsError(f"--ignore-index {config.ignore_index}: expected numbers of objects") from error
        if config.outside == "ignore" and config.classes is None:
            raise SettingsError(
                "--outside ignore: objects are told from a background, which it leaves unknown; leave it out, or choose"
                " some of the classes by --classes"
            )
        object_classes = [(value, name) for value, name in classes if isinstance(value, int) and value != 0]
        reader = cls(ignored)
        if object_classes:
            reader = cls(ignored, tuple(object_classes), IGNORE_INDEX if config.outside_rule == "ignore" else 0)
        if records is None:
            return reader
        values = {value_key(value) for value in pixels} - {0, *reader.ignored}
        if len(values) == 1 and not is_drawn(records[0]["target"]):
            key = records.digest and digest("pieces of masks", records.digest, reader)
            reader = replace(reader, in_pieces=load_or_compute(key, partial(lie_in_pieces, records, reader)))
        key = records.digest and digest("shapes of objects", records.digest, reader)
        return replace(reader, **load_or_compute(key, partial(object_shapes, records, reader)))

    @classmethod
    def of_model(cls, config: UNetConfig) -> "ObjectReader":
        task = Objects.from_config(config)
        ignored = tuple(map(value_key, ignored_values(config.preprocess)))
        return cls(ignored, tuple(enumerate(task.classes.names[1:], 1)), in_pieces=task.in_pieces)

    def with_pixels(self, pixels: Mapping[LabelSet | None, dict[MaskValue, int]]) -> "ObjectReader":
        counted_values: Counter[int] = Counter()
        for value, count in chain.from_iterable(map(dict.items, pixels.values())):
            number = value_key(value)  # objects may be numbered by color
            if number not in self.ignored:
                counted_values[number] += count
        background = counted_values.pop(0, 0)
        if self.classes == ObjectReader.classes:  # values are numbers of objects
            return replace(self, class_pixels=(background, sum(counted_values.values())))
        counted_values.pop(IGNORE_INDEX, None)
        class_pixels = [counted_values.pop(value, 0) for value, _ in self.classes]
        if self.outside != IGNORE_INDEX:
            background += sum(counted_values.values())
        return replace(self, class_pixels=(background, *class_pixels))

    @property
    def identity(self) -> list[str]:
        return [str(value) for value, _ in self.classes]

    def task(self, loss: str, class_weights: Sequence[float | str] | None) -> Objects:
        weights = class_weight_tensor(class_weights, self.class_pixels)
        names = [name for _, name in self.classes]
        classes = Classes((BACKGROUND, *names), loss, weights)
        return Objects(classes, self.smallest, self.fills_holes, in_pieces=self.in_pieces)

    def to_preprocess(self) -> ClassFields:
        return ignored_fields(self.ignored)

    def prepared(self, source: ImageSource, name: str, *, whole: bool = True) -> tuple[ImageSource, MaskReader]:
        if isinstance(source, LabeledObjects):
            return source, replace(self, reads_labels=True)
        if isinstance(source, SceneWindow) and is_drawn(source):
            scene, reader = self.prepared(source.source, name)
            return replace(source, source=scene), reader
        if isinstance(source, RenderedMask) and source.is_drawn:
            indices = tuple((value, index) for index, (value, _) in enumerate(self.classes, 1))
            return AnnotatedObjects(source, indices, self.outside), replace(self, reads_labels=True)
        if self.in_pieces and whole:  # they are told apart before a mask is resized or divided
            return MaskPieces(source, name, self), replace(self, reads_labels=True)
        return source, self

    def target_from_mask(self, values: np.ndarray, name: str) -> ObjectTarget:
        if not self.reads_labels:
            return self.target_from_volume(value_keys(values), name)
        mask = label_classes(values).astype(np.uint8)
        is_object = (mask > 0) & (mask != IGNORE_INDEX)
        return ObjectTarget(mask, np.where(is_object, label_numbers(values), 0).astype(np.int32))

    def target_from_volume(self, numbers: np.ndarray, name: str) -> ObjectTarget:
        is_ignored = numbers == BEYOND_MASK
        for ignored in self.ignored:
            is_ignored |= numbers == ignored
        numbers = np.where(is_ignored, 0, numbers)
        problem = self.find_problem([int(numbers.min()), int(numbers.max())])
        if problem is not None:
            raise DataError(f"{name}: {problem}")
        ids = numbers.astype(np.int32)
        mask = (ids > 0).astype(np.uint8)
        mask[is_ignored] = IGNORE_INDEX
        if self.in_pieces:
            ids = connected_pieces(ids)
        return ObjectTarget(mask, ids)

    def find_problem(self, values: Sequence[MaskValue]) -> str | None:
        for value in values:
            if isinstance(value, int) and value not in self.ignored and not 0 <= value <= LARGEST_NUMBER:
                return f"mask holds {value:,}, but the numbers of objects are 1 to {LARGEST_NUMBER:,}, and 0 is none"
        return None

    def check(self, findings: Findings) -> Iterator[str]:
        if self.in_pieces:
            yield (
                "all masks hold one value, most of it in several pieces: each connected piece is an object. Number the"
                " objects in the masks if some touch; if all pieces of an image are one object, give --task classes"
            )
        if findings.pixels and 0 not in map(value_key, findings.pixels):
            yield "no pixel of any mask is background, 0; are the masks drawn in their alpha channel?"
        yield from covered_objects(findings)

    def detail_kept(self, records: Iterable[Record], scale: float) -> float:
        """The share of the objects' pixels that belong to the same object after resizing by `scale` and back."""
        kept = 0
        covered = 0
        for record in records:
            ids = self.ids(record)
            restored = resize_back(ids, scale)
            kept += int(np.count_nonzero((restored == ids) & (ids > 0)))
            covered += int(np.count_nonzero((restored > 0) | (ids > 0)))
        return kept / max(1, covered)

    def describe(self) -> str:
        if self.in_pieces:
            return "objects, the connected pieces of the masks"
        if len(self.classes) == 1:
            return "numbered objects"
        return "numbered objects of the classes " + ", ".join(name for _, name in self.classes)

    def describe_records(self, splits: Sequence[Records]) -> list[str]:
        holes = "filled" if self.fills_holes else "kept"
        return [
            *describe_objects(_ids_by_name(chain.from_iterable(splits), self)),
            f"predictions of fewer than {self.smallest:,} pixels will be left out, and holes in predictions {holes}",
        ]

    def ids(self, record: Record) -> np.ndarray:
        """The numbers of the objects of a record, at the mask's own size; raises DataError if it cannot be read."""
        source = record["target"]
        name = record["name"]
        if isinstance(source, VolumeFile):
            return self.target_from_volume(read_label_volume(source, name)[0], name).ids
        source, reader = self.prepared(source, name)
        target = reader.target_from_mask(read_mask(source, name), name)
        assert isinstance(target, ObjectTarget)
        return target.ids


@dataclass(frozen=True)
class MaskPieces(LabeledObjects):
    """The connected pieces of the objects of a mask."""

    source: ImageSource
    name: str
    reader: ObjectReader

    def render(self) -> np.ndarray:
        return self.reader.target_from_mask(read_mask(self.source, self.name), self.name).prediction


def connected_pieces(ids: np.ndarray) -> np.ndarray:
    """The connected pieces of objects (*spatial), numbered from 1, int32; pixels touch through sides or corners."""
    from skimage.measure import label

    return label(ids, connectivity=ids.ndim).astype(np.int32)


def _ids_by_name(records: Iterable[Record], reader: ObjectReader) -> Iterator[tuple[str, np.ndarray]]:
    """Name and numbers of the objects of each record that can be read; the others are reported elsewhere."""
    for record in records:
        with suppress(DataError):
            yield record["name"], reader.ids(record)


def _sampled_ids(records: Records, reader: ObjectReader) -> Iterator[np.ndarray]:
    """The numbers of the objects of masks spread over the records."""
    count = SAMPLED_VOLUMES if records.dims == 3 else SAMPLED_MASKS
    sample = (records[index] for index in spread_indices(len(records), count))
    return (ids for _, ids in _ids_by_name(sample, reader))


def lie_in_pieces(records: Records, reader: ObjectReader) -> bool:
    """Whether most pixels of objects lie in masks with several pieces, specks left aside."""
    in_several = 0
    in_one = 0
    for ids in _sampled_ids(records, reader):
        sizes = np.bincount(connected_pieces(ids).ravel())[1:]
        if (sizes >= SPECK_SHARE * sizes.max(initial=1)).sum() > 1:
            in_several += int(sizes.sum())
        else:
            in_one += int(sizes.sum())
    return in_several > in_one


def describe_objects(ids_by_name: Iterable[tuple[str, np.ndarray]]) -> list[str]:
    """Lines on the objects of images, from the numbers of each: how many there are, how large, and how many touch."""
    counts: list[int] = []  # objects of each image
    sizes: list[int] = []
    touching = 0
    piece_sizes: list[int] = []
    in_pieces: list[str] = []  # the images in which a number names several pieces
    for name, ids in ids_by_name:
        numbers, image_sizes = np.unique(ids[ids > 0], return_counts=True)
        counts.append(len(numbers))
        sizes += image_sizes.tolist()
        touching += len(np.unique(touching_pairs(ids)))
        pieces = np.bincount(connected_pieces(ids).ravel())[1:].tolist()
        piece_sizes += pieces
        if len(pieces) > len(numbers):
            in_pieces.append(name)
    if not sizes:
        return ["objects: none"]
    images_with_objects = sum(count > 0 for count in counts)
    lines = [
        f"objects: {len(sizes):,} in {images_with_objects:,} of {counted(len(counts), 'image')};"
        f" {len(sizes) / len(counts):,.1f} an image, {max(counts):,} at most",
        f"sizes of objects in pixels: {min(sizes):,} to {max(sizes):,}, median {np.median(sizes):,.0f};"
        f" {touching:,} ({touching / len(sizes):.1%}) touch another object",
    ]
    if np.median(piece_sizes) <= SPECK:
        lines.append(
            f"to check: half of the pieces of objects have {SPECK} pixels at most: were the masks smoothed, or resized"
            " with interpolation, which makes new numbers?"
        )
    if in_pieces:
        images = counted(len(in_pieces), "image")
        names = listing(in_pieces)
        lines.append(f"to check: in {images} a number names several pieces, which count as one object: {names}")
    return lines


def object_shapes(records: Records, reader: ObjectReader) -> dict[str, Any]:
    """The settings for predictions from some masks: the smallest size, and whether holes are filled.

    The smallest size is half the size that nearly all objects exceed.
    """
    from scipy.ndimage import find_objects

    sizes: list[int] = []
    hollow_objects = 0
    for ids in _sampled_ids(records, reader):
        numbers = close_gaps(ids)
        for number, box in enumerate(find_objects(numbers), 1):
            is_object = numbers[box] == number
            sizes.append(int(is_object.sum()))
            hollow_objects += has_hole(is_object)
    if not sizes:
        return {"smallest": 1, "fills_holes": False}
    smallest = max(1, int(SMALLEST_SHARE * np.percentile(sizes, SMALL_PERCENT)))
    return {"smallest": smallest, "fills_holes": hollow_objects <= FEW_HOLES * len(sizes)}
