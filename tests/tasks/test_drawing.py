"""Masks as colors, outlines and legends, and points, of images and of volumes."""

import numpy as np
import pytest

from tasks.drawing import (
    GREY,
    MIN_COLOR_DISTANCE,
    RED,
    contours,
    mark_errors,
    orthogonal_slices,
    outline_classes,
    outlined_overlay,
    overlay,
    palette,
    render_points,
    spread_voxels,
    to_rgb,
    value_limits,
)


def test_palette_colors_are_distinct():
    colors = palette(256)
    assert colors.shape == (256, 3)
    assert colors.dtype == np.uint8
    distinct = {tuple(color) for color in colors.tolist()}
    assert len(distinct) == 256
    assert tuple(GREY) not in distinct


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 2), (4, 6, 3), (4, 6, 4), (4, 6, 7), (1, 1)])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16, np.int32, np.float32, np.float64])
def test_to_rgb_takes_any_picture(shape, dtype):
    image = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    picture = to_rgb(image)
    assert picture.shape == (*shape[:2], 3)
    assert picture.dtype == np.uint8


def test_to_rgb_shows_the_rest_of_a_picture_with_outliers():
    image = np.linspace(0, 1, 400).reshape(20, 20)
    image[0, :3] = (np.nan, np.inf, 1e30)
    picture = to_rgb(image)
    assert picture[0, :3, 0].tolist() == [0, 255, 255]
    assert picture[1:].std() > 50


@pytest.mark.parametrize("value", [3.5, np.nan])
def test_to_rgb_shows_a_constant_picture_black(value):
    with np.errstate(all="raise"):  # nor is it a warning
        assert not to_rgb(np.full((2, 2), value)).any()


def test_overlay_tints_all_but_the_background():
    image, mask = np.full((1, 3, 3), 100, np.uint8), np.array([[0, 1, 255]])
    colors = np.array([[0, 0, 0], [201, 0, 50]], np.uint8)
    assert overlay(image, mask, colors).tolist() == [[[100, 100, 100], [151, 50, 75], [114, 114, 114]]]
    assert (image == 100).all()


@pytest.mark.parametrize(
    "under",
    [(60, 120, 225), (250, 250, 245), (10, 10, 10), (130, 130, 130)],
    ids=["blue sky", "snow", "night", "road"],
)
def test_an_outline_differs_from_the_tint_and_from_what_is_under_it(under):
    colors = np.array([[0, 0, 0], [60, 120, 220], [250, 250, 250]], np.uint8)
    mask = np.zeros((12, 20), int)
    mask[2:10, 2:9] = 1
    mask[2:10, 9:18] = 2
    image = np.full((12, 20, 3), under, np.uint8)
    picture = outlined_overlay(image, mask, colors).astype(int)
    edges = contours(mask)
    assert np.array_equal(picture[~edges], overlay(image, mask, colors)[~edges])
    assert (np.abs(picture[edges] - image[edges]).sum(axis=1) >= MIN_COLOR_DISTANCE - 20).all()


def test_an_outline_lies_within_its_class_and_never_on_the_background():
    mask = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 2], [0, 1, 1, 1, 2], [0, 0, 0, 0, 2]])
    expected = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    assert contours(mask).astype(int).tolist() == expected.tolist()
    assert contours(np.ones((3, 3), int)).sum() == 0  # a picture's border is no outline
    assert contours(np.pad(np.ones((5, 5), int), 3), thickness=2).sum() == 24


IS_MISSING = np.array([[False, False, True]])
GREY_WITH_A_GAP = np.ma.masked_array(np.array([[1.0, 3.0, 99.0]]), IS_MISSING)
COLOR_WITH_A_GAP = np.ma.masked_array(np.full((1, 3, 3), 9, np.uint8), np.repeat(IS_MISSING[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    ("pixels", "greens"), [(GREY_WITH_A_GAP, [0, 255, 0]), (COLOR_WITH_A_GAP, [9, 9, 0])], ids=["grey", "color"]
)
def test_pixels_without_data_are_black(pixels, greens):
    assert to_rgb(pixels)[0, :, 1].tolist() == greens


IMAGE = np.full((2, 5), 200, np.uint8)
TRUTH = np.array([[0, 1, 1, 255, 0], [0, 0, 0, 0, 0]])
PREDICTION = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]])


def test_wrong_pixels_are_red_and_ignored_ones_grey_over_the_dark_image():
    right = (70, 70, 70)
    errors = mark_errors(IMAGE, TRUTH, PREDICTION, 2).tolist()
    pixels = [[tuple(pixel) for pixel in line] for line in errors]
    assert pixels == [[right, right, RED, GREY, right], [RED, right, right, right, right]]


def test_slices_of_a_volume_have_the_front_or_the_top_above_and_right_at_the_left():
    volume = np.zeros((3, 4, 5), np.uint8)  # (z, y, x) in RAS orientation
    volume[2, 1, 2], volume[1, 3, 2], volume[1, 1, 4] = 10, 20, 30  # above, before and to the right of the middle
    volume[1, 1, 2] = 40
    slices = orthogonal_slices(volume, (1, 1, 2), (2.0, 1.0, 1.0), fill=255)
    assert slices.shape == (4 + 6, 5 + 6)
    axial, sagittal, coronal = slices[:4, :5], slices[:4, 5:], slices[4:, :5]
    assert [axial[2, 2], axial[0, 2], axial[2, 0]] == [40, 20, 30]
    assert [sagittal[2, 2], sagittal[0, 3], sagittal[2, 5]] == [40, 20, 10]
    assert [coronal[3, 2], coronal[0, 2], coronal[3, 0]] == [40, 10, 30]
    assert (slices[4:, 5:] == 255).all()


