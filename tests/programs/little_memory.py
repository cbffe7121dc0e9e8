"""Run a script where one process has room for few images at a time.

`little_memory.py RANK IMAGES train.py --flags ...`: process RANK has room for so many at a time, the others for all.
"""

import os
import runpy
import sys

import torch

from train_utils import start
from train_utils.memory import MemoryTrial

rank, images = sys.argv[1], int(sys.argv[2])
whole_step = MemoryTrial.try_step


def try_step_in_room(trial: MemoryTrial, batch_split) -> None:
    if os.environ.get("RANK", "0") == rank and batch_split.micro_batch_size > images:
        raise torch.OutOfMemoryError
    whole_step(trial, batch_split)


start.reports_shortage = lambda device: True  # as a GPU does
MemoryTrial.try_step = try_step_in_room
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
