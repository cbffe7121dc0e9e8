"""Requests to stop, by signals or a closed terminal, and processes that outlast them but not their parent."""

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from support.launches import ROOT

from runtime import signals

PROGRAM = """
import time
from runtime.signals import StopRequest
request = StopRequest()
print("ready", flush=True)
while not request.is_asked:
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def process():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        watchdog = threading.Timer(60, process.kill)  # no line is waited for without end
        watchdog.start()
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()
        watchdog.cancel()


def test_a_ctrl_c_that_is_delivered_twice_is_one(process):
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 128 + signal.SIGINT  # long before the program would end
    assert process.stderr.read().count("stopping after this step") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_other_signals_ask_as_often_as_they_like(process, number):
    process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    process.send_signal(number)
    time.sleep(0.3)
    assert process.poll() is None


TERMINAL = """
import signal, time
from runtime.signals import StopRequest
request = StopRequest()
print("ready", flush=True)
while not request.is_asked:
    time.sleep(0.01)
print("to a terminal that is gone", flush=True)
open("saved", "w").close()
"""


def test_a_run_whose_terminal_is_closed_saves(tmp_path):
    terminal, of_run = pty.openpty()
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "start_new_session": True}
    command = [sys.executable, "-c", "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)" + TERMINAL]
    with subprocess.Popen(command, stdin=of_run, stdout=of_run, stderr=of_run, **options) as process:
        os.close(of_run)
        assert os.read(terminal, 100).startswith(b"ready")
        os.close(terminal)  # the kernel sends SIGHUP
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    assert (tmp_path / "saved").exists()


def test_nohup_outlasts_its_terminal():
    with subprocess.Popen(
        ["nohup", sys.executable, "-c", PROGRAM], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert not select.select([process.stdout], [], [], 0)[0], "SIGHUP has asked it to stop"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        process.kill()


PARENT = """
import os, time
from multiprocessing import get_context
from runtime.signals import outlast_stop_signals

def work():
    outlast_stop_signals()
    print(os.getpid(), flush=True)
    time.sleep(600)

get_context("fork").Process(target=work, daemon=True).start()
time.sleep(600)
"""


def test_a_worker_outlasts_signals_but_not_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        worker = psutil.Process(int(process.stdout.readline()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            worker.send_signal(number)
        time.sleep(0.2)
        assert worker.is_running()
        assert worker.status() != psutil.STATUS_ZOMBIE
        process.kill()
        psutil.wait_procs([worker], timeout=10)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_closed_terminal_ends_a_process(monkeypatch, handlers):
    monkeypatch.setattr(signals, "_follow_launcher", lambda: None)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signals.exit_on_sigterm()
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(signal.SIGHUP)
    assert end.value.code == 129


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
def test_a_process_ends_with_its_launcher(monkeypatch, handlers, kernel_calls, environment, follows):
    for name in ("ACCELERATE_MIXED_PRECISION", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    signals.exit_on_sigterm()
    assert kernel_calls == ([(1, signal.SIGTERM)] if follows else [])
    with pytest.raises(SystemExit) as end:
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
    assert end.value.code == 143


@pytest.fixture
def handlers():
    """Puts the handlers of the signals back after a test that changes them in the process of the tests."""
    numbers = {*signals.stop_signals(), signal.SIGTERM, signal.SIGHUP}
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def kernel_calls(monkeypatch) -> list[tuple[int, int]]:
    """What the kernel is asked to send where the parent ends."""
    calls = []
    library = SimpleNamespace(prctl=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(signals.ctypes, "CDLL", lambda name: library)
    return calls
