"""The headers of DICOM files; pydicom reads them."""

import logging
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from runtime.documents import open_regular
from runtime.errors import DataError

SUFFIXES = (".dcm", ".dicom")
PREAMBLE = 128  # bytes before the mark
MARK = b"DICM"
LIBRARIES = ("pydicom", "highdicom")


def starts_as_dicom(content: bytes) -> bool:
    """Whether a file that begins with these bytes is a DICOM file."""
    return content[PREAMBLE : PREAMBLE + len(MARK)] == MARK


def is_dicom(path: str | Path) -> bool:
    """Whether a file has the mark of DICOM; its name may be any."""
    try:
        with open_regular(path) as file:
            return starts_as_dicom(file.read(PREAMBLE + len(MARK)))
    except OSError:
        return False


@cache
def load_pydicom() -> Any:
    """Import pydicom, silent about odd values, which may be those of a patient.

    Only here, so that users of other files do not wait for it. Raises DataError if a package is missing, also
    highdicom, which is imported where segmentations are written: nobody shall predict first and then miss it.
    """
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise DataError(f"DICOM files need {library}: pip install pydicom highdicom python-gdcm")
    import pydicom

    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module=library)
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    pydicom.config.settings.writing_validation_mode = pydicom.config.IGNORE
    return pydicom


def read_header(path: str | Path, keywords: Iterable[str] | None = None) -> Any:
    """The header of a DICOM file, or some of its elements. May raise any error."""
    tags = None if keywords is None else list(keywords)
    return load_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=tags)


def required(header: Any, keyword: str) -> Any:
    """An element of a header. Raises ValueError if it is missing or empty."""
    value = header.get(keyword)
    if value is None or (hasattr(value, "__len__") and len(value) == 0):
        raise ValueError(f"it has no {keyword}")
    return value


def numbers_of(header: Any, keyword: str, count: int) -> list[float]:
    """The numbers of an element. Raises ValueError if it holds others."""
    value = required(header, keyword)
    try:
        numbers = [float(number) for number in (value if count > 1 else [value])]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(isfinite, numbers)):
        raise ValueError(f"its {keyword} is not {count} numbers")
    return numbers
