"""JSON and YAML of others: whatever is in them, a value or one ValueError, and soon."""

import csv
import io
import json
import os
import time

import pytest

from runtime.documents import (
    parse_csv,
    parse_json,
    read_bytes,
    read_json,
    read_yaml,
    write_row,
)

DAMAGED = {
    "empty": b"",
    "nested": b"[" * 100_000,
    "nested a little": b"[" * 100 + b"]" * 100,
    "objects": b'{"a":' * 100 + b"1" + b"}" * 100,
    "nested before what is not": b'{"a": ' + b"[" * 100 + b"]" * 100 + b', "b": [[]]}',
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "digits that Python takes": b'{"a": ' + b"9" * 400 + b"}",
    "half a character": rb'{"a": "\ud800"}',
    "another half in capitals": rb'{"a": "\uDFFF"}',
    "half a character as bytes": b'{"a": "\xed\xa0\x80"}',
    "not UTF-8": b'{"a": "\xff"}',
    "half of UTF-16": '{"a": 1}'.encode("utf-16")[:-1],
    "another root": b"[1]",
    "a number": b"1",
    "cut": b'{"a": 1',
    "NUL": b'{"a": 1}\0',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_json_that_cannot_be_used_is_a_value_error(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_in_any_encoding_is_read(encoding):
    assert parse_json('{"é😀": [1.5, 7]}'.encode(encoding)) == {"é😀": [1.5, 7]}


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


def test_yaml_may_be_sixty_four_levels_deep(tmp_path):
    (tmp_path / "a.yaml").write_text(nested(64))
    assert json.dumps(read_yaml(tmp_path / "a.yaml", list)) == nested(64).replace("1", '"1"')
    (tmp_path / "a.yaml").write_text(nested(65))
    with pytest.raises(ValueError, match="it is nested deeper than 64 levels"):
        read_yaml(tmp_path / "a.yaml", list)


def test_numbers_may_have_three_hundred_digits():
    assert parse_json(f'{{"a": {"9" * 300}}}') == {"a": 10**300 - 1}
    with pytest.raises(ValueError, match="it has a number of 301 digits"):
        parse_json(f'{{"a": {"9" * 301}}}')


def test_keys_that_stand_twice_are_kept_as_pairs():
    assert parse_json('{"0": "a", "0": "b"}', (list, tuple), as_pairs=True) == (("0", "a"), ("0", "b"))


YAML = {
    "empty": "",
    "nested": "[" * 500,
    "nested a little": "[" * 80 + "]" * 80,
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "itself": "a: &a [*a]\n",
    "an alias of an object": "a: &a {x: 1}\nb: *a\n",
    "a list as a key": "{[1]: 2}",
    "half a character": r'a: "\ud800"',
    "another root": "- 1",
}


@pytest.mark.parametrize("content", YAML.values(), ids=YAML)
def test_yaml_that_cannot_be_used_is_a_value_error_at_once(tmp_path, content):
    (tmp_path / "a.yaml").write_text(content)
    begin = time.process_time()
    with pytest.raises(ValueError):
        read_yaml(tmp_path / "a.yaml")
    assert time.process_time() - begin < 5


def test_yaml_of_a_data_set_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("path: .\nversion: 1.10\nnames:\n  0: no\n  1: é\n", encoding="utf-8")
    assert read_yaml(tmp_path / "a.yaml") == {"path": ".", "version": "1.10", "names": {"0": "no", "1": "é"}}


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("read", "limit"),
    [(read_bytes, 67_108_864), (read_json, 67_108_864), (read_yaml, 1_048_576)],
    ids=["bytes", "JSON", "YAML"],
)
def test_a_large_file_is_not_read(tmp_path, read, limit):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(limit + 1)
    with pytest.raises(ValueError, match=f"it has {limit + 1:,} bytes, more than {limit:,}"):
        read(tmp_path / "large")


@pytest.mark.parametrize(
    ("root", "line"),
    [
        (dict, "it holds a str, expected an object"),
        (list, "it holds a str, expected a list"),
        ((list, dict), "it holds a str, expected a list"),
    ],
)
@pytest.mark.parametrize("read", [read_json, read_yaml], ids=["JSON", "YAML"])
def test_a_file_that_holds_something_else_is_told_what_was_expected(tmp_path, root, line, read):
    (tmp_path / "a").write_text('"1"')
    with pytest.raises(ValueError, match=f"^{line}$"):
        read(tmp_path / "a", root)


NAMES = [
    "a\rb",
    "a\nb",
    'a"b,c',
    "=1+1",
    "+a",
    "-a",
    "@a",
    "\ta",
    "\ra",
    "'=a",
    "''=a",
    "'a",
    "\uff1da",
    "",
    "-1.5",
    "+3",
    "1e5",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_gives_names_back_and_begins_no_cell_as_a_formula(name):
    text = io.StringIO()
    for cells in (["name", "number"], [name, -1.5]):
        write_row(text, cells)
    assert list(parse_csv(text.getvalue())) == [(1, ["name", "number"]), (2, [name, "-1.5"])]
    (shown, number) = list(csv.reader(io.StringIO(text.getvalue(), newline="")))[1]
    assert number == "-1.5"
    assert shown in ("", "-1.5", "+3") or shown[0] not in "=+-@\t\r\n\uff1d"
