"""Pictures within a page: exact or as photographs, and reduced to what room there is.

Module: train_utils/reporting/pages.py.
"""

import numpy as np
import pytest
from support.reports import embedded_picture, noise

from train_utils.reporting.pages import embed, embed_all


def test_small_and_flat_pictures_stay_exact():
    flat = np.zeros((200, 300, 3), np.uint8)
    flat[50:100, 80:200] = (230, 30, 40)
    binary = np.random.default_rng(0).choice(np.uint8([0, 255]), (300, 400, 1)).repeat(3, axis=2)
    for picture in (noise(20, 30), flat, binary):
        np.testing.assert_array_equal(np.asarray(embedded_picture(embed(picture))), picture)


def test_a_photograph_is_a_jpeg_in_which_a_thin_red_line_keeps_its_color():
    photo = np.repeat(np.random.default_rng(0).integers(90, 160, (200, 300, 1), dtype=np.uint8), 3, axis=2)
    photo[100] = (230, 30, 40)
    source = embed(photo)
    assert source.startswith("data:image/jpeg;")
    red, green, _ = np.asarray(embedded_picture(source).convert("RGB"))[100].mean(axis=0)
    assert red - green > 150


def test_pictures_share_what_room_there_is():
    sources = embed_all([noise(400, 400)] * 3, 10**5)
    assert 4 * 10**4 < sum(map(len, sources)) <= 10**5
    assert {embedded_picture(source).width for source in sources} == {132}


@pytest.mark.parametrize(("less", "width"), [(0, 30), (1, 22)])
def test_a_picture_is_reduced_where_one_byte_of_room_is_lacking(less, width):
    room = len(embed(noise(20, 30))) - less
    (source,) = embed_all([noise(20, 30)], room, 30)
    assert embedded_picture(source).width == width


def test_pictures_are_reduced_to_the_side_that_a_page_can_show_and_never_enlarged():
    sizes = [embedded_picture(source).size for source in embed_all([noise(500, 1000), noise(8, 8)], 10**6)]
    assert sizes == [(420, 210), (8, 8)]
