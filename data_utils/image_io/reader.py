"""The one reader of image files: pixels, mask values and sizes, each from one opening of the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from data_utils.image_io.formats import (
    COPIES,
    STORED_WHITE,
    TURNED_ORIENTATIONS,
    BandSource,
    EmbeddedImage,
    ImageSource,
    PageFile,
    PictureFile,
    RenderedMask,
    WindowSource,
    check_claim,
    check_finite,
    check_memory,
    decode,
    image_errors,
    open_picture,
    page_file,
)
from data_utils.image_io.rasters import Raster, open_bands, open_raster
from data_utils.image_io.resize import same_proportions
from data_utils.image_io.tiff import check_pages, is_tiff
from data_utils.mask_values import round_numbers
from runtime.documents import check_regular
from runtime.errors import DataError, ImageError
from unet.config import IGNORE_INDEX, Preprocess

Side = TypeVar("Side", int, float)
GREY_MODES = ("L", "I", "F")
LARGEST_NUMBER = 2**53  # whole numbers of float64 are exact up to it
WHITE = {"L": 255, "I": 65535}  # what Pillow makes of white, where it scales grey


class DecodedImage(NamedTuple):
    """An image as it was decoded.

    Args:
        pixels: (h, w, C) in the file's own value range: uint8, uint16, int32 or float32.
        size: (H, W) of the image itself.
        extent: (h, w), how far the image reaches into the pixels; less than their shape if a JPEG's last block reaches
            beyond the image.
    """

    pixels: np.ndarray
    size: tuple[int, int]
    extent: tuple[float, float]


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
def open_source(source: ImageSource | None, name: str, page: int = 0) -> Iterator[Image.Image | np.ndarray | Raster]:
    """The picture (a page of a TIFF), raster or array of a source, not decoded yet; an array may be memory-mapped.

    Raises ImageError, with `name`, if the source cannot be opened. Callers decode it within `image_errors` too.
    """
    with ExitStack() as stack:
        with image_errors(name):
            picture = _open(source, name, page, stack)
        yield picture


def _open(source: ImageSource | None, name: str, page: int, stack: ExitStack) -> Image.Image | np.ndarray | Raster:
    """The file of `open_source`; it stays open as long as `stack` is."""
    content = cast(Any, source)
    if isinstance(content, EmbeddedImage):
        content = content.read()
    if isinstance(content, RenderedMask):
        return content.render()
    if isinstance(content, Image.Image | np.ndarray):
        return content
    if isinstance(content, bytes):
        return _open_bytes(content, page, stack, reads_place=True)
    if isinstance(content, BandSource):
        return open_bands(content, stack)
    file = content if isinstance(content, PictureFile) else page_file(content)
    if content is not None and not isinstance(content, PictureFile | PageFile | dict | str | Path):
        raise ImageError(
            f"{name} is a {type(content).__name__}; give a path, bytes, a PIL image, or a NumPy array (H, W) or"
            " (H, W, C), as tensor.permute(1, 2, 0).numpy() makes it of a tensor (C, H, W)"
        )
    if file is None:
        raise ImageError(f"{name} is missing")
    return _open_file(file, page if file.page is None else file.page, stack)


def _open_bytes(content: bytes, page: int, stack: ExitStack, *, reads_place: bool) -> Image.Image | np.ndarray | Raster:
    """The picture, raster or array of a file in memory."""
    if content.startswith(b"\x93NUMPY"):
        return np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    return open_raster(content, stack, page, reads_place=reads_place) or _open_page(BytesIO(content), page, stack)


def _open_file(file: PageFile | PictureFile, page: int, stack: ExitStack) -> Image.Image | np.ndarray | Raster:
    """The picture, raster or array of a file."""
    reads_place = isinstance(file, PageFile)
    if isinstance(file.path, bytes):
        return _open_bytes(file.path, page, stack, reads_place=reads_place)
    if str(file.path).lower().endswith(".npy"):
        check_regular(file.path)
        return np.lib.format.open_memmap(file.path, mode="r")
    return open_raster(file.path, stack, page, reads_place=reads_place) or _open_page(file.path, page, stack)


def _open_page(file: str | Path | BinaryIO, page: int, stack: ExitStack) -> Image.Image:
    """The picture of a page."""
    picture = stack.enter_context(open_picture(file))
    if page:
        picture.seek(page)
    return picture


def orientation(picture: Image.Image) -> int:
    """EXIF orientation, 1 for upright."""
    return picture.getexif().get(ExifTags.Base.Orientation, 1)


def read_image(source: ImageSource, name: str = "image", page: int = 0) -> np.ndarray:
    """Read an image from a path (and page, of a TIFF), bytes, a `datasets` record, a PIL image or an array.

    Returns (H, W, C) in the file's own value range: uint8, uint16, int32 or float32; C is 1 for grey, 3 for color
    (palettes are resolved, alpha is dropped, CMYK converted), anything for a `.npy` of (H, W, C) and for rasters; these
    are masked arrays where pixels hold no data.
    Raises ImageError, with `name`, for a source that cannot be read.
    """
    return decode_image(source, name, page).pixels


def decode_image(source: ImageSource, name: str, page: int = 0, draft_for: Preprocess | None = None) -> DecodedImage:
    """Read an image as `read_image` does.

    With `draft_for`, a JPEG file is decoded with no more detail than that preprocessing needs.
    """
    location = f"{name}: image"
    with open_source(source, location, page) as image, image_errors(location):
        if draft_for and draft_for.draft and isinstance(image, JpegImageFile) and image is not source:
            size = header_size(image)  # before the draft, which changes it
            extent = _draft(image, draft_for)
            return DecodedImage(_pixels(image, name), size, extent)
        pixels = _pixels(image, name)
        size = pixels.shape[:2]
        return DecodedImage(pixels, size, extent=size)


def _pixels(image: Image.Image | np.ndarray | Raster, name: str) -> np.ndarray:
    """Pixels (H, W, C) of an opened image, in memory. Raises ImageError for other shapes, and as `check_finite`."""
    if isinstance(image, Raster):
        pixels = image.whole()
    else:
        pixels = _grey_or_color(image) if isinstance(image, Image.Image) else image
    if isinstance(pixels, np.memmap):
        check_memory(COPIES * pixels.nbytes, "the array")
        pixels = np.array(pixels)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or 0 in pixels.shape or pixels.dtype.kind not in "buif":
        raise ImageError(
            f"{name}: is an array of shape {pixels.shape} and type {pixels.dtype}, not numbers as (H, W) or (H, W, C)"
        )
    check_finite(pixels, name)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


def _grey_or_color(image: Image.Image) -> np.ndarray:
    """(H, W) for grey modes, (H, W, 3) for every color mode, palettes too."""
    image = upright(image)
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("1", "LA"):
        image = image.convert("L")
    if image.mode not in GREY_MODES:
        image = image.convert("RGB")
    return np.asarray(image)


def upright(image: Image.Image) -> Image.Image:
    """The image decoded, with the EXIF orientation applied."""
    decode(image)
    # `exif_transpose` would copy an upright image
    return image if orientation(image) == 1 else ImageOps.exif_transpose(image)


def _as_seen(image: JpegImageFile, size: tuple[Side, Side]) -> tuple[Side, Side]:
    """(W, H) as stored <-> (H, W) as seen."""
    first, second = size
    if orientation(image) in TURNED_ORIENTATIONS:
        return first, second
    return second, first


def _draft(image: JpegImageFile, preprocess: Preprocess) -> tuple[float, float]:
    """Have a JPEG file decoded at the lowest of 1/1, 1/2, 1/4 and 1/8 of its size that is not below the target's.

    Returns how far (H, W) the image itself will reach: the last pixels may lie partly beyond its border.
    """
    size = header_size(image)
    if orientation(image) != 1 and any(side % 8 for side in size):  # turning would put such pixels elsewhere
        return size
    drafted = image.draft(None, _as_seen(image, preprocess.input_size(*size)))
    if not drafted:
        return size
    _, (_, _, width, height) = drafted
    return _as_seen(image, (width, height))


def read_mask(source: ImageSource, name: str) -> np.ndarray:
    """Mask values: (H, W) integers, or (H, W, 3) uint8 where the picture really is colored.

    A palette file gives its indices (the convention of VOC and ADE20K), save a GIF, whose encoder orders the palette as
    it likes: there the colors count. RGB that holds only grey is grey, alpha is dropped, 1-bit is 0 and 1, EXIF
    orientation is applied. Raises DataError, with `name`, for a source that cannot be read or is no mask.
    """
    return decode_mask(source, name).values


def decode_mask(source: ImageSource, name: str) -> DecodedMask:
    """Mask values as `read_mask` gives them, and how they are stored."""
    location = f"{name}: mask"
    with open_source(source, location) as picture, image_errors(location):
        if isinstance(picture, Raster):
            picture = picture.whole()
        if isinstance(picture, np.ndarray):
            check_memory(COPIES * picture.nbytes, "the array")
            mask = _mask_values(picture)
            is_jpeg = False
        else:
            mask = _stored_values(picture)
            is_jpeg = picture.format == "JPEG"
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


def _stored_values(picture: Image.Image) -> np.ndarray:
    """All pixels of a mask as stored: (H, W), or (H, W, 3 or 4) uint8."""
    is_gif = picture.format == "GIF"
    picture = upright(picture)
    mode = picture.mode
    if mode in ("LA", "La", "PA"):
        return np.asarray(picture)[:, :, 0]
    white = picture.info.get(STORED_WHITE)
    if white:
        return np.rint(np.asarray(picture) * (white / WHITE[mode])).astype(np.uint16)
    is_palette = mode == "P" and not is_gif
    if not (is_palette or mode in ("1", "L", "I", "F", "RGB", "RGBA") or mode.startswith("I;16")):
        picture = picture.convert("RGB")
    return np.asarray(picture)


def read_palette_mask(source: ImageSource, name: str) -> np.ndarray | None:
    """The colors (H, W, 3) uint8 of a mask that is stored as indices into a palette; None for any other mask."""
    location = f"{name}: mask"
    with open_source(source, location) as picture, image_errors(location):
        if not isinstance(picture, Image.Image) or picture.mode != "P" or picture.format == "GIF":
            return None
        return np.asarray(upright(picture).convert("RGB"))


def read_colors(source: ImageSource, name: str) -> np.ndarray:
    """Mask values as `read_mask` gives them, but the colors (H, W, 3) of a mask that is stored with a palette."""
    colors = read_palette_mask(source, name)
    return read_mask(source, name) if colors is None else colors


def stored_palette(source: ImageSource, name: str) -> tuple[str, bytes] | None:
    """How the palette of a mask of indices is stored, and its bytes, from the header alone; None for any other mask."""
    location = f"{name}: mask"
    if isinstance(source, RenderedMask | WindowSource):
        return None
    with open_source(source, location) as picture, image_errors(location):
        if not isinstance(picture, Image.Image) or picture.mode != "P" or picture.format == "GIF":
            return None
        return None if picture.palette is None else picture.palette.getdata()


def _mask_values(array: np.ndarray) -> np.ndarray:
    """The values of a mask in an array. Of those without data, NaN and -3.4e38 become unknown, others stay numbers."""
    values = np.array(array)
    if isinstance(array, np.ma.MaskedArray) and values.dtype.kind == "f":
        is_number = np.abs(values) < LARGEST_NUMBER
        values[np.ma.getmaskarray(array) & ~is_number] = IGNORE_INDEX
    return values


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
    path = source.path if isinstance(source, PictureFile) else source
    if isinstance(path, str | Path) and is_tiff(path):
        check_pages(Path(path))
    if isinstance(source, WindowSource):
        with image_errors(name), source.open() as picture:
            pixel = np.asarray(picture.read(0, 1, 0, 1))
            return picture.size, f"{pixel.dtype} x {pixel[0, 0].size}"
    with open_source(source, name) as picture, image_errors(name):
        if isinstance(picture, Raster):
            return picture.size, f"{picture.dtype} x {len(picture.bands)}"
        if isinstance(picture, np.ndarray):
            if picture.ndim < 2:
                raise ImageError(f"{name} is an array of shape {picture.shape}, expected (H, W) or (H, W, C)")
            channels = "" if picture.ndim == 2 else f" x {picture.shape[2]}"
            return picture.shape[:2], f"{picture.dtype}{channels}"
        check_claim(picture)
        return header_size(picture), picture.mode


def header_size(picture: Image.Image) -> tuple[int, int]:
    """(H, W) as seen, of a picture that is not decoded yet."""
    width, height = picture.size
    # The method of PNG files would decode the pixels, lest the orientation stand behind them.
    is_turned = Image.Image.getexif(picture).get(ExifTags.Base.Orientation) in TURNED_ORIENTATIONS
    # Pillow has turned the size of TIFF files already.
    return (width, height) if is_turned and picture.format != "TIFF" else (height, width)
