"""Run a script where one process believes that its machine has little memory free.

`little_memory.py RANK BYTES train.py --flags ...`: process RANK sees BYTES available, the others what there is.
"""

import os
import runpy
import sys

import train_utils.memory.preflight

rank, available = sys.argv[1], float(sys.argv[2])
if os.environ.get("RANK", "0") == rank:
    train_utils.memory.preflight.available_bytes = lambda: available
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
