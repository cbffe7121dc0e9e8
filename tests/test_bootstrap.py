"""bootstrap.py in a copy of its own, with requirements that need no download."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.launches import PROGRAMS, ROOT

SCRIPT = ROOT / "bootstrap.py"
# The interpreter below this environment: the one that a user would call, and where Debian's pip lives.
PYTHON = getattr(sys, "_base_executable", sys.executable)


@pytest.fixture
def repository(tmp_path):
    """A folder with bootstrap.py and requirements that are installed already."""
    root = tmp_path / "repository"
    root.mkdir()
    shutil.copy(SCRIPT, root)
    (root / "requirements.txt").write_text("# nothing\n")
    (root / "requirements-dev.txt").write_text("-r requirements.txt\n")
    return root


@pytest.fixture
def stand_in_uv(tmp_path, monkeypatch):
    """A uv that installs nothing, is quick, and refuses requirements that cannot be had; the file of its arguments."""
    arguments = tmp_path / "arguments"
    (tmp_path / "uv").write_text(f'#!/bin/sh\necho "$@" > {arguments}\n! grep no-such-package "$6"\n')
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return arguments


def bootstrap(root: Path, *args: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PIP_NO_INDEX": "1"}
    command = [PYTHON, str(root / "bootstrap.py"), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=root.parent)


def last_line(done: subprocess.CompletedProcess) -> str:
    return done.stderr.strip().splitlines()[-1]


def test_the_first_run_makes_the_environment_and_the_second_uses_it(repository):
    """Both hand on arguments and exit code."""
    code = "import sys; print(sys.prefix, sys.argv[1:]); sys.exit(7)"
    first = bootstrap(repository, "python", "-c", code, "--flag", "two words")
    assert first.returncode == 7
    assert first.stdout == f"{repository / '.venv'} ['--flag', 'two words']\n"  # and nothing of pip's
    second = bootstrap(repository, "python", "-c", code)
    assert (second.returncode, second.stderr) == (7, "")


def test_a_python_that_makes_no_environment_is_told_what_to_install(repository, tmp_path, monkeypatch):
    (tmp_path / "venv.py").write_text("import sys; sys.exit('ensurepip is not available')")  # Debian's says so
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = bootstrap(repository, "python", "-c", "")
    assert process.returncode == 1
    assert last_line(process).endswith("on Debian and Ubuntu: apt install python3-venv")
    assert "Traceback" not in process.stderr


@pytest.mark.usefixtures("stand_in_uv")
class TestEnvironment:
    """When it is made, completed and used."""

    def test_changed_requirements_are_installed_into_the_same_environment(self, repository):
        bootstrap(repository, "python", "-c", "")
        marker = repository / ".venv" / "kept"
        marker.touch()
        with open(repository / "requirements.txt", "a") as requirements:
            requirements.write("# changed\n")
        assert "installing" in bootstrap(repository, "python", "-c", "").stderr
        assert bootstrap(repository, "python", "-c", "").stderr == ""
        assert marker.exists()

    def test_changed_requirements_are_installed_by_pip_where_uv_is_there_no_more(self, repository, tmp_path):
        bootstrap(repository, "python", "-c", "")
        (tmp_path / "uv").unlink()
        with open(repository / "requirements.txt", "a") as requirements:
            requirements.write("# changed\n")
        process = bootstrap(repository, "python", "-c", "import pip")
        assert process.returncode == 0, process.stderr

    def test_tests_add_what_they_need_to_the_same_environment(self, repository):
        assert "installing requirements.txt\n" in bootstrap(repository, "python", "-c", "").stderr
        marker = repository / ".venv" / "kept"
        marker.touch()
        first = bootstrap(repository, "pytest", "--version").stderr
        assert "installing requirements-dev.txt\n" in first
        assert "no command 'pytest'" in first  # the requirements of this repository are empty
        for command in (["python", "-c", ""], ["python", "-m", "mypy"], ["python", "-m", "platform"]):
            assert "installing" not in bootstrap(repository, *command).stderr
        assert marker.exists()

    def test_an_install_that_failed_is_done_again(self, repository):
        requirements = repository / "requirements.txt"
        good = requirements.read_text()
        requirements.write_text("no-such-package-anywhere==1.0\n")
        for _ in range(2):
            failed = bootstrap(repository, "python", "-c", "print('ran')")
            assert failed.returncode == 1
            assert failed.stdout == ""
            assert last_line(failed).startswith("bootstrap: the installation ended with exit code 1, its reason")
        requirements.write_text(good)
        assert bootstrap(repository, "python", "-c", "print('ran')").stdout == "ran\n"

    @pytest.mark.slow
    def test_half_an_environment_is_completed(self, repository):
        bootstrap(repository, "python", "-c", "")
        (repository / ".venv" / "bootstrap-stamp").unlink()
        process = bootstrap(repository, "python", "-c", "print('ran')")
        assert process.stdout == "ran\n"
        assert "making" in process.stderr
        assert "installing" in process.stderr

    @pytest.mark.slow
    def test_a_moved_environment_is_made_anew(self, repository):
        bootstrap(repository, "python", "-c", "")
        (repository / ".venv" / "old").touch()
        moved = repository.rename(repository.with_name("moved"))
        process = bootstrap(moved, "python", "-c", "import sys; print(sys.prefix)")
        assert process.stdout == f"{moved / '.venv'}\n"
        assert not (moved / ".venv" / "old").exists()

    def test_a_link_to_the_environment_of_another_checkout_is_refused(self, repository):
        other = repository.with_name("other")
        other.mkdir()
        (other / "bootstrap-stamp").write_text("/other/.venv\n")
        (repository / ".venv").symlink_to(other)
        process = bootstrap(repository, "python", "-c", "")
        assert last_line(process).endswith(
            "is a link to the environment of /other/.venv, which would be lost; remove the link"
        )
        assert (other / "bootstrap-stamp").exists()

    def test_an_unknown_command_is_one_line(self, repository):
        bootstrap(repository, "python", "-c", "")
        process = bootstrap(repository, "no-such-command")
        assert process.returncode == 1
        assert process.stderr.count("\n") == 1
        assert "'no-such-command'" in process.stderr

    def test_the_command_finds_its_own_environment_first(self, repository):
        code = "import os, shutil; print(shutil.which('python'), os.environ['VIRTUAL_ENV'])"
        command_path, environment = bootstrap(repository, "python", "-c", code).stdout.split()
        assert Path(command_path).is_relative_to(repository / ".venv")
        assert environment == str(repository / ".venv")

    def test_the_command_takes_over_the_process_so_that_signals_reach_it(self, repository):
        bootstrap(repository, "python", "-c", "")
        command = [PYTHON, str(repository / "bootstrap.py"), "python", "-c", "import os; print(os.getpid())"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert int(process.communicate(timeout=60)[0]) == process.pid

    def test_processes_that_start_together_install_once(self, repository):
        command = [PYTHON, str(repository / "bootstrap.py"), "python", "-c", "print('ran')"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        outputs = [p.communicate(timeout=120) for p in [subprocess.Popen(command, **pipes) for _ in range(3)]]
        assert [out for out, _ in outputs] == ["ran\n"] * 3
        assert sum("installing" in err for _, err in outputs) == 1


def test_requirements_are_installed_by_uv_where_it_is_there(repository, stand_in_uv):
    script = repository / "hello.py"
    script.write_text("import sys; print('hello', sys.argv[1:])")
    process = bootstrap(repository, str(script), "--flag")  # a script needs no python before it
    assert process.stdout == "hello ['--flag']\n", process.stderr
    python = repository / ".venv" / "bin" / "python"
    arguments = f"pip install --python {python} -r {repository / 'requirements.txt'}\n"
    assert stand_in_uv.read_text() == arguments


def test_an_old_python_is_told_so_in_one_line():
    command = [sys.executable, PROGRAMS / "on_python_3_9.py", SCRIPT]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith("bootstrap: needs Python 3.10 or newer and this is 3.9")
    assert process.stderr.count("\n") == 1


def test_an_old_python_can_read_as_far_as_that_line():
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_a_call_without_a_command_shows_how_it_is_called(repository):
    process = bootstrap(repository)
    assert process.returncode == 2
    assert "python3 bootstrap.py pytest" in process.stdout
    assert not (repository / ".venv").exists()
