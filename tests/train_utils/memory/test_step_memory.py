"""A step that runs out of memory: it is cut and made again, or ends the run in a line that says what may fit."""

import gc
import json
import shutil
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate.utils import DistributedType
from support.accelerators import new_accelerator
from support.folders import write_splits
from support.in_process import Run, run_train
from support.launches import PROGRAMS, TINY, launch
from support.run_equality import different_tensors
from support.run_files import losses

import train
import train_utils.memory.step_memory
from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import MemoryShortage
from tasks.classes import ClassTarget
from train_utils import fit_batch
from train_utils.memory.step_memory import MemoryLimit, StepMemory, can_repeat_steps, read_memory_limit
from train_utils.micro_batches import MicroBatch
from train_utils.run_state import RunState
from unet import UNet, UNetConfig

GPU = SimpleNamespace(device=torch.device("cuda"), distributed_type=DistributedType.NO, num_processes=1)


def batch_of_five() -> MicroBatch:
    images = torch.arange(5.0).view(5, 1, 1, 1)
    return MicroBatch(images, ClassTarget(torch.arange(5).view(5, 1, 1)), is_filler=False)


def test_a_micro_batch_is_cut_where_a_step_can_be_made_again(tmp_path):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    batch = batch_of_five()
    first_batch = batch._replace(images=batch.images[:1], targets=batch.targets.at(slice(1)))
    parts = StepMemory(GPU, tmp_path, network, BatchSplit(6, 1, 2, 4)).cut([first_batch, batch])
    assert [part.images.flatten().tolist() for part in parts] == [[0], [0, 1], [2, 3], [4]]
    assert [part.targets.mask.flatten().tolist() for part in parts] == [[0], [0, 1], [2, 3], [4]]
    storage = batch.images.untyped_storage().data_ptr()
    assert {part.images.untyped_storage().data_ptr() for part in parts} == {storage}


@pytest.mark.parametrize(
    ("size", "recomputes", "remedy", "limit"),
    [
        (5, False, "to continue with micro-batches of 3", MemoryLimit(3, False)),
        (4, True, "to continue with micro-batches of 2", MemoryLimit(2, True)),
        (1, False, "to continue with activation checkpointing", MemoryLimit(1, True)),
        (1, True, "lower --crop-size, --scale or --base-channels", MemoryLimit()),
    ],
)
def test_shortage_names_its_process_among_all_with_what_may_fit(tmp_path, monkeypatch, size, recomputes, remedy, limit):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = recomputes
    memory = StepMemory(new_accelerator(16), tmp_path / "runs", network, BatchSplit(80, 16, size, 1))
    with pytest.raises(MemoryShortage) as caught, memory.shortage_recorded(RunState(step=6)):
        raise MemoryError("full")
    line = f"process 9: out of memory in step 7 with micro-batches of {size}"
    assert str(caught.value).startswith(line)
    assert remedy in str(caught.value)
    is_last = (size, recomputes) == (1, True)
    assert str(caught.value).endswith(" (full)")
    command = f"; run the same command with --output-dir {tmp_path / 'runs'} --resume auto to continue with "
    assert (command in str(caught.value)) is not is_last
    assert read_memory_limit(tmp_path / "runs") == limit


@pytest.mark.parametrize(
    "content",
    ['{"micro_batch_size": 0}', '{"activation_checkpointing": 1}', '{"size": 2}', "{"],
)
def test_a_damaged_record_of_memory_is_reported_and_left_out(tmp_path, capsys, content):
    (tmp_path / "memory.json").write_text(content)
    assert read_memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out


class Activations:
    """What fills the memory."""


def test_memory_of_a_failed_step_is_given_back_before_it_is_made_again(tmp_path):
    gpu = SimpleNamespace(device=torch.device("cuda"), distributed_type=DistributedType.NO, num_processes=1)
    network = UNet(UNetConfig(base_channels=2, depth=1))
    memory = StepMemory(gpu, tmp_path, network, BatchSplit(4, 1, 4, 1))
    held = []

    def step() -> None:
        of_frame, in_cycle = Activations(), Activations()
        in_cycle.itself = in_cycle
        held.extend(map(weakref.ref, (of_frame, in_cycle)))
        raise torch.OutOfMemoryError("CUDA out of memory")

    gc.disable()  # that of Python itself would come at some time
    try:
        step()
    except torch.OutOfMemoryError as error:
        memory.halve_or_raise(error, SimpleNamespace(undo_passes=lambda: None))
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()
    assert len(held) == 2


def test_a_shortage_in_an_evaluation_names_it_with_what_helps(tmp_path):
    network = UNet(UNetConfig(base_channels=2, depth=1)).eval()
    memory = StepMemory(new_accelerator(), tmp_path, network, BatchSplit(4, 1, 4, 1))
    line = "in the evaluation after step 6; lower --scale or --base-channels"
    with pytest.raises(MemoryShortage, match=line), memory.shortage_recorded(RunState(step=6)):
        raise MemoryError("full")
    assert read_memory_limit(tmp_path) == MemoryLimit()


def test_another_error_in_training_is_left_as_it_is(tmp_path):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    memory = StepMemory(new_accelerator(), tmp_path, network, BatchSplit(8, 1, 4, 2))
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal") as caught, memory.shortage_recorded(RunState(step=2)):
        raise error
    assert caught.value is error
    assert read_memory_limit(tmp_path) == MemoryLimit(None, False)


