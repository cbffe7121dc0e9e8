"""Records whose classes may overlap: a folder, a page or a channel for each class, or the objects of annotations."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from data_utils.bits import MOST_CLASSES
from data_utils.class_names import NamedClasses, is_background, named_classes
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.class_masks import ClassMasks, layered_label
from data_utils.image_io.formats import ClassLayers, PageFile, VolumeFile
from data_utils.image_io.reader import IMAGE_SUFFIXES, open_source
from data_utils.image_io.tiff import is_tiff, page_numbers
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import count_label_channels, volume_stem
from data_utils.mask_values import parse_values
from data_utils.sources.annotations.drawn import DrawnMask
from data_utils.sources.folder import (
    MASK_WORDS,
    DataFolder,
    children,
    files_below,
    files_by_stem,
    files_in,
    holds_files,
    natural_order,
    natural_sort_key,
    split_folders,
)
from data_utils.sources.pairs import Cases, find_masks, pair
from data_utils.sources.pictures import find_pictures
from data_utils.sources.records import (
    FileRow,
    Files,
    Metadata,
    Record,
    Records,
    Sources,
    SplitOpeners,
    change,
    split_openers,
)
from data_utils.sources.volumes import join_channels, read_spacing, volume_file, volume_suffixes
from runtime.errors import DataError, ImageError
from unet.config import MaskValue

LOOKED_AT = 5  # folders by which a layout is recognized
FEWEST_FOLDERS = 2  # the least number of folders in which most images have a mask


ClassNumbers = tuple[int | None, ...]  # the bit of each class of a data set; None for a class that is left out


def class_bits(classes: NamedClasses) -> dict[MaskValue, int]:
    """The bit of each mask value of named classes, except the background; values of one name share a bit.

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
    return bit_by_value


def chosen_bits(config: DataConfig, classes: NamedClasses) -> dict[MaskValue, int]:
    """The bits of the mask values of a data set's classes, or of the classes that --classes names."""
    return class_bits(named_classes(config.classes, classes, config.outside_rule))


def bits_by_class(config: DataConfig, classes: NamedClasses) -> ClassNumbers:
    """The bit of each class of a data set, in their order."""
    bit_by_value = chosen_bits(config, classes)
    return tuple(bit_by_value.get(value) for value, _ in classes)


def as_objects(records: Records, config: DataConfig) -> Records:
    """The records of annotations, whose objects keep parts below other objects. Raises DataError if masks are files."""
    if not isinstance(records[0]["target"], DrawnMask):
        raise DataError(
            f"--task {OVERLAPPING}: {config.dataset} has one mask for each image; give a folder of masks for each"
            f" class (masks/<class>/NAME.png), masks with a page or channel for each, COCO, labelme or YOLO files,"
            ' or --regions "whole=1+2;core=2"'
        )
    bits = tuple(chosen_bits(config, records.metadata.classes).items())
    return change(records, f"{OVERLAPPING} {bits}", partial(_with_object_bits, bits=bits), task=OVERLAPPING)


def _with_object_bits(record: Record, bits: tuple[tuple[MaskValue, int], ...]) -> Record:
    mask = record["target"]
    assert isinstance(mask, DrawnMask)
    return {**record, "target": replace(mask, bits=bits)}


def class_sources(
    row: FileRow, pages: Sequence[int | None], bits: ClassNumbers, ignored: tuple[MaskValue, ...]
) -> Sources:
    """An image, and the mask of each class from a file of its own, or from a page or channel of the only file."""
    if len(row.targets) == 1:
        return row.images[0], ClassMasks(tuple(PageFile(row.targets[0], page) for page in pages), bits, ignored)
    return row.images[0], ClassMasks(tuple(map(PageFile, row.targets)), bits, ignored)


def class_volume_sources(
    row: FileRow, bits: ClassNumbers, ignored: tuple[MaskValue, ...], spacing: Spacing | None
) -> Sources:
    """A volume, and the label of each class from a file of its own."""
    return volume_file(row.images, spacing), layered_label(row.targets, bits, ignored)


