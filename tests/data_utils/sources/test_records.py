"""Records of a data set: what some of them say of the whole; names, paths and keys of those of local files."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from support.data_sets import unnoticed_changes

from data_utils.sources.records import (
    FileRecords,
    FileRow,
    LandmarkNames,
    ListRecords,
    Metadata,
    first_files,
    select,
    select_all,
)


class LabeledRecords(ListRecords):
    """Three records, each of which is labeled for a class of its number."""

    def __init__(self) -> None:
        super().__init__([{"image": "", "target": "", "name": name} for name in "abc"])

    def label_set(self, i):
        return (str(i),)


METADATA = Metadata(
    classes=((0, "cell"),),
    unpaired=("x",),
    dims=3,
    modality="CT",
    landmarks=LandmarkNames(("nose",), "long", "pixels"),
    label_sets={("cell",): "a table"},
    unlisted=("c", "a"),
    has_rules=False,
    task="objects",
    bands=("red",),
)


def test_some_of_records_say_all_that_the_whole_says():
    whole = LabeledRecords()
    whole.metadata = METADATA
    assert select(whole, np.array([2, 1])).metadata == replace(METADATA, unlisted=("c",))
    assert select_all(whole, task="classes").metadata == replace(METADATA, task="classes")


def test_the_key_of_some_records_changes_with_their_order():
    whole = LabeledRecords()
    assert select(whole, np.array([2, 1])).digest is None
    whole.digest = "key"
    digests = {select(whole, np.array(indices)).digest for indices in ([2, 1], [1, 2])}
    assert len({"key", *digests}) == 3


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
