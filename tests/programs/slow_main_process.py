"""Run a script whose main process takes longer for pictures and checkpoints than a collective may.

`slow_main_process.py train.py --flags ...`
"""

import runpy
import sys
import time
from datetime import timedelta

import runtime.distributed
import runtime.launch
import train_utils.run_log
from train_utils.checkpoints import Checkpoints

LIMIT = 5.0  # seconds of a collective

runtime.launch.COLLECTIVE_TIMEOUT = runtime.distributed.COLLECTIVE_TIMEOUT = timedelta(seconds=LIMIT)
sample_panels = train_utils.run_log.sample_panels
write = Checkpoints._write


def slow_panels(*arguments: object) -> dict:
    time.sleep(2 * LIMIT)
    return sample_panels(*arguments)


def slow_write(self: Checkpoints, *arguments: object) -> bool:
    time.sleep(2 * LIMIT)
    return write(self, *arguments)


train_utils.run_log.sample_panels = slow_panels
Checkpoints._write = slow_write
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
