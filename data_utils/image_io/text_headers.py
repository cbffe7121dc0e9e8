"""Volumes whose header is text: NRRD and MetaImage.

The formats: https://teem.sourceforge.net/nrrd/format.html and https://itk.org/Wiki/ITK/MetaIO/Documentation.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from data_utils.image_io.stored_volume import FROM_END, FileVolume
from runtime.documents import open_regular

Choice = TypeVar("Choice")

HEADER_BYTES = 2**20  # within which a header ends; 3D Slicer writes 600 bytes for a segment
LPS = (-1, -1, 1)  # a world whose axes point left, posterior, superior: the signs that make it ours
TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
BYTE_ORDERS = {"little": "<", "big": ">"}
# what 3D Slicer writes of each segment, https://slicer.readthedocs.io/en/latest/developer_guide/modules/segmentations.html
SEGMENT_FIELD = re.compile(rb"^Segment(\d+)_(Name|Layer|LabelValue):=(.*)$", re.MULTILINE)

META_TYPES = {
    "met_char": "i1",
    "met_uchar": "u1",
    "met_short": "i2",
    "met_ushort": "u2",
    **dict.fromkeys(("met_int", "met_long"), "i4"),
    **dict.fromkeys(("met_uint", "met_ulong"), "u4"),
    "met_long_long": "i8",
    "met_ulong_long": "u8",
    "met_float": "f4",
    "met_double": "f8",
}
META_ALIASES = {
    "elementbyteordermsb": "binarydatabyteordermsb",
    **dict.fromkeys(("position", "origin"), "offset"),
    **dict.fromkeys(("rotation", "orientation"), "transformmatrix"),
}
NRRD_TYPES = {
    **dict.fromkeys(("signed char", "int8", "int8_t"), "i1"),
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), "u1"),
    **dict.fromkeys(("short", "short int", "signed short", "signed short int", "int16", "int16_t"), "i2"),
    **dict.fromkeys(("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"), "u2"),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t"), "i4"),
    **dict.fromkeys(("uint", "unsigned int", "uint32", "uint32_t"), "u4"),
    **dict.fromkeys(("longlong", "long long", "long long int", "signed long long", "int64", "int64_t"), "i8"),
    **dict.fromkeys(("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"), "u8"),
    "float": "f4",
    "double": "f8",
}
NRRD_WORLDS = {
    **dict.fromkeys(("right-anterior-superior", "ras"), (1, 1, 1)),
    **dict.fromkeys(("left-anterior-superior", "las"), (-1, 1, 1)),
}


class TextHeader:
    """The fields of a header, one on each line, up to an empty line or the field `last`.

    Attributes:
        texts: name in small letters and without blanks -> text.
        length: how many bytes the header has.
    """

    def __init__(self, path: str, separator: str, aliases: Mapping[str, str], last: str = "") -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.length = 0
        with open_regular(path) as file:
            for line in iter(lambda: file.readline(HEADER_BYTES - self.length), b""):
                text = line.decode("latin-1").strip()
                self.length += len(line)
                if not text:
                    return
                name, found, value = text.partition(separator)
                # a comment, a key of somebody's own, or the first line of a NRRD
                if text.startswith(("#", "NRRD")) or value.startswith("="):
                    continue
                field = name.replace(" ", "").lower()
                field = aliases.get(field, field)
                if not found or field in self.texts:
                    raise ValueError(f"its header is damaged at {text[:40]!r}")
                self.texts[field] = value.strip()
                if field == last:
                    return
        if self.length == HEADER_BYTES:
            raise ValueError(f"its header has more than {HEADER_BYTES:,} bytes")

    def unexpected(self, name: str, expected: str) -> ValueError:
        """The error for a field that holds something else."""
        return ValueError(f"its header has {name} = {self.texts.get(name, '')[:80]}, expected {expected}")

    def choice(self, name: str, choices: Mapping[str, Choice], default: str = "") -> Choice:
        """What the text of a field stands for."""
        text = self.texts.get(name, default).lower()
        if text not in choices:
            raise self.unexpected(name, f"one of {', '.join(choices)}")
        return choices[text]

    def numbers(self, name: str, count: int, default: str = "") -> np.ndarray:
        """The numbers of a field, or of vectors in brackets; NaN for a vector that is `none`."""
        text = self.texts.get(name, default).replace("none", "nan nan nan")
        for sign in "(),":
            text = text.replace(sign, " ")
        try:
            numbers = np.array([float(word) for word in text.split()])
        except ValueError as error:
            raise self.unexpected(name, "numbers") from error
        if len(numbers) != count:
            raise self.unexpected(name, f"{count} numbers")
        return numbers

    def whole_numbers(self, name: str, count: int, default: str = "", least: int = 1) -> tuple[int, ...]:
        """The whole numbers of a field, all at least `least`."""
        numbers = self.numbers(name, count, default)
        if not (np.isfinite(numbers) & (numbers >= least) & (numbers == np.rint(numbers))).all():
            raise self.unexpected(name, f"{count} whole numbers from {least} up")
        return tuple(map(int, numbers))

    def voxel_file(self, name: str) -> str:
        """The file with the voxels: the one that a field names, beside the header, or the header's own."""
        text = self.texts.get(name, "local").removeprefix("./")
        if text.lower() == "local":
            return self.path
        file = Path(self.path).parent / text
        if Path(text).name != text or not file.is_file():
            raise self.unexpected(name, "a file beside it")
        return str(file)


