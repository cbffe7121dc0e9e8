"""Polygons in Well-Known Binary: their rings, and what is no polygon."""

import struct

import numpy as np
import pytest

from data_utils.image_io.well_known_binary import parse_rings, well_known_binary
from runtime.errors import DataError

RING = np.array([[0, 0], [4, 0], [4, 3], [0, 0]], float)


def test_rings_of_nothing_are_none():
    assert list(parse_rings(None, "a")) == []


def test_rings_of_a_polygon_are_its_outline_with_its_holes():
    polygon = well_known_binary([RING, RING / 2])
    assert [ring.tolist() for ring in parse_rings(polygon, "a")] == [RING.tolist(), (RING / 2).tolist()]


def test_rings_of_whole_numbers_are_written_as_others():
    assert well_known_binary([RING.astype(np.int32)]) == well_known_binary([RING])


@pytest.mark.parametrize("head", [struct.pack(">BII", 0, 6, 2), struct.pack("<BII", 1, 6, 2)], ids=["big", "little"])
def test_rings_are_those_of_all_polygons_whatever_their_order_of_bytes(head):
    big_endian = struct.pack(">BIII", 0, 3, 1, len(RING)) + RING.astype(">f8").tobytes()
    rings = list(parse_rings(head + big_endian + well_known_binary([RING + 1, RING + 2]), "a"))
    assert {ring.dtype for ring in rings} == {np.dtype(np.float64)}
    assert [ring.tolist() for ring in rings] == [RING.tolist(), (RING + 1).tolist(), (RING + 2).tolist()]


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<BII", 1, 1, 1),
        struct.pack("<BII", 1, 6, 1) + struct.pack("<BII", 1, 1, 1),
        struct.pack("<BII", 1, 6, 1) + struct.pack("<BI", 1, 2) + well_known_binary([RING])[5:],
        well_known_binary([RING])[:-1],
        well_known_binary([RING])[:10],
        b"",
    ],
    ids=["point", "point among polygons", "rings of another kind", "cut in a ring", "cut in a head", "empty"],
)
def test_a_shape_that_is_no_polygon_is_refused(content):
    with pytest.raises(DataError, match=r"^a\.gpkg, row 3 is no Polygon or MultiPolygon \("):
        list(parse_rings(content, "a.gpkg, row 3"))
