"""Classes: which values are theirs, what they are called, and masks as their indices.

Modules: data_utils/class_map.py, data_utils/class_names.py, data_utils/mask_values.py, data_utils/invented_values.py.
"""

import json
import pickle
import re

import numpy as np
import pytest

from data_utils.class_map import ClassMap, _table, resolve_classes
from data_utils.class_names import classes_example, holds_names, named_classes, parse_classes
from data_utils.image_io.reader import read_mask
from data_utils.invented_values import describe_invented
from data_utils.mask_values import as_color, as_grey, is_run, key_of, parse_values, unpack
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess

COLORS = ((0, 0, 0), (128, 64, 128), (128, 64, 200))


RESOLVED = [
    ({0, 1, 2}, None, (0, 1, 2), None),
    ({0, 1, 255}, None, (0, 1), 255),
    ({0, 1, 2, 3, 255}, None, (0, 1, 2, 3), 255),
    ({0, 255}, None, (0, 255), None),
    ({0, 128, 255}, None, (0, 128, 255), None),
    ({1, 2, 255}, None, (1, 2, 255), None),
    ({0, 1, 11}, "11", (0, 1), 11),
    ({0, 1, 255}, "0", (1, 255), 0),
    ({-1, 0, 1}, "-1", (0, 1), -1),
    (set(COLORS), None, COLORS, None),
    (set(COLORS), "#000000", COLORS[1:], (0, 0, 0)),
]


@pytest.mark.parametrize(("found", "ignore", "values", "ignore_value"), RESOLVED)
def test_found_values_become_classes(found, ignore, values, ignore_value):
    class_map = resolve_classes(dict.fromkeys(found, 1), (), ignore)
    assert class_map.values == values
    assert class_map.ignore_value == ignore_value


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((0, 255), ("background", "foreground")),
        ((1, 2), ("1", "2")),
        ((0, 7, 9), ("0", "7", "9")),
        (COLORS, ("#000000", "#804080", "#8040c8")),
        (((0, 0, 0), (1, 2, 3)), ("background", "foreground")),
        (((9, 9, 9), (1, 2, 3)), ("#010203", "#090909")),
    ],
)
def test_classes_without_given_names_are_named_by_their_values(values, names):
    assert resolve_classes(dict.fromkeys(values, 1), (), None).names == names


def test_given_classes_keep_their_order_and_may_be_absent():
    class_map = resolve_classes({0: 5, 255: 5}, parse_classes("255=car, 0=road,7=rare"), None)
    assert class_map == ClassMap(("car", "road", "rare"), (255, 0, 7), None)


def test_a_value_of_a_name_that_stands_before_joins_its_class():
    class_map = resolve_classes({1: 5, 2: 5, 3: 5}, parse_classes("1=car,2=road,3=car"), None)
    assert class_map == ClassMap(("car", "road"), (1, 2), None, joined=((3, 0),))


def test_another_ignored_value_leaves_255_as_it_is():
    class_map = resolve_classes({0: 1, 1: 1, 9: 1, 255: 1}, parse_classes("0=a,1=b"), "9")
    assert class_map.ignore_value == 9
    assert class_map.joined == ()
    assert class_map.index_of(255) is None


FILE_CLASSES = ((3, "a"), (5, "Background"), (7, "b"))


@pytest.mark.parametrize(
    ("flag", "file_classes", "outside", "classes"),
    [
        ("1=a,2=b", (), "ignore", [(1, "a"), (2, "b")]),
        ("1=a,2=b", FILE_CLASSES, "background", [(0, "background"), (1, "a"), (2, "b")]),
        ("1=a,2=background", (), "background", [(1, "a"), (2, "background")]),
        ("a,b", ((0, "a"), (1, "b")), None, [(0, "a"), (1, "b")]),  # no value is left for a background
        ("b", FILE_CLASSES, None, [(5, "Background"), (7, "b")]),
        ("b,Background", FILE_CLASSES, None, [(7, "b"), (5, "Background")]),
        ("b", (*FILE_CLASSES, (9, "background")), None, [(5, "Background"), (7, "b")]),  # the first of two
        ("b", FILE_CLASSES, "ignore", [(5, "Background"), (7, "b")]),
        ("b", FILE_CLASSES[::2], None, [(0, "background"), (7, "b")]),
        ("b", FILE_CLASSES[::2], "ignore", [(7, "b")]),
    ],
)
def test_a_background_is_added_to_named_classes_where_one_may_be(flag, file_classes, outside, classes):
    assert list(named_classes(flag, file_classes, outside)) == classes


