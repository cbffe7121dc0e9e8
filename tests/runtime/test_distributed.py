"""Several processes: what the main one finds out for all, random numbers of each, and a process that is lost."""

import pickle
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from support.forks import call_in_processes

from runtime import distributed
from runtime.distributed import describe_lost_process, on_main, seed_step
from runtime.errors import DataError


def main_values() -> dict[str, np.ndarray | str]:
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


class Arrival(NamedTuple):
    """What a process has got from the main one, the bytes that came as pickles, and which arrays may be written."""

    values: dict[str, np.ndarray | str]
    pickled: list[int]
    nothing: None
    may_write: list[bool]


def main_of_several(rank: int, processes: int, folder: Path) -> None:
    """Asks the main process; writes what has arrived, and how many bytes came as pickles."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    accelerator = SimpleNamespace(is_main_process=rank == 0, num_processes=processes)
    pickled = []
    loads = pickle.loads
    pickle.loads = lambda content, **buffers: pickled.append(len(content)) or loads(content, **buffers)
    values = on_main(accelerator, main_values)
    pickle.loads = loads
    nothing = on_main(accelerator, lambda: None)
    may_write = [array.flags.writeable for array in values.values() if isinstance(array, np.ndarray)]
    (folder / f"{rank}").write_bytes(pickle.dumps((values, pickled, nothing, may_write)))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory) -> list[Arrival]:
    """What arrives in each of two processes."""
    folder = tmp_path_factory.mktemp("arrivals")
    call_in_processes(main_of_several, 2, folder)
    return [Arrival(*pickle.loads((folder / f"{rank}").read_bytes())) for rank in range(2)]


def same_type(value: object, other: object) -> bool:
    """Whether values, or arrays and their elements, are of one type."""
    return type(value) is type(other) and getattr(value, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("rank", [0, 1])
def test_values_of_the_main_process_arrive_on_all(arrivals, rank):
    values, expected = arrivals[rank].values, main_values()
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(values[name], value)
        assert same_type(values[name], value)
    assert arrivals[rank].nothing is None


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The seconds that this process waits; the main process has found a mistake."""
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(distributed, "_value_from_main", lambda outcome: (None, DataError("no masks")))
    return waits


def test_a_mistake_of_the_main_process_ends_the_others_without_a_word(waits, capsys):
    with pytest.raises(SystemExit) as end:
        on_main(SimpleNamespace(is_main_process=False, num_processes=2), lambda: 1 / 0)
    assert end.value.code == 1
    assert waits == [5]
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def barriers(monkeypatch) -> Iterator[tuple[list, list]]:
    """The options of the groups that are made, and the groups that are waited in."""
    groups, waits = [], []
    monkeypatch.setattr(dist, "new_group", lambda **options: groups.append(options) or "a group")
    monkeypatch.setattr(dist, "barrier", lambda group: waits.append(group))
    distributed._group_without_timeout.cache_clear()
    yield groups, waits
    distributed._group_without_timeout.cache_clear()


def test_several_processes_wait_in_one_group_without_a_time_limit(barriers):
    groups, waits = barriers
    distributed.barrier_without_timeout(SimpleNamespace(num_processes=2))
    distributed.barrier_without_timeout(SimpleNamespace(num_processes=3))
    assert waits == ["a group", "a group"]
    assert groups == [{"backend": "gloo", "timeout": timedelta(days=7)}]


@pytest.mark.parametrize("value", [object(), []], ids=["an object", "nothing in a list"])
def test_one_process_keeps_its_own_value(value):
    assert on_main(Accelerator(cpu=True), lambda: value) is value


def test_each_step_of_each_process_draws_numbers_of_its_own():
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
    ("error", "reason"),
    [
        (
            dist.DistError("[/a/tcp.cc:12] Connection closed by peer [127.0.0.1]:295. More"),
            "Connection closed by peer [127.0.0.1]:295); start again",
        ),
        (RuntimeError("gloo: Broken pipe"), "gloo: Broken pipe)"),
        (dist.DistError("Connection reset by peer"), "Connection reset"),
        (dist.DistError("remote process exited"), "remote process exited)"),
        (dist.DistError("a connection was likely closed"), "a connection"),
    ],
    ids=["closed", "pipe", "reset", "exited", "likely closed"],
)
def test_an_error_of_a_process_that_has_ended_takes_one_line(fourth_process, error, reason):
    text = describe_lost_process(error)
    assert text.startswith(f"process 3 lost another process, which has ended ({reason}")
    assert "More" not in text
    assert ".cc" not in text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("gloo read Timed out waiting"), ""),
        (dist.DistError("a timeout of 3 s"), " (a time"),
    ],
    ids=["gloo", "store"],
)
def test_an_error_of_a_process_that_hangs_takes_one_line(fourth_process, error, reason):
    text = describe_lost_process(error)
    assert text.startswith(f"process 3 waited too long for another one, which hangs or has ended{reason}")


def test_an_error_before_all_processes_were_connected_takes_one_line(fourth_process, monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    text = describe_lost_process(dist.DistError("refused. More"))
    assert text.startswith("process 3 did not find all 4 processes (refused); is every machine started")
    assert "More" not in text


@pytest.mark.parametrize(
    "error",
    [RuntimeError("[x.cc:1] Connection closed by peer. More"), dist.DistError("something else")],
    ids=["no error of a group", "another error of a group"],
)
def test_another_error_is_no_lost_process(fourth_process, error):
    assert describe_lost_process(error) is None


@pytest.fixture
def fourth_process(monkeypatch) -> None:
    """This process is the last one of four, which are connected."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)


class Connection(NamedTuple):
    """An end of a connection of this process, and the kinds of connections that it was asked for."""

    end: socket.socket
    kinds: list[str]

    def option(self, name: str) -> int:
        return self.end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))


@pytest.fixture
def connection(monkeypatch) -> Iterator[Connection]:
    """A connection, beside a socket that listens."""
    kinds = []
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        own = SimpleNamespace(status=psutil.CONN_ESTABLISHED, fd=client.fileno())
        waiting = SimpleNamespace(status=psutil.CONN_LISTEN, fd=-1)
        process = SimpleNamespace(net_connections=lambda kind: kinds.append(kind) or [waiting, own])
        monkeypatch.setattr(psutil, "Process", lambda: process)
        yield Connection(client, kinds)


@pytest.fixture
def groups(monkeypatch) -> list[str]:
    """The groups without a time limit that are made."""
    groups = []
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: groups.append("connected"))
    return groups


def test_a_connection_that_does_not_answer_for_the_timeout_ends(monkeypatch, connection, groups):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    distributed.notice_lost_machines(timedelta(minutes=10))
    assert groups == ["connected"]
    assert connection.option("TCP_KEEPIDLE") == 60
    assert connection.option("TCP_KEEPINTVL") == 60
    assert connection.option("TCP_KEEPCNT") == 9
    assert connection.option("TCP_USER_TIMEOUT") == 600_000
    assert connection.end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
