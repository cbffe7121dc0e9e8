"""Pictures in the formats that Pillow reads, as images and as masks."""

from contextlib import ExitStack
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from data_utils.image_io.formats import COPIES, TIFF_SUFFIXES, Box, PageFile, check_memory, image_errors
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from runtime.documents import check_regular
from unet.config import Preprocess

Side = TypeVar("Side", int, float)
# the formats that Pillow may take a file for, whatever its name: others start programs (EPS) or open further files
PILLOW_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000", "DIB", "AVIF", "TGA")
GREY_MODES = ("L", "I", "F")
ORIENTATION = ExifTags.Base.Orientation
PHOTOMETRIC = ExifTags.Base.PhotometricInterpretation  # of TIFFs
WHITE_IS_ZERO = 0  # its value, as ImageJ writes masks with an inverting lookup table, and tifffile those of bool
FAX = ("tiff_ccitt", "group3", "group4")  # compressions in which white is always 0, whatever a program means by it
TURNED_ORIENTATIONS = (5, 6, 7, 8)  # EXIF and TIFF orientations that swap height and width
STORED_WHITE = "white in the file"  # the key for it among what Pillow knows of a picture
WHITE = {"L": 255, "I": 65535}  # what Pillow makes of white, where it scales grey
WHITE_OF_RAWMODES = {"L;2": 3, "L;4": 15}  # Pillow's names for how grey of 2 and 4 bits is stored
# its names for colors of 16 bits, of which it decodes the upper bytes, and for what decodes the lower ones
LOWER_RAWMODES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "LA;16B": "RGBA"}
LEVELS = 257  # numbers of 16 bits for each of 8 bits: white is 65535 and 255


class WindowedPicture(WindowedImage):
    """A picture of Pillow; windows are cut from one copy, which is decoded for the first of them.

    Args:
        file: the file or bytes that it was opened from; None if it came as a picture.
    """

    suffixes = (
        *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".pbm", ".pgm", ".pnm", ".ppm"),
        *(".webp", ".jp2", ".j2k", ".jpx", ".avif", ".tga", *TIFF_SUFFIXES),
    )
    decodes_windows = False

    def __init__(self, picture: Image.Image, name: str, file: str | Path | bytes | None = None) -> None:
        self.picture = picture
        self.name = name
        self.file = file
        self.mode = picture.mode
        self.format = picture.format or ""

    @classmethod
    def open_file(cls, file: PageFile, name: str, stack: ExitStack) -> "WindowedPicture":
        picture = stack.enter_context(open_picture(file.path))
        if file.page:
            picture.seek(file.page)
        tiles = getattr(picture, "tile", None)  # how pixels are stored, known until they are decoded
        is_deep = picture.format == "PNG" and tiles and tiles[0].args in LOWER_RAWMODES
        return (DeepPicture if is_deep else cls)(picture, name, file.path)

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        if isinstance(self.picture, JpegImageFile):
            return header_size(self.picture)
        return self._upright.size[::-1]  # the orientation may stand behind the pixels

    extent = size  # type: ignore[assignment]

    @property
    def palette(self) -> tuple[str, bytes] | None:
        """The palette of indices, if its order means something."""
        if self.mode != "P" or self.format == "GIF" or self.picture.palette is None:
            return None
        mode, content = self.picture.palette.getdata()
        return mode, bytes(content)

    def header(self) -> tuple[tuple[int, int], str]:
        return header_size(self.picture), self.mode

    @cached_property
    def _upright(self) -> Image.Image:
        """The picture decoded, with the EXIF orientation applied."""
        picture = self.picture
        with image_errors(self.name):
            width, height = picture.size
            pixel_bytes = 1 if picture.mode in ("1", "L", "P") else 4
            check_memory(COPIES * width * height * pixel_bytes, f"a picture of {width:,} x {height:,} pixels")
            picture.info[STORED_WHITE] = _stored_white(picture)
            if isinstance(picture, TiffImageFile) and picture.tag_v2.get(ORIENTATION) in TURNED_ORIENTATIONS:
                # else Pillow would map the pixels, as rows of the turned picture's length
                picture.filename = ""
            return _turned(picture)

    def _part(self, box: Box | None) -> Image.Image:
        """A box of the picture, or all of it."""
        if box is None:
            return self._upright
        return self._upright.crop((box.left, box.top, box.right, box.bottom))

    def pixels(self, box: Box | None = None) -> np.ndarray:
        """(H, W) for grey modes, (H, W, 3) for every color mode, palettes too; colors are numbers from 0 to 255."""
        image = self._part(box)
        if image.mode.startswith("I;16"):
            return np.asarray(image).astype(np.uint16)
        if image.mode in ("1", "LA"):
            image = image.convert("L")
        if image.mode not in GREY_MODES:
            image = image.convert("RGB")
        return np.asarray(image)

    def values(self, box: Box | None = None) -> np.ndarray:
        """As stored: (H, W), or (H, W, 3 or 4) uint8."""
        picture = self._part(box)
        mode = picture.mode
        if mode in ("LA", "La", "PA"):
            return np.asarray(picture)[:, :, 0]
        white = picture.info.get(STORED_WHITE)
        tags = getattr(self.picture, "tag_v2", {})  # of a TIFF
        is_fax = self.picture.info.get("compression") in FAX
        if mode in ("1", "L") and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO and not is_fax:  # Pillow inverts these
            picture = ImageOps.invert(picture)
        if white:
            return np.rint(np.asarray(picture) * (white / WHITE[mode])).astype(np.uint16)
        has_indices = mode == "P" and self.format != "GIF"
        if not (has_indices or mode in ("1", "L", "I", "F", "RGB", "RGBA") or mode.startswith("I;16")):
            picture = picture.convert("RGB")
        return np.asarray(picture)

    def drafted(self, preprocess: Preprocess) -> WindowedImage:
        """A JPEG file decoded at the lowest of 1/1, 1/2, 1/4 and 1/8 of its size that is not below the target's.

        Its last pixels may lie partly beyond its border.
        """
        if not (preprocess.draft and self.file is not None and isinstance(self.picture, JpegImageFile)):
            return self
        size = self.size
        extent: tuple[float, float] = size
        with image_errors(self.name), open_picture(self.file) as again:
            # turning would put such pixels elsewhere
            is_whole = all(side % 8 == 0 for side in size)
            draft = None
            if is_whole or _orientation(again) == 1:
                draft = again.draft(None, _as_seen(again, preprocess.input_size(*size)))
            if draft:
                extent = _as_seen(again, draft[1][2:])
            return WindowedArray(WindowedPicture(again, self.name).pixels(), size, extent)


