"""The header of a NRRD file, checked before SimpleITK reads it, which trusts its numbers and opens the file it names.

The format: https://teem.sourceforge.net/nrrd/format.html.
"""

import re
from math import prod
from pathlib import Path

from data_utils.image_io.formats import check_memory

HEADER_BYTES = 2**16  # a header ends within so many
MOST_AXES = 16
MOST_DEFLATED = 1032  # zlib inflates one byte to so many at most
DATA_FILE = ("data file", "datafile")
NUMBERS = {  # name of a type without `unsigned`, `signed`, `int` and `_t` -> bytes of a value
    "char": 1,
    "8": 1,
    "short": 2,
    "16": 2,
    "": 4,  # int
    "32": 4,
    "float": 4,
    "longlong": 8,
    "64": 8,
    "double": 8,
}
ENCODINGS = {  # how many bytes of values a byte of the file stands for, at most
    "raw": 1,
    "gzip": MOST_DEFLATED,
    "gz": MOST_DEFLATED,
}


def check_nrrd(path: str) -> None:
    """ValueError unless a NRRD file says how large it is, fits into memory, and has its voxels in itself or beside."""
    fields, header_bytes = _read_fields(path)
    sizes = fields.get("sizes", "").split()
    if not 1 <= len(sizes) <= MOST_AXES or not all(re.fullmatch("[1-9][0-9]{0,9}", size) for size in sizes):
        raise ValueError(f"its header has sizes = {fields.get('sizes', '')[:40]}, expected numbers above 0")
    kind = re.sub(r"unsigned|signed|int|_t|\s|^u", "", fields.get("type", "?"))
    if kind not in NUMBERS:
        raise ValueError(f"its header has type = {fields.get('type', '')[:40]}, expected that of a number")
    encoding = fields.get("encoding", "").lower()
    if encoding not in ENCODINGS:
        raise ValueError(f"its header has encoding = {encoding[:40]}, expected raw or gzip")
    file = _data_file(path, fields)
    stored_bytes = file.stat().st_size
    if file == Path(path):
        stored_bytes -= header_bytes
    voxel_bytes = prod(map(int, sizes)) * NUMBERS[kind]
    if voxel_bytes > stored_bytes * ENCODINGS[encoding]:
        raise ValueError("the file ends before its voxels do")
    check_memory(voxel_bytes, "the volume")


def _read_fields(path: str) -> tuple[dict[str, str], int]:
    """Name -> text of each field of the header, and how many bytes the header has."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    end = re.search(rb"\r?\n\r?\n", head)
    header_bytes = end.end() if end else len(head)
    lines = head[:header_bytes].decode("latin-1").splitlines()
    if not lines or not re.fullmatch("NRRD000[1-5]", lines[0].strip()):
        raise ValueError("it is no NRRD file, or of a newer version")
    fields = {}
    for line in lines[1:]:
        name, separator, value = line.partition(": ")
        name = name.strip().lower()
        if line.startswith("#") or not separator or ":=" in line.partition(" ")[0]:
            continue
        if name in fields:
            raise ValueError(f"its header says {name[:40]} twice")
        fields[name] = value.strip()
    return fields, header_bytes


def _data_file(path: str, fields: dict[str, str]) -> Path:
    """The file that holds the voxels: the file itself, or one that lies beside it."""
    header = Path(path)
    names = [fields[name] for name in DATA_FILE if name in fields]
    if not names:
        return header
    file = header.parent / names[0]
    if len(names) > 1 or Path(names[0]).name != names[0] or not file.is_file():
        raise ValueError(f"its header has data file = {names[0][:80]}, expected a file beside it")
    return file
