"""The names of bands: as GDAL stores them in a TIFF, and as flags and files have them."""

import html
import re
from collections.abc import Sequence

import tifffile

METADATA = 42112  # GDAL's: a text in XML, with the names of bands
DESCRIPTION = re.compile(r'<Item name="DESCRIPTION" sample="(\d{1,6})"[^>]*>([^<]*)</Item>')


def stored_band_names(page: tifffile.TiffPage, count: int) -> tuple[str, ...]:
    """The names that GDAL has given the bands; empty texts for others."""
    names = [""] * count
    text = page.tags.valueof(METADATA)
    if isinstance(text, str):
        for sample, name in DESCRIPTION.findall(text):
            if int(sample) < count:
                names[int(sample)] = html.unescape(name).strip()
    return tuple(names)


def band_indices(names: Sequence[str], band_name: str) -> list[int]:
    """The indices of the names that equal `band_name`; if there are none, of the names that hold it as a word."""
    equal_names = [index for index, name in enumerate(names) if name.casefold() == band_name.casefold()]
    return equal_names or [index for index, name in enumerate(names) if has_band_name(name, band_name)]


def has_band_name(name: str, band_name: str) -> bool:
    """Whether a name, such as the file name T32TQM_20200101_B02_10m, is `band_name` or holds it as a word."""
    pattern = rf"(^|.*[_\-. ]){re.escape(band_name)}([_\-. ].*|$)"
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None
