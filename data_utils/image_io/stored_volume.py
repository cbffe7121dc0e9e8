"""A volume as it is stored: a header in one of several formats, and behind it voxels, which all of them store alike."""

import os
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import numpy as np

from data_utils.image_io.formats import check_memory
from runtime.documents import open_regular

PIECE_BYTES = 2**16  # so much of a compressed file is decompressed at once
MOST_INFLATION = 1032  # bytes that a byte of deflate can become
ANY_HEADER = 47  # zlib's word for streams of zlib or gzip
FROM_END = -1  # voxels end where their file does
ENDS_EARLY = "the file ends before its voxels do"

Spacing = tuple[float, float, float]


class StoredVolume(ABC):
    """A volume whose header has been read.

    Attributes:
        shape: (x, y, z) in the file's own axes.
        channels: values of each voxel.
        dtype: NumPy's type of the voxels that `read` gives.
        affine: (4, 4) float64, from a voxel's (x, y, z) to mm, the world's axes pointing right, anterior, superior.
    """

    shape: tuple[int, ...]
    channels: int
    dtype: np.dtype
    affine: np.ndarray

    @abstractmethod
    def read(self) -> np.ndarray:
        """The voxels (x, y, z, C), as they lie in memory or in the file."""

    @property
    def label_channels(self) -> int:
        """Values of each voxel of a label."""
        return self.channels

    def read_labels(self) -> np.ndarray:
        """The voxels (x, y, z, 1) of a label."""
        return self.read()


@dataclass
class FileVolume(StoredVolume):
    """A volume whose voxels lie in one file, the first axis fastest.

    Args:
        sizes: the sides of the four axes.
        channel_axis: which of them is that of the channels.
        stored_type: the voxels' type, in the file's byte order.
        skipped: bytes of the file before them, or before their compressed stream; FROM_END if they end the file.
        skipped_inside: bytes before them in the decompressed stream.
        scale: slope and intercept by which stored numbers become values.
    """

    file: str
    sizes: tuple[int, ...]
    channel_axis: int
    stored_type: np.dtype
    skipped: int
    is_compressed: bool
    affine: np.ndarray
    skipped_inside: int = 0
    scale: tuple[float, float] = (1, 0)

    def __post_init__(self) -> None:
        self.shape = self.sizes[: self.channel_axis] + self.sizes[self.channel_axis + 1 :]
        self.channels = self.sizes[self.channel_axis]
        self.is_scaled = self.scale != (1, 0)
        self.dtype = np.result_type(self.stored_type, np.float32) if self.is_scaled else self.stored_type

    def read(self) -> np.ndarray:
        """The voxels (x, y, z, C). Raises EOFError if the file does not hold them, ValueError if memory cannot."""
        voxel_bytes = prod(self.sizes) * self.stored_type.itemsize
        file_bytes = os.path.getsize(self.file)
        if self.is_compressed:
            check_memory(voxel_bytes + self.skipped_inside, "the volume")
            most_bytes = MOST_INFLATION * file_bytes
            if voxel_bytes > most_bytes:
                raise EOFError(f"its header claims {voxel_bytes:,} bytes of voxels, it can hold {most_bytes:,} at most")
            voxels = self._decompress(voxel_bytes)
        else:
            start = file_bytes - voxel_bytes if self.skipped == FROM_END else self.skipped
            if start < 0 or start + voxel_bytes > file_bytes:
                raise EOFError(ENDS_EARLY)
            voxels = np.memmap(self.file, self.stored_type, "r", start, prod(self.sizes))
        voxels = np.moveaxis(voxels.reshape(self.sizes, order="F"), self.channel_axis, -1)
        if self.is_scaled:
            slope, intercept = map(self.dtype.type, self.scale)
            voxels = voxels.astype(self.dtype)
            # a damaged scale, whose infinities are refused
            with np.errstate(over="ignore", invalid="ignore"):
                voxels *= slope
                voxels += intercept
        return voxels

    def _decompress(self, voxel_bytes: int) -> np.ndarray:
        """The voxels of a compressed file, decompressed in pieces into one array, so that memory holds them once."""
        content = np.empty(self.skipped_inside + voxel_bytes, np.uint8)
        missing = content.data
        stream = zlib.decompressobj(ANY_HEADER)
        with open_regular(self.file) as file:
            file.seek(self.skipped)
            while missing:
                compressed = stream.unused_data or file.read(PIECE_BYTES)
                if not compressed:
                    raise EOFError(ENDS_EARLY)
                if stream.eof:  # the file may be several streams of gzip, one behind the other
                    stream = zlib.decompressobj(ANY_HEADER)
                piece = stream.decompress(compressed, len(missing))
                missing[: len(piece)] = piece
                missing = missing[len(piece) :]
        return content[self.skipped_inside :].view(self.stored_type)
