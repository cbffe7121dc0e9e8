"""Windows of scenes, as sources of images and masks of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from data_utils.image_io.formats import ImageSource, RenderedMask, WindowSource
from data_utils.image_io.reader import open_source
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from runtime.errors import DataError


class Box(NamedTuple):
    """Rows [top, bottom) and columns [left, right) of a scene."""

    top: int
    bottom: int
    left: int
    right: int


class WindowedPart(WindowedImage):
    """Windows of a part of another picture."""

    def __init__(self, picture: WindowedImage, box: Box) -> None:
        self.picture = picture
        self.box = box
        self.size = self.extent = (box.bottom - box.top, box.right - box.left)
        self.decodes_windows = picture.decodes_windows
        self.may_lack_data = picture.may_lack_data
        self.format = picture.format

    @property
    def is_large(self) -> bool:
        return self.decodes_windows  # however small: the picture is large

    def header(self) -> tuple[tuple[int, int], str]:
        pixel = np.asarray(self.read(0, 1, 0, 1))
        return self.size, f"{pixel.dtype} x {pixel[0, 0].size}"

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray:
        box = self.box
        right = self.size[1] if right is None else right
        return self.picture.read(box.top + top, box.top + bottom, box.left + left, box.left + right)

    def pixels(self) -> np.ndarray:
        with open_source(self.read(0, self.size[0]), "window") as part:
            return part.pixels()

    def values(self) -> np.ndarray:
        with open_source(self.read(0, self.size[0]), "window") as part:
            return part.values()


@dataclass(frozen=True)
class SceneWindow(WindowSource):
    """A window of an image, or of an image's mask.

    Args:
        source: the image or mask.
        name: the name of the image or mask in messages.
        size: (H, W) of the image.
    """

    source: ImageSource
    name: str
    size: tuple[int, int]
    box: Box

    @contextmanager
    def open(self) -> Iterator[WindowedImage]:
        box = self.box
        if isinstance(self.source, RenderedMask):
            yield WindowedArray(self.source.render_part((box.top, box.bottom), (box.left, box.right)))
            return
        with open_source(self.source) as picture:
            if picture.size != self.size:
                sizes = f"{self.size[0]} x {self.size[1]}, its mask {picture.size[0]} x {picture.size[1]}"
                raise DataError(f"{self.name}: image is {sizes}; --val-blocks needs masks with a place, or of one size")
            yield WindowedPart(picture, box)
