"""Windows of an image give what the whole image gives, to the last bit, whatever file it lies in.

Modules: data_utils/image_io/tiff.py.
"""

import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image
from rasterio.windows import Window
from rasters import write_raster

from data_utils.image_io import tiff as tiff_module
from data_utils.image_io import windowed
from data_utils.image_io.formats import BandSource, PictureFile
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.resize import resize_image, resize_rows, resize_window
from data_utils.image_io.tiff import tiff_pages
from data_utils.image_io.windowed import (
    WindowedArray,
    WindowedRaster,
    WindowedTiff,
    open_if_large,
    open_windowed,
    open_windowed_file,
    strips,
)
from data_utils.loading.image_input import ImageInput
from inference import Predictor
from runtime.errors import ImageError
from unet import Preprocess, UNet, UNetConfig


@pytest.mark.parametrize(
    ("size", "target", "kind", "channels"),
    [
        ((300, 200), (150, 100), "u1", 3),
        ((301, 205), (97, 333), "u1", 3),
        ((301, 205), (97, 205), "u1", 1),
        ((301, 205), (301, 99), "u1", 3),
        ((301, 205), (600, 99), "u1", 3),
        ((300, 200), (17, 11), "u2", 1),
        ((300, 200), (170, 311), "f4", 1),
        ((120, 130), (77, 99), "u1", 4),
        ((2000, 30), (3, 7), "u1", 3),
    ],
)
def test_rows_are_resized_as_the_whole_image_is_to_the_last_bit(size, target, kind, channels):
    image = (np.random.default_rng(0).random((*size, channels)) * 255).astype(kind)
    preprocess = Preprocess(image_size=target)
    whole = ImageInput.read(image, preprocess, channels).whole()
    for start, stop in ((0, target[0]), (target[0] // 3, target[0] // 3 + 1), (target[0] - 1, target[0])):
        rows = ImageInput(WindowedArray(image), preprocess, channels).strip(start, stop)
        np.testing.assert_array_equal(rows, whole[:, start:stop])
        assert rows.dtype == whole.dtype


def test_rows_that_reach_less_far_than_their_pixels_are_resized_as_the_whole_image_is():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    whole = resize_image(pixels, (6, 4), (0, 0, 8.5, 6))
    rows = resize_rows(lambda top, bottom: pixels[top:bottom], (6, 8.5), (6, 4), 2, 5)
    np.testing.assert_array_equal(rows, whole[2:5])


def test_a_part_of_an_image_at_its_own_size_is_that_part():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_image(pixels, (4, 5), (0, 0, 5, 4)), pixels[:4, :5])


def test_no_more_of_an_image_at_its_own_size_is_read_than_the_window():
    read = mock.Mock(return_value=np.zeros((3, 6, 1), np.uint8))
    resize_window(read, (10, 12), (10, 12), ((2, 5), (3, 9)))
    read.assert_called_once_with(2, 5, 3, 9)


PICTURES = {
    "rgb": np.random.default_rng(0).integers(0, 256, (301, 333, 3), dtype=np.uint8),
    "rgba": np.random.default_rng(1).integers(0, 256, (301, 333, 4), dtype=np.uint8),
    "grey": np.random.default_rng(2).integers(0, 256, (301, 333), dtype=np.uint8),
    "grey16": np.random.default_rng(3).integers(0, 65536, (301, 333), dtype=np.uint16),
    "float": np.random.default_rng(4).random((301, 333), dtype=np.float32),
}


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"rowsperstrip": 7},
        {"tile": (64, 48)},
        {"compression": "zlib", "rowsperstrip": 7},
        {"compression": "zlib", "tile": (64, 48)},
        {"byteorder": ">"},
        {"bigtiff": True, "tile": (64, 64)},
    ],
)
def test_windows_of_a_tiff_are_what_the_whole_file_holds(kind, layout, tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PICTURES[kind], photometric="rgb" if kind.startswith("rgb") else "minisblack", **layout)
    whole = read_image(path)
    with open_windowed_file(path) as picture:
        assert isinstance(picture, WindowedTiff)
        assert picture.size == (301, 333)
        for start, stop in ((0, 301), (0, 1), (300, 301), (60, 130), (63, 65)):
            np.testing.assert_array_equal(read_image(picture.read(start, stop)), whole[start:stop])


