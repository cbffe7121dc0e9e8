"""bootstrap.py in a copy of its own, with requirements that need no download."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.launches import PROGRAMS, ROOT

import bootstrap as script_of_bootstrap

SCRIPT = ROOT / "bootstrap.py"
# The interpreter below this environment: the one that a user would call, and where Debian's pip lives.
PYTHON = getattr(sys, "_base_executable", sys.executable)
HAS_PIP = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0


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
def no_ensurepip(tmp_path, monkeypatch):
    """A folder of modules that hide those of this Python, which cannot put pip into an environment."""
    modules = tmp_path / "modules"
    (modules / "venv").mkdir(parents=True)
    (modules / "venv" / "__init__.py").touch()
    shutil.copy(PROGRAMS / "venv_without_ensurepip.py", modules / "venv" / "__main__.py")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    return modules


def bootstrap(root: Path, *args: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PIP_NO_INDEX": "1"}
    command = [PYTHON, str(root / "bootstrap.py"), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=root.parent)


def last_line(done: subprocess.CompletedProcess) -> str:
    return done.stderr.strip().splitlines()[-1]


def check_first_and_second_run(repository: Path) -> None:
    """The first makes the environment, the second uses it; both hand on arguments and exit code."""
    code = "import sys; print(sys.prefix, sys.argv[1:]); sys.exit(7)"
    first = bootstrap(repository, "python", "-c", code, "--flag", "two words")
    assert first.returncode == 7
    assert first.stdout == f"{repository / '.venv'} ['--flag', 'two words']\n"  # and nothing of pip's
    second = bootstrap(repository, "python", "-c", code)
    assert (second.returncode, second.stderr) == (7, "")


@pytest.mark.slow
def test_the_first_run_makes_the_environment_with_pip(repository):
    check_first_and_second_run(repository)


@pytest.fixture
def stand_in_pip(no_ensurepip):
    """A pip for all environments that installs nothing, and is quick."""
    (no_ensurepip / "pip").mkdir()
    (no_ensurepip / "pip" / "__init__.py").touch()
    shutil.copy(PROGRAMS / "stand_in_pip.py", no_ensurepip / "pip" / "__main__.py")


@pytest.mark.skipif(not HAS_PIP, reason="needs a Python with pip")
class TestWithoutEnsurepip:
    """The Debian case."""

    pytestmark = pytest.mark.usefixtures("no_ensurepip")

    def test_the_system_pip_installs_into_the_environment(self, repository):
        # A package that only this installation can have put there.
        package = repository / "marker"
        package.mkdir()
        dist_info = "marker-1.0.dist-info"
        with zipfile.ZipFile(package / "marker-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("marker.py", "")
            wheel.writestr(f"{dist_info}/METADATA", "Metadata-Version: 2.1\nName: marker\nVersion: 1.0\n")
            wheel.writestr(f"{dist_info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{dist_info}/RECORD", "")
        (repository / "requirements.txt").write_text(f"--find-links {package.as_posix()}\nmarker==1.0\n")
        process = bootstrap(repository, "python", "-c", "import marker; print(marker.__file__)")
        assert process.returncode == 0, process.stderr
        assert Path(process.stdout.strip()).is_relative_to(repository / ".venv")
        assert not list((repository / ".venv").rglob("pip"))

    def test_a_python_without_pip_is_told_what_to_install(self, repository, no_ensurepip):
        (no_ensurepip / "pip").mkdir()
        (no_ensurepip / "pip" / "__init__.py").touch()
        (no_ensurepip / "pip" / "__main__.py").write_text("import sys; sys.exit('No module named pip')")
        process = bootstrap(repository, "python", "-c", "")
        assert process.returncode == 1
        assert "neither ensurepip nor pip" in last_line(process)
        assert "apt install python3-venv" in last_line(process)
        assert "Traceback" not in process.stderr
        shutil.copy(PROGRAMS / "stand_in_pip.py", no_ensurepip / "pip" / "__main__.py")  # now it is installed
        assert bootstrap(repository, "python", "-c", "").returncode == 0


@pytest.mark.usefixtures("stand_in_pip")
class TestEnvironment:
    """When it is made, completed and used."""

    def test_the_first_run_makes_the_environment(self, repository):
        check_first_and_second_run(repository)

    def test_changed_requirements_are_installed_into_the_same_environment(self, repository):
        bootstrap(repository, "python", "-c", "")
        marker = repository / ".venv" / "kept"
        marker.touch()
        with open(repository / "requirements.txt", "a") as requirements:
            requirements.write("# changed\n")
        assert "installing" in bootstrap(repository, "python", "-c", "").stderr
        assert bootstrap(repository, "python", "-c", "").stderr == ""
        assert marker.exists()

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
            assert last_line(failed).startswith("bootstrap: pip ended with exit code 1")
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

    @pytest.mark.skipif(os.name == "nt", reason="Windows cannot replace a process")
    def test_the_command_takes_over_the_process_so_that_signals_reach_it(self, repository):
        bootstrap(repository, "python", "-c", "")
        command = [PYTHON, str(repository / "bootstrap.py"), "python", "-c", "import os; print(os.getpid())"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert int(process.communicate(timeout=60)[0]) == process.pid

    @pytest.mark.skipif(os.name == "nt", reason="no lock on Windows")
    def test_a_file_system_without_locks_is_a_line(self, monkeypatch, capsys):
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(37, "No locks available")))
        script_of_bootstrap.wait_for_lock(sys.stdin)
        assert capsys.readouterr().err == "bootstrap: no lock (No locks available): let one machine install first\n"

    @pytest.mark.skipif(os.name == "nt", reason="no lock on Windows")
    def test_processes_that_start_together_install_once(self, repository):
        command = [PYTHON, str(repository / "bootstrap.py"), "python", "-c", "print('ran')"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        outputs = [p.communicate(timeout=120) for p in [subprocess.Popen(command, **pipes) for _ in range(3)]]
        assert [out for out, _ in outputs] == ["ran\n"] * 3
        assert sum("installing" in err for _, err in outputs) == 1


@pytest.fixture
def uv(tmp_path, monkeypatch) -> Callable[[int], None]:
    """Puts a uv onto the path that writes its arguments to a file and ends with an exit code."""

    def write(code: int) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "uv").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexit {code}\n')
        (folder / "uv").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return write


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for uv is a shell script")
@pytest.mark.usefixtures("stand_in_pip")
@pytest.mark.parametrize(("code", "installs"), [(0, 1), (1, 2)], ids=["uv installs", "pip installs where uv fails"])
def test_requirements_are_installed_by_uv_where_it_is_there(repository, tmp_path, uv, code, installs):
    uv(code)
    process = bootstrap(repository, "python", "-c", "")
    assert process.returncode == 0, process.stderr
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:3] == ["pip", "install", "--python"]
    assert arguments[-2:] == ["-r", str(repository / "requirements.txt")]
    assert process.stderr.count("bootstrap: installing") == installs


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for uv is a shell script")
@pytest.mark.usefixtures("stand_in_pip")
def test_a_script_needs_no_python_before_it(repository, uv):
    uv(0)
    script = repository / "hello.py"
    script.write_text("import sys; print('hello', sys.argv[1:])")
    process = bootstrap(repository, str(script), "--flag")
    assert process.returncode == 0, process.stderr
    assert process.stdout == "hello ['--flag']\n"


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


@pytest.fixture
def commands(monkeypatch):
    """The commands that are called in this process; `commands.answer` gives the exit code and the output of each."""
    calls = SimpleNamespace(made=[], answer=lambda command: (0, ""))

    def run(command: list[str], **options: object) -> SimpleNamespace:
        calls.made.append(command)
        code, output = calls.answer(command)
        return SimpleNamespace(returncode=code, stdout=output)

    monkeypatch.setattr(script_of_bootstrap.subprocess, "run", run)
    return calls


VENV = ROOT / ".venv"
OWN_PYTHON = str(VENV / "bin" / "python")


@pytest.fixture
def answer_versions(commands, monkeypatch) -> Callable[[str, str], None]:
    """Sets what the pip of the environment, and that of the Python which runs, say of their versions."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")  # not the environment's, in which the tests may run

    def answer(own: str, here: str) -> None:
        commands.answer = lambda command: (0, own if command[0] == OWN_PYTHON else here)

    return answer


