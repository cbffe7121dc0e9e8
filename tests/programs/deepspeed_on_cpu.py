"""Run a script under DeepSpeed on CPUs: `deepspeed_on_cpu.py train.py --flags ...`, with deepspeed_zero2.yaml.

On CPUs accelerate starts DeepSpeed but counts a single process. This program puts in the numbers that the launcher has
set, and leaves out the check that refuses processes started for GPUs.
"""

import os
import runpy
import sys

from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

import runtime.launch

VARIABLES = {"num_processes": "WORLD_SIZE", "process_index": "RANK", "local_process_index": "LOCAL_RANK"}

start_accelerator = Accelerator.__init__


def start_with_all_processes(self: Accelerator, *args, **kwargs) -> None:
    start_accelerator(self, *args, **kwargs)
    for state in (PartialState, AcceleratorState):
        state._shared_state.update({name: int(os.environ[variable]) for name, variable in VARIABLES.items()})


Accelerator.__init__ = start_with_all_processes
runtime.launch.check_launch = lambda deterministic: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
