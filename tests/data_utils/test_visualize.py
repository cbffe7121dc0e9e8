"""Masks as colors, outlines and legends, and points, of images and of volumes.

Modules: data_utils/visualize.py, data_utils/visualize_points.py, data_utils/visualize_volumes.py.
"""

import numpy as np
import pytest

from data_utils.visualize import (
    GREY,
    MIN_COLOR_DISTANCE,
    RED,
    colorize,
    contours,
    darken,
    legend,
    mark_errors,
    outline_areas,
    outline_classes,
    outlined_overlay,
    overlay,
    palette,
    panel,
    readable_colors,
    to_rgb,
    value_limits,
)
from data_utils.visualize_points import render_points, render_volume_points
from data_utils.visualize_volumes import busiest_voxel, orthogonal_slices, slices_of_interest, volume_page


def test_palette_colors_are_distinct():
    colors = palette(256)
    assert colors.shape == (256, 3)
    assert colors.dtype == np.uint8
    distinct = {tuple(color) for color in colors.tolist()}
    assert len(distinct) == 256
    assert tuple(GREY) not in distinct


def test_palette_colors_are_the_same_however_many_there_are():
    assert palette(256)[0].tolist() == [0, 0, 0]
    assert np.array_equal(palette(7), palette(256)[:7])


def test_palette_colors_of_twelve_classes_are_far_apart():
    colors = palette(12).astype(int)
    distances = np.abs(colors[:, None] - colors).sum(axis=2) + 1000 * np.eye(12, dtype=int)
    assert distances.min() > 60


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_colorize_paints_classes_and_greys_what_has_no_color(dtype):
    colors = palette(3)
    picture = colorize(np.array([[0, 1], [2, 255]], dtype=dtype), colors)
    assert picture.dtype == np.uint8
    assert picture.tolist() == [[[0, 0, 0], colors[1].tolist()], [colors[2].tolist(), list(GREY)]]
    assert colorize(np.array([[7]]), colors).tolist() == [[list(GREY)]]
    assert colorize(np.array([[-2]]), colors).tolist() == [[list(GREY)]]


def test_colorize_keeps_255_when_it_is_a_class():
    assert colorize(np.array([[255]], np.uint8), palette(256)).tolist() == [[palette(256)[255].tolist()]]


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 2), (4, 6, 3), (4, 6, 4), (4, 6, 7), (1, 1)])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16, np.int32, np.float32, np.float64])
def test_to_rgb_takes_any_picture(shape, dtype):
    image = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    picture = to_rgb(image)
    assert picture.shape == (*shape[:2], 3)
    assert picture.dtype == np.uint8


def test_to_rgb_leaves_uint8():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(to_rgb(image), image)


def test_to_rgb_stretches_other_ranges():
    ramp = to_rgb(np.linspace(1000, 4000, 400, dtype=np.float32).reshape(20, 20))
    assert ramp.min() == 0
    assert ramp.max() == 255
    assert (np.diff(ramp[:, :, 0].ravel().astype(int)) >= 0).all()


def test_to_rgb_shows_the_rest_of_a_picture_with_outliers():
    image = np.linspace(0, 1, 400).reshape(20, 20)
    image[0, :3] = (np.nan, np.inf, 1e30)
    picture = to_rgb(image)
    assert picture[0, :3, 0].tolist() == [0, 255, 255]
    assert picture[1:].std() > 50


def test_to_rgb_shows_few_values_among_zeros():
    sparse = np.zeros((20, 20))
    sparse[3, 3:5] = 5, 2
    assert to_rgb(sparse)[3, 2:5, 0].tolist() == [0, 255, 102]


@pytest.mark.parametrize("value", [3.5, np.nan])
def test_to_rgb_shows_a_constant_picture_black(value):
    with np.errstate(all="raise"):  # nor is it a warning
        assert not to_rgb(np.full((2, 2), value)).any()


def test_overlay_darkens_a_class_whose_color_is_black():
    image = np.full((1, 2), 100, np.uint8)
    colors = np.array([[200, 0, 0], [0, 0, 0]], np.uint8)
    assert overlay(image, np.array([[0, 1]], np.uint8), colors).tolist() == [[[100, 100, 100], [50, 50, 50]]]


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


