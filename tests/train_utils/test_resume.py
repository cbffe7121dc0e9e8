"""Checkpoints are complete or absent, and a resumed run cannot be told from one that was never interrupted.

Modules: train_utils/checkpoints/checkpoint_state.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import PROGRAMS, ROOT, TINY, launch, write_folder
from forked import ForkedRun
from in_process import run_train
from PIL import Image
from safetensors.torch import load_file

import train
from runtime.errors import CheckpointError
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import find_checkpoint, fingerprint
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet import UNetConfig

FLAGS = ["--max-steps", "30", "--log-every", "1", "--checkpoint-every", "3", "--eval-every", "10"]
FLAGS += [
    "--keep-checkpoints",
    "3",
    "--batch-size",
    "4",
    "--micro-batch-size",
    "2",
    "--dropout",
    "0.1",
    "--ema-decay",
    "0.9",
    "--augment",
    "strong",
]

SHORT = ["--base-channels", "2", "--depth", "1", "--norm", "group", "--plan", "none", "--no-deep-supervision"]
SHORT += ["--num-workers", "0", "--batch-size", "4", "--max-steps", "1", "--tracker", "none"]


def command(folder: Path, output: Path, *flags: str) -> list:
    return ["train.py", "--dataset", folder, "--output-dir", output, *TINY, *FLAGS, *flags]


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
    found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]


def records(output: Path) -> list[dict]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("perf/")} for line in lines]


def losses(output: Path) -> list[float]:
    """One of every step."""
    found = {record["step"]: record["train/loss"] for record in records(output) if "train/loss" in record}
    assert list(found) == list(range(1, 31))
    return list(found.values())


def copy_until(step: int, whole: Path, copy: Path) -> None:
    """A copy of a run without the checkpoints after `step`."""
    shutil.copytree(whole, copy)
    for checkpoint in (copy / "checkpoints").glob("step-*"):
        if int(checkpoint.name[5:]) > step:
            shutil.rmtree(checkpoint)


def last_checkpoint(output: Path) -> Path:
    return sorted((output / "checkpoints").glob("step-*"))[-1]


def same_weights(one: Path, other: Path) -> None:
    for file in ("model.safetensors", "optimizer.safetensors", "average.safetensors"):
        ours, theirs = load_file(one / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), file


@pytest.fixture(scope="module")
def uninterrupted(tiny_folder, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("resume") / "whole"
    result = launch(*command(tiny_folder, output))
    assert result.returncode == 0, result.stderr
    return output


def interrupted(tiny_folder: Path, output: Path, number: int, launcher: list[str] = ()) -> subprocess.Popen | ForkedRun:
    """A run that has been sent a signal at step 9 or a little later, in the middle of the third epoch."""
    workers = "0" if number == signal.SIGUSR1 else "1"  # the other signals reach or orphan a loader's processes
    process = start([*command(tiny_folder, output), "--num-workers", workers], launcher)
    wait_for_step(process, output, 9)
    process.send_signal(number)
    if number == signal.SIGINT:  # as `timeout -s INT` does: the process, then its group
        os.killpg(process.pid, number)
    process.wait(timeout=60)
    return process


def test_run_killed_in_an_epoch_resumes_to_the_same_losses_scores_and_weights(tiny_folder, uninterrupted, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes a second

    output = tmp_path / "run"
    interrupted(tiny_folder, output, signal.SIGKILL)
    assert last_checkpoint(output).name < "step-00000030"
    result = launch(*command(tiny_folder, output, "--resume", "auto"))
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stdout
    assert records(output) == records(uninterrupted)
    same_weights(last_checkpoint(output), last_checkpoint(uninterrupted))
    for file in ("model/config.json", "model/model.safetensors", "images.csv"):
        assert (output / file).read_bytes() == (uninterrupted / file).read_bytes()
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 31)), "one continuous curve"


@pytest.mark.parametrize(
    "launcher", [[], pytest.param(["-m", "accelerate.commands.launch", "--cpu"], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_run_asked_to_stop_saves_and_resumes_as_if_nothing_had_been(
    tiny_folder, uninterrupted, tmp_path, number, launcher
):
    if launcher and number != signal.SIGTERM:
        pytest.skip("the launcher itself takes no notice of other signals")
    output = tmp_path / "run"
    process = interrupted(tiny_folder, output, number, launcher)
    if not launcher:
        stdout, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert "all is saved; continue with --resume auto" in stdout
        assert "Traceback" not in stderr
    for _ in range(600):  # the launcher may end before its child
        steps = [record["step"] for record in records(output)]
        if int(last_checkpoint(output).name[5:]) == steps[-1] > 8:
            break
        time.sleep(0.1)
    assert steps[-1] < 30
    assert int(last_checkpoint(output).name[5:]) == steps[-1]
    for _ in range(60):  # the child may still be at its end
        result = launch(*command(tiny_folder, output, "--resume", "auto"))
        if "is in use by process" not in result.stderr:
            break
        time.sleep(0.5)
    assert result.returncode == 0, result.stderr
    assert records(output) == records(uninterrupted)
    same_weights(last_checkpoint(output), last_checkpoint(uninterrupted))


def test_two_processes_stop_together_and_other_numbers_go_on_with_the_same_images(tiny_folder, tmp_path):
    """Without dropout, which draws for each process, and with SGD, the losses agree to rounding (DESIGN)."""
    flags = ["--dropout", "0", "--optimizer", "sgd", "--keep-checkpoints", "20"]
    whole, two, output = tmp_path / "whole", tmp_path / "two", tmp_path / "run"
    assert launch(*command(tiny_folder, whole, *flags)).returncode == 0
    profile = ["--config_file", str(ROOT / "accelerate_configs" / "multi_cpu.yaml"), "--main_process_port", "0"]
    process = start(command(tiny_folder, output, *flags), profile=profile)
    wait_for_step(process, output, 9)
    os.kill(process.pids[-1], signal.SIGUSR1)  # one of the two is asked, both must stop
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "all is saved" in stdout
    stopped_at = records(output)[-1]["step"]
    assert int(last_checkpoint(output).name[5:]) == stopped_at < 30
    copy_until(12, whole, two)
    for folder, processes in ((two, "2"), (output, "3")):
        arguments = command(tiny_folder, folder, *flags, "--resume", "auto")
        result = launch(*arguments, profile="multi_cpu", options=["--num_processes", processes])
        assert result.returncode == 0, result.stderr
        assert losses(folder) == pytest.approx(losses(whole), abs=1e-5)  # the documented promise, of SGD in fp32


@pytest.fixture(scope="module")
def streamed(tiny_folder, tmp_path_factory) -> list:
    """Flags to train on the tiny folder as a stream of small parquet files."""
    out = tmp_path_factory.mktemp("packed") / "out"
    pack = [sys.executable, "-m", "data_utils.pack", tiny_folder, out, "--shard-mb", "0.02"]
    subprocess.run(pack, cwd=ROOT, check=True, timeout=60)
    flags = ["--streaming", "--classes", "0=background,255=cell", "--image-size", "40", "56"]
    return ["--dataset", out, *flags]


@pytest.mark.slow
def test_killed_processes_are_started_again_and_a_stream_goes_on_as_if_nothing_had_been(streamed, tmp_path):
    """By the launcher, in the middle of an epoch; then also on another number of processes, to rounding.

    Only the killed processes have a loader's process each.
    """
    whole, output, one = tmp_path / "whole", tmp_path / "run", tmp_path / "one"
    flags = [*streamed, "--dropout", "0", "--optimizer", "sgd", "--keep-checkpoints", "20"]
    result = launch(*command("", whole, *flags), profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    launcher = ["-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/multi_cpu.yaml"]
    launcher += ["--main_process_port", "0", "--max_restarts", "1"]
    process = start([*command("", output, *flags), "--num-workers", "1", "--resume", "auto"], launcher)
    wait_for_step(process, output, 9)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "resumed from" in stdout
    assert records(output) == records(whole)
    same_weights(last_checkpoint(output), last_checkpoint(whole))
    copy_until(12, whole, one)
    result = launch(*command("", one, *flags, "--resume", "auto"))
    assert result.returncode == 0, result.stderr
    assert "step-00000012, at step 12 of 30" in result.stdout
    assert losses(one) == pytest.approx(losses(whole), abs=1e-5)  # the documented promise, of SGD in fp32


def test_another_length_is_said_with_what_becomes_of_the_schedule(tiny_folder, uninterrupted, tmp_path):
    arguments = command(tiny_folder, tmp_path, "--resume", str(last_checkpoint(uninterrupted)), "--max-steps", "32")
    result = launch(*arguments)
    assert result.returncode == 0, result.stderr
    assert "the run is now 32 steps long instead of 30: the learning rate follows" in result.stdout
    assert records(tmp_path)[-1]["step"] == 32


def test_damaged_checkpoints_are_passed_over_and_named(tiny_folder, uninterrupted, tmp_path, fails_with):
    output = tmp_path / "run"
    subprocess.run(["cp", "-r", uninterrupted, output], check=True)
    folders = sorted((output / "checkpoints").glob("step-*"), reverse=True)
    assert [folder.name for folder in folders[:3]] == ["step-00000030", "step-00000027", "step-00000024"]
    weights = folders[0] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    os.truncate(folders[1] / "optimizer.safetensors", 100)
    (output / "finished.json").unlink()
    result = launch(*command(tiny_folder, output, "--resume", "auto"))
    assert result.returncode == 0, result.stderr
    assert f"{folders[0]}: model.safetensors is damaged" in result.stdout
    assert f"{folders[1]}: optimizer.safetensors is damaged" in result.stdout
    assert f"resumed from {folders[2]}" in result.stdout
    assert "it is renamed to set-aside-step-00000030" in result.stdout
    assert records(output) == records(uninterrupted)
    for folder in (output / "checkpoints").glob("step-*"):
        (folder / "state.json").unlink()
    (output / "finished.json").unlink()
    result = launch(*command(tiny_folder, output, "--resume", "auto"))
    fails_with(result, "state.json is missing", 1)


def test_what_gives_the_state_its_meaning_may_not_change(tiny_folder, uninterrupted, tmp_path, fails_with):
    arguments = command(tiny_folder, tmp_path, "--resume", str(last_checkpoint(uninterrupted)))
    fails_with(launch(*arguments, "--batch-size", "5"), "batch size is 4, this run's is 5", 1)
    fails_with(launch(*arguments, "--base-channels", "8"), "base_channels is 4, this run's is 8", 1)
    fails_with(launch("train.py", "--resume", "auto"), "--resume auto needs --output-dir", 2)
    fails_with(
        launch(*command(tiny_folder, tmp_path, "--resume", "nowhere")), "--resume nowhere is not a checkpoint", 1
    )


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Path, Path]:
    """A data set, and a run of one step on it."""
    folder = tmp_path_factory.mktemp("short")
    write_folder(folder / "data" / "train", 4, seed=0, size=(16, 24))
    write_folder(folder / "data" / "val", 2, seed=1, size=(16, 24))
    with mock.patch.object(train.Publisher, "write_results"):
        assert run_train(folder / "run", "--dataset", folder / "data", *SHORT).exit_code == 0
    return folder / "data", last_checkpoint(folder / "run")


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ((), "data set"),
        ((), "content of the data set"),
        (("--seed", "1"), "seed"),
        (("--optimizer", "sgd"), "optimizer"),
        (("--norm", "instance"), "norm"),
        (("--classes", "255=cell,0=background"), "classes"),
        (("--deep-supervision",), "deep supervision"),
    ],
)
def test_a_checkpoint_of_other_data_or_of_another_identity_is_refused(short, tmp_path, flags, changed):
    data, checkpoint = short
    if changed == "data set":
        data = shutil.copytree(data, tmp_path / "data")
        for kind in ("images", "masks"):
            (data / "val" / kind / "cell_01.png").unlink()
    if changed == "content of the data set":
        data = shutil.copytree(data, tmp_path / "data")
        image = data / "val" / "images" / "cell_01.png"
        Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
    arguments = ["--dataset", data, *SHORT, "--max-steps", "2", "--resume", checkpoint]
    with pytest.raises(CheckpointError, match=f"the checkpoint's {changed} is "):
        run_train(tmp_path / "run", *arguments, *flags)


def test_a_run_that_goes_back_keeps_its_own_checkpoints_and_sets_the_newer_aside(tiny_folder, tmp_path):
    output = tmp_path / "run"
    flags = ["--max-steps", "8", "--tracker", "none"]
    assert launch(*command(tiny_folder, output), *flags, "--checkpoint-every", "2").returncode == 0
    back = output / "checkpoints" / "step-00000004"
    result = launch(*command(tiny_folder, output, "--resume", str(back)), *flags, "--max-steps", "7")
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert names[-1] == "step-00000007"
    assert {"set-aside-step-00000006", "set-aside-step-00000008"} <= set(names)
    assert [record["step"] for record in records(output) if "train/loss" in record] == list(range(1, 8))


@pytest.mark.parametrize(("best_step", "expected"), [(8, -1.0), (4, 0.5), (3, 0.5)])
def test_going_back_behind_the_best_model_forgets_its_score(tmp_path, best_step, expected):
    """model/ is then not the one that the older checkpoint calls the best."""
    for step, best in ((4, 3), (8, best_step)):
        checkpoint = tmp_path / f"step-{step:08}"
        checkpoint.mkdir()
        run = RunState(step=step, best=0.5, best_step=best)
        state = CheckpointState(RunSettings(), UNetConfig(), run, score=None, scaler=None)
        (checkpoint / "state.json").write_text(json.dumps(state.to_json()))
        for kind in ("model", "optimizer"):
            (checkpoint / f"{kind}.safetensors").touch()
        manifest = {file.name: fingerprint(file) for file in checkpoint.iterdir()}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    found = find_checkpoint(str(tmp_path / "step-00000004"), tmp_path)
    assert found.run_state().best == expected


def test_resume_auto_starts_fresh_where_there_is_nothing_yet(tiny_folder, tmp_path):
    result = launch(*command(tiny_folder, tmp_path / "run", "--resume", "auto"), "--max-steps", "2")
    assert result.returncode == 0, result.stderr
    assert records(tmp_path / "run")[0]["step"] == 1


def test_full_disk_ends_no_training_and_leaves_no_half_checkpoint(tiny_folder, tmp_path, fails_with):
    """A limit on the size of files, which the optimizer's state goes beyond after the first step."""
    flags = ["--max-steps", "7", "--tracker", "none"]
    size = 40_000  # bytes: more than the weights have
    arguments = command(tiny_folder, tmp_path / "run", *flags)
    result = launch(PROGRAMS / "limited.py", "RLIMIT_FSIZE", str(size), *arguments)
    fails_with(result, "is incomplete: files could not be written", 1)
    assert "checkpoint step-00000003 could not be written" in result.stdout
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000000"]
    assert "report.html could not be written" in result.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_folder_that_was_away_for_a_while_misses_nothing_in_the_end(tiny_folder, uninterrupted, tmp_path):
    output, away = tmp_path / "run", tmp_path / "away"
    process = start([*command(tiny_folder, output), "--tracker", "none"])
    wait_for_step(process, output, 8)
    output.rename(away)
    refused = ("checkpoint step", "metrics.jsonl could not", "model could not")
    while not all(what in process.output for what in refused):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    assert not output.exists(), "it might have been a mount point"
    away.rename(output)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert records(output) == records(uninterrupted)
    same_weights(last_checkpoint(output), last_checkpoint(uninterrupted))
    for file in ("config.json", "model.safetensors"):
        assert (output / "model" / file).read_bytes() == (uninterrupted / "model" / file).read_bytes()