@pytest.mark.parametrize("outside", ["ignore", "background"])
def test_without_classes_nothing_is_outside_of_them(outside):
    with pytest.raises(DataError, match=f"--outside {outside} needs --classes"):
        named_classes(None, (), outside)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [(None, False), ("", False), ("car", True), ("car,dog", True), ("0=car", False), ("classes.json", False)],
)
def test_a_flag_holds_names_unless_it_holds_values_or_a_file(flag, expected):
    assert holds_names(flag) is expected


def test_given_classes_leave_255_ignored_where_masks_hold_them():
    assert resolve_classes({0: 1, 9: 1, 255: 1}, parse_classes("0=a,9=b"), None).ignore_value == 255


def test_given_classes_of_which_masks_hold_one_make_255_a_mistake():
    """It is the other class under a wrong name."""
    assert resolve_classes({0: 1, 255: 1}, parse_classes("0=a,9=b"), None).ignore_value is None


def test_a_given_class_that_is_ignored_is_none():
    with_void = resolve_classes({0: 1, 9: 1, 11: 1}, parse_classes("0=a,9=b,11=void"), "11")
    assert with_void == ClassMap(("a", "b"), (0, 9), 11)


def test_an_ignored_value_may_be_absent_where_classes_are_given():
    assert resolve_classes({0: 1, 9: 1}, parse_classes("0=a,9=b"), "77").ignore_value == 77


@pytest.mark.parametrize(
    ("found", "classes", "values"),
    [
        ((0, 255), "#000000=road,#ffffff=car", (0, 255)),
        ((0, 200), "#000000=road,#c80000=car", ((0, 0, 0), (200, 0, 0))),
        (((0, 0, 0), (255, 255, 255), (1, 2, 3)), "#000000=road,#ffffff=car", ((0, 0, 0), (255, 255, 255))),
    ],
    ids=["greys", "greys and another color", "colors"],
)
def test_classes_named_by_color_have_the_values_of_the_masks(found, classes, values):
    assert resolve_classes(dict.fromkeys(found, 1), parse_classes(classes), None).values == values


@pytest.mark.parametrize(
    ("found", "classes", "ignore", "reason"),
    [
        ({0, 1}, None, "11", r"--ignore-index 11 is in no mask; the masks hold 0, 1"),
        ({0, 1, 2}, None, "1,11", r"--ignore-index 11 is in no mask; the masks hold 0, 1, 2"),
        ({0, 1}, None, "void", "'void' is no mask value"),
        ({0, 1}, None, "#12", "'#12' is no mask value"),
        ({7}, None, None, "all pixels of all masks hold 7: 1 class, expected 2 to 255; are the masks empty"),
        (set(), None, None, "0 classes"),
        ({0, 1}, None, "1", "1 classes"),
        (set(range(1, 257)), None, None, "256 classes"),
        ({0}, "0=a", None, "1 classes"),
    ],
)
def test_values_that_make_no_classes_are_refused(found, classes, ignore, reason):
    with pytest.raises(DataError, match=re.escape(reason)):
        resolve_classes(dict.fromkeys(found, 1), named_classes(classes, (), None), ignore)


@pytest.mark.parametrize(
    ("content", "pairs"),
    [
        ({"0": "background", "11": "void"}, [(0, "background"), (11, "void")]),
        ({"#804080": "road", "#000000": "rest"}, [((128, 64, 128), "road"), ((0, 0, 0), "rest")]),
        (["sky", "road", "Straße"], [(0, "sky"), (1, "road"), (2, "Straße")]),
    ],
)
def test_classes_are_read_from_json(tmp_path, content, pairs):
    path = tmp_path / "a=b, c.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert parse_classes(str(path)) == pairs


