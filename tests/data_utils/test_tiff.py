"""Pages of TIFFs, and which of them are read in windows."""

import numpy as np
import pytest
import tifffile

from data_utils.image_io import tiff as tiff_module
from data_utils.image_io.tiff import has_windows, page_numbers, read_window
from runtime.errors import ImageError


def test_the_first_page_of_a_tiff_counts_whatever_it_says_of_itself(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for kind in (1, 1, 0):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack", subfiletype=kind)
    assert page_numbers(tmp_path / "a.tif") == [0, 2]


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
                window = read_window(tmp_path / "a.tif", page, rows, columns)
                assert window.dtype == dtype and (window == whole[slice(*rows), slice(*columns)]).all()
    if "tile" not in layout and "compression" not in layout:
        (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-1])
        with pytest.raises(ImageError, match="the file ends before its image does"):
            read_window(tmp_path / "a.tif", page, (44, 45), (0, 1))


@pytest.mark.parametrize(("limit", "is_read"), [(45 * 70, True), (45 * 70 - 1, False)])
def test_a_compressed_strip_is_read_in_windows_up_to_a_limit(tmp_path, monkeypatch, limit, is_read):
    pixels = np.zeros((45, 70), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", compression="zlib", rowsperstrip=45)
    monkeypatch.setattr(tiff_module, "SEGMENT_BYTES", limit)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert has_windows(tiff.pages[0].aspage()) is is_read
