"""Pages of TIFFs, and which of them are read in windows."""

import itertools
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tifffile
from support.rasters import write_raster

from data_utils.image_io import tiff as tiff_module
from data_utils.image_io.formats import PageFile, PictureFile, VolumeFile
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.tiff import has_codec, has_windows, is_tiff, page_numbers, tiff_pages
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.image_io.windowed import WindowedTiff, open_windowed_file
from runtime.errors import ImageError

PLACE = [(33550, "d", 3, (1.0, 1.0, 0.0), False), (33922, "d", 6, (0.0, 0, 0, 5, 5, 0), False)]  # tags of a GeoTIFF


def test_the_first_page_of_a_tiff_counts_whatever_it_says_of_itself(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for kind in (1, 1, 0):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack", subfiletype=kind)
    assert page_numbers(tmp_path / "a.tif") == [0, 2]


def test_thumbnails_in_a_tiff_are_no_pages(tmp_path):
    grey = np.random.default_rng(2).integers(0, 256, (30, 33), dtype=np.uint8)
    path = tmp_path / "stack.tif"
    with tifffile.TiffWriter(path) as tiff:
        for number in range(3):
            tiff.write(grey[number:], photometric="minisblack")
            tiff.write(grey[::4, ::4], photometric="minisblack", subfiletype=1)
    assert tiff_pages(path) == [(0, (30, 33)), (2, (29, 33)), (4, (28, 33))]
    with open_windowed_file(path, 2) as picture:
        np.testing.assert_array_equal(picture.read(0, 29)[:, :, 0], grey[1:])
    np.testing.assert_array_equal(read_image(path, page=2)[:, :, 0], grey[1:])


@pytest.mark.parametrize(("tags", "numbers"), [((), [0, 1, 2]), (PLACE, [0, 2])], ids=["no place", "place"])
def test_a_mask_within_a_tiff_is_a_page_unless_the_first_one_has_a_place(tmp_path, tags, numbers):
    grey = np.random.default_rng(2).integers(0, 256, (30, 33), dtype=np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(grey, photometric="minisblack", extratags=tags)
        tiff.write(grey > 99, photometric="mask", subfiletype=4)
        tiff.write(grey, photometric="minisblack")
    assert [number for number, _ in tiff_pages(tmp_path / "a.tif")] == numbers


@pytest.mark.parametrize(
    ("tag", "kind", "count", "value"), [(256, 4, 1, 0), (256, 1, 2, 4), (257, 4, 1, 0)], ids=["0", "two", "length 0"]
)
def test_a_tiff_whose_side_is_no_number_above_zero_is_an_image_error(tmp_path, tag, kind, count, value):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 4), np.uint8), photometric="minisblack")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    struct.pack_into("<HHII", content, content.index(struct.pack("<HHI", tag, 4, 1)), tag, kind, count, value)
    (tmp_path / "a.tif").write_bytes(content)
    with (
        pytest.raises(ImageError, match=r"a\.tif cannot be read \(a side of it is"),
        open_windowed_file(tmp_path / "a.tif"),
    ):
        pass


TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PLANES = [(1, "contig"), *itertools.product((2, 3, 4, 6), ("contig", "separate"))]
STORAGE = [(None, {}), ("zlib", {"rowsperstrip": 5}), ("lzw", {"tile": (16, 16)}), ("packbits", {}), ("zstd", {})]


def write_pages(path: Path, pages: np.ndarray, planes: str, **options) -> None:
    """A TIFF of pages (N, H, W, C)."""
    samples = pages.shape[-1]
    layout = {"photometric": "rgb" if samples in (3, 4) else "minisblack", "metadata": None}
    if samples > 1:
        layout["planarconfig"] = planes
    with tifffile.TiffWriter(path, byteorder=options.pop("byteorder")) as tiff:
        for page in pages:
            pixels = np.moveaxis(page, 2, 0) if planes == "separate" else page
            tiff.write(pixels if samples > 1 else page[:, :, 0], **layout, **options)


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("dtype", TYPES)
def test_every_reader_gives_the_numbers_that_are_stored(tmp_path, dtype, byteorder):
    path = tmp_path / "a.tif"
    for (samples, planes), (compression, layout) in itertools.product(PLANES, STORAGE):
        pages = np.random.default_rng(0).integers(0, 120, (2, 20, 30, samples)).astype(dtype)
        write_pages(path, pages, planes, byteorder=byteorder, compression=compression, **layout)
        colors = pages[..., :3] if samples == 4 else pages  # without alpha
        for source in (path, path.read_bytes(), PictureFile(str(path))):
            assert np.array_equal(read_image(source, page=1), colors[1])
        with open_windowed_file(path, 1) as image:
            assert np.array_equal(read_image(image.read(3, 17, 2, 29)), colors[1, 3:17, 2:29])
        stack = VolumeFile((str(path),))
        assert np.array_equal(read_volume(stack, "a")[0], colors)
        if samples == 1:
            assert np.array_equal(read_mask(PageFile(path, 1), "a"), pages[1, :, :, 0])
            assert np.array_equal(read_label_volume(stack, "a")[0], pages[..., 0])


