"""The one reader of image files: pixels, mask values and sizes, each from one opening of the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from data_utils.image_io.dicom.series import open_dicom
from data_utils.image_io.formats import (
    BandSource,
    EmbeddedImage,
    ImageSource,
    PageFile,
    RenderedMask,
    WindowSource,
    check_finite,
    image_errors,
    page_file,
    source_files,
)
from data_utils.image_io.pictures import WindowedPicture, open_picture_file
from data_utils.image_io.rasters import open_bands, open_raster
from data_utils.image_io.resize import same_proportions
from data_utils.image_io.windowed_image import WindowedArray, WindowedImage, open_array
from data_utils.mask_values import round_numbers
from runtime.errors import DataError, ImageError
from unet.config import Preprocess

FORMATS = (open_array, open_raster, open_dicom, open_picture_file)  # the first that takes a file opens it


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


def _location(source: ImageSource, name: str, kind: str) -> str:
    """What an error names: the source and what it is; the file itself where the caller gave no name."""
    if name == kind:
        name = ", ".join(source_files(source))
    return f"{name}: {kind}" if name else kind


@contextmanager
def open_source(source: ImageSource | None, name: str, page: int = 0) -> Iterator[WindowedImage]:
    """The image (a page of a TIFF) of a source, not decoded yet.

    Raises ImageError, with `name`, if the source cannot be opened. Callers decode it within `image_errors` too.
    """
    with ExitStack() as stack:
        with image_errors(name):
            image = _open(source, name, page, stack)
        yield image


def _open(source: ImageSource | None, name: str, page: int, stack: ExitStack) -> WindowedImage:
    """The image of `open_source`; its file stays open as long as `stack` is."""
    content = cast(Any, source)
    if isinstance(content, EmbeddedImage):
        content = content.read()
    if isinstance(content, RenderedMask):
        content = content.render()
    if isinstance(content, np.ndarray):
        return WindowedArray(content)
    if isinstance(content, Image.Image):
        return WindowedPicture(content, name)
    if isinstance(content, BandSource):
        return open_bands(content, stack)
    if isinstance(content, WindowSource):
        return stack.enter_context(content.open())
    if content is None:
        raise ImageError(f"{name} is missing")
    file = PageFile(content) if isinstance(content, bytes) else page_file(content)
    if file is None:
        raise ImageError(
            f"{name} is a {type(content).__name__}; give a path, bytes, a PIL image, or a NumPy array (H, W) or"
            " (H, W, C), as tensor.permute(1, 2, 0).numpy() makes it of a tensor (C, H, W)"
        )
    if file.page is None:
        file = file._replace(page=page)
    images = (open_format(file, name, stack) for open_format in FORMATS)
    return next(image for image in images if image is not None)


def read_image(source: ImageSource, name: str = "image", page: int = 0) -> np.ndarray:
    """Read an image from a path (and page, of a TIFF), bytes, a `datasets` record, a PIL image or an array.

    Returns (H, W, C) in the file's own value range: uint8, uint16, int32 or float32; C is 1 for grey, 3 for color
    (palettes are resolved, alpha is dropped, CMYK converted), anything for a `.npy` of (H, W, C) and for rasters; these
    are masked arrays where pixels hold no data.
    Raises ImageError, with `name`, for a source that cannot be read.
    """
    return decode_image(source, name, page).array


def decode_image(source: ImageSource, name: str, page: int = 0, draft_for: Preprocess | None = None) -> WindowedArray:
    """An image decoded as `read_image` does it, (H, W, C).

    With `draft_for`, a JPEG file has no more detail than that preprocessing needs.
    """
    location = _location(source, name, "image")
    with open_source(source, location, page) as image, image_errors(location):
        if draft_for:
            image = image.drafted(draft_for)
        pixels = image.pixels()
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.ndim != 3 or 0 in pixels.shape or pixels.dtype.kind not in "buif":
            shape = f"is an array of shape {pixels.shape} and type {pixels.dtype}"
            raise ImageError(f"{name}: {shape}, not numbers as (H, W) or (H, W, C)")
        check_finite(pixels, name)
        if pixels.dtype == bool:
            pixels = pixels.astype(np.uint8)
        return WindowedArray(pixels, image.size, image.extent)


def read_mask(source: ImageSource, name: str) -> np.ndarray:
    """Mask values: (H, W) integers, or (H, W, 3) uint8 where the picture really is colored.

    A palette file gives its indices (the convention of VOC and ADE20K), save a GIF, whose encoder orders the palette as
    it likes: there the colors count. RGB that holds only grey is grey, alpha is dropped, 1-bit is 0 and 1, EXIF
    orientation is applied. Raises DataError, with `name`, for a source that cannot be read or is no mask.
    """
    return decode_mask(source, name).values


def decode_mask(source: ImageSource, name: str) -> DecodedMask:
    """Mask values as `read_mask` gives them, and how they are stored."""
    location = _location(source, name, "mask")
    with open_source(source, location) as image, image_errors(location):
        mask = image.values()
        is_jpeg = image.format == "JPEG"
    if mask.ndim == 3 and mask.shape[2] == 1:
        mask = mask[:, :, 0]
    is_colored = mask.ndim == 3 and mask.shape[2] in (3, 4) and mask.dtype == np.uint8
    if mask.size == 0 or mask.dtype.kind not in "buif" or not (mask.ndim == 2 or is_colored):
        remedy = "; --dims 3 reads stacks as volumes" if mask.ndim == 3 else ""
        description = f"mask is an array of shape {mask.shape} and type {mask.dtype}"
        raise DataError(f"{name}: {description}, expected (H, W) whole numbers{remedy}")
    if not is_colored:
        return DecodedMask(_whole_numbers(mask, name), is_colored=False, is_jpeg=is_jpeg)
    red, green, blue = np.moveaxis(mask[:, :, :3], 2, 0)
    if np.array_equal(red, green) and np.array_equal(red, blue):
        return DecodedMask(red, is_colored=True, is_jpeg=is_jpeg)
    return DecodedMask(mask[:, :, :3], is_colored=True, is_jpeg=is_jpeg)


def read_palette_mask(source: ImageSource, name: str) -> np.ndarray | None:
    """The colors (H, W, 3) uint8 of a mask that is stored as indices into a palette; None for any other mask."""
    location = _location(source, name, "mask")
    with open_source(source, location) as image, image_errors(location):
        if not isinstance(image, WindowedPicture) or not image.has_palette:
            return None
        return image.pixels()


def read_colors(source: ImageSource, name: str) -> np.ndarray:
    """Mask values as `read_mask` gives them, but the colors (H, W, 3) of a mask that is stored with a palette."""
    colors = read_palette_mask(source, name)
    return read_mask(source, name) if colors is None else colors


def stored_palette(source: ImageSource, name: str) -> tuple[str, bytes] | None:
    """How the palette of a mask of indices is stored, and its bytes, from the header alone; None for any other mask."""
    location = _location(source, name, "mask")
    if isinstance(source, RenderedMask | WindowSource):
        return None
    with open_source(source, location) as image, image_errors(location):
        if not isinstance(image, WindowedPicture) or not image.has_palette or image.picture.palette is None:
            return None
        mode, content = image.picture.palette.getdata()
        return mode, bytes(content)


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
