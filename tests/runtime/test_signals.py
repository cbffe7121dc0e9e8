"""Requests to stop, by signals or a closed terminal, and processes that outlast them but not their parent."""

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.launches import ROOT

IMPORTS_ARE_INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
ASKED = """
import os, time
from runtime.signals import StopRequest
request = StopRequest()
print("ready", flush=True)
while not request.is_asked:
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(60 * (os.environ.get("GOES_ON") == "1"))
open("saved", "w").close()
"""
RAISES = """
import time
from runtime.script import run_script
def main():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned", flush=True)
run_script(main)
"""
# outlives its launcher, as the one process of `accelerate launch` would
LAUNCHED = """
import os, subprocess, sys, time
os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
program = "import os, time; from runtime.script import run_script; "
program += "run_script(lambda: (print(os.getpid(), flush=True), time.sleep(600)))"
subprocess.Popen([sys.executable, "-c", program])
time.sleep(600)
"""
WORKER = """
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


@pytest.mark.parametrize("script", ["train.py", "data_utils.pack"])
def test_an_interrupt_of_the_imports_is_one_line(tmp_path: Path, script: str):
    (tmp_path / "numpy.py").write_text(IMPORTS_ARE_INTERRUPTED)  # is imported in place of the library
    command = [ROOT / script] if script.endswith(".py") else ["-m", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run([sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 130
    name = script if script.endswith(".py") else f"{script.partition('.')[2]}.py"
    assert result.stderr == f"{name}: interrupted\n"


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a program in `tmp_path`, which is killed after a minute."""
    started = []

    def start(program: str, *launcher: str, **variables: str) -> subprocess.Popen:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "GOES_ON": "1"} | variables
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*launcher, sys.executable, "-c", program]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **pipes)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        started.append((process, watchdog))
        return process

    yield start
    for process, watchdog in started:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("own", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "")]
)
def test_threads_wait_for_each_other_briefly_unless_the_user_says_how(own, spins):
    program = "import os; from runtime.signals import begin_imports; begin_imports();"
    program += "print(os.environ.get('GOMP_SPINCOUNT', ''))"
    variables = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=variables | own, capture_output=True, text=True
    )
    assert result.stdout.strip() == spins, result.stderr


def test_a_machine_without_a_temporary_folder_is_one_line(start):
    program = "import tempfile; from runtime.signals import begin_imports\n"
    program += "def gettempdir(): raise FileNotFoundError(2, 'No usable temporary directory found in [/tmp]')\n"
    program += "tempfile.gettempdir = gettempdir; begin_imports()"
    process = start(program)
    assert process.wait(timeout=20) == 1
    (line,) = process.stderr.read().splitlines()
    assert "/tmp" in line
    assert "TMPDIR" in line


def test_a_ctrl_c_that_is_delivered_twice_is_one(start):
    process = start(ASKED)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 128 + signal.SIGINT  # long before the program would end
    assert process.stderr.read().count("stopping after this step") == 1


def test_other_signals_ask_as_often_as_they_like(start):
    process = start(ASKED)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None


def test_a_run_whose_terminal_is_closed_saves(tmp_path):
    terminal, of_run = pty.openpty()
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "start_new_session": True}
    command = [sys.executable, "-c", "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)" + ASKED]
    with subprocess.Popen(command, stdin=of_run, stdout=of_run, stderr=of_run, **options) as process:
        os.close(of_run)
        assert os.read(terminal, 100).startswith(b"ready")
        os.close(terminal)  # the kernel sends SIGHUP
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    assert (tmp_path / "saved").exists()


def test_nohup_outlasts_its_terminal(start):
    process = start(ASKED, "nohup")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert not select.select([process.stdout], [], [], 0)[0], "SIGHUP has asked it to stop"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_script_that_is_asked_to_stop_ends_in_order(start, number):
    process = start(RAISES)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert process.stdout.read() == "cleaned\n"
    assert "Traceback" not in process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize("parent", [LAUNCHED, WORKER], ids=["a launched script", "a loader's process"])
def test_a_process_ends_with_its_parent(start, parent):
    launcher = start(parent)
    child = psutil.Process(int(launcher.stdout.readline()))
    if parent == WORKER:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            child.send_signal(number)
    time.sleep(0.2)
    assert child.status() != psutil.STATUS_ZOMBIE
    launcher.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