PAGES = np.arange(3, dtype=np.uint8)[:, None, None] + np.zeros((3, 4), np.uint8)


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PICTURES["rgb"]).save(path, exif=exif)


def veiled(path: Path) -> None:
    """Colors that are multiplied by an opacity, as the file says."""
    half = np.full((*PICTURES["rgb"].shape[:2], 1), 128, np.uint8)
    pixels = np.concatenate([PICTURES["rgb"] // 2, half], axis=2)
    tifffile.imwrite(path, pixels, photometric="rgb", extrasamples=["assocalpha"])


@pytest.mark.parametrize("array", [np.zeros(7), np.zeros((4, 4, 0)), np.zeros((2, 3, 4, 5))], ids=["1", "none", "4"])
def test_an_array_that_is_no_picture_is_an_image_error(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    with (
        pytest.raises(ImageError, match=r"a\.npy cannot be read \(its shape is \("),
        open_windowed_file(tmp_path / "a.npy"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: Image.fromarray(PICTURES["rgb"]).save(path)),
        ("turned.jpg", turned),
        ("turned.tif", turned),
        ("palette.tif", lambda path: Image.fromarray(PICTURES["rgb"]).quantize(30).save(path)),
        ("lzw.tif", lambda path: Image.fromarray(PICTURES["rgb"]).save(path, compression="tiff_lzw")),
        ("jpeg.tif", lambda path: Image.fromarray(PICTURES["rgb"]).save(path, compression="jpeg")),
        ("white.tif", lambda path: tifffile.imwrite(path, PICTURES["grey"], photometric="miniswhite")),
        ("planes.tif", lambda path: tifffile.imwrite(path, PICTURES["rgb"].transpose(2, 0, 1), photometric="rgb")),
        ("veiled.tif", veiled),
        ("a.npy", lambda path: np.save(path, PICTURES["float"])),
    ],
)
def test_what_has_no_windows_is_read_all_the_same(name, write, tmp_path, monkeypatch):
    monkeypatch.setattr(tiff_module, "has_codec", lambda compression: False)  # as without imagecodecs
    write(tmp_path / name)
    whole = read_image(tmp_path / name)
    with open_windowed_file(tmp_path / name) as picture:
        assert picture.size == whole.shape[:2]
        assert not isinstance(picture, WindowedTiff)
        np.testing.assert_array_equal(read_image(picture.read(10, 50)), whole[10:50])


def test_pages_of_a_tiff_are_found_and_their_thumbnails_left_out(tmp_path):
    path = tmp_path / "stack.tif"
    with tifffile.TiffWriter(path) as tiff:
        for number in range(3):
            tiff.write(PICTURES["grey"][number:], photometric="minisblack")
            tiff.write(PICTURES["grey"][::4, ::4], photometric="minisblack", subfiletype=1)
    pages = tiff_pages(path)
    assert pages == [(0, (301, 333)), (2, (300, 333)), (4, (299, 333))]
    with open_windowed_file(path, 2) as picture:
        np.testing.assert_array_equal(picture.read(0, 300)[:, :, 0], PICTURES["grey"][1:])
    np.testing.assert_array_equal(read_image(path, page=2)[:, :, 0], PICTURES["grey"][1:])


def test_a_mask_within_a_tiff_is_a_page_unless_the_first_one_has_a_place(tmp_path):
    place = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]
    for tags, numbers in (((), [0, 1, 2]), (place, [0, 2])):
        with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
            tiff.write(PICTURES["grey"], photometric="minisblack", extratags=tags)
            tiff.write(PICTURES["grey"] > 99, photometric="mask", subfiletype=4)
            tiff.write(PICTURES["grey"], photometric="minisblack")
        assert [number for number, _ in tiff_pages(tmp_path / "a.tif")] == numbers


def test_a_tiff_that_is_cut_off_is_an_image_error(tmp_path):
    path = tmp_path / "a.tif"
    for layout in ({}, {"compression": "zlib", "tile": (64, 64)}):
        tifffile.imwrite(path, PICTURES["grey"], photometric="minisblack", **layout)
        path.write_bytes(path.read_bytes()[:60_000])
        with pytest.raises(ImageError, match=r"a\.tif cannot be read"), open_windowed_file(path) as picture:
            picture.read(250, 301)


def test_a_picture_that_is_cut_off_is_an_image_error(tmp_path):
    Image.fromarray(PICTURES["rgb"]).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:60_000])
    with (
        pytest.raises(ImageError, match=r"a\.png cannot be read \("),
        open_windowed_file(tmp_path / "a.png") as picture,
    ):
        picture.read(0, 5)


