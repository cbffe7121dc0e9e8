"""Masks drawn from the shapes of a labelme file, as its own export fills them.

Modules: data_utils/sources/annotations/labelme.py, data_utils/sources/annotations/drawn.py.
"""

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw
from support.annotations import drawing_error, error_of, loaded
from support.labelme_files import BOX, SIZE, drawn, png, shape, write_labelme, written_mask

from data_utils.bits import unpack_bits
from data_utils.config import DataConfig
from train_utils.dataset import load_dataset_info


def pillow(draw) -> np.ndarray:
    picture = Image.new("L", SIZE[::-1])
    draw(ImageDraw.Draw(picture))
    return np.asarray(picture)


POLYGON = [[10.4, 5.2], [50.7, 8.9], [40.1, 50.3], [12.6, 44.0]]


SHAPES = {  # shape -> what Pillow draws for it
    "polygon": (shape("a", POLYGON), lambda pen: pen.polygon(list(map(tuple, POLYGON)), fill=1, outline=1)),
    "no type": (shape("a", POLYGON, None), lambda pen: pen.polygon(list(map(tuple, POLYGON)), fill=1, outline=1)),
    "rectangle": (
        shape("a", [[40.2, 30.8], [10.9, 12.1]], "rectangle"),  # from the lower right corner
        lambda pen: pen.rectangle([10.9, 12.1, 40.2, 30.8], fill=1, outline=1),
    ),
    "turned rectangle": (
        shape("a", [[30, 10], [50, 30], [30, 50], [10, 30]], "rectangle"),
        lambda pen: pen.polygon([(30, 10), (50, 30), (30, 50), (10, 30)], fill=1, outline=1),
    ),
    "circle": (
        shape("a", [[40, 30], [44.5, 24]], "circle"),
        lambda pen: pen.ellipse([32.5, 22.5, 47.5, 37.5], fill=1, outline=1),  # 4.5, 6, 7.5
    ),
    "line": (shape("a", [[5, 5], [60, 40]], "line"), lambda pen: pen.line([5, 5, 60, 40], fill=1, width=10)),
    "linestrip": (
        shape("a", [[5, 5], [60, 40], [10, 50]], "linestrip"),
        lambda pen: pen.line([5, 5, 60, 40, 10, 50], fill=1, width=10, joint="curve"),
    ),
    "point": (shape("a", [[30.5, 20]], "point"), lambda pen: pen.ellipse([25.5, 15, 35.5, 25], fill=1, outline=1)),
}