@pytest.mark.skipif(os.name == "nt", reason="names of POSIX")
@pytest.mark.parametrize(
    ("own", "here", "expected"),
    [
        ("pip 21.0 from x", "pip 9.0", [OWN_PYTHON, "-m", "pip"]),
        ("", "pip 22.3 from x", ["/usr/bin/python3", "-m", "pip", "--python", OWN_PYTHON]),
        ("", "pip 100.0 from x", ["/usr/bin/python3", "-m", "pip", "--python", OWN_PYTHON]),
    ],
)
def test_the_pip_that_installs_is_the_environments_or_a_new_one(commands, answer_versions, own, here, expected):
    answer_versions(own, here)
    assert script_of_bootstrap.find_pip() == expected
    assert commands.made[0] == [OWN_PYTHON, "-m", "pip", "--version"]


@pytest.mark.skipif(os.name == "nt", reason="names of POSIX")
@pytest.mark.parametrize("here", ["pip 22.2 from x", "pip 9.10 from x", ""])
def test_an_old_pip_cannot_install_into_the_environment(commands, answer_versions, here):
    answer_versions("", here)
    with pytest.raises(SystemExit, match=r"^bootstrap: .* has neither ensurepip nor pip 22\.3 or newer; on Debian"):
        script_of_bootstrap.find_pip()
    assert commands.made[0] == [OWN_PYTHON, "-m", "pip", "--version"]


