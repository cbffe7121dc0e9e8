"""Several processes: what the main one finds out for all, random numbers of each, and a process that is lost."""

import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from support.forks import call_in_processes

from runtime.distributed import describe_lost_process, first_on_each_machine, on_main, seed_step
from runtime.errors import DataError

VALUE = {
    "text": "x",
    "nothing": None,
    "names": np.array([b"a", b"bcd"]),
    "columns": np.asfortranarray(np.eye(2, 3)),
    "no rows": np.zeros((0, 2)),
    "read only": np.frombuffer(b"ab", np.uint8),
    "large columns": np.asfortranarray(np.arange(2.0**20).reshape(2, -1)),
    "large and read only": np.frombuffer(bytes(2**21), np.uint8),
}


def find_out(rank: int, processes: int, folder: Path) -> None:
    """Two processes: what the main one finds out, its mistake, and the order of their work."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    is_main = rank == 0
    accelerator = SimpleNamespace(is_main_process=is_main, is_local_main_process=is_main, num_processes=processes)
    found = on_main(accelerator, lambda: VALUE if is_main else 1 / 0)
    assert found.keys() == VALUE.keys()
    assert all(np.array_equal(found[name], value) for name, value in VALUE.items())

    with first_on_each_machine(accelerator):
        assert (folder / "written").exists() is not is_main
        time.sleep(0.3 * is_main)
        (folder / "written").touch()

    def fail() -> None:
        raise DataError("no masks")

    time.sleep = lambda seconds: None
    with pytest.raises(DataError if is_main else SystemExit, match="no masks" if is_main else "1"):
        on_main(accelerator, fail)
    dist.destroy_process_group()


def test_what_the_main_process_finds_out_holds_for_all(tmp_path):
    call_in_processes(find_out, 2, tmp_path)


def receive_large(rank: int, processes: int, folder: Path) -> None:
    """Two processes: the most memory of each while a large array of the main one is sent."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    accelerator = SimpleNamespace(is_main_process=rank == 0, num_processes=processes)
    on_main(accelerator, lambda: None)  # connects the processes
    peak_before = peak_bytes()
    large = on_main(accelerator, lambda: np.ones(2**26, np.uint8))
    assert large.sum() == 2**26
    assert peak_bytes() - peak_before < 1.5 * 2**26
    dist.destroy_process_group()


def peak_bytes() -> int:
    """The most memory that this process has had."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def test_a_large_array_is_in_memory_once(tmp_path):
    call_in_processes(receive_large, 2, tmp_path)


def receive_many(rank: int, processes: int, folder: Path) -> None:
    """Two processes: how often the main one sends something, of many small arrays."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    accelerator = SimpleNamespace(is_main_process=rank == 0, num_processes=processes)
    with mock.patch.object(dist, "broadcast", wraps=dist.broadcast) as broadcast:
        arrays = on_main(accelerator, lambda: [np.full(3, number) for number in range(1000)])
    assert [array[2] for array in arrays] == list(range(1000))
    assert broadcast.call_count < 10
    dist.destroy_process_group()


def test_small_arrays_are_sent_together(tmp_path):
    """Large images have an array of pixels for each of their classes: 20,000 arrays took seven seconds."""
    call_in_processes(receive_many, 2, tmp_path)


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


ENDED = "process 3 lost another process, which has ended ("
HANGS = "process 3 waited too long for another one, which hangs or has ended ("
ABSENT = "process 3 did not find all 4 processes ("
LOADER = "a process that loads images has ended ("


@pytest.mark.parametrize(
    ("error", "is_connected", "line"),
    [
        (dist.DistError("[/a/tcp.cc:12] Connection closed by peer [1]:2. More"), True, f"{ENDED}Connection closed by "),
        (RuntimeError("gloo: Broken pipe"), True, f"{ENDED}gloo: Broken pipe)"),
        (dist.DistError("Connection reset by peer"), True, ENDED),
        (dist.DistError("remote process exited"), True, ENDED),
        (dist.DistError("a connection was likely closed"), True, ENDED),
        (RuntimeError("gloo read Timed out waiting"), True, HANGS),
        (dist.DistError("a timeout of 3 s"), True, HANGS),
        (dist.DistError("refused. More"), False, f"{ABSENT}refused)"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), True, f"{LOADER}(pid 7) is killed"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), True, f"{LOADER}(pid(s) 7) exited"),
        (RuntimeError("[x.cc:1] Connection closed by peer. More"), True, None),
        (dist.DistError("something else"), True, None),
    ],
)
def test_an_error_by_a_lost_process_takes_one_line(monkeypatch, error, is_connected, line):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(dist, "is_initialized", lambda: is_connected)
    text = describe_lost_process(error)
    if line is None:
        assert text is None
    else:
        assert text.startswith(line)
        assert not any(part in text for part in ("More", ".cc", "\n"))
