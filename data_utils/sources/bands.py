"""Images made of chosen bands of TIFF files, and images whose bands are a file each."""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import (
    IMAGE_SUFFIXES,
    TIFF_SUFFIXES,
    BandSource,
    ImageSource,
    PageFile,
    WindowSource,
    page_file,
)
from data_utils.image_io.rasters import band_indices
from data_utils.image_io.tiff import is_tiff
from data_utils.sources.annotations.layout import holds_pictures
from data_utils.sources.files import FileRecords, FileRow, Files, Sources
from data_utils.sources.folder import files_by_stem
from data_utils.sources.pairs import Cases, find_masks, pair
from data_utils.sources.records import Metadata, Record, Records, change
from runtime.console import listing
from runtime.errors import DataError
from unet.config import Preprocess

SEPARATORS = re.compile("[_. -]")  # between the words of a name
OTHER_SUFFIXES = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in TIFF_SUFFIXES)


def with_bands(source: ImageSource, bands: Sequence[str]) -> ImageSource:
    """The source of an image with some bands only; with all bands if none are named."""
    if not bands:
        return source
    if isinstance(source, BandSource):
        return source._replace(bands=tuple(bands))
    file = page_file(source)
    if file is not None:
        return BandSource((str(file.path),), tuple(bands), file.page or 0)
    raise DataError("--bands chooses bands of TIFF files, and these images are none; leave it out")


def as_picture(source: ImageSource) -> ImageSource:
    """The source of an image or a mask that is read as a picture, whatever its place in the world."""
    content = source.get("bytes") if isinstance(source, dict) else source
    if isinstance(content, bytes) and is_tiff(content):
        return PageFile(content, reads_place=False)
    file = page_file(source)
    if file is not None and is_tiff(file.path):
        return file._replace(path=str(file.path), reads_place=False)
    return source


def as_model_reads(source: ImageSource, preprocess: Preprocess) -> ImageSource:
    """The source of an image as a model reads it: its bands, or as a picture if the model knows no places.

    An array and a window of a scene hold the model's bands already.
    """
    if isinstance(source, WindowSource | np.ndarray):
        return source
    if preprocess.place or preprocess.bands:
        return with_bands(source, preprocess.bands)
    return as_picture(source)


def as_pictures(records: Records) -> Records:
    """The records, read as pictures whatever their places in the world."""
    return change(records, "pictures", _picture)


def _picture(record: Record) -> Record:
    return {**record, "image": as_picture(record["image"]), "target": as_picture(record["target"])}


def choose_bands(records: Records, bands: tuple[str, ...]) -> Records:
    """The records with some bands of each image."""
    return change(records, f"bands {bands}", partial(_with_bands, bands=bands))


def _with_bands(record: Record, bands: tuple[str, ...]) -> Record:
    return {**record, "image": with_bands(record["image"], bands)}


def scene_sources(row: FileRow, bands: tuple[str, ...]) -> Sources:
    """An image whose bands are files, and its mask."""
    return BandSource(row.images, bands), row.targets[0]


def find_scenes(images: Path, masks: Path, config: DataConfig) -> FileRecords | None:
    """The images of a folder whose bands are files, in a folder for each, with masks of their names; None if images
    are files.

    Raises DataError if images do not have the same bands and, unless allowed, for images or masks without partner.
    """
    folders = scene_folders(images)
    if not folders:
        return None
    mask_files, others = find_masks(masks, folders, config.mask_suffix)
    names = [name for name in folders if name in mask_files]
    if not names:
        return None
    bands = config.bands or band_names(folders[names[0]])
    files_by_name: dict[str, str | Files] = {name: name for name in folders}
    for name in names:
        files_by_name[name] = tuple(bands_in(folders[name], bands, str(images / name)))
    cases = Cases(files_by_name, mask_files, others)
    metadata = Metadata(bands=bands)
    return pair((images, masks), cases, metadata, config.allow_unpaired, scene_sources, bands, is_named_by_case=True)


def scene_folders(images: Path) -> dict[str, list[str]]:
    """The folders of TIFF files below a folder, with the paths of these; none if the folder itself holds files."""
    folders: dict[str, list[str]] = {}
    with os.scandir(images) as entries:
        if any(os.path.isfile(entry.path) for entry in entries if not entry.name.startswith(".")):
            return {}
    if holds_pictures(images, OTHER_SUFFIXES):  # the search ends at the first one
        return {}
    for stem, file in files_by_stem(images, "images").items():
        folder, _, _ = stem.rpartition("/")
        if not folder:
            return {}
        folders.setdefault(folder, []).append(file)
    return folders


def band_names(files: Sequence[str]) -> tuple[str, ...]:
    """The word that tells the names of files apart: the first in which all of them differ, else the whole name."""
    stems = [Path(file).stem for file in files]
    if len(stems) == 1:
        return tuple(stems)
    words = [SEPARATORS.split(stem) for stem in stems]
    for column in zip(*words, strict=False):
        if len(set(column)) == len(stems):
            return column
    return tuple(stems)


def bands_in(files: Sequence[str], wanted_bands: Sequence[str], scene: str) -> list[str]:
    """The file of each wanted band. Raises DataError, with the `scene`, if a band has no file or several."""
    band_files = []
    stems = [Path(file).stem for file in files]
    for band in wanted_bands:
        matches = band_indices(stems, band)
        if len(matches) != 1:
            names = listing([Path(file).name for file in files], limit=8)
            finding = f"{len(matches)} files are"
            if not matches:
                finding = "no file is"
            raise DataError(f"{scene}: {finding} band {band}; its files are {names}; give --bands")
        band_files.append(files[matches[0]])
    return band_files
