"""Changed files of every kind end in a value or in one line: none in a traceback, a hang, a crash or much memory.

The first inputs are those of cases.py, which have leaked once.
"""

import os

import pytest
from support.launches import launch

from tests.fuzz.run import run

SEED = int(os.environ.get("FUZZ_SEED", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "100000"))
QUICK = 95  # two inputs of each kind, and those that have leaked once


def test_a_few_changed_files_of_each_kind_leak_nothing(tmp_path):
    result = launch("tests/fuzz/run.py", "--child", "--seed", str(SEED), "--count", str(QUICK), "--leaks", tmp_path)
    number = (tmp_path / "number").read_text()
    assert number == "end", f"ended at input {number}\n{result.stdout}"
    assert result.returncode == 0, result.stdout
    assert result.stdout == ""  # a line for each leak


@pytest.mark.slow
def test_many_changed_files_leak_nothing(tmp_path):
    assert run(SEED, COUNT, tmp_path) == []
