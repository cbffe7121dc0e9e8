"""Run a script whose processes wait for each other for 5 seconds at most: `short_timeout.py train.py --flags ...`."""

import runpy
import sys
from datetime import timedelta

import runtime.distributed
import runtime.launch

runtime.launch.COLLECTIVE_TIMEOUT = runtime.distributed.COLLECTIVE_TIMEOUT = timedelta(seconds=5)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
