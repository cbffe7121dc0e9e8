"""Small rules of a process: values of flags, keys of the cache, lines, seeds, errors, shares of the machine.

Modules: runtime/cache.py, runtime/cli.py, runtime/console.py, runtime/device.py, runtime/distributed.py,
runtime/documents.py, runtime/errors.py, runtime/files.py, runtime/launch.py, runtime/memory.py, runtime/parallel.py,
runtime/signals.py.
"""

import argparse
import hashlib
import io
import os
import signal
import socket
import sys
import weakref
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from accelerate.utils import DDPCommunicationHookType

from runtime import cache, cli, console, distributed, errors, launch, memory, parallel, signals
from runtime.cache import cached, cached_arrays, digest, digest_of_files
from runtime.cli import Arguments
from runtime.device import LateRead, download
from runtime.distributed import describe_lost_process, seed_step
from runtime.documents import read_bytes, read_json_lines
from runtime.errors import DataError, one_line
from runtime.files import checksum
from runtime.memory import available_bytes, memory_shortage
from runtime.parallel import map_ahead, map_indices


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (cli.positive_int, {"1": 1, "70": 70}, ["0", "-1", "1.5", ""]),
        (cli.non_negative_int, {"0": 0, "3": 3}, ["-1", "0.5"]),
        (cli.positive_float, {"0.1": 0.1, "3": 3.0, "1e-9": 1e-9}, ["0", "-1", "inf", "nan", "x"]),
        (cli.non_negative_float, {"0": 0.0, "2.5": 2.5}, ["-0.1", "inf", "nan"]),
        (cli.fraction_above_0, {"0.1": 0.1, "0.99": 0.99}, ["0", "1", "20"]),
        (cli.fraction, {"0": 0.0, "0.99": 0.99}, ["1", "-0.1"]),
        (cli.seed_number, {"0": 0, "4294967295": 4294967295}, ["-1", "4294967296", "1.0"]),
        (cli.hub_id, {"me/cells": "me/cells", "cells": "cells"}, ["a/b/c", "me/", "bad name"]),
        (cli.auto_or(cli.positive_int), {"auto": "auto", "2": 2}, ["0", "automatic"]),
    ],
    ids=["natural", "count", "positive", "amount", "share", "fraction", "seed", "hub_id", "auto_or"],
)
def test_a_value_is_taken_within_its_bounds_alone(kind, good, bad):
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


def test_a_folder_to_write_into_is_absent_or_empty(tmp_path):
    assert cli.empty_folder(str(tmp_path)) == tmp_path and cli.empty_folder(f"{tmp_path}/new") == tmp_path / "new"
    (tmp_path / "file").write_text("")
    for text in (str(tmp_path), f"{tmp_path}/file", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            cli.empty_folder(text)


@pytest.fixture
def parse(monkeypatch, capsys):
    """The line with which a small program answers a command line."""

    def parse(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["prog.py", *words])
        parser = Arguments("A program.", hints={"lr": "use --rate; {script}"})
        parser.add_argument("--rate", type=float, default=0.5, help="how fast")
        parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="how large")
        parser.add_argument("--name", help="what (default: nothing)", default="x")
        parser.add_argument("--quick", action="store_true", help="soon")
        parser.add_argument("--input", required=True)
        with pytest.raises(SystemExit) as end:
            parser.parse_args()
        assert end.value.code == (0 if "--help" in words else 2)
        printed = capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    return parse


def test_a_mistyped_flag_is_named_with_the_one_that_was_meant(parse):
    assert parse("--input", "a", "--rat", "1") == "prog.py: error: unknown argument --rat; did you mean --rate?"
    assert parse("--input", "a", "--xyz").endswith("unknown argument --xyz; see prog.py --help")
    assert parse("--input", "a", "--lr=3").endswith("unknown argument --lr=3; use --rate; prog.py --input a")
    assert parse("--LR", "3", "--input", "a").endswith("unknown argument --LR; use --rate; prog.py --input a")
    required = "the following arguments are required: --input"
    assert parse("--inptu", "a").endswith(f"{required}; unknown argument --inptu; did you mean --input?")
    assert parse("--rate", "1").endswith(required)
    assert parse("--rate=1", "-5").endswith(required)
    assert parse("--input", "a", "--size", "3").endswith("expected 2 arguments; give --size H W")
    assert parse("--input").endswith("expected one argument; give --input INPUT")


def test_the_help_says_defaults_once(parse):
    text = parse("--help")
    assert "how fast (default: 0.5)" in text and "what (default: nothing)" in text
    assert "how large" in text and text.count("(default: ") == 2


