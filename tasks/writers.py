"""Pictures written a few rows at a time, however large they are, and TIFFs of several pages."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import BinaryIO

import numpy as np
import tifffile

# levels of compression
MASK_LEVEL = 6
OVERLAY_LEVEL = 1  # a higher one makes photographs a fifth smaller and takes eight times as long


def write_png(file: BinaryIO, size: tuple[int, int], strips: Iterable[np.ndarray], level: int) -> None:
    """Write a PNG of `size` (H, W) from strips of its rows: (n, W) uint8 or uint16 is grey, (n, W, 3) uint8 is color.

    The format: https://www.w3.org/TR/png-3/.
    """
    height, width = size
    compressor = zlib.compressobj(level)
    above: np.ndarray | None = None  # the row above a strip
    for rows in strips:
        if above is None:
            color_type = 2 if rows.ndim == 3 else 0
            file.write(b"\x89PNG\r\n\x1a\n")
            _write_chunk(file, b"IHDR", struct.pack(">IIBBBBB", width, height, 8 * rows.itemsize, color_type, 0, 0, 0))
            above = np.zeros((1, rows[0].nbytes), np.uint8)
        # PNG is big-endian; each row but the first is stored as its difference from the one above (filter 2)
        stored_bytes = rows.astype(rows.dtype.newbyteorder(">")).reshape(len(rows), -1).view(np.uint8)
        filtered = np.full((len(rows), 1 + stored_bytes.shape[1]), 2, np.uint8)
        np.subtract(stored_bytes, np.vstack([above, stored_bytes[:-1]]), out=filtered[:, 1:])
        above = stored_bytes[-1:].copy()
        data = compressor.compress(filtered.data)
        if data:
            _write_chunk(file, b"IDAT", data)
    _write_chunk(file, b"IDAT", compressor.flush())
    _write_chunk(file, b"IEND", b"")


def _write_chunk(file: BinaryIO, kind: bytes, data: bytes) -> None:
    checksum = zlib.crc32(kind + data)
    file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))


def write_pages(file: BinaryIO, pages: Sequence[np.ndarray]) -> None:
    """Write a TIFF of grey pages (H, W)."""
    content = BytesIO()  # tifffile wants the name of a file, and a temporary one may have none
    with tifffile.TiffWriter(content) as writer:
        for page in pages:  # one by one: three together could be taken for a color
            writer.write(page, photometric="minisblack", compression="zlib", contiguous=False)
    file.write(content.getvalue())
