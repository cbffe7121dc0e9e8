"""The headers of MetaImage (.mha, .mhd) and NRRD files, checked before SimpleITK reads them.

SimpleITK trusts their numbers, opens the files that they name, and ends the process at some damages. The formats:
https://itk.org/Wiki/ITK/MetaIO/Documentation and https://teem.sourceforge.net/nrrd/format.html.
"""

import re
from math import isfinite, prod
from pathlib import Path

from data_utils.image_io.formats import check_memory
from runtime.documents import open_regular

HEADER_BYTES = 2**16  # within which a header ends
MOST_DEFLATED = 1032  # the most bytes to which zlib inflates one

LAST_FIELD = "ElementDataFile"  # the voxels of a MetaImage begin behind this field
LOCAL = "local"  # its value where the voxels are in the file itself
AXES = 3
MOST_CHANNELS = 2**16
META_BYTES = {
    **dict.fromkeys(("MET_CHAR", "MET_UCHAR"), 1),
    **dict.fromkeys(("MET_SHORT", "MET_USHORT"), 2),
    **dict.fromkeys(("MET_INT", "MET_UINT", "MET_LONG", "MET_ULONG", "MET_FLOAT"), 4),
    **dict.fromkeys(("MET_LONG_LONG", "MET_ULONG_LONG", "MET_DOUBLE"), 8),
}
NUMBER_COUNTS = {  # field: how many numbers it holds
    **dict.fromkeys(("DimSize", "ElementSpacing", "ElementSize", "Offset", "Position", "Origin"), AXES),
    "CenterOfRotation": AXES,
    **dict.fromkeys(("TransformMatrix", "Rotation", "Orientation"), AXES * AXES),
}

MOST_AXES = 16
NRRD_BYTES = {  # name of a type without `unsigned`, `signed`, `int` and `_t` -> bytes of a value
    **dict.fromkeys(("char", "8"), 1),
    **dict.fromkeys(("short", "16"), 2),
    **dict.fromkeys(("", "32", "float"), 4),  # int has no name left
    **dict.fromkeys(("longlong", "64", "double"), 8),
}
# the fields that the format has, without blanks
NRRD_FIELDS: tuple[str, ...] = ("content", "number", "type", "blocksize", "dimension", "space", "spacedimension")
NRRD_FIELDS += ("sizes", "spacings", "thicknesses", "axismins", "axismaxs", "spacedirections", "centers", "centerings")
NRRD_FIELDS += ("kinds", "labels", "units", "spaceunits", "spaceorigin", "measurementframe", "min", "max", "oldmin")
NRRD_FIELDS += ("oldmax", "endian", "encoding", "lineskip", "byteskip", "sampleunits", "datafile")
LONGEST_FIELD = 500  # characters: SimpleITK ends the process at far longer ones that it cannot understand
NUMBER = r"[-+]?[0-9.]{1,30}(?:[eE][-+]?[0-9]{1,3})?"
VECTOR = rf"\(\s*{NUMBER}(?:\s*,\s*{NUMBER})*\s*\)|none"
ENCODINGS = {"raw": 1, "gzip": MOST_DEFLATED, "gz": MOST_DEFLATED}  # bytes of values for each byte, at most


def check_meta_image(path: str) -> None:
    """Raises ValueError unless a MetaImage file is a volume with a valid header and all its voxels."""
    fields = _meta_fields(path)
    axes = _whole_number(fields, "NDims", AXES)
    if axes != AXES:
        raise ValueError(f"it has {axes} axes, a volume has {AXES}")
    for name, count in NUMBER_COUNTS.items():
        if name in fields and len(_numbers(fields, name)) != count:
            raise _unexpected(fields, name, f"{count} numbers")
    sides = _numbers(fields, "DimSize")
    if not sides or min(sides) < 1 or not all(side.is_integer() for side in sides):
        raise _unexpected(fields, "DimSize", f"{AXES} numbers above 0")
    channels = _whole_number(fields, "ElementNumberOfChannels", 1)
    if not 1 <= channels <= MOST_CHANNELS:
        raise _unexpected(fields, "ElementNumberOfChannels", f"1 to {MOST_CHANNELS}")
    voxel_bytes = META_BYTES.get(fields.get("ElementType", ""))
    if voxel_bytes is None:
        raise _unexpected(fields, "ElementType", f"one of {', '.join(META_BYTES)}")
    file = Path(path)
    if fields[LAST_FIELD].lower() != LOCAL:
        file = _file_beside(path, fields[LAST_FIELD], LAST_FIELD)
    most_bytes = file.stat().st_size
    if fields.get("CompressedData", "").lower().startswith(("t", "1")):
        most_bytes *= MOST_DEFLATED
    _check_size(prod(map(int, sides)) * channels * voxel_bytes, most_bytes)


