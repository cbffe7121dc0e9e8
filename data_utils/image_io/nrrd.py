"""The header of a NRRD file, checked before SimpleITK reads it, which trusts its numbers and opens the file it names.

The format: https://teem.sourceforge.net/nrrd/format.html.
"""

import re
from math import prod
from pathlib import Path

from data_utils.image_io.formats import check_memory
from runtime.documents import open_regular

HEADER_BYTES = 2**16  # within which a header ends
MOST_AXES = 16
MOST_DEFLATED = 1032  # the most bytes to which zlib inflates one
VALUE_BYTES = {  # name of a type without `unsigned`, `signed`, `int` and `_t` -> bytes of a value
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
# the fields that the format has, without blanks
FIELDS: tuple[str, ...] = ("content", "number", "type", "blocksize", "dimension", "space", "spacedimension", "sizes")
FIELDS += ("spacings", "thicknesses", "axismins", "axismaxs", "spacedirections", "centers", "centerings", "kinds")
FIELDS += ("labels", "units", "spaceunits", "spaceorigin", "measurementframe", "min", "max", "oldmin", "oldmax")
FIELDS += ("endian", "encoding", "lineskip", "byteskip", "sampleunits", "datafile")
LONGEST_FIELD = 500  # characters: SimpleITK ends the process at far longer ones that it cannot understand
NUMBER = r"[-+]?[0-9.]{1,30}(?:[eE][-+]?[0-9]{1,3})?"
VECTOR = rf"\(\s*{NUMBER}(?:\s*,\s*{NUMBER})*\s*\)|none"
ENCODINGS = {  # how many bytes of values a byte of the file stands for, at most
    "raw": 1,
    "gzip": MOST_DEFLATED,
    "gz": MOST_DEFLATED,
}


def check_nrrd(path: str) -> None:
    """Raises ValueError unless a NRRD file has a size that fits into memory, and voxels in itself or beside it."""
    fields, header_bytes = _read_fields(path)
    sizes = fields.get("sizes", "").split()
    if not 1 <= len(sizes) <= MOST_AXES or not all(re.fullmatch("[1-9][0-9]{0,9}", size) for size in sizes):
        raise ValueError(f"its header has sizes = {fields.get('sizes', '')[:40]}, expected numbers above 0")
    if fields.get("dimension", "") != str(len(sizes)):
        raise ValueError(f"its header has dimension = {fields.get('dimension', '')[:40]}, and {len(sizes)} sizes")
    _check_vectors(fields, "spacedirections", len(sizes))
    _check_vectors(fields, "spaceorigin", 1)
    kind = re.sub(r"unsigned|signed|int|_t|\s|^u", "", fields.get("type", "?"))
    if kind not in VALUE_BYTES:
        raise ValueError(f"its header has type = {fields.get('type', '')[:40]}, expected that of a number")
    encoding = fields.get("encoding", "").lower()
    if encoding not in ENCODINGS:
        raise ValueError(f"its header has encoding = {encoding[:40]}, expected raw or gzip")
    file = _data_file(path, fields)
    stored_bytes = file.stat().st_size
    if file == Path(path):
        stored_bytes -= header_bytes
    voxel_bytes = prod(map(int, sizes)) * VALUE_BYTES[kind]
    if voxel_bytes > stored_bytes * ENCODINGS[encoding]:
        raise ValueError("the file ends before its voxels do")
    check_memory(voxel_bytes, "the volume")


def _read_fields(path: str) -> tuple[dict[str, str], int]:
    """Name -> text of each field of the header, and how many bytes the header has."""
    with open_regular(path) as file:
        head = file.read(HEADER_BYTES)
    end = re.search(rb"\r?\n\r?\n", head)
    header_bytes = end.end() if end else len(head)
    lines = head[:header_bytes].decode("latin-1").splitlines()
    if not lines or not re.fullmatch("NRRD000[1-5]", lines[0].strip()):
        raise ValueError("it is no NRRD file, or of a newer version")
    fields = {}
    for line in lines[1:]:
        if line.startswith("#") or not line or re.match(r"[^:]*:=", line):  # a comment, or a key and its value
            continue
        name, separator, value = line.partition(":")
        field = name.replace(" ", "").lower()
        is_text = line.isascii() or field == "content"
        if not separator or field not in FIELDS or len(line) > LONGEST_FIELD or not is_text:
            raise ValueError(f"its header has a line {line[:40]!r}, which is no field of the format")
        if field in fields:
            raise ValueError(f"its header says {name} twice")
        fields[field] = value.strip()
    return fields, header_bytes


def _check_vectors(fields: dict[str, str], name: str, count: int) -> None:
    """Raises ValueError if a field is there and does not have `count` vectors."""
    text = fields.get(name)
    if text is not None and not re.fullmatch(rf"(?:{VECTOR})(?:\s+(?:{VECTOR})){{{count - 1}}}", text):
        raise ValueError(f"its header has {name} = {text[:40]}, expected {count} of the form (x,y,z)")


def _data_file(path: str, fields: dict[str, str]) -> Path:
    """The file that holds the voxels: the file itself, or one that lies beside it."""
    header = Path(path)
    name = fields.get("datafile")
    if name is None:
        return header
    file = header.parent / name
    if Path(name).name != name or not file.is_file():
        raise ValueError(f"its header has data file = {name[:80]}, expected a file beside it")
    return file
