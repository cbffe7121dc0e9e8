"""Pages of TIFFs: which of them count, which Pillow reads right, and where their pixels lie."""

import logging
import math
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import tifffile
from PIL.TiffImagePlugin import COMPRESSION_INFO

from data_utils.image_io.formats import TIFF_SUFFIXES, check_memory, image_errors
from data_utils.image_io.pictures import TURNED_ORIENTATIONS
from runtime.documents import check_regular

MINISBLACK = tifffile.PHOTOMETRIC.MINISBLACK
RGB = tifffile.PHOTOMETRIC.RGB
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# tags of the place, by the GeoTIFF standard, https://docs.ogc.org/is/19-008r4/19-008r4.html
PIXEL_SCALE, TIE_POINT, TRANSFORMATION = 33550, 33922, 34264
KEY_DIRECTORY, DOUBLE_PARAMETERS, ASCII_PARAMETERS = 34735, 34736, 34737
PLACE_TAGS = (PIXEL_SCALE, TIE_POINT, TRANSFORMATION, KEY_DIRECTORY, DOUBLE_PARAMETERS, ASCII_PARAMETERS)
NUMBERS = (MINISBLACK, tifffile.PHOTOMETRIC.MINISWHITE, RGB)  # other pages hold colors that Pillow converts
PILLOW_COMPRESSIONS = COMPRESSION_INFO.keys() - {tifffile.COMPRESSION.WEBP}  # some builds of Pillow lack WebP here
ASSOCIATED = tifffile.EXTRASAMPLE.ASSOCALPHA  # an alpha that colors are multiplied by
ALPHA_SAMPLES = (ASSOCIATED, tifffile.EXTRASAMPLE.UNASSALPHA)

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # the ImageError has its message


def is_tiff(file: str | Path | bytes) -> bool:
    """Whether a name ends like that of a TIFF, or bytes begin like one."""
    if isinstance(file, bytes):
        return file.startswith(TIFF_STARTS)
    return str(file).lower().endswith(TIFF_SUFFIXES)


def page_numbers(path: Path) -> list[int]:
    """Numbers of a TIFF's pages, save the small copies that some programs store beside them."""
    return [number for number, _ in tiff_pages(path)]


def tiff_pages(path: Path) -> list[tuple[int, tuple[int, int]]]:
    """(page, (H, W)) of the `page_numbers` of a TIFF."""
    with image_errors(str(path)), open_tiff(path) as tiff:
        return [(number, _upright_size(page)) for number, page in _full_pages(tiff)]


def channel_pages(path: Path) -> list[tuple[int, ...]]:
    """The pages of the channels of each image, where the axes that ImageJ or OME have stored say so; else empty."""
    with image_errors(str(path)), open_tiff(path) as tiff:
        by_image = _channels_last(tiff, _full_page_numbers(tiff))
        return [] if by_image is None else list(map(tuple, by_image.tolist()))


def slice_pages(path: Path) -> list[tuple[int, ...]]:
    """The pages of each slice of a stack: one, or those of its channels where `channel_pages` gives several images."""
    with image_errors(str(path)), open_tiff(path) as tiff:
        numbers = _full_page_numbers(tiff)
        by_image = _channels_last(tiff, numbers)
        if by_image is None or len(by_image) == 1:
            by_image = numbers[:, None]
        return list(map(tuple, by_image.tolist()))


def _full_page_numbers(tiff: tifffile.TiffFile) -> np.ndarray:
    return np.array([number for number, _ in _full_pages(tiff)])


def _channels_last(tiff: tifffile.TiffFile, planes: np.ndarray) -> np.ndarray | None:
    """(N, ...) planes of a file as (images, ..., C), where the axes of ImageJ or OME say so; else None."""
    if not tiff.is_imagej and not tiff.is_ome:
        return None
    axes, _, _ = tiff.series[0].axes.partition("Y")
    sizes = tiff.series[0].shape[: len(axes)]
    if "C" not in axes or math.prod(sizes) != len(planes):
        return None
    plane = planes.shape[1:]
    by_axes = np.moveaxis(planes.reshape(*sizes, *plane), axes.index("C"), -1)
    return by_axes.reshape(-1, *plane, by_axes.shape[-1])


def open_tiff(file: Path | bytes) -> tifffile.TiffFile:
    """A TIFF, open. May raise any error."""
    if isinstance(file, bytes):
        return tifffile.TiffFile(BytesIO(file))
    check_regular(file)
    return tifffile.TiffFile(file)


def open_page(tiff: tifffile.TiffFile, number: int) -> tifffile.TiffPage:
    """A page of a TIFF by its number, as `page_numbers` gives it. Raises ValueError for a volume in one page."""
    count = _slice_count(tiff)
    if count > 1:
        raise ValueError(f"it holds {count} slices in one page; --dims 3 reads them as a volume")
    return tiff.pages[number].aspage()


def page_size(page: tifffile.TiffPage) -> tuple[int, int]:
    """(H, W) of a page as stored. Raises ValueError for what a damaged header may hold."""
    for side in (page.imagelength, page.imagewidth):
        if not isinstance(side, int) or side < 1:
            raise ValueError(f"a side of it is {str(side)[:40]}")
    return page.imagelength, page.imagewidth