def _meta_fields(path: str) -> dict[str, str]:
    """Name -> text of each line of the header, up to the one that says where the voxels are."""
    with open_regular(path) as file:
        head = file.read(HEADER_BYTES)
    fields = {}
    for line in head.split(b"\n"):
        name, separator, value = line.decode("latin-1").partition("=")
        name = name.strip()
        if not separator or name in fields:
            raise ValueError("its header is damaged")
        fields[name] = value.strip()
        if name == LAST_FIELD:
            return fields
    raise ValueError(f"its header has no {LAST_FIELD}")


def _numbers(fields: dict[str, str], name: str) -> list[float]:
    """The finite numbers of a field; none if one of them is no number."""
    try:
        numbers = [float(word) for word in fields.get(name, "").split()]
    except ValueError:
        return []
    return numbers if all(map(isfinite, numbers)) else []


def _whole_number(fields: dict[str, str], name: str, default: int) -> int:
    """The whole number of a field, or `default` where there is no such field."""
    text = fields.get(name, str(default))
    if not text.isdecimal() or len(text) > len(str(2**31)):
        raise _unexpected(fields, name, "a whole number")
    return int(text)


def check_nrrd(path: str) -> None:
    """Raises ValueError unless a NRRD file has a size that fits into memory, and voxels in itself or beside it."""
    fields, header_bytes = _nrrd_fields(path)
    sizes = fields.get("sizes", "").split()
    if not 1 <= len(sizes) <= MOST_AXES or not all(re.fullmatch("[1-9][0-9]{0,9}", size) for size in sizes):
        raise _unexpected(fields, "sizes", "numbers above 0")
    if fields.get("dimension", "") != str(len(sizes)):
        raise _unexpected(fields, "dimension", f"{len(sizes)}, as there are sizes")
    for name, count in (("spacedirections", len(sizes)), ("spaceorigin", 1)):
        if name in fields and not re.fullmatch(rf"(?:{VECTOR})(?:\s+(?:{VECTOR})){{{count - 1}}}", fields[name]):
            raise _unexpected(fields, name, f"{count} of the form (x,y,z)")
    kind = re.sub(r"unsigned|signed|int|_t|\s|^u", "", fields.get("type", "?"))
    if kind not in NRRD_BYTES:
        raise _unexpected(fields, "type", "that of a number")
    encoding = fields.get("encoding", "").lower()
    if encoding not in ENCODINGS:
        raise _unexpected(fields, "encoding", "raw or gzip")
    stored_bytes = Path(path).stat().st_size - header_bytes
    if "datafile" in fields:
        stored_bytes = _file_beside(path, fields["datafile"], "data file").stat().st_size
    _check_size(prod(map(int, sizes)) * NRRD_BYTES[kind], stored_bytes * ENCODINGS[encoding])


def _nrrd_fields(path: str) -> tuple[dict[str, str], int]:
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
        # a comment, or a key and its value
        if line.startswith("#") or not line or re.match(r"[^:]*:=", line):
            continue
        name, separator, value = line.partition(":")
        field = name.replace(" ", "").lower()
        is_text = line.isascii() or field == "content"
        if not separator or field not in NRRD_FIELDS or len(line) > LONGEST_FIELD or not is_text:
            raise ValueError(f"its header has a line {line[:40]!r}, which is no field of the format")
        if field in fields:
            raise ValueError(f"its header says {name} twice")
        fields[field] = value.strip()
    return fields, header_bytes


def _unexpected(fields: dict[str, str], name: str, expected: str) -> ValueError:
    """The error of a field that holds something else."""
    return ValueError(f"its header has {name} = {fields.get(name, '')[:40]}, expected {expected}")


def _file_beside(path: str, name: str, field: str) -> Path:
    """The file beside a header that holds the voxels, as a field of the header names it."""
    file = Path(path).parent / name
    if Path(name).name != name or not file.is_file():
        raise ValueError(f"its header has {field} = {name[:80]}, expected a file beside it")
    return file


def _check_size(voxel_bytes: int, most_bytes: int) -> None:
    """Raises ValueError for more voxels than a file can hold, or than fit into memory."""
    if voxel_bytes > most_bytes:
        raise ValueError("the file ends before its voxels do")
    check_memory(voxel_bytes, "the volume")
