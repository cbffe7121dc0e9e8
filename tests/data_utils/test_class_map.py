"""Class maps: which values are classes, what they are called where nobody says it, and masks as their indices.

Modules: data_utils/class_map.py, data_utils/mask_values.py.
"""

import re

import numpy as np
import pytest

from data_utils.class_map import ClassMap, resolve_classes
from data_utils.class_names import named_classes
from data_utils.image_io.reader import read_mask
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess

COLORS = ((0, 0, 0), (128, 64, 128), (128, 64, 200))


RESOLVED = [  # values of masks, --classes, --ignore-index -> values of the classes, and the ignored one
    ({0, 1, 255}, None, None, (0, 1), 255),
    ({0, 1, 2, 3, 255}, None, None, (0, 1, 2, 3), 255),
    ({0, 255}, None, None, (0, 255), None),
    ({1, 2, 255}, None, None, (1, 2, 255), None),
    ({0, 1, 11}, None, "11", (0, 1), 11),
    ({0, 1}, None, "255", (0, 1), 255),
    ({0, 1, 255}, None, "0", (1, 255), 0),
    ({-3, 0, 1}, None, "-3", (0, 1), -3),
    (set(COLORS), None, None, COLORS, None),
    (set(COLORS), None, "#000000", COLORS[1:], (0, 0, 0)),
    ({0, 9, 11}, "0=a,9=b,11=void", "11", (0, 9), 11),
    ({0, 9, 255}, "0=a,9=b", None, (0, 9), 255),
    ({0, 255}, "0=a,9=b", None, (0, 9), None),  # 255 is a class under a wrong name
    ({0, 255}, "#000000=road,#ffffff=car", None, (0, 255), None),
    ({0, 200}, "#000000=road,#c80000=car", None, ((0, 0, 0), (200, 0, 0)), None),
    ({(0, 0, 0), (255, 255, 255), (1, 2, 3)}, "#000000=a,#ffffff=b", None, ((0, 0, 0), (255, 255, 255)), None),
]


@pytest.mark.parametrize(("found", "classes", "ignore", "values", "ignore_value"), RESOLVED)
def test_found_values_become_classes(found, classes, ignore, values, ignore_value):
    class_map = resolve_classes(dict.fromkeys(found, 1), named_classes(classes, (), None), ignore)
    assert class_map.values == values
    assert class_map.ignore_value == ignore_value


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((0, 255), ("background", "foreground")),
        ((1, 2), ("1", "2")),
        (COLORS, ("#000000", "#804080", "#8040c8")),
        (((0, 0, 0), (1, 2, 3)), ("background", "foreground")),
        (((9, 9, 9), (1, 2, 3)), ("#010203", "#090909")),
    ],
)
def test_classes_without_given_names_are_named_by_their_values(values, names):
    assert resolve_classes(dict.fromkeys(values, 1), (), None).names == names


@pytest.mark.parametrize(
    ("found", "classes", "ignore", "reason"),
    [
        ({0, 1}, None, "11", r"--ignore-index 11 is in no mask; the masks hold 0, 1"),
        ({0, 1, 2}, None, "1,11", r"--ignore-index 11 is in no mask; the masks hold 0, 1, 2"),
        ({0, 1}, None, "void", "'void' is no mask value"),
        ({0, 1}, None, "#12", "'#12' is no mask value"),
        ({0, 1}, None, "9" * 19, f"'{'9' * 19}' is no mask value; expected a whole number or a color"),
        ({7}, None, None, "all pixels of all masks hold 7: 1 class, expected 2 to 255; are the masks empty"),
        (set(), None, None, "all pixels of all masks hold no data: 0 classes, expected 2 to 255; are the masks empty"),
        ({0, 1}, None, "1", "1 class, "),
        (set(range(1, 257)), None, None, "256 classes"),
    ],
)
def test_values_that_make_no_classes_are_refused(found, classes, ignore, reason):
    with pytest.raises(DataError, match=re.escape(reason)):
        resolve_classes(dict.fromkeys(found, 1), named_classes(classes, (), None), ignore)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_all_ignored_values_become_255(dtype):
    class_map = ClassMap(("a", "b"), (0, 1), 9, joined=((7, 1), (8, IGNORE_INDEX)))
    indices = class_map.encode(np.array([[0, 1, 7, 8, 9]], dtype), "m")
    assert indices.tolist() == [[0, 1, 1, IGNORE_INDEX, IGNORE_INDEX]]


