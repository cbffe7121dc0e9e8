"""Whole files of a stream are held out for validation."""

import numpy as np
import pytest

from data_utils.sources.holdout import hold_out_shards
from data_utils.sources.records import StreamRecords
from runtime.errors import DataError


class Stream(StreamRecords):
    """Files of records that are never read."""

    def subset(self, chosen: np.ndarray) -> "Stream":
        return Stream(self.files, self.groups[chosen], self.group_sizes[chosen])

    def _read_group(self, group: int) -> None:
        raise AssertionError

    def __getitem__(self, index: int) -> dict:
        raise AssertionError


@pytest.mark.parametrize(
    ("sizes", "fraction", "held_out"),
    [((10, 10), 0.01, 10), ((10, 10), 1.0, 10), ((10, 10, 10, 10), 0.25, 10), ((10, 10, 10, 10), 0.26, 20)],
)
def test_whole_files_of_a_stream_are_held_out_and_one_is_left_to_train_on(sizes, fraction, held_out):
    groups = np.array([(number, 0) for number in range(len(sizes))])
    for seed in range(3):
        train, val = hold_out_shards(Stream(["a", "b", "c", "d"], groups, np.array(sizes)), fraction, seed)
        assert len(val) == held_out
        assert len(train) == sum(sizes) - held_out
        assert not set(train.groups[:, 0]) & set(val.groups[:, 0])
    with pytest.raises(DataError, match="a stream of 1 file has no file to validate on"):
        hold_out_shards(Stream(["a"], groups[:1], np.array([10])), fraction, 0)


def test_files_of_a_stream_are_drawn_by_the_seed_until_their_groups_hold_enough_records():
    groups = np.array([(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)])
    sizes = np.array([30, 30, 10, 10, 10])
    held_out_files = set()
    for seed in range(8):
        train, val = hold_out_shards(Stream(["a", "b", "c", "d"], groups, sizes), 0.3, seed)
        files = val.groups[:, 0].tolist()
        assert len(val) >= 27
        assert not set(files) & set(train.groups[:, 0])
        held_out_files.add(tuple(files))
    assert (0, 0) in held_out_files
    assert (1, 2, 3) in held_out_files
