"""Ctrl-C while a script imports its libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.launches import ROOT

INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "script", ["train.py", "predict.py", "app.py", "compare.py", "review.py", "data_utils.pack", "data_utils.shapes"]
)
def test_an_interrupt_of_the_imports_is_one_line(tmp_path: Path, script: str):
    (tmp_path / "numpy.py").write_text(INTERRUPTED)  # is imported in place of the library
    command = [ROOT / script] if script.endswith(".py") else ["-m", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run([sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 130
    name = script if script.endswith(".py") else f"{script.partition('.')[2]}.py"
    assert result.stderr == f"{name}: interrupted\n"
