"""The one reader of image files: pixels, mask values and sizes, each from one opening of the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from data_utils.image_io.dicom.series import DicomImage
from data_utils.image_io.formats import (
    BandSource,
    Box,
    EmbeddedImage,
    ImageSource,
    PageFile,
    RenderedMask,
    SceneWindow,
    check_finite,
    image_errors,
    page_file,
    source_files,
)
from data_utils.image_io.pictures import WindowedPicture
from data_utils.image_io.rasters import Raster, open_bands
from data_utils.image_io.resize import same_proportions
from data_utils.image_io.windowed import WindowedArray, WindowedImage, WindowedPart
from data_utils.mask_values import round_numbers
from runtime.errors import DataError, ImageError
from unet.config import Preprocess

FORMATS: tuple[type[WindowedImage], ...] = (WindowedArray, Raster, DicomImage, WindowedPicture)  # tried in this order
Readable = ImageSource | WindowedImage
IMAGE_SUFFIXES: tuple[str, ...] = tuple(sorted({suffix for image in FORMATS for suffix in image.suffixes}))


class DecodedMask(NamedTuple):
    """A mask as it was decoded.

    Args:
        values: the mask values, as `read_mask` gives them.
        is_colored: whether they are stored as RGB.
        is_jpeg: whether the file is a JPEG.
    """

    values: np.ndarray
    is_colored: bool
    is_jpeg: bool


@contextmanager
def open_source(source: Readable | None, name: str = "", kind: str = "") -> Iterator[WindowedImage]:
    """The image of a source, not decoded yet; windows of it are read from the file if they can be.

    Raises ImageError, with `name` or else the file, if the source cannot be opened.

    Args:
        kind: "image" or "mask" if the context decodes it: errors there are ImageErrors too, and all name the kind.
    """
    content = cast(Any, source)
    if name in ("", kind):  # a word for any image
        name = ", ".join(source_files(content))
    location = ": ".join(filter(None, (name, kind))) or "image"
    with ExitStack() as stack:
        with image_errors(location):
            if isinstance(content, EmbeddedImage):
                content = content.render()
            image = content if isinstance(content, WindowedImage) else _open(content, location, stack)
        if kind:
            stack.enter_context(image_errors(location))
        yield image


def _open(content: Any, name: str, stack: ExitStack) -> WindowedImage:
    """The image of a content that is no object of ours; its file stays open as long as `stack` is."""
    if isinstance(content, np.ndarray):
        return WindowedArray(content)
    if isinstance(content, Image.Image):
        return WindowedPicture(content, name)
    if isinstance(content, BandSource):
        return open_bands(content, stack)
    if isinstance(content, SceneWindow):
        return _open_window(content, stack)
    if content is None:
        raise ImageError(f"{name} is missing")
    file = PageFile(content) if isinstance(content, bytes) else page_file(content)
    if file is None:
        raise ImageError(
            f"{name} is a {type(content).__name__}; give a path, bytes, a PIL image, or a NumPy array (H, W) or"
            " (H, W, C), as tensor.permute(1, 2, 0).numpy() makes it of a tensor (C, H, W)"
        )
    for image_format in FORMATS:
        if image_format.takes(file.path):
            image = image_format.open_file(file, name, stack)
            if image is not None:
                return image
    return WindowedPicture.open_file(file, name, stack)  # Pillow knows its formats by their content


def _open_window(window: SceneWindow, stack: ExitStack) -> WindowedImage:
    """The window of a scene; the scene stays open as long as `stack` is."""
    box = window.box
    if isinstance(window.source, RenderedMask):
        return WindowedArray(window.source.render_part((box.top, box.bottom), (box.left, box.right)))
    scene = stack.enter_context(open_source(window.source))
    if scene.size != window.size:
        sizes = f"{window.size[0]} x {window.size[1]}, its mask {scene.size[0]} x {scene.size[1]}"
        raise DataError(f"{window.name}: image is {sizes}; --val-blocks needs masks with a place, or of one size")
    return WindowedPart(scene, box)


def read_image(source: Readable, name: str = "image", box: Box | None = None) -> np.ndarray:
    """Read an image, or a box of it, from a path, a page, bytes, a PIL image, an array or an open image.

    Returns (H, W, C) in the file's own value range: uint8, uint16, int32 or float32; C is 1 for grey, 3 for color
    (palettes are resolved, alpha is dropped, CMYK converted), anything for a `.npy` of (H, W, C) and for rasters; these
    are masked arrays where pixels hold no data.
    Raises ImageError, with `name`, for a source that cannot be read.
    """
    with open_source(source, name, "image") as image:
        return _real_numbers(image.pixels(box), name)


def decode_image(source: Readable, name: str, preprocess: Preprocess) -> WindowedArray:
    """An image decoded as `read_image` does it, (H, W, C); a JPEG file with no more detail than preprocessing needs."""
    with open_source(source, name, "image") as image:
        drafted = image.drafted(preprocess)
        return WindowedArray(_real_numbers(drafted.pixels(), name), drafted.size, drafted.extent)


def _real_numbers(pixels: np.ndarray, name: str) -> np.ndarray:
    """Pixels as (H, W, C). Raises an error for those that are no finite real numbers."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype.kind not in "buif":
        raise ValueError(f"its pixels are of type {pixels.dtype}, which are no real numbers")
    check_finite(pixels, name)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


