"""Which mask belongs to which image, and pages of TIFFs as pairs of their own.

Modules: data_utils/sources/pairs.py, data_utils/sources/pictures.py.
"""

import numpy as np
import pytest
import tifffile

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.sources.pictures import open_pictures


def write_pages(folder, name: str, count: int) -> None:
    folder.mkdir(exist_ok=True)
    with tifffile.TiffWriter(folder / name) as tiff:
        for _ in range(count):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")


@pytest.mark.parametrize("metadata", ["imagej", "ome"])
@pytest.mark.parametrize(("axes", "pages"), [("CYX", [(0, 1)]), ("ZCYX", [(0, 1), (2, 3), (4, 5)])])
def test_pages_are_channels_where_the_axes_say_so_and_the_mask_has_fewer(metadata, axes, pages, tmp_path):
    pixels = np.arange(6 * 64, dtype=np.uint16).reshape(3, 2, 8, 8)[: len(pages)].squeeze()
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    tifffile.imwrite(tmp_path / "images" / "a.tif", pixels, metadata={"axes": axes}, **{metadata: True})
    write_pages(tmp_path / "masks", "a.tif", len(pages))
    records = open_pictures(tmp_path / "images", tmp_path / "masks", DataConfig())
    images = [record["image"] for record in records]
    assert [(image.page, *image.more_channels) for image in images] == pages
    assert [record["name"] for record in records] == (
        ["a_0001.tif", "a_0002.tif", "a_0003.tif"] if pages[1:] else ["a.tif"]
    )
    for image, expected in zip(images, pixels.reshape(-1, 2, 8, 8), strict=True):
        assert np.array_equal(read_image(image), expected.transpose(1, 2, 0))
