"""Being asked to stop by Ctrl-C: once however often it is delivered, and at once when it is pressed again."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

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
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_ctrl_c_that_is_delivered_twice_is_one_and_a_later_one_ends_at_once(process):
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 128 + signal.SIGINT  # long before the program would end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_other_signals_ask_as_often_as_they_like(process, number):
    process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    time.sleep(1.2)
    process.send_signal(number)
    time.sleep(0.3)
    assert process.poll() is None