CLEARING = pytest.mark.parametrize(("clear", "flags"), [(False, []), (True, ["--clear"])])


@CLEARING
def test_an_environment_is_made_without_pip_where_python_has_none(commands, clear, flags):
    command = [sys.executable, "-m", "venv", *flags, str(VENV)]
    commands.answer = lambda command: (0 if "--without-pip" in command else 1, "")
    script_of_bootstrap.make_venv(clear)
    assert commands.made == [command, [*command, "--without-pip"]]


@CLEARING
def test_an_environment_that_cannot_be_made_ends_with_what_to_install(commands, clear, flags):
    commands.answer = lambda command: (1, "")
    with pytest.raises(SystemExit, match=f"could not make {VENV}; on Debian and Ubuntu: apt install python3-venv"):
        script_of_bootstrap.make_venv(clear)


REQUIREMENTS = str(ROOT / "requirements.txt")


def test_a_pip_that_fails_ends_the_script(commands):
    commands.answer = lambda command: (3, "")
    with pytest.raises(SystemExit, match="bootstrap: pip ended with exit code 3, its reason stands above"):
        script_of_bootstrap.install_requirements(["pip"], "requirements.txt")


@pytest.mark.parametrize(("code", "is_done"), [(0, True), (3, False)])
def test_requirements_are_installed_by_uv(commands, capsys, code, is_done):
    commands.answer = lambda command: (code, "")
    assert script_of_bootstrap.install_with_uv("requirements.txt") is is_done
    assert commands.made == [["uv", "pip", "install", "--python", OWN_PYTHON, "-r", REQUIREMENTS]]
    assert capsys.readouterr().err == "bootstrap: installing requirements.txt with uv\n"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """What is done for an environment whose folder is a new one, in order; nothing of it is really done."""
    root = tmp_path
    (root / "requirements.txt").write_text("a")
    (root / "requirements-dev.txt").write_text("b")
    python = root / ".venv" / "bin" / "python"
    for name, place in {"ROOT": root, "VENV": root / ".venv", "PYTHON": python}.items():
        monkeypatch.setattr(script_of_bootstrap, name, place)
    monkeypatch.setattr(script_of_bootstrap, "STAMP", root / ".venv" / "stamp")
    steps = SimpleNamespace(done=[], root=root, python=python, stamp=root / ".venv" / "stamp", fails=False)

    def make(clear: bool) -> None:
        steps.done.append(f"make {clear}")
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    def install(pip: list[str], requirements: str) -> None:
        steps.done.append(f"install by {' '.join(pip)}, stamp of {len(script_of_bootstrap.read_stamp())}")
        if steps.fails:
            sys.exit(1)

    monkeypatch.setattr(script_of_bootstrap, "make_venv", make)
    monkeypatch.setattr(script_of_bootstrap, "install_requirements", install)
    monkeypatch.setattr(script_of_bootstrap, "find_pip", lambda: ["own", "pip"])
    monkeypatch.setattr(script_of_bootstrap.shutil, "which", lambda name: None)
    return steps