@pytest.mark.parametrize(
    "options",
    [
        {"imagej": True, "truncate": True},
        {"imagej": True, "truncate": True, "byteorder": ">"},
        {"photometric": "minisblack", "truncate": True},
        {"photometric": "minisblack", "volumetric": True},
    ],
    ids=["ImageJ", "ImageJ, big-endian", "tifffile", "ImageDepth"],
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_stack_has_all_its_slices_though_it_has_one_directory(tmp_path, dtype, options):
    slices = np.random.default_rng(0).integers(0, 200, (5, 20, 30)).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", slices, **options)
    assert tiff_pages(tmp_path / "a.tif") == [(number, (20, 30)) for number in range(5)]
    stack = VolumeFile((str(tmp_path / "a.tif"),))
    assert np.array_equal(read_volume(stack, "a")[0][..., 0], slices)
    assert np.array_equal(read_label_volume(stack, "a")[0], slices)
    with open_windowed_file(tmp_path / "a.tif", 3) as image:
        assert np.array_equal(read_image(image.read(2, 9))[:, :, 0], slices[3, 2:9])


def test_a_stack_of_one_directory_that_is_cut_off_is_one_line(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((5, 20, 30), np.uint8), imagej=True, truncate=True)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        start = tiff.pages[0].dataoffsets[0]
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[: start + 3 * 600])
    with pytest.raises(ImageError, match=r"a\.tif cannot be read \(it ends after 3 of the 5 slices that it claims\)"):
        page_numbers(tmp_path / "a.tif")


SIDES = (45, 70)
ROWS = ((0, 45), (0, 1), (6, 8), (13, 33), (44, 45))
COLUMNS = ((0, 70), (0, 1), (31, 33), (32, 64), (69, 70))
FACTORS = {"uint8": 1, "uint16": 200, "float32": 200}  # make use of the range of the type
PHOTOMETRIC = {1: "minisblack", 3: "rgb", 4: "rgb"}
WITH_WINDOWS = [("uint8", 1), ("uint8", 3), ("uint8", 4), ("uint16", 1), ("float32", 1)]
WITHOUT_WINDOWS = [("uint16", 3), ("uint16", 4), ("float32", 3), ("float32", 4)]
LAYOUTS = pytest.mark.parametrize(
    "layout", [{}, {"compression": "zlib"}, {"tile": (16, 32)}], ids=["stored", "strips", "tiles"]
)
BYTE_ORDERS = pytest.mark.parametrize("byteorder", ["<", ">"])


def write_page(path: Path, dtype: str, channels: int, **options) -> np.ndarray:
    """A TIFF of one page; returns the pixels (H, W, C) without their opacity."""
    pixels = np.random.default_rng(0).integers(0, 256, (*SIDES, channels)).astype(dtype) * np.array(
        FACTORS[dtype], dtype
    )
    tifffile.imwrite(path, pixels.squeeze(), photometric=PHOTOMETRIC[channels], rowsperstrip=7, **options)
    return pixels[:, :, :3]


@BYTE_ORDERS
@LAYOUTS
@pytest.mark.parametrize(("dtype", "channels"), WITH_WINDOWS)
def test_windows_of_a_tiff_are_those_of_the_whole_page(tmp_path, byteorder, dtype, layout, channels):
    whole = write_page(tmp_path / "a.tif", dtype, channels, byteorder=byteorder, **layout)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        page = tiff.pages[0].aspage()
        assert has_windows(page)
        for rows, columns in itertools.product(ROWS, COLUMNS):
            window = WindowedTiff(tmp_path / "a.tif", page).read(*rows, *columns)
            assert window.dtype == dtype
            assert (window == whole[slice(*rows), slice(*columns)]).all()


@BYTE_ORDERS
@LAYOUTS
@pytest.mark.parametrize(("dtype", "channels"), WITHOUT_WINDOWS)
def test_colors_of_more_than_8_bits_are_not_read_in_windows(tmp_path, byteorder, dtype, layout, channels):
    write_page(tmp_path / "a.tif", dtype, channels, byteorder=byteorder, **layout)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert not has_windows(tiff.pages[0].aspage())


@BYTE_ORDERS
@pytest.mark.parametrize(("dtype", "channels"), WITH_WINDOWS)
def test_windows_of_a_stored_page_that_is_cut_off_are_an_image_error(tmp_path, byteorder, dtype, channels):
    write_page(tmp_path / "a.tif", dtype, channels, byteorder=byteorder)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        page = tiff.pages[0].aspage()
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-1])
    with pytest.raises(ImageError, match="the file ends before its image does"):
        WindowedTiff(tmp_path / "a.tif", page).read(44, 45, 0, 1)


