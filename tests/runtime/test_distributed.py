"""Several processes: what the main one finds out for all, random numbers of each, and a process that is lost."""

import pickle
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from forked import call_in_processes

from runtime import distributed
from runtime.distributed import describe_lost_process, on_main, seed_step
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
        assert found.keys() == wanted.keys()
        assert nothing is None
        for name, value in wanted.items():
            assert np.array_equal(found[name], value)
            assert type(found[name]) is type(value)
            assert not isinstance(value, np.ndarray) or found[name].dtype == value.dtype
        assert sum(pickled) < 10_000
    assert pickled
    assert may_write.count(False) == 1


def test_processes_wait_for_the_main_one_without_a_time_limit(monkeypatch):
    groups = []
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: "without limit")
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    for name in ("broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, lambda value, src, group=None: groups.append((src, group)))
    accelerator = SimpleNamespace(is_main_process=True, num_processes=2)
    assert on_main(accelerator, what_main_finds)["text"] == "x" * 10
    assert len(groups) == 6
    assert set(groups) == {(0, "without limit")}


def test_a_mistake_that_the_main_process_finds_ends_the_others_without_a_word(monkeypatch, capsys):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(distributed, "_of_main", lambda outcome: (None, DataError("no masks")))
    with pytest.raises(SystemExit) as end:
        on_main(SimpleNamespace(is_main_process=False, num_processes=2), lambda: 1 / 0)
    assert end.value.code == 1
    assert waits == [5]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(DataError, match="no masks"):
        on_main(SimpleNamespace(is_main_process=True, num_processes=2), lambda: 1)
    assert waits == [5]


def test_a_mistake_of_the_main_process_is_told_to_the_others_before_it_ends(monkeypatch):
    told = []
    monkeypatch.setattr(distributed, "_of_main", lambda outcome: told.append(outcome) or outcome)
    mistake = DataError("no masks")

    def fail() -> None:
        raise mistake

    with pytest.raises(DataError):
        on_main(SimpleNamespace(is_main_process=True, num_processes=2), fail)
    assert told == [(None, mistake)]


def test_several_processes_wait_in_a_group_that_notices_ends_and_has_no_time_limit(monkeypatch):
    groups = []
    waits = []
    monkeypatch.setattr(dist, "new_group", lambda **options: groups.append(options) or "a group")
    monkeypatch.setattr(dist, "barrier", lambda group: waits.append(group))
    distributed._group_without_timeout.cache_clear()
    try:
        for processes in (1, 2, 3):
            distributed.barrier_without_timeout(SimpleNamespace(num_processes=processes))
    finally:
        distributed._group_without_timeout.cache_clear()
    assert waits == ["a group", "a group"]
    assert groups == [{"backend": "gloo", "timeout": timedelta(days=7)}]


def test_one_process_keeps_what_it_has_found():
    found = object()
    assert on_main(Accelerator(cpu=True), lambda: found) is found

    def fail() -> None:
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        on_main(Accelerator(cpu=True), fail)


def test_each_step_of_each_process_and_seed_draws_numbers_of_its_own():
    def drawn(*key: int) -> float:
        seed_step(*key)
        return torch.rand(()).item()

    with torch.random.fork_rng():
        keys = [(seed, step, process) for seed in range(3) for step in range(3) for process in range(3)]
        numbers = [drawn(*key) for key in keys]
        assert len(set(numbers)) == 27
        assert [drawn(*key) for key in keys] == numbers


@pytest.mark.parametrize(("is_first", "order"), [(True, ["work", "barrier"]), (False, ["barrier", "work"])])
def test_the_first_process_of_a_machine_works_before_the_others(monkeypatch, is_first, order):
    events = []
    monkeypatch.setattr(distributed, "barrier_without_timeout", lambda accelerator: events.append("barrier"))
    with distributed.first_on_each_machine(SimpleNamespace(is_local_main_process=is_first)):
        events.append("work")
    assert events == order


@pytest.mark.parametrize(
    ("error", "is_connected", "line"),
    [
        (RuntimeError("[x.cc:1] Connection closed by peer. More"), True, None),
        (
            dist.DistError("[/a/tcp.cc:12] Connection closed by peer [127.0.0.1]:295. More"),
            True,
            "lost another process, which has ended (Connection closed by peer [127.0.0.1]:295); start again",
        ),
        (RuntimeError("gloo: Broken pipe"), True, "lost another process, which has ended (gloo: Broken pipe)"),
        (
            RuntimeError("gloo read Timed out waiting"),
            True,
            "waited too long for another one, which hangs or has ended",
        ),
        (dist.DistError("something else"), True, None),
        (dist.DistError("Connection reset by peer"), True, "lost another process, which has ended (Connection reset"),
        (
            dist.DistError("remote process exited"),
            True,
            "lost another process, which has ended (remote process exited)",
        ),
        (dist.DistError("a connection was likely closed"), True, "lost another process, which has ended (a connection"),
        (dist.DistError("a timeout of 3 s"), True, "waited too long for another one, which hangs or has ended (a time"),
        (
            dist.DistError("timed out: " + "x" * 300),
            True,
            f"waited too long for another one, which hangs or has ended (timed out: {'x' * 189}); see its output",
        ),
        (RuntimeError("x" * 400 + " gloo connection closed"), True, "lost another process, which has ended (xxx"),
        (dist.DistError("refused. More"), False, "did not find all 4 processes (refused); is every machine started"),
    ],
)
def test_an_error_that_another_process_has_caused_is_one_line(monkeypatch, error, is_connected, line):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(dist, "is_initialized", lambda: is_connected)
    text = describe_lost_process(error)
    if line is None:
        assert text is None
    else:
        assert text.startswith(f"process 3 {line}")
        assert "More" not in text
        assert ".cc" not in text


def test_a_connection_that_does_not_answer_for_the_timeout_ends(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    groups = []
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: groups.append("connected"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        own = SimpleNamespace(status=psutil.CONN_ESTABLISHED, fd=client.fileno())
        waiting = SimpleNamespace(status=psutil.CONN_LISTEN, fd=-1)
        connections = SimpleNamespace(net_connections=lambda kind: [waiting, own])
        monkeypatch.setattr(psutil, "Process", lambda: connections)
        distributed.notice_lost_machines(timedelta(minutes=10))
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        options = [client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert groups == ["connected"]
        assert options == [60, 60, 9, 600_000]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_no_connection_is_asked_more_than_once_a_second_and_none_of_a_single_process(monkeypatch):
    calls = []
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        own = SimpleNamespace(status=psutil.CONN_ESTABLISHED, fd=client.fileno())
        connections = SimpleNamespace(net_connections=lambda kind: calls.append(kind) or [own])
        monkeypatch.setattr(psutil, "Process", lambda: connections)
        for is_initialized in (False, True):
            monkeypatch.setattr(dist, "is_initialized", lambda is_initialized=is_initialized: is_initialized)
            distributed.notice_lost_machines(timedelta(seconds=3))
            assert calls == ["tcp"] * is_initialized
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