def test_contours_lie_on_the_edges_of_classes():
    mask = np.zeros((12, 20), int)
    mask[2:10, 2:9] = 1
    mask[2:10, 9:18] = 2
    edges = contours(mask)
    assert edges[2, 2]
    assert edges[5, 8]
    assert not edges[5, 5]
    assert contours(mask, thickness=2).sum() > edges.sum()


def test_an_outline_lies_within_its_class_and_never_on_the_background():
    mask = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 2], [0, 1, 1, 1, 2], [0, 0, 0, 0, 2]])
    expected = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    assert contours(mask).astype(int).tolist() == expected.tolist()
    assert contours(np.ones((3, 3), int)).sum() == 0  # a picture's border is no outline
    assert contours(np.pad(np.ones((5, 5), int), 3), thickness=2).sum() == 24


def test_a_thick_outline_also_lies_beside_a_line_of_one_pixel():
    mask = np.array([[1, 1, 1, 1, 2, 1, 1, 1]])
    assert contours(mask, thickness=2).astype(int).tolist() == [[0, 0, 1, 1, 1, 1, 1, 0]]


@pytest.mark.parametrize(("height", "width", "thickness"), [(1600, 40, 1), (8, 799, 1), (8, 800, 2), (8, 1600, 3)])
def test_an_outline_is_a_pixel_thicker_for_every_800_columns(height, width, thickness):
    mask = np.zeros((height, width), int)
    mask[:, 20:] = 1
    picture = outlined_overlay(np.full((height, width, 3), 230, np.uint8), mask, np.uint8([[0, 0, 0], [200, 200, 200]]))
    is_line = (picture[4] == 0).all(axis=1)
    assert is_line.nonzero()[0].tolist() == list(range(20, 20 + thickness))


@pytest.mark.parametrize("pixel", [(0, 0), (17, 23), (18, 24), (39, 39)])
def test_an_area_of_one_pixel_has_a_line_around_it_in_a_small_picture(pixel):
    areas = np.zeros((40, 40), bool)
    areas[pixel] = True
    image = np.zeros((10, 10, 3), np.uint8)
    picture = outline_areas(image, areas, (255, 0, 0))
    assert not image.any()
    assert (picture[:, :, 0] == 255).any()
    assert (picture[:, :, 1:] == 0).all()
    assert picture[pixel[0] // 4, pixel[1] // 4].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("below", "own", "line"),
    [(20, 40, 255), (230, 210, 0), (127, 120, 255), (128, 120, 0), (230, 40, 40), (20, 210, 210)],
)
def test_an_outline_is_white_or_black_where_its_color_would_not_show(below, own, line):
    mask = np.pad(np.ones((3, 3), int), 1)
    colors = np.array([[0, 0, 0], [own] * 3], np.uint8)
    picture = outlined_overlay(np.full((5, 5, 3), below, np.uint8), mask, colors)
    assert set(picture[contours(mask)].ravel().tolist()) == {line}


LEGEND_COLORS = np.array([[0, 0, 0], [200, 0, 50], [0, 90, 30]], np.uint8)


def test_a_legend_has_a_square_for_each_class_that_is_tinted():
    pixels = np.asarray(legend(["sky", "land", "sea"], LEGEND_COLORS))
    assert pixels.dtype == np.uint8
    assert pixels.shape[0] == 60
    squares = pixels[:, :20].reshape(3, 20, 20, 3)
    assert (squares[0][:, :19] == 255).all()
    for square, color in zip(squares[1:], LEGEND_COLORS[1:], strict=True):
        assert (square[4:16, 4:16] == color).all()
        assert (square == color).all(axis=2).sum() == 12 * 12


def test_a_legend_is_as_wide_as_its_longest_name():
    narrow = legend(["sky", "land", "sea"], LEGEND_COLORS)
    wide = legend(["sky", "a class with a long name"], LEGEND_COLORS)
    assert wide.width > narrow.width
    assert (np.asarray(wide)[:, 20:] < 128).any()


def test_a_legend_has_the_name_of_a_class_that_is_not_tinted():
    pixels = np.asarray(legend(["background", "sea"], LEGEND_COLORS))
    assert pixels.shape[1] > 120
    assert (pixels[:20, 100:] < 128).any()


def test_a_darkened_picture_has_a_third_of_its_mean_over_the_channels():
    assert darken(np.uint8([[[0, 90, 210]]])).tolist() == [[[35, 35, 35]]]


