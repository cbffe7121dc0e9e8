"""The reader of image files: sizes, types of values, colors, palettes and alpha.

Modules: data_utils/image_io/reader.py.
"""

import io
import struct
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageFile
from support.picture_folders import png, size_of

from data_utils.image_io import reader
from data_utils.image_io.formats import PageFile, PictureFile, WindowSource
from data_utils.image_io.reader import (
    decode_mask,
    is_drawn_in_alpha,
    read_header,
    read_image,
    read_mask,
    read_palette_mask,
)
from runtime.errors import DataError, ImageError


@pytest.mark.parametrize(
    ("orientation", "size"),
    [
        (1, (16, 24)),
        (2, (16, 24)),
        (3, (16, 24)),
        (4, (16, 24)),
        (5, (24, 16)),
        (6, (24, 16)),
        (7, (24, 16)),
        (8, (24, 16)),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_the_size_in_a_header_is_that_of_the_picture_as_it_is_seen(tmp_path, orientation, size, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (24, 16)).save(path, exif=exif)
    assert read_header(path, "a") == (size, "RGB")
    assert read_image(path).shape[:2] == size


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


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(255, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.int64), (-1, np.int64), (254.0, np.uint8)],
)
def test_mask_values_take_the_smallest_type_that_holds_them(value, dtype):
    assert decode_mask(np.array([[0, value]]), "a").values.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_are_nearly_whole_are_whole(tmp_path, dtype):
    values = np.array([[0.9999999, 2.0004, -0.0003, 299.9998]], dtype)
    np.save(tmp_path / "a.npy", values)
    tifffile.imwrite(tmp_path / "a.tif", values)
    for file in ("a.npy", "a.tif"):
        assert read_mask(str(tmp_path / file), "a").tolist() == [[1, 2, 0, 300]]


def test_what_a_mask_holds_is_named_with_its_digits():
    with pytest.raises(DataError, match=r"mask holds 0\.99\d+, expected whole numbers"):
        decode_mask(np.array([[0.998]]), "a")


def test_mask_values_of_16_bits_keep_their_type():
    assert decode_mask(np.array([[0, 7]], np.uint16), "a").values.dtype == np.uint16


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


@pytest.mark.parametrize(
    ("alpha", "is_drawn"), [([[0, 0]], False), ([[128, 128]], False), ([[255, 255]], False), ([[254, 255]], True)]
)
def test_a_mask_is_drawn_in_its_alpha_channel_where_that_differs(alpha, is_drawn):
    grey = Image.new("L", (2, 1), 255)
    mask = Image.merge("LA", [grey, Image.fromarray(np.array(alpha, np.uint8))])
    assert is_drawn_in_alpha(mask, "a") is is_drawn
    in_color = Image.merge("RGBA", [*Image.new("RGB", (2, 1)).split(), Image.fromarray(np.array(alpha, np.uint8))])
    assert is_drawn_in_alpha(in_color, "a") is is_drawn
    assert not is_drawn_in_alpha(grey, "a")
    assert not is_drawn_in_alpha(np.zeros((2, 2), np.uint8), "a")


def indexed_picture() -> Image.Image:
    """Two pixels of the colors of a palette."""
    picture = Image.fromarray(np.array([[0, 1]], np.uint8))
    picture.putpalette([9, 9, 9, 200, 140, 80])
    return picture


def test_a_picture_without_palette_has_no_colors_of_indices():
    assert read_palette_mask(Image.fromarray(np.array([[0, 1]], np.uint8)), "a") is None


def test_a_palette_says_what_indices_look_like(tmp_path):
    indexed_picture().save(tmp_path / "a.png")
    assert read_palette_mask(str(tmp_path / "a.png"), "a").tolist() == [[[9, 9, 9], [200, 140, 80]]]


def test_the_palette_of_a_gif_says_nothing_of_indices(tmp_path):
    indexed_picture().save(tmp_path / "a.gif")
    assert read_palette_mask(str(tmp_path / "a.gif"), "a") is None


