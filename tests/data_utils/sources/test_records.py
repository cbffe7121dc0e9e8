"""Records of a data set: some of them, and parts of them; names, paths and keys of those of local files."""

import os
from functools import partial
from pathlib import Path

import numpy as np
from support.data_sets import unnoticed_changes

from data_utils.sources.records import (
    ALL,
    UNLISTED,
    FileRow,
    FileRows,
    ListRows,
    Metadata,
    Record,
    Records,
    change,
    describe,
    divide,
    first_files,
    select,
)


def three_records() -> Records:
    """Records of which the second has a label set and the third is missing in a list."""
    metadata = Metadata(label_sets={("cell",): "a table", (): "another"})
    records = Records(ListRows([{"image": "", "target": "", "name": name} for name in "abc"]), metadata)
    return describe(records, np.array([ALL, 0, UNLISTED]))


def half(record: Record, part: list[int]) -> Record:
    return {**record, "image": f"half {part[0]}", "name": f"{record['name']}{part[0]}"}


def with_target(record: Record) -> Record:
    return {**record, "target": record["name"]}


def test_the_key_of_records_changes_with_all_that_is_made_of_them():
    whole = three_records()
    assert whole.unlisted == ["c"]
    assert whole.digest is None
    whole.rows.digest = "key"
    numbers = np.array([[1], [2], [1]])
    others = [
        select(whole, np.array([2, 1])),
        select(whole, np.array([1, 2])),
        describe(whole, np.array([0, 0, 0])),
        change(whole, "target", with_target),
        divide(whole, np.arange(3), numbers, half),
        divide(whole, np.arange(3), numbers + 1, half),
    ]
    assert len({records.digest for records in (whole, *others)}) == 7


def test_files_may_have_names_that_are_no_text():
    names = [os.fsdecode(name) for name in (b"a/1.png", b"\xff/2.png", b"3.png")]
    rows = FileRows((Path("images"), Path("masks")), [FileRow(name, (name,), (name,)) for name in names], first_files)
    assert [record["name"] for record in Records(rows)] == names
    assert [record["target"] for record in Records(rows)] == [f"masks/{name}" for name in names]
    assert rows.image_folders == {("images", "a"), ("images", os.fsdecode(b"\xff")), ("images", "")}


def test_the_key_changes_with_each_file_and_with_what_is_made_of_them(tmp_path):
    files = [tmp_path / name for name in ("a.png", "b.png", "m.png")]
    for file in files:
        file.write_bytes(b"x")

    def key(targets: tuple[str, ...] = ("m.png",), **options: object) -> str:
        row = FileRow("a", ("a.png", "b.png"), targets)
        return FileRows((tmp_path, tmp_path), [row], partial(first_files, **options)).digest

    assert unnoticed_changes(files, key) == []
    assert len({key(), key(a=1), key(a=2), key(targets=("", "m.png")), key(targets=("b.png",))}) == 5


def test_sizes_of_files_are_exact_whatever_their_number_of_bytes(tmp_path):
    (tmp_path / "a.png").write_bytes(bytes(128))  # one more than a byte with a sign holds
    rows = FileRows((tmp_path, tmp_path), [FileRow("a", ("a.png",), ("lost.png",))], first_files)
    assert Records(rows).pair_sizes().tolist() == [[128, -1]]