def test_the_key_of_the_cache_tells_its_parts_apart():
    keys = [digest(), digest(""), digest("a"), digest(b"a"), digest("a", "b"), digest("ab"), digest(1), digest("1")]
    keys += [digest(1, 23), digest(12, 3), digest(None), digest((1, 2)), digest([1, 2])]
    assert len(set(keys)) == len(keys)
    assert digest("a", 1) == digest("a", 1) and digest(bytearray(b"a")) == digest(b"a")
    assert all(len(key) == 32 for key in keys)


def test_the_key_of_files_changes_with_the_size_and_time_of_each(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(b"1")
        os.utime(file, ns=(0, 10**18))
    keys = [digest_of_files(files, b"names"), digest_of_files(files, b"other")]
    assert keys[0] == digest_of_files(map(str, files), b"names")
    os.utime(files[1], ns=(0, 10**18 + 1))
    keys.append(digest_of_files(files, b"names"))
    os.utime(files[1], ns=(0, 10**18))
    files[0].write_bytes(b"12")
    os.utime(files[0], ns=(0, 10**18))
    keys.append(digest_of_files(files, b"names"))
    files[0].unlink()  # reading it will say so
    keys.append(digest_of_files(files, b"names"))
    assert len(set(keys)) == 5


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[int]:
    """What has been computed, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


def test_what_has_a_key_is_computed_once(calls, tmp_path):
    def compute() -> int:
        calls.append(len(calls))
        return calls[-1]

    assert [cached("k", compute), cached("k", compute), cached("other", compute)] == [0, 0, 1]
    assert [cached(None, compute), cached(None, compute)] == [2, 3]
    assert [cached("not kept", compute, lambda value: value > 4) for _ in range(3)] == [4, 5, 5]
    assert sorted(os.listdir(tmp_path / "unet-accelerate")) == ["k.json", "not kept.json", "other.json"]


def test_arrays_are_computed_once_and_again_where_their_file_is_damaged(calls, tmp_path):
    def compute() -> dict[str, np.ndarray]:
        calls.append(len(calls))
        return {"a": np.arange(calls[-1], 5), "b": np.eye(2)}

    first = cached_arrays("k", compute)
    again = cached_arrays("k", compute)
    assert calls == [0] and again["a"].tolist() == first["a"].tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(again["b"], np.eye(2)) and set(again) == {"a", "b"}
    file = tmp_path / "unet-accelerate" / "k.npz"
    file.write_bytes(file.read_bytes()[:-3])
    assert cached_arrays("k", compute)["a"].tolist() == [1, 2, 3, 4]
    assert cached_arrays("k", compute)["a"].tolist() == [1, 2, 3, 4]
    assert cached_arrays(None, compute)["a"].tolist() == [2, 3, 4]


def test_the_cache_lies_where_the_user_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "unet-accelerate"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "home" / ".cache" / "unet-accelerate"


@pytest.mark.parametrize(
    ("environment", "is_first"),
    [
        ({}, True),
        ({"WORLD_SIZE": "2"}, True),
        ({"WORLD_SIZE": "2", "RANK": "0"}, True),
        ({"WORLD_SIZE": "2", "RANK": "1"}, False),
        ({"WORLD_SIZE": "1", "RANK": "3"}, True),
    ],
)
def test_the_process_of_rank_0_prints_for_all(monkeypatch, capsys, environment, is_first):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert console.is_first_process() is is_first
    console.say("a line")
    assert list(console.track("ab", 2, "reading")) == ["a", "b"]
    printed = capsys.readouterr()
    assert printed.out == "a line\n" * is_first and ("reading: 100% 2/2" in printed.err) is is_first


def test_in_a_file_each_new_state_of_a_bar_is_a_line(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    lines = console._PlainLines()
    for text in ("\ra: 0% 0/3", "\ra: 33% 1/3", "\ra: 33% 1/3", "\n", "\x1b[A\ra: 66% 2/3", "", "a: 33% 1/3"):
        lines.write(text)
    assert stream.getvalue() == "a: 33% 1/3\na: 66% 2/3\na: 33% 1/3\n"
    bar = console.progress_bar(20, "steps", "step", initial=5)
    assert (bar.n, bar.total, bar.mininterval, bar.maxinterval, bar.leave) == (5, 20, 10, 10, True)
    bar.close()


def test_numbers_that_are_read_late_keep_their_order():
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]
    assert [tensor.tolist() for tensor in download(tensors)] == [[1, 2], [3, 4], [5, 6]] and download([]) == []
    assert LateRead.read([LateRead(tensor) for tensor in tensors]) == [[1, 2], [3, 4], [5, 6]]
    assert LateRead.read([]) == []


def test_each_step_of_each_process_and_seed_draws_numbers_of_its_own():
    def drawn(*key: int) -> float:
        seed_step(*key)
        return torch.rand(()).item()

    with torch.random.fork_rng():
        keys = [(seed, step, process) for seed in range(3) for step in range(3) for process in range(3)]
        numbers = [drawn(*key) for key in keys]
        assert len(set(numbers)) == 27
        assert [drawn(*key) for key in keys] == numbers


@pytest.mark.parametrize(
    ("error", "is_connected", "line"),
    [
        (RuntimeError("[x.cc:1] Connection closed by peer. More"), True, None),
        (
            dist.DistError("[/a/tcp.cc:12] Connection closed by peer [::1]. More"),
            True,
            "lost another process, which has",
        ),
        (RuntimeError("gloo: Broken pipe"), True, "lost another process, which has ended (gloo: Broken pipe)"),
        (
            RuntimeError("gloo read Timed out waiting"),
            True,
            "waited too long for another one, which hangs or has ended",
        ),
        (dist.DistError("something else"), True, None),
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
        assert text.startswith(f"process 3 {line}") and "More" not in text and ".cc" not in text


def test_an_error_is_cut_to_its_limit_and_has_a_text():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 500))) == 300 and one_line(ValueError("abc"), 2) == "ab"


def test_who_prints_an_error_and_with_which_exit_code():
    usage = errors.UsageError
    assert usage.exit_code == 2
    for_all = {usage, errors.SettingsError, errors.LaunchError, errors.ModelError, errors.CheckpointError}
    for_all.add(errors.TrainingError)
    alone = {errors.UserError, DataError, errors.ImageError, errors.MemoryShortage, errors.WriteError}
    assert all(kind.seen_by_all for kind in for_all) and not any(kind.seen_by_all for kind in alone)
    assert {kind.exit_code for kind in (for_all | alone) - {usage}} == {1}


def test_the_checksum_of_a_file_is_that_of_all_its_bytes(tmp_path):
    content = bytes(range(256)) * 8193  # more than two blocks
    (tmp_path / "a").write_bytes(content)
    assert checksum(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    (tmp_path / "b").write_bytes(b"abc")
    assert checksum(tmp_path / "b") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_lines_of_json_are_counted_as_objects_or_damaged_and_a_cut_end_as_neither(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\nno json\n[1]\n{"step": 2}\n{"st')
    objects, damaged = read_json_lines(file)
    assert objects == [(b'{"step": 1}\n', {"step": 1}), (b'{"step": 2}\n', {"step": 2})] and damaged == 2


def test_a_file_may_be_as_large_as_its_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="it has 5 bytes, more than 4"):
        read_bytes(tmp_path / "a", 4)


@pytest.mark.parametrize(
    ("flag", "hook"),
    [
        ("none", DDPCommunicationHookType.NO),
        ("fp16", DDPCommunicationHookType.FP16),
        ("bf16", DDPCommunicationHookType.BF16),
    ],
)
def test_gradients_are_exchanged_as_the_flag_says_and_waited_for_ten_minutes(monkeypatch, flag, hook):
    for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ddp, group = launch.distributed_options(flag)
    assert ddp.comm_hook == hook and ddp.gradient_as_bucket_view and not ddp.broadcast_buffers
    assert not ddp.static_graph and not ddp.find_unused_parameters
    assert group.timeout == timedelta(minutes=10) and group.init_method is None


@pytest.mark.parametrize(
    ("restarts", "machines", "is_own"),
    [(None, None, False), ("0", "1", False), ("1", "1", True), ("3", "1", True), ("1", "2", False)],
)
def test_restarted_processes_of_one_machine_meet_anew(monkeypatch, restarts, machines, is_own):
    for name, value in (("TORCHELASTIC_RESTART_COUNT", restarts), ("GROUP_WORLD_SIZE", machines)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    handlers = {}
    monkeypatch.setattr(launch, "register_rendezvous_handler", handlers.__setitem__)
    options = launch.process_group_options()
    assert options.init_method == ("restarted://" if is_own else None) and options.timeout == timedelta(minutes=10)
    assert set(handlers) == ({"restarted"} if is_own else set())


def test_processes_share_the_free_memory_of_their_machine(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1001, total=5000))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert available_bytes() == 1001
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_bytes() == 250


def test_a_lack_of_memory_is_one_line_and_other_errors_stay():
    line = r"^a\.png: does not fit into memory; use tiles \(std::bad_alloc\)$"
    with pytest.raises(errors.MemoryShortage, match=line), memory_shortage("a.png", "use tiles"):
        raise RuntimeError("std::bad_alloc")
    with pytest.raises(RuntimeError, match=r"^a bug$"), memory_shortage("a.png", "use tiles"):
        raise RuntimeError("a bug")


@pytest.mark.parametrize(("device", "calls"), [("cpu", [(-4, 0), (-1, 2**31 - 1)]), ("cuda", [])])
def test_freed_memory_is_kept_where_a_cpu_computes(monkeypatch, device, calls):
    made = []
    library = SimpleNamespace(mallopt=lambda option, value: made.append((option, value)))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory.sys, "platform", "linux")
    memory.keep_freed_memory(torch.device(device))
    assert made == calls


def test_the_cpus_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 9} if process == 0 else set(), raising=False)
    assert parallel.available_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert parallel.available_cpus() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert parallel.available_cpus() == 1


def test_indices_are_mapped_in_order_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr(parallel, "available_cpus", lambda: 2)
    for count, chunk in ((0, 3), (1, 3), (7, 3), (9, 3), (5, 1)):
        assert list(map_indices(lambda index: index * index, count, chunk)) == [index**2 for index in range(count)]


def test_so_many_items_are_begun_ahead_of_what_is_taken():
    taken = []

    def items():
        for number in range(9):
            taken.append(number)
            yield number

    results = map_ahead(lambda number: number, items(), ahead=3)
    assert next(results) == 0 and len(taken) == 4
    assert next(results) == 1 and len(taken) == 5
    assert list(results) == [2, 3, 4, 5, 6, 7, 8]


def test_a_connection_that_does_not_answer_for_the_timeout_ends(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "_group_without_timeout", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        own = SimpleNamespace(status=psutil.CONN_ESTABLISHED, fd=client.fileno())
        waiting = SimpleNamespace(status=psutil.CONN_LISTEN, fd=-1)
        connections = SimpleNamespace(net_connections=lambda kind: [waiting, own])
        monkeypatch.setattr(psutil, "Process", lambda: connections)
        distributed.notice_lost_machines(timedelta(minutes=10))
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        options = [client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert options == [60, 60, 9, 600_000] and client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


@pytest.mark.parametrize(("is_first", "order"), [(True, ["work", "barrier"]), (False, ["barrier", "work"])])
def test_the_first_process_of_a_machine_works_before_the_others(monkeypatch, is_first, order):
    events = []
    monkeypatch.setattr(distributed, "barrier_without_timeout", lambda accelerator: events.append("barrier"))
    with distributed.first_on_each_machine(SimpleNamespace(is_local_main_process=is_first)):
        events.append("work")
    assert events == order


@pytest.mark.parametrize("is_nohup", [True, False])
def test_a_closed_terminal_ends_a_process_unless_it_was_started_to_outlast_it(monkeypatch, is_nohup):
    monkeypatch.setattr(signals, "_follow_launcher", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_nohup else signal.SIG_DFL)
        signals.exit_on_sigterm()
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == is_nohup
        if not is_nohup:
            with pytest.raises(SystemExit) as end:
                signal.raise_signal(signal.SIGHUP)
            assert end.value.code == 129
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize(
    ("environment", "follows"),
    [
        ({}, False),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, True),
        ({"ACCELERATE_MIXED_PRECISION": "no", "WORLD_SIZE": "2"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, True),
    ],
)
def test_a_process_ends_with_its_launcher(monkeypatch, environment, follows):
    for name in ("ACCELERATE_MIXED_PRECISION", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    calls = []
    library = SimpleNamespace(prctl=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(signals.ctypes, "CDLL", lambda name: library)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signals.exit_on_sigterm()
        assert calls == ([(1, signal.SIGTERM)] if follows else [])
        with pytest.raises(SystemExit) as end:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        assert end.value.code == 143
        calls.clear()
        ignored = {number: signal.getsignal(number) for number in signals.stop_signals()}
        signals.outlast_stop_signals()
        assert calls == [(1, signal.SIGKILL)]
        assert {signal.getsignal(number) for number in signals.stop_signals()} == {signal.SIG_IGN}
        for number, handler in ignored.items():
            signal.signal(number, handler)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_the_peak_of_memory_is_not_held_by_an_error():
    class Tensors(list):
        """Something that can be watched."""

    watched = []

    def fill() -> None:
        tensors = Tensors([1])
        watched.append(weakref.ref(tensors))
        raise MemoryError("full")

    with pytest.raises(errors.MemoryShortage) as caught, memory_shortage("a", "b"):
        fill()
    assert watched[0]() is None and str(caught.value) == "a: does not fit into memory; b (full)"