def read_mask(source: Readable, name: str, *, colors: bool = False, box: Box | None = None) -> np.ndarray:
    """Mask values, or those of a box: (H, W) integers, or (H, W, 3) uint8 where the picture really is colored.

    A palette file gives its indices (the convention of VOC and ADE20K), save a GIF, whose encoder orders the palette as
    it likes: there the colors count, as they do everywhere with `colors`. RGB that holds only grey is grey, alpha is
    dropped, 1-bit is 0 and 1, EXIF orientation is applied. Raises DataError, with `name`, for a source that cannot be
    read or is no mask.
    """
    return decode_mask(source, name, colors=colors, box=box).values


def decode_mask(source: Readable, name: str, *, colors: bool = False, box: Box | None = None) -> DecodedMask:
    """Mask values as `read_mask` gives them, and how they are stored."""
    with open_source(source, name, "mask") as image:
        has_colored_palette = colors and image.palette is not None
        mask = image.pixels(box) if has_colored_palette else image.values(box)
        is_jpeg = image.format == "JPEG"
    if mask.ndim == 3 and (mask.shape[2] == 1 or (mask.dtype != np.uint8 and _is_grey(mask))):
        mask = mask[:, :, 0]
    is_colored = mask.ndim == 3 and mask.shape[2] in (3, 4) and mask.dtype == np.uint8
    if mask.dtype.kind not in "buif" or not (mask.ndim == 2 or is_colored):
        remedy = "; --dims 3 reads stacks as volumes" if mask.ndim == 3 else ""
        if mask.shape[2:] in ((3,), (4,)):
            remedy = "; store colors with 8 bits"
        description = f"mask is an array of shape {mask.shape} and type {mask.dtype}"
        raise DataError(f"{name}: {description}, expected (H, W) whole numbers{remedy}")
    if not is_colored:
        return DecodedMask(_whole_numbers(mask, name), is_colored=False, is_jpeg=is_jpeg)
    if _is_grey(mask) and not has_colored_palette:
        return DecodedMask(mask[:, :, 0], is_colored=True, is_jpeg=is_jpeg)
    return DecodedMask(mask[:, :, :3], is_colored=True, is_jpeg=is_jpeg)


def _is_grey(mask: np.ndarray) -> bool:
    """Whether the colors of a mask (H, W, 3), or of one with an alpha behind them, are all grey."""
    red = mask[:, :, 0]
    return mask.shape[2] in (3, 4) and all(np.array_equal(red, mask[:, :, other]) for other in (1, 2))


def stored_palette(source: ImageSource, name: str) -> tuple[str, bytes] | None:
    """How the palette of a mask of indices is stored, and its bytes, from the header alone; None for any other mask."""
    if isinstance(source, RenderedMask | SceneWindow):
        return None
    with open_source(source, name, "mask") as image:
        return image.palette


def _whole_numbers(mask: np.ndarray, name: str) -> np.ndarray:
    """(H, W) numbers as uint8 or uint16 where they fit, else int64."""
    if mask.dtype in (np.uint8, np.uint16):
        return mask
    try:
        whole = round_numbers(mask, f"{name}: mask")
    except DataError as error:
        raise DataError(f"{error}; of probabilities save what is above 0.5 as 1") from error
    if whole.min() < 0 or whole.max() > 65535:
        return whole
    return whole.astype(np.uint8 if whole.max() < 256 else np.uint16)


def size_mismatch(name: str, image: tuple[int, int], mask: tuple[int, int]) -> str:
    """The message for an image and its mask, (H, W) each, that have different proportions."""
    sizes = f"image is {image[0]} x {image[1]}, its mask {mask[0]} x {mask[1]} (height x width)"
    message = f"{name}: {sizes}; they differ in proportions"
    if same_proportions(image, mask[::-1]):
        message += (
            ": if an EXIF orientation turns the image, turn the mask as well, or take the orientation out (exiftool"
            " -Orientation= IMAGE)"
        )
    return message


def check_sizes(name: str, image: tuple[int, int], mask: tuple[int, int]) -> None:
    """Raises DataError if an image and its mask, (H, W) each, are not of the same proportions."""
    if not same_proportions(image, mask):
        raise DataError(size_mismatch(name, image, mask))


def read_header(source: ImageSource, name: str) -> tuple[tuple[int, int], str]:
    """((H, W) as seen, mode) of an image, from the header alone. Raises ImageError, with `name`."""
    with open_source(source, name) as image, image_errors(name):
        return image.header()
