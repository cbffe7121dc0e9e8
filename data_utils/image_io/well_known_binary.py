"""Polygons as WKB, well-known binary, https://www.ogc.org/standards/sfa."""

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from runtime.errors import DataError

POLYGON = 3
MULTIPOLYGON = 6


def well_known_binary(rings: Sequence[np.ndarray]) -> bytes:
    """A polygon of rings (n, 2), each of which ends where it begins."""
    parts = [struct.pack("<BII", 1, POLYGON, len(rings))]
    for ring in rings:
        parts.append(struct.pack("<I", len(ring)))
        parts.append(np.ascontiguousarray(ring, "<f8").tobytes())
    return b"".join(parts)


def parse_rings(geometry: bytes | None, location: str) -> Iterator[np.ndarray]:
    """The rings (n, 2) of a polygon or of several; nothing for an empty geometry. Raises DataError, with `location`."""
    if geometry is None:
        return
    try:
        yield from _Reader(geometry).rings()
    except (struct.error, ValueError) as error:
        raise DataError(f"{location} is no Polygon or MultiPolygon ({error})") from None


class _Reader:
    """Reads a geometry from its first byte on."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def rings(self) -> Iterator[np.ndarray]:
        """The rings of all polygons."""
        order, kind, count = self._head()
        if kind == POLYGON:
            yield from self._rings(order, count)
            return
        if kind != MULTIPOLYGON:
            raise ValueError(f"type {kind}")
        for _ in range(count):
            order, kind, rings = self._head()
            if kind != POLYGON:
                raise ValueError(f"type {kind} in a MultiPolygon")
            yield from self._rings(order, rings)

    def _head(self) -> tuple[str, int, int]:
        """The order of bytes, the type, and how many parts there are."""
        order = "<" if self.content[self.position : self.position + 1] == b"\1" else ">"
        kind, count = struct.unpack_from(f"{order}II", self.content, self.position + 1)
        self.position += 9
        return order, kind, count

    def _rings(self, order: str, count: int) -> Iterator[np.ndarray]:
        for _ in range(count):
            (corners,) = struct.unpack_from(f"{order}I", self.content, self.position)
            self.position += 4
            values = np.frombuffer(self.content, f"{order}f8", 2 * corners, self.position)
            self.position += values.nbytes
            yield values.reshape(-1, 2).astype(np.float64)
