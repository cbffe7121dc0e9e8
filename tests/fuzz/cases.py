"""Inputs that have leaked once: each is read again for good."""

import json
import struct

DIGITS = "9" * 5000
WIDTH = 256  # the tag of a TIFF
NRRD = b"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n"


def with_width(tiff: bytes, layout: str, *values: int) -> bytes:
    """A TIFF with another entry for its width: a layout of `struct`, its type, how many values it has, and these."""
    content = bytearray(tiff)
    (begin,) = struct.unpack_from("<I", content, 4)
    (tags,) = struct.unpack_from("<H", content, begin)
    for at in range(begin + 2, begin + 2 + 12 * tags, 12):
        if struct.unpack_from("<H", content, at)[0] == WIDTH:
            struct.pack_into(layout, content, at, WIDTH, *values)
    return bytes(content)


def areas_of(*kinds: str) -> bytes:
    """GeoJSON with a triangle of each kind."""
    geometry = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [0, 1], [0, 0]]]}
    features = [{"type": "Feature", "properties": {"kind": kind}, "geometry": geometry} for kind in kinds]
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()


def make_cases(tiff: bytes, encoder: bytes, checkpoint: bytes) -> list[tuple[str, str, bytes]]:
    """Kind, file name and content of each.

    Args:
        tiff: a valid picture.
        encoder: a valid config.json of an encoder.
        checkpoint: a valid state.json.
    """
    backbone = json.loads(encoder)
    state = json.loads(checkpoint)
    described = {"labels": {"0": "background", "x": DIGITS, "y": DIGITS}, "modality": {"0": "CT"}}
    return [
        ("dataset.json", "dataset.json", json.dumps(described | {"labels": {"a": DIGITS, "b": 1}}).encode()),
        ("dataset.json", "dataset.json", json.dumps(described).encode()),
        ("tiff", "a.tif", with_width(tiff, "<HHII", 4, 1, 0)),
        ("tiff", "a.tif", with_width(tiff, "<HHIHH", 3, 2, 8, 8)),
        ("itk", "a.nrrd", NRRD + b"a/" * 3000 + b"\n\n" + bytes(24)),  # SimpleITK ended the process
        ("yolo", "labels/train/0.txt", f"{DIGITS} 0.1 0.1 0.5 0.1 0.5 0.5\n".encode()),
        ("yolo", "data.yaml", f"names: [cell]\ntrain: {'1' * 400}\n".encode()),
        ("encoder", "config.json", json.dumps(backbone | {"depths": [1, 1, 2, 10**9]}).encode()),
        ("encoder", "config.json", json.dumps(backbone | {"stage_names": None}).encode()),
        ("checkpoint", "step/state.json", json.dumps(state | {"model": "x"}).encode()),
        ("checkpoint", "step/state.json", json.dumps(state | {"flags": ["x"]}).encode()),
        ("voc", "labelmap.txt", f"a:{DIGITS},0,0::\n".encode()),
        ("points", "a.csv", b"image,landmark,x,y,state\n0.png,1,,,\n1.png,1,2,3,present\n"),
        ("geojson", "areas.geojson", areas_of(DIGITS, "1")),
        ("classes", "a.json", json.dumps({DIGITS: "background", "1": "cell"}).encode()),
    ]
