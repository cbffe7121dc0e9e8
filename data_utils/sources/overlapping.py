"""Records whose classes may overlap: a folder, a page or a channel for each class, or the objects of annotations."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.class_names import NamedClasses, is_background, named_classes
from data_utils.config import DataConfig
from data_utils.image_io.class_masks import ClassChannels, ClassFile, ClassMasks, LayeredMask, ObjectBits, binary
from data_utils.image_io.formats import IMAGE_SUFFIXES, ImageSource, image_errors, is_visible_file
from data_utils.image_io.rasters import Raster
from data_utils.image_io.reader import open_source, read_mask
from data_utils.image_io.tiff import is_tiff, page_numbers
from data_utils.mask_values import parse_values
from data_utils.sources.annotations.layout import check_unpaired
from data_utils.sources.annotations.paired import pair_by_name
from data_utils.sources.folder import children, files_by_stem, find_splits, masks_by_stem, natural_sort_key
from data_utils.sources.records import (
    DerivedRecords,
    Metadata,
    Record,
    Records,
    SplitOpeners,
    folder_pairs,
    image_without_mask,
)
from data_utils.sources.walk import walk
from runtime.cache import digest_of_files
from runtime.errors import DataError, ImageError
from tasks.overlapping import MOST_CLASSES, Overlapping
from unet.config import MaskValue

OVERLAPPING = Overlapping.name
FEWEST_FOLDERS = 2  # the least number of folders in which most images have a mask
EXAMPLE_MASKS = 5  # masks that are read: one of them must hold one class


class ClassBits(NamedTuple):
    """The classes of a data set by name, in the order of their bits; and the bit of each of its mask values."""

    names: tuple[str, ...]
    bit_by_value: dict[MaskValue, int]


def class_bits(classes: NamedClasses) -> ClassBits:
    """The bits of named classes, except the background; values of one name share a bit.

    Raises DataError for no class, and for more classes than a pixel has bits.
    """
    bits: dict[str, int] = {}
    bit_by_value: dict[MaskValue, int] = {}
    for value, name in classes:
        if not is_background(name):
            bit_by_value[value] = bits.setdefault(name, len(bits))
    if not 0 < len(bits) <= MOST_CLASSES:
        raise DataError(
            f"{len(bits)} classes beside the background, and --task overlapping takes 1 to {MOST_CLASSES};"
            " choose them with --classes"
        )
    return ClassBits(tuple(bits), bit_by_value)


def chosen_bits(config: DataConfig, classes: NamedClasses) -> ClassBits:
    """The bits of a data set's classes, or of the classes that --classes names."""
    return class_bits(named_classes(config.classes, classes, config.outside_rule))


def bits_by_class(config: DataConfig, classes: NamedClasses) -> tuple[int | None, ...]:
    """The bit of each class of a data set, in their order; None for a class that --classes leaves out."""
    bit_by_value = chosen_bits(config, classes).bit_by_value
    return tuple(bit_by_value.get(value) for value, _ in classes)


class ObjectRecords(DerivedRecords):
    """The records of annotations whose objects keep parts below other objects. Raises DataError if masks are files."""

    def __init__(self, records: Records, config: DataConfig) -> None:
        super().__init__(records)
        self.metadata = replace(records.metadata, task=OVERLAPPING)
        if not isinstance(records[0]["target"], LayeredMask):
            raise DataError(
                f"--task {OVERLAPPING}: {config.dataset} has one mask for each image; give a folder of masks for each"
                f" class (masks/<class>/NAME.png), masks with a page or channel for each, COCO, labelme or YOLO files,"
                ' or --regions "whole=1+2;core=2"'
            )
        self.bits = tuple(chosen_bits(config, self.metadata.classes).bit_by_value.items())

    def __getitem__(self, i: int) -> Record:
        record = self.records[i]
        mask = record["target"]
        assert isinstance(mask, LayeredMask)
        return {**record, "target": ObjectBits(mask, self.bits)}

    def derivation(self) -> tuple[object, ...]:
        return (OVERLAPPING, repr(self.bits))


