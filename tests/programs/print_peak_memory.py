"""Run a script and print the most memory that it took: `print_peak_memory.py predict.py --flags ...`, on Linux.

It prints the kernel's line "VmHWM: ... kB". `getrusage` would include the memory of the parent process at the fork.
"""

import atexit
import runpy
import sys


def print_peak() -> None:
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM:")))


atexit.register(print_peak)  # the script ends the process
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
