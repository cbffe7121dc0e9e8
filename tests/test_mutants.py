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


@pytest.mark.parametrize("source", [SOURCE, SOURCE.replace("values", "pixels").replace("total", "result")])
def test_a_mutant_is_made_whatever_the_layout_and_the_names_of_local_variables(source):
    changed = rewrite(source, "Scale.apply", "values * factor", "values / factor")
    scope: dict[str, type] = {}
    exec(changed, scope)
    assert scope["Scale"]().apply(6, 2) == 3
    assert scope["Scale"]().undo(6, 2) == 12
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
def test_what_is_not_there_exactly_once_is_not_changed(place, before):
    assert rewrite(SOURCE, place, before, "0") is None


@pytest.mark.slow
def test_every_mutant_has_its_place_and_its_tests():
    stale = []
    names = {path.name for path in (mutate.ROOT / "tests").rglob("test_*.py")}
    for number, mutant in enumerate(mutate.MUTANTS):
        source = (mutate.ROOT / mutant.file).read_text(encoding="utf-8")
        changed = rewrite(source, mutant.place, mutant.before, mutant.after)
        if changed in (None, source) or not set(mutant.tests.split()) <= names:
            stale.append(f"{number}: {mutant.file}: {mutant.place}: {mutant.before}")
    assert stale == []


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutate.MUTANTS, ids=[f"{mutant.file}-{mutant.place}" for mutant in mutate.MUTANTS])
def test_a_mutant_is_noticed(mutant, tmp_path):
    assert mutate.is_noticed(mutant, tmp_path, whole_suite=False)
