"""The files classes.csv and classes.txt: the forms that they may have, and mistakes in them.

Modules: data_utils/sources/class_lists.py.
"""

from pathlib import Path

import pytest
from support.partly_labeled import banded_info, labels_by_name, write_bands

from data_utils.sources.class_lists import Row, Table, read_table
from runtime.errors import DataError


@pytest.fixture(scope="module")
def pages_and_files():
    """A table whose rows speak of images, and of pages of files."""
    table = Table(Path("/data/classes.csv"), {})
    keys = ("a", "left/b", "stack_0002", "right/stack_0003", "images/s/t_0004", "deck_0001", "deck")
    for line, key in enumerate(keys, start=2):
        table.rows[key] = Row(line, f"{key}.tif", frozenset())
    return table


@pytest.mark.parametrize(
    ("image", "name", "line"),
    [
        ("/data/images/a.png", "images/a.png", 2),
        ("/data/left/b.png", "left/b.png", 3),
        ("/data/images/stack.tif", "images/stack_0002.tif", 4),
        ("/data/right/stack.tif", "stack_0003", 5),
        ("/data/images/s/t.tif", "s/t_0004.tif", 6),
        ("/data/images/deck.tif", "deck_0001.tif", 8),  # a row of the file comes before one of a page
    ],
)
def test_a_row_speaks_of_an_image_or_of_a_page_of_a_file(pages_and_files, image, name, line):
    assert pages_and_files.find(image, name).line == line


@pytest.mark.parametrize(
    ("image", "name"), [("/data/right/b.png", "right/b.png"), ("/data/left/stack.tif", "stack_0003")]
)
def test_a_row_does_not_speak_of_an_image_in_another_folder(pages_and_files, image, name):
    assert pages_and_files.find(image, name) is None


LISTS = {
    "names in a cell": "image,classes\na.png,car\nb.png,dog;person\nc.png,\n",
    "other separators": "image,classes\na.png,car\nb.png,dog|person\nc.png\n",
    "names in cells": "image,classes\na.png,car\nb.png,dog,person\nc.png,\n",
    "quoted": 'image,classes\n"a.png","car"\n"b.png","dog,person"\n"c.png",""\n',
    "from a spreadsheet": "\ufeffImage;Classes;;\r\na.png;car;\r\nb.png;dog, person;\r\nc.png;;\r\n\r\n;;\r\n",
    "tabs": "image\tclasses\na\tcar\nb\tdog\tperson\nc\n",
    "columns": "image,car,dog,person\na,1,0,0\nb,0,1,1\nc,0,0,0\n",
    "columns with words": "Filename,person,dog,car,\na.png,no,No,YES,\n./b.png,x,True\nc.png,,,\n",
    "other words": "image,car,dog,person\na,true,0.0,n\nb,-,y,1.0\nc,false,N,No\n",
    "titles in quotes": '"file","labels"\n"a.png","car"\n"b.png","dog,person"\n"c.png",""\n',
    "from Windows": "image,classes\nimages\\a.png,car\nimages\\b.png,dog;person\nimages\\c.png,\n",
    "without endings": "image,classes\nimages/a,car\nimages/b,person;dog;dog\nc,\n",
}


NAMES_WITH_FOLDERS = {"from Windows", "without endings"}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_table_lists_classes_in_one_column_or_in_one_for_each(tmp_path, text):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_text(text, encoding="utf-8")
    assert labels_by_name(folder) == {"a.png": ("car",), "b.png": ("dog", "person"), "c.png": ()}


@pytest.mark.parametrize("form", sorted(LISTS.keys() - NAMES_WITH_FOLDERS))
def test_a_table_may_lie_among_the_images(tmp_path, form):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "images" / "classes.csv").write_text(LISTS[form], encoding="utf-8")
    data = banded_info(folder)
    classes_of_image = {}
    for split in (data.train, data.val):
        for i in range(len(split)):
            classes_of_image[split.records.name(i)] = [*data.reader.labeled_classes(split.records.label_set(i))]
    assert classes_of_image == {"a.png": [1], "b.png": [2, 3], "c.png": []}


