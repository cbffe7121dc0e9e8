"""TIFFs of many pages: each page of an image, with the same page of its mask, is a pair of its own."""

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tifffile

from runtime.cache import digest, digest_of_files, cached
from runtime.errors import DataError

TIFF_SUFFIXES = (".tif", ".tiff")
# what tifffile raises for a damaged header
DAMAGED = (OSError, ValueError, AttributeError, LookupError, TypeError, ArithmeticError, AssertionError, struct.error)
Pages = tuple[int, int]


def pages_of(path: Path) -> list[int]:
    """Numbers of a TIFF's pages, save the small copies that some programs store beside them; [0] of any other file."""
    if path.suffix.lower() not in TIFF_SUFFIXES:
        return [0]
    try:
        with tifffile.TiffFile(path) as tiff:
            return [i for i, page in enumerate(tiff.pages) if i == 0 or not page.aspage().is_reduced] or [0]
    except DAMAGED:  # will be named when it is read
        return [0]


def pair_pages(images: Path, masks: Path, pairs: Sequence[tuple[str, str]]) -> list[list[Pages]]:
    """(page of the image, page of the mask) of all pages of each pair of files; what was found is remembered.

    Raises DataError where an image and its mask have different numbers of pages.
    """
    suspects = [i for i, pair in enumerate(pairs) if any(file.lower().endswith(TIFF_SUFFIXES) for file in pair)]
    files = [folder / pairs[i][kind] for i in suspects for kind, folder in enumerate((images, masks))]

    def count() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers: it is the disk that takes time
            return list(pool.map(pages_of, files))

    found = cached(digest("pages", digest_of_files(files, repr(files).encode())), count) if files else []
    pages: list[list[Pages]] = [[(0, 0)]] * len(pairs)
    for i, of_image, of_mask in zip(suspects, found[::2], found[1::2], strict=True):
        if len(of_image) != len(of_mask):
            image, mask = pairs[i]
            raise DataError(
                f"{images / image} has {len(of_image)} pages, its mask {masks / mask} has {len(of_mask)}; they pair one"
                " by one, so both must have as many"
            )
        pages[i] = list(zip(of_image, of_mask, strict=True))
    return pages
