"""Records of a data set: what some of them say of the whole, and how those of a stream are read."""

from dataclasses import replace

import numpy as np

from data_utils.sources.records import (
    LandmarkNames,
    ListRecords,
    Metadata,
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
