"""Disturb training on two machines in every way that a cluster knows, resume it, and compare it with a quiet run.

python benchmarks/chaos.py runs/chaos --faults 60 --seed 1

Two machines are two network namespaces with a bridge between them; each runs `accelerate launch` with the profile
multi_node.yaml and two processes on the CPU. The faults and their moments are drawn from the seed, all kinds in turn.
Each disturbs a run of its own, which is then resumed with `--resume auto` on 4, 2 or 1 processes. On 4 its records,
weights, averages and optimizer state must be those of the undisturbed run bit for bit, but for `perf/*`; on 2 or 1 its
losses must agree to 1e-5. No process may outlast the time-out, and a user sees lines, no traceback.

Each result is a line of faults.jsonl in the folder. The same command goes on where it was stopped; at the end it prints
what the faults cost. Exit code 1 if anything differed.

Namespaces and disks need root on Linux and iproute2, a clock that is set back needs libfaketime. What is not to be had
is left out and named; machines without namespaces are two launchers on loopback.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from PIL import Image
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.signals import exit_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
STEPS = 40
SAVE_EVERY = 4
FLAGS = ["--plan", "none", "--base-channels", "4", "--depth", "2", "--norm", "group", "--optimizer", "sgd"]
FLAGS += ["--batch-size", "4", "--max-steps", str(STEPS), "--log-every", "1", "--checkpoint-every", str(SAVE_EVERY)]
FLAGS += ["--eval-every", "10", "--keep-checkpoints", "3", "--ema-decay", "0.9", "--augment", "strong", "--cache"]
FLAGS += ["--num-workers", "1", "--tracker", "none", "--resume", "auto"]
TIMEOUT = 60  # seconds that processes wait for each other in a step; ten minutes in train.py
KILL_AFTER = 30  # seconds that a launcher waits for its processes before it kills them
ENDS = TIMEOUT + KILL_AFTER + 90  # seconds until all processes have ended, on a machine with other work too
EXIT_BARRIER = 300  # seconds that a launcher waits at its end for the other machine's, which is dead (torch 2.13)
WORK = 2 * TIMEOUT  # seconds of work of the main process for which the others wait without a limit
LIMIT = 600  # seconds for a run to start and finish, on a machine with other work too
TOLERANCE = 1e-5  # of losses on another number of processes
SAVE_EVENTS = 24  # file operations of a save, at one of which it is interrupted
DISK_MB = 32
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
# Python sleeps until a moment of the monotonic clock, which libfaketime 0.9.10 takes for one of the clock that is set
SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
SUBNET = "10.77.0"
# drops one packet in twenty: a random number of 32 bits is below a twentieth of the largest
LOSS = "4,32 0 0 4294963256,37 1 0 214748364,6 0 0 4294967295,6 0 0 0"


class Problem(Exception):
    """What a run did that it must not do."""


def call(*command: str | Path) -> None:
    """Run a command of the system, silently."""
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=30)


class Network:
    """Two machines: namespaces that meet at a bridge in a third one. Where `isolated` is false, all on loopback."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self._bridge = f"chaos-{os.getpid()}-bridge"
        self._machines = [f"chaos-{os.getpid()}-{machine}" for machine in range(2)]
        if not isolated:
            return
        call("ip", "netns", "add", self._bridge)
        call("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", self._bridge, "link", "set", "bridge", "up")
        for machine, name in enumerate(self._machines):
            port = f"port{machine}"
            call("ip", "netns", "add", name)
            peer = ["peer", "name", port, "netns", self._bridge]
            call("ip", "link", "add", "eth0", "netns", name, "type", "veth", *peer)
            call("ip", "-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            call("ip", "-n", name, "address", "add", f"{SUBNET}.{machine + 1}/24", "dev", "eth0")
            call("ip", "-n", name, "link", "set", "eth0", "up")
            call("ip", "-n", name, "link", "set", "lo", "up")

    @property
    def address(self) -> str:
        """Of machine 0, as the others see it."""
        return f"{SUBNET}.1" if self.isolated else "127.0.0.1"

    def enter(self, machine: int) -> list[str]:
        """What a command begins with that is to run on a machine."""
        return ["nsenter", f"--net=/run/netns/{self._machines[machine]}"] if self.isolated else []

    def cut(self, machine: int) -> None:
        """Let nothing come to a machine or from it any more, without a word to anybody."""
        call("ip", "-n", self._bridge, "link", "set", f"port{machine}", "nomaster")

    def slow(self, machine: int) -> None:
        """Let 2 Mbit/s come to a machine."""
        limit = ["tbf", "rate", "2mbit", "burst", "16kb", "latency", "400ms"]
        call("tc", "-n", self._bridge, "qdisc", "add", "dev", f"port{machine}", "root", *limit)

    def lose(self, machine: int) -> None:
        """Lose one in twenty of the packets that come to a machine: a random choice sends them where there is no room.

        tc's netem would say the same in a line, but not every kernel has it.
        """
        tc = ["tc", "-n", self._bridge]
        port = ["dev", f"port{machine}"]
        call(*tc, "qdisc", "add", *port, "root", "handle", "1:", "htb", "default", "10")
        for number in ("1:10", "1:20"):
            call(*tc, "class", "add", *port, "parent", "1:", "classid", number, "htb", "rate", "1gbit")
        call(*tc, "qdisc", "add", *port, "parent", "1:20", "bfifo", "limit", "1")
        choice = ["bpf", "bytecode", LOSS, "flowid", "1:20"]
        call(*tc, "filter", "add", *port, "parent", "1:", "protocol", "all", *choice)

    def repair(self) -> None:
        """Undo whatever was done to the network."""
        if not self.isolated:
            return
        for machine in range(2):
            call("ip", "-n", self._bridge, "link", "set", f"port{machine}", "master", "bridge")
            with suppress(subprocess.CalledProcessError):  # there is none to remove
                call("tc", "-n", self._bridge, "qdisc", "del", "dev", f"port{machine}", "root")

    def close(self) -> None:
        """Remove the namespaces."""
        if self.isolated:
            for name in (*self._machines, self._bridge):
                call("ip", "netns", "del", name)


class Disk:
    """A small disk of its own for the output of runs, in memory; a plain folder where nothing can be mounted."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.mounted = mounted
        self._store = folder / "store"
        self.path = folder / "disk"
        for path in (self._store, self.path):
            path.mkdir(parents=True, exist_ok=True)
        if mounted:
            call("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "chaos", self._store)
            call("mount", "--bind", self._store, self.path)

    def fill(self) -> None:
        """Leave no byte free."""
        with (self._store / "filling").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**12))

    def refuse_writing(self) -> None:
        """Become read-only, as a disk with errors does."""
        call("mount", "--bind", self._store, self.path)
        call("mount", "-o", "remount,bind,ro", self.path)

    def vanish(self) -> None:
        """Become an empty folder, as the mount point of a disk that is gone."""
        call("umount", "--lazy", self.path)

    def repair(self) -> None:
        """Undo whatever was done to the disk."""
        if self.mounted:
            while self.path.is_mount():
                call("umount", "--lazy", self.path)
            call("mount", "--bind", self._store, self.path)
        (self._store / "filling").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all that is on it."""
        self.repair()
        for path in self.path.iterdir():
            shutil.rmtree(path)

    def close(self) -> None:
        """Remove the disk."""
        self.clear()
        if self.mounted:
            call("umount", "--lazy", self.path)
            call("umount", "--lazy", self._store)


class Launch:
    """A start of train.py on 4 processes of two machines, or on 2 or 1 of machine 1, in the background.

    Args:
        folder: for what the launchers and the processes print.
        options: of `train_here`, the environment variable CHAOS of the processes.
        variables: more environment variables.
    """

    def __init__(
        self,
        network: Network,
        processes: int,
        folder: Path,
        flags: list[str],
        options: dict | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.started = time.monotonic()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
        environment["GLOO_SOCKET_IFNAME"] = "eth0" if network.isolated and processes == 4 else "lo"
        environment["CHAOS"] = json.dumps({"outputs": str(folder), **(options or {})})
        environment |= variables or {}
        script = [str(ROOT / "benchmarks" / "chaos.py"), "train", *flags]
        port = free_port()
        self.launchers: list[psutil.Popen] = []
        self._known: set[psutil.Process] = set()
        for machine in (0, 1) if processes == 4 else (1,):
            launcher = launcher_options(processes, machine, network.address, port)
            with (folder / f"launcher-{machine}.txt").open("wb") as output:
                process = psutil.Popen(
                    [*network.enter(machine), sys.executable, *launcher, *script],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.launchers.append(process)
            self._known.add(process)

    def ranks(self) -> list[psutil.Process]:
        """The processes that train, by rank; those that are left."""
        ranks = {}
        for launcher in self.launchers:
            with suppress(psutil.NoSuchProcess):
                for process in launcher.children():
                    with suppress(psutil.NoSuchProcess, KeyError):
                        ranks[int(process.environ()["RANK"])] = process
        return [ranks[rank] for rank in sorted(ranks)]

    def everything(self) -> list[psutil.Process]:
        """The launchers and all below them, also those whose launcher has died since an earlier call."""
        for launcher in self.launchers:
            with suppress(psutil.NoSuchProcess):
                self._known.update(launcher.children(recursive=True))
        return list(self._known)

    def kill(self, processes: list[psutil.Process] | None = None) -> None:
        """SIGKILL to all of its processes, or to these."""
        victims = self.everything() if processes is None else processes
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(victims, timeout=10)

    def wait(self, seconds: float) -> bool:
        """Wait until the launchers and all that they started have ended; whether they have."""
        processes = self.everything()
        ended_processes, _ = psutil.wait_procs(processes, timeout=seconds)
        return len(ended_processes) == len(processes)

    def has_ended(self) -> bool:
        """Whether all launchers have ended; cheaper than `wait`."""
        return all(launcher.poll() is not None for launcher in self.launchers)

    def succeeded(self) -> bool:
        """Whether all launchers have ended with exit code 0."""
        return all(launcher.returncode == 0 for launcher in self.launchers)

    def output(self) -> str:
        """What the processes have printed, without the launchers."""
        files = sorted(self.folder.glob("rank-*.txt"))
        return "\n".join(file.read_text(errors="replace") for file in files)


def launcher_options(processes: int, machine: int, address: str, port: int) -> list[str]:
    """What python is called with before the script."""
    if processes == 1:
        return []
    launch = ["-m", "accelerate.commands.launch", "--num_processes", str(processes), "--config_file"]
    if processes == 2:
        return [*launch, str(ROOT / "accelerate_configs" / "multi_cpu.yaml"), "--main_process_port", "0"]
    options = ["--machine_rank", str(machine), "--main_process_ip", address, "--main_process_port", str(port)]
    return [*launch, str(ROOT / "accelerate_configs" / "multi_node.yaml"), *options]


def free_port() -> int:
    """A port that nobody listens on here, below those that the system gives to connections."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class Scene:
    """A run of its own for one fault, and what the fault needs.

    Attributes:
        network, disk: of all runs.
        data: the run's own copy of the data set; `cache`, its own cache.
        random: draws what the fault leaves open.
        launch: the run on 4 processes.
        lines_may_lack: the fault takes lines of the log away for good.
    """

    def __init__(self, workplace: "Workplace", number: int, seed: int) -> None:
        self.network = workplace.network
        self.disk = workplace.disk
        self.random = random.Random(f"fault {number} of seed {seed}")
        self.folder = workplace.folder / "scene"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.data = shutil.copytree(workplace.data, self.folder / "data")
        self.cache = shutil.copytree(workplace.cache, self.folder / "cache")
        self.run = self.disk.path / "run"
        self.lines_may_lack = False
        self.moment = self.random.randrange(3, STEPS - 12)  # the step of the fault, or of the save that it interrupts
        self.step = 0
        self.launches: list[Launch] = []

    def start(self, processes: int, options: dict | None = None, variables: dict[str, str] | None = None) -> Launch:
        """Start the run, or what is left of it."""
        flags = [*FLAGS, "--dataset", str(self.data), "--output-dir", str(self.run)]
        environment = {"XDG_CACHE_HOME": str(self.cache), **(variables or {})}
        folder = self.folder / f"start-{len(self.launches) + 1}"
        launch = Launch(self.network, processes, folder, flags, options, environment)
        self.launches.append(launch)
        return launch

    def begin(self, options: dict | None = None) -> None:
        """Start the run on 4 processes."""
        self.launch = self.start(4, options)

    def await_moment(self) -> None:
        """Wait until the run has come to the step of the fault, and a bit more."""
        self.await_step(self.launch, self.moment)
        self.launch.everything()
        time.sleep(self.random.uniform(0, 0.15))

    def close(self) -> None:
        """End whatever is left of all its starts."""
        for launch in self.launches:
            launch.kill()

    def await_step(self, launch: Launch, step: int) -> None:
        """Wait until a run has logged a step."""
        while logged_step(self.run) < step:
            if time.monotonic() - launch.started > LIMIT:
                raise Problem(f"step {step} does not come within {LIMIT} s")
            if launch.has_ended():
                raise Problem(f"the run ended before step {step}")
            time.sleep(0.02)

    def ends(self, seconds: float = ENDS) -> None:
        """Wait until all processes have ended by themselves, as they must within the time-out of a step."""
        self.step = logged_step(self.run)
        if not self.launch.wait(seconds):
            raise Problem(f"processes are left after {seconds} s")

    def finishes(self) -> None:
        """Wait until the run is through, as if nothing had been."""
        if not self.launch.wait(LIMIT) or not self.launch.succeeded():
            raise Problem("the run did not finish")

    def dies(self) -> None:
        """Kill everything at once, as when the power fails."""
        self.step = logged_step(self.run)
        self.launch.kill()

    def must_say(self, text: str) -> None:
        """Problem unless the run has printed it."""
        if text not in self.launch.output():
            raise Problem(f"nobody said {text!r}")

    def check_outputs(self) -> None:
        """Problem where a process of any start has printed a traceback."""
        for launch in self.launches:
            if "Traceback" in launch.output():
                raise Problem(f"a process printed a traceback, see {launch.folder.name}")

    def is_refused(self, text: str) -> None:
        """Resume the run on one process, which must end at once in one line that has `text`."""
        attempt = self.start(1)
        if not attempt.wait(LIMIT):
            raise Problem("an attempt that must be refused goes on")
        errors = [line for line in attempt.output().splitlines() if ": error: " in line]
        if attempt.succeeded() or len(errors) != 1 or text not in errors[0]:
            raise Problem(f"instead of {text!r} an attempt said {errors}")


def logged_step(run: Path) -> int:
    """The last step that metrics.jsonl has, 0 before the first."""
    with suppress(OSError, ValueError, IndexError):
        last = (run / "metrics.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()[-1]
        return json.loads(last)["step"]
    return 0


# Faults. Each function takes a scene whose run is at its moment, and leaves a run that can be resumed or has finished.


def kill_rank(scene: Scene) -> None:
    scene.launch.kill([scene.random.choice(scene.launch.ranks())])
    scene.ends()


def kill_loader(scene: Scene) -> None:
    rank = scene.random.choice(scene.launch.ranks())
    scene.launch.kill(rank.children())
    scene.ends()
    scene.must_say("a process that loads images has ended")


def kill_launcher(scene: Scene) -> None:
    everything = scene.launch.everything()
    launcher = scene.random.choice(scene.launch.launchers)
    launcher.kill()
    scene.step = logged_step(scene.run)
    _, left = psutil.wait_procs(everything, timeout=ENDS + EXIT_BARRIER)
    if left:
        raise Problem(f"{len(left)} processes outlast their launcher")


def kill_machine(scene: Scene) -> None:
    """Nobody tells the other machine: nothing comes from this one any more."""
    machine = scene.random.randrange(2)
    scene.network.cut(machine)
    launcher = scene.launch.launchers[machine]
    scene.launch.kill([launcher, *launcher.children(recursive=True)])
    scene.ends()
    scene.network.repair()


def terminate(scene: Scene) -> None:
    """SIGTERM to a launcher, which passes it on, or to a process."""
    scene.random.choice([*scene.launch.launchers, *scene.launch.ranks()]).send_signal(signal.SIGTERM)
    scene.ends()


def ask(number: signal.Signals) -> Callable[[Scene], None]:
    """A signal to one process: all must stop after the same step, with everything saved."""

    def fault(scene: Scene) -> None:
        scene.random.choice(scene.launch.ranks()).send_signal(number)
        scene.ends()
        scene.must_say("all is saved")

    return fault


def stop_shortly(scene: Scene) -> None:
    process = scene.random.choice(scene.launch.ranks())
    process.suspend()
    time.sleep(3)
    process.resume()
    scene.finishes()


def stop_for_long(scene: Scene) -> None:
    scene.random.choice(scene.launch.ranks()).suspend()
    scene.ends()
    scene.must_say("waited too long for another one")


def raise_error(scene: Scene) -> None:
    scene.ends(LIMIT)
    scene.must_say("RuntimeError: a bug in the step")


def interrupt_save(scene: Scene) -> None:
    scene.ends(LIMIT)


def cut_network(scene: Scene) -> None:
    scene.network.cut(scene.random.randrange(2))
    scene.ends()
    scene.network.repair()


def cut_network_in_wait(scene: Scene) -> None:
    """While the main process works, and the others wait for it without a time limit.

    Those of the other machine end when the kernel has found out; the main one when its work is done.
    """
    deadline = time.monotonic() + LIMIT
    while not (scene.launch.folder / "working").exists():
        if time.monotonic() > deadline:
            raise Problem("the main process does not come to its work")
        time.sleep(0.05)
    scene.network.cut(scene.random.randrange(2))
    scene.ends(WORK + ENDS)
    scene.network.repair()


def cut_network_shortly(scene: Scene) -> None:
    scene.network.cut(scene.random.randrange(2))
    time.sleep(2)
    scene.network.repair()
    scene.finishes()


def slow_network(scene: Scene) -> None:
    scene.network.slow(scene.random.randrange(2))
    scene.finishes()
    scene.network.repair()


def lossy_network(scene: Scene) -> None:
    scene.network.lose(scene.random.randrange(2))
    scene.finishes()
    scene.network.repair()


def fill_disk(scene: Scene) -> None:
    scene.disk.fill()
    scene.ends(LIMIT)
    scene.must_say("could not be written")
    scene.disk.repair()


def disk_read_only(scene: Scene) -> None:
    scene.disk.refuse_writing()
    scene.ends(LIMIT)
    scene.must_say("could not be written")
    scene.disk.repair()


def disk_gone(scene: Scene) -> None:
    scene.disk.vanish()
    scene.ends(LIMIT)
    scene.must_say("could not be written")
    scene.disk.repair()


def cut_checkpoint(scene: Scene) -> None:
    scene.dies()
    file = scene.random.choice(sorted(newest_checkpoint(scene.run).iterdir()))
    os.truncate(file, scene.random.randrange(file.stat().st_size))


def flip_checkpoint(scene: Scene) -> None:
    scene.dies()
    flip(scene.random, scene.random.choice(sorted(newest_checkpoint(scene.run).glob("*.safetensors"))))


def cut_log(scene: Scene) -> None:
    scene.dies()
    file = scene.run / "metrics.jsonl"
    os.truncate(file, scene.random.randrange(file.stat().st_size))
    scene.lines_may_lack = True


def spoil_log(scene: Scene) -> None:
    """A line of zero bytes, as file systems leave after a crash, and one of somebody else."""
    scene.dies()
    file = scene.run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[scene.random.randrange(len(lines))] = bytes(scene.random.randrange(1, 60)) + b"\n"
    lines.insert(scene.random.randrange(len(lines)), scene.random.choice([b"\n", b"[]\n", b'{"step": "x"}\n', b"{\n"]))
    file.write_bytes(b"".join(lines))
    scene.lines_may_lack = True


def delete_data(scene: Scene) -> None:
    file = any_image(scene)
    scene.dies()
    content = file.read_bytes()
    file.unlink()
    scene.is_refused("")
    file.write_bytes(content)


def cut_data(scene: Scene) -> None:
    file = any_image(scene)
    scene.dies()
    content = file.read_bytes()
    file.write_bytes(content[: scene.random.randrange(len(content) - 20)])
    scene.is_refused(file.name)
    file.write_bytes(content)


def replace_data(scene: Scene) -> None:
    """Other pixels of the same size."""
    file = any_image(scene)
    scene.dies()
    content = file.read_bytes()
    pixels = np.asarray(Image.open(file))
    Image.fromarray(255 - pixels).save(file)
    scene.is_refused("the checkpoint's")
    file.write_bytes(content)


def spoil_cache(scene: Scene) -> None:
    """Each of our files in the cache is cut, emptied or flipped, or left as it is."""
    scene.dies()
    files = [path for path in (scene.cache / "unet-accelerate").iterdir() if path.stat().st_size]
    for file in sorted(files):
        damage = scene.random.randrange(4)
        if damage == 0:
            os.truncate(file, scene.random.randrange(file.stat().st_size))
        elif damage == 1:
            os.truncate(file, 0)
        elif damage == 2:
            flip(scene.random, file)


def spoil_notes(scene: Scene) -> None:
    """finished.json and memory.json hold what nobody wrote there; the newest manifest is of another shape."""
    scene.dies()
    contents = [b"", b"\0\0\0\0", b"[]", b"{}", b'{"step": {}}', b"[" * 100_000, b"\xff\xfe"]
    for name in ("finished.json", "memory.json"):
        (scene.run / name).write_bytes(scene.random.choice(contents))
    (newest_checkpoint(scene.run) / "manifest.json").write_bytes(scene.random.choice(contents))


def set_clock_back(scene: Scene) -> None:
    """The resumed run lives a day earlier, see `resume`."""
    scene.dies()


def start_twice(scene: Scene) -> None:
    pid = scene.launch.ranks()[0].pid
    scene.launch.ranks()[0].suspend()  # the run is not to end before the second one comes
    try:
        scene.is_refused(f"in use by process {pid} on ")
    finally:
        scene.launch.kill()


FAULTS: dict[str, Callable[[Scene], None]] = {
    "a process is killed": kill_rank,
    "a loader's process is killed": kill_loader,
    "a launcher is killed": kill_launcher,
    "a machine is lost": kill_machine,
    "SIGTERM": terminate,
    "SIGUSR1": ask(signal.SIGUSR1),
    "SIGHUP": ask(signal.SIGHUP),
    "a process stops for 3 s": stop_shortly,
    "a process stops for ever": stop_for_long,
    "a process raises an error": raise_error,
    "killed in a save": interrupt_save,
    "network cut": cut_network,
    "network cut while all wait for one": cut_network_in_wait,
    "network cut for 2 s": cut_network_shortly,
    "network slow": slow_network,
    "network loses packets": lossy_network,
    "disk full": fill_disk,
    "disk read-only": disk_read_only,
    "disk gone": disk_gone,
    "newest checkpoint cut": cut_checkpoint,
    "newest checkpoint flipped": flip_checkpoint,
    "log cut": cut_log,
    "log spoilt": spoil_log,
    "an image deleted": delete_data,
    "an image cut": cut_data,
    "an image replaced": replace_data,
    "cache spoilt": spoil_cache,
    "small files spoilt": spoil_notes,
    "clock set back": set_clock_back,
    "a second run in the folder": start_twice,
}
NEEDS_NETWORK = ("a machine is lost", "network cut", "network cut while all wait for one", "network cut for 2 s")
NEEDS_NETWORK += ("network slow", "network loses packets")
OF_THEMSELVES = ("killed in a save", "a process raises an error", "network cut while all wait for one")
NEEDS_DISK = ("disk full", "disk read-only", "disk gone")
NEEDS_FAKETIME = ("clock set back",)


def newest_checkpoint(run: Path) -> Path:
    """The newest complete checkpoint."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if (path / "manifest.json").exists())[-1]


def flip(generator: random.Random, file: Path) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    file.write_bytes(content)


def any_image(scene: Scene) -> Path:
    """An image or a mask of the training or the validation images."""
    return scene.random.choice(sorted(scene.data.rglob("*.png")))


class Workplace:
    """What all faults share: network, disk, data, and the undisturbed run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        root = sys.platform == "linux" and os.geteuid() == 0
        self.data = folder / "data"
        self.cache = folder / "cache"
        self.undisturbed = folder / "undisturbed"
        if not self.data.exists():
            write_data(self.data)
        self.network = Network(isolated=root and all(map(shutil.which, ("ip", "tc", "nsenter"))))
        self.disk = Disk(folder, mounted=root)

    def kinds(self) -> list[str]:
        """The faults that can be made here; names the others."""
        lacking: dict[str, tuple[str, ...]] = {}
        if not self.network.isolated:
            lacking["network namespaces (root and iproute2)"] = NEEDS_NETWORK
        if not self.disk.mounted:
            lacking["disks of its own (root)"] = NEEDS_DISK
        if not FAKETIME.exists():
            lacking["libfaketime"] = NEEDS_FAKETIME
        omitted_names: list[str] = []
        for need, names in lacking.items():
            print(f"left out, for lack of {need}: {', '.join(names)}")
            omitted_names.extend(names)
        return [name for name in FAULTS if name not in omitted_names]

    def run_undisturbed(self) -> None:
        """Make the run that all others are compared with, once."""
        if self.undisturbed.exists():
            return
        self.disk.clear()
        run = self.disk.path / "run"
        flags = [*FLAGS, "--dataset", str(self.data), "--output-dir", str(run)]
        launch = Launch(self.network, 4, self.folder / "quiet", flags, {}, {"XDG_CACHE_HOME": str(self.cache)})
        try:
            if not launch.wait(LIMIT) or not launch.succeeded():
                raise SystemExit(f"the undisturbed run failed, see {launch.folder}")
        finally:
            launch.kill()
        print(f"undisturbed: {STEPS} steps, {time.monotonic() - launch.started:.0f} s with start and end", flush=True)
        shutil.copytree(run, self.undisturbed)

    def disturb(self, kind: str, number: int, seed: int) -> dict:
        """Make a fault, resume its run and compare; returns what it cost, and the problems."""
        self.disk.clear()
        scene = Scene(self, number, seed)
        processes = scene.random.choice([4, 2, 1])
        result = {"seed": seed, "number": number, "fault": kind, "problems": []}
        try:
            scene.begin(options_of(kind, scene))
            if kind not in OF_THEMSELVES:
                scene.await_moment()
            start_time = time.monotonic()
            FAULTS[kind](scene)
            result["seconds_to_end"] = time.monotonic() - start_time
            result |= resume(scene, processes, set_back=kind == "clock set back")
            compare(self.undisturbed, scene, result)
            if kind != "a process raises an error":
                scene.check_outputs()
        except Problem as problem:
            result["problems"].append(str(problem))
            self.keep(scene, number)
        finally:
            scene.close()
            self.network.repair()
            self.disk.repair()
        return result

    def keep(self, scene: Scene, number: int) -> None:
        """Keep what a run with problems has left, to be looked at."""
        scene.close()
        self.disk.repair()
        problem_folder = self.folder / f"problem-{number}"
        shutil.rmtree(problem_folder, ignore_errors=True)
        shutil.copytree(scene.folder, problem_folder)
        shutil.copytree(self.disk.path, problem_folder / "disk")

    def close(self) -> None:
        """Leave the machine as it was."""
        self.network.close()
        self.disk.close()


def options_of(kind: str, scene: Scene) -> dict:
    """What a process of the run does to itself, see `train_here`."""
    if kind == "killed in a save":
        return {"save": scene.moment // SAVE_EVERY, "event": scene.random.randrange(SAVE_EVENTS)}
    if kind == "a process raises an error":
        return {"raises": scene.random.randrange(4), "step": scene.moment}
    if kind == "network cut while all wait for one":
        return {"works": True}
    return {}


def resume(scene: Scene, processes: int, *, set_back: bool) -> dict:
    """Resume the run on so many processes, unless it has finished; returns what that took."""
    if (scene.run / "finished.json").exists() and scene.launch.succeeded() and logged_step(scene.run) == STEPS:
        return {"processes": None}
    variables = {}
    if set_back:
        site = scene.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SLEEP)
        variables = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "-1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        variables["PYTHONPATH"] = str(site)
    last = scene.step
    launch = scene.launch = scene.start(processes, variables=variables)
    first_step = None
    while first_step is None and not launch.has_ended():
        if time.monotonic() - launch.started > LIMIT:
            raise Problem("the resumed run makes no step")
        time.sleep(0.05)
        start = resumed_at(launch.output())
        if start is not None and logged_step(scene.run) > start:
            first_step = time.monotonic() - launch.started
    if not launch.wait(LIMIT) or not launch.succeeded():
        raise Problem(f"the run cannot be resumed on {processes} processes")
    start = resumed_at(launch.output())
    scene.resumed_at = start or 0
    return {"processes": processes, "steps_lost": max(0, last - scene.resumed_at), "seconds_to_step": first_step}


def resumed_at(output: str) -> int | None:
    """The step that a run says it goes on from; None where it begins."""
    for line in output.splitlines():
        if line.startswith("resumed from "):
            return int(line.rpartition("at step ")[2].split()[0])
    return None


def compare(undisturbed: Path, scene: Scene, result: dict) -> None:
    """Problem where a finished run is not what it must be."""
    ours = records(scene.run)
    theirs = records(undisturbed)
    if scene.lines_may_lack:
        steps = {record["step"] for record in ours}
        lacking = {record["step"] for record in theirs} - steps
        if any(step > scene.resumed_at for step in lacking):
            raise Problem(f"the log lacks the steps {sorted(lacking)} although it went on at {scene.resumed_at}")
        theirs = [record for record in theirs if record["step"] in steps]
    if result["processes"] in (None, 4):
        if ours != theirs:
            raise Problem("records differ")
        if not same_tensors(newest_checkpoint(scene.run), newest_checkpoint(undisturbed)):
            raise Problem("weights, averages or optimizer state differ")
        if not same_tensors(scene.run / "model", undisturbed / "model"):
            raise Problem("the best models differ")
        return
    if [record["step"] for record in ours] != [record["step"] for record in theirs]:
        raise Problem("the logged steps differ")
    differences = [
        abs(a["train/loss"] - b["train/loss"]) for a, b in zip(ours, theirs, strict=True) if "train/loss" in a
    ]
    result["largest_difference"] = max(differences)
    if max(differences) > TOLERANCE:
        raise Problem(f"losses differ by {max(differences):.1e}")


def records(run: Path) -> list[dict]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("perf/")} for line in lines]


def same_tensors(ours: Path, theirs: Path) -> bool:
    """Whether the safetensors files of two folders hold the same, bit for bit."""
    names = sorted(file.name for file in theirs.glob("*.safetensors"))
    if names != sorted(file.name for file in ours.glob("*.safetensors")):
        return False
    for name in names:
        one, other = load_file(ours / name), load_file(theirs / name)
        if one.keys() != other.keys():
            return False
        if any(one[key].tobytes() != other[key].tobytes() for key in one):
            return False
    return True


def write_data(folder: Path) -> None:
    """14 training and 6 validation images of 40 x 56 with a bright box each, and its mask."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 14), ("val", 6)):
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True)
        for index in range(count):
            image = rng.integers(0, 100, (40, 56, 3), dtype=np.uint8)
            mask = np.zeros((40, 56), np.uint8)
            top, left = rng.integers(0, 20), rng.integers(0, 28)
            image[top : top + 20, left : left + 18] += 120
            mask[top : top + 20, left : left + 18] = 255
            Image.fromarray(image).save(folder / split / "images" / f"{index:02}.png")
            Image.fromarray(mask).save(folder / split / "masks" / f"{index:02}.png")


def train_here() -> None:
    """train.py with a short time-out, in a process that may do something to itself, as the variable CHAOS says.

    What it prints goes to a file of its own, so that it can be told from what the launchers print.
    """
    options = json.loads(os.environ["CHAOS"])
    rank = int(os.environ.get("RANK", "0"))
    output = os.open(Path(options["outputs"]) / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import runtime.launch
    import train
    from runtime.script import run_script
    from train_utils.publisher import Publisher

    runtime.launch.COLLECTIVE_TIMEOUT = timedelta(seconds=TIMEOUT)
    if options.get("raises") == rank:
        train.train_step = raising(train.train_step, options["step"])
    if "save" in options and rank == 0:
        sys.addaudithook(killing(options["save"] * SAVE_EVERY, options["event"]))
    if options.get("works") and rank == 0:
        late = working(Publisher._publish_on_main, Path(options["outputs"]) / "working")
        Publisher._publish_on_main = late  # type: ignore[method-assign]
    sys.argv = ["train.py", *sys.argv[2:]]
    run_script(train.main)


def raising(train_step: Callable, step: int) -> Callable:
    """`train_step`, but for a step in which it raises an error."""
    steps = iter(range(1, step))

    def train_until(*arguments: object, **options: object) -> object:
        if next(steps, None) is None:
            raise RuntimeError("a bug in the step")
        return train_step(*arguments, **options)

    return train_until


def working(publish: Callable, file: Path) -> Callable:
    """`publish`, of an evaluation, that takes longer than any time limit here; `file` says that it has begun."""

    def publish_late(*arguments: object) -> None:
        file.touch()
        time.sleep(WORK)
        publish(*arguments)

    return publish_late


def killing(step: int, event: int) -> Callable[[str, tuple], None]:
    """A hook that ends the process at a file operation of the save of a step: the first for event 0."""
    name = f"step-{step:08}"
    left = [event]

    def hook(operation: str, arguments: tuple) -> None:
        if not operation.startswith(("open", "os.", "shutil.")) or not any(name in str(word) for word in arguments):
            return
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def random_faults(kinds: list[str], seed: int) -> Iterator[str]:
    """Faults without end: all kinds in an order of the seed, then in another one."""
    generator = random.Random(seed)
    while True:
        yield from generator.sample(kinds, len(kinds))


def print_costs(results: list[dict]) -> None:
    """A table of what the faults have cost, as Markdown."""
    print("| fault | times | steps lost, at most | s until all had ended | s from the new start to a step | problems |")
    print("|---|---|---|---|---|---|")
    for kind in FAULTS:
        same = [result for result in results if result["fault"] == kind]
        if not same:
            continue
        lost = max((result.get("steps_lost", 0) for result in same), default=0)
        problems = sum(bool(result["problems"]) for result in same)
        cells = [kind, len(same), lost, middle(same, "seconds_to_end"), middle(same, "seconds_to_step"), problems]
        print("|", " | ".join(map(str, cells)), "|")


def middle(results: list[dict], key: str) -> str:
    """The median of a number that some of the results have."""
    values = [result[key] for result in results if result.get(key) is not None]
    return f"{median(values):.0f}" if values else ""


def main() -> None:
    if sys.argv[1:2] == ["train"]:
        train_here()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=None)
    args = parser.parse_args()
    exit_on_sigterm()  # the machines and the disk are removed
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "faults.jsonl"
    earlier = file.read_text().splitlines() if file.exists() else []
    results = [result for result in map(json.loads, earlier) if result["seed"] == args.seed]
    workplace = Workplace(folder)
    try:
        kinds = args.only or workplace.kinds()
        workplace.run_undisturbed()
        finished_numbers = {result["number"] for result in results}
        for number, kind in zip(range(args.faults), random_faults(kinds, args.seed), strict=False):
            if number in finished_numbers:
                continue
            result = workplace.disturb(kind, number, args.seed)
            results.append(result)
            with file.open("a") as lines:
                lines.write(json.dumps(result) + "\n")
            print(f"{number}: {kind}: {'; '.join(result['problems']) or 'as it must be'}", flush=True)
    finally:
        workplace.close()
    print_costs(results)
    sys.exit(int(any(result["problems"] for result in results)))


if __name__ == "__main__":
    main()
