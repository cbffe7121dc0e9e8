"""MetaImage and NRRD files of 2 x 3 x 4 voxels, good or with a field that is not."""

from pathlib import Path

META_IMAGE = """ObjectType = Image
NDims = {axes}
BinaryData = True
BinaryDataByteOrderMSB = False
CompressedData = False
TransformMatrix = 1 0 0 0 1 0 0 0 1
Offset = 0 0 0
ElementSpacing = 1 1 1
DimSize = {sides}
ElementNumberOfChannels = {channels}
ElementType = {kind}
ElementDataFile = {data}
"""


def meta_image(path: Path, axes="3", sides="2 3 4", channels="1", kind="MET_UCHAR", data="LOCAL") -> Path:
    header = META_IMAGE.format(axes=axes, sides=sides, channels=channels, kind=kind, data=data)
    path.write_bytes(header.encode() + bytes(range(24)))
    return path


SPACE = "space: left-posterior-superior\n"


NRRD = "NRRD0004\ntype: {kind}\ndimension: 3\nspace: left-posterior-superior\nsizes: {sizes}\nendian: little\n"
NRRD += "space directions: (1,0,0) (0,1,0) (0,0,1)\nspace origin: (0,0,0)\nencoding: {encoding}\n{more}\n"


def nrrd(path: Path, kind="uint8", sizes="2 3 4", encoding="raw", more="") -> Path:
    header = NRRD.format(kind=kind, sizes=sizes, encoding=encoding, more=more)
    path.write_bytes(header.encode() + bytes(range(24)))
    return path
