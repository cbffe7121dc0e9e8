"""Folders of volumes -> cases: the layouts of the Medical Segmentation Decathlon, of nnU-Net, images/ beside masks/."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import EmbeddedImage, VolumeFile, is_visible_file
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import STACK_SUFFIXES, VOLUME_SUFFIXES, Spacing
from data_utils.image_io.volumes import check_grids, read_label_volume, read_volume, read_volume_header, volume_stem
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.folder import (
    DECATHLON_IMAGES,
    DECATHLON_LABELS,
    DataFolder,
    children,
    composed,
    files_by_stem,
    walk,
)
from data_utils.sources.pairs import Cases, find_masks, pair
from data_utils.sources.records import (
    FileRow,
    Files,
    Metadata,
    Record,
    Records,
    Sources,
    SplitOpeners,
    divide,
    split_openers,
)
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError, ImageError
from runtime.parallel import map_indices

DESCRIPTION = "dataset.json"
SPACING = "spacing.json"
TRAINING, VALIDATION = "training", "validation"  # keys of lists of cases in a dataset.json
FILES_BY_CASE = "dataset"  # the key of nnU-Net's list, {case: {"images": [...], "label": ...}}


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
        if any(name.lower().endswith(IMAGE_SUFFIXES + VOLUME_SUFFIXES) for name in names):
            return any(is_visible_file(name, suffixes) for name in names)
    return False


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


def _spacing_file(*folders: Path) -> Path | None:
    """The spacing.json in the first of the folders that has one."""
    for folder in folders:
        file = folder / SPACING
        if os.path.exists(file):  # False where the folder cannot be read
            return file
    return None


def find_volumes(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its cases, from a folder of volumes with labels; else empty."""
    if folder.suffixes == IMAGE_SUFFIXES:
        return {}
    splits: dict[str, tuple[Path, Path, str]] = {}
    for name, (images, masks) in folder.splits.items():
        splits[name] = images, masks, TRAINING if name == "train" else VALIDATION
        if len(folder.splits) == 1 and _lists_validation(masks, folder.suffixes):
            splits["val"] = images, masks, VALIDATION
    return split_openers(splits, _open_folders, folder.suffixes, folder.config)


