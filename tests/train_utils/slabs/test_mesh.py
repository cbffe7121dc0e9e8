"""Where a process stands among those that share a volume."""

import pytest

from runtime.errors import LaunchError
from train_utils.slabs.mesh import Mesh


def test_neighbors_share_a_volume():
    places = [Mesh.from_process(rank, 4, 2) for rank in range(4)]
    assert [(place.group, place.slab) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [place.is_first for place in places] == [True, False, True, False]
    assert [place.is_last for place in places] == [False, True, False, True]
    alone = Mesh.from_process(3, 4, 1)
    assert alone.group == 3
    assert alone.is_first
    assert alone.is_last


def test_groups_must_hold_all_processes():
    line = r"^--processes-per-volume 4 needs a multiple of 4 processes, but 6 were started; give --num_processes 8$"
    with pytest.raises(LaunchError, match=line):
        Mesh.from_process(0, 6, 4)