def _pair_classes(
    folders: tuple[Path, Path],
    images: Mapping[str, str | Files],
    masks: Mapping[str, Mapping[str, str]],
    lost: Sequence[str],
    names: Sequence[str],
    suffixes: tuple[str, ...],
    config: DataConfig,
) -> Records:
    """The images of cases with the masks of named classes: case -> class -> file. `lost` are lines on other cases.

    Raises DataError for files without partner, unless allowed.
    """
    files_by_case: dict[str, Files] = {}
    for case, file_by_class in masks.items():
        files_by_case[case] = tuple(file_by_class.get(name, "") for name in names)
    cases = Cases(images, files_by_case, lost)
    classes = tuple(enumerate(names, 1))
    bits = bits_by_class(config, classes)
    ignored = tuple(parse_values(config.ignore_index))
    if suffixes == IMAGE_SUFFIXES:
        metadata = Metadata(classes, task=OVERLAPPING)
        sources = partial(class_sources, pages=(None,), bits=bits, ignored=ignored)
        return pair(folders, cases, metadata, config.allow_unpaired, sources)
    metadata = Metadata(classes, dims=3, task=OVERLAPPING)
    spacing = config.spacing or read_spacing(folders[0])
    sources = partial(class_volume_sources, bits=bits, ignored=ignored, spacing=spacing)
    return pair(folders, cases, metadata, config.allow_unpaired, sources, is_named_by_case=True)


def find_class_folders(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, for splits with a folder of masks for each class; else empty."""
    if not folder.splits or not folder.may_overlap:
        return {}
    names_by_split: list[list[str]] = []
    for images, masks in folder.splits.values():
        names_by_split.append(class_folders(images, masks, folder.suffixes, folder.config))
    if not all(names_by_split):
        return {}
    return split_openers(folder.splits, open_class_folders, _all_names(names_by_split), folder.suffixes, folder.config)


def _all_names(names: Iterable[Iterable[str]]) -> list[str]:
    """The classes of all splits, so that a class has the same bit in each."""
    return natural_order(set(chain.from_iterable(names)))


def class_folders(images: Path, masks: Path, suffixes: tuple[str, ...], config: DataConfig) -> list[str]:
    """The names of the folders below `masks` that hold a mask of one class for each image; none if masks lie otherwise.

    Unless --task asks for overlapping classes, the images must lie in one folder, and most pictures must have masks in
    two or more of the folders.
    """
    if holds_files(masks, suffixes):
        return []
    folders = [folder for folder in children(masks).values() if holds_files(folder, suffixes)]
    names = [folder.name for folder in folders]
    if config.task == OVERLAPPING:
        return names
    if len(folders) < FEWEST_FOLDERS or any(holds_files(folder, suffixes) for folder in children(images).values()):
        return []
    if suffixes != IMAGE_SUFFIXES:
        return names
    stems = {volume_stem(name) for name in files_in(images, suffixes)}
    counts: Counter[str] = Counter()
    for folder in folders:
        mask_files, _ = find_masks(folder, stems, config.mask_suffix)
        counts.update(stems & mask_files.keys())
    shared = sum(count >= FEWEST_FOLDERS for count in counts.values())
    return names if 2 * shared > len(stems) else []


def open_class_folders(
    images: Path, masks: Path, names: Sequence[str], suffixes: tuple[str, ...], config: DataConfig
) -> Records:
    """The images with a mask in any of the folders of classes. DataError for files without partner, unless allowed."""
    image_files = files_by_stem(images, "images", suffixes)
    masks_by_stem: dict[str, dict[str, str]] = {}
    for name in names:
        if (masks / name).is_dir():  # else another split has the class
            mask_files, _ = find_masks(masks / name, image_files, config.mask_suffix, suffixes)
            for stem, file in mask_files.items():
                masks_by_stem.setdefault(stem, {})[name] = f"{name}/{file}"
    files: Mapping[str, str | Files] = image_files
    if suffixes != IMAGE_SUFFIXES:
        files = join_channels(images, image_files, masks_by_stem)
    return _pair_classes((images, masks), files, masks_by_stem, (), names, suffixes, config)


def find_class_files(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, for cases with a volume and a folder of masks, one for each class.

    Empty for other layouts. Raises DataError if the task is another than that of classes that may overlap.
    """
    folders = split_folders(folder.root, folder.named_splits)
    if not all(map(_holds_mask_folders, folders.values())):
        return {}
    suffixes = volume_suffixes(folder.root, folder.config)
    cases = {split: _cases_of_class_files(path, suffixes) for split, path in folders.items()}
    if not any(images for images, _, _ in cases.values()):
        return {}
    if not folder.may_overlap:
        raise DataError(f"--task {folder.config.task}: each case has a folder with a mask for each class; leave it out")
    names = _all_names(chain.from_iterable(masks.values() for _, masks, _ in cases.values()))
    located = {split: ((path, path), *cases[split]) for split, path in folders.items()}
    return split_openers(located, _pair_classes, names, suffixes, folder.config)


def _holds_mask_folders(folder: Path) -> bool:
    """Whether each of the first folders in a folder holds a folder of masks, which alone has such a name."""
    cases = list(children(folder).values())[:LOOKED_AT]
    return bool(cases) and all(_mask_folder(case) is not None for case in cases)


def _mask_folder(case: Path) -> Path | None:
    """The only folder of a case that is called like masks."""
    folders = [path for name, path in children(case).items() if re.fullmatch(MASK_WORDS, name)]
    return folders[0] if len(folders) == 1 else None


def _cases_of_class_files(
    folder: Path, suffixes: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, dict[str, str]], list[str]]:
    """The volume of each case that has exactly one, its masks, case -> class -> file, and lines on other cases."""
    images: dict[str, str] = {}
    masks: dict[str, dict[str, str]] = {}
    lost: list[str] = []
    for case in sorted(children(folder).values(), key=lambda path: natural_sort_key(path.name)):
        names = files_in(case, suffixes)
        if len(names) != 1:
            lost.append(f"{case.name}: has not exactly one volume")
            continue
        images[case.name] = f"{case.name}/{names[0]}"
        mask_folder = _mask_folder(case)
        if mask_folder is not None:
            for name in files_in(mask_folder, suffixes):
                files = masks.setdefault(case.name, {})
                files[volume_stem(name)] = f"{case.name}/{mask_folder.name}/{name}"
    return images, masks, lost