def test_wrong_pixels_are_red_and_those_of_no_class_grey():
    image = np.full((1, 4), 100, np.uint8)
    marked = mark_errors(image, np.array([[0, 1, -1, 2]]), np.array([[0, 0, 0, 0]]), num_classes=2)
    assert marked.tolist() == [[[35] * 3, [230, 30, 40], [128] * 3, [128] * 3]]


def test_colors_of_outlines_are_alike_below_a_difference_of_200_over_their_channels():
    colors = np.array([[100, 90, 9], [100, 91, 9], [0, 0, 0]], np.uint8)
    below = np.array([[0, 0, 0], [0, 0, 0], [128, 128, 128]], np.uint8)
    assert readable_colors(colors, below).tolist() == [[255] * 3, [100, 91, 9], [0, 0, 0]]
    assert colors[0].tolist() == [100, 90, 9]


IS_MISSING = np.array([[False, False, True]])
GREY_WITH_A_GAP = np.ma.masked_array(np.array([[1.0, 3.0, 99.0]]), IS_MISSING)
COLOR_WITH_A_GAP = np.ma.masked_array(np.full((1, 3, 3), 9, np.uint8), np.repeat(IS_MISSING[:, :, None], 3, axis=2))


def test_pixels_without_data_do_not_count_in_limits():
    assert value_limits(GREY_WITH_A_GAP) == (1.02, 2.98)


@pytest.mark.parametrize(
    ("pixels", "greens"), [(GREY_WITH_A_GAP, [0, 255, 0]), (COLOR_WITH_A_GAP, [9, 9, 0])], ids=["grey", "color"]
)
def test_pixels_without_data_are_black(pixels, greens):
    assert to_rgb(pixels)[0, :, 1].tolist() == greens


def test_a_line_lies_two_pixels_around_an_area_in_a_wide_picture():
    areas = np.zeros((20, 60), bool)
    areas[8:12, 40:44] = True
    picture = outline_areas(np.zeros((10, 30, 3), np.uint8), areas, (9, 9, 9))
    rows, columns = np.nonzero(picture[:, :, 0])
    assert rows.min() == 1
    assert rows.max() == 8
    assert columns.min() == 17
    assert columns.max() == 24
    assert picture[4, 17, 0]
    assert not picture[4, 18:24].any()
    assert not picture[1, 17].any()


IMAGE = np.full((2, 5), 200, np.uint8)
TRUTH = np.array([[0, 1, 1, 255, 0], [0, 0, 0, 0, 0]])
PREDICTION = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]])


def test_panel_is_four_pictures_in_a_row_with_white_between():
    row = panel(IMAGE, TRUTH, PREDICTION, palette(2))
    assert row.shape == (2, 4 * 5 + 3 * 2, 3)
    assert row.dtype == np.uint8
    assert (row[:, 5:7] == 255).all()
    assert (row[:, 12:14] == 255).all()
    assert (row[:, 19:21] == 255).all()


def test_panel_shows_image_truth_prediction():
    colors = palette(2)
    row = panel(IMAGE, TRUTH, PREDICTION, colors)
    assert (row[:, :5] == 200).all()
    assert np.array_equal(row[:, 7:12], colorize(TRUTH, colors))
    assert np.array_equal(row[:, 14:19], colorize(PREDICTION, colors))


def test_panel_shows_errors_in_red_at_last():
    errors = panel(IMAGE, TRUTH, PREDICTION, palette(2))[:, 21:]
    right = (70, 70, 70)
    pixels = [[tuple(pixel) for pixel in line] for line in errors.tolist()]
    assert pixels == [[right, right, RED, GREY, right], [RED, right, right, right, right]]


@pytest.fixture(scope="module")
def slices() -> np.ndarray:
    """The slices through a voxel of 40, with 10 above it, 20 before it and 30 to its right."""
    volume = np.zeros((3, 4, 5), np.uint8)  # (z, y, x) in RAS orientation
    volume[2, 1, 2], volume[1, 3, 2], volume[1, 1, 4] = 10, 20, 30
    volume[1, 1, 2] = 40
    return orthogonal_slices(volume, (1, 1, 2), (2.0, 1.0, 1.0), fill=255)


def test_slices_of_a_volume_leave_a_corner_empty(slices):
    assert slices.shape == (4 + 6, 5 + 6)
    assert (slices[4:, 5:] == 255).all()