def _lists_validation(masks: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a dataset.json lists labels of a folder for validation; those of labelsVa may not be given away yet."""
    file = _description_file(masks)
    if file is None:
        return False
    cases = read_description(file, VALIDATION).cases or ()
    labels = files_by_stem(masks, "masks", suffixes)
    return any(label in labels for _, label in cases)


def _open_folders(images: Path, masks: Path, key: str, suffixes: tuple[str, ...], config: DataConfig) -> Records:
    """The cases of two folders; if a dataset.json has a list of this key, only the cases that it lists.

    An image is CASE.ext, with its channels in the file, or CASE_0000.ext, CASE_0001.ext, ... with one channel each.
    Raises DataError for doubles and missing channels and, unless allowed, for files without partner.
    """
    description = Description()
    suffix = config.mask_suffix
    file = _description_file(masks)
    if file is not None:
        description = read_description(file, key)
        suffix = suffix or ""
    image_files = files_by_stem(images, "images", suffixes)
    masks_by_name, others = find_masks(masks, image_files, suffix, suffixes)
    images_by_name: dict[str, str | Files] = {**image_files}
    renamed = _renamed_images(description, image_files)
    if renamed:
        images_by_name |= renamed
    else:
        images_by_name = join_channels(images, image_files, masks_by_name, description.channels)
    cases = Cases(images_by_name, masks_by_name, others)
    if file is not None and description.cases is not None:
        listed = [name for _, name in description.cases]
        lost = [f"{name}: no image, but {file.name} lists it" for name in listed if name not in images_by_name]
        lost += [f"{name}: no label, but {file.name} lists it" for name in listed if name not in masks_by_name]
        names = [name for name in listed if name in images_by_name and name in masks_by_name]
        listed_images = {name: images_by_name[name] for name in names}
        cases = Cases(listed_images, {name: masks_by_name[name] for name in names}, lost)
    elif file is not None and key == TRAINING and "labelsva" not in children(masks.parent):  # the other cases train
        for _, name in read_description(file, VALIDATION).cases or ():
            images_by_name.pop(name, None)
            masks_by_name.pop(name, None)
    metadata = Metadata(description.classes, dims=3, modality=description.modality)
    return open_volumes((images, masks), cases, metadata, config)


def open_volumes(folders: tuple[Path, Path], cases: Cases, metadata: Metadata, config: DataConfig) -> Records:
    """The volumes of cases, in natural order. Raises DataError for files without partner, unless allowed."""
    sources = partial(volume_sources, spacing=config.spacing or read_spacing(folders[0]))
    return pair(folders, cases, metadata, config.allow_unpaired, sources, is_named_by_case=True)


def volume_sources(row: FileRow, spacing: Spacing | None) -> Sources:
    """A volume and its label; files that hold no spacing have the one that is given."""
    image = volume_file(row.images, spacing)
    return image, volume_file(row.targets, spacing)._replace(grid_of=image)


def volume_file(paths: Files, spacing: Spacing | None) -> VolumeFile:
    """The volume in a file, or in one for each channel; the spacing is for files that hold none."""
    holds_no_spacing = paths[0].lower().endswith(STACK_SUFFIXES)
    return VolumeFile(paths, spacing if holds_no_spacing else None)


def join_channels(
    folder: Path, files: dict[str, str], names: Collection[str], count: int | None = None
) -> dict[str, str | Files]:
    """Case -> its files CASE_0000, CASE_0001, ... in a folder, unless files have the names of masks.

    Raises DataError if a file has no number or is missing. `count` is how many channels there are, None if unknown.
    """
    if not files.keys().isdisjoint(names):
        return {**files}
    cases: dict[str, dict[int, str]] = {}
    for stem, path in files.items():
        match = re.fullmatch("(.+)_([0-9]{4})", stem)
        if match is None:
            raise DataError(
                f"{folder / path} has no mask of its name, and its name does not end in a channel number such as _0000"
            )
        cases.setdefault(match[1], {})[int(match[2])] = path
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


class Description(NamedTuple):
    """A dataset.json: classes, modality, how many files of one channel each image has, cases to train on.

    A case is listed as its image, or its channels, and its label: paths below their folders without extension.
    """

    classes: tuple[tuple[int, str], ...] = ()
    modality: str | None = None
    channels: int | None = None
    cases: tuple[tuple[tuple[str, ...], str], ...] | None = None


def _description_file(masks: Path) -> Path | None:
    """The dataset.json beside labelsTr or labelsVa, or the only file of such a name, as MONAI's dataset_0.json."""
    folder = masks.parent
    if masks.name.lower() not in DECATHLON_LABELS:
        return None
    if (folder / DESCRIPTION).exists():
        return folder / DESCRIPTION
    alike = list(folder.glob("dataset*.json"))
    return alike[0] if len(alike) == 1 else None


def _renamed_images(description: Description, image_files: Mapping[str, str]) -> dict[str, Files]:
    """Name of a label -> the files of its image, of the cases whose image a dataset.json calls by another name.

    Raises DataError for a label of two images.
    """
    images: dict[str, Files] = {}
    for stems, name in description.cases or ():
        has_own_name = all(re.fullmatch(re.escape(name) + "(_[0-9]{4})?", stem) for stem in stems)
        if not has_own_name and all(stem in image_files for stem in stems):
            files = tuple(image_files[stem] for stem in stems)
            if images.setdefault(name, files) != files:
                raise DataError(
                    f"{DESCRIPTION} lists {images[name][0]} and {files[0]} with the label {name}; give each image a"
                    " label of its own, a copy"
                )
    return images


def read_description(file: Path, key: str = TRAINING) -> Description:
    """A dataset.json of the Decathlon ("modality", labels {"0": name}) or of nnU-Net ("channel_names", {name: 0}).

    Args:
        key: that of the list of cases; MONAI lists those for validation too.
    """
    content = json_of(file)
    if not isinstance(content.get("labels"), dict):
        raise DataError(f'{file} has no "labels": {{"0": "background", ...}}, as a data set of volumes has')
    labels = list(content["labels"].items())
    if all(isinstance(name, str) for _, name in labels):
        labels = [(name, value) for value, name in labels]
    classes: list[tuple[int, str]] = []
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
    names = list(map(str, modalities.values())) if isinstance(modalities, dict) else []
    modality = ", ".join(dict.fromkeys(names)) or None
    channels = len(names) if "channel_names" in content else None
    description = Description(tuple(sorted(classes)), modality, channels)
    entries = content.get(key)
    by_case = content.get(FILES_BY_CASE)
    if not entries and key == TRAINING and isinstance(by_case, dict):
        entries = list(by_case.values())
    if not entries or not isinstance(entries, list):
        return description
    if key == VALIDATION and not (isinstance(entries[0], dict) and "label" in entries[0]):
        return description  # images of a challenge, whose labels are not given away
    cases: list[tuple[tuple[str, ...], str]] = []
    try:
        for entry in entries:
            images = entry.get("image", entry.get("images", ()))
            files = [images] if isinstance(images, str) else images
            cases.append((tuple(map(_listed_stem, files)), _listed_stem(entry["label"])))
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f'{file}: "{key}" lists something else than {{"image": ..., "label": ...}}') from error
    return description._replace(cases=tuple(cases))