# the page of each class in a file of masks; None for channels; empty for one mask of classes
ClassPages = tuple[int | None, ...]


def find_channels(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its records, for masks with a page or a channel for each class; else empty."""
    if not folder.splits or not folder.may_overlap:
        return {}
    images, masks = next(iter(folder.splits.values()))
    image = next(files_below(images, IMAGE_SUFFIXES, strict=False), None)
    mask = next(files_below(masks, IMAGE_SUFFIXES, strict=False), None)
    if image is None or mask is None:
        return {}
    pages = find_class_pages(masks / mask, images / image, explicit=folder.config.task == OVERLAPPING)
    return split_openers(folder.splits if pages else {}, open_channels, pages, folder.config)


def find_class_pages(mask: Path, image: Path, *, explicit: bool) -> ClassPages:
    """How a file holds a mask of each class.

    A file of several pages whose image has one holds a class in each, and so does an array of several channels. Three
    or four channels of 8 bits are a color, unless the task is `explicit`.
    """
    try:
        pages = page_numbers(mask) if is_tiff(mask) else []
        if len(pages) > 1:
            is_stack = is_tiff(image) and len(page_numbers(image)) > 1
            return () if is_stack else tuple(pages)
        with open_source(mask, kind="mask") as picture:
            row = picture.pixels(picture.rows(0, 1))
            is_picture = picture.format != ""
            is_single = row.ndim < 3 or (is_picture and picture.mode not in ("RGB", "RGBA"))
    except ImageError:
        return ()
    channels = 1 if is_single else row.shape[2]
    is_color = channels in (3, 4) and (row.dtype == np.uint8 or is_picture)
    if channels == 1 or (is_color and not explicit):
        return ()
    return (None,) * channels


def open_channels(images: Path, masks: Path, pages: ClassPages, config: DataConfig) -> Records:
    """Images, and masks with a page or a channel for each class. DataError as in `open_class_folders`."""
    classes = tuple((value, f"class {value}") for value in range(1, len(pages) + 1))
    absent = [value for value in chosen_bits(config, classes) if value not in dict(classes)]
    if absent:
        raise DataError(f"--classes names {absent[0]}, but the masks have {len(classes)} pages or channels, from 1")
    cases = find_pictures(images, masks, config)
    metadata = Metadata(classes, task=OVERLAPPING)
    sources = partial(
        class_sources,
        pages=(None,) if None in pages else pages,
        bits=bits_by_class(config, classes),
        ignored=tuple(parse_values(config.ignore_index)),
    )
    return pair((images, masks), cases, metadata, config.allow_unpaired, sources)


def divide_by_channel(records: Records, config: DataConfig) -> Records:
    """The records, with a class for each channel of their labels if they are volumes whose labels have several."""
    may_overlap = config.task in (None, OVERLAPPING) and records.metadata.task is None
    if records.dims != 3 or records.metadata.landmarks is not None or not may_overlap or not len(records):
        return records
    try:
        channels = count_label_channels(records[0]["target"], records.name(0))
    except DataError:  # the error is reported where all labels are read
        return records
    if channels == 1:
        return records
    classes = tuple((value, f"class {value}") for value in range(1, channels + 1))
    layers = ClassLayers(bits_by_class(config, classes), ignored=tuple(parse_values(config.ignore_index)))
    apply = partial(_with_layers, layers=layers)
    return change(records, f"{OVERLAPPING} {layers}", apply, classes=classes, task=OVERLAPPING)


def _with_layers(record: Record, layers: ClassLayers) -> Record:
    label = record["target"]
    assert isinstance(label, VolumeFile)
    return {**record, "target": label._replace(layers=layers)}
