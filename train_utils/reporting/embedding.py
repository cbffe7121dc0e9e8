"""Pictures within a page: data URIs with a bounded total size."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

# pixels of a picture's longer side
MAX_SIDE = 420
MIN_SIDE = 8
SMALL_PNG = 16_000  # bytes: a picture this small is shown as it is, pixel by pixel
JPEG_QUALITY = 85


def embed_all(pictures: Sequence[np.ndarray], budget: int, side: int = MAX_SIDE) -> list[str]:
    """The data URIs of (H, W, 3) uint8 pictures, at the largest side with which they fit into `budget` bytes.

    One side for all, of at most `side` pixels, keeps the views of an image comparable.
    """
    while True:
        sources = [embed(reduce_picture(pixels, side)) for pixels in pictures]
        if side == MIN_SIDE or sum(map(len, sources)) <= budget:
            return sources
        side = max(MIN_SIDE, side * 3 // 4)


def reduce_picture(pixels: np.ndarray, side: int = MAX_SIDE) -> np.ndarray:
    """A (H, W, 3) uint8 picture reduced to at most `side` pixels: many at full size would fill the memory."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    return np.asarray(image)


def embed(pixels: np.ndarray) -> str:
    """The data URI of a (H, W, 3) uint8 picture: flat pictures are smaller as PNG, photographs as JPEG."""
    image = Image.fromarray(pixels)
    kind, content = "png", _encode(image, "PNG")
    if len(content) > SMALL_PNG:
        # colors keep their full resolution: wrong pixels are thin red lines. Pillow's `optimize` fails on noise (13.0)
        jpeg = _encode(image, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        if len(jpeg) < len(content):
            kind, content = "jpeg", jpeg
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _encode(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