def _listed_stem(path: str) -> str:
    """What a dataset.json calls a file, without its folder, such as `imagesTr`, and without its extension."""
    parts = composed(path.replace("\\", "/")).split("/")
    folders = [number for number, part in enumerate(parts) if part.lower() in DECATHLON_IMAGES + DECATHLON_LABELS]
    return volume_stem("/".join(parts[folders[-1] + 1 :] if folders else parts[-1:]))


@dataclass(frozen=True)
class VolumeSlice(EmbeddedImage):
    """A slice of a volume, counted along z from 0, in RAS orientation: rows from posterior, columns from left."""

    volume: VolumeFile
    z: int
    is_label: bool

    def render(self) -> np.ndarray:
        """(H, W, C), or (H, W) mask values."""
        return _voxels(self.volume, self.is_label)[self.z]


@lru_cache(maxsize=4)  # an image and a label in two threads: slices of one volume are mostly read together
def _voxels(volume: VolumeFile, is_label: bool) -> np.ndarray:
    read = read_label_volume if is_label else read_volume
    return read(volume, volume.paths[0])[0]


def divide_into_slices(volumes: Records) -> Records:
    """Every slice of the volumes, called <case>_<number>; how many there are is read from headers, and cached."""
    key = volumes.digest and digest("slices", volumes.digest)
    depths = load_or_compute(key, lambda: list(map_indices(lambda i: _depth(volumes[i]), len(volumes))))
    indices = np.repeat(np.arange(len(volumes)), depths)
    numbers = np.concatenate([np.arange(depth) for depth in depths])
    return divide(volumes, indices, numbers[:, None], _slice, dims=2)


def _depth(record: Record) -> int:
    """The number of slices of a volume. Raises DataError if image and label do not lie on each other."""
    name = record["name"]
    try:
        image = read_volume_header(record["image"], name)
        label = read_volume_header(record["target"], name)
    except ImageError:
        return 1  # the error is reported when the slice is read
    check_grids(name, image, label)
    return image.size[0]


def _slice(record: Record, part: Sequence[int]) -> Record:
    """A slice of a volume and of its label; a part is the index along z."""
    image = record["image"]
    mask = record["target"]
    assert isinstance(image, VolumeFile)
    assert isinstance(mask, VolumeFile)
    (z,) = part
    name = f"{record['name']}_{z + 1:04}"
    return {**record, "image": VolumeSlice(image, z, False), "target": VolumeSlice(mask, z, True), "name": name}
