"""Run a script where one process has room for few images at a time.

`little_memory.py RANK IMAGES train.py --flags ...`: process RANK has room for so many at a time, the others for all.
"""

import os
import runpy
import sys

import torch

from train_utils.memory.trial import MemoryTrial

rank, images = sys.argv[1], int(sys.argv[2])
make = MemoryTrial.__init__
try_step = MemoryTrial._try_step


def make_as_on_gpu(trial: MemoryTrial, *arguments) -> None:
    make(trial, *arguments)
    trial.is_cpu = False


def try_step_in_room(trial: MemoryTrial, shape, batch_split) -> None:
    if os.environ.get("RANK", "0") == rank and batch_split.micro_batch_size > images:
        raise torch.OutOfMemoryError
    try_step(trial, shape, batch_split)


MemoryTrial.__init__ = make_as_on_gpu
MemoryTrial._try_step = try_step_in_room
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