@pytest.mark.parametrize(
    ("device", "processes", "kind", "repeats"),
    [
        ("cuda", 1, DistributedType.NO, True),
        ("cuda", 2, DistributedType.MULTI_GPU, False),
        ("cuda", 1, DistributedType.DEEPSPEED, False),
        ("cpu", 1, DistributedType.NO, False),
    ],
)
def test_only_one_process_on_one_gpu_repeats_a_step(device, processes, kind, repeats):
    assert can_repeat_steps(new_accelerator(processes, device=device, kind=kind)) == repeats


class LimitedForward:
    """The forward pass of a network, which runs out of memory in the fourth micro-batch that it trains on.

    That is the second micro-batch of the second step: batch norm has seen the first one by then.
    """

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.forward = UNet.forward

    def __call__(self, network: UNet, images: torch.Tensor) -> torch.Tensor:
        if network.training and images.device.type == "cpu":
            self.passes.append(len(images))
            if self.passes == [4, 4, 4, 4]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.forward(network, images)


@pytest.fixture(scope="module")
def short_flags(tmp_path_factory) -> list:
    """Flags of three steps of eight images."""
    data = tmp_path_factory.mktemp("data")
    write_splits(data, 16, 1)
    flags = ["--dataset", data, *TINY, "--norm", "batch", "--no-deep-supervision", "--batch-size", "8"]
    return [*flags, "--tracker", "none", "--checkpoint-every", "1", "--keep-checkpoints", "3", "--max-steps", "3"]


@pytest.fixture(scope="module")
def short(short_flags, tmp_path_factory) -> tuple[Run, list[int]]:
    """A run whose memory is short, and the sizes of its micro-batches."""
    limited = LimitedForward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UNet, "forward", lambda network, images: limited(network, images))
        patch.setattr(train_utils.memory.step_memory, "can_repeat_steps", lambda accelerator: True)
        patch.setattr(train.Publisher, "write_results", lambda *arguments: None)
        patch.setattr(fit_batch, "wanted_split", lambda *arguments: BatchSplit(8, 1, 4, 2))
        run = run_train(tmp_path_factory.mktemp("runs") / "short", *short_flags)
    assert run.exit_code == 0, run.output
    return run, limited.passes


def test_step_that_runs_out_of_memory_is_made_again_in_smaller_micro_batches(short):
    run, passes = short
    assert passes == [4, 4, 4, 4, *[2] * 4, *[2] * 4]
    line = "memory: no room for micro-batches of 4, the step is made again in micro-batches of 2; batch norm sees 2"
    assert f"{line} images at a time from now on, so results change (CUDA out of memory" in run.output
    assert read_memory_limit(run.folder) == MemoryLimit(2, False)


def test_run_that_is_started_again_makes_the_same_steps_in_smaller_micro_batches(short, short_flags, tmp_path):
    run, _ = short
    begun = Path(shutil.copytree(run.folder, tmp_path / "begun"))
    for step in (2, 3):
        shutil.rmtree(begun / "checkpoints" / f"step-{step:08}")
    (begun / "finished.json").unlink()
    with mock.patch.object(train.Publisher, "write_results"):
        resumed = run_train(begun, *short_flags, "--resume", "auto")
    assert resumed.exit_code == 0, resumed.output
    assert "resumed from" in resumed.output
    assert different_tensors(resumed.weights(3), run.weights(3)) == []


@pytest.mark.parametrize("was_needed", [True, False])
def test_a_run_that_needed_activation_checkpointing_has_it_when_it_is_resumed(
    tiny_folder, tmp_path, monkeypatch, was_needed
):
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--checkpoint-every", "1"]
    assert run_train(tmp_path / "run", *flags, "--max-steps", "1").exit_code == 0
    limit = {"micro_batch_size": None, "activation_checkpointing": was_needed}
    (tmp_path / "run" / "memory.json").write_text(json.dumps(limit))
    network = {}
    monkeypatch.setattr(fit_batch, "check_slabs", lambda accelerator, tried, *rest: network.update(tried=tried))
    monkeypatch.setattr(fit_batch, "say_split", lambda split: sys.exit(network["tried"].activation_checkpointing))
    resumed = run_train(tmp_path / "run", *flags, "--max-steps", "2", "--resume", "auto")
    assert resumed.exit_code == was_needed, resumed.output


@pytest.mark.slow
def test_later_shortage_is_recorded_for_a_restart_in_smaller_micro_batches(tiny_folder, tmp_path):
    program, output = PROGRAMS / "out_of_memory_later.py", tmp_path / "run"
    flags = ["--max-steps", "10", "--log-every", "1", "--checkpoint-every", "2", "--tracker", "none"]
    arguments = ["train.py", "--dataset", tiny_folder, "--output-dir", output, *TINY, *flags, "--batch-size", "8"]
    result = launch(
        program, *arguments, "--resume", "auto", profile="multi_cpu", options=["--max_restarts", "1"], forked=False
    )
    assert result.returncode == 0, result.stderr
    shortage = "process 1: out of memory in step 7 with micro-batches of 4; run the same command with --output-dir"
    assert len([line for line in result.stderr.splitlines() if shortage in line]) == 1, result.stderr
    assert "8 in a step = 4 in a micro-batch x 2 processes x 1 accumulation step" in result.stdout
    assert "8 in a step = 2 in a micro-batch x 2 processes x 2 accumulation steps" in result.stdout
    assert "resumed from" in result.stdout
    assert len(losses(output)) == 10
    assert json.loads((output / "memory.json").read_text())["micro_batch_size"] == 2
