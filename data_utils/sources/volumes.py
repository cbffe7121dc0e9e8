"""Folders of volumes -> cases: the layouts of the Medical Segmentation Decathlon, of nnU-Net, images/ beside masks/."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.config import DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, VolumeFile, is_visible_file
from data_utils.image_io.tiff import is_tiff, stored_voxel_size
from data_utils.image_io.volume_formats import STACK_SUFFIXES, VOLUME_SUFFIXES, Spacing
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.files import FileRecords, FileRow, Files, Sources
from data_utils.sources.folder import DataFolder, children, files_by_stem
from data_utils.sources.pairs import Cases, find_masks, pair
from data_utils.sources.records import Metadata, Records, SplitOpeners
from data_utils.sources.spelling import composed
from data_utils.sources.walk import walk
from runtime.errors import DataError, ImageError

DESCRIPTION = "dataset.json"
SPACING = "spacing.json"


class Description(NamedTuple):
    """A dataset.json: classes, modality, how many files of one channel each image has, cases to train on.

    A case is listed as its image, or its channels, and its label: paths below their folders without extension.
    """

    classes: tuple[tuple[int, str], ...] = ()
    modality: str | None = None
    channels: int | None = None
    cases: tuple[tuple[tuple[str, ...], str], ...] | None = None


def volume_sources(row: FileRow, spacing: Spacing | None) -> Sources:
    """A volume and its label; files that hold no spacing have the one that is given."""
    label = volume_file(row.targets, spacing)._replace(grid_of=row.images[0])
    return volume_file(row.images, spacing), label


def volume_file(paths: Files, spacing: Spacing | None) -> VolumeFile:
    """The volume in a file, or in one for each channel; the spacing is for files that hold none."""
    holds_no_spacing = paths[0].lower().endswith(STACK_SUFFIXES)
    return VolumeFile(paths, spacing if holds_no_spacing else None)


def find_volumes(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its cases, from a folder of volumes with labels and without points; else empty."""
    openers: SplitOpeners = {}
    if folder.suffixes != IMAGE_SUFFIXES and not folder.points:
        for name, (images, masks) in folder.splits.items():
            openers[name] = partial(open_cases, images, masks, folder.suffixes, folder.config)
    return openers


def image_suffixes(root: Path, config: DataConfig) -> tuple[str, ...]:
    """How the names of images end: those of volumes, if the folders of a data set hold any, else those of pictures."""
    folders = children(root)
    suffixes = volume_suffixes(root, config)
    if {"imagestr", "labelstr"} <= folders.keys():
        pictures = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in STACK_SUFFIXES)
        images = folders["imagestr"]
        return IMAGE_SUFFIXES if _holds(images, pictures) and not _holds(images, suffixes) else suffixes
    return suffixes if any(_holds(folder, suffixes) for folder in folders.values()) else IMAGE_SUFFIXES


def volume_suffixes(root: Path, config: DataConfig) -> tuple[str, ...]:
    """How the names of volumes end.

    `.npy` files and TIFFs of many pages are volumes if a spacing is given, by flag or file, or `--dims 3`.
    """
    takes_stacks = config.dims == 3 or config.spacing is not None
    if takes_stacks or _spacing_file(root, *children(root).values()) is not None:
        return VOLUME_SUFFIXES + STACK_SUFFIXES
    return VOLUME_SUFFIXES


