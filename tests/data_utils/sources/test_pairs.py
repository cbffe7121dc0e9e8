"""Which mask belongs to which image, and pages of TIFFs as pairs of their own.

Modules: data_utils/sources/pairs.py, data_utils/sources/pictures.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile

from data_utils.config import DataConfig
from data_utils.image_io.reader import read_image
from data_utils.sources.pairs import Cases, pair
from data_utils.sources.pictures import open_pictures
from data_utils.sources.records import Metadata
from runtime.errors import DataError


def test_names_are_paired_in_the_order_of_images_and_others_are_named():
    images = {"b": "b.png", "a": ("a_0.png", "a_1.png"), "c": "c.png"}
    cases = Cases(images, {"c": "c.tif", "b": "b.tif", "d": "d.tif"}, ["e.tif: lost"])
    records = pair((Path("images"), Path("masks")), cases, Metadata(), allow_unpaired=True)
    assert [record["name"] for record in records] == ["b.png", "c.png"]
    assert records.metadata.unpaired == ("a_0.png: image without mask", "d.tif: mask without image", "e.tif: lost")


def test_names_that_differ_in_case_alone_are_named():
    cases = Cases({"Cell1": "Cell1.png", "b": "b.png"}, {"cell1": "cell1.png", "b": "b.png"})
    with pytest.raises(DataError, match=r"Cell1 and cell1 differ in upper and lower case"):
        pair((Path("images"), Path("masks")), cases, Metadata(), allow_unpaired=False)


def test_names_of_which_none_agree_are_shown_of_both_kinds():
    cases = Cases({"a.ome": "a.ome.tif", "b": "b.png"}, {"c": "c.png", "a": "a.png", "b": "b.png"})
    with pytest.raises(DataError, match=r"image without mask is called a\.ome, the first mask without image a$"):
        pair((Path("images"), Path("masks")), cases, Metadata(), allow_unpaired=False)


def test_names_that_differ_in_their_folders_alone_are_named():
    cases = Cases({"a": "a.png"}, {"cell/a": "cell/a.png", "core/a": "core/a.png"})
    with pytest.raises(DataError, match=r"image a and mask core/a lie in different folders: .* --task overlapping"):
        pair((Path("images"), Path("masks")), cases, Metadata(), allow_unpaired=False)


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