@pytest.mark.parametrize(
    ("spacing", "shape"),
    [
        ((1.0, 1.0, 2.0), (4 + 3, 10 + 3)),
        ((3.0, 1.5, 3.0), (4 + 6, 10 + 6)),
        ((0.5, 1.0, 2.0), (8 + 3, 20 + 3)),
    ],
    ids=["x is coarse", "y is finest", "z is finest"],
)
def test_slices_of_a_volume_have_the_pixels_of_its_finest_axis(spacing, shape):
    assert orthogonal_slices(np.zeros((3, 4, 5)), (1, 1, 2), spacing).shape == shape


def test_slices_of_a_volume_keep_its_type():
    volume = np.full((3, 4, 5), 300, np.uint16)
    slices = orthogonal_slices(volume, (1, 1, 2), (1.0, 1.0, 1.0), fill=500)
    assert np.unique(slices).tolist() == [300, 500]


def test_the_axial_slice_has_the_front_above_and_right_at_the_left(slices):
    axial = slices[:4, :5]
    assert axial[2, 2] == 40
    assert axial[0, 2] == 20
    assert axial[2, 0] == 30


def test_the_sagittal_slice_has_the_front_above_and_the_top_at_the_right(slices):
    sagittal = slices[:4, 5:]
    assert sagittal[2, 2] == 40
    assert sagittal[0, 3] == 20
    assert sagittal[2, 5] == 10


def test_the_coronal_slice_has_the_top_above_and_right_at_the_left(slices):
    coronal = slices[4:, :5]
    assert coronal[3, 2] == 40
    assert coronal[0, 2] == 10
    assert coronal[3, 0] == 30


def test_the_slices_shown_are_those_with_most_of_the_classes():
    mask = np.zeros((6, 7, 8), np.uint8)
    mask[2, 3:6, 1:4] = 1
    mask[2:5, 4, 2] = 2
    assert busiest_voxel(mask) == (2, 4, 2)
    assert busiest_voxel(np.full((6, 7, 8), 255, np.uint8)) == (3, 3, 4)


def test_a_legend_shows_each_class_but_the_first_in_its_color():
    colors = palette(3)
    picture = np.asarray(legend(("ground", "cell", "wall"), colors))
    legend_colors = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}
    assert {tuple(colors[1].tolist()), tuple(colors[2].tolist())} <= legend_colors
    assert len(picture) == 60
    squares = picture[:20, 4:15].reshape(-1, 3)
    assert (squares == 255).all()  # the first class is not tinted


def test_a_legend_has_a_square_for_a_black_class():
    picture = np.asarray(legend(("ground", "cell"), np.zeros((2, 3), np.uint8)))
    assert (picture[24:36, 4:16] == 0).all()


def test_a_legend_names_classes_in_their_order():
    pictures = [np.asarray(legend(names, palette(3))) for names in (("sky", "wall", "cell"), ("sky", "cell", "wall"))]
    assert np.array_equal(pictures[0][:20], pictures[1][:20])
    assert not np.array_equal(pictures[0][20:40], pictures[1][20:40])
    assert np.array_equal(pictures[0][20:40, 20:], pictures[1][40:, 20:])


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


def test_grey_levels_are_stretched_between_given_limits():
    assert to_rgb(RAMP, (0, 200))[0, [0, 20, 100], 0].tolist() == [0, 26, 128]


def test_limits_of_pixels_that_are_no_numbers_are_0():
    assert value_limits(np.full((2, 2), np.nan)) == (0, 0)


def test_colors_are_stretched_in_one_range_for_all_channels():
    color = np.zeros((1, 2, 3), np.uint16)
    color[0, 1] = 100, 200, 400
    assert to_rgb(color, (0, 400))[0, 1].tolist() == [64, 128, 255]


@pytest.mark.parametrize(
    ("pixel", "rgb"), [([7, 250], [7, 7, 7]), ([1, 2, 3, 4], [1, 2, 3])], ids=["grey with alpha", "four channels"]
)
def test_channels_behind_grey_or_color_are_not_shown(pixel, rgb):
    assert to_rgb(np.array([[pixel]], np.uint8)).tolist() == [[rgb]]


