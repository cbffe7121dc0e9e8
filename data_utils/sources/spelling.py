"""Names of files as programs and people write them: alike for the eye, though their characters differ."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping


def composed(text: str) -> str:
    """The text with one character for an accented letter (NFC), as most systems have it; macOS stores two."""
    return unicodedata.normalize("NFC", text)


def by_composed_name(files: Mapping[str, str]) -> dict[str, str]:
    """The files by their names, `composed` unless two names differ in nothing else."""
    counts = Counter(map(composed, files))
    by_name: dict[str, str] = {}
    for name, file in files.items():
        key = composed(name)
        by_name[key if counts[key] == 1 else name] = file
    return by_name


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Name by each of its spellings, for `find_name`."""
    by_spelling: dict[str, str] = {}
    for name in names:
        by_spelling.setdefault(composed(name), name)
        by_spelling[name] = name
    return by_spelling


def find_name(written: str, by_spelling: Mapping[str, str]) -> str | None:
    """The name that a list means: as it stands, or with slashes for backslashes, `./` in front, accents composed."""
    if written in by_spelling:
        return by_spelling[written]
    return by_spelling.get(composed(written.replace("\\", "/").removeprefix("./")))
