"""Stands before the module venv on PYTHONPATH, as venv/__main__.py: fails as Debian's does without python3-venv."""

import runpy
import sys
from pathlib import Path

if "--without-pip" not in sys.argv:
    sys.exit("The virtual environment was not created successfully because ensurepip is not available.")
del sys.modules["venv"]
sys.path.remove(str(Path(__file__).parents[1]))
runpy.run_module("venv", run_name="__main__")