class DeepPicture(WindowedPicture):
    """A PNG with colors of 16 bits, which Pillow decodes to 8; so it is unless some of the colors need 16."""

    file: str | Path | bytes

    @cached_property
    def _deep_colors(self) -> np.ndarray | None:
        """(H, W, 3) uint16; None if all are colors of 8 bits."""
        with image_errors(self.name), open_picture(self.file) as again:
            (tile,) = again.tile  # type: ignore[attr-defined]
            rawmode = LOWER_RAWMODES[tile.args]
            again.tile = [tile._replace(args=rawmode)]  # type: ignore[attr-defined]
            stored = np.asarray(_turned(again))
        # of grey with alpha the four are the bytes of both
        lower = stored[:, :, [1, 1, 1] if rawmode == "RGBA" else [0, 1, 2]]
        upper = np.asarray(self._upright)[:, :, :3]
        return None if np.array_equal(lower, upper) else 256 * upper.astype(np.uint16) + lower

    @cached_property
    def _upper_bytes_suffice(self) -> bool:
        """Whether the upper bytes of the colors, which are not all grey, tell all of them apart."""
        deep_colors = self._deep_colors
        if deep_colors is None or (deep_colors == deep_colors[:, :, :1]).all():
            return False
        packed = deep_colors.astype(np.int64) @ np.array([1, 2**16, 2**32])
        upper_bytes = packed & 0xFF00FF00FF00
        return len(np.unique(upper_bytes)) == len(np.unique(packed))

    def pixels(self, box: Box | None = None) -> np.ndarray:
        if self._deep_colors is None:
            return super().pixels(box)
        return WindowedArray(self._deep_colors).pixels(box).astype(np.float32) / LEVELS

    def values(self, box: Box | None = None) -> np.ndarray:
        """As stored: (H, W, 3) uint16, of 8 bits where these are enough."""
        if self._deep_colors is None or self._upper_bytes_suffice:
            return super().values(box)
        return WindowedArray(self._deep_colors).pixels(box)


def open_picture(file: str | Path | bytes) -> Image.Image:
    """A picture in one of PILLOW_FORMATS, not decoded yet, of a file or of its bytes."""
    if isinstance(file, bytes):
        return Image.open(BytesIO(file), formats=PILLOW_FORMATS)
    check_regular(file)
    return Image.open(file, formats=PILLOW_FORMATS)


def header_size(picture: Image.Image) -> tuple[int, int]:
    """(H, W) as seen, of a picture that is not decoded yet."""
    width, height = picture.size
    # The method of PNG files would decode the pixels, lest the orientation stand behind them.
    is_turned = Image.Image.getexif(picture).get(ORIENTATION) in TURNED_ORIENTATIONS
    # Pillow has turned the size of TIFF files already.
    if is_turned and picture.format != "TIFF":
        return width, height
    return height, width


def _stored_white(picture: Image.Image) -> int | None:
    """The number that white has in the file, if Pillow scales grey so that white is another; known until decoding."""
    if picture.mode not in ("L", "I") or not getattr(picture, "tile", None):
        return picture.info.get(STORED_WHITE)
    decoder, _, _, arguments = picture.tile[0]  # type: ignore[attr-defined]
    if decoder.startswith("ppm"):
        return arguments[1]
    rawmode = arguments
    if not isinstance(arguments, str):
        rawmode = arguments[0]
    return WHITE_OF_RAWMODES.get(str(rawmode)[:3])  # a number of bits in a GIF


def _turned(picture: Image.Image) -> Image.Image:
    """A picture, decoded, as it is seen."""
    picture.load()
    # `exif_transpose` would copy an upright image
    return picture if _orientation(picture) == 1 else ImageOps.exif_transpose(picture)


def _orientation(picture: Image.Image) -> int:
    """EXIF orientation, 1 for upright."""
    return picture.getexif().get(ORIENTATION, 1)


def _as_seen(image: Image.Image, size: tuple[Side, Side]) -> tuple[Side, Side]:
    """(W, H) as stored <-> (H, W) as seen."""
    first, second = size
    if _orientation(image) in TURNED_ORIENTATIONS:
        return first, second
    return second, first