def _affine(steps: np.ndarray, origin: np.ndarray, signs: tuple[int, int, int]) -> np.ndarray:
    """The affine of a step in mm along each axis, (3, 3), of the place of the first voxel, and of a world."""
    affine = np.eye(4)
    affine[:3, :3] = steps.T
    affine[:3, 3] = origin
    affine[:3] *= np.array(signs)[:, None]
    return affine


def open_meta_image(path: str) -> FileVolume:
    """A MetaImage file."""
    header = TextHeader(path, "=", META_ALIASES, last="elementdatafile")
    header.choice("ndims", {"3": 3})
    header.choice("binarydata", {"true": True, "t": True, "1": True}, "true")
    channels = header.whole_numbers("elementnumberofchannels", 1, "1")
    sizes = channels + header.whole_numbers("dimsize", 3)
    file = header.voxel_file("elementdatafile")
    skipped = header.length
    if file != path:
        (skipped,) = header.whole_numbers("headersize", 1, "0", FROM_END)
    byte_order = ">" if header.choice("binarydatabyteordermsb", TRUTH, "false") else "<"
    dtype = np.dtype(byte_order + header.choice("elementtype", META_TYPES))
    is_compressed = header.choice("compresseddata", TRUTH, "false")
    axes = header.numbers("transformmatrix", 9, "1 0 0 0 1 0 0 0 1").reshape(3, 3)
    sides = header.numbers("elementspacing", 3, header.texts.get("elementsize", "1 1 1"))
    affine = _affine(axes * sides[:, None], header.numbers("offset", 3, "0 0 0"), LPS)
    return FileVolume(file, sizes, 0, dtype, skipped, is_compressed, affine)


def read_segments(path: str) -> dict[str, tuple[str, str]]:
    """Layer and value of each segment of 3D Slicer by its name; none for other files."""
    header = b""
    with suppress(OSError), open_regular(path) as file:  # it is reported where the label is read
        header, _, _ = file.read(HEADER_BYTES).partition(b"\n\n")
    fields: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
    for number, field, value in SEGMENT_FIELD.findall(header):
        fields[number][field] = value.decode(errors="replace").strip()
    segments: dict[str, tuple[str, str]] = {}
    for segment in fields.values():
        if b"Name" in segment:
            segments[segment[b"Name"]] = segment.get(b"Layer", "0"), segment.get(b"LabelValue", "")
    return segments


def open_nrrd(path: str) -> FileVolume:
    """A NRRD file, raw or compressed by gzip."""
    header = TextHeader(path, ":", {})
    axes = header.choice("dimension", {"3": 3, "4": 4})
    sizes = header.whole_numbers("sizes", axes)
    if "spacedirections" in header.texts:
        steps = header.numbers("spacedirections", 3 * axes).reshape(axes, 3)
        is_spatial = ~np.isnan(steps).any(axis=1)
    else:
        sides = header.numbers("spacings", axes, "1 " * axes)
        is_spatial = ~np.isnan(sides)
        steps = np.diag(sides)[:, is_spatial]
    if is_spatial.sum() != 3:
        raise header.unexpected("spacedirections", "3 axes in space")
    channel_axis = 3
    if axes == 3:
        sizes = (*sizes, 1)
    else:
        channel_axis = int(is_spatial.argmin())
    file = header.voxel_file("datafile")
    header.choice("lineskip", {"0": 0}, "0")
    (skipped,) = header.whole_numbers("byteskip", 1, "0", FROM_END)
    if file == path and skipped != FROM_END:
        skipped += header.length
    byte_order = header.choice("endian", BYTE_ORDERS, "little")
    dtype = np.dtype(byte_order + header.choice("type", NRRD_TYPES))
    is_compressed = header.choice("encoding", {"raw": False, "gzip": True, "gz": True})
    world = NRRD_WORLDS.get(header.texts.get("space", "").lower(), LPS)
    affine = _affine(steps[is_spatial], header.numbers("spaceorigin", 3, "0 0 0"), world)
    return FileVolume(file, sizes, channel_axis, dtype, skipped, is_compressed, affine)