def test_slices_are_spread_over_what_is_marked():
    mask = np.zeros((9, 20, 30), np.uint8)
    assert spread_voxels(mask) == [[2, 5, 7], [4, 10, 14], [6, 14, 22]]
    mask[5, 2:11, 20:25] = 1
    assert spread_voxels(mask) == [[5, 4, 21], [5, 6, 22], [5, 8, 23]]


def test_the_color_of_a_class_never_changes():
    """Pictures of two runs are compared; after six classes saturation and brightness change."""
    colors = palette(20).tolist()
    assert [colors[number] for number in (1, 2, 6, 7, 13, 19)] == [
        [61, 155, 242],
        [208, 242, 61],
        [64, 61, 242],
        [153, 255, 115],
        [166, 8, 12],
        [102, 61, 242],
    ]


RAMP = np.arange(101, dtype=np.float32).reshape(1, 101)


def test_grey_levels_are_stretched_between_the_first_and_the_last_percent():
    assert value_limits(RAMP) == (1, 99)
    assert to_rgb(RAMP)[0, [0, 1, 50, 99, 100], 0].tolist() == [0, 0, 128, 255, 255]


@pytest.mark.parametrize(
    ("pixel", "rgb"), [([7, 250], [7, 7, 7]), ([1, 2, 3, 4], [1, 2, 3])], ids=["grey with alpha", "four channels"]
)
def test_channels_behind_grey_or_color_are_not_shown(pixel, rgb):
    assert to_rgb(np.array([[pixel]], np.uint8)).tolist() == [[rgb]]


def test_each_of_many_bands_has_a_stretch_of_its_own():
    bands = np.random.default_rng(0).random((50, 60, 5)) * (1, 100, 10_000, 1, 1)
    picture = to_rgb(bands)
    assert picture.shape == (50, 60, 3)
    assert all(picture[:, :, band].min() == 0 and picture[:, :, band].max() == 255 for band in range(3))
    assert np.array_equal(picture[:, :, 2], to_rgb(bands[:, :, 2])[:, :, 0])
    assert np.array_equal(picture[:10], to_rgb(bands[:10], value_limits(bands)))
    assert to_rgb(bands[:, :, :3])[:, :, 1].max() < 10  # colors share theirs


@pytest.mark.parametrize(("width", "thickness"), [(799, 1), (800, 2)])
def test_outlines_are_thicker_in_wide_pictures_and_later_classes_lie_over_others(width, thickness):
    bits = np.zeros((30, width), np.int32)
    bits[5:25] = 0b01
    bits[5:10] |= 0b10
    first, second = np.array([[200, 0, 0], [0, 200, 0]], np.uint8)
    column = outline_classes(np.zeros((30, width), np.uint8), bits, np.stack([first, second]))[:, width // 2]
    is_second = (column == second).all(axis=1)
    assert {*np.flatnonzero(is_second).tolist()} == {*range(5, 5 + thickness), *range(10 - thickness, 10)}
    is_first = (column == first).all(axis=1)
    assert np.flatnonzero(is_first).tolist() == list(range(25 - thickness, 25))


@pytest.mark.parametrize("is_found", [True, False], ids=["found", "true"])
def test_a_point_of_a_volume_is_drawn_on_its_voxel_in_each_slice(is_found):
    points = [np.array([[1.0, 2.0, 6.0]]), np.full((1, 3), np.nan)]
    if not is_found:
        points.reverse()
    picture = render_points(np.zeros((8, 8, 8, 1), np.uint8), *points, spacing=(1.0, 1.0, 1.0))
    # 16 x 16 voxels of 30 x 30 pixels: axial, to its right sagittal, below it coronal
    parts = (picture[:240, :240], picture[:240, 240:], picture[240:, :240])
    centers = [np.argwhere(part.any(axis=2)).mean(axis=0) for part in parts]
    voxels = np.array([[5, 1], [5, 1], [6, 1]])
    np.testing.assert_allclose(centers, 30 * (voxels + 0.5) - 0.5, atol=1)
    assert not picture[240:, 240:].any()


@pytest.mark.parametrize("ground", [0, 255], ids=["dark", "bright"])
def test_the_line_from_a_found_point_to_the_true_one_is_visible_on_any_ground(ground):
    found, true = np.array([[100.0, 100.0]]), np.array([[100.0, 200.0]])
    image = np.full((480, 480), ground, np.uint8)
    across = render_points(image, found, true)[:, 150, 0]
    assert (across != ground).sum() in (1, 2)


@pytest.mark.parametrize(("side", "width"), [(480, 2), (2400, 4), (6000, 10)])
def test_rings_are_as_wide_as_large_pictures_need_that_are_shown_reduced(side, width):
    nowhere = np.full((1, 2), np.nan)
    picture = render_points(np.zeros((200, side), np.uint8), nowhere, np.array([[100.0, 150.0]]))
    assert picture[100].any(axis=1).sum() == pytest.approx(2 * width, abs=2)


def test_found_points_are_discs_and_true_ones_rings_with_a_line_to_what_was_found():
    colors = [tuple(color) for color in palette(4)[1:].tolist()]
    image = np.zeros((480, 480), np.uint8)
    found = np.array([[100.0, 100.0], [200.0, 100.0], [np.nan, np.nan]])
    true = np.array([[100.0, 200.0], [np.nan, np.nan], [300.0, 200.0]])
    picture = render_points(image, found, true)
    picture_colors = [
        [tuple(picture[row, column].tolist()) for column in (100, 150, 200, 205)] for row in (100, 200, 300)
    ]
    black, white = (0, 0, 0), (255, 255, 255)
    assert picture_colors == [
        [colors[0], white, white, colors[0]],
        [colors[1], black, black, black],
        [black, black, black, colors[2]],
    ]
