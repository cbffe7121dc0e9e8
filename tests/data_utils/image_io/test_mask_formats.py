"""Masks in any format of files give the same class indices, and a mask that cannot be read is one clear line."""

import io
import struct
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_utils.analysis.inspect_record import Rules
from data_utils.analysis.inspection import inspect_split, total_pixels
from data_utils.class_map import resolve_classes
from data_utils.image_io.formats import Box
from data_utils.image_io.reader import open_source, read_mask
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError

INDICES = np.kron(np.array([[0, 1, 2], [2, 0, 1]], np.uint8), np.ones((4, 5), np.uint8))  # (8, 15)
COLORS = ((0, 0, 0), (128, 64, 128), (128, 64, 200))
GREYS = (0, 100, 200)


def encoded(picture: Image.Image, suffix: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, suffix, **options)
    return file.getvalue()


def palette_picture(colors) -> Image.Image:
    picture = Image.fromarray(INDICES).convert("L").convert("P")
    picture.putdata(INDICES.ravel().tolist())
    picture.putpalette([band for color in colors for band in color])
    return picture


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def turned(picture: Image.Image, orientation: int) -> Image.Exif:
    exif = picture.getexif()
    exif[0x0112] = orientation
    return exif


GREY = Image.fromarray(np.array(GREYS, np.uint8)[INDICES])
COLOR = Image.fromarray(np.array(COLORS, np.uint8)[INDICES])
SIDEWAYS = Image.fromarray(np.rot90(INDICES).copy())  # orientation 6: a quarter turn clockwise gives INDICES
FORMATS = {
    "L png": encoded(Image.fromarray(INDICES), "png"),
    "L sparse values": encoded(GREY, "png"),
    "L bmp": encoded(GREY, "bmp"),
    "L tiff": encoded(GREY, "tiff"),
    "L tiff, compressed": encoded(GREY, "tiff", compression="tiff_lzw"),
    "L gif": encoded(GREY, "gif"),
    "L webp, lossless": encoded(GREY, "webp", lossless=True),
    "LA, half transparent": encoded(Image.merge("LA", [GREY, GREY.point(lambda v: 128)]), "png"),
    "P png": encoded(palette_picture(COLORS), "png"),
    "P tiff": encoded(palette_picture(COLORS), "tiff"),
    "P gif, colors": encoded(palette_picture(COLORS), "gif"),
    "P gif, greys": encoded(palette_picture([(v, v, v) for v in GREYS]), "gif"),
    "16-bit png": encoded(Image.fromarray(INDICES.astype(np.uint16) * 300), "png"),
    "16-bit tiff": encoded(Image.fromarray(INDICES.astype(np.uint16) * 300), "tiff"),
    "16-bit tiff, big-endian": encoded(Image.fromarray(INDICES.astype(">u2") * 300), "tiff"),
    "32-bit tiff": encoded(Image.fromarray(INDICES.astype(np.int32) * 70_000), "tiff"),
    "32-bit tiff, negative": encoded(Image.fromarray(INDICES.astype(np.int32) - 1), "tiff"),
    "float tiff": encoded(Image.fromarray(INDICES.astype(np.float32)), "tiff"),
    "RGB png": encoded(COLOR, "png"),
    "RGB tiff": encoded(COLOR, "tiff"),
    "RGB that is grey": encoded(GREY.convert("RGB"), "png"),
    "RGBA": encoded(COLOR.convert("RGBA"), "png"),
    "RGBA that is grey and half transparent": encoded(
        Image.merge("RGBA", [GREY] * 3 + [GREY.point(lambda v: 7)]), "png"
    ),
    "EXIF in png": encoded(SIDEWAYS, "png", exif=turned(SIDEWAYS, 6)),
    "EXIF in tiff": encoded(SIDEWAYS, "tiff", exif=turned(SIDEWAYS, 6)),
    "npy uint8": npy(INDICES),
    "npy int64": npy(INDICES.astype(np.int64)),
    "npy int8, negative": npy(INDICES.astype(np.int8) - 1),
    "npy float64": npy(INDICES.astype(np.float64)),
    "npy big-endian": npy(INDICES.astype(">i4")),
    "npy Fortran order": npy(np.asfortranarray(INDICES)),
    "npy (H, W, 1)": npy(INDICES[:, :, None]),
    "npy colors": npy(np.array(COLORS, np.uint8)[INDICES]),
    "array": INDICES,
    "PIL": palette_picture(COLORS),
}


@pytest.mark.parametrize("source", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_indices(source):
    split = inspect_split(Records(ListRows([{"image": source, "target": source, "name": "mask"}])), "reading", Rules())
    split.raise_problems()
    class_map = resolve_classes(total_pixels([split]), (), None)
    result = class_map.encode(read_mask(source, "mask"), "mask")
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, INDICES)