@pytest.mark.parametrize(
    ("line", "classes"),
    [
        ("0=background, 255 = car,", [(0, "background"), (255, "car")]),
        ("#804080=road,#00FF00=a b", [((128, 64, 128), "road"), ((0, 255, 0), "a b")]),
    ],
)
def test_classes_are_read_from_a_line(line, classes):
    assert parse_classes(line) == classes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0=a,0=b", "class value 0 is given twice"),
        ("#ffffff=a,#FFFFFF=b", "class value #ffffff is given twice"),
        ("0=a,1=", "class 1 has no name"),
        ("0=a,1", "class 1 has no name"),
        ("a=0", "'a' is no mask value"),
        ("1.5=a", "'1.5' is no mask value"),
        ("#12345=a", "'#12345' is no mask value"),
        ("0=a,#000001=b", "mix numbers and colors"),
        ("0=a,1=b,#000001=c", "mix numbers and colors"),
        ("nowhere.json", "nowhere.json"),
        ("car,road", "'car' is no mask value"),
    ],
)
def test_a_mistake_in_a_line_of_classes_is_one_clear_line(text, reason):
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        parse_classes(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"0": "a", "0": "b"}', "class value 0 is given twice"),
        ('{"0": 1}', "expected"),
        ("[1, 2]", "expected"),
        ("3", "expected"),
        ('"road"', "expected"),
        ("{", "neither VALUE=NAME"),
    ],
)
def test_a_mistake_in_a_file_of_classes_is_one_clear_line(tmp_path, content, reason):
    file = tmp_path / "classes.json"
    file.write_text(content)
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        parse_classes(str(file))
    assert "\n" not in str(error.value)


def test_an_ignored_number_becomes_255():
    indices = ClassMap(("a", "b"), (0, 1), 11).encode(np.uint8([[0, 11], [11, 1]]), "m")
    assert indices.tolist() == [[0, IGNORE_INDEX], [IGNORE_INDEX, 1]]


def test_an_ignored_color_becomes_255():
    indices = ClassMap(("a", "b"), COLORS[1:], (0, 0, 0)).encode(np.uint8([[COLORS[2], (0, 0, 0)]]), "m")
    assert indices.tolist() == [[1, IGNORE_INDEX]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_all_ignored_values_become_255(dtype):
    class_map = ClassMap(("a", "b"), (0, 1), 9, joined=((7, 1), (8, IGNORE_INDEX)))
    indices = class_map.encode(np.array([[0, 1, 7, 8, 9]], dtype), "m")
    assert indices.tolist() == [[0, 1, 1, IGNORE_INDEX, IGNORE_INDEX]]


@pytest.mark.parametrize(("ignore_value", "ignored"), [(9, (9, 8)), (None, (8,))])
def test_ignored_values_are_the_one_of_the_flag_before_those_that_join_it(ignore_value, ignored):
    class_map = ClassMap(("a", "b"), (0, 1), ignore_value, joined=((7, 1), (8, IGNORE_INDEX)))
    assert class_map.ignored_values == ignored


def test_several_ignored_values_join_the_first():
    class_map = resolve_classes(dict.fromkeys((0, 1, 8, 9), 1), (), "9,8")
    assert class_map.values == (0, 1)
    assert class_map.ignore_value == 9
    assert class_map.joined == ((8, IGNORE_INDEX),)


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
        ((0, 1), [[0, 700]], "values 700 belong"),
        ((0, 1), [[0, -3, 100_000]], "values -3, 100000 belong"),
        (COLORS, [[(0, 0, 0), (255, 1, 2)]], "#ff0102 belong to no class; classes are #000000, #804080, #8040c8"),
        (COLORS, [[0, 3]], "values #030303 belong"),
        (COLORS, [[0, 700]], "017.png is a mask of numbers, but the classes are #000000"),
        (((0, 0, 0), (300, 0, 0)), [[(255, 255, 255)]], "values #ffffff belong"),
        ((0, 1), [[(1, 2, 3)]], "017.png is a color mask, but the classes are 0, 1"),
    ],
)
def test_an_unknown_value_names_the_file(values, mask, message):
    class_map = ClassMap(tuple(map(str, values)), tuple(values), None)
    pixels = np.array(mask, np.int64 if np.ndim(mask) == 2 else np.uint8)
    with pytest.raises(DataError, match=re.escape(message)):
        class_map.encode(read_mask(pixels, "m"), "017.png")


