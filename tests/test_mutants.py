"""The tests notice mistakes: each of mutants.py, in a copy of the repository."""

import mutants
import pytest


@pytest.mark.parametrize("number", range(len(mutants.MUTANTS)))
def test_a_mutant_can_still_be_made(number):
    mutant = mutants.MUTANTS[number]
    assert (mutants.ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.before) == 1
    assert mutant.before != mutant.after
    for test in mutant.tests.split():
        assert (mutants.ROOT / "tests" / test).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(mutants.MUTANTS)))
def test_a_mutant_is_noticed(number, tmp_path):
    assert mutants.is_noticed(mutants.MUTANTS[number], tmp_path, whole_suite=False)
