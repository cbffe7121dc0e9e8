"""TIFFs of many pages: each page of an image, with the same page of its mask, is a pair of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_utils.image_io.tiff import is_tiff, page_numbers
from runtime.cache import digest, digest_of_files, load_or_compute
from runtime.errors import DataError, ImageError

PagePair = tuple[int, int]  # page of the image, page of the mask


def page_indices(path: Path) -> list[int]:
    """Numbers of a TIFF's pages; [0] for any other file, also for one that cannot be read, which is reported later."""
    if not is_tiff(path):
        return [0]
    try:
        return page_numbers(path) or [0]
    except ImageError:
        return [0]


def pair_pages(images: Path, masks: Path, pairs: Sequence[tuple[str, str]]) -> list[list[PagePair]]:
    """(page of the image, page of the mask) of all pages of each pair of files; the page numbers are cached on disk.

    Raises DataError if an image and its mask have different numbers of pages.
    """
    pages: list[list[PagePair]] = [[(0, 0)]] * len(pairs)
    suspects = [i for i, (image, mask) in enumerate(pairs) if is_tiff(image) or is_tiff(mask)]
    if not suspects:
        return pages
    files: list[Path] = []  # image and mask of each pair that may have several pages, in turn
    for i in suspects:
        image, mask = pairs[i]
        files.append(images / image)
        files.append(masks / mask)

    def read_page_numbers() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers are read: the disk takes the time
            return list(pool.map(page_indices, files))

    key = digest("pages of images", digest_of_files(files, repr(files).encode()))
    page_lists = load_or_compute(key, read_page_numbers)
    for i, image_pages, mask_pages in zip(suspects, page_lists[::2], page_lists[1::2], strict=True):
        if len(image_pages) != len(mask_pages):
            image, mask = pairs[i]
            raise DataError(
                f"{images / image} has {len(image_pages)} pages, its mask {masks / mask} has {len(mask_pages)}; both"
                " need the same number of pages"
            )
        pages[i] = list(zip(image_pages, mask_pages, strict=True))
    return pages
