"""Changed files of every kind end in a value or in one line: none in a traceback, a hang, a crash or much memory.

A leak that was found is a case of CASES for good.
"""

import os

import pytest

from tests.fuzz.run import run

SEED = int(os.environ.get("FUZZ_SEED", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "100000"))
QUICK = 290  # ten inputs of each kind
CASES: list[tuple[int, str, int]] = []  # seed, kind and number of inputs that have leaked


def test_a_few_changed_files_of_each_kind_leak_nothing(tmp_path):
    assert run(SEED, QUICK, tmp_path) == []


@pytest.mark.slow
def test_many_changed_files_leak_nothing(tmp_path):
    assert run(SEED, COUNT, tmp_path) == []
