"""Names of classes: read from a flag or a file, chosen by name, and a background among them."""

import json
import re

import pytest

from data_utils.class_names import named_classes, parse_classes
from runtime.errors import DataError

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
        (None, FILE_CLASSES, None, [*FILE_CLASSES]),
        (None, FILE_CLASSES, "background", [*FILE_CLASSES]),
        (None, FILE_CLASSES, "ignore", [(3, "a"), (7, "b")]),
    ],
)
def test_a_background_is_added_to_named_classes_where_one_may_be(flag, file_classes, outside, classes):
    assert list(named_classes(flag, file_classes, outside)) == classes


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
        ("0=background, 255 = car, ,", [(0, "background"), (255, "car")]),
        ("#804080=road,#00FF00=a b", [((128, 64, 128), "road"), ((0, 255, 0), "a b")]),
    ],
)
def test_classes_are_read_from_a_line(line, classes):
    assert parse_classes(line) == classes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0=a,0=b", "class value 0 is given twice"),
        ("0=a,1=", "class 1 has no name"),
        ("a=0", "'a' is no mask value"),
        ("#12345=a", "'#12345' is no mask value"),
        ("0=a,#000001=b", "mix numbers and colors"),
        ("nowhere.json", "nowhere.json"),
        ("car,road", "'car' is no mask value"),
        ('{"0": "a", "0": "b"}', "class value 0 is given twice"),
        ('{"0": 1}', "expected"),
        ('["a", 2]', "expected"),
        ("{", "neither VALUE=NAME"),
    ],
)
def test_a_mistake_in_a_line_or_a_file_of_classes_is_one_clear_line(tmp_path, text, reason):
    file = tmp_path / "classes.json"
    file.write_text(text)
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        parse_classes(str(file) if text[0] in "{[" else text)
    assert "\n" not in str(error.value)
