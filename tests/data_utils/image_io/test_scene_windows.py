"""Windows of scenes: each reads its own part of an image or a mask.

Module: data_utils/image_io/reader.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from data_utils.image_io.formats import Box, SceneWindow
from data_utils.image_io.reader import read_mask
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from runtime.errors import DataError

BANDS = np.arange(2 * 12 * 16, dtype=np.uint16).reshape(2, 12, 16)


BOX = Box(2, 9, 3, 15)


@pytest.fixture
def mask_window(tmp_path):
    """A window of the mask of that image."""
    Image.fromarray(BANDS[0].astype(np.uint8)).save(tmp_path / "m.png")
    return SceneWindow(str(tmp_path / "m.png"), "a", (12, 16), BOX)


def test_a_window_of_a_mask_is_its_own_part(mask_window):
    assert np.array_equal(read_mask(mask_window, "a"), BANDS[0, 2:9, 3:15])


def test_a_window_of_a_rendered_mask_is_its_own_part(tmp_path):
    ids = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)
    Image.fromarray(ids).save(tmp_path / "1.png")
    window = SceneWindow(EvaluatedIds(str(tmp_path / "1.png")), "a", (12, 16), Box(0, 2, 7, 13))
    assert read_mask(window, "a").tolist() == [[7, 8, 255, 255, 11, 12], [23, 24, 25, 26, 27, 28]]


@pytest.mark.parametrize("size", [(12, 18), (14, 16), (12, 14), (10, 16)])
def test_a_window_of_a_mask_of_another_size_is_refused(mask_window, size):
    line = f"a: image is {size[0]} x {size[1]}, its mask 12 x 16; --val-blocks needs masks with a place, or of one size"
    with pytest.raises(DataError) as error:
        read_mask(replace(mask_window, size=size), "a")
    assert str(error.value) == line
