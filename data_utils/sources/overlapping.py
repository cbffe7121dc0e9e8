"""Records whose classes may overlap: a folder, a page or a channel for each class, or the objects of annotations."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.bits import MOST_CLASSES
from data_utils.class_names import NamedClasses, is_background, named_classes
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.class_masks import (
    ClassMasks,
    LayeredMask,
    ObjectBits,
    layered_label,
)
from data_utils.image_io.formats import IMAGE_SUFFIXES, ClassLayers, PageFile, VolumeFile, image_errors, is_visible_file
from data_utils.image_io.rasters import Raster
from data_utils.image_io.reader import open_source
from data_utils.image_io.tiff import is_tiff, page_numbers
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed_image import WindowedArray
from data_utils.mask_values import parse_values
from data_utils.sources.files import FileRecords, FileRow, Files, Sources
from data_utils.sources.folder import DataFolder, children, files_by_stem, natural_sort_key
from data_utils.sources.pairs import Cases, find_masks, find_pictures, pair
from data_utils.sources.records import Metadata, Record, Records, SplitOpeners, change
from data_utils.sources.volumes import join_channels, read_spacing, volume_file
from data_utils.sources.walk import walk
from runtime.errors import DataError, ImageError
from unet.config import MaskValue

FEWEST_FOLDERS = 2  # the least number of folders in which most images have a mask


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


def as_objects(records: Records, config: DataConfig) -> Records:
    """The records of annotations, whose objects keep parts below other objects. Raises DataError if masks are files."""
    if not isinstance(records[0]["target"], LayeredMask):
        raise DataError(
            f"--task {OVERLAPPING}: {config.dataset} has one mask for each image; give a folder of masks for each"
            f" class (masks/<class>/NAME.png), masks with a page or channel for each, COCO, labelme or YOLO files,"
            ' or --regions "whole=1+2;core=2"'
        )
    bits = tuple(chosen_bits(config, records.metadata.classes).bit_by_value.items())
    return change(records, f"{OVERLAPPING} {bits}", partial(_with_object_bits, bits=bits), task=OVERLAPPING)


def _with_object_bits(record: Record, bits: tuple[tuple[MaskValue, int], ...]) -> Record:
    mask = record["target"]
    assert isinstance(mask, LayeredMask)
    return {**record, "target": ObjectBits(mask, bits)}


def class_file_sources(row: FileRow, bits: tuple[int | None, ...], ignored: tuple[MaskValue, ...]) -> Sources:
    """An image, and the mask of each class from a file of its own."""
    return row.images[0], ClassMasks(tuple(map(PageFile, row.targets)), bits, ignored)


def class_page_sources(
    row: FileRow, pages: tuple[int, ...], bits: tuple[int | None, ...], ignored: tuple[MaskValue, ...]
) -> Sources:
    """An image, and the mask of each class from a page of one file, or from a channel where there are no `pages`."""
    (mask,) = row.targets
    files = tuple(PageFile(mask, page) for page in pages) or (PageFile(mask),)
    return row.images[0], ClassMasks(files, bits, ignored)


def class_volume_sources(
    row: FileRow, bits: tuple[int | None, ...], ignored: tuple[MaskValue, ...], spacing: Spacing | None
) -> Sources:
    """A volume, and the label of each class from a file of its own."""
    return volume_file(row.images, spacing), layered_label(row.targets, bits, ignored)


class ClassLayout(NamedTuple):
    """How a file holds a mask of each class.

    Args:
        pages: the number of each class's page; empty if the masks are channels.
        class_count: how many classes there are; 0 where the file is one mask of classes.
    """

    pages: tuple[int, ...]
    class_count: int


NO_LAYOUT = ClassLayout((), 0)


def class_folders(images: Path, masks: Path, suffixes: tuple[str, ...], config: DataConfig) -> list[str]:
    """The names of the folders below `masks` that hold a mask of one class for each image; none if masks lie otherwise.

    Unless --task asks for overlapping classes, the images must lie in one folder, and most pictures must have masks in
    two or more of the folders.
    """
    if any(_files_in(masks, suffixes)):
        return []
    folders = [folder for folder in children(masks).values() if any(_files_in(folder, suffixes))]
    names = [folder.name for folder in folders]
    if config.task == OVERLAPPING:
        return names
    if len(folders) < FEWEST_FOLDERS or any(any(_files_in(folder, suffixes)) for folder in children(images).values()):
        return []
    if suffixes != IMAGE_SUFFIXES:
        return names
    counts = {os.path.splitext(name)[0]: 0 for name in _files_in(images, suffixes)}
    for folder in folders:
        mask_files, _ = find_masks(folder, counts, config.mask_suffix)
        for stem in mask_files:
            if stem in counts:
                counts[stem] += 1
    shared = sum(count >= FEWEST_FOLDERS for count in counts.values())
    return names if 2 * shared > len(counts) else []


def _files_in(folder: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    """The names of the files with these endings that lie in a folder itself."""
    with suppress(OSError):  # the error is reported when the usual layout is read
        for entry in os.scandir(folder):
            if is_visible_file(entry.name, suffixes):
                yield entry.name


def open_class_folders(
    images: Path, masks: Path, names: Sequence[str], suffixes: tuple[str, ...], config: DataConfig
) -> FileRecords:
    """The images with a mask in any of the folders of classes. DataError for files without partner, unless allowed."""
    image_files = files_by_stem(images, "images", suffixes)
    no_files = ("",) * len(names)
    masks_by_stem: dict[str, Files] = {}
    for number, name in enumerate(names):
        if not (masks / name).is_dir():  # another split has the class
            continue
        mask_files, _ = find_masks(masks / name, image_files, config.mask_suffix, suffixes)
        for stem, file in mask_files.items():
            files = masks_by_stem.get(stem, no_files)
            masks_by_stem[stem] = (*files[:number], f"{name}/{file}", *files[number + 1 :])
    classes = tuple(enumerate(names, 1))
    metadata = Metadata(classes, task=OVERLAPPING)
    settings = (bits_by_class(config, classes), tuple(parse_values(config.ignore_index)))
    if suffixes == IMAGE_SUFFIXES:
        cases = Cases(image_files, masks_by_stem)
        return pair((images, masks), cases, metadata, config.allow_unpaired, class_file_sources, *settings)
    cases = Cases(join_channels(images, image_files, masks_by_stem), masks_by_stem)
    spacing = config.spacing or read_spacing(images)
    sources = (class_volume_sources, *settings, spacing)
    metadata = replace(metadata, dims=3)
    return pair((images, masks), cases, metadata, config.allow_unpaired, *sources, is_named_by_case=True)


def find_class_layout(mask: Path, image: Path, *, explicit: bool) -> ClassLayout:
    """How a file holds a mask of each class; NO_LAYOUT if it is one mask of classes.

    A file of several pages whose image has one holds a class in each, and so does an array of several channels. Three
    or four channels of 8 bits are a color, unless the task is `explicit`.
    """
    try:
        pages = page_numbers(mask) if is_tiff(mask) else []
        if len(pages) > 1:
            is_stack = is_tiff(image) and len(page_numbers(image)) > 1
            return NO_LAYOUT if is_stack else ClassLayout(tuple(pages), len(pages))
        with open_source(mask, str(mask)) as picture, image_errors(str(mask)):
            if isinstance(picture, WindowedArray):
                channels = 1 if picture.array.ndim < 3 else picture.array.shape[2]
                is_color = channels in (3, 4) and picture.array.dtype == np.uint8
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


def open_channels(images: Path, masks: Path, layout: ClassLayout, config: DataConfig) -> FileRecords:
    """Images, and masks with a page or a channel for each class. DataError as in `open_class_folders`."""
    cases = find_pictures(images, masks, config)
    classes = numbered_classes(layout.class_count)
    absent = [value for value in chosen_bits(config, classes).bit_by_value if value not in dict(classes)]
    if absent:
        raise DataError(f"--classes names {absent[0]}, but the masks have {len(classes)} pages or channels, from 1")
    metadata = Metadata(classes, task=OVERLAPPING)
    settings = (layout.pages, bits_by_class(config, classes), tuple(parse_values(config.ignore_index)))
    return pair((images, masks), cases, metadata, config.allow_unpaired, class_page_sources, *settings)


def numbered_classes(count: int) -> NamedClasses:
    """The classes of pages or channels."""
    return tuple((value, f"class {value}") for value in range(1, count + 1))


def divide_by_channel(records: Records, config: DataConfig) -> Records:
    """The records, with a class for each channel of their labels if they are volumes whose labels have several."""
    may_overlap = config.task in (None, OVERLAPPING) and records.metadata.task is None
    if records.dims != 3 or records.metadata.landmarks is not None or not may_overlap or not len(records):
        return records
    record = records[0]
    try:
        channels = read_volume_header(record["target"], record["name"]).channels
    except DataError:  # the error is reported where all labels are read
        return records
    if channels == 1:
        return records
    classes = numbered_classes(channels)
    layers = ClassLayers(bits_by_class(config, classes), ignored=tuple(parse_values(config.ignore_index)))
    apply = partial(_with_layers, layers=layers)
    return change(records, f"{OVERLAPPING} {layers}", apply, classes=classes, task=OVERLAPPING)


def _with_layers(record: Record, layers: ClassLayers) -> Record:
    label = record["target"]
    assert isinstance(label, VolumeFile)
    return {**record, "target": label._replace(layers=layers)}


def find_channels(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, for masks with a page or a channel for each class; else empty."""
    if not folder.splits or not folder.may_overlap:
        return {}
    images, masks = next(iter(folder.splits.values()))
    first_image = _first_picture(images)
    first_mask = _first_picture(masks)
    if first_image is None or first_mask is None:
        return {}
    layout = find_class_layout(first_mask, first_image, explicit=folder.config.task == OVERLAPPING)
    openers: SplitOpeners = {}
    if layout != NO_LAYOUT:
        for split, (images, masks) in folder.splits.items():
            openers[split] = partial(open_channels, images, masks, layout, folder.config)
    return openers


def find_class_folders(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, for splits with a folder of masks for each class; else empty."""
    if not folder.splits or folder.points or not folder.may_overlap:
        return {}
    names_by_split: list[list[str]] = []
    for images, masks in folder.splits.values():
        names_by_split.append(class_folders(images, masks, folder.suffixes, folder.config))
    if not all(names_by_split):
        return {}
    # a class has the same bit in each split
    names = sorted(set(chain.from_iterable(names_by_split)), key=natural_sort_key)
    openers: SplitOpeners = {}
    for split, (images, masks) in folder.splits.items():
        openers[split] = partial(open_class_folders, images, masks, names, folder.suffixes, folder.config)
    return openers


def _first_picture(folder: Path) -> Path | None:
    """The first picture of a folder, or of one below it, by name."""
    for parent, folders, names in walk(folder):
        folders.sort()
        pictures = sorted(name for name in names if is_visible_file(name, IMAGE_SUFFIXES))
        if pictures:
            return Path(parent, pictures[0])
    return None
