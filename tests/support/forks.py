"""Launch a script without the seconds that importing torch takes: a process forked from one that has imported it.

What is forked has imported the libraries and our modules, and runs the script as `__main__` with an environment,
arguments and outputs of its own. `accelerate launch` itself says what a profile means: its functions make
the environment; what it would start is forked.
"""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import random
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch.multiprocessing
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from support.figures import without_figures

SECONDS = 240  # for a script
OUTPUTS = ("stdout", "stderr")
SECONDS_TO_SAY = 10  # where a process hangs, before it is killed
SECONDS_TO_STOP = 20  # for the other processes when one has failed
BYTECODE = TemporaryDirectory()
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.preloading"])


def launch_forked(
    command: Sequence[str], profile: Sequence[str] | None, environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess:
    """Run a script in `folder`; TimeoutExpired after SECONDS.

    Args:
        command: the script, or -m and a module, and its arguments.
        profile: the options of `accelerate launch`, as --config_file and a profile. None: started by Python itself.
    """
    with TemporaryDirectory() as outputs:
        processes = []
        for variables in environments(command, profile, environment):
            processes.append(fork(command, variables, folder, Path(outputs)))
        try:
            code = wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.join()
        output, errors = read_outputs(Path(outputs))
    if code is None:
        raise subprocess.TimeoutExpired(command, SECONDS, output, errors)
    return subprocess.CompletedProcess(command, code, output, errors)


class ForkedRun:
    """A script in the background, each process in a group of its own, with the methods of `subprocess.Popen`.

    Args:
        profile: as of `launch_forked`.
        outputs: a folder for what the processes write.

    Attributes:
        pids: of the processes, by rank.
    """

    def __init__(
        self,
        command: Sequence[str],
        profile: Sequence[str] | None,
        environment: dict[str, str],
        folder: Path,
        outputs: Path,
    ) -> None:
        self._outputs = outputs
        self._processes = []
        for variables in environments(command, profile, environment):
            self._processes.append(fork(command, variables, folder, outputs))
        self.pids = [process.pid for process in self._processes]
        self.pid = self.pids[0]

    @property
    def returncode(self) -> int | None:
        return self.poll()

    @property
    def output(self) -> str:
        """What it has written to stdout so far."""
        return read_outputs(self._outputs)[0]

    def poll(self) -> int | None:
        codes = [process.exitcode for process in self._processes]
        if None in codes:
            return None
        return codes[0] if len(codes) == 1 else int(any(codes))

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def wait(self, timeout: float) -> None:
        for process in self._processes:
            process.join(timeout)
        assert self.returncode is not None, f"process {self.pid} goes on after {timeout} s"

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        self.wait(timeout)
        return read_outputs(self._outputs)


def fork(command: Sequence[str], environment: dict[str, str], folder: Path, outputs: Path) -> BaseProcess:
    """A process that runs a script and appends to the files stdout and stderr of the folder `outputs`."""
    for name in OUTPUTS:
        (outputs / name).touch()
    process = CONTEXT.Process(target=run_script, args=(command, environment, folder, outputs, BYTECODE.name))
    process.start()
    return process


def read_outputs(outputs: Path) -> tuple[str, str]:
    """What the processes have written to stdout and stderr."""
    output, errors = ((outputs / name).read_text(encoding="utf-8") for name in OUTPUTS)
    return output, errors


def call_in_processes(function: Callable, processes: int, *arguments: object) -> None:
    """Call function(rank, processes, *arguments) in so many new processes; an error in one of them is raised here."""
    start = torch.multiprocessing.start_processes
    called = partial(call_in_time, function, processes, arguments)
    context = start(called, nprocs=processes, join=False, start_method="forkserver")
    deadline = time.monotonic() + SECONDS
    try:
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{function.__name__} takes more than {SECONDS} s")
    finally:
        for process in context.processes:
            process.kill()


def call_in_time(function: Callable, processes: int, arguments: Sequence[object], rank: int) -> None:
    """Call function(rank, processes, *arguments); where it hangs, stderr says in which lines."""
    faulthandler.dump_traceback_later(SECONDS - SECONDS_TO_SAY)
    function(rank, processes, *arguments)
    faulthandler.cancel_dump_traceback_later()


def environments(
    command: Sequence[str], profile: Sequence[str] | None, environment: dict[str, str]
) -> list[dict[str, str]]:
    """The environment of each process."""
    if profile is None:
        return [environment]
    with patch.dict(os.environ, environment, clear=True):
        arguments = launch_command_parser().parse_args([*profile, *command])
        arguments, _, _ = _validate_launch_command(arguments)
        if arguments.num_processes == 1:
            return [prepare_simple_launcher_cmd_env(arguments)[1]]
        common = prepare_multi_gpu_env(arguments)
    count = arguments.num_processes
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "none"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def free_port() -> int:
    """A port that no process listens on, outside those that the system gives to connections."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port


def wait(processes: Sequence[BaseProcess]) -> int | None:
    """The exit code of the one process, or as torchrun's 0 or 1 of several. None where it takes too long."""
    deadline = time.monotonic() + SECONDS
    running = list(processes)
    while running:
        if time.monotonic() > deadline:
            return None
        running[0].join(0.02)
        failed = any(process.exitcode for process in processes)
        if failed and deadline > time.monotonic() + SECONDS_TO_STOP:
            deadline = time.monotonic() + SECONDS_TO_STOP
            for process in running:
                process.terminate()
        running = [process for process in processes if process.exitcode is None]
    codes = [process.exitcode for process in processes]
    return codes[0] if len(codes) == 1 else int(any(codes))


def run_script(command: Sequence[str], environment: dict[str, str], folder: Path, outputs: Path, bytecode: str) -> None:
    """Become the process that runs a script.

    Args:
        outputs: the folder of the files stdout and stderr.
        bytecode: the folder of what Python has compiled of our modules.
    """
    os.setsid()
    gc.freeze()  # what stands in the memory of the process that was forked is not garbage
    sys.dont_write_bytecode = False  # it would compile a hundred modules in each process
    sys.pycache_prefix = bytecode
    without_figures().start()
    multiprocessing.set_start_method(None, force=True)  # Python's own for processes of its own, as in any script
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, name in enumerate(OUTPUTS, start=1):
        file = os.open(outputs / name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    faulthandler.enable()  # a crash says where, in stderr
    faulthandler.dump_traceback_later(SECONDS - SECONDS_TO_SAY)  # and so does a script that hangs
    # lines go out one by one, so that those of several processes do not mix
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False, buffering=1)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path.insert(0, str(folder))
        script = partial(runpy.run_module, command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        script = partial(runpy.run_path, command[0], run_name="__main__")
    end_as_python_does(script)


def end_as_python_does(script: Callable[[], object]) -> None:
    """Call a script, then end the process: the hook for errors, threads, exit handlers, outputs, exit code."""
    code = 0
    try:
        script()
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
