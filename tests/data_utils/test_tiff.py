"""Pages of TIFFs, and which of them are read in windows.

Modules: data_utils/sources/tiff_stacks.py.
"""

import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
from rasters import write_raster

from data_utils.image_io import tiff as tiff_module
from data_utils.image_io.tiff import has_codec, has_windows, is_tiff, page_numbers, tiff_pages
from data_utils.image_io.windowed import WindowedTiff
from data_utils.sources.folder import FolderRecords
from data_utils.sources.tiff_stacks import pair_pages
from runtime.errors import DataError, ImageError


def test_the_first_page_of_a_tiff_counts_whatever_it_says_of_itself(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for kind in (1, 1, 0):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack", subfiletype=kind)
    assert page_numbers(tmp_path / "a.tif") == [0, 2]


def test_a_page_is_read_by_its_number_in_its_file_and_named_by_its_place_among_those_that_count():
    records = FolderRecords(Path("images"), Path("masks"), [("a.tif", "b.tif")], [[(0, 1), (2, 4)]], [])
    assert [*records] == [
        {
            "image": {"path": "images/a.tif", "page": image_page},
            "target": {"path": "masks/b.tif", "page": mask_page},
            "name": name,
        }
        for image_page, mask_page, name in ((0, 1, "a_0001.tif"), (2, 4, "a_0002.tif"))
    ]


def test_a_file_whose_only_page_that_counts_is_a_later_one_has_its_own_name():
    records = FolderRecords(Path("images"), Path("masks"), [("a.tif", "b.tif")], [[(1, 0)]], [])
    assert [*records] == [{"image": "images/a.tif", "target": "masks/b.tif", "name": "a.tif"}]


def test_pages_are_paired_where_a_file_is_a_tiff_and_counted_once(tmp_path, monkeypatch):
    for name, count in (("one.tif", 1), ("two.tif", 2)):
        with tifffile.TiffWriter(tmp_path / name) as tiff:
            for _ in range(count):
                tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
    (tmp_path / "none.tif").write_bytes(b"II*\0" + bytes(40))
    (tmp_path / "damaged.tif").write_bytes(b"II*\0")
    names = [("a.png", "a.png"), ("two.tif", "two.tif"), ("one.tif", "a.png"), ("a.png", "none.tif")]
    names.append(("damaged.tif", "one.tif"))
    pages = [[(0, 0)], [(0, 0), (1, 1)], [(0, 0)], [(0, 0)], [(0, 0)]]
    assert pair_pages(tmp_path, tmp_path, names) == pages
    for image, mask in (("two.tif", "a.png"), ("a.png", "two.tif")):
        with pytest.raises(DataError, match=rf"{image} has \d pages, its mask .*{mask} has \d; both need the same"):
            pair_pages(tmp_path, tmp_path, [names[1], (image, mask)])
    monkeypatch.delattr("data_utils.sources.tiff_stacks.page_numbers")
    assert pair_pages(tmp_path, tmp_path, names) == pages


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("layout", [{}, {"compression": "zlib"}, {"tile": (16, 32)}], ids=["stored", "strips", "tiles"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_windows_of_a_tiff_are_those_of_the_whole_page(tmp_path, byteorder, dtype, layout, channels):
    shape = (45, 70) if channels == 1 else (45, 70, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    if dtype != "uint8":
        pixels *= 200
    photometric = "minisblack" if channels == 1 else "rgb"
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, byteorder=byteorder, rowsperstrip=7, **layout)
    whole = pixels.reshape(45, 70, channels)[:, :, :3]
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        page = tiff.pages[0].aspage()
        assert has_windows(page) is (dtype == "uint8" or channels == 1)
        if not has_windows(page):
            return
        for rows in ((0, 45), (0, 1), (6, 8), (13, 33), (44, 45)):
            for columns in ((0, 70), (0, 1), (31, 33), (32, 64), (69, 70)):
                window = WindowedTiff(tmp_path / "a.tif", page).read(*rows, *columns)
                assert window.dtype == dtype
                assert (window == whole[slice(*rows), slice(*columns)]).all()
    if "tile" not in layout and "compression" not in layout:
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


def test_the_size_of_a_page_is_that_of_the_picture_as_it_is_seen(tmp_path):
    for orientation, size in ((1, (4, 6)), (3, (4, 6)), (5, (6, 4)), (6, (6, 4)), (8, (6, 4))):
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


def test_a_tiff_has_its_ending_in_any_case_and_what_is_none_is_named(tmp_path):
    assert is_tiff("a/B.TIF")
    assert is_tiff(Path("a.tiff"))
    assert not is_tiff("a.tif.png")
    (tmp_path / "a.tif").write_bytes(b"II*\0\0\0\0\0")
    assert page_numbers(tmp_path / "a.tif") == []
    (tmp_path / "device.tif").symlink_to("/dev/null")
    with pytest.raises(ImageError, match=r"device\.tif cannot be read \(it is not a regular file\)"):
        page_numbers(tmp_path / "device.tif")
    (tmp_path / "a.tif").write_bytes(b"no tiff")
    with pytest.raises(ImageError, match=r"a\.tif cannot be read \(not a TIFF file"):
        page_numbers(tmp_path / "a.tif")