@pytest.mark.parametrize(("kind", "value"), [("uint32", 4_000_000_000), ("int32", -7)])
def test_numbers_of_32_bits_stay_as_they_are(tmp_path, kind, value):
    tifffile.imwrite(tmp_path / "a.tif", np.array([[1, value]], kind), photometric="minisblack")
    assert decode_mask(str(tmp_path / "a.tif"), "a").values.tolist() == [[1, value]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_no_number_is_named(value):
    with pytest.raises(ImageError, match=r"a: has pixels that are not numbers \(NaN or infinite\)"):
        read_image(np.array([[[0, value]]], np.float32), "a")


def test_values_of_a_mask_without_data_are_unknown_where_they_are_no_numbers():
    values = np.ma.MaskedArray(np.array([[1, 7, np.nan]], np.float32), [[False, True, True]])
    assert decode_mask(values, "a").values.tolist() == [[1, 7, 255]]
    assert np.isnan(values.data[0, 2])
    assert decode_mask(values[:, :2].astype(np.uint8), "a").values.tolist() == [[1, 7]]


def test_an_array_of_two_values_is_read_as_numbers():
    pixels = read_image(np.array([[[True, True], [True, False]]]))
    assert pixels.tolist() == [[[1, 1], [1, 0]]]
    assert pixels.dtype == np.uint8


def test_a_grey_picture_with_alpha_is_read_as_grey():
    half = Image.merge("LA", [Image.new("L", (2, 1), 70), Image.new("L", (2, 1), 128)])
    assert read_image(half).tolist() == [[[70], [70]]]
    assert decode_mask(half, "a").values.tolist() == [[70, 70]]
    assert decode_mask(half.convert("La"), "a").values.tolist() == [[35, 35]]  # multiplied by its alpha


def test_an_array_of_one_channel_is_a_mask():
    assert decode_mask(np.ones((2, 3, 1), np.uint8), "a").values.shape == (2, 3)


def test_a_picture_of_whole_numbers_in_floating_point_is_a_mask():
    assert decode_mask(Image.fromarray(np.array([[0, 300]], np.float32)), "a").values.tolist() == [[0, 300]]


def test_a_picture_in_colors_of_print_is_read_in_three_colors():
    assert read_image(Image.new("CMYK", (2, 1))).shape == (1, 2, 3)


def test_an_array_is_in_memory_three_times_while_it_is_read(tmp_path, monkeypatch):
    needed = []
    monkeypatch.setattr(reader, "check_memory", lambda size, name: needed.append(size))
    np.save(tmp_path / "a.npy", np.zeros((3, 5), np.uint16))
    read_image(tmp_path / "a.npy")
    read_mask(tmp_path / "a.npy", "a")
    assert needed == [3 * 3 * 5 * 2] * 2


def test_an_array_file_is_read_into_memory(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 5), np.uint16))
    assert read_image(tmp_path / "a.npy").flags.writeable


@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_of_16_bits_stay_so(tmp_path, order):
    tifffile.imwrite(tmp_path / "a.tif", np.array([[2, 65535]], np.uint16), photometric="minisblack", byteorder=order)
    pixels = read_image(tmp_path / "a.tif")
    assert pixels.dtype == np.uint16
    assert pixels.tolist() == [[[2], [65535]]]
    assert read_mask(tmp_path / "a.tif", "a").tolist() == [[2, 65535]]


@pytest.fixture
def three_pages(tmp_path):
    """The path of a TIFF whose pages hold 0, 1 and 2."""
    path = str(tmp_path / "a.tif")
    pages = np.arange(3, dtype=np.uint8)[:, None, None] + np.zeros((2, 4), np.uint8)
    tifffile.imwrite(path, pages, photometric="minisblack")
    return path


@pytest.mark.parametrize("page", range(3))
def test_a_page_is_the_one_that_its_source_names(three_pages, page):
    assert read_image(PageFile(three_pages, page)).max() == page


@pytest.mark.parametrize(("file_page", "page"), [(1, 1), (None, 2), (0, 0)])
def test_a_page_of_a_picture_file_comes_before_the_one_that_is_asked_for(three_pages, file_page, page):
    assert read_image(PictureFile(three_pages, file_page), page=2).max() == page


