"""Run a script under a limit of the operating system: `limited.py RLIMIT_FSIZE 40000 train.py --flags ...`."""

import resource
import runpy
import sys

limit, size = sys.argv[1], int(sys.argv[2])
resource.setrlimit(getattr(resource, limit), (size, size))
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