@pytest.mark.parametrize(("value", "dtype"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_mask_is_written_with_the_bits_that_its_values_need(value, dtype, is_first):
    values = (value, 0) if is_first else (0, value)
    mask = ClassMap(("a", "b"), values, None).decode(np.uint8([[0, 1]]))
    assert mask.tolist() == [[*values]]
    assert mask.dtype == dtype


def test_a_value_may_be_255_where_there_are_255_classes():
    values = tuple(range(1, 256))
    class_map = ClassMap(tuple(map(str, values)), values, 0)
    indices = class_map.encode(np.arange(256, dtype=np.uint8)[None], "m")
    assert indices.tolist() == [[IGNORE_INDEX, *range(255)]]


@pytest.mark.parametrize(
    ("values", "mask", "message"),
    [
        ((0, 1, 2), [[0, 37]], "017.png: mask values 37 belong to no class; classes are 0, 1, 2; "),
        ((0, 1), [list(range(12))], "2, 3, 4, 5, 6, 7, 8, 9, ... belong to no class; classes are 0, 1"),
        ((0, 1), [[0, -3, 100_000]], "values -3, 100000 belong"),
        (COLORS, [[(0, 0, 0), (255, 1, 2)]], "#ff0102 belong to no class; classes are #000000, #804080, #8040c8"),
        (COLORS, [[0, 700]], "017.png is a mask of numbers, but the classes are #000000"),
        ((0, 1), [[(1, 2, 3)]], "017.png is a color mask, but the classes are 0, 1"),
    ],
)
def test_an_unknown_value_names_the_file(values, mask, message):
    class_map = ClassMap(tuple(map(str, values)), tuple(values), None)
    pixels = np.array(mask, np.int64 if np.ndim(mask) == 2 else np.uint8)
    with pytest.raises(DataError, match=re.escape(message)):
        class_map.encode(read_mask(pixels, "m"), "017.png")


def test_a_class_map_is_kept_with_a_model_and_one_without_classes_has_numbers_for_names():
    joined = ClassMap(("a", "b"), (3, 5), 9, joined=((7, 1), (8, IGNORE_INDEX), (6, IGNORE_INDEX)), outside=0)
    assert ClassMap.from_preprocess(Preprocess(**joined.to_preprocess()), 2) == joined
    assert ClassMap.from_preprocess(Preprocess(), 3) == ClassMap(("0", "1", "2"), (0, 1, 2), None)


@pytest.mark.parametrize(
    ("names", "values", "background"),
    [
        (("a", "Background"), (0, 1), 1),
        (("a", "_background_"), (0, 1), 1),
        (("a", "backgrounds"), (0, 1), None),  # somebody has named the value 0
        (("1", "0"), (1, 0), 1),
        (("#ffffff", "#000000"), ((255, 255, 255), (0, 0, 0)), 1),
    ],
)
def test_the_background_is_called_so_or_is_the_value_0_without_a_name(names, values, background):
    assert ClassMap(names, values, None).background == background


@pytest.mark.parametrize(
    ("values", "unwritable"),
    [((-1, 5), "-1"), ((5, -1), "-1"), ((0, 65536), "65536")],
)
def test_values_that_a_png_does_not_hold_are_a_one_line_error(values, unwritable):
    line = f"mask values {unwritable} cannot be written: a PNG mask holds 0 to 65535"
    with pytest.raises(DataError, match=line):
        ClassMap(("a", "b"), values, None).decode(np.uint8([[0, 1]]))


@pytest.mark.parametrize(
    ("classes", "outside", "index"),
    [
        ([(0, "sky"), (1, "land")], "background", None),
        ([(0, "sky"), (1, "land")], "ignore", 255),
        ([(1, "land"), (0, "background")], "background", 1),
        ([(1, "land"), (0, "_Background_")], "background", 1),
    ],
    ids=["no background", "ignored", "background", "another background"],
)
def test_other_values_are_mistakes_where_no_class_is_the_background(classes, outside, index):
    assert resolve_classes({0: 1, 1: 1}, classes, None, outside).outside == index
