"""Where a process stands among those that share a volume."""

import pytest
import torch
import torch.distributed as dist

from runtime.errors import LaunchError
from train_utils.mesh import Mesh


def test_neighbors_share_a_volume():
    places = [Mesh.from_process(rank, 4, 2) for rank in range(4)]
    assert [(place.group, place.slab) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [place.is_first for place in places] == [True, False, True, False]
    assert [place.is_last for place in places] == [False, True, False, True]
    assert [place.slab_rank(slab) for place in places[1:3] for slab in (0, 1)] == [0, 1, 2, 3]
    alone = Mesh.from_process(3, 4, 1)
    assert alone.group == 3
    assert alone.is_first
    assert alone.is_last


def test_groups_must_hold_all_processes():
    line = r"^--processes-per-volume 4 needs a multiple of 4 processes, but 6 were started; give --num_processes 8$"
    with pytest.raises(LaunchError, match=line):
        Mesh.from_process(0, 6, 4)


@pytest.fixture
def second_of_three(monkeypatch) -> Mesh:
    """The second of three processes that share the volume of the third group."""
    monkeypatch.setattr("train_utils.mesh._process_group", lambda size: f"group of {size}")
    return Mesh(3, 1, 2)


def test_neighbors_exchange_contiguous_tensors(monkeypatch, second_of_three):
    sent = []

    def operation(kind, tensor: torch.Tensor, rank: int, group: str) -> str:
        assert tensor.is_contiguous()
        assert group == "group of 3"
        sent.append((kind, tuple(tensor.shape), rank))
        return ""

    monkeypatch.setattr(dist, "P2POp", operation)
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda operations: [])
    rows = torch.zeros(1, 2, 5, 4).contiguous(memory_format=torch.channels_last)
    from_previous, from_next = second_of_three.exchange(rows, rows[:, :, :3])
    assert from_previous.shape == rows.shape
    assert from_next.shape == (1, 2, 3, 4)
    assert sent == [
        (dist.isend, (1, 2, 5, 4), 6),
        (dist.irecv, (1, 2, 5, 4), 6),
        (dist.isend, (1, 2, 3, 4), 8),
        (dist.irecv, (1, 2, 3, 4), 8),
    ]


@pytest.fixture
def ranks(monkeypatch) -> list[int]:
    """The processes with which tensors are exchanged."""
    ranks: list[int] = []
    monkeypatch.setattr("train_utils.mesh._process_group", lambda size: None)
    monkeypatch.setattr(dist, "P2POp", lambda kind, tensor, rank, group: rank)
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda operations: ranks.extend(operations) or [])
    return ranks


def test_the_first_process_has_no_previous_neighbor(ranks):
    from_previous, from_next = Mesh(2, 0, 1).exchange(None, torch.zeros(3))
    assert from_previous is None
    assert from_next.shape == (3,)
    assert ranks == [3, 3]


def test_the_last_process_has_no_next_neighbor(ranks):
    from_previous, from_next = Mesh(2, 1, 1).exchange(torch.zeros(3), None)
    assert from_previous.shape == (3,)
    assert from_next is None
    assert ranks == [2, 2]
