"""Images and masks of two folders that are pictures: files, pages of TIFFs, or a file for each band of an image."""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import TIFF_SUFFIXES, BandSource, PageFile, format_remedy
from data_utils.image_io.rasters import band_indices
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.tiff import channel_pages, is_tiff, page_numbers
from data_utils.sources.annotations.layout import holds_pictures
from data_utils.sources.folder import DECATHLON_IMAGES, DECATHLON_LABELS, files_by_stem, holds_files, natural_order
from data_utils.sources.pairs import FIRST_CHANNEL, Cases, Hint, find_masks, pair
from data_utils.sources.records import FileRow, FileRows, Files, Metadata, Record, Records, Sources, divide
from data_utils.sources.volumes import DESCRIPTION, read_description
from runtime.cache import load_or_read_each
from runtime.console import listing
from runtime.errors import DataError, ImageError

SEPARATORS = re.compile("[_. -]")  # between the words of a name
OTHER_SUFFIXES = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in TIFF_SUFFIXES)


def open_pictures(images: Path, masks: Path, config: DataConfig) -> Records:
    """Images and masks of one name, in natural order; an image is a file, a page of one, or a folder of its bands.

    nnU-Net names the classes beside. Raises DataError for doubles and, unless allowed, for files without partner.
    """
    scenes = find_scenes(images, masks, config)
    if scenes:
        return scenes
    cases = find_pictures(images, masks, config)
    metadata = Metadata()
    if masks.name.lower() in DECATHLON_LABELS and (masks.parent / DESCRIPTION).exists():
        metadata = Metadata(read_description(masks.parent / DESCRIPTION).classes)
    hint = partial(_picture_hint, images, cases.masks)
    return pair_pages((images, masks), cases, metadata, config.allow_unpaired, hint)


def find_pictures(images: Path, masks: Path, config: DataConfig) -> Cases:
    """The pictures of two folders by their stems."""
    image_files = files_by_stem(images, "images")
    if images.name.lower() in DECATHLON_IMAGES:  # nnU-Net calls the only file, of all colors, CASE_0000
        image_files = {stem.removesuffix(FIRST_CHANNEL): file for stem, file in image_files.items()}
    return Cases(image_files, *find_masks(masks, image_files, config.mask_suffix))


def _picture_hint(images: Path, stems: Collection[str]) -> str:
    """How masks are named, and the first file that has the name of a mask and a format that is not read."""
    unread: list[str] = []
    for name in os.listdir(images):
        stem, ending = os.path.splitext(name)
        if stem in stems and not ending.lower().endswith(IMAGE_SUFFIXES):
            unread.append(name)
    hint = "; masks are named like their images, with a suffix that --mask-suffix sets"
    for name in natural_order(unread)[:1]:
        hint += f"; {name} is not read{format_remedy([name])}"
    return hint


def pair_pages(
    folders: tuple[Path, Path], cases: Cases, metadata: Metadata, allow_unpaired: bool, hint: Hint | None = None
) -> Records:
    """The records of `pair` for pictures; where files have several pages, those of all pages.

    The numbers of pages are cached on disk. Raises DataError if an image and its mask have different numbers of pages.
    """
    records = pair(folders, cases, metadata, allow_unpaired, hint=hint)
    assert isinstance(records.rows, FileRows)
    if not re.search(rb"(?i)\.tif", records.rows.table.data):  # nothing has pages; a million names are searched at once
        return records
    pairs = [(str(record["image"]), str(record["target"])) for record in records]
    tiffs = [file for file in chain.from_iterable(pairs) if is_tiff(file)]
    pages_of = load_or_read_each("pages of images", tiffs, _page_numbers)
    indices: list[int] = []
    parts: list[list[int]] = []
    for index, (image, mask) in enumerate(pairs):
        mask_pages = pages_of.get(mask, [0])
        image_pages: list[tuple[int, ...]] = [(page,) for page in pages_of.get(image, [0])]
        if len(image_pages) != len(mask_pages) and is_tiff(image):
            image_pages = channel_pages(Path(image)) or image_pages
        if len(image_pages) != len(mask_pages):
            raise DataError(
                f"{image} has {len(image_pages)} pages, its mask {mask} has {len(mask_pages)}; both need the same"
                " number of pages, or axes of ImageJ or OME that say which pages are channels"
            )
        for number, (pages, mask_page) in enumerate(zip(image_pages, mask_pages, strict=True), 1):
            indices.append(index)
            parts.append([number if len(image_pages) > 1 else 0, mask_page, *pages])
    width = max(map(len, parts))
    if len(indices) == len(records) and width == 3:  # every image is one page, which holds all channels
        return records
    rows = [part + [-1] * (width - len(part)) for part in parts]
    return divide(records, np.array(indices), np.array(rows, np.int32), _page)


