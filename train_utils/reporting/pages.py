"""Pages: templates that are filled in, and pictures within them, whose size is bounded."""

import base64
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from runtime.files import replace_file
from runtime.redact import printable
from tasks.confusion import score_text
from tasks.tables import as_html, markdown_text

if TYPE_CHECKING:
    from jinja2 import Environment

PICTURES_BYTES = 3_600_000  # of a page's pictures: with all else, it is small enough for a mail
# pixels of a picture's longer side
MAX_SIDE = 420
MIN_SIDE = 8
SMALL_PNG = 16_000  # bytes: a picture this small is shown as it is, pixel by pixel
JPEG_QUALITY = 85
TEMPLATES = Path(__file__).parent / "templates"

Views = Mapping[Any, Mapping[str, np.ndarray]]  # groups of labeled pictures, (H, W, 3) uint8, by title


def write_html(file: Path, template: str, views: Views, *, side: int = MAX_SIDE, **values: object) -> None:
    """Write a page of at most about four megabytes. Raises OSError.

    Args:
        views: shown as large as the page has room for; the template gets the sources of the images in their place.
        side: the most pixels of a picture's longer side.
        values: the other values of the template.
    """
    pictures: list[np.ndarray] = []
    for group in views.values():
        pictures.extend(group.values())
    sources = iter(embed_all(pictures, PICTURES_BYTES, side))
    embedded = {}
    for title, group in views.items():
        embedded[title] = dict(zip(group, sources, strict=False))
    page = render(template, **values, views=embedded)
    with replace_file(file) as output:
        # what a browser cannot show, such as ESC in a name, is escaped
        output.write(printable(page, keep="\n\t").encode())


def render(template: str, **values: object) -> str:
    """Fill in a template of `templates/`; values in HTML are escaped, and a missing value is an error."""
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> "Environment":
    """The templates, each compiled when it is used first."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape  # not needed at start-up

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(score=score_text, markdown=markdown_text, html=as_html)
    return environment


def plain_text(value: object) -> str:
    """A setting as text: lists without brackets."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


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
