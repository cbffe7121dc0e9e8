"""What the main process finds out for all: it arrives as it was, arrays without a copy on the way."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from accelerate import Accelerator
from forked import call_in_processes

from runtime import distributed
from runtime.distributed import on_main
from runtime.errors import DataError


def what_main_finds() -> dict[str, np.ndarray | str]:
    """Arrays of several kinds, and a text."""
    read_only = np.arange(5)
    read_only.flags.writeable = False
    return {
        "large": np.arange(300_000),
        "names": np.array([b"a", b"bcd"]),
        "empty": np.zeros((0, 2)),
        "read-only": read_only,
        "every other": np.arange(10)[::2],
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "text": "x" * 10,
    }


def main_of_several(rank: int, processes: int, folder: Path) -> None:
    """Asks the main process; writes what has arrived, and how many bytes came as pickles."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    accelerator = SimpleNamespace(is_main_process=rank == 0, num_processes=processes)
    pickled = []
    loads = pickle.loads
    pickle.loads = lambda content, **buffers: pickled.append(len(content)) or loads(content, **buffers)
    found = on_main(accelerator, what_main_finds)
    pickle.loads = loads
    nothing = on_main(accelerator, lambda: None)
    may_write = [array.flags.writeable for array in found.values() if isinstance(array, np.ndarray)]
    (folder / f"{rank}").write_bytes(pickle.dumps((found, pickled, nothing, may_write)))
    dist.destroy_process_group()


def test_what_the_main_process_finds_arrives_on_all_and_arrays_by_themselves(tmp_path):
    call_in_processes(main_of_several, 2, tmp_path)
    wanted = what_main_finds()
    for rank in (0, 1):
        found, pickled, nothing, may_write = pickle.loads((tmp_path / f"{rank}").read_bytes())
        assert found.keys() == wanted.keys() and nothing is None
        for name, value in wanted.items():
            assert np.array_equal(found[name], value) and type(found[name]) is type(value)
            assert not isinstance(value, np.ndarray) or found[name].dtype == value.dtype
        assert sum(pickled) < 10_000
    assert pickled and may_write.count(False) == 1


def test_processes_wait_for_the_main_one_without_a_time_limit(monkeypatch):
    groups = []
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: "without limit")
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    for name in ("broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, lambda value, src, group=None: groups.append((src, group)))
    accelerator = SimpleNamespace(is_main_process=True, num_processes=2)
    assert on_main(accelerator, what_main_finds)["text"] == "x" * 10
    assert len(groups) == 6 and set(groups) == {(0, "without limit")}  # the pickle, and five arrays


def test_one_process_keeps_what_it_has_found():
    found = object()
    assert on_main(Accelerator(cpu=True), lambda: found) is found

    def fail() -> None:
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        on_main(Accelerator(cpu=True), fail)