def test_slices_go_through_the_largest_class_in_even_steps():
    mask = np.zeros((12, 14, 16), np.uint8)
    mask[0, :2, :2] = 1
    mask[3:8, 0:9, 4] = 2
    mask[9:] = 255
    assert slices_of_interest(mask, 3) == [[4, 5, 6], [2, 4, 6], [4, 4, 4]]
    nothing = np.zeros((7, 9, 11), np.uint8)
    nothing[0] = 255
    assert slices_of_interest(nothing, 1) == [[3], [4], [5]]
    assert slices_of_interest(np.ones((5, 5, 5), np.uint8), 2) == [[1, 3]] * 3


@pytest.fixture(scope="module")
def page() -> np.ndarray:
    """A page of one slice in each direction, of a grey volume with a box of a class."""
    image = np.full((4, 40, 40, 1), 40, np.uint8)
    mask = np.zeros((4, 40, 40), np.uint8)
    mask[1:, 10:30, 20:36] = 1
    colors = np.array([[0, 0, 0], [200, 80, 0]], np.uint8)
    return volume_page(image, mask, colors, (5.0, 1.0, 1.0), count=1)


def test_a_page_has_a_black_line_below_each_direction(page):
    assert page.shape == (320 + 2 + 160 + 2 + 160 + 2, 320, 3)
    assert not page[320:322].any()
    assert not page[-2:].any()


def test_a_page_tints_a_quarter_within_outlines_in_full_color(page):
    axial = page[:320]
    assert {tuple(color) for color in axial.reshape(-1, 3).tolist()} == {(40, 40, 40), (80, 50, 30), (200, 80, 0)}
    assert (axial[80, 32:160] == (200, 80, 0)).all()
    assert (axial[81, 33] == (80, 50, 30)).all()


def test_a_page_shows_the_right_at_the_left(page):
    rows, columns = np.nonzero((page[:320] != 40).any(axis=2))
    assert rows.min() == 80
    assert rows.max() == 239
    assert columns.min() == 32
    assert columns.max() == 159


def test_a_page_shows_a_coronal_slice_with_the_top_above(page):
    coronal = page[322:482]
    assert (coronal[-40:] == 40).all()
    assert (coronal[:120, 32:160] != 40).any(axis=2).all()


def test_a_page_has_one_range_of_brightness_for_all_slices():
    image = np.linspace(0, 1, 8 * 6 * 6, dtype=np.float32).reshape(8, 6, 6, 1)
    page = volume_page(image, np.zeros((8, 6, 6), np.uint8), np.zeros((1, 3), np.uint8), (1.0, 1.0, 1.0))
    axial = page[:320].reshape(320, 4, -1, 3).mean(axis=(0, 2, 3))
    lowest, *_, highest = axial
    assert lowest < 100
    assert highest > 155


def test_a_page_has_four_slices_of_each_plane_of_up_to_320_pixels():
    image = np.full((8, 4, 10, 1), 9, np.uint8)
    page = volume_page(image, np.zeros((8, 4, 10), np.uint8), np.zeros((1, 3), np.uint8), (4.0, 2.0, 1.0))
    assert page.shape == (80 + 2 + 320 + 2 + 320 + 2, 4 * 100, 3)
    assert (page[-3, : 4 * 80] == 9).all()
    assert (page[-3, 4 * 80 :] == 0).all()


def test_each_of_many_bands_has_a_stretch_of_its_own():
    bands = np.random.default_rng(0).random((50, 60, 5)) * (1, 100, 10_000, 1, 1)
    picture = to_rgb(bands)
    assert picture.shape == (50, 60, 3)
    assert all(picture[:, :, band].min() == 0 and picture[:, :, band].max() == 255 for band in range(3))
    assert np.array_equal(picture[:, :, 2], to_rgb(bands[:, :, 2])[:, :, 0])
    assert np.array_equal(picture[:10], to_rgb(bands[:10], value_limits(bands)))
    assert to_rgb(bands[:, :, :3])[:, :, 1].max() < 10  # colors share theirs