def _page_numbers(file: str) -> list[int]:
    """Numbers of a TIFF's pages; [0] for one that cannot be read, which is reported later."""
    try:
        return page_numbers(Path(file)) or [0]
    except ImageError:
        return [0]


def _page(record: Record, part: Sequence[int]) -> Record:
    """A page of a record.

    A part is the page's number from 1, 0 for a file of one page; the page of the mask; and those of the image, of which
    each is a channel if there are several; -1 for none.
    """
    number, mask_page, image_page, *others = part
    more_channels = tuple(page for page in others if page >= 0)
    if not number and not more_channels:
        return record
    name = record["name"]
    if number:
        stem, extension = os.path.splitext(name)
        name = f"{stem}_{number:04}{extension}"
    image = PageFile(str(record["image"]), image_page, more_channels=more_channels)
    return {**record, "image": image, "target": PageFile(str(record["target"]), mask_page), "name": name}


def find_scenes(images: Path, masks: Path, config: DataConfig) -> Records | None:
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
    most_files = max((folders[name] for name in names), key=len)  # an image that lacks a band is an error
    bands = config.bands or band_names(most_files)
    files_by_name: dict[str, str | Files] = {name: name for name in folders}
    for name in names:
        files_by_name[name] = tuple(bands_in(folders[name], bands, str(images / name)))
    cases = Cases(files_by_name, mask_files, others)
    metadata = Metadata(bands=bands)
    sources = partial(scene_sources, bands=bands)
    return pair((images, masks), cases, metadata, config.allow_unpaired, sources, is_named_by_case=True)


def scene_sources(row: FileRow, bands: tuple[str, ...]) -> Sources:
    """An image whose bands are files, and its mask."""
    return BandSource(row.images, bands), row.targets[0]


def scene_folders(images: Path) -> dict[str, list[str]]:
    """The folders of TIFF files below a folder, with the paths of these; none if the folder itself holds files."""
    # each search ends at the first file
    if holds_files(images, ("",)) or holds_pictures(images, OTHER_SUFFIXES):
        return {}
    folders: dict[str, list[str]] = {}
    for stem, file in files_by_stem(images, "images").items():
        folder, _, _ = stem.rpartition("/")
        folders.setdefault(folder, []).append(file)
    return folders


def band_names(files: Sequence[str]) -> tuple[str, ...]:
    """The word that tells the names of files apart: the first in which all of them differ, else the whole name."""
    stems = [Path(file).stem for file in files]
    words = [SEPARATORS.split(stem) for stem in stems]
    for column in zip(*words, strict=False):
        if len(set(column)) == len(stems) > 1:
            return column
    return tuple(stems)


def bands_in(files: Iterable[str], wanted_bands: Iterable[str], scene: str) -> list[str]:
    """The file of each wanted band. Raises DataError, with the `scene`, if a band has no file or several."""
    files = list(files)
    stems = [Path(file).stem for file in files]
    band_files: list[str] = []
    for band in wanted_bands:
        matches = band_indices(stems, band)
        if len(matches) != 1:
            names = listing([Path(file).name for file in files], limit=8)
            finding = f"{len(matches)} files are" if matches else "no file is"
            raise DataError(f"{scene}: {finding} band {band}; its files are {names}; give --bands")
        band_files.append(files[matches[0]])
    return band_files
