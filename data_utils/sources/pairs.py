"""Which mask belongs to which image, and what a file without partner gets; pairs of pictures as records."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import IMAGE_SUFFIXES, PageFile, format_remedy
from data_utils.image_io.tiff import is_tiff, page_numbers
from data_utils.sources.files import FileRecords, FileRow, Files
from data_utils.sources.folder import detect_suffix, files_by_stem, masks_by_image, natural_sort_key
from data_utils.sources.records import Metadata, Record
from runtime.cache import digest, digest_of_files, load_or_compute
from runtime.console import counted, listing
from runtime.errors import DataError, ImageError

NAMES_IN_MESSAGE = 5  # files that a message names


def pair(
    images: Mapping[str, str | Files], masks: Mapping[str, str], kind: str = "mask"
) -> tuple[list[str], list[str]]:
    """The names that have both an image and a mask, in the order of images; and a line for each other image or mask.

    Args:
        images, masks: the file of each name, or the files of an image.
        kind: what the masks are, in the lines.
    """
    names = [name for name in images if name in masks]
    unpaired: list[str] = []
    for name, files in images.items():
        image = files
        if isinstance(files, tuple):
            image = files[0]
        if name not in masks:
            unpaired.append(f"{image}: image without {kind}")
    for name, file in masks.items():
        if name not in images:
            unpaired.append(f"{file}: {kind} without image")
    return names, unpaired


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

    images: dict[str, Files]
    masks: dict[str, str]
    lost: Sequence[str] = ()

    def pair(self, folder: Path, config: DataConfig, hint: str = "") -> tuple[list[str], tuple[str, ...]]:
        """The names with image and mask, and a line for each other file. DataError as in `check_unpaired`."""
        names, unpaired = pair(self.images, self.masks)
        unpaired = [*unpaired, *self.lost]
        check_unpaired(unpaired, len(names), config.allow_unpaired, folder, hint)
        return names, tuple(unpaired)


def find_masks(
    folder: Path, stems: Iterable[str], suffix: str | None, endings: tuple[str, ...] = IMAGE_SUFFIXES
) -> tuple[dict[str, str], list[str]]:
    """Stem of the image -> mask file below a folder, and a line for each mask whose name lacks the suffix of others.

    The suffix is detected if it is None.
    """
    files = files_by_stem(folder, "masks", endings)
    if suffix is None:
        suffix = detect_suffix(stems, files)
    others = []
    for stem, file in files.items():
        if not stem.endswith(suffix):
            others.append(f"{file}: mask without image")
    return masks_by_image(files, suffix), others


def find_pictures(images: Path, masks: Path, config: DataConfig) -> Cases:
    """The pictures of two folders by their stems."""
    image_files: dict[str, Files] = {}
    for stem, file in files_by_stem(images, "images").items():
        # nnU-Net calls the only file of an image, with all its colors, CASE_0000
        if images.name.lower() == "imagestr":
            stem = stem.removesuffix("_0000")
        image_files[stem] = (file,)
    return Cases(image_files, *find_masks(masks, image_files, config.mask_suffix))


def open_pairs(images: Path, masks: Path, config: DataConfig) -> FileRecords:
    """Images and masks of one stem, in natural order; all pages of files of many pages.

    Raises DataError for doubles and, unless allowed, for files without partner.
    """
    cases = find_pictures(images, masks, config)
    hint = "; masks are named like their images, with a suffix that --mask-suffix sets"
    stems, unpaired = cases.pair(images, config, hint + _unread_hint(images, cases.masks))
    pairs = [(cases.images[stem][0], cases.masks[stem]) for stem in stems]
    pages = pair_pages(images, masks, pairs)
    metadata = Metadata(unpaired=unpaired)
    if any(len(page_pairs) > 1 for page_pairs in pages):
        return PageRecords((images, masks), pairs, pages, metadata)
    rows = [FileRow(image, (image,), (mask,)) for image, mask in pairs]
    return FileRecords((images, masks), rows, metadata)


def _unread_hint(images: Path, stems: Collection[str]) -> str:
    """A note on the first file that has the name of a mask and a format that is not read."""
    for name in sorted(os.listdir(images), key=natural_sort_key):
        stem, ending = os.path.splitext(name)
        if stem in stems and not ending.lower().endswith(IMAGE_SUFFIXES):
            return f"; {name} is not read{format_remedy([name])}"
    return ""


PagePair = tuple[int, int]  # page of the image, page of the mask


class PageRecords(FileRecords):
    """Pairs of files of which some have several pages: each page is a record, called <stem>_<page>.<ext>."""

    def __init__(
        self,
        folders: tuple[Path, Path],
        pairs: Sequence[tuple[str, str]],
        pages: Sequence[Sequence[PagePair]],
        metadata: Metadata,
    ) -> None:
        rows: list[FileRow] = []
        # file, page of the image (-1 for a file of one), page of the mask
        page_rows: list[tuple[int, int, int]] = []
        for number, ((image, mask), page_pairs) in enumerate(zip(pairs, pages, strict=True)):
            stem, extension = os.path.splitext(image)
            if len(page_pairs) == 1:
                rows.append(FileRow(image, (image,), (mask,)))
                page_rows.append((number, -1, 0))
                continue
            for page, (image_page, mask_page) in enumerate(page_pairs, 1):
                rows.append(FileRow(f"{stem}_{page:04}{extension}", (image,), (mask,)))
                page_rows.append((number, image_page, mask_page))
        super().__init__(folders, rows, metadata)
        self.pages = np.array(page_rows, np.int32)

    def __getitem__(self, i: int) -> Record:
        record = super().__getitem__(i)
        _, image_page, mask_page = self.pages[i].tolist()
        if image_page < 0:
            return record
        (image,), (mask,) = self.paths(i)
        return {**record, "image": PageFile(image, image_page), "target": PageFile(mask, mask_page)}

    def file_numbers(self) -> np.ndarray:
        return self.pages[:, 0]

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of their pages."""
        return digest(super().digest, self.pages.tobytes())


def page_indices(path: Path) -> list[int]:
    """Numbers of a TIFF's pages; [0] for any other file, also for one that cannot be read, which is reported later."""
    if not is_tiff(path):
        return [0]
    try:
        return page_numbers(path) or [0]
    except ImageError:
        return [0]


def pair_pages(images: Path, masks: Path, pairs: Sequence[tuple[str, str]]) -> list[list[PagePair]]:
    """The `PagePair`s of each pair of files; the page numbers are cached on disk.

    Raises DataError if an image and its mask have different numbers of pages.
    """
    pages: list[list[PagePair]] = [[(0, 0)]] * len(pairs)
    suspects = [i for i, (image, mask) in enumerate(pairs) if is_tiff(image) or is_tiff(mask)]
    files: list[Path] = []  # image and mask of each pair that may have several pages, in turn
    for i in suspects:
        image, mask = pairs[i]
        files += [images / image, masks / mask]

    def read_page_numbers() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers are read: the disk takes the time
            return list(pool.map(page_indices, files))

    key = digest("pages of images", digest_of_files(files, repr(files).encode()))
    page_lists = load_or_compute(key if files else None, read_page_numbers)
    for i, image_pages, mask_pages in zip(suspects, page_lists[::2], page_lists[1::2], strict=True):
        if len(image_pages) != len(mask_pages):
            image, mask = pairs[i]
            raise DataError(
                f"{images / image} has {len(image_pages)} pages, its mask {masks / mask} has {len(mask_pages)}; both"
                " need the same number of pages"
            )
        pages[i] = list(zip(image_pages, mask_pages, strict=True))
    return pages
