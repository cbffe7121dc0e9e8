"""Images and masks that are pages of TIFFs."""

from pathlib import Path

import numpy as np
import pytest
import tifffile

from data_utils.image_io.formats import PageFile
from data_utils.sources.folder import FolderRecords
from data_utils.sources.tiff_stacks import pair_pages
from runtime.errors import DataError


def test_a_page_is_read_by_its_number_in_its_file():
    records = FolderRecords(Path("images"), Path("masks"), [("a.tif", "b.tif")], [[(0, 1), (2, 4)]], [])
    assert [record["image"] for record in records] == [
        PageFile("images/a.tif", 0),
        PageFile("images/a.tif", 2),
    ]
    assert [record["target"] for record in records] == [
        PageFile("masks/b.tif", 1),
        PageFile("masks/b.tif", 4),
    ]


@pytest.fixture
def tiff_folder(tmp_path):
    """A folder of TIFFs of one page, of two and of none, and of a damaged one."""
    for name, count in (("one.tif", 1), ("two.tif", 2)):
        with tifffile.TiffWriter(tmp_path / name) as tiff:
            for _ in range(count):
                tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
    (tmp_path / "none.tif").write_bytes(b"II*\0" + bytes(40))
    (tmp_path / "damaged.tif").write_bytes(b"II*\0")
    return tmp_path


PAIRS = [
    ("a.png", "a.png"),
    ("two.tif", "two.tif"),
    ("one.tif", "a.png"),
    ("a.png", "none.tif"),
    ("damaged.tif", "one.tif"),
]
PAGES = [[(0, 0)], [(0, 0), (1, 1)], [(0, 0)], [(0, 0)], [(0, 0)]]  # of each pair


def test_pages_are_paired_where_both_files_are_tiffs_of_several(tiff_folder):
    assert pair_pages(tiff_folder, tiff_folder, PAIRS) == PAGES


@pytest.mark.parametrize(("image", "mask"), [("two.tif", "a.png"), ("a.png", "two.tif")])
def test_an_image_with_another_number_of_pages_than_its_mask_is_refused(tiff_folder, image, mask):
    with pytest.raises(DataError, match=rf"{image} has \d pages, its mask .*{mask} has \d; both need the same"):
        pair_pages(tiff_folder, tiff_folder, [("two.tif", "two.tif"), (image, mask)])
