"""Images of a validation part that are equal to images that the model was trained on."""

from collections import defaultdict
from pathlib import Path

from data_utils.sources.excluded import shown_name
from data_utils.sources.records import Records
from runtime.files import checksum


def equal_images(train: Records, val: Records) -> dict[str, str]:
    """{name of a validation image: name of a training image} of files with the same content.

    Files are compared by size first, so that few are read. Images without a file of their own are not compared.
    """
    by_size: dict[int, list[tuple[str, Path]]] = defaultdict(list)
    for name, file in _files(train):
        by_size[file.stat().st_size].append((name, file))
    equal = {}
    sums: dict[Path, str] = {}
    for name, file in _files(val):
        for other_name, other in by_size.get(file.stat().st_size, ()):
            for path in (file, other):
                if path not in sums:
                    sums[path] = checksum(path)
            if sums[file] == sums[other]:
                equal[name] = other_name
                break
    return equal


def _files(records: Records) -> list[tuple[str, Path]]:
    """The name and the file of each image that is a file of its own."""
    files = []
    for index, record in enumerate(records):
        source = record["image"]
        if isinstance(source, str | Path) and Path(source).is_file():
            files.append((shown_name(records, index), Path(source)))
    return files
