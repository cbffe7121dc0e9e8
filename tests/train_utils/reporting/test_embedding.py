"""Pictures within a page: exact or as photographs, and reduced to what room there is.

Module: train_utils/reporting/embedding.py.
"""

import numpy as np
import pytest
from support.reports import embedded_picture, noise

from train_utils.reporting.embedding import embed_all, embed_png


def test_a_small_picture_is_embedded_as_it_is():
    small = noise(20, 30)
    (picture,) = embed_all([small], 10**6)
    np.testing.assert_array_equal(np.asarray(embedded_picture(picture.source)), small)
    assert picture.width == 30
    assert picture.height == 20


def test_a_photograph_is_a_jpeg_close_to_the_original():
    across, down = np.meshgrid(np.linspace(0, 6, 300), np.linspace(0, 4, 200))
    photo = np.stack([127 + 90 * np.sin(across + shift) * np.cos(down) for shift in (0, 1, 2)], axis=2)
    photo = (photo + np.random.default_rng(0).normal(0, 3, photo.shape)).clip(0, 255).astype(np.uint8)
    (picture,) = embed_all([photo], 10**6)
    assert picture.source.startswith("data:image/jpeg;")
    difference = np.abs(np.asarray(embedded_picture(picture.source)).astype(int) - photo)
    assert difference.mean() < 3  # the noise alone is 2.4, as measured


def test_a_flat_picture_stays_exact_beside_a_photograph():
    flat = np.zeros((200, 300, 3), np.uint8)
    flat[50:100, 80:200] = (230, 30, 40)
    photo, picture = embed_all([noise(200, 300), flat], 10**6)
    assert photo.source.startswith("data:image/jpeg;")
    assert picture.source.startswith("data:image/png;")
    np.testing.assert_array_equal(np.asarray(embedded_picture(picture.source)), flat)


def test_a_thin_red_line_keeps_its_color_in_a_photograph():
    photo = np.repeat(np.random.default_rng(0).integers(90, 160, (200, 300, 1), dtype=np.uint8), 3, axis=2)
    photo[100] = (230, 30, 40)
    (picture,) = embed_all([photo], 10**6)
    assert picture.source.startswith("data:image/jpeg;")
    red, green, _ = np.asarray(embedded_picture(picture.source).convert("RGB"))[100].mean(axis=0)
    assert red - green > 150


@pytest.mark.parametrize(("room", "least", "width"), [(10**5, 4 * 10**4, 132)], ids=["narrow"])
def test_pictures_share_what_room_there_is(room, least, width):
    pictures = embed_all([noise(400, 400)] * 3, room)
    size = sum(len(picture.source) for picture in pictures)
    assert least < size <= room
    assert pictures[0].width == width


@pytest.mark.parametrize(("less", "width"), [(0, 30), (1, 22)])
def test_a_picture_is_reduced_where_one_byte_of_room_is_lacking(less, width):
    (whole,) = embed_all([noise(20, 30)], 10**6)
    (picture,) = embed_all([noise(20, 30)], len(whole.source) - less, 30)
    assert picture.width == width


def test_pictures_are_reduced_to_the_side_that_a_page_can_show_and_never_enlarged():
    large, small = embed_all([np.zeros((1000, 2000, 3), np.uint8), noise(8, 8)], 10**6)
    assert (large.width, large.height) == (420, 210)
    assert (small.width, small.height) == (8, 8)
    alone = embed_png(noise(900, 600))
    assert (alone.width, alone.height) == (600, 900)


def test_a_picture_that_is_smaller_as_png_stays_exact_however_large_it_is():
    mask = np.random.default_rng(0).choice(np.uint8([0, 255]), (300, 400, 1)).repeat(3, axis=2)
    (picture,) = embed_all([mask], 10**6)
    assert len(picture.source) > 20_000
    assert picture.source.startswith("data:image/png;")
    np.testing.assert_array_equal(np.asarray(embedded_picture(picture.source)), mask)
