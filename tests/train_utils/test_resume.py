"""Checkpoints are complete or absent, and a resumed run cannot be told from one that was never interrupted."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file
from support.forks import ForkedRun
from support.in_process import Run, run_train
from support.launches import PROGRAMS, ROOT, TINY, launch
from support.run_equality import different_tensors
from support.run_files import last_checkpoint, records

import train_utils.step
from runtime.errors import CheckpointError

STEPS = 12
FLAGS = ["--max-steps", str(STEPS), "--log-every", "1", "--checkpoint-every", "3", "--eval-every", "5"]
FLAGS += ["--keep-checkpoints", "3", "--batch-size", "4", "--micro-batch-size", "2"]
FLAGS += ["--dropout", "0.1", "--ema-decay", "0.9", "--augment", "strong"]

LONG = ["--max-steps", "30", "--eval-every", "10"]  # long enough to be interrupted from outside


def command(folder: Path, output: Path, *flags: str) -> list:
    return ["train.py", "--dataset", folder, "--output-dir", output, *TINY, *FLAGS, *flags]


def run_here(folder: Path, output: Path, *flags: str) -> Run:
    """The same run in this process, without TensorBoard."""
    arguments = command(folder, output, "--tracker", "none", *flags)[1:]
    return run_train(output, *arguments)


@contextmanager
def at_step(step: int, action: Callable[[], object]) -> Iterator[None]:
    """Within, a run in this process calls `action` before this step."""
    seed_step = train_utils.step.seed_step

    def acting(seed: int, number: int, process: int) -> None:
        if number == step:
            action()
        seed_step(seed, number, process)

    with mock.patch.object(train_utils.step, "seed_step", acting):
        yield


def start(arguments: list, launcher: list[str] = (), profile: list[str] | None = None) -> subprocess.Popen | ForkedRun:
    """train.py in the background, in a process group of its own; without a launcher it is forked."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "PYTHONUNBUFFERED": "1"}
    if not launcher:
        return ForkedRun(list(map(str, arguments)), profile, environment, ROOT, Path(tempfile.mkdtemp()))
    return subprocess.Popen(
        [sys.executable, *launcher, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(process: subprocess.Popen | ForkedRun, output: Path, step: int) -> None:
    """Until the run has logged `step`, at most a minute."""
    for _ in range(6000):
        log = output / "metrics.jsonl"
        if log.exists() and f'"step": {step},' in log.read_text():
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    raise AssertionError(f"step {step} was never logged")


def workers_of(launcher: subprocess.Popen) -> list[int]:
    """Process ids, by rank."""
    process = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in process.stdout.split()]


def timeless_records(output: Path) -> list[dict]:
    """The records of metrics.jsonl without their measurements of speed."""
    return [{key: value for key, value in record.items() if not key.startswith("perf/")} for record in records(output)]


def losses(output: Path, steps: int = STEPS) -> list[float]:
    """One of every step."""
    loss_of_step = {record["step"]: record["train/loss"] for record in records(output) if "train/loss" in record}
    assert list(loss_of_step) == list(range(1, steps + 1))
    return list(loss_of_step.values())


def copy_until(step: int, whole: Path, copy: Path) -> None:
    """A copy of a run without the checkpoints after `step`."""
    shutil.copytree(whole, copy)
    for checkpoint in (copy / "checkpoints").glob("step-*"):
        if int(checkpoint.name[5:]) > step:
            shutil.rmtree(checkpoint)


def check_same_end(output: Path, whole: Path) -> None:
    """A run has the records and the last checkpoint of one that nothing has stopped."""
    assert timeless_records(output) == timeless_records(whole)
    for kind in ("model", "optimizer", "average"):
        ours, theirs = (load_file(last_checkpoint(run) / f"{kind}.safetensors") for run in (output, whole))
        assert different_tensors(ours, theirs) == [], kind


def whole_run(data: Path, output: Path, *flags: str) -> Path:
    """The output folder of a run that nothing stops."""
    assert run_here(data, output, *flags).exit_code == 0
    return output


@pytest.fixture(scope="module")
def uninterrupted(tiny_folder, tmp_path_factory) -> Path:
    return whole_run(tiny_folder, tmp_path_factory.mktemp("resume") / "whole")


@pytest.fixture(scope="module")
def long_run(tiny_folder, tmp_path_factory) -> Path:
    return whole_run(tiny_folder, tmp_path_factory.mktemp("resume") / "long", *LONG)


def test_killed_run_resumes_to_the_same_losses_scores_weights_and_files(tiny_folder, uninterrupted, tmp_path):
    """It is killed at its seventh step, in an epoch; a loader's process is orphaned."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes a second

    output = tmp_path / "killed"
    arguments = command(tiny_folder, output, "--num-workers", "1")
    result = launch(PROGRAMS / "signal_at_step.py", "7", "SIGKILL", "0", *arguments)
    assert result.returncode == -signal.SIGKILL
    assert last_checkpoint(output).name <= "step-00000006"
    # files of one second are sorted by the number of their process, as text: this one is made to be older
    (events_file,) = (output / "tensorboard").iterdir()
    events_file.rename(events_file.with_name(events_file.name.replace("tfevents.", "tfevents.0")))
    result = launch(*command(tiny_folder, output, "--resume", "auto"))
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stdout
    check_same_end(output, uninterrupted)
    for file in ("model/config.json", "model/model.safetensors", "images.csv"):
        assert (output / file).read_bytes() == (uninterrupted / file).read_bytes()
    events = EventAccumulator(str(output / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_killed_processes_resume_bit_for_bit(tiny_folder, tmp_path, processes):
    whole, output = tmp_path / "whole", tmp_path / "run"
    launched = {"profile": "multi_cpu", "options": ["--num_processes", str(processes)]}
    result = launch(*command(tiny_folder, whole), **launched)
    assert result.returncode == 0, result.stderr
    arguments = command(tiny_folder, output)
    assert launch(PROGRAMS / "signal_at_step.py", "7", "SIGKILL", "0", *arguments, **launched).returncode != 0
    result = launch(*arguments, "--resume", "auto", **launched)
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stdout
    check_same_end(output, whole)


def test_run_asked_to_stop_resumes_as_if_nothing_had_been(tiny_folder, uninterrupted, tmp_path):
    output = tmp_path / "run"
    with at_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        stopped = run_here(tiny_folder, output)
    assert stopped.exit_code == 0
    assert "all is saved; continue with: " in stopped.output
    assert records(output)[-1]["step"] == int(last_checkpoint(output).name[5:]) == 8
    resumed = run_here(tiny_folder, output, "--resume", "auto")
    assert resumed.exit_code == 0, resumed.output
    check_same_end(output, uninterrupted)


def wait_for_checkpoint(output: Path) -> int:
    """The step at which a run was stopped, once its checkpoint is there, at most a minute."""
    for _ in range(600):
        step = records(output)[-1]["step"]
        if int(last_checkpoint(output).name[5:]) == step > 8:
            return step
        time.sleep(0.1)
    raise AssertionError(f"step {step} was never saved")


def resume_when_free(*arguments: str | Path) -> subprocess.CompletedProcess:
    """The end of a run whose folder another process may still use for a moment."""
    for _ in range(60):
        result = launch(*arguments, "--resume", "auto")
        if "is in use by process" not in result.stderr:
            break
        time.sleep(0.5)
    return result


LAUNCHER = ["-m", "accelerate.commands.launch", "--cpu"]
# signals in turn, each to the process alone or to its group, and how it is launched
INTERRUPTIONS = {
    "SIGINT": ([(signal.SIGINT, os.kill), (signal.SIGINT, os.killpg)], []),  # as `timeout -s INT` does
    "SIGUSR1": ([(signal.SIGUSR1, os.kill)], []),
    "SIGHUP": ([(signal.SIGHUP, os.kill)], []),
    "SIGTERM to the launcher": ([(signal.SIGTERM, os.kill)], LAUNCHER),  # it takes no notice of other signals
}


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "launcher"), INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_run_ends_by_a_signal_from_outside_as_if_nothing_had_been(tiny_folder, long_run, tmp_path, signals, launcher):
    """At step 9 or a little later, in the middle of the third epoch; the launcher may end before the run."""
    output = tmp_path / "run"
    arguments = command(tiny_folder, output, *LONG)
    process = start([*arguments, "--num-workers", "1"], launcher)
    wait_for_step(process, output, 9)
    for number, send in signals:
        send(process.pid, number)
    process.wait(timeout=60)
    stdout, stderr = process.communicate()
    if not launcher:
        assert process.returncode == 0, stderr
        assert "all is saved; continue with: " in stdout
        assert "Traceback" not in stderr
    assert wait_for_checkpoint(output) < 30
    result = resume_when_free(*arguments)
    assert result.returncode == 0, result.stderr
    check_same_end(output, long_run)


EXACT = ["--dropout", "0", "--optimizer", "sgd", "--keep-checkpoints", "20"]


@pytest.fixture(scope="module")
def exact(tiny_folder, tmp_path_factory) -> Path:
    """Without dropout, which draws for each process, and with SGD, the losses agree to rounding (DESIGN)."""
    return whole_run(tiny_folder, tmp_path_factory.mktemp("resume") / "exact", *EXACT)


def test_one_process_goes_on_where_two_have_stopped_together(tiny_folder, exact, tmp_path):
    output = tmp_path / "run"
    signal_flags = ["6", "SIGUSR1", "1"]  # one of the two is asked, both must stop
    arguments = command(tiny_folder, output, *EXACT, "--tracker", "none")
    result = launch(PROGRAMS / "signal_at_step.py", *signal_flags, *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    assert "all is saved" in result.stdout
    stopped_at = records(output)[-1]["step"]
    assert 6 <= int(last_checkpoint(output).name[5:]) == stopped_at < STEPS
    resumed = run_here(tiny_folder, output, *EXACT, "--resume", "auto")
    assert resumed.exit_code == 0, resumed.output
    assert losses(output) == pytest.approx(losses(exact), abs=1e-5)  # the documented promise, of SGD in fp32


@pytest.mark.slow
def test_several_processes_go_on_with_the_images_of_one(tiny_folder, exact, tmp_path):
    output = tmp_path / "run"
    copy_until(6, exact, output)
    arguments = command(tiny_folder, output, *EXACT, "--resume", "auto")
    result = launch(*arguments, profile="multi_cpu", options=["--num_processes", "3"])
    assert result.returncode == 0, result.stderr
    assert losses(output) == pytest.approx(losses(exact), abs=1e-5)  # the documented promise, of SGD in fp32


@pytest.mark.slow
def test_killed_processes_are_started_again_within_a_stream(tmp_path, tiny_folder, tmp_path_factory):
    """By the launcher, in the middle of an epoch; then also on another number of processes, to rounding.

    Only the killed processes have a loader's process each.
    """
    out = tmp_path_factory.mktemp("packed") / "out"
    pack = [sys.executable, "-m", "data_utils.pack", tiny_folder, out, "--shard-mb", "0.02"]
    subprocess.run(pack, cwd=ROOT, check=True, timeout=300)
    flags = ["--streaming", "--classes", "0=background,255=cell", "--image-size", "40", "56"]
    streamed = ["--dataset", out, *flags]
    whole, output, one = tmp_path / "whole", tmp_path / "run", tmp_path / "one"
    flags = [*streamed, *EXACT, *LONG]
    result = launch(*command(streamed[1], whole, *flags), profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    launcher = ["-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/multi_cpu.yaml"]
    launcher += ["--main_process_port", "0", "--max_restarts", "1"]
    process = start([*command(streamed[1], output, *flags), "--num-workers", "1", "--resume", "auto"], launcher)
    wait_for_step(process, output, 9)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "resumed from" in stdout
    check_same_end(output, whole)
    copy_until(12, whole, one)
    result = launch(*command(streamed[1], one, *flags, "--resume", "auto"))
    assert result.returncode == 0, result.stderr
    assert "step-00000012, at step 12 of 30" in result.stdout
    assert losses(one, 30) == pytest.approx(losses(whole, 30), abs=1e-5)  # the documented promise, of SGD in fp32


def test_damaged_checkpoints_are_passed_over_by_name(tiny_folder, uninterrupted, tmp_path):
    """A copy of a run that was killed before its last act."""
    copied = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (copied / "finished.json").unlink()
    folders = sorted((copied / "checkpoints").glob("step-*"), reverse=True)
    assert [folder.name for folder in folders[:3]] == ["step-00000012", "step-00000009", "step-00000006"]
    weights = folders[0] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    os.truncate(folders[1] / "optimizer.safetensors", 100)
    run = run_here(tiny_folder, copied, "--resume", "auto")
    assert run.exit_code == 0, run.output
    assert f"{folders[0]}: model.safetensors is damaged" in run.output
    assert f"{folders[1]}: optimizer.safetensors is damaged" in run.output
    assert f"resumed from {folders[2]}" in run.output
    assert "it is renamed to set-aside-step-00000012" in run.output
    assert timeless_records(copied) == timeless_records(uninterrupted)


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        (["--seed", "1"], "seed"),
        (["--norm", "instance"], "norm"),
        (["--classes", "255=cell,0=background"], "classes"),
        ([], "content of the data set"),
    ],
)
def test_checkpoint_of_another_identity_is_refused(tiny_folder, uninterrupted, tmp_path, flags, changed):
    data = tiny_folder
    if not flags:
        data = Path(shutil.copytree(tiny_folder, tmp_path / "data"))
        image = next((data / "val" / "images").iterdir())
        Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
    with pytest.raises(CheckpointError, match=f"the checkpoint's {changed} is "):
        run_here(data, tmp_path / "run", "--resume", str(last_checkpoint(uninterrupted)), *flags)


def test_full_disk_leaves_no_half_checkpoint_of_a_run_that_goes_on(tiny_folder, tmp_path, fails_with):
    """A limit on the size of files, which the optimizer's state goes beyond after the first step."""
    flags = ["--max-steps", "4", "--tracker", "none"]
    size = 40_000  # bytes: more than the weights have
    arguments = command(tiny_folder, tmp_path / "run", *flags)
    result = launch(PROGRAMS / "limited.py", "RLIMIT_FSIZE", str(size), *arguments)
    fails_with(result, "is incomplete: files could not be written", 1)
    assert "checkpoint step-00000003 could not be written" in result.stdout
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000000"]
    assert "report.html could not be written" in result.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_folder_that_was_away_for_a_while_has_all_records_and_a_model_in_the_end(
    tiny_folder, uninterrupted, tmp_path
):
    output, away = tmp_path / "run", tmp_path / "away"

    def come_back() -> None:
        refused = ("checkpoint step", "metrics.jsonl could not", "model could not")
        deadline = time.monotonic() + 60
        while not all(what in sys.stdout.getvalue() for what in refused):
            assert time.monotonic() < deadline, sys.stdout.getvalue()
            time.sleep(0.01)
        assert not output.exists(), "it might have been a mount point"
        away.rename(output)

    with at_step(4, lambda: output.rename(away)), at_step(8, come_back):
        run = run_here(tiny_folder, output)
    assert run.exit_code == 0, run.output
    check_same_end(output, uninterrupted)
    assert (output / "model" / "model.safetensors").exists()