def grey_png(values: np.ndarray, bits: int) -> bytes:
    """A grey PNG of 2 or 4 bits, which Pillow does not write."""
    few_bits = np.unpackbits(values.astype(np.uint8)[:, :, None], axis=2)[:, :, -bits:]
    rows = np.packbits(few_bits.reshape(len(values), -1), axis=1)
    unfiltered = np.pad(rows, ((0, 0), (1, 0)))
    height, width = values.shape
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    for kind, chunk in ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes())), (b"IEND", b"")):
        content += struct.pack(">I", len(chunk)) + kind + chunk + struct.pack(">I", zlib.crc32(kind + chunk))
    return content


def pgm(values: np.ndarray, white: int, *, is_plain: bool) -> bytes:
    height, width = values.shape
    content = " ".join(map(str, values.ravel())).encode() if is_plain else values.astype(">u2").tobytes()
    if white < 256 and not is_plain:
        content = values.astype(np.uint8).tobytes()
    return b"P%d %d %d %d\n" % (2 if is_plain else 5, width, height, white) + content


@pytest.mark.parametrize("white", [1, 3, 15, 100, 255, 1000, 65535])
def test_grey_of_any_number_of_levels_is_read_as_stored(tmp_path, white):
    values = np.random.default_rng(0).integers(0, white + 1, (20, 30))
    files = {"a.pgm": pgm(values, white, is_plain=False), "b.pgm": pgm(values, white, is_plain=True)}
    if white in (3, 15):
        files["c.png"] = grey_png(values, white.bit_length())
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert np.array_equal(read_mask(content, name), values)
        with open_source(tmp_path / name) as image:
            assert np.array_equal(read_mask(image, name, box=Box(3, 17, 2, 29)), values[3:17, 2:29])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16])
def test_masks_of_tiffs_whose_zero_is_white_are_read_as_stored(tmp_path, dtype):
    """ImageJ writes masks so where its lookup table is inverted, and tifffile those of bool."""
    values = np.random.default_rng(0).integers(0, 4, (20, 30)).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="miniswhite")
    assert np.array_equal(read_mask(tmp_path / "a.tif", "a"), values)
    with open_source(tmp_path / "a.tif") as image:
        assert np.array_equal(read_mask(image, "a", box=Box(3, 17, 2, 29)), values[3:17, 2:29])


BINARY = INDICES > 0
BINARY_FORMATS = {
    "png": encoded(Image.fromarray(BINARY), "png"),
    "tiff": encoded(Image.fromarray(BINARY), "tiff"),
    "npy": npy(BINARY),
}


@pytest.mark.parametrize("source", BINARY_FORMATS.values(), ids=BINARY_FORMATS)
def test_a_mask_of_one_bit_is_0_and_1(source):
    mask = read_mask(source, "mask")
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, BINARY)


def test_a_black_and_white_gif_gives_greys_however_its_palette_is_ordered():
    picture = palette_picture([(255, 255, 255), (0, 0, 0), (255, 255, 255)])
    np.testing.assert_array_equal(read_mask(encoded(picture, "gif"), "m"), np.where(INDICES == 1, 0, 255))


BAD = {
    "zero bytes": (b"", "cannot be read"),
    "text": (b"hello", "in a format that is not read here"),
    "truncated png": (FORMATS["16-bit png"][:-40], "cannot be read"),
    "truncated npy": (FORMATS["npy int64"][:-8], "cannot be read"),
    "npy of objects": (npy(np.array([{}, None])), "cannot be read"),
    "nothing": (None, "is missing"),
    "no file": ("/nowhere/mask.png", "/nowhere/mask.png"),
    "scores": (npy(np.zeros((3, 4, 5))), r"shape \(3, 4, 5\)"),
    "one dimension": (npy(np.zeros(4, np.uint8)), "shape"),
    "complex": (npy(np.zeros((4, 4), complex)), "complex128"),
}


@pytest.mark.parametrize(("source", "reason"), BAD.values(), ids=BAD)
def test_a_bad_mask_is_a_one_line_error_with_its_name(source, reason):
    with pytest.raises(DataError, match=reason) as error:
        read_mask(source, "017.png")
    assert str(error.value).startswith("017.png: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".gif", ".png"])
def test_a_mask_read_in_rows_is_the_mask_read_whole(tmp_path, suffix):
    indices = np.zeros((40, 50), np.uint8)
    indices[10:20, 10:30] = 1
    picture = Image.fromarray(indices, "P")
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.save(tmp_path / f"a{suffix}")
    whole = read_mask(tmp_path / f"a{suffix}", "a")
    assert whole.ndim == {".gif": 3, ".png": 2}[suffix]
    with open_source(tmp_path / f"a{suffix}") as picture:
        np.testing.assert_array_equal(read_mask(picture, "a", box=picture.rows(5, 25)), whole[5:25])
        np.testing.assert_array_equal(read_mask(picture, "a", box=Box(5, 25, 8, 33)), whole[5:25, 8:33])