@pytest.mark.parametrize(("found", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes_are_filled_as_labelme_fills_them(tmp_path, found, expected):
    mask = drawn(tmp_path, found)
    np.testing.assert_array_equal(mask, pillow(expected))
    assert 50 < mask.sum() < 3000


STAMP = np.pad(np.ones((8, 9), bool), ((2, 0), (3, 0)))


@pytest.mark.parametrize("corners", [[[20, 30], [31, 39]], [[31, 39], [20, 30]]], ids=["in order", "reversed"])
def test_a_mask_shape_is_stamped_at_its_upper_left_corner(tmp_path, corners):
    expected = np.zeros(SIZE, np.uint8)
    expected[32:40, 23:32] = 2
    np.testing.assert_array_equal(drawn(tmp_path, shape("b", corners, "mask", mask=png(STAMP))), expected)


def test_later_shapes_lie_on_earlier_ones(tmp_path):
    big, small = shape("a", [[0, 0], [60, 50]], "rectangle"), shape("b", [[10, 10], [20, 20]], "rectangle")
    assert drawn(tmp_path, big, small)[15, 15] == 2
    assert (drawn(tmp_path, small, big)[0:50, 0:60] == 1).all()


def test_ignored_regions_are_ignored_where_no_later_shape_lies(tmp_path):
    mask = drawn(
        tmp_path,
        shape("b", [[0, 0], [60, 50]], "rectangle"),
        shape("__ignore__", [[10, 10], [20, 20]], "rectangle"),
        shape("_background_", [[30, 10], [40, 20]], "rectangle"),
    )
    assert mask[15, 15] == 255
    assert mask[15, 35] == 0
    assert mask[5, 5] == 2
    info = load_dataset_info(DataConfig(str(tmp_path)))
    assert info.reader.class_map.names == ("background", "a", "b", "c")
    assert info.reader.class_map.ignore_value == 255


VALUES = {"a": 1, "b": 2, "background": 0, "__ignore__": 255}


def test_a_shape_on_an_ignored_region_makes_its_own_class_known_there(tmp_path):
    shapes = [
        shape("__ignore__", [[0, 0], [40, 40]], "rectangle"),
        shape("a", [[10, 10], [20, 20]], "rectangle"),
        shape("background", [[25, 25], [35, 35]], "rectangle"),
    ]
    truth, unknown = unpack_bits(written_mask(tmp_path, shapes, VALUES).render_classes({1: 0, 2: 1}))
    places = (15, 5, 30, 50), (15, 5, 30, 50)  # of the shape, the ignored region, the background, and outside
    assert truth[places].tolist() == [0b01, 0, 0, 0]
    assert unknown[places].tolist() == [0b10, 0b11, 0, 0]


HOLED = [  # a class, and a hole in it
    shape("a", [[0, 0], [40, 40]], "rectangle"),
    shape("background", [[10, 10], [20, 20]], "rectangle"),
]


def test_background_takes_a_class_away_among_shapes_of_other_classes(tmp_path):
    ignored = shape("__ignore__", [[30, 30], [35, 35]], "rectangle")
    mask = written_mask(tmp_path, [*HOLED, shape("b", BOX, "rectangle"), ignored], VALUES)
    truth, unknown = unpack_bits(mask.render_classes({1: 1}))  # b is not asked for
    places = (15, 7, 32), (15, 7, 32)  # of the background, the class, and what is ignored
    assert truth[places].tolist() == [0, 0b10, 0]
    assert unknown[places].tolist() == [0, 0, 0b10]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [((9 * SIZE[0], 9 * SIZE[1]), ["540 x 720"]), ((SIZE[1], SIZE[0]), ["60 x 80", "80 x 60"])],
    ids=["9 times", "turned"],
)
def test_a_picture_of_another_size_than_the_file_says_is_refused(tmp_path, size, sizes):
    file = write_labelme(tmp_path, "a", [shape("cell", BOX, "rectangle")], imageHeight=size[0], imageWidth=size[1])
    write_labelme(tmp_path, "b", [])
    message = error_of(tmp_path)
    assert str(file) in message
    assert all(text in message for text in sizes)


BAD_SHAPES = {
    "two points": (shape("cell", BOX), "shape 2 (cell): polygon has 4 coordinates up to 40, expected 3 pairs or more"),
    "unknown": (shape("cell", BOX, "spline"), "shape 2 (cell) is a spline; supported are polygon, rectangle"),
    "NaN": (shape("cell", [[1, 1], [5, math.nan], [9, 9]]), "shape 2 (cell): polygon has 6 coordinates up to nan"),
    "no label": (shape(None, BOX, "rectangle"), "shape 2 has no label"),
    "three numbers": (
        shape("cell", [[1, 1, 0], [5, 1, 0], [5, 5, 0], [1, 5, 0]]),
        "shape 2 (cell): polygon has points that are not pairs of numbers",
    ),
    "far to the left": (
        shape("cell", [[1, 1], [-1e6, 5], [9, 9]]),
        "shape 2 (cell): polygon has 6 coordinates up to 1e+06, expected 3 pairs or more, up to 100,000",
    ),
    "a wide mask": (
        shape("cell", BOX, "mask", mask=png(np.ones((1, 161), bool))),
        "shape 2 (cell) cannot be read (its mask of 161 x 1 pixels is larger than the picture)",
    ),
    "no points": (shape("cell", None), "shape 2 (cell): polygon has"),
    "bad mask": (shape("cell", BOX, "mask", mask="AAAA"), "shape 2 (cell) cannot be read"),
}


@pytest.mark.parametrize(("wrong", "message"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_a_shape_that_cannot_be_drawn_is_named(tmp_path, wrong, message):
    good = shape("cell", BOX, "rectangle")
    write_labelme(tmp_path / "val", "a", [good])
    file = write_labelme(tmp_path / "train", "b", [good, wrong])
    assert drawing_error(loaded(tmp_path)[0], "b.png").startswith(f"{file}: {message}")


def test_background_takes_objects_away(tmp_path):
    mask = written_mask(tmp_path, [*HOLED, shape("background", [[30, 30], [35, 35]], "rectangle")], VALUES)
    numbers, values = mask.render_objects()
    assert values.tolist() == [0, 1]
    assert [numbers[15, 15], numbers[7, 7], numbers[32, 32]] == [0, 1, 0]


def test_groups_of_one_number_are_distinguished_by_their_labels(tmp_path):
    boxes = [[[x, 5], [x + 8, 12]] for x in (5, 20, 35, 50)]
    shapes = [shape(label, box, "rectangle", group_id=0) for label, box in zip("aabb", boxes, strict=True)]
    numbers, values = written_mask(tmp_path, shapes, {"a": 1, "b": 2}).render_objects()
    assert [int(numbers[8, x + 2]) for x in (5, 20, 35, 50)] == [1, 1, 2, 2]
    assert values.tolist() == [0, 1, 2]