def _holds(folder: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether any file with one of these endings lies beside the first images."""
    for _, _, names in walk(folder):
        images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES + VOLUME_SUFFIXES)]
        if images:
            return any(is_visible_file(name, suffixes) for name in images)
    return False


def find_cases(images: Path, masks: Path, suffixes: tuple[str, ...], config: DataConfig) -> tuple[Cases, Description]:
    """The cases of two folders, and what a dataset.json says; if it has a list, only the cases that it lists.

    An image is CASE.ext, with its channels in the file, or CASE_0000.ext, CASE_0001.ext, ... with one channel each.
    Raises DataError for doubles and missing channels.
    """
    description_file = _description_file(masks.parent) if masks.name.lower() == "labelstr" else None
    description = Description() if description_file is None else read_description(description_file)
    image_files = files_by_stem(images, "images", suffixes)
    suffix = config.mask_suffix
    if suffix is None and description_file is not None:
        suffix = ""
    mask_by_name, others = find_masks(masks, image_files, suffix, suffixes)
    renamed_images = _renamed_images(description, image_files)
    images_by_name: dict[str, str | Files] = {**image_files, **renamed_images}
    if not renamed_images:
        images_by_name = join_channels(images, image_files, mask_by_name, description.channels)
    if description_file is None or description.cases is None:
        return Cases(images_by_name, mask_by_name, others), description
    listed = [name for _, name in description.cases]
    lost = [f"no image {name}, which {description_file.name} lists" for name in listed if name not in images_by_name]
    lost += [f"no label {name}, which {description_file.name} lists" for name in listed if name not in mask_by_name]
    names = [name for name in listed if name in images_by_name and name in mask_by_name]
    listed_images = {name: images_by_name[name] for name in names}
    return Cases(listed_images, {name: mask_by_name[name] for name in names}, lost), description


def open_cases(images: Path, masks: Path, suffixes: tuple[str, ...], config: DataConfig) -> FileRecords:
    """The cases of two folders, in natural order. Raises DataError for files without partner, unless allowed."""
    cases, description = find_cases(images, masks, suffixes, config)
    metadata = Metadata(description.classes, dims=3, modality=description.modality)
    spacing = config.spacing or read_spacing(images)
    settings = (metadata, config.allow_unpaired, volume_sources, spacing)
    return pair((images, masks), cases, *settings, is_named_by_case=True)


def _description_file(folder: Path) -> Path | None:
    """The dataset.json of a folder, or the only file that is called like it, such as MONAI's dataset_0.json."""
    if (folder / DESCRIPTION).exists():
        return folder / DESCRIPTION
    alike = list(folder.glob("dataset*.json"))
    return alike[0] if len(alike) == 1 else None


def _renamed_images(description: Description, image_files: Mapping[str, str]) -> dict[str, Files]:
    """Name of a label -> the files of its image, of the cases whose image a dataset.json calls by another name."""
    images: dict[str, Files] = {}
    for stems, name in description.cases or ():
        has_own_name = all(re.fullmatch(re.escape(name) + "(_[0-9]{4})?", stem) for stem in stems)
        if not has_own_name and all(stem in image_files for stem in stems):
            images[name] = tuple(image_files[stem] for stem in stems)
    return images


def join_channels(
    folder: Path, files: dict[str, str], names: Collection[str], count: int | None = None
) -> dict[str, str | Files]:
    """Case -> its files CASE_0000, CASE_0001, ... in a folder, unless files have the names of masks.

    Raises DataError if a file has no number or is missing. `count` is how many channels there are, None if unknown.
    """
    if count is None and not files.keys().isdisjoint(names):
        return {**files}
    cases: dict[str, dict[int, str]] = {}
    for stem, path in files.items():
        match = re.fullmatch("(.+)_([0-9]{4})", stem)
        if match is None:
            raise DataError(
                f"{folder / path} has no mask of its name, and its name does not end in a channel number such as _0000"
            )
        channels = cases.setdefault(match[1], {})
        channels[int(match[2])] = path
    expected = count or max(map(len, cases.values()))
    images_by_name: dict[str, str | Files] = {}
    for name, channels in cases.items():
        numbers = sorted(channels)
        if numbers != list(range(expected)):
            number_list = ", ".join(f"{number:04}" for number in numbers)
            first = next(iter(channels.values()))
            raise DataError(
                f"{folder / first}: its case has the channels {number_list}, but needs {expected}, from 0000 on"
            )
        images_by_name[name] = tuple(channels[number] for number in numbers)
    return images_by_name


def read_description(file: Path) -> Description:
    """A dataset.json of the Decathlon ("modality", labels {"0": name}) or of nnU-Net ("channel_names", {name: 0})."""
    content = json_of(file)
    if not isinstance(content.get("labels"), dict):
        raise DataError(f'{file} has no "labels": {{"0": "background", ...}}, as a data set of volumes has')
    labels = list(content["labels"].items())
    if all(isinstance(name, str) for _, name in labels):
        labels = [(name, value) for value, name in labels]
    classes = []
    for name, value in labels:
        if isinstance(value, list):
            raise DataError(
                f"{file}: the label {name} is a region, {value}; give each label one number here, and the regions as"
                ' --regions "whole=1+2+3;core=2+3;active=3"'
            )
        if not re.fullmatch("[0-9]{1,18}", str(value)):
            raise DataError(f"{file}: the label {name} is {repr(value)[:80]}, expected a whole number")
        if name != "ignore":  # nnU-Net's word for the value of --ignore-index
            classes.append((int(value), name))
    modalities = content.get("channel_names", content.get("modality"))
    names: list[str] = []
    if isinstance(modalities, dict):
        names = [str(name) for name in modalities.values()]
    modality = ", ".join(dict.fromkeys(names)) or None
    channels = len(names) if "channel_names" in content else None
    return Description(tuple(sorted(classes)), modality, channels, _training_cases(content, file))


def _training_cases(content: dict[str, Any], file: Path) -> tuple[tuple[tuple[str, ...], str], ...] | None:
    """The cases that a dataset.json lists to train on; None if it has no list."""
    training = content.get("training")
    if not isinstance(training, list):
        return None
    cases: list[tuple[tuple[str, ...], str]] = []
    try:
        for entry in training:
            images = entry.get("image", ())
            channels = [images] if isinstance(images, str) else images
            cases.append((tuple(map(_listed_stem, channels)), _listed_stem(entry["label"])))
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f'{file}: "training" lists something else than {{"image": ..., "label": ...}}') from error
    return tuple(cases)