def test_a_page_may_be_in_bytes(three_pages):
    content = Path(three_pages).read_bytes()
    assert read_image(content, page=1).max() == 1


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (
            np.array([[0, 0.25, 1]]),
            "a: mask holds 0.25, expected whole numbers; of probabilities save what is above 0.5 as 1",
        ),
        (
            np.zeros((2, 3, 5), np.int16),
            "a: mask is an array of shape (2, 3, 5) and type int16, expected (H, W) whole numbers;"
            " --dims 3 reads stacks as volumes",
        ),
        (
            np.zeros((0, 4), np.uint8),
            "a: mask is an array of shape (0, 4) and type uint8, expected (H, W) whole numbers",
        ),
        (
            np.array([[0, 2**64 - 1]], np.uint64),
            "a: mask holds 1.84467441e+19, expected whole numbers; of probabilities save what is above 0.5 as 1",
        ),
        (
            np.array([[0, np.nan]]),
            "a: mask holds nan, expected whole numbers; of probabilities save what is above 0.5 as 1",
        ),
        (
            np.zeros((2, 3, 3), np.uint16),
            "a: mask is an array of shape (2, 3, 3) and type uint16, expected (H, W) whole numbers;"
            " --dims 3 reads stacks as volumes",
        ),
        (np.zeros(3, complex), "a: mask is an array of shape (3,) and type complex128, expected (H, W) whole numbers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_array_that_is_no_mask_is_a_one_line_error(array, line):
    with pytest.raises(DataError) as error:
        decode_mask(array, "a")
    assert str(error.value) == line


@pytest.mark.parametrize(
    "array", [np.zeros((0, 4)), np.zeros((2, 3, 0)), np.zeros(4), np.zeros((2, 3, 4, 5)), np.zeros((2, 3), complex)]
)
def test_an_array_that_is_no_image_is_a_one_line_error(array):
    with pytest.raises(ImageError) as error:
        read_image(array, "a")
    assert str(error.value).startswith("a: is an array of shape (")
    assert str(error.value).endswith("not numbers as (H, W) or (H, W, C)")


def test_the_header_of_an_array_says_its_type_with_its_channels():
    assert read_header(np.zeros((2, 3), np.int16), "a") == ((2, 3), "int16")
    assert read_header(np.zeros((2, 3, 5), np.uint8), "a") == ((2, 3), "uint8 x 5")
    with pytest.raises(ImageError, match=r"^a is an array of shape \(4,\), expected \(H, W\) or \(H, W, C\)$"):
        read_header(np.zeros(4), "a")


class Window(WindowSource):
    """A window of 2 x 3 pixels of two channels, of which the first pixel is read."""

    def __init__(self) -> None:
        self.picture = mock.Mock(size=(2, 3))
        self.picture.read.return_value = np.zeros((1, 1, 2), np.uint16)

    def read(self) -> np.ndarray:
        raise AssertionError

    def open(self) -> AbstractContextManager:
        return nullcontext(self.picture)


def test_the_header_of_a_window_is_read_from_its_first_pixel():
    window = Window()
    assert read_header(window, "a") == ((2, 3), "uint16 x 2")
    window.picture.read.assert_called_once_with(0, 1, 0, 1)


def test_indices_of_a_palette_with_alpha_are_the_values_of_a_mask():
    mask = Image.fromarray(np.array([[0, 2]], np.uint8))
    mask.putpalette([9, 9, 9, 200, 140, 80, 1, 2, 3])
    assert decode_mask(mask.convert("PA"), "a").values.tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("color", "mode", "colored"),
    [((70, 70, 70), "RGB", True), ((70, 70, 200), "RGB", True), ((70, 70, 70), "L", False)],
)
def test_a_mask_that_is_stored_as_a_jpeg_is_known(tmp_path, color, mode, colored):
    Image.new("RGB", (8, 8), color).convert(mode).save(tmp_path / "a.jpg")
    decoded = decode_mask(str(tmp_path / "a.jpg"), "a")
    assert decoded.is_jpeg
    assert decoded.is_colored is colored


def test_the_colors_of_a_palette_are_seen_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    indexed_picture().save(tmp_path / "a.png", exif=exif)
    assert read_palette_mask(str(tmp_path / "a.png"), "a").tolist() == [[[9, 9, 9]], [[200, 140, 80]]]


def test_an_array_of_complex_numbers_is_no_image():
    with pytest.raises(ImageError, match="type complex128, not numbers"):
        read_image(np.zeros((2, 3), complex), "a")


def linked_tiff() -> tuple[bytearray, int, int]:
    """A TIFF of one page, and where its directory and the link to the next directory are."""
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((2, 3), np.uint8), photometric="minisblack")
    content = bytearray(file.getvalue())
    (directory,) = struct.unpack_from("<I", content, 4)
    (tags,) = struct.unpack_from("<H", content, directory)
    return content, directory, directory + 2 + 12 * tags


@pytest.mark.parametrize(
    "source_of", [str, Path, lambda path: PictureFile(str(path))], ids=["name", "path", "picture file"]
)
def test_an_endless_tiff_has_no_header(tmp_path, source_of):
    content, directory, link = linked_tiff()
    struct.pack_into("<I", content, link, directory)
    (tmp_path / "circle.tif").write_bytes(content)
    with pytest.raises(ImageError, match="the directory of one page is that of an earlier one again"):
        read_header(source_of(tmp_path / "circle.tif"), "a")


def test_a_tiff_whose_second_page_has_too_many_tags_has_the_header_of_its_first(tmp_path):
    content, _, link = linked_tiff()
    struct.pack_into("<I", content, link, len(content))
    (tmp_path / "many.tif").write_bytes(content + struct.pack("<H", 5000) + bytes(64))
    assert read_header(tmp_path / "many.tif", "a") == ((2, 3), "L")


@pytest.mark.parametrize("source", [np.zeros((4, 6, 3)), png(0), Image.new("L", (6, 4))])
def test_the_size_of_any_source_is_height_and_width(source):
    assert size_of(source, "x") == (4, 6)


def test_the_size_of_an_array_file_is_in_its_header(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 6, 3), np.float32))
    assert size_of(str(tmp_path / "a.npy"), "a") == (4, 6)


def test_an_array_of_one_axis_has_no_size(tmp_path):
    np.save(tmp_path / "b.npy", np.zeros(4))
    with pytest.raises(DataError, match=r"b is an array of shape \(4,\)"):
        size_of(tmp_path / "b.npy", "b")


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff"])
def test_the_size_is_read_without_the_pixels(monkeypatch, kind):
    def decode(self):
        raise AssertionError("decodes the pixels")

    file = io.BytesIO()
    Image.new("L", (6, 4)).save(file, kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    assert size_of(file.getvalue(), "x") == (4, 6)
