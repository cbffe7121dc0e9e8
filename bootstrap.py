"""Run a command in this repository's own environment, which is made on first use.

    python3 bootstrap.py train.py --dataset DATA
    python3 bootstrap.py accelerate launch --config_file accelerate_configs/cpu.yaml train.py
    python3 bootstrap.py pytest

The environment is .venv beside this file. It holds requirements.txt; the commands that test and check (pytest, mypy,
ruff, pre-commit) add requirements-dev.txt. It is updated when these change.
It needs uv, or a Python that can put pip into it (on Debian and Ubuntu: apt install python3-venv).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, TextIO

# First of all, and in words that Python 3.6 can read, because everything below may fail on an older one.
if sys.version_info < (3, 10):
    sys.exit(
        "bootstrap: needs Python 3.10 or newer and this is {}.{} ({}); run it with another, "
        "for example python3.12 bootstrap.py".format(*sys.version_info[:2], sys.executable)
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "bootstrap-stamp"  # where the environment was made, and, written last, what it holds
TEST_COMMANDS = ("pytest", "mypy", "ruff", "pre-commit")
RUNS = "requirements.txt"
TESTS = "requirements-dev.txt"  # with all other requirements


def main(args: list[str]) -> int:
    """Make the environment if need be, then become `args` (on Windows: run it and return its exit code)."""
    if not args or args[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if args else 2
    prepare_environment(requirements_of(args))
    if args[0].endswith(".py"):
        args = ["python", *args]
    command = shutil.which(args[0], path=str(BIN))
    if command is None:
        fail(f"no command {args[0]!r} in {BIN}; try python, pytest, ruff or accelerate")
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if os.name == "nt":
        return subprocess.run([command, *args[1:]]).returncode
    os.execv(command, [command, *args[1:]])  # the same process, so that signals reach the command


def fail(message: str) -> NoReturn:
    """End with one line on standard error and exit code 1."""
    sys.exit(f"bootstrap: {message}")


def requirements_of(args: list[str]) -> str:
    """The name of the requirements that a command needs."""
    command = args[2] if args[:2] == ["python", "-m"] and len(args) > 2 else args[0]
    return TESTS if command in TEST_COMMANDS else RUNS


def prepare_environment(requirements: str) -> None:
    """Bring .venv up to date with the requirements; an install that was interrupted is done again."""
    if has_installed(requirements):
        return
    with open(ROOT / ".venv.lock", "w") as lock:
        wait_for_lock(lock)
        if has_installed(requirements):  # another process may have finished the work while this one waited
            return
        stamp = read_stamp()
        if stamp[:1] != [str(VENV)] or not PYTHON.exists():
            if stamp and VENV.is_symlink():
                fail(f"{VENV} is a link to the environment of {stamp[0]}, which would be lost; remove the link")
            # The scripts of an environment that was moved, or lost its Python, point nowhere: start over.
            make_venv(clear=bool(stamp) or not PYTHON.exists())
        STAMP.write_text(f"{VENV}\n", encoding="utf-8")
        install(requirements)
        STAMP.write_text(f"{VENV}\n{checksum(requirements)}\n", encoding="utf-8")


def has_installed(requirements: str) -> bool:
    """Whether the environment is whole, and holds these requirements or those of the tests, which include them."""
    stamps = [[str(VENV), checksum(name)] for name in (requirements, TESTS)]
    return PYTHON.exists() and read_stamp() in stamps


def checksum(requirements: str) -> str:
    """The name of the requirements with the checksum of their files."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("requirements*.txt" if requirements == TESTS else requirements)):
        digest.update(path.read_bytes())
    return f"{requirements} {digest.hexdigest()}"


def read_stamp() -> list[str]:
    """The lines of the stamp: none without an environment, one when its install was not finished."""
    return STAMP.read_text(encoding="utf-8").splitlines() if STAMP.is_file() else []


def wait_for_lock(lock: TextIO) -> None:
    """Let one process install at a time: the nodes of a cluster start together on one file system."""
    if os.name != "nt":
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # Lustre and some NFS have no locks
            print(f"bootstrap: no lock ({error.strerror}): let one machine install first", file=sys.stderr)


def make_venv(clear: bool) -> None:
    """Make .venv, with pip unless uv is there."""
    print(f"bootstrap: making {VENV}", file=sys.stderr)
    command = [sys.executable, "-m", "venv", str(VENV)]
    if clear:
        command.append("--clear")
    if shutil.which("uv"):
        command.append("--without-pip")
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        fail(f"{sys.executable} could not make {VENV}; on Debian and Ubuntu: apt install python3-venv")


def install(requirements: str) -> None:
    """Install requirements into the environment, by uv or by its own pip."""
    print(f"bootstrap: installing {requirements}", file=sys.stderr)
    if shutil.which("uv"):
        command = ["uv", "pip", "install", "--python", str(PYTHON)]
    else:
        command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
        # uv may have made the environment, without pip
        subprocess.run([str(PYTHON), "-m", "ensurepip"], stdout=subprocess.DEVNULL)
    # Standard output belongs to the command that runs afterwards.
    code = subprocess.run([*command, "-r", str(ROOT / requirements)], stdout=sys.stderr).returncode
    if code != 0:
        fail(f"the installation ended with exit code {code}, its reason stands above; the same command tries again")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on")
