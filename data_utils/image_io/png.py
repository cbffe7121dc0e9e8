"""PNG files whose pixels end before the picture does, which Pillow fills with zeros."""

import struct
import zlib
from math import ceil
from typing import IO

SIGNATURE_BYTES = 8
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by the type of color
INTERLACED_PASSES = ((8, 8), (8, 8), (8, 4), (4, 4), (4, 2), (2, 2), (2, 1))  # rows and columns from pixel to pixel
FIRST_PIXELS = ((0, 0), (0, 4), (4, 0), (0, 2), (2, 0), (0, 1), (1, 0))  # row and column in each pass
PIECE_BYTES = 2**20


def check_rows(file: IO[bytes]) -> None:
    """Raises ValueError if the pixels of a PNG are fewer than its header claims.

    The format: https://www.w3.org/TR/png-3/.
    """
    file.seek(SIGNATURE_BYTES)
    inflater = zlib.decompressobj()
    expected = 0
    held = 0
    while True:
        head = file.read(8)
        length, kind = struct.unpack(">I4s", head) if len(head) == 8 else (0, b"IEND")
        if kind == b"IEND":
            break
        if kind == b"IHDR":
            expected = _inflated_bytes(file.read(length))
        elif kind == b"IDAT":
            piece = file.read(length)
            while piece and held < expected:
                held += len(inflater.decompress(piece, PIECE_BYTES))
                piece = inflater.unconsumed_tail
        else:
            file.seek(length, 1)
        file.seek(4, 1)  # the checksum
    if held < expected:
        raise ValueError(f"its pixels end after {held:,} of {expected:,} bytes")


def _inflated_bytes(header: bytes) -> int:
    """The bytes of all rows, each with a byte for its filter."""
    width, height, bits, color, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13])
    pixel_bits = bits * SAMPLES.get(color, 1)
    if not interlaced:
        return height * (1 + ceil(width * pixel_bits / 8))
    total = 0
    for (row_step, column_step), (row, column) in zip(INTERLACED_PASSES, FIRST_PIXELS, strict=True):
        rows = ceil((height - row) / row_step)
        columns = ceil((width - column) / column_step)
        if rows > 0 and columns > 0:
            total += rows * (1 + ceil(columns * pixel_bits / 8))
    return total
