"""Which true mask belongs to which input."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from data_utils.image_io.tiff import is_tiff, tiff_pages
from data_utils.sources.folder import detect_suffix
from runtime.errors import DataError


class TrueMasks:
    """True masks by stem; the pages of a TIFF have theirs in files of their own or in a TIFF of as many pages.

    Their suffix is detected, as for training, if it is None.
    """

    def __init__(self, files: Mapping[Path, Path], suffix: str | None, stems: Iterable[Path]) -> None:
        self.files = files
        if suffix is None and self.files:
            suffix = detect_suffix(map(Path.as_posix, stems), [stem.as_posix() for stem in self.files])
        self.suffix = suffix or ""
        self.missing: list[str] = []

    def find(self, stem: Path, of_page: Path, number: int, pages: int) -> tuple[Path, int] | None:
        wanted = of_page.with_name(of_page.name + self.suffix)
        if wanted in self.files:
            return self.files[wanted], 0
        stack = self.files.get(stem.with_name(stem.name + self.suffix))
        if stack is None or not is_tiff(stack):
            self.missing.append(str(wanted))
            return None
        have = [index for index, _ in tiff_pages(stack)]
        if len(have) != pages:
            raise DataError(f"{stack}: has {len(have)} pages, the image {pages}")
        return stack, have[number]
