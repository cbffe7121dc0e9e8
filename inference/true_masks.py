"""Which true mask belongs to which input."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.sources.folder import detect_suffix
from runtime.errors import DataError


class TrueMasks:
    """True masks by stem; the pages of a TIFF have their masks in files of their own or in a TIFF of as many pages.

    A suffix of None is detected as for training.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Iterable[Path]) -> None:
        self.files = files
        if suffix is None and self.files:
            suffix = detect_suffix(map(Path.as_posix, stems), [stem.as_posix() for stem in self.files])
        self.suffix = suffix or ""
        self.missing: list[str] = []

    def find(self, stem: Path, page_stem: Path, number: int, pages: int) -> tuple[Path, int] | None:
        mask_stem = page_stem.with_name(page_stem.name + self.suffix)
        if mask_stem in self.files:
            return self.files[mask_stem], 0
        stack = self.files.get(stem.with_name(stem.name + self.suffix))
        if stack is None or not is_tiff(stack):
            self.missing.append(str(mask_stem))
            return None
        page_numbers = [index for index, _ in tiff_pages(stack)]
        if len(page_numbers) != pages:
            raise DataError(f"{stack}: has {len(page_numbers)} pages, the image {pages}")
        return stack, page_numbers[number]
