"""Records of files: their names and paths, whatever bytes these hold, and their key.

Module: data_utils/sources/files.py.
"""

import os
from pathlib import Path

from support.data_sets import unnoticed_changes

from data_utils.sources.files import FileRecords, FileRow, first_files
from data_utils.sources.records import Metadata


def test_files_may_have_names_that_are_no_text():
    names = [os.fsdecode(name) for name in (b"a/1.png", b"\xff/2.png", b"3.png")]
    rows = [FileRow(name, (name,), (name,)) for name in names]
    records = FileRecords((Path("images"), Path("masks")), rows, Metadata())
    assert [record["name"] for record in records] == names
    assert [record["target"] for record in records] == [f"masks/{name}" for name in names]
    assert records.image_folders() == {("images", "a"), ("images", os.fsdecode(b"\xff")), ("images", "")}


def test_the_key_changes_with_each_file_and_with_what_is_made_of_them(tmp_path):
    files = [tmp_path / name for name in ("a.png", "b.png", "m.png")]
    for file in files:
        file.write_bytes(b"x")

    def key(*options: object, targets: tuple[str, ...] = ("m.png",)) -> str:
        row = FileRow("a", ("a.png", "b.png"), targets)
        return FileRecords((tmp_path, tmp_path), [row], Metadata(), first_files, *options).digest

    assert unnoticed_changes(files, key) == []
    assert len({key(), key(1), key(2), key(targets=("", "m.png")), key(targets=("b.png",))}) == 5
