"""Records of a data set: what some of them say of the whole, and how those of a stream are read."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from data_utils.sources.bands import PictureRecords
from data_utils.sources.records import (
    AnnotationSummary,
    LandmarkNames,
    ListRecords,
    Metadata,
    StreamRecords,
    Subset,
    annotation_summaries,
    folder_pairs,
    spread_indices,
    with_sources,
)


def test_records_are_followed_to_those_that_they_are_made_of():
    records = ListRecords([{"image": "", "target": "", "name": name} for name in "abc"])
    subset = Subset(records, np.array([0, 2]))
    last = Subset(subset, np.array([1]))
    assert [*with_sources(last)] == [last, subset, records]


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


def test_some_of_records_hold_their_own_names_or_labels():
    some = Subset(LabeledRecords(), np.array([2, 1]))
    assert [record["name"] for record in some] == [some.name(0), some.name(1)] == ["c", "b"]
    assert [some.label_set(0), some.label_set(1)] == [("2",), ("1",)]


def test_the_key_of_some_records_changes_with_their_order():
    whole = LabeledRecords()
    assert Subset(whole, np.array([2, 1])).digest is None
    whole.digest = "key"
    digests = {Subset(whole, np.array(indices)).digest for indices in ([2, 1], [1, 2])}
    assert len({"key", *digests}) == 3


def test_annotations_that_splits_share_are_summed_up_once():
    whole = LabeledRecords()
    whole.annotations = AnnotationSummary("COCO", 1, 0, {"cat": 1})
    splits = [Subset(whole, np.array(indices)) for indices in ([2, 1], [1, 2])]
    assert annotation_summaries(splits) == [whole.annotations]
    other = Subset(whole, np.array([0]))
    other.annotations = AnnotationSummary("COCO", 2, 0, {"cat": 5})
    assert annotation_summaries([*splits, other]) == [whole.annotations, other.annotations]


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


def test_records_of_a_stream_are_found_in_their_groups():
    records = Groups()
    assert list(records) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert records.read == [0, 1, 2]
    assert records[0] == (0, 0)
    assert records.read == [0, 1, 2]


@pytest.mark.parametrize("index", [-1, 6])
def test_a_record_beyond_those_of_a_stream_is_refused(index):
    with pytest.raises(IndexError, match=f"record {index} of 6"):
        Groups()[index]


def test_groups_of_a_stream_that_were_used_last_are_kept():
    records = Groups(open_groups=2)
    for index in (0, 2, 1, 3, 0, 2):  # group 0 is used again before group 2 takes a place
        records[index]
    assert records.read == [0, 1, 2, 1]


def test_groups_of_a_stream_are_dropped_where_fewer_may_be_kept():
    records = Groups()
    assert [records[0], records[2]] == [(0, 0), (1, 0)]
    records.open_groups = 1
    assert [records[3], records[2]] == [(2, 0), (1, 0)]
    assert records.read == [0, 1, 2, 1]


def test_groups_of_a_stream_are_read_again_by_another_process(monkeypatch):
    records = Groups(open_groups=2)
    assert records[0] == (0, 0)
    monkeypatch.setattr("os.getpid", lambda: 0)
    assert [records[0], records[1]] == [(0, 0), (0, 1)]
    assert records.read == [0, 0]
    records.is_scattered = True
    copy = pickle.loads(pickle.dumps(records))
    assert copy[5] == (2, 2)
    assert copy.is_scattered


@pytest.mark.parametrize(
    ("length", "count", "indices"), [(10, 4, [0, 3, 6, 9]), (3, 9, [0, 1, 2]), (9, 1, [0]), (5, 2, [0, 4])]
)
def test_indices_are_spread_from_the_first_to_the_last(length, count, indices):
    assert spread_indices(length, count) == indices


def test_folders_of_images_may_have_names_that_are_no_text():
    assert folder_pairs("images", np.array([b"a/1.png", b"\xff/2.png", b"3.png"])) == {
        ("images", "a"),
        ("images", os.fsdecode(b"\xff")),
        ("images", ""),
    }
