"""Feed changed files to their readers, and report what is neither a value nor a UserError.

python tests/fuzz/run.py --seed 7 --count 10000 --leaks leaks

Each input is a function of (seed, kind, number), so that a leak can be made again: `--kind png --first 812 --count 1`.
The inputs are read in a process of their own, which is started again behind an input that has ended or hung it.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import psutil

START = "start"
ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 10  # of the processor for an input, of which none needs one
HANGS_AFTER = 60  # seconds of the processor without a new input: a library that no signal interrupts
WAITS = 900  # seconds on the clock without a new input: it waits for something
MOST_BYTES = 1_500_000_000  # that an input may take, on a machine that has FREE_BYTES
FREE_BYTES = 400_000_000


class Hanging(BaseException):
    """An input has taken too long. It is no Exception, which readers take for a damaged file."""


def make_input(kind: "Kind", name: str, seed: int, number: int) -> tuple[str, bytes]:  # noqa: F821
    """The file name and the content of an input."""
    rng = random.Random(f"{seed} {name} {number}")
    file = rng.choice(sorted(kind.files))
    change = rng.choice(kind.changes)
    return file, change(rng, kind.files[file])


def read_inputs(seed: int, names: list[str], first: int, count: int, folder: Path) -> None:
    """Read `count` inputs, of each kind in turn, and print a line of JSON for each leak, and one at the end."""
    sys.path += [str(ROOT), str(ROOT / "tests")]
    os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    from tests.fuzz.cases import make_cases
    from tests.fuzz.kinds import make_kinds

    prepare_process()
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    kinds = make_kinds(scratch, ROOT / "tests" / "data")
    cases = (
        []
        if names
        else make_cases(
            kinds["tiff"].files["a.tif"],
            kinds["encoder"].files["config.json"],
            kinds["checkpoint"].files["step/state.json"],
        )
    )  # they come first
    names = names or sorted(kinds)
    for number in range(first, first + count):
        name = names[number % len(names)]
        if number < len(cases):
            name, file, content = cases[number]
        kind = kinds[name]
        (folder / "number").write_text(f"{number} {name}")
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        shutil.rmtree(folder / "cache", ignore_errors=True)
        if number >= len(cases):
            file, content = make_input(kind, name, seed, number)
        for beside, other in (kind.beside | {file: content}).items():
            (case / beside).parent.mkdir(parents=True, exist_ok=True)
            (case / beside).write_bytes(other)
        problem = read(kind, case / file)
        if problem:
            print(json.dumps({"kind": name, "number": number, "file": file, "problem": problem}), flush=True)
            keep(folder, name, number, file, content)
    (folder / "number").write_text("end")


def keep(folder: Path, name: str, number: int, file: str, content: bytes) -> None:
    """Store the input of a leak."""
    path = folder / "leaks" / f"{name.replace(' ', '-')}-{number}-{Path(file).name}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def prepare_process() -> None:
    """Limit what the readers take to be free, and silence what libraries print."""
    from PIL import Image

    from data_utils.image_io import formats

    formats.available_bytes = lambda: FREE_BYTES
    formats.UNCHECKED_BYTES = 2**24
    Image.MAX_IMAGE_PIXELS = None  # as predict.py has it
    warnings.simplefilter("ignore")
    nothing = os.open(os.devnull, os.O_WRONLY)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # it stays open
    os.dup2(nothing, 2)
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(nothing, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def stop(*_: object) -> None:
        raise Hanging(f"still reading after {SECONDS} seconds")

    signal.signal(signal.SIGPROF, stop)


def read(kind: "Kind", path: Path) -> str | None:  # noqa: F821
    """Read an input; what is wrong with how it ended, or None."""
    from runtime.errors import UserError

    forget_peak()
    before = memory("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    stdout = sys.stdout
    try:
        sys.stdout = sys.stderr
        kind.read(path)
    except UserError as error:
        if len(str(error).splitlines()) > 1:
            return f"a message of several lines: {error!r}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in last]
        return f"{type(error).__name__}: {str(error)[:200]!r} at {' '.join(places[-6:])}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout = stdout
    taken = memory("VmHWM") - before
    if taken > MOST_BYTES:
        return f"it took {taken:,} bytes of memory"
    return None


def forget_peak() -> None:
    """Have the kernel measure the peak of memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    """A number of /proc/self/status, in bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return 1024 * int(match[1])


def run(seed: int, count: int, folder: Path, names: list[str] | None = None, first: int = 0) -> list[dict]:
    """Read inputs in processes of their own; the leaks."""
    folder.mkdir(parents=True, exist_ok=True)
    leaks: list[dict] = []
    end = first + count
    while first < end:
        output = (folder / "output").open("w+")
        command = [sys.executable, __file__, "--child", "--seed", str(seed), "--first", str(first)]
        command += ["--count", str(end - first), "--leaks", str(folder), "--kind", *(names or [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.DEVNULL)
        state, is_hanging = watch(process, folder)
        output.seek(0)
        leaks += [json.loads(line) for line in output if line.startswith("{")]
        output.close()
        if state == "end":
            return leaks
        number, _, name = state.partition(" ")
        if name == START:
            raise RuntimeError(f"the readers could not be started, code {process.returncode}: {' '.join(command)}")
        problem = "hangs" if is_hanging else f"ended the process with {process.returncode}"
        leaks.append({"kind": name, "number": int(number), "file": "", "problem": problem})
        first = int(number) + 1
    return leaks


def watch(process: subprocess.Popen, folder: Path) -> tuple[str, bool]:
    """The number of the last input, once the process has ended or was ended because the number stayed the same."""
    status = folder / "number"
    status.write_text(f"-1 {START}")
    state = ""
    clock = processor = 0.0  # when the state was another one
    while process.poll() is None:
        time.sleep(0.2)
        now = status.read_text()
        used = processor_seconds(process)
        if now != state and now:
            state = now
            clock = time.monotonic()
            processor = used
        if used - processor > HANGS_AFTER or time.monotonic() - clock > WAITS:
            process.kill()
            process.wait()
            return state, True
    return status.read_text(), False


def processor_seconds(process: subprocess.Popen) -> float:
    """What a process has used of the processors; 0 once it has ended."""
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kind", nargs="*", default=[], help="only these kinds of files")
    parser.add_argument("--leaks", type=Path, default=Path(tempfile.gettempdir()) / "leaks", help="folder for leaks")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        read_inputs(args.seed, args.kind, args.first, args.count, args.leaks)
        os._exit(0)
    leaks = run(args.seed, args.count, args.leaks, args.kind, args.first)
    for leak in leaks:
        print(json.dumps(leak))
    kinds = Counter(leak["kind"] for leak in leaks)
    print(f"{len(leaks)} leaks in {args.count:,} inputs {dict(kinds) or ''}")
    sys.exit(bool(leaks))


if __name__ == "__main__":
    main()
