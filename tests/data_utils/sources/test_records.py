"""Records of a data set: what some of them say of the whole, and how those of a stream are read."""

import os
from dataclasses import replace

import numpy as np

from data_utils.sources.bands import PictureRecords
from data_utils.sources.records import (
    LandmarkNames,
    ListRecords,
    Metadata,
    StreamRecords,
    Subset,
    folder_pairs,
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
    assert Subset(whole, np.array([2, 1])).metadata == replace(METADATA, unlisted=("c",))
    assert PictureRecords(whole).metadata == METADATA


def test_the_key_of_some_records_changes_with_their_order():
    whole = LabeledRecords()
    assert Subset(whole, np.array([2, 1])).digest is None
    whole.digest = "key"
    digests = {Subset(whole, np.array(indices)).digest for indices in ([2, 1], [1, 2])}
    assert len({"key", *digests}) == 3


class Groups(StreamRecords):
    """Groups of 2, 1 and 3 records, each record its group and its place; `read` lists what was read."""

    def __init__(self, open_groups: int | None = None) -> None:
        super().__init__(["file"], np.zeros((3, 1), np.int64), np.array([2, 1, 3]))
        self.open_groups = open_groups or self.open_groups
        self.read: list[int] = []

    def _read_group(self, group):
        self.read.append(group)
        return group

    def __getitem__(self, i):
        group, place = self._locate(i)
        return self._group_content(group), place

    def subset(self, chosen):
        raise NotImplementedError


def test_folders_of_images_may_have_names_that_are_no_text():
    assert folder_pairs("images", np.array([b"a/1.png", b"\xff/2.png", b"3.png"])) == {
        ("images", "a"),
        ("images", os.fsdecode(b"\xff")),
        ("images", ""),
    }