def test_an_array_that_is_a_device_is_an_image_error(tmp_path):
    (tmp_path / "a.npy").symlink_to("/dev/null")
    with (
        pytest.raises(ImageError, match=r"a\.npy cannot be read \(it is not a regular file\)"),
        open_windowed_file(tmp_path / "a.npy"),
    ):
        pass


def test_strips_of_a_picture_are_not_kept_in_memory(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", PICTURES["grey"], photometric="minisblack", compression="zlib")
    with open_windowed_file(tmp_path / "a.tif") as picture:
        page = picture.segments.page
        decode = mock.Mock(side_effect=page.decode)
        monkeypatch.setattr(page, "decode", decode)
        for _ in range(3):
            picture.read(0, 5)
    assert decode.call_count == 3


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("target", [(160, 200), (97, 120), (33, 350), (320, 407)])
@pytest.mark.parametrize("size", [(320, 400), (321, 407)])
def test_training_prediction_and_tiles_read_the_same_of_a_jpeg_file(size, target, orientation, tmp_path):
    exif, path = Image.Exif(), tmp_path / "a.jpg"
    exif[0x0112] = orientation
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(path, exif=exif)
    preprocess = Preprocess(image_size=target)
    whole = ImageInput.read(path, preprocess, 3).whole()
    predictor = Predictor(UNet(UNetConfig(3, 2, base_channels=2, depth=1, preprocess=preprocess)))
    inputs = predictor.inputs(path)
    (network_input,) = inputs.tensors
    np.testing.assert_array_equal(network_input, whole)
    with open_windowed_file(path) as picture:
        assert picture.size == inputs.size == read_image(path).shape[:2]
        less = picture.draft_for(preprocess)
        for start, stop in ((0, target[0]), (5, 6), (target[0] - 9, target[0])):
            np.testing.assert_array_equal(ImageInput(less, preprocess, 3).strip(start, stop), whole[:, start:stop])
        np.testing.assert_array_equal(read_image(picture.read(10, 50)), read_image(path)[10:50])


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("target", [(301, 333), (150, 166), (97, 500), (400, 50)])
def test_a_window_is_resized_as_the_whole_image_is(kind, target, tmp_path):
    path, channels = tmp_path / "a.tif", 3 if kind.startswith("rgb") else 1
    photometric = "rgb" if channels == 3 else "minisblack"
    tifffile.imwrite(path, PICTURES[kind], photometric=photometric, tile=(64, 48), compression="zlib")
    preprocess = Preprocess(image_size=target)
    whole = ImageInput.read(path, preprocess, channels).whole()
    with open_windowed_file(path) as picture:
        for height, width in ((1, 1), (40, 30), target):
            top, left = (target[0] - height) // 2, target[1] - width
            window = ((top, top + height), (left, left + width))
            crop = ImageInput(picture, preprocess, channels).window(window)
            assert crop.dtype == whole.dtype
            expected = whole[:, top : top + height, left : left + width]
            if target in ((301, 333), (height, width)):
                np.testing.assert_array_equal(crop, expected)
            elif crop.dtype == np.uint8:  # the weights' last bit is another, and so a value now and then
                assert np.abs(crop.astype(int) - expected).max() <= 1
                assert (crop != expected).mean() < 0.01
            else:  # float32: measured 1.4e-6 of the range
                np.testing.assert_allclose(crop, expected, rtol=0, atol=5e-6 * PICTURES[kind].max())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_tiles_that_a_picture_leaves_out_are_black(tmp_path):
    path = tmp_path / "a.tif"
    tiles = {"tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate", "SPARSE_OK": "TRUE"}
    with rasterio.open(path, "w", driver="GTiff", count=1, height=90, width=70, dtype="uint8", **tiles) as file:
        file.write(np.full((1, 32, 16), 7, np.uint8), window=Window(16, 32, 16, 32))
    expected = np.zeros((90, 70), np.uint8)
    expected[32:64, 16:32] = 7
    with open_windowed_file(path) as picture:
        assert picture.decodes_windows
        for rows, columns in (((0, 90), (0, 70)), ((20, 70), (10, 66)), ((0, 5), (0, 5))):
            assert np.array_equal(picture.read(*rows, *columns)[:, :, 0], expected[slice(*rows), slice(*columns)])


def test_an_image_of_four_thousand_by_four_thousand_pixels_is_read_in_windows(tmp_path):
    for width, is_large in ((4096, True), (4095, False)):
        path = tmp_path / f"{width}.npy"
        np.lib.format.open_memmap(path, "w+", np.uint8, (4096, width))  # an empty file without blocks
        with open_if_large(str(path)) as picture:
            assert (picture is not None) is is_large


def test_four_million_pixels_are_read_together():
    picture = np.broadcast_to(np.zeros(1, np.uint8), (9000, 1000))
    rows = [(top, len(part)) for top, part in strips(WindowedArray(picture))]
    assert rows == [(0, 4194), (4194, 4194), (8388, 612)]
    wide = np.broadcast_to(np.zeros(1, np.uint8), (2, 2**22 + 1))
    assert [(top, len(part)) for top, part in strips(WindowedArray(wide))] == [(0, 1), (1, 1)]


def test_windows_of_a_picture_are_of_its_page_upright_and_with_the_colors_of_a_gif(tmp_path):
    pages = np.arange(2 * 4 * 6, dtype=np.int32).reshape(2, 4, 6)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    sources = [{"path": str(tmp_path / "a.tif"), "page": 1}, PictureFile(str(tmp_path / "a.tif"), 1)]
    for source in sources:
        with open_windowed(source) as picture:
            assert not picture.decodes_windows
            assert picture.size == (4, 6)
            assert np.array_equal(read_image(picture.read(1, 3, 2))[:, :, 0], pages[1, 1:3, 2:])
            assert np.array_equal(read_mask(picture.read(1, 3, 2), "a"), pages[1, 1:3, 2:])
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a.png", "turned.tif"):
        Image.fromarray(pages[0].astype(np.uint8)).save(tmp_path / name, exif=exif)
    indices = Image.fromarray(np.array([[0, 1, 1], [1, 0, 0]], np.uint8))
    indices.putpalette([9, 9, 9, 200, 140, 80])
    indices.save(tmp_path / "a.gif")
    for name in ("a.png", "turned.tif", "a.gif"):
        whole = read_mask(str(tmp_path / name), name)
        with open_windowed_file(tmp_path / name) as picture:
            assert picture.size == picture.extent == whole.shape[:2]
            assert np.array_equal(read_mask(picture.read(0, 2, 1, 3), name), whole[:2, 1:3])


def test_a_page_in_windows_is_the_one_that_its_source_names(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PAGES, photometric="minisblack")
    for source, page, value in (
        (PictureFile(str(path)), 2, 2),
        (PictureFile(str(path), 0), 2, 0),
        (PictureFile(str(path), 1), 2, 1),
        (path, 2, 2),
    ):
        with open_windowed_file(source, page) as picture:
            assert read_image(picture.read(0, 3)).max() == value


def test_a_page_of_a_tiff_with_a_place_is_the_one_that_is_named(tmp_path):
    place = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for page in PAGES:
            tiff.write(page, photometric="minisblack", extratags=place)
    for page in range(3):
        assert read_image(path, page=page).max() == page
        with open_windowed_file(path, page) as picture:
            assert isinstance(picture, WindowedRaster)
            assert picture.read(0, 3).max() == page
    raster = str(write_raster(tmp_path / "b.tif", PAGES[:1], nodata=0))
    assert isinstance(read_image(raster), np.ma.MaskedArray)
    assert not isinstance(read_image(PictureFile(raster)), np.ma.MaskedArray)


@pytest.mark.parametrize(
    ("tag", "kind", "count", "value"), [(256, 4, 1, 0), (256, 1, 2, 4), (257, 4, 1, 0)], ids=["0", "two", "length 0"]
)
def test_a_tiff_whose_side_is_no_number_above_zero_is_an_image_error(tmp_path, tag, kind, count, value):
    tifffile.imwrite(tmp_path / "a.tif", PAGES[0], photometric="minisblack")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    struct.pack_into("<HHII", content, content.index(struct.pack("<HHI", tag, 4, 1)), tag, kind, count, value)
    (tmp_path / "a.tif").write_bytes(content)
    with (
        pytest.raises(ImageError, match=r"a\.tif cannot be read \(a side of it is"),
        open_windowed_file(tmp_path / "a.tif"),
    ):
        pass


def test_an_array_is_mapped_from_its_file_whatever_the_case_of_the_name(tmp_path):
    np.save(tmp_path / "a.npy", PAGES[2])
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")
    with open_windowed_file(tmp_path / "A.NPY") as picture:
        assert isinstance(picture.array, np.memmap)
        assert picture.size == (3, 4)


def test_windows_of_a_large_image_are_read_of_files_that_have_them(tmp_path, monkeypatch):
    monkeypatch.setattr(windowed, "LARGE_IMAGE_PIXELS", 12)
    np.save(tmp_path / "a.npy", PAGES[0])
    array = str(tmp_path / "a.npy")
    tifffile.imwrite(tmp_path / "a.TIF", PAGES[0], photometric="minisblack")
    picture = str(tmp_path / "a.TIF")
    raster = str(write_raster(tmp_path / "b.tif", PAGES))
    Image.fromarray(PAGES[0]).convert("P").save(tmp_path / "palette.tif")
    (tmp_path / "damaged.tif").write_bytes(b"II*")
    for source, has_windows in (
        (array, True),
        ({"path": array}, True),
        ({"path": array, "bytes": None}, True),
        ({"path": array, "bytes": b"of another image"}, False),
        (picture, True),
        (PictureFile(picture), True),
        (BandSource((raster,), ("2",)), True),
        (str(tmp_path / "palette.tif"), False),
        (str(tmp_path / "damaged.tif"), False),
        (PAGES[0], False),
    ):
        with open_if_large(source) as image:
            assert (image is not None) is has_windows, source


def test_a_window_of_an_array_may_miss_data_where_the_array_does():
    array = np.ma.MaskedArray(np.zeros((4, 5)), np.eye(4, 5) > 0)
    assert WindowedArray(array).may_lack_data
    assert not WindowedArray(array.data).may_lack_data
    assert WindowedArray(array).read(1, 2).mask.tolist() == [[False, True, False, False, False]]
    assert WindowedArray(array.data, (8, 10), (3.5, 4.5)).size == (8, 10)