def read_slices(path: Path) -> np.ndarray | None:
    """(D, H, W, C) of a stack whose only directory describes its first slice; None for others.

    ImageJ writes stacks above 4 GB so, tifffile those with `truncate`. They are mapped from the file, unless they are
    compressed or in tiles.
    """
    with open_tiff(path) as tiff:
        first = tiff.pages[0].aspage()
        count = _slice_count(tiff)
        claimed = (tiff.imagej_metadata or {}).get("images", 1)
        if count == 1 < claimed and not tiff.pages.is_multipage:
            raise ValueError(f"it ends before the last of the {claimed} slices that it claims")
        if count == 1:
            return None
        shape = (count, *page_size(first), int(first.samplesperpixel))
        series = tiff.series[0]
        if series.dataoffset is None:
            check_memory(series.nbytes, f"a stack of {count} slices")
            slices = series.asarray().reshape(shape)
        else:
            slices = tifffile.memmap(path, mode="r").reshape(shape)
        by_image = _channels_last(tiff, slices[..., 0]) if shape[-1] == 1 else None
        return slices if by_image is None or len(by_image) == 1 else by_image


def _slice_count(tiff: tifffile.TiffFile) -> int:
    """How many slices the first page of a file holds."""
    first = tiff.pages[0].aspage()
    height, width = page_size(first)
    is_stack = first.is_imagej or first.is_shaped or first.is_stk or first.imagedepth > 1
    if not is_stack or tiff.pages.is_multipage:
        return 1
    return int(tiff.series[0].size // (height * width * first.samplesperpixel))


def _full_pages(tiff: tifffile.TiffFile) -> Iterator[tuple[int, tifffile.TiffPage]]:
    """The pages of a TIFF with their numbers, without small copies and without the masks of pages with a place.

    Raises ValueError where they would never end. Each directory, one for each page, stands in the file once: so a
    chain of them that comes back to itself, or that takes more bytes than the file has, is damaged.
    """
    file = tiff.filehandle
    offsets: set[int] = set()
    claimed_bytes = 0
    for number, frame in enumerate(tiff.pages):
        page = frame.aspage()
        if number == 0:
            first = open_page(tiff, 0)
        file.seek(page.offset)
        (tags,) = struct.unpack(tiff.tiff.tagnoformat, file.read(tiff.tiff.tagnosize))
        claimed_bytes += tags * tiff.tiff.tagsize
        if page.offset in offsets or claimed_bytes > file.size:
            raise ValueError("the directories of its pages come round again or overlap")
        offsets.add(page.offset)
        is_mask = page.is_mask and has_place_tags(first)
        if number == 0 or not (page.is_reduced or is_mask):
            yield number, page


def _upright_size(page: tifffile.TiffPage) -> tuple[int, int]:
    """(H, W) of a page as seen."""
    height, width = page_size(page)
    if page.tags.valueof("Orientation", default=1) in TURNED_ORIENTATIONS:
        return width, height
    return height, width


def reads_right(page: tifffile.TiffPage) -> bool:
    """Whether Pillow gives the numbers of a page; of others it swaps bytes, cuts bits, drops bands, or opens none."""
    if page.photometric not in NUMBERS or page.dtype is None:
        return True
    is_big_endian = page.parent.byteorder == ">"
    if page.compression not in PILLOW_COMPRESSIONS or (is_big_endian and page.parent.is_bigtiff):
        return False
    samples = page.samplesperpixel
    kind = str(page.dtype)
    if page.bitspersample in (1, 2, 4, 8) and kind in ("bool", "uint8"):
        is_grey = samples == 1 or (samples == 2 and tifffile.EXTRASAMPLE.UNASSALPHA in page.extrasamples)
        return is_grey or (page.photometric == RGB and samples in (3, 4))
    if samples > 1 or page.photometric != MINISBLACK or page.bitspersample % 8:
        is_packed_grey = (samples, page.photometric, page.bitspersample) == (1, MINISBLACK, 12)
        return is_packed_grey and not is_big_endian and page.compression == tifffile.COMPRESSION.NONE
    if kind in ("int16", "int32", "float32"):
        return not is_big_endian or page.compression == tifffile.COMPRESSION.NONE
    return kind == "uint16"


def alpha_sample(page: tifffile.TiffPage) -> int | None:
    """The sample of a page that says how opaque pixels are."""
    colors = page.samplesperpixel - len(page.extrasamples)
    for number, kind in enumerate(page.extrasamples):
        if kind in ALPHA_SAMPLES:
            return colors + number
    return None


def has_bands(page: tifffile.TiffPage) -> bool:
    """Whether the samples of a page are numbers that can be bands."""
    is_number = page.dtype is not None and np.dtype(page.dtype).kind in "uif"
    is_plain = page.photometric in (MINISBLACK, RGB) and page.bitspersample % 8 == 0
    # GDAL makes colors of them, as aerial photographs are stored
    is_photograph = page.photometric == tifffile.PHOTOMETRIC.YCBCR and page.compression == tifffile.COMPRESSION.JPEG
    is_color = is_plain or (is_photograph and has_place_tags(page)) or not reads_right(page)
    return is_upright(page) and is_number and is_color and page.imagedepth == 1


def has_plain_pixels(page: tifffile.TiffPage) -> bool:
    """Whether GDAL gives the pixels of a page as Pillow does, which divides the colors by some alphas."""
    return has_bands(page) and page.photometric in (MINISBLACK, RGB) and ASSOCIATED not in page.extrasamples


def is_upright(page: tifffile.TiffPage) -> bool:
    """Whether a page is seen as it is stored."""
    return page.tags.valueof("Orientation", default=1) == 1


def has_place_tags(page: tifffile.TiffPage) -> bool:
    """Whether a page has tags with its place in the world."""
    return any(code in page.tags for code in (PIXEL_SCALE, TRANSFORMATION, KEY_DIRECTORY))


def check_segments(page: tifffile.TiffPage) -> None:
    """Raises ValueError for a page with fewer tiles or strips than its size needs, of which Pillow makes zeros."""
    if not page.is_stk and len(page.dataoffsets) < math.prod(page.chunked):
        raise ValueError("it has fewer tiles or strips than its size needs")
