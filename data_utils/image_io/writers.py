"""Pictures and arrays written a few rows at a time, however large they are."""

import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import BinaryIO

import numpy as np
import tifffile

# levels of compression
MASK_LEVEL = 6
OVERLAY_LEVEL = 1  # a higher one makes photographs a fifth smaller and takes eight times as long


class PngWriter:
    """A PNG of `size` (H, W) written as its rows come: (n, W) uint8 or uint16 is grey, (n, W, 3) uint8 is color.

    As a context, it finishes the file on leaving. The format: https://www.w3.org/TR/png-3/.
    """

    def __init__(self, file: BinaryIO, size: tuple[int, int], level: int) -> None:
        self.file = file
        self.size = size
        self.previous: np.ndarray | None = None
        self.compressor = zlib.compressobj(level)

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows."""
        if self.previous is None:
            self.previous = self._start(rows)
        # PNG is big-endian; each row but the first is stored as its difference from the one above (filter 2)
        stored_bytes = rows.astype(rows.dtype.newbyteorder(">")).reshape(len(rows), -1).view(np.uint8)
        filtered = np.full((len(rows), 1 + stored_bytes.shape[1]), 2, np.uint8)
        np.subtract(stored_bytes, np.vstack([self.previous, stored_bytes[:-1]]), out=filtered[:, 1:])
        self.previous = stored_bytes[-1:].copy()
        data = self.compressor.compress(filtered.data)
        if data:
            self._chunk(b"IDAT", data)

    def __enter__(self) -> "PngWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._chunk(b"IDAT", self.compressor.flush())
        self._chunk(b"IEND", b"")

    def _start(self, rows: np.ndarray) -> np.ndarray:
        """Write the header, for rows like these. Returns the row to use above the first one."""
        height, width = self.size
        color_type = 2 if rows.ndim == 3 else 0
        self.file.write(b"\x89PNG\r\n\x1a\n")
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8 * rows.itemsize, color_type, 0, 0, 0))
        return np.zeros((1, rows[0].nbytes), np.uint8)

    def _chunk(self, kind: bytes, data: bytes) -> None:
        checksum = zlib.crc32(kind + data)
        self.file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))


def write_pages(file: BinaryIO, pages: Sequence[np.ndarray]) -> None:
    """Write a TIFF of grey pages (H, W)."""
    content = BytesIO()  # tifffile wants the name of a file, and a temporary one may have none
    with tifffile.TiffWriter(content) as writer:
        for page in pages:  # one by one: three together could be taken for a color
            writer.write(page, photometric="minisblack", compression="zlib", contiguous=False)
    file.write(content.getvalue())


class NpyWriter:
    """A `.npy` of `shape` (C, H, W) float32 written as its rows (C, n, W) come; rows that never come are zero."""

    def __init__(self, file: BinaryIO, shape: tuple[int, int, int]) -> None:
        self.file = file
        self.shape = shape
        self.rows_written = 0
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self.start = file.tell()
        file.truncate(self.start + 4 * int(np.prod(shape, dtype=np.int64)))

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows of every channel."""
        _, height, width = self.shape
        for channel, values in enumerate(rows):
            self.file.seek(self.start + 4 * width * (channel * height + self.rows_written))
            self.file.write(np.ascontiguousarray(values, "<f4").data)
        self.rows_written += rows.shape[1]
