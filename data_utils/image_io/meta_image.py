"""The header of a MetaImage file (.mha, .mhd), checked before SimpleITK reads it: a damaged one ends the process there.

The format: https://itk.org/Wiki/ITK/MetaIO/Documentation.
"""

from math import isfinite, prod
from pathlib import Path

from data_utils.image_io.formats import check_memory
from runtime.documents import open_regular

HEADER_BYTES = 2**16  # within which a header ends
LAST_FIELD = "ElementDataFile"  # the voxels begin behind this field
LOCAL = "local"  # its value where the voxels are in the file itself
AXES = 3
MOST_CHANNELS = 2**16
MOST_DEFLATED = 1032  # the most bytes to which zlib inflates one
VOXEL_BYTES = {
    **dict.fromkeys(("MET_CHAR", "MET_UCHAR"), 1),
    **dict.fromkeys(("MET_SHORT", "MET_USHORT"), 2),
    **dict.fromkeys(("MET_INT", "MET_UINT", "MET_LONG", "MET_ULONG", "MET_FLOAT"), 4),
    **dict.fromkeys(("MET_LONG_LONG", "MET_ULONG_LONG", "MET_DOUBLE"), 8),
}
NUMBER_COUNTS = {  # field: how many numbers it holds
    "DimSize": AXES,
    "ElementSpacing": AXES,
    "ElementSize": AXES,
    "Offset": AXES,
    "Position": AXES,
    "Origin": AXES,
    "CenterOfRotation": AXES,
    "TransformMatrix": AXES * AXES,
    "Rotation": AXES * AXES,
    "Orientation": AXES * AXES,
}


def check_meta_image(path: str) -> None:
    """Raises ValueError unless a MetaImage file is a volume with a valid header and all its voxels."""
    fields = _read_fields(path)
    axes = _whole_number(fields, "NDims", AXES)
    if axes != AXES:
        raise ValueError(f"it has {axes} axes, a volume has {AXES}")
    for name, count in NUMBER_COUNTS.items():
        if name in fields and len(_numbers(fields, name)) != count:
            raise ValueError(f"its header has {name} = {fields[name][:40]}, expected {count} numbers")
    sides = _numbers(fields, "DimSize")
    if not sides or min(sides) < 1 or not all(side.is_integer() for side in sides):
        raise ValueError(f"its header has DimSize = {fields.get('DimSize', '')[:40]}, expected {AXES} numbers above 0")
    channels = _whole_number(fields, "ElementNumberOfChannels", 1)
    if not 1 <= channels <= MOST_CHANNELS:
        raise ValueError(f"its header has ElementNumberOfChannels = {channels}")
    voxel_bytes = VOXEL_BYTES.get(fields.get("ElementType", ""))
    if voxel_bytes is None:
        types = ", ".join(VOXEL_BYTES)
        raise ValueError(f"its header has ElementType = {fields.get('ElementType', '')[:40]}, expected one of {types}")
    stored_bytes = _data_file(path, fields).stat().st_size
    is_compressed = fields.get("CompressedData", "").lower().startswith(("t", "1"))
    most_bytes = stored_bytes * MOST_DEFLATED if is_compressed else stored_bytes
    volume_bytes = prod(map(int, sides)) * channels * voxel_bytes
    if volume_bytes > most_bytes:
        raise ValueError("the file ends before its voxels do")
    check_memory(volume_bytes, "the volume")


def _read_fields(path: str) -> dict[str, str]:
    """Name -> text of each line of the header, up to the one that says where the voxels are."""
    with open_regular(path) as file:
        head = file.read(HEADER_BYTES)
    fields = {}
    for line in head.split(b"\n"):
        name, separator, value = line.decode("latin-1").partition("=")
        name = name.strip()
        value = value.strip()
        if not separator or name in fields:
            raise ValueError("its header is damaged")
        fields[name] = value
        if name == LAST_FIELD:
            return fields
    raise ValueError(f"its header has no {LAST_FIELD}")


def _numbers(fields: dict[str, str], name: str) -> list[float]:
    """The finite numbers of a field; none if one of them is no number."""
    try:
        numbers = [float(word) for word in fields.get(name, "").split()]
    except ValueError:
        return []
    if not all(map(isfinite, numbers)):
        return []
    return numbers


def _whole_number(fields: dict[str, str], name: str, default: int) -> int:
    """The whole number of a field, or `default` where there is no such field."""
    text = fields.get(name, str(default))
    if not text.isdecimal() or len(text) > len(str(2**31)):
        raise ValueError(f"its header has {name} = {text[:40]}, expected a whole number")
    return int(text)


def _data_file(path: str, fields: dict[str, str]) -> Path:
    """The file that holds the voxels: the file itself, or one that lies beside it."""
    header = Path(path)
    name = fields[LAST_FIELD]
    if name.lower() == LOCAL:
        return header
    file = header.parent / name
    if Path(name).name != name or not file.is_file():
        raise ValueError(f"its header has {LAST_FIELD} = {name[:80]}, expected LOCAL or a file beside it")
    return file