def test_a_class_map_is_small_for_loader_processes_after_encoding():
    class_map = ClassMap(("a", "b", "c"), COLORS, None)
    class_map.encode(np.uint8([COLORS]), "m")
    assert len(pickle.dumps(class_map)) < 1000
    assert _table.cache_info().currsize > 0


@pytest.fixture
def joined() -> ClassMap:
    """A class map with a value of each kind: of a class, of a class of several, ignored ones, and all others."""
    return ClassMap(("a", "b"), (3, 5), 9, joined=((7, 1), (8, IGNORE_INDEX), (6, IGNORE_INDEX)), outside=0)


def test_a_class_map_is_kept_with_a_model(joined):
    assert ClassMap.of_model(Preprocess(**joined.to_preprocess()), 2) == joined
    assert len(joined) == 2


def test_a_model_without_classes_has_numbers_for_names():
    assert ClassMap.of_model(Preprocess(), 3) == ClassMap(("0", "1", "2"), (0, 1, 2), None)


def test_a_model_without_names_has_values_for_names():
    assert ClassMap.of_model(Preprocess(class_values=(5, 7)), 2).names == ("5", "7")


def test_values_are_described_by_class(joined):
    assert joined.values_by_class() == [[3], [5, 7]]
    assert joined.describe_values() == ["3", "5 and 7", "ignored: [8, 6]", "others: 0"]
    assert ClassMap(("a", "b"), (3, 5), 9).describe_values() == ["3", "5"]


@pytest.mark.parametrize(("value", "index"), [(3, 0), (5, 1), (7, 1), (8, IGNORE_INDEX), (9, IGNORE_INDEX), (4, 0)])
def test_an_index_is_that_of_the_class_of_a_value(joined, value, index):
    assert joined.index_of(value) == index


@pytest.mark.parametrize(("value", "index"), [(0, 0), (COLORS[1], 1), (9, 1), ((1, 2, 3), None)])
def test_an_index_is_that_of_the_class_of_a_color(value, index):
    colors = ClassMap(("a", "b"), COLORS[:2], None, joined=(((9, 9, 9), 1),))
    assert colors.index_of(value) == index


@pytest.mark.parametrize(
    ("names", "values", "background"),
    [
        (("a", "Background"), (0, 1), 1),
        (("a", "_background_"), (0, 1), 1),
        (("a", "__background__"), (0, 1), 1),
        (("a", "backgrounds"), (0, 1), None),  # somebody has named the value 0
        (("1", "0"), (1, 0), 1),
        (("1", "2"), (1, 2), None),
        (("#ffffff", "#000000"), ((255, 255, 255), (0, 0, 0)), 1),
    ],
)
def test_the_background_is_called_so_or_is_the_value_0_without_a_name(names, values, background):
    assert ClassMap(names, values, None).background == background


@pytest.mark.parametrize(
    ("values", "limits"),
    [((-1, 5), "-1 to 5"), ((5, -1), "-1 to 5"), ((0, 65536), "0 to 65536"), ((65536, 0), "0 to ")],
)
def test_values_that_a_png_does_not_hold_are_one_line(values, limits):
    line = f"mask values {limits}.*cannot be written: a PNG mask holds 0 to 65535"
    with pytest.raises(DataError, match=line):
        ClassMap(("a", "b"), values, None).decode(np.uint8([[0, 1]]))


@pytest.mark.parametrize(("value", "grey"), [((7, 7, 7), 7), ((7, 7, 8), (7, 7, 8)), (7, 7)])
def test_a_grey_color_is_a_grey_value(value, grey):
    assert as_grey(value) == grey


@pytest.mark.parametrize(("value", "color"), [(7, (7, 7, 7)), ((1, 2, 3), (1, 2, 3))])
def test_a_grey_value_is_a_grey_color(value, color):
    assert as_color(value) == color


@pytest.mark.parametrize(
    ("value", "key"),
    [(7, 7), ((1, 2, 3), 0x030201), ((255, 0, 254), 0xFE00FF), ((256, 0, 0), -1), ((0, -1, 0), -1)],
)
def test_a_key_packs_a_color_into_a_number(value, key):
    assert key_of(value) == key


def test_a_color_is_unpacked_from_its_key():
    assert unpack(0x030201) == (1, 2, 3)


