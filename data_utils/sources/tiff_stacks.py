"""TIFFs of many pages: each page of an image, with the same page of its mask, is a pair of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_utils.image_io.tiff import is_tiff, page_numbers
from runtime.cache import cached, digest, digest_of_files
from runtime.errors import DataError, ImageError

PagePair = tuple[int, int]  # page of the image, page of the mask


def pages_of(path: Path) -> list[int]:
    """Numbers of a TIFF's pages; [0] for any other file, also for one that cannot be read, which is reported later."""
    try:
        return page_numbers(path) or [0] if is_tiff(path) else [0]
    except ImageError:
        return [0]


def pair_pages(images: Path, masks: Path, pairs: Sequence[tuple[str, str]]) -> list[list[PagePair]]:
    """(page of the image, page of the mask) of all pages of each pair of files; what was found is kept.

    Raises DataError where an image and its mask have different numbers of pages.
    """
    suspects = [i for i, pair in enumerate(pairs) if any(map(is_tiff, pair))]
    files = [folder / pairs[i][kind] for i in suspects for kind, folder in enumerate((images, masks))]

    def count() -> list[list[int]]:
        with ThreadPoolExecutor() as pool:  # only headers: it is the disk that takes time
            return list(pool.map(pages_of, files))

    found = cached(digest("pages", digest_of_files(files, repr(files).encode())), count) if files else []
    pages: list[list[PagePair]] = [[(0, 0)]] * len(pairs)
    for i, of_image, of_mask in zip(suspects, found[::2], found[1::2], strict=True):
        if len(of_image) != len(of_mask):
            image, mask = pairs[i]
            raise DataError(
                f"{images / image} has {len(of_image)} pages, its mask {masks / mask} has {len(of_mask)}; both"
                " need the same number of pages"
            )
        pages[i] = list(zip(of_image, of_mask, strict=True))
    return pages
