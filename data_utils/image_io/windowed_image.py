"""A picture that is read a window at a time."""

from abc import ABC, abstractmethod

import numpy as np
from PIL import Image

from unet.config import Preprocess


class WindowedImage(ABC):
    """A picture that is read a window at a time.

    Attributes:
        size: (H, W) of the picture.
        extent: how far (h, w) the windows reach: `size`, or less where a JPEG was decoded with less detail.
        decodes_windows: whether only the windows are decoded; else the whole picture is, when the first one is read.
        may_lack_data: whether some pixels may hold no data, and are masked.
    """

    size: tuple[int, int]
    extent: tuple[float, float]
    decodes_windows = True
    may_lack_data = False

    @abstractmethod
    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray:
        """Rows [top, bottom) and columns [left, right), as something that `read_image` and `read_mask` take.

        Args:
            right: None for all columns from `left` on.
        """

    def _columns(self, left: int, right: int | None) -> tuple[int, int]:
        """The columns [left, right) of a window whose `right` may be None."""
        if right is None:
            right = self.size[1]
        return left, right

    def draft_for(self, preprocess: Preprocess) -> "WindowedImage":
        """This picture with the detail that `preprocess` resizes from."""
        return self


class WindowedArray(WindowedImage):
    """Windows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    def __init__(
        self, array: np.ndarray, size: tuple[int, int] | None = None, extent: tuple[float, float] | None = None
    ) -> None:
        self.array = array
        self.may_lack_data = isinstance(array, np.ma.MaskedArray)
        self.size = size or array.shape[:2]
        self.extent = extent or array.shape[:2]

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self.array[top:bottom, left:right]
