"""Run a script whose network computes in float64: `in_float64.py train.py --flags ...`."""

import runpy
import sys

import torch

torch.set_default_dtype(torch.float64)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