def _listed_stem(path: str) -> str:
    """What a dataset.json calls a file, without its folder `imagesTr` or `labelsTr` and without its extension."""
    parts = composed(path.replace("\\", "/")).split("/")
    folders = [number for number, part in enumerate(parts) if part.lower() in ("imagestr", "labelstr")]
    return volume_stem("/".join(parts[folders[-1] + 1 :] if folders else parts[-1:]))


def voxel_size_warnings(splits: Iterable[Records]) -> tuple[str, ...]:
    """A line if the stacks of a split hold sizes of voxels, which are not read, and no others are given."""
    for records in splits:
        image = records[0]["image"] if records.dims == 3 and len(records) else None
        if not isinstance(image, VolumeFile) or image.spacing is not None or not is_tiff(image.paths[0]):
            continue
        size = ""
        with suppress(ImageError):  # inspection has named a file that cannot be read
            size = stored_voxel_size(Path(image.paths[0]))
        if size:
            return (
                f"{image.paths[0]} says that its voxels are {size} (z, y, x), which is not used: each counts as 1 mm;"
                " give --spacing Z Y X in mm, or a spacing.json",
            )
    return ()


def _spacing_file(*folders: Path) -> Path | None:
    """The spacing.json in the first of the folders that has one."""
    for folder in folders:
        file = folder / SPACING
        if os.path.exists(file):  # False where the folder cannot be read
            return file
    return None


def read_spacing(images: Path) -> Spacing | None:
    """The spacing from the spacing.json nearest to the images: beside them, or above."""
    file = _spacing_file(images, images.parent, images.parent.parent)
    if file is None:
        return None
    spacing = json_of(file, list)
    if len(spacing) != 3 or not all(isinstance(side, int | float) and side > 0 for side in spacing):
        raise DataError(f"{file} holds {str(spacing)[:80]}, expected [z, y, x] in mm")
    z, y, x = map(float, spacing)
    return z, y, x
