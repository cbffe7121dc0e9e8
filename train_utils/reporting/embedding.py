"""Pictures within a page: data URIs with a bounded total size."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

# pixels of a picture's longer side
MAX_SIDE = 420
MIN_SIDE = 8
SMALL_PNG = 16_000  # bytes: a picture this small is shown as it is, pixel by pixel
JPEG_QUALITY = 85


@dataclass(frozen=True)
class Embedded:
    """A picture for <img>: its data URI, and its size in pixels."""

    source: str
    width: int
    height: int


def embed_all(pictures: Sequence[np.ndarray], budget: int, side: int = MAX_SIDE) -> list[Embedded]:
    """Embed (H, W, 3) uint8 pictures, reduced to the largest common side with which the URIs fit into `budget` bytes.

    One side for all, of at most `side` pixels, keeps the views of an image comparable.
    """
    while True:
        embedded = [_embed_reduced(pixels, side) for pixels in pictures]
        if side == MIN_SIDE or sum(len(picture.source) for picture in embedded) <= budget:
            return embedded
        side = max(MIN_SIDE, side * 3 // 4)


def reduce_picture(pixels: np.ndarray, side: int = MAX_SIDE) -> np.ndarray:
    """A (H, W, 3) uint8 picture reduced to at most `side` pixels: many at full size would fill the memory."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    return np.asarray(image)


def embed_png(pixels: np.ndarray) -> Embedded:
    """Embed a (H, W, 3) uint8 picture at its own size, as PNG."""
    image = Image.fromarray(pixels)
    return _embed(image, "png", _encode(image, "PNG", optimize=True))


def _embed_reduced(pixels: np.ndarray, side: int) -> Embedded:
    """Embed a reduced picture as PNG or JPEG: flat pictures are smaller as PNG, photographs as JPEG."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    png = _encode(image, "PNG")
    if len(png) > SMALL_PNG:
        # colors keep their full resolution: wrong pixels are thin red lines. Pillow's `optimize` fails on noise (13.0)
        jpeg = _encode(image, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        if len(jpeg) < len(png):
            return _embed(image, "jpeg", jpeg)
    return _embed(image, "png", png)


def _encode(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _embed(image: Image.Image, kind: str, content: bytes) -> Embedded:
    encoded = base64.b64encode(content).decode()
    return Embedded(f"data:image/{kind};base64,{encoded}", image.width, image.height)
