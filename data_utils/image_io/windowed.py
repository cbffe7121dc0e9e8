"""An image that is opened, and read whole or a window at a time: the base class of all readers of image files."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_utils.image_io.formats import COPIES, Box, PageFile, check_memory
from data_utils.mask_values import BEYOND_MASK
from runtime.documents import check_regular
from unet.config import Preprocess

LARGEST_NUMBER = 2**53  # whole numbers of float64 are exact up to it
LARGE_IMAGE_PIXELS = 2**24  # pixels: a larger image is read in windows to take a crop
STRIP_PIXELS = 2**22  # pixels that are read together


def is_large_size(size: tuple[int, int]) -> bool:
    """Whether windows of an image of a size (H, W) are read, where its file allows it."""
    return prod(size) >= LARGE_IMAGE_PIXELS


class WindowedImage(ABC):
    """An opened image: its header, its pixels, its values as those of a mask, and windows of it.

    A format of images is a subclass with `suffixes` and `open_file`, in the list `FORMATS` of `reader.py`.

    Attributes:
        suffixes: how names of files of the format end, in small letters.
        marks: byte strings that a file of it begins with, where only its content is known.
        size: (H, W) of the picture.
        extent: how far (h, w) the windows reach: `size`, or less where a JPEG was decoded with less detail.
        decodes_windows: whether only the windows are decoded; else the whole picture is, when the first one is read.
        may_lack_data: whether some pixels may hold no data, and are masked.
        mode: the type of its pixels, in words.
        format: the format of its file, as Pillow calls it; empty for arrays and rasters.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[bytes, ...]] = ()
    size: tuple[int, int]
    extent: tuple[float, float]
    decodes_windows = True
    may_lack_data = False
    mode: str
    format = ""

    @classmethod
    def takes(cls, file: str | Path | bytes) -> bool:
        """Whether a file, by its name or its content, is of this format."""
        if isinstance(file, bytes):
            return file.startswith(cls.marks)
        return str(file).lower().endswith(cls.suffixes)

    @classmethod
    def open_file(cls, file: PageFile, name: str, stack: ExitStack) -> "WindowedImage | None":
        """The image of a file that this format takes, and that stays open as long as `stack`. May raise any error.

        None leaves the file to the next format.

        Args:
            name: the name of the image in messages.
        """
        raise NotImplementedError

    @property
    def palette(self) -> tuple[str, bytes] | None:
        """How the palette of a mask of indices is stored, and its bytes; None for any other image."""
        return None

    @property
    def is_large(self) -> bool:
        """Whether a crop is read from the file, as a window: decoding all of it would take too long."""
        return self.decodes_windows and is_large_size(self.size)

    def header(self) -> tuple[tuple[int, int], str]:
        """Size and mode, without decoding."""
        return self.size, self.mode

    def rows(self, top: int, bottom: int) -> Box:
        """The box of whole rows [top, bottom)."""
        return Box(top, bottom, 0, self.size[1])

    @abstractmethod
    def pixels(self, box: Box | None = None) -> np.ndarray:
        """The pixels of an image, all or those of a box, (H, W) or (H, W, C), in memory."""

    def values(self, box: Box | None = None) -> np.ndarray:
        """The values of a mask. Of those without data, NaN and -3.4e38 become `BEYOND_MASK`, others stay numbers."""
        pixels = self.pixels(box)
        values = np.array(pixels)
        if isinstance(pixels, np.ma.MaskedArray) and values.dtype.kind == "f":
            is_number = np.abs(values) < LARGEST_NUMBER
            values[np.ma.getmaskarray(pixels) & ~is_number] = BEYOND_MASK
        return values

    def drafted(self, preprocess: Preprocess) -> "WindowedImage":
        """This picture with no more detail than `preprocess` resizes from."""
        return self


class WindowedArray(WindowedImage):
    """Windows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    suffixes = (".npy",)
    marks = (b"\x93NUMPY",)

    def __init__(
        self, array: np.ndarray, size: tuple[int, int] | None = None, extent: tuple[float, float] | None = None
    ) -> None:
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"its shape is {array.shape}, not (H, W) or (H, W, C)")
        self.array = array
        self.mode = str(array.dtype)
        if array.ndim > 2:
            self.mode += f" x {array.shape[2]}"
        self.decodes_windows = isinstance(array, np.memmap)
        self.may_lack_data = isinstance(array, np.ma.MaskedArray)
        self.size = size or array.shape[:2]
        self.extent = extent or array.shape[:2]

    @classmethod
    def open_file(cls, file: PageFile, name: str, stack: ExitStack) -> "WindowedArray":
        if isinstance(file.path, bytes):
            return cls(np.lib.format.read_array(BytesIO(file.path), allow_pickle=False))
        check_regular(file.path)
        return cls(np.lib.format.open_memmap(file.path, mode="r"))

    def pixels(self, box: Box | None = None) -> np.ndarray:
        array = self.array if box is None else self.array[box.top : box.bottom, box.left : box.right]
        if not isinstance(array, np.memmap):
            return array
        check_memory(COPIES * array.nbytes, "the array")
        return np.array(array)


class WindowedPart(WindowedImage):
    """A part of an image; the box is its rows and columns in there."""

    def __init__(self, image: WindowedImage, box: Box) -> None:
        self.image = image
        self.box = box
        self.size = self.extent = (box.bottom - box.top, box.right - box.left)
        self.decodes_windows = image.decodes_windows
        self.may_lack_data = image.may_lack_data
        self.format = image.format

    @property
    def palette(self) -> tuple[str, bytes] | None:
        return self.image.palette

    @property
    def is_large(self) -> bool:
        return self.decodes_windows  # however small the part: the image is large

    def header(self) -> tuple[tuple[int, int], str]:
        _, mode = self.image.header()
        return self.size, mode

    def pixels(self, box: Box | None = None) -> np.ndarray:
        return self.image.pixels(self._in_image(box))

    def values(self, box: Box | None = None) -> np.ndarray:
        return self.image.values(self._in_image(box))

    def _in_image(self, box: Box | None) -> Box:
        """A box of this part as one of the image."""
        if box is None:
            return self.box
        top, left = self.box.top, self.box.left
        return Box(top + box.top, top + box.bottom, left + box.left, left + box.right)


def strips(image: WindowedImage) -> Iterator[Box]:
    """The boxes of all rows of a picture from the first on, some at a time."""
    height, width = image.size
    step = max(1, STRIP_PIXELS // width)
    for top in range(0, height, step):
        yield image.rows(top, min(top + step, height))