class ClassFolderRecords(Records):
    """Images, and for each class a folder of masks with the images' names.

    Args:
        images: the folder of the images.
        folders: the folders of the masks.
        files: (N, 1 + folders) paths below these folders: the image, the mask of each class; "" where there is none.
        bits: the bit of each folder's class; None for a class that is left out.
    """

    def __init__(
        self,
        images: Path,
        folders: Sequence[Path],
        files: Sequence[Sequence[str]],
        config: DataConfig,
        unpaired: Sequence[str],
    ) -> None:
        self.folders = [str(images), *map(str, folders)]
        # bytes in one array: Python strings would be copied, page by page, into every loader process
        self.files = np.array([list(map(os.fsencode, names)) for names in files])
        classes = tuple((value, folder.name) for value, folder in enumerate(folders, 1))
        self.metadata = Metadata(classes, tuple(unpaired), task=OVERLAPPING)
        self.bits = bits_by_class(config, classes)
        self.ignored = tuple(parse_values(config.ignore_index))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Record:
        image, *masks = self._paths(i)
        files = tuple(ClassFile(mask) for mask in masks)
        return {"image": image, "target": ClassMasks(files, self.bits, self.ignored), "name": self.name(i)}

    def name(self, i: int) -> str:
        return os.fsdecode(self.files[i, 0].item())

    def image_folders(self) -> set[tuple[str, str]]:
        return folder_pairs(self.folders[0], self.files[:, 0])

    def _paths(self, i: int) -> list[str]:
        """The path of the image and of each class's mask, "" for a missing mask."""
        paths = []
        for folder, name in zip(self.folders, self.files[i].tolist(), strict=True):
            paths.append(os.path.join(folder, os.fsdecode(name)) if name else "")
        return paths

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the masks made from them."""
        paths: list[str] = []
        for i in range(len(self)):
            paths += filter(None, self._paths(i))
        return digest_of_files(paths, repr((self.bits, self.ignored)).encode() + self.files.tobytes())


class ClassLayout(NamedTuple):
    """How a file holds a mask of each class.

    Args:
        pages: the number of each class's page; empty if the masks are channels.
        class_count: how many classes there are; 0 where the file is one mask of classes.
    """

    pages: Sequence[int]
    class_count: int


NO_LAYOUT = ClassLayout((), 0)


class ChannelRecords(Records):
    """Images, each with one file of masks: a page or a channel for each class.

    Args:
        pairs: the paths of image and mask file.
        names: the names of the images.
        layout: how a mask file holds its classes.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[str],
        layout: ClassLayout,
        config: DataConfig,
        unpaired: Sequence[str],
    ) -> None:
        self.pairs = np.array([list(map(os.fsencode, pair)) for pair in pairs])
        self.names = np.array([os.fsencode(name) for name in names])
        self.pages = tuple(layout.pages)
        count = layout.class_count
        classes = tuple((value, f"class {value}") for value in range(1, count + 1))
        self.metadata = Metadata(classes, tuple(unpaired), task=OVERLAPPING)
        absent = [value for value in chosen_bits(config, classes).bit_by_value if value not in range(1, count + 1)]
        if absent:
            raise DataError(f"--classes names {absent[0]}, but the masks have {count} pages or channels, from 1")
        self.bits = bits_by_class(config, classes)
        self.ignored = tuple(parse_values(config.ignore_index))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Record:
        image, mask = map(os.fsdecode, self.pairs[i].tolist())
        target: ImageSource = ClassChannels(mask, self.bits, self.ignored)
        if self.pages:
            files = tuple(ClassFile(mask, page) for page in self.pages)
            target = ClassMasks(files, self.bits, self.ignored)
        return {"image": image, "target": target, "name": self.name(i)}

    def name(self, i: int) -> str:
        return os.fsdecode(self.names[i].item())

    def image_folders(self) -> set[tuple[str, str]]:
        image = os.fsdecode(self.pairs[0, 0].item())
        return folder_pairs(image.removesuffix(self.name(0)), self.names)

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of the masks made from them."""
        paths = [os.fsdecode(path) for path in self.pairs.ravel().tolist()]
        return digest_of_files(paths, repr((self.bits, self.ignored, self.pages)).encode() + self.pairs.tobytes())


def class_folders(images: Path, masks: Path, config: DataConfig) -> list[Path]:
    """The folders below `masks` that hold a mask of one class for each image; none if masks lie otherwise.

    Unless --task asks for overlapping classes, the images must lie in one folder, most of them must have masks in two
    or more of the folders, and one of the first few masks must hold 0 and one other value only.
    """
    if any(_pictures_in(masks)):
        return []
    folders = [folder for folder in children(masks).values() if any(_pictures_in(folder))]
    if config.task == OVERLAPPING:
        return folders
    if len(folders) < FEWEST_FOLDERS or any(any(_pictures_in(folder)) for folder in children(images).values()):
        return []
    stems = [os.path.splitext(name)[0] for name in _pictures_in(images)]
    counts = dict.fromkeys(stems, 0)
    examples: dict[str, Path] = {}
    for folder in folders:
        for stem, file in masks_by_stem(folder, counts, config.mask_suffix).items():
            if stem in counts:
                counts[stem] += 1
                examples.setdefault(stem, folder / file)
    shared = [stem for stem, count in counts.items() if count >= FEWEST_FOLDERS]
    if 2 * len(shared) <= len(stems):
        return []
    return folders if any(_is_binary(examples[stem]) for stem in shared[:EXAMPLE_MASKS]) else []


def _pictures_in(folder: Path) -> Iterator[str]:
    """The names of the pictures that lie in a folder itself."""
    with suppress(OSError):  # the error is reported when the usual layout is read
        for entry in os.scandir(folder):
            if is_visible_file(entry.name, IMAGE_SUFFIXES):
                yield entry.name


def _is_binary(file: Path) -> bool:
    """Whether a mask holds 0 and one other value; true if it cannot be read, which is reported later."""
    try:
        values = read_mask(file, str(file))
    except DataError:
        return True
    try:
        binary(values, str(file))
    except DataError:
        return False
    return True


def open_class_folders(images: Path, folders: Sequence[Path], config: DataConfig) -> ClassFolderRecords:
    """The images with a mask in any folder. Raises DataError for files without partner, unless they are allowed."""
    image_files = files_by_stem(images, "images")
    class_masks = [masks_by_stem(folder, image_files, config.mask_suffix) for folder in folders]
    rows: list[list[str]] = []
    unpaired: list[str] = []
    for stem, image in image_files.items():
        masks = [by_stem.get(stem, "") for by_stem in class_masks]
        if any(masks):
            rows.append([image, *masks])
        else:
            unpaired.append(image_without_mask(image))
    for folder, by_stem in zip(folders, class_masks, strict=True):
        for stem, mask in by_stem.items():
            if stem not in image_files:
                unpaired.append(f"{folder.name}/{mask}: mask without image")
    check_unpaired(unpaired, len(rows), config.allow_unpaired, images)
    return ClassFolderRecords(images, folders, rows, config, unpaired)


def find_class_layout(mask: Path, image: Path, *, explicit: bool) -> ClassLayout:
    """How a file holds a mask of each class; NO_LAYOUT if it is one mask of classes.

    A file of several pages whose image has one holds a class in each, and so does an array of several channels. Three
    or four channels of 8 bits are a color, unless the task is `explicit`.
    """
    try:
        pages = page_numbers(mask) if is_tiff(mask) else []
        if len(pages) > 1:
            is_stack = is_tiff(image) and len(page_numbers(image)) > 1
            return NO_LAYOUT if is_stack else ClassLayout(pages, len(pages))
        with open_source(mask, str(mask)) as picture, image_errors(str(mask)):
            if isinstance(picture, np.ndarray):
                channels = 1 if picture.ndim < 3 else picture.shape[2]
                is_color = channels in (3, 4) and picture.dtype == np.uint8
            elif isinstance(picture, Raster):
                channels = len(picture.bands)
                is_color = channels == 3 and picture.dtype == np.uint8
            else:
                channels = 3 if picture.mode in ("RGB", "RGBA") else 1
                is_color = channels == 3
    except ImageError:
        return NO_LAYOUT
    if channels == 1 or (is_color and not explicit):
        return NO_LAYOUT
    return ClassLayout((), channels)


def open_channels(images: Path, masks: Path, layout: ClassLayout, config: DataConfig) -> ChannelRecords:
    """Images, and masks with a page or a channel for each class. DataError as in `open_class_folders`."""
    image_files = files_by_stem(images, "images")
    mask_by_stem = masks_by_stem(masks, image_files, config.mask_suffix)
    pairs, unpaired = pair_by_name(image_files, mask_by_stem)
    check_unpaired(unpaired, len(pairs), config.allow_unpaired, images)
    paths = [(str(images / image), str(masks / mask)) for image, mask in pairs]
    return ChannelRecords(paths, [image for image, _ in pairs], layout, config, unpaired)


def find_overlapping(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, for a folder with a mask for each class; empty for other folders."""
    try:
        splits = find_splits(root, named_splits)
    except DataError:
        return {}
    class_folders_by_split = {split: class_folders(images, masks, config) for split, (images, masks) in splits.items()}
    openers: SplitOpeners = {}
    if all(class_folders_by_split.values()):
        # a class has the same bit in each split
        names = {folder.name for folder in chain.from_iterable(class_folders_by_split.values())}
        for split, (images, masks) in splits.items():
            folders = [masks / name for name in sorted(names, key=natural_sort_key)]
            openers[split] = partial(open_class_folders, images, folders, config)
        return openers
    images, masks = next(iter(splits.values()))
    first_image = _first_picture(images)
    first_mask = _first_picture(masks)
    if first_image is None or first_mask is None:
        return {}
    layout = find_class_layout(first_mask, first_image, explicit=config.task == OVERLAPPING)
    if layout != NO_LAYOUT:
        for split, (images, masks) in splits.items():
            openers[split] = partial(open_channels, images, masks, layout, config)
    return openers


def _first_picture(folder: Path) -> Path | None:
    """The first picture of a folder, or of one below it, by name."""
    for parent, folders, names in walk(folder):
        folders.sort()
        pictures = sorted(name for name in names if is_visible_file(name, IMAGE_SUFFIXES))
        if pictures:
            return Path(parent, pictures[0])
    return None