@pytest.mark.parametrize(
    ("values", "example"),
    [
        ([0, 7], "0=background,7=foreground"),
        ([(0, 0, 0), (9, 9, 9), (1, 2, 3)], "#000000=background,#090909=class1,#010203=class2"),
    ],
)
def test_an_example_of_the_flag_names_the_values(values, example):
    assert classes_example(values) == example


@pytest.mark.parametrize(
    ("text", "values"),
    [(None, []), ("", []), ("-3, #0102ff", [-3, (1, 2, 255)]), ("9" * 18, [10**18 - 1])],
)
def test_values_are_read_from_a_line(text, values):
    assert parse_values(text) == values


def test_a_value_of_19_digits_is_refused():
    with pytest.raises(DataError, match=f"'{'9' * 19}' is no mask value; expected a whole number or a color"):
        parse_values("9" * 19)


@pytest.mark.parametrize(
    ("pixels", "beginning"),
    [
        ({0: 30, 9: 30} | dict.fromkeys(range(10, 20), 4), "60.0% of the pixels hold 0, 9; the others"),
        ({0: 300, 9: 290} | dict.fromkeys(range(10, 20), 41), "63.1% of the pixels hold 0, 9, 10; the others"),
        ({0: 97, 9: 2, 10: 1}, "99.0% of the pixels hold 0, 9;"),
        ({0: 57, 9: 38, 1: 5}, "100.0% of the pixels hold 0, 1, 9;"),
        ({0: 57, 9: 39, 1: 4}, "96.0% of the pixels hold 0, 9;"),
    ],
    ids=["two of many", "three of many", "at least two", "a twentieth", "less than a twentieth"],
)
def test_values_of_few_pixels_may_be_invented(pixels, beginning):
    assert describe_invented(pixels).startswith(beginning)


def test_values_that_may_be_invented_are_listed_by_a_command():
    text = describe_invented({0: 57, 9: 39, 1: 4})
    assert "--check-data --classes 0=background,9=foreground lists" in text


@pytest.mark.parametrize("pixels", [dict.fromkeys(range(20), 5), {0: 5}], ids=["alike", "alone"])
def test_values_of_as_many_pixels_are_not_invented(pixels):
    assert describe_invented(pixels) is None


@pytest.mark.parametrize(
    ("classes", "outside", "index"),
    [
        ([(0, "sky"), (1, "land")], "background", None),
        ([(0, "sky"), (1, "land")], "ignore", 255),
        ([(1, "land"), (0, "background")], "background", 1),
    ],
    ids=["no background", "ignored", "background"],
)
def test_other_values_are_mistakes_where_no_class_is_the_background(classes, outside, index):
    assert resolve_classes({0: 1, 1: 1}, classes, None, outside).outside == index


def test_32_scattered_grey_values_are_classes():
    assert len(resolve_classes({7 * value: 10 for value in range(32)}, (), None)) == 32


def test_33_scattered_grey_values_are_no_classes():
    message = r"the masks hold 33 grey values, 0, 7, 14, 21, 28, 35, 42, 49, \.\.\.: smoothed"
    with pytest.raises(DataError, match=message):
        resolve_classes({7 * value: 10 for value in range(33)}, (), None)


def test_many_scattered_grey_values_with_white_are_no_classes():
    smoothed = dict.fromkeys([*range(0, 250, 5), 255], 10)
    with pytest.raises(DataError, match="smoothed edges or lossy compression"):
        resolve_classes(smoothed, (), None)


@pytest.mark.parametrize(
    "values", [range(151), [(value, 0, 0) for value in range(40)]], ids=["numbers in a row", "colors"]
)
def test_many_values_are_classes_unless_they_are_scattered_greys(values):
    assert len(resolve_classes(dict.fromkeys(values, 10), (), None)) == len(values)


def test_a_data_set_has_at_most_255_classes():
    assert len(resolve_classes(dict.fromkeys(range(1, 256), 9), (), None)) == 255
    with pytest.raises(DataError, match="256 classes, expected 2 to 255; the masks hold 1, 2, 3"):
        resolve_classes(dict.fromkeys(range(1, 257), 9), (), None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((2, 0, 1), True), ((0, 1, 255), True), ((0, 2), False), ((1, 2), False), ((0, 1, 254), False)],
)
def test_numbers_are_a_run_from_0_on_whether_or_not_some_are_ignored(values, expected):
    assert is_run(values) is expected
