"""Which mask belongs to which image, and what a file without partner gets; pairs of pictures as records."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, PageFile, format_remedy
from data_utils.image_io.tiff import channel_pages, is_tiff, page_numbers
from data_utils.sources.files import FileRecords, FileRow, Files, Sources, first_files
from data_utils.sources.folder import IMAGE_WORDS, MASK_WORDS, detect_suffix, files_by_stem, natural_sort_key
from data_utils.sources.records import Metadata, Parts, Record, Records, divide
from runtime.cache import digest, digest_of_files, load_or_compute
from runtime.console import counted, listing
from runtime.errors import DataError, ImageError

NAMES_IN_MESSAGE = 5  # files that a message names
PAGE_COLUMNS = 3  # numbers of a part that is one page of each file
FIRST_CHANNEL = "_0000"  # the end of the name of a file, after the name of the case

Hint = Callable[[], str]  # makes the end of an error, which takes a while


class Cases(NamedTuple):
    """The files of images and of masks below their two folders, by the names that both share.

    Args:
        images: the image of each case, or an image for each channel.
        masks: the mask of each case, or a mask for each class.
        lost: a line for each other file without partner.
    """

    images: Mapping[str, str | Files]
    masks: Mapping[str, str | Files]
    lost: Sequence[str] = ()


def pair(
    folders: tuple[Path, Path],
    cases: Cases,
    metadata: Metadata,
    allow_unpaired: bool,
    sources: Callable[..., Sources] = first_files,
    *options: object,
    hint: Hint | None = None,
    is_named_by_case: bool = False,
) -> FileRecords:
    """The cases with image and mask, in the order of images.

    Records are named after their first image, or after their case and then in the natural order of these names. The
    other arguments are those of `open_rows`, which also says what is raised.
    """
    rows: list[FileRow] = []
    unpaired: list[str] = []
    for case, image in cases.images.items():
        images = _as_files(image)
        if case in cases.masks:
            name = case if is_named_by_case else images[0]
            rows.append(FileRow(name, images, _as_files(cases.masks[case])))
        else:
            unpaired.append(f"{images[0]}: image without mask")
    for case, mask in cases.masks.items():
        if case not in cases.images:
            *_, last = filter(None, _as_files(mask))
            unpaired.append(f"{last}: mask without image")
    unpaired += cases.lost
    if is_named_by_case:
        rows.sort(key=lambda row: natural_sort_key(row.name))
    hint = partial(_pairing_hint, cases, hint, has_rows=bool(rows))
    return open_rows(folders, rows, unpaired, metadata, allow_unpaired, sources, *options, hint=hint)


def _pairing_hint(cases: Cases, hint: Hint | None, *, has_rows: bool) -> str:
    """What to do about names that do not match, first of all those that differ in upper and lower case alone."""
    text = "" if hint is None else hint()
    masks = {name.casefold(): name for name in cases.masks if name not in cases.images}
    for name in cases.images:
        mask = masks.get(name.casefold())
        if mask and name not in cases.masks:
            return f"{text}; {name} and {mask} differ in upper and lower case: name both alike"
    return text if text or has_rows else "; masks have the names of their images"


def _as_files(file: str | Files) -> Files:
    return file if isinstance(file, tuple) else (file,)


def open_rows(
    folders: tuple[Path, Path],
    rows: Sequence[FileRow],
    unpaired: Sequence[str],
    metadata: Metadata,
    allow_unpaired: bool,
    sources: Callable[..., Sources] = first_files,
    *options: object,
    hint: Hint | None = None,
    location: Path | None = None,
) -> FileRecords:
    """The records of rows that have image and target.

    Args:
        folders, rows, sources, options: those of `FileRecords`.
        unpaired: a line for each file without partner.
        hint: makes what stands behind these lines in the error.
        location: what the error names; None for the folder of images.

    Raises DataError for files without partner, unless they are allowed; and if there is no row.
    """
    if not rows and not unpaired:
        raise DataError(f"{location or folders[0]}: no images with masks")
    if not rows or (unpaired and not allow_unpaired):
        remedy = "; --allow-unpaired leaves them out" if rows else ""
        lines = listing(unpaired, NAMES_IN_MESSAGE, separator="; ")
        files = counted(len(unpaired), "file")
        more = "" if hint is None else hint()
        raise DataError(f"{location or folders[0]}: {files} without partner: {lines}{remedy}{more}")
    return FileRecords(folders, rows, replace(metadata, unpaired=tuple(unpaired)), sources, *options)


def split_paths(paths: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that all paths lie below, and the paths below it."""
    folder = os.path.commonpath([os.path.dirname(path) for path in paths] or [""])
    return Path(folder), [os.path.relpath(path, folder) for path in paths]


def find_masks(
    folder: Path, stems: Iterable[str], suffix: str | None, endings: tuple[str, ...] = IMAGE_SUFFIXES
) -> tuple[dict[str, str], list[str]]:
    """Stem of the image -> mask file below a folder, and a line for each mask whose name lacks the suffix of others.

    The suffix is detected if it is None. If no names agree but for a suffix, they may do so but for the words that say
    what a file is, as image_1 and mask_1 do.
    """
    files = files_by_stem(folder, "masks", endings)
    stems = list(stems)
    if suffix is None:
        suffix = detect_suffix(stems, files)
        if not any(stem + suffix in files for stem in stems):
            by_image = _match_by_words(stems, files)
            if by_image:
                return by_image, []
    masks: dict[str, str] = {}
    others: list[str] = []
    for stem, file in files.items():
        if stem.endswith(suffix):
            masks[stem.removesuffix(suffix)] = file
        else:
            others.append(f"{file}: mask without image")
    return masks, others


