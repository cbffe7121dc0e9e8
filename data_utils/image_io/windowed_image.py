"""An image that is opened, and read whole or a window at a time."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from io import BytesIO

import numpy as np
from PIL import Image

from data_utils.image_io.formats import COPIES, PageFile, check_memory
from runtime.documents import check_regular
from unet.config import IGNORE_INDEX, Preprocess

LARGEST_NUMBER = 2**53  # whole numbers of float64 are exact up to it


class WindowedImage(ABC):
    """An opened image: its header, its pixels, its values as those of a mask, and windows of it.

    Attributes:
        size: (H, W) of the picture.
        extent: how far (h, w) the windows reach: `size`, or less where a JPEG was decoded with less detail.
        decodes_windows: whether only the windows are decoded; else the whole picture is, when the first one is read.
        may_lack_data: whether some pixels may hold no data, and are masked.
        mode: the type of its pixels, in words.
        format: the format of its file, as Pillow calls it; empty for arrays and rasters.
    """

    size: tuple[int, int]
    extent: tuple[float, float]
    decodes_windows = True
    may_lack_data = False
    mode: str
    format = ""

    def header(self) -> tuple[tuple[int, int], str]:
        """Size and mode, without decoding."""
        return self.size, self.mode

    @abstractmethod
    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray:
        """Rows [top, bottom) and columns [left, right), as something that `read_image` and `read_mask` take.

        Args:
            right: None for all columns from `left` on.
        """

    def _columns(self, left: int, right: int | None) -> tuple[int, int]:
        """The columns [left, right) of a window whose `right` may be None."""
        return left, self.size[1] if right is None else right

    @abstractmethod
    def pixels(self) -> np.ndarray:
        """All pixels of an image, (H, W) or (H, W, C), in memory."""

    def values(self) -> np.ndarray:
        """All values of a mask. Of those without data, NaN and -3.4e38 become unknown, others stay numbers."""
        pixels = self.pixels()
        values = np.array(pixels)
        if isinstance(pixels, np.ma.MaskedArray) and values.dtype.kind == "f":
            is_number = np.abs(values) < LARGEST_NUMBER
            values[np.ma.getmaskarray(pixels) & ~is_number] = IGNORE_INDEX
        return values

    def drafted(self, preprocess: Preprocess) -> "WindowedImage":
        """This picture with no more detail than `preprocess` resizes from."""
        return self


class WindowedArray(WindowedImage):
    """Windows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    def __init__(
        self, array: np.ndarray, size: tuple[int, int] | None = None, extent: tuple[float, float] | None = None
    ) -> None:
        self.array = array
        self.mode = str(array.dtype)
        if array.ndim > 2:
            self.mode += f" x {array.shape[2]}"
        self.may_lack_data = isinstance(array, np.ma.MaskedArray)
        self.size = size or array.shape[:2]
        self.extent = extent or array.shape[:2]

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self.array[top:bottom, left:right]

    def header(self) -> tuple[tuple[int, int], str]:
        if self.array.ndim not in (2, 3) or not self.array.size:
            raise ValueError(f"its shape is {self.array.shape}, not (H, W) or (H, W, C)")
        return super().header()

    def pixels(self) -> np.ndarray:
        if not isinstance(self.array, np.memmap):
            return self.array
        check_memory(COPIES * self.array.nbytes, "the array")
        return np.array(self.array)


def open_array(file: PageFile, name: str, stack: ExitStack) -> WindowedArray | None:
    """The array of a `.npy`, mapped from the file; None for other files."""
    if isinstance(file.path, bytes):
        if not file.path.startswith(b"\x93NUMPY"):
            return None
        return WindowedArray(np.lib.format.read_array(BytesIO(file.path), allow_pickle=False))
    if not str(file.path).lower().endswith(".npy"):
        return None
    check_regular(file.path)
    return WindowedArray(np.lib.format.open_memmap(file.path, mode="r"))
