"""Run a script that is told it runs on Python 3.9: `on_python_3_9.py bootstrap.py ...`."""

import runpy
import sys

sys.version_info = (3, 9, 1)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