def _match_by_words(stems: Iterable[str], masks: Mapping[str, str]) -> dict[str, str]:
    """Stem of the image -> mask, if names without the words at their ends agree; empty unless all of them differ."""
    images = {_without_words(stem, IMAGE_WORDS): stem for stem in stems}
    by_image: dict[str, str] = {}
    for stem, file in masks.items():
        name = _without_words(stem, MASK_WORDS)
        by_image[images.get(name, stem)] = file
    return by_image if len(by_image) == len(masks) and not by_image.keys().isdisjoint(images.values()) else {}


def _without_words(stem: str, words: str) -> str:
    """A stem without the words that its name begins or ends with."""
    folder, name = os.path.split(stem)
    match = re.fullmatch(
        rf"(?:(?:{words})(?:[ _.-]|(?=\d)))?(.+?)(?:[ _.-](?:{words}))?", name, re.IGNORECASE | re.DOTALL
    )
    return os.path.join(folder, match[1] if match else name)


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
    hint = partial(_picture_hint, images, cases.masks)
    return pair_pages((images, masks), cases, Metadata(), config.allow_unpaired, hint)


def pair_pages(
    folders: tuple[Path, Path], cases: Cases, metadata: Metadata, allow_unpaired: bool, hint: Hint | None = None
) -> Records:
    """The records of `pair` for pictures, those of all pages where files have several."""
    records = pair(folders, cases, metadata, allow_unpaired, hint=hint)
    files = chain.from_iterable(map(_as_files, (*cases.images.values(), *cases.masks.values())))
    return _with_all_pages(records) if any(map(is_tiff, files)) else records


def _picture_hint(images: Path, stems: Collection[str]) -> str:
    """How masks are named, and the first file that has the name of a mask and a format that is not read."""
    hint = "; masks are named like their images, with a suffix that --mask-suffix sets"
    unread = []
    for name in os.listdir(images):
        stem, ending = os.path.splitext(name)
        if stem in stems and not ending.lower().endswith(IMAGE_SUFFIXES):
            unread.append(name)
    if not unread:
        return hint
    first = min(unread, key=natural_sort_key)
    return f"{hint}; {first} is not read{format_remedy([first])}"


def _page(record: Record, name: str, part: Sequence[int]) -> Record:
    """A page of a record.

    A part is the page's number from 1, 0 for a file of one page; the pages in both files; and the further pages of an
    image whose channels are pages, -1 for none.
    """
    number, image_page, mask_page, *others = part
    more_channels = tuple(page for page in others if page >= 0)
    if not number and not more_channels:
        return record
    image, mask = str(record["image"]), str(record["target"])
    image_source = PageFile(image, image_page, more_channels=more_channels)
    return {"image": image_source, "target": PageFile(mask, mask_page), "name": name}


def _page_name(name: str, part: Sequence[int]) -> str:
    stem, extension = os.path.splitext(name)
    return f"{stem}_{part[0]:04}{extension}" if part[0] else name


def _with_all_pages(records: FileRecords) -> Records:
    """All pages of the records' files; the numbers of pages are cached on disk.

    Raises DataError if an image and its mask have different numbers of pages.
    """
    pairs = [(str(record["image"]), str(record["target"])) for record in records]
    tiffs = [file for file in chain.from_iterable(pairs) if is_tiff(file)]

    def read_page_numbers() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers are read: the disk takes the time
            return list(pool.map(page_indices, tiffs))

    key = digest("pages of images", digest_of_files(tiffs, repr(tiffs).encode()))
    pages_of = dict(zip(tiffs, load_or_compute(key, read_page_numbers), strict=True))
    indices: list[int] = []
    parts: list[tuple[int, ...]] = []
    for index, (image, mask) in enumerate(pairs):
        mask_pages = pages_of.get(mask, [0])
        image_pages: list[tuple[int, ...]] = [(page,) for page in pages_of.get(image, [0])]
        if len(image_pages) != len(mask_pages) and is_tiff(image):
            image_pages = channel_pages(Path(image)) or image_pages
        if len(image_pages) != len(mask_pages):
            raise DataError(
                f"{image} has {len(image_pages)} pages, its mask {mask} has {len(mask_pages)}; both need the same"
                " number of pages"
            )
        for number, (pages, mask_page) in enumerate(zip(image_pages, mask_pages, strict=True), 1):
            indices.append(index)
            parts.append((number if len(image_pages) > 1 else 0, pages[0], mask_page, *pages[1:]))
    width = max(map(len, parts))
    if len(indices) == len(records) and width == PAGE_COLUMNS:
        return records
    rows = [(*part, *[-1] * (width - len(part))) for part in parts]
    return divide(records, np.array(indices), Parts(np.array(rows, np.int32), _page_name, _page))


def page_indices(file: str) -> list[int]:
    """Numbers of a TIFF's pages; [0] for one that cannot be read, which is reported later."""
    try:
        return page_numbers(Path(file)) or [0]
    except ImageError:
        return [0]
