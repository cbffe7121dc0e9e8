"""Which mask belongs to which image, and what a file without partner gets; pairs of pictures as records."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, PageFile, format_remedy
from data_utils.image_io.tiff import is_tiff, page_numbers
from data_utils.sources.files import FileRecords, FileRow, Files
from data_utils.sources.folder import detect_suffix, files_by_stem, natural_sort_key
from data_utils.sources.records import Metadata, Parts, Record, Records, divide
from runtime.cache import digest, digest_of_files, load_or_compute
from runtime.console import counted, listing
from runtime.errors import DataError, ImageError

NAMES_IN_MESSAGE = 5  # files that a message names
FIRST_CHANNEL = "_0000"  # the end of the name of a file, after the name of the case


def check_unpaired(unpaired: Sequence[str], pairs: int, allow_unpaired: bool, folder: Path, hint: str = "") -> None:
    """Raises DataError, with a `hint`, for files without partner, unless they are allowed; and if there is no pair.

    Args:
        unpaired: a line for each file without partner.
        folder: where they lie.
    """
    if pairs and (allow_unpaired or not unpaired):
        return
    if not unpaired:
        raise DataError(f"{folder}: no images with masks")
    remedy = "; --allow-unpaired leaves them out" if pairs else "; masks have the names of their images"
    files = counted(len(unpaired), "file")
    lines = listing(unpaired, NAMES_IN_MESSAGE, separator="; ")
    raise DataError(f"{folder}: {files} without partner: {lines}{remedy}{hint}")


class Cases(NamedTuple):
    """The files of images and of masks below their two folders, by the names that both share.

    Args:
        images: the image of each case, or an image for each channel.
        lost: a line for each other file without partner.
    """

    images: Mapping[str, str | Files]
    masks: Mapping[str, str]
    lost: Sequence[str] = ()

    def pair(self, folder: Path, allow_unpaired: bool, hint: str = "") -> tuple[list[str], tuple[str, ...]]:
        """The names with image and mask, in the order of images, and a line for each other file.

        Raises DataError as `check_unpaired` does.
        """
        names = [name for name in self.images if name in self.masks]
        unpaired: list[str] = []
        for name in self.images:
            if name not in self.masks:
                unpaired.append(f"{self.files(name)[0]}: image without mask")
        for name, file in self.masks.items():
            if name not in self.images:
                unpaired.append(f"{file}: mask without image")
        unpaired += self.lost
        check_unpaired(unpaired, len(names), allow_unpaired, folder, hint)
        return names, tuple(unpaired)

    def files(self, name: str) -> Files:
        """The files of the image of a case."""
        files = self.images[name]
        return files if isinstance(files, tuple) else (files,)

    def row(self, name: str) -> FileRow:
        """The image and the mask of a case, which is called like its image."""
        files = self.files(name)
        return FileRow(files[0], files, (self.masks[name],))


def find_masks(
    folder: Path, stems: Iterable[str], suffix: str | None, endings: tuple[str, ...] = IMAGE_SUFFIXES
) -> tuple[dict[str, str], list[str]]:
    """Stem of the image -> mask file below a folder, and a line for each mask whose name lacks the suffix of others.

    The suffix is detected if it is None.
    """
    files = files_by_stem(folder, "masks", endings)
    if suffix is None:
        suffix = detect_suffix(stems, files)
    masks: dict[str, str] = {}
    others: list[str] = []
    for stem, file in files.items():
        if stem.endswith(suffix):
            masks[stem.removesuffix(suffix)] = file
        else:
            others.append(f"{file}: mask without image")
    return masks, others


def find_pictures(images: Path, masks: Path, config: DataConfig) -> Cases:
    """The pictures of two folders by their stems."""
    image_files = files_by_stem(images, "images")
    if images.name.lower() == "imagestr":  # nnU-Net calls the only file of an image, with all its colors, CASE_0000
        image_files = {stem.removesuffix(FIRST_CHANNEL): file for stem, file in image_files.items()}
    return Cases(image_files, *find_masks(masks, image_files, config.mask_suffix))


def open_pairs(images: Path, masks: Path, config: DataConfig) -> Records:
    """Images and masks of one stem, in natural order; all pages of files of many pages.

    Raises DataError for doubles and, unless allowed, for files without partner.
    """
    cases = find_pictures(images, masks, config)
    hint = "; masks are named like their images, with a suffix that --mask-suffix sets"
    stems, unpaired = cases.pair(images, config.allow_unpaired, hint + _unread_hint(images, cases.masks))
    rows = [cases.row(stem) for stem in stems]
    return with_all_pages(FileRecords((images, masks), rows, Metadata(unpaired=unpaired)))


def _unread_hint(images: Path, stems: Collection[str]) -> str:
    """A note on the first file that has the name of a mask and a format that is not read."""
    for name in sorted(os.listdir(images), key=natural_sort_key):
        stem, ending = os.path.splitext(name)
        if stem in stems and not ending.lower().endswith(IMAGE_SUFFIXES):
            return f"; {name} is not read{format_remedy([name])}"
    return ""


def _page(record: Record, name: str, part: Sequence[int]) -> Record:
    """A page of a record; a part is the page's number from 1, 0 for a file of one page, and the pages in both files."""
    number, image_page, mask_page = part
    if not number:
        return record
    image, mask = str(record["image"]), str(record["target"])
    return {"image": PageFile(image, image_page), "target": PageFile(mask, mask_page), "name": name}


def _page_name(name: str, part: Sequence[int]) -> str:
    stem, extension = os.path.splitext(name)
    return f"{stem}_{part[0]:04}{extension}" if part[0] else name


def with_all_pages(records: FileRecords) -> Records:
    """All pages of the records' files; the numbers of pages are cached on disk.

    Raises DataError if an image and its mask have different numbers of pages.
    """
    pairs = [(str(record["image"]), str(record["target"])) for record in records]
    tiffs = [file for file in chain.from_iterable(pairs) if is_tiff(file)]
    if not tiffs:
        return records

    def read_page_numbers() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers are read: the disk takes the time
            return list(pool.map(page_indices, tiffs))

    key = digest("pages of images", digest_of_files(tiffs, repr(tiffs).encode()))
    pages_of = dict(zip(tiffs, load_or_compute(key, read_page_numbers), strict=True))
    indices: list[int] = []
    parts: list[tuple[int, int, int]] = []
    for index, (image, mask) in enumerate(pairs):
        image_pages = pages_of.get(image, [0])
        mask_pages = pages_of.get(mask, [0])
        if len(image_pages) != len(mask_pages):
            raise DataError(
                f"{image} has {len(image_pages)} pages, its mask {mask} has {len(mask_pages)}; both need the same"
                " number of pages"
            )
        for number, pages in enumerate(zip(image_pages, mask_pages, strict=True), 1):
            indices.append(index)
            parts.append((number if len(image_pages) > 1 else 0, *pages))
    if len(indices) == len(records):
        return records
    return divide(records, np.array(indices), Parts(np.array(parts, np.int32), _page_name, _page))


def page_indices(file: str) -> list[int]:
    """Numbers of a TIFF's pages; [0] for one that cannot be read, which is reported later."""
    try:
        return page_numbers(Path(file)) or [0]
    except ImageError:
        return [0]