@pytest.mark.parametrize(
    ("dtype", "limit", "is_read"),
    [
        ("uint8", 45 * 70, True),
        ("uint8", 45 * 70 - 1, False),
        ("uint16", 45 * 70 * 2, True),
        ("uint16", 45 * 70 * 2 - 1, False),
    ],
)
def test_a_compressed_strip_is_read_in_windows_up_to_a_limit_of_bytes(tmp_path, monkeypatch, dtype, limit, is_read):
    pixels = np.zeros((45, 70), dtype)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", compression="zlib", rowsperstrip=45)
    monkeypatch.setattr(tiff_module, "SEGMENT_BYTES", limit)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_windows(tiff.pages[0].aspage()) is is_read


def test_a_strip_that_is_not_compressed_is_read_in_windows_however_large(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((45, 70), np.uint8), photometric="minisblack", rowsperstrip=45)
    monkeypatch.setattr(tiff_module, "SEGMENT_BYTES", 10)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_windows(tiff.pages[0].aspage())


@pytest.mark.parametrize(("orientation", "size"), [(1, (4, 6)), (3, (4, 6)), (5, (6, 4)), (6, (6, 4)), (8, (6, 4))])
def test_the_size_of_a_page_is_that_of_the_picture_as_it_is_seen(tmp_path, orientation, size):
    tags = [(274, "H", 1, orientation, False)]
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 6), np.uint8), photometric="minisblack", extratags=tags)
    assert tiff_pages(tmp_path / "a.tif") == [(0, size)]


@pytest.mark.parametrize(
    ("shape", "options", "is_read"),
    [
        ((4, 16, 4), {"photometric": "rgb", "extrasamples": ["unassalpha"]}, True),
        ((4, 16, 4), {"photometric": "rgb", "extrasamples": ["assocalpha"]}, False),  # colors are divided by it
        ((3, 4, 16), {"photometric": "rgb", "planarconfig": "separate"}, False),
        ((4, 16), {"photometric": "minisblack", "extratags": [(274, "H", 1, 6, False)]}, False),
        ((4, 16), {"photometric": "minisblack", "extratags": [(274, "H", 1, 3, False)]}, False),
        ((4, 16), {"photometric": "miniswhite"}, False),
        ((16, 16, 16), {"photometric": "minisblack", "volumetric": True, "tile": (16, 16, 16)}, False),
    ],
    ids=["alpha", "alpha within colors", "planes", "turned", "upside down", "negative", "deep"],
)
def test_a_page_whose_pixels_must_be_changed_is_not_read_in_windows(tmp_path, shape, options, is_read):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, np.uint8), **options)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_windows(tiff.pages[0].aspage()) is is_read


@pytest.mark.parametrize("bits", [None, 12])
def test_pixels_that_fill_no_bytes_are_not_read_in_windows(tmp_path, bits):
    path = write_raster(tmp_path / "a.tif", np.ones((1, 8, 16), np.uint16), nbits=bits or 16)
    with tifffile.TiffFile(path) as tiff:
        assert has_windows(tiff.pages[0].aspage()) is (bits is None)


@pytest.mark.parametrize("error", [ValueError, ImportError])
def test_a_page_that_tifffile_cannot_decode_is_not_read_in_windows(tmp_path, monkeypatch, error):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 16), np.uint8), photometric="minisblack", compression="zlib")
    monkeypatch.setattr(tifffile.TiffPage, "decode", mock.Mock(side_effect=error))
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert not has_windows(tiff.pages[0].aspage())


def test_a_page_of_an_unknown_compression_is_not_read_in_windows(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 16), np.uint8), photometric="minisblack", compression="zlib")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    struct.pack_into("<H", content, content.index(struct.pack("<HHI", 259, 3, 1)) + 8, 65000)
    (tmp_path / "a.tif").write_bytes(content)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert not has_windows(tiff.pages[0].aspage())


@pytest.mark.parametrize(("error", "is_there"), [(ImportError, False), (KeyError, False), (ValueError, True)])
def test_a_codec_is_there_where_it_only_refuses_to_decode_nothing(error, is_there, monkeypatch):
    def decompress(content: bytes) -> bytes:
        raise error("no data")

    unknown_compression = 64_000
    monkeypatch.setattr("data_utils.image_io.tiff.tifffile.TIFF.DECOMPRESSORS", {unknown_compression: decompress})
    has_codec.cache_clear()
    assert has_codec(unknown_compression) == is_there
    has_codec.cache_clear()


@pytest.mark.parametrize(("path", "is_one"), [("a/B.TIF", True), (Path("a.tiff"), True), ("a.tif.png", False)])
def test_a_tiff_is_known_by_its_ending_in_any_case(path, is_one):
    assert is_tiff(path) is is_one


def test_a_tiff_may_hold_no_page(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"II*\0\0\0\0\0")
    assert page_numbers(tmp_path / "a.tif") == []


def test_pages_of_a_device_are_an_image_error(tmp_path):
    (tmp_path / "device.tif").symlink_to("/dev/null")
    with pytest.raises(ImageError, match=r"device\.tif cannot be read \(it is not a regular file\)"):
        page_numbers(tmp_path / "device.tif")


def test_pages_of_a_file_that_is_no_tiff_are_an_image_error(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"no tiff")
    with pytest.raises(ImageError, match=r"a\.tif cannot be read \(not a TIFF file"):
        page_numbers(tmp_path / "a.tif")