HOSTILE = {
    "empty": (b"", "its first line is '', expected image,classes"),
    "another table": (b"name,r,g,b\ncar,1,2,3\n", "its first line is 'name,r,g,b', expected image,classes"),
    "another first column": (b"class,value\ncar,1\n", "its first line is 'class,value', expected image,classes"),
    "no classes": (b"image\na.png\n", "its first line is 'image' alone"),
    "no classes behind a comma": (b"image,\na.png,\n", "its first line is 'image' alone"),
    "no rows": (b"image,classes\n", "names no image"),
    "no name": (b"image,classes\n,car\n", "line 2 names no image"),
    "spaces alone": (b"image,classes\n , \na,car\n", "line 2 names no image"),
    "twice": (b"image,classes\na.png,car\n\na,dog\n", "lines 2 and 4 both speak of 'a'"),
    "a column twice": (b"image,car,car\na,1,1\n", "column 3 is called 'car'"),
    "a column of the name of the first": (b"image,image\na,1\n", "column 2 is called 'image'"),
    "a column without name": (b"image,,car\na,1,1\n", "column 2 is called ''"),
    "another value": (b"image,car,dog\na,1,maybe\n", "line 2 has 'maybe' for dog, expected 1 or 0"),
    "a long row": (b"image,car,dog\na,1,1,1\n", "line 2 has 4 cells, the first line 3"),
    "no image": (b"image,classes\na,car\nimg_b.png,car\n", "names images that are not there: line 3: 'img_b.png'"),
    "a mistyped image": (b"image,classes\nimage/a,car\n", "line 2: 'image/a'; did you mean images/a?"),
    "two other images": (b"image,classes\nimage/a,car\nx,car\n", "line 3: 'x'; did you mean images/a?"),
    "no images": (
        b"image,classes\n1,car\n" + b"x" * 81 + b",car\n3,car\n4,car\n",
        f"names images that are not there: line 2: '1'; line 3: {'x' * 80!r}; line 4: '3'; ...",
    ),
    "a row of two lines": (b'image,classes\na,"car\n"\nb,car\nb,car\n', "lines 4 and 5 both speak of 'b'"),
    "an open quote": (b'image,classes\na,"car\n', "is no table (line 2: "),
    "a long cell": (b"image,classes\na," + b"x" * 200_000 + b"\n", "is no table (line 2: field larger"),
    "bytes": (b"image,classes\n\xff\xfe,car\n", "cannot be read as text"),
    "half a character": (b"image,classes\n\xed\xa0\x80,car\n", "cannot be read as text"),
    "zeros": (b"image,classes\n" + b"\0" * 40 + b"\n", ""),
    "up": (b"image,classes\n../../etc/passwd,car\n", "names images that are not there: line 2: '../../etc/passwd'"),
    "an unknown class": (b"image,classes\na,car;dgo\n", "line 2: no class is called 'dgo'; the classes are background"),
    "an unknown column": (b"image,car,cat\na,1,1\n", "no class is called 'cat'; the classes are background, car"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_table_that_cannot_be_understood_is_a_one_line_error(tmp_path, content, message):
    folder = write_bands(tmp_path, ["a", "b", "c"])
    (folder / "classes.csv").write_bytes(content)
    with pytest.raises(DataError) as raised:
        banded_info(folder)
    text = str(raised.value)
    assert message in text
    assert "classes.csv" in text
    assert "\n" not in text
    assert len(text) < 500


@pytest.fixture
def two_folders(tmp_path):
    """A folder with two images of the same name in two folders."""
    return write_bands(tmp_path / "data", ["x/a", "y/a", "b"])


def test_a_row_that_speaks_of_two_images_is_refused(two_folders):
    (two_folders / "classes.csv").write_text("image,classes\na,car\n")
    with pytest.raises(DataError, match=r"line 2: 'a' is the name of .*x/a.png and of .*y/a.png; write the folder too"):
        labels_by_name(two_folders)


def test_two_tables_of_the_same_images_are_refused(two_folders):
    (two_folders / "classes.csv").write_text("image,classes\na,car\n")
    inner = two_folders / "images" / "classes.csv"
    inner.write_text("image,classes\nx/a,car\n")
    line = f"^{inner} and {two_folders / 'classes.csv'} speak of the same images; keep one$"
    with pytest.raises(DataError, match=line):
        labels_by_name(two_folders)


def test_names_in_a_table_match_however_their_accents_are_stored(tmp_path):
    (tmp_path / "classes.csv").write_text("image,car\ne\u0301.png,1\n", encoding="utf-8")
    assert read_table(tmp_path / "classes.csv").find(str(tmp_path / "images" / "\u00e9.png"), "\u00e9.png") is not None
