"""Files that are written row by row or page by page."""

import io

import numpy as np
import pytest
import tifffile
from PIL import Image

from tasks.writers import write_pages, write_png


@pytest.mark.parametrize(("shape", "dtype"), [((4, 3), np.uint8), ((4, 5), np.uint16), ((4, 5, 3), np.uint8)])
def test_a_picture_is_written_some_rows_at_a_time(shape, dtype):
    pixels = (np.arange(np.prod(shape)) * 37 + 250).reshape(shape).astype(dtype)
    file = io.BytesIO()
    write_png(file, shape[:2], (pixels[:1], pixels[1:]), 6)
    assert np.asarray(Image.open(file)).tolist() == pixels.tolist()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_pages_stay_pages_however_many_there_are(count):
    pages = [np.full((4, 5), value, np.uint8) for value in range(count)]
    file = io.BytesIO()
    write_pages(file, pages)
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        assert [page.asarray().tolist() for page in tiff.pages] == [page.tolist() for page in pages]
        assert {page.aspage().compression.name for page in tiff.pages} == {"ADOBE_DEFLATE"}
