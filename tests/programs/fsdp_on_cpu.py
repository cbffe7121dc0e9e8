"""Run a script under FSDP2 on CPUs: `fsdp_on_cpu.py train.py --flags ...`, launched with accelerate_configs/fsdp.yaml.

accelerate shards on GPUs only, and falls back to plain data parallel training on CPUs without a message. This program
tells it after its start what it would find on a machine with GPUs; its own FSDP2 code then runs on gloo.
"""

import runpy
import sys

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

start_accelerator = Accelerator.__init__


def start_with_fsdp(self: Accelerator, *args, **kwargs) -> None:
    start_accelerator(self, *args, **kwargs)
    plugin = FullyShardedDataParallelPlugin()  # reads the profile from the environment, as the launcher passes it on
    AcceleratorState._shared_state["fsdp_plugin"] = plugin
    for state in (PartialState, AcceleratorState):
        state._shared_state["distributed_type"] = DistributedType.FSDP


Accelerator.__init__ = start_with_fsdp
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