@pytest.mark.parametrize(("width", "thickness"), [(799, 1), (800, 2), (1600, 3)])
def test_outlines_are_thicker_in_wide_pictures_and_later_classes_lie_over_others(width, thickness):
    bits = np.zeros((30, width), np.int32)
    bits[5:25] = 0b01
    bits[5:10] |= 0b10
    first, second = np.array([[200, 0, 0], [0, 200, 0]], np.uint8)
    column = outline_classes(np.zeros((30, width), np.uint8), bits, np.stack([first, second]))[:, width // 2]
    is_second = (column == second).all(axis=1)
    expected = {*range(5, 5 + thickness), *range(10 - thickness, 10)}
    assert {*np.flatnonzero(is_second).tolist()} == expected
    image = np.zeros((30, width, 3), np.uint8)
    assert outline_classes(image, bits, np.stack([first, second])).any()
    assert not image.any()
    is_first = (column == first).all(axis=1)
    assert np.flatnonzero(is_first).tolist() == list(range(25 - thickness, 25))


def centers(picture: np.ndarray) -> list[list[float]]:
    """(row, column) of the middle of what is drawn on each of three black planes side by side."""
    planes = np.split(picture.any(axis=2), 3, axis=1)
    return [np.argwhere(plane).mean(axis=0).tolist() for plane in planes]


def test_a_point_of_a_volume_is_drawn_on_its_voxel_in_each_plane_superior_and_anterior_up():
    voxels = np.zeros((8, 8, 8, 1), np.uint8)
    place = np.array([[1.0, 2.0, 6.0]])
    is_there = np.array([True])
    # a voxel is 45 pixels wide, and its middle is the 22nd
    z, y, x = 45 * (7 - 1) + 22, 45 * (7 - 2) + 22, 45 * 6 + 22
    expected = [[y, x], [z, x], [z, 45 * 2 + 22]]
    assert centers(render_volume_points(voxels, (1.0, 1.0, 1.0), place, is_there)) == expected
    assert centers(render_volume_points(voxels, (1.0, 1.0, 1.0), place, ~is_there, place, is_there)) == expected
    voxels[1, 2, 6] = 255  # the planes go through what is found where nothing is true
    picture = render_volume_points(voxels, (1.0, 1.0, 1.0), place, is_there, place, ~is_there)
    assert picture[y + 20, x + 20].all()
    assert picture[z + 20, 362 + x + 20].all()


def test_found_points_are_discs_and_true_ones_rings_with_a_line_to_what_was_found():
    colors = [tuple(color) for color in palette(4)[1:].tolist()]
    image = np.zeros((480, 480), np.uint8)
    predicted_points = np.array([[100.0, 100.0], [200.0, 100.0], [300.0, 100.0]])
    true = np.array([[100.0, 200.0], [200.0, 200.0], [300.0, 200.0]])
    picture = render_points(image, predicted_points, np.array([True, True, False]), true, np.array([True, False, True]))
    picture_colors = [
        [tuple(picture[row, column].tolist()) for column in (100, 150, 200, 205)] for row in (100, 200, 300)
    ]
    black, white = (0, 0, 0), (255, 255, 255)
    assert picture_colors == [
        [colors[0], white, white, colors[0]],
        [colors[1], black, black, black],
        [black, black, black, colors[2]],
    ]


def test_a_small_picture_is_enlarged_with_its_points():
    picture = render_points(np.zeros((60, 96), np.uint8), np.array([[10.0, 20.0]]), np.array([True]))
    assert picture.shape == (300, 480, 3)
    assert np.argwhere(picture.any(axis=2)).mean(axis=0).tolist() == [52, 102]  # the middle of five times five pixels
    assert render_points(np.zeros((60, 500), np.uint8), np.zeros((0, 2)), np.zeros(0, bool)).shape == (60, 500, 3)
    assert render_points(np.zeros((96, 60), np.uint8), np.zeros((0, 2)), np.zeros(0, bool)).shape == (480, 300, 3)


@pytest.mark.parametrize(("width", "radius", "thickness"), [(480, 3, 1), (1500, 10, 3)])
def test_points_and_lines_are_thicker_in_a_large_picture(width, radius, thickness):
    image = np.zeros((80, width), np.uint8)
    is_there = np.array([True])
    predicted_points = np.array([[40.0, 60.0]])
    column = render_points(image, predicted_points, is_there)[:, 60].any(axis=1)
    assert np.flatnonzero(column).tolist() == list(range(41 - radius, 40 + radius))  # the outline is black
    lines = render_points(image, predicted_points, is_there, np.array([[40.0, 160.0]]), is_there)
    assert (lines[:, 110] == 255).all(axis=1).sum() == thickness


SPACING = (2.0, 1.0, 1.0)
POINT = np.array([[1.0, 2.0, 6.0]])
IS_THERE = np.array([True])


@pytest.fixture(scope="module")
def ramp_volume():
    """A volume (4, 16, 16) with a ramp of grey in the plane of the point, a line through it, and a bright end."""
    voxels = np.zeros((4, 16, 16, 1), np.float32)
    voxels[1] = np.linspace(0, 100, 256).reshape(16, 16, 1)
    voxels[3] = 1000.0
    voxels[:, 2, 6] = 50.0
    return voxels


@pytest.fixture(scope="module")
def three_planes(ramp_volume):
    """The planes through a true point, which is not found."""
    return render_volume_points(ramp_volume, SPACING, POINT, ~IS_THERE, POINT, IS_THERE)


def test_planes_of_a_volume_have_its_sides_in_mm(three_planes):
    assert three_planes.shape == (360, 3 * 362, 3)
    assert three_planes[:360, :360].any()
    assert not three_planes[180:, 362:].any()
    assert not three_planes[:, 360:362].any()


def test_planes_of_a_volume_of_thick_slices_are_as_large_as_its_longest_side(ramp_volume):
    # 17 mm along z are the longest side, and 16 mm are 339 pixels
    picture = render_volume_points(ramp_volume, (4.25, 1.0, 1.0), POINT, IS_THERE)
    assert picture.shape == (360, 3 * 341, 3)


def test_planes_of_a_volume_have_the_grey_levels_of_one(three_planes):
    # each plane is stretched as the axial one: 50 of 0 to 100 is a medium grey
    assert three_planes[5, 362 + 146].tolist() == three_planes[5, 724 + 45 + 11].tolist()
    assert 120 < three_planes[5, 362 + 146, 0] < 136


def test_planes_about_a_point_outside_of_a_volume_are_as_large(ramp_volume, three_planes):
    assert render_volume_points(ramp_volume, SPACING, POINT + 99, IS_THERE).shape == three_planes.shape


def test_planes_without_a_point_are_those_of_the_middle(ramp_volume):
    picture = render_volume_points(ramp_volume, SPACING, POINT, ~IS_THERE)
    assert picture[:360, :360].any() == ramp_volume[2].any()


@pytest.mark.parametrize(("depth", "is_bright"), [(0.4, False), (0.6, True), (1.4, True), (1.6, False)])
def test_the_planes_of_a_volume_are_those_nearest_to_the_middle_of_its_points(depth, is_bright):
    voxels = np.zeros((4, 16, 16, 1), np.uint8)
    voxels[1] = 255
    picture = render_volume_points(voxels, (2.0, 1.0, 1.0), np.array([[depth, 2.0, 6.0]]), np.array([True]))
    assert picture[5, 5].all() == is_bright


def test_the_planes_of_a_volume_without_points_are_those_in_its_middle():
    voxels = np.zeros((9, 16, 16, 1), np.uint8)
    voxels[4] = 255
    picture = render_volume_points(voxels, (1.0, 1.0, 1.0), np.zeros((1, 3)), np.array([False]))
    assert (picture[:360, :360] == 255).all()


def test_the_planes_of_a_very_flat_volume_have_a_row():
    voxels = np.zeros((1, 16, 16, 1), np.uint8)
    picture = render_volume_points(voxels, (0.01, 1.0, 1.0), np.zeros((1, 3)), np.array([False]))
    assert picture.shape == (360, 3 * 362, 3)


def test_a_point_of_thick_slices_is_drawn_on_its_voxel():
    voxels = np.zeros((4, 16, 16, 1), np.uint8)
    picture = render_volume_points(voxels, (2.0, 1.0, 1.0), np.array([[1.0, 2.0, 6.0]]), np.array([True]))
    coronal = picture[:180, 362 : 362 + 360].any(axis=2)  # a voxel has 45 rows and 22.5 columns
    assert np.argwhere(coronal).mean(axis=0).tolist() == pytest.approx([112, 145.75], abs=1)


def test_a_page_is_as_bright_as_the_slices_that_it_shows():
    image = np.linspace(0, 1, 125, dtype=np.float32).reshape(5, 5, 5, 1)
    image[:2, :2, :2] = 1000
    page = volume_page(image, np.zeros((5, 5, 5), np.uint8), np.zeros((1, 3), np.uint8), (1.0, 1.0, 1.0), count=1)
    assert page.max() == 255
