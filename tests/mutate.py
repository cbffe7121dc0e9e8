"""Mutants: small mistakes, listed in mistakes.py, that the tests must notice.

    python tests/mutate.py            # every mutant against the tests named for it, survivors against the whole suite
    python tests/mutate.py 3 17       # only some, by number

Each mutant is put into a copy of the repository, where its tests are run with -x. Exit code 1 if more than ALLOWED
survive. `pytest -m slow tests/test_mutants.py` does the same without the whole suite.

A mutant is anchored by a function and a piece of its syntax tree: neither another layout nor another name of a local
variable makes it stale.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mistakes import MUTANTS, Mutant
from rewrite import rewrite

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 3
SECONDS = 600  # for a mutant's own tests
IGNORED = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache", ".hypothesis")


def change(folder: Path, mutant: Mutant) -> None:
    """Put a mutant into a copy of the repository."""
    file = folder / mutant.file
    source = rewrite(file.read_text(encoding="utf-8"), mutant.place, mutant.before, mutant.after)
    if source is None:
        raise SystemExit(f"mutate: {mutant.file}: {mutant.place} has no single {mutant.before!r}: correct the list")
    file.write_text(source, encoding="utf-8")


def fails(folder: Path, tests: list[str]) -> bool:
    """Whether some of these test files, or any where none are named, fail in the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q"]
    if tests:
        command += ["-n", "0"]
    for test in tests:
        (path,) = (folder / "tests").rglob(test)
        command.append(str(path.relative_to(folder)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True  # it hangs, which nobody overlooks
    if done.returncode not in (0, 1, 2):  # 2: interrupted, an import that fails
        raise SystemExit(f"mutate: {' '.join(command)} ended with {done.returncode}:\n{done.stdout.decode()}")
    return done.returncode != 0


def is_noticed(mutant: Mutant, folder: Path, *, whole_suite: bool) -> bool:
    """Whether tests fail in a copy of the repository below `folder` that has the mutant."""
    copy = Path(tempfile.mkdtemp(dir=folder)) / "copy"
    shutil.copytree(ROOT, copy, ignore=IGNORED)
    change(copy, mutant)
    noticed = fails(copy, mutant.tests.split()) or (whole_suite and fails(copy, []))
    shutil.rmtree(copy)
    return noticed


def main() -> None:
    """Exit code 1 if more than ALLOWED survive."""
    chosen = [int(number) for number in sys.argv[1:]] or [*range(len(MUTANTS))]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for number in chosen:
            mutant = MUTANTS[number]
            noticed = is_noticed(mutant, Path(folder), whole_suite=True)
            survivors += [] if noticed else [number]
            what = " ".join(mutant.after.split())[:80]
            print(f"{number:3} {'noticed ' if noticed else 'SURVIVED'} {mutant.file}: {what}", flush=True)
    print(f"{len(survivors)} of {len(chosen)} survived: {survivors}")
    sys.exit(len(survivors) > ALLOWED)


if __name__ == "__main__":
    main()
