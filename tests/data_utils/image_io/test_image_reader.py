"""The reader of image files: sizes, types of values, colors, palettes and alpha.

Modules: data_utils/image_io/reader.py, data_utils/image_io/pictures.py.
"""

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image

from data_utils.image_io.formats import Box
from data_utils.image_io.reader import decode_mask, read_header, read_image, read_mask
from runtime.errors import DataError, ImageError


@pytest.mark.parametrize(
    ("orientation", "seen"),
    [
        (1, [[0, 1, 2], [3, 4, 5]]),
        (2, [[2, 1, 0], [5, 4, 3]]),
        (3, [[5, 4, 3], [2, 1, 0]]),
        (4, [[3, 4, 5], [0, 1, 2]]),
        (5, [[0, 3], [1, 4], [2, 5]]),
        (6, [[3, 0], [4, 1], [5, 2]]),
        (7, [[5, 2], [4, 1], [3, 0]]),
        (8, [[2, 5], [1, 4], [0, 3]]),
    ],
)
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_pixels_are_read_as_they_are_seen(tmp_path, orientation, seen, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.uint8([[0, 1, 2], [3, 4, 5]])).save(path, exif=exif)
    assert read_image(path)[:, :, 0].tolist() == seen
    assert read_mask(path, "a").tolist() == seen
    for source in (path, path.read_bytes()):
        assert read_header(source, "a")[0] == np.shape(seen)


@pytest.mark.parametrize("channels", [2, 3, 4], ids=["grey with alpha", "color", "color with alpha"])
def test_a_png_with_colors_of_16_bits_keeps_all_of_them(tmp_path, channels):
    stored = np.random.default_rng(0).integers(0, 65536, (channels, 8, 9)).astype(np.uint16)
    path = tmp_path / "a.png"
    size = {"height": 8, "width": 9, "count": channels}
    with rasterio.open(path, "w", driver="PNG", dtype="uint16", **size) as png:
        png.write(stored)
    colors = np.moveaxis(stored[[0, 0, 0] if channels == 2 else [0, 1, 2]], 0, 2)
    np.testing.assert_array_equal(read_image(path), colors.astype(np.float32) / 257)  # white is 255, as with 8 bits
    np.testing.assert_array_equal(read_image(path, box=Box(2, 7, 1, 5)), colors[2:7, 1:5].astype(np.float32) / 257)


@pytest.mark.parametrize("number", [1, 257], ids=["numbers of 16 bits", "colors of 8 bits"])
def test_classes_in_a_png_with_colors_of_16_bits_are_not_lost(tmp_path, number):
    classes = np.array([[0, 1], [2, 255]], np.uint16)
    with rasterio.open(tmp_path / "a.png", "w", driver="PNG", dtype="uint16", height=2, width=2, count=3) as png:
        png.write(np.stack([classes * number] * 3))
    np.testing.assert_array_equal(read_mask(tmp_path / "a.png", "a"), classes)


def test_colors_of_16_bits_in_a_mask_are_those_of_8_bits_that_tell_them_apart(tmp_path):
    colors = np.array([[[30000, 0, 0], [0, 30000, 0]], [[65535, 65535, 65535], [0, 0, 0]]], np.uint16)
    path = tmp_path / "a.png"
    for changed in (0, 1):
        colors[0, 0, 0] += changed
        colors[1, 1] += changed  # black in the upper bytes
        with rasterio.open(path, "w", driver="PNG", dtype="uint16", height=2, width=2, count=3) as png:
            png.write(np.moveaxis(colors, 2, 0))
        np.testing.assert_array_equal(read_mask(path, "a"), colors >> 8)
    colors[0, 0] = 2
    with rasterio.open(path, "w", driver="PNG", dtype="uint16", height=2, width=2, count=3) as png:
        png.write(np.moveaxis(colors, 2, 0))
    with pytest.raises(DataError, match="store colors with 8 bits"):
        read_mask(path, "a")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_are_nearly_whole_are_whole(tmp_path, dtype):
    values = np.array([[0.9999999, 2.0004, -0.0003, 299.9998]], dtype)
    np.save(tmp_path / "a.npy", values)
    tifffile.imwrite(tmp_path / "a.tif", values)
    for file in ("a.npy", "a.tif"):
        assert read_mask(str(tmp_path / file), "a").tolist() == [[1, 2, 0, 300]]


def test_a_mask_is_colored_where_one_of_its_channels_differs():
    grey = np.repeat(np.array([[[0], [9]]], np.uint8), 3, axis=2)
    decoded = decode_mask(Image.fromarray(grey), "a")
    assert decoded.values.tolist() == [[0, 9]]
    assert decoded.is_colored
    assert not decoded.is_jpeg
    for channel in range(3):
        color = grey.copy()
        color[0, 0, channel] = 1
        assert decode_mask(color, "a").values.shape == (1, 2, 3)


def test_numbers_of_16_bits_are_finite_without_a_warning(recwarn):
    assert read_image(np.full((1, 2, 1), 65504, np.float16), "a").max() == 65504
    assert not recwarn.list


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.array([[0, 0.25, 1]]), "a: mask holds 0.25, expected whole numbers; of probabilities save what is above"),
        (np.array([[0.998]]), "a: mask holds 0.99"),
        (np.array([[0, 2**64 - 1]], np.uint64), "a: mask holds 1.84467441e+19, expected whole numbers"),
        (np.array([[0, np.nan]]), "a: mask holds nan, expected whole numbers"),
        (np.zeros((0, 4), np.uint8), "a: mask cannot be read (its shape is (0, 4), not (H, W) or (H, W, C))"),
        (
            np.zeros((2, 3, 5), np.int16),
            "shape (2, 3, 5) and type int16, expected (H, W) whole numbers; --dims 3 reads",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_array_that_is_no_mask_is_a_one_line_error(array, line):
    with pytest.raises(DataError) as error:
        decode_mask(array, "a")
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 3, 0)), "its shape is (2, 3, 0), not (H, W) or (H, W, C)"),
        (np.zeros((2, 3, 4, 5)), "its shape is (2, 3, 4, 5), not (H, W) or (H, W, C)"),
        (np.zeros((2, 3), complex), "its pixels are of type complex128, which are no real numbers"),
    ],
)
def test_an_array_that_is_no_image_is_a_one_line_error(array, reason):
    with pytest.raises(ImageError) as error:
        read_image(array, "a")
    assert str(error.value) == f"a: image cannot be read ({reason})"


def test_the_header_of_an_array_says_its_type_with_its_channels():
    assert read_header(np.zeros((2, 3), np.int16), "a") == ((2, 3), "int16")
    assert read_header(np.zeros((2, 3, 5), np.uint8), "a") == ((2, 3), "uint8 x 5")
    with pytest.raises(ImageError, match=r"^a cannot be read \(its shape is \(4,\), not \(H, W\) or \(H, W, C\)\)$"):
        read_header(np.zeros(4), "a")
