"""The tests notice mistakes: each of mistakes.py, put into a copy of the repository by mutate.py."""

import mutate
import pytest
from rewrite import rewrite

SOURCE = """
class Scale:
    def apply(self, values, factor):
        total = values * (  # a comment
            factor
        )
        return total

    def undo(self, values, factor):
        return values * factor
"""


@pytest.fixture(
    params=[SOURCE, SOURCE.replace("values", "pixels").replace("total", "result")], ids=["as it is", "renamed"]
)
def source(request) -> str:
    return request.param


def test_a_mutant_is_made_whatever_the_layout_or_the_names_of_local_variables(source):
    changed = rewrite(source, "Scale.apply", "values * factor", "values / factor")
    scope: dict[str, type] = {}
    exec(changed, scope)
    assert scope["Scale"]().apply(6, 2) == 3
    assert scope["Scale"]().undo(6, 2) == 12


def test_a_mutant_may_leave_a_statement_out(source):
    scope: dict[str, type] = {}
    removed = rewrite(source, "Scale.apply", "total = values * factor\nreturn total", "total = 0\nreturn total")
    exec(removed, scope)
    assert scope["Scale"]().apply(6, 2) == 0
    assert scope["Scale"]().undo(6, 2) == 12


@pytest.mark.parametrize(
    ("place", "before"),
    [
        ("Scale.apply", "values + factor"),
        ("Scale.apply", "self.values * factor"),
        ("Scale.redo", "values * factor"),
        ("Scale", "values * factor"),
    ],
    ids=["not there", "another name", "no such function", "twice"],
)
def test_code_that_is_not_there_exactly_once_is_not_changed(place, before):
    assert rewrite(SOURCE, place, before, "0") is None


@pytest.mark.slow
def test_every_mutant_has_its_place():
    stale = []
    for number, mutant in enumerate(mutate.MUTANTS):
        source = (mutate.ROOT / mutant.file).read_text(encoding="utf-8")
        if rewrite(source, mutant.place, mutant.before, mutant.after) in (None, source):
            stale.append(f"{number}: {mutant.file}: {mutant.place}: {mutant.before}")
    assert stale == []


def test_every_mutant_has_tests_that_are_there():
    names = {path.name for path in (mutate.ROOT / "tests").rglob("test_*.py")}
    missing = {test for mutant in mutate.MUTANTS for test in mutant.tests.split()} - names
    assert missing == set()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutate.MUTANTS, ids=[f"{mutant.file}-{mutant.place}" for mutant in mutate.MUTANTS])
def test_a_mutant_is_noticed(mutant, tmp_path):
    assert mutate.is_noticed(mutant, tmp_path, whole_suite=False)
