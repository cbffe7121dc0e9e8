"""Run a script of which one process sends itself a signal before a step.

`signal_at_step.py STEP SIGKILL RANK train.py --flags ...`
"""

import os
import runpy
import signal
import sys

import train_utils.step

step, name, rank = int(sys.argv[1]), sys.argv[2], sys.argv[3]
seed_step = train_utils.step.seed_step


def seed_step_and_send(seed: int, number: int, process: int) -> None:
    if number == step and os.environ.get("RANK", "0") == rank:
        os.kill(os.getpid(), signal.Signals[name])
    seed_step(seed, number, process)


train_utils.step.seed_step = seed_step_and_send
sys.argv = sys.argv[4:]
runpy.run_path(sys.argv[0], run_name="__main__")