INSTALL = "install by own pip, stamp of 1"


def steps_of_preparing(made: SimpleNamespace, requirements: str = "requirements.txt") -> list[str]:
    """What is done to prepare the environment once more."""
    made.done.clear()
    script_of_bootstrap.prepare_environment(requirements)
    return list(made.done)


def test_an_environment_is_made_once(made):
    assert steps_of_preparing(made) == ["make True", INSTALL]
    assert steps_of_preparing(made) == []


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_changed_requirements_are_installed_once(made, name):
    script_of_bootstrap.prepare_environment(name)
    (made.root / name).write_text("c")
    assert steps_of_preparing(made, name) == [INSTALL]
    assert steps_of_preparing(made, name) == []
    assert steps_of_preparing(made) == []  # those of the tests hold the others


def test_an_environment_without_a_stamp_is_completed(made):
    script_of_bootstrap.prepare_environment("requirements.txt")
    made.stamp.unlink()
    assert steps_of_preparing(made) == ["make False", INSTALL]


def test_an_environment_without_its_python_is_made_anew(made):
    script_of_bootstrap.prepare_environment("requirements.txt")
    made.python.unlink()
    assert steps_of_preparing(made) == ["make True", INSTALL]


def test_an_environment_of_another_folder_is_made_anew(made):
    script_of_bootstrap.prepare_environment("requirements.txt")
    _, checksum = made.stamp.read_text().splitlines()
    made.stamp.write_text(f"/elsewhere/.venv\n{checksum}\n")
    assert steps_of_preparing(made) == ["make True", INSTALL]


def test_an_install_that_did_not_end_is_done_again(made):
    script_of_bootstrap.prepare_environment("requirements.txt")
    made.stamp.write_text(f"{made.root / '.venv'}\n")
    made.fails = True
    for _ in range(2):
        with pytest.raises(SystemExit):
            steps_of_preparing(made)
        assert made.done == [INSTALL]


def test_pip_is_asked_where_uv_fails(made, monkeypatch):
    succeeds = [True, False]
    monkeypatch.setattr(script_of_bootstrap.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(script_of_bootstrap, "install_with_uv", lambda name: made.done.append("uv") or succeeds.pop(0))
    script_of_bootstrap.prepare_environment("requirements.txt")
    assert made.done == ["make True", "uv"]
    (made.root / "requirements.txt").write_text("c")
    script_of_bootstrap.prepare_environment("requirements.txt")
    assert made.done[2:] == ["uv", "install by own pip, stamp of 1"]


@pytest.mark.parametrize(("words", "code"), [(["-h"], 0), (["--help"], 0), ([], 2)], ids=str)
def test_help_needs_no_environment(made, capsys, words, code):
    assert script_of_bootstrap.main(words) == code
    assert capsys.readouterr().out.count("Run a command in this repository's own environment") == 1
    assert made.done == []
