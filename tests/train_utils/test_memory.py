"""What fits into memory is tried before the first step, and a later shortage ends in a line that says what may fit.

Micro-batches become smaller, and no step has fewer images.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from support.in_process import parsed, process_state_kept, run_train
from support.launches import PROGRAMS, TINY, launch
from support.run_files import losses
from support.runs import unplanned

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import MemoryShortage, SettingsError
from tasks import task_of_model
from train_utils import memory as memory_module
from train_utils import start
from train_utils.memory import MemoryTrial, check_image_fits, most_images, shortage_recorded, wanted_split
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from unet import UNet, UNetConfig

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
ROOM_FLAGS = ["--max-steps", "3", "--log-every", "1", "--tracker", "none", "--optimizer", "sgd", "--batch-size", "8"]


@pytest.fixture
def network() -> UNet:
    return UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))


@pytest.fixture
def trial(network):
    """Trials with the network as on an accelerator."""
    with process_state_kept():
        args = parsed("--dataset", "shapes", "--plan", "none")
        yield MemoryTrial(Accelerator(cpu=True), network, task_of_model(network.config), args, (1, 12, 16))


def has_room(monkeypatch, images: float, error: Exception = FULL) -> None:
    """Networks fail for more than so many images; half as many without activation checkpointing."""
    forward = UNet.forward

    def fail(self: UNet, batch: torch.Tensor):
        room = images if self.activation_checkpointing else images / 2
        if not batch.is_meta and len(batch) > room:
            raise error
        return forward(self, batch)

    monkeypatch.setattr(UNet, "forward", fail)


@pytest.mark.parametrize(
    ("room", "size", "accumulation", "recomputes"),
    [(16, 8, 1, False), (14, 4, 2, False), (2, 1, 8, False), (1, 1, 8, True)],
)
def test_micro_batches_are_halved_until_they_fit_and_activations_computed_again_last(
    monkeypatch, trial, room, size, accumulation, recomputes
):
    has_room(monkeypatch, room)
    split = trial.fit(BatchSplit(8, 1, 8, 1))
    assert (split.batch_size, split.micro_batch_size, split.accumulation) == (8, size, accumulation)
    assert trial.network.activation_checkpointing is recomputes


@pytest.mark.parametrize("split", [BatchSplit(8, 1, 8, 1), BatchSplit(8, 1, 2, 4, is_fixed=True)])
def test_no_room_is_one_line_that_names_the_flags(monkeypatch, trial, split):
    has_room(monkeypatch, 0.5)
    with pytest.raises(SettingsError, match=r"no memory for a micro-batch of .* lower --crop-size"):
        trial.fit(split)


def test_an_image_that_is_larger_than_the_memory_is_one_line():
    with pytest.raises(SettingsError, match=r"one image of 1,000,000 x 999,999 pixels needs 12,000\.0 GB of memory"):
        check_image_fits(3, 10**6, 10**6 - 1)


def test_another_error_is_raised(monkeypatch, trial):
    has_room(monkeypatch, 1, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        trial.fit(BatchSplit(4, 1, 4, 1))


def test_a_trial_changes_no_weight(trial):
    before = {name: value.clone() for name, value in trial.network.state_dict().items()}
    trial.fit(BatchSplit(2, 1, 2, 1))
    assert all(torch.equal(value, before[name]) for name, value in trial.network.state_dict().items())
    assert all(parameter.grad is None for parameter in trial.network.parameters())


@pytest.mark.parametrize("settings", [{}, {"num_classes": 9}, {"upsample": "bilinear"}, {"norm": "group", "dims": 3}])
def test_no_tensor_of_a_micro_batch_has_too_many_elements(monkeypatch, settings):
    network = UNet(UNetConfig(**{"in_channels": 1, "base_channels": 2, "depth": 2} | settings))
    shape = (1, *[8] * network.config.dims)
    counts = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: counts.append(tensor.numel()), lambda tensor: tensor):
        counts.append(network(torch.rand(3, *shape)).numel())
    for most, images in ((max(counts), 3), (max(counts) - 1, 2)):
        monkeypatch.setattr(memory_module, "MOST_ELEMENTS", most)
        assert most_images(network, shape) == images


def test_a_process_without_room_lowers_the_micro_batch_of_all_but_no_loss(tiny_folder, tmp_path):
    arguments = ["train.py", "--dataset", tiny_folder, "--output-dir", tmp_path / "tight", *TINY, *ROOM_FLAGS]
    tight = launch(PROGRAMS / "little_memory.py", 1, 2, *arguments, profile="multi_cpu")
    assert tight.returncode == 0, tight.stderr
    settings = json.loads((tmp_path / "tight" / "run.json").read_text())
    assert (settings["micro_batch_size"], settings["accumulation"]) == (2, 2)
    run_train(tmp_path / "roomy", "--dataset", tiny_folder, *TINY, *ROOM_FLAGS)
    # the documented promise, of SGD in fp32; measured 4e-7
    assert losses(tmp_path / "tight") == pytest.approx(losses(tmp_path / "roomy"), abs=1e-5)


SETTINGS = RunSettings({"activation_checkpointing": False}, micro_batch_size=80)


def recorded_limit(folder: Path) -> list | None:
    """What may fit, as a run has recorded it: the size of micro-batches, and whether activations are computed again."""
    if not (folder / "run.json").exists():
        return None
    record = RunSettings.read(folder)
    return [record.micro_batch_size, record.flags["activation_checkpointing"]]


@pytest.mark.parametrize(
    ("size", "recomputes", "remedy", "limit"),
    [
        (5, False, "to continue with micro-batches of 3", [3, False]),
        (4, True, "to continue with micro-batches of 2", [2, True]),
        (1, False, "to continue with activation checkpointing", [1, True]),
        (1, True, "lower --crop-size, --scale or --base-channels", None),
    ],
)
def test_a_shortage_names_its_process_among_all_with_what_may_fit(
    tmp_path, monkeypatch, network, size, recomputes, remedy, limit
):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    network.activation_checkpointing = recomputes
    with (
        pytest.raises(MemoryShortage) as caught,
        shortage_recorded(tmp_path, SETTINGS, network, BatchSplit(80, 16, size, 1), RunState(step=6)),
    ):
        raise MemoryError("full")
    assert str(caught.value).startswith(f"process 9: out of memory in step 7 with micro-batches of {size}; ")
    assert str(caught.value).endswith(f"{remedy} (full)")
    is_last = (size, recomputes) == (1, True)
    command = f"; run the same command with --output-dir {tmp_path} --resume auto to continue with "
    assert (command in str(caught.value)) is not is_last
    assert recorded_limit(tmp_path) == limit


def test_a_shortage_in_an_evaluation_names_it_with_what_helps(tmp_path, network):
    line = "in the evaluation after step 6; lower --scale or --base-channels"
    with (
        pytest.raises(MemoryShortage, match=line),
        shortage_recorded(tmp_path, SETTINGS, network.eval(), BatchSplit(4, 1, 4, 1), RunState(step=6)),
    ):
        raise MemoryError("full")
    assert recorded_limit(tmp_path) is None


@pytest.mark.parametrize("was_needed", [True, False])
def test_a_run_that_needed_activation_checkpointing_has_it_when_it_is_resumed(
    tiny_folder, tmp_path, monkeypatch, was_needed
):
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--checkpoint-every", "1"]
    assert run_train(tmp_path / "run", *flags, "--max-steps", "1").exit_code == 0
    record = RunSettings.read(tmp_path / "run")
    replace(record, flags=record.flags | {"activation_checkpointing": was_needed}).write(tmp_path / "run")
    network = {}
    monkeypatch.setattr(start, "check_slabs", lambda accelerator, tried, *rest: network.update(tried=tried))
    monkeypatch.setattr(start, "say_split", lambda split: sys.exit(network["tried"].activation_checkpointing))
    resumed = run_train(tmp_path / "run", *flags, "--max-steps", "2", "--resume", "auto")
    assert resumed.exit_code == was_needed, resumed.output


@pytest.mark.slow
def test_a_later_shortage_is_recorded_for_a_restart_in_smaller_micro_batches(tiny_folder, tmp_path):
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
    assert RunSettings.read(output).micro_batch_size == 2


def profile_of(processes: int, accumulation: int | None = None) -> dict[str, int | None]:
    return {"processes": processes, "gradient_accumulation_steps": accumulation}


@pytest.mark.parametrize(
    ("batch", "world", "micro", "profile", "saved", "expected"),
    [
        (16, 1, None, None, None, (16, 1)),
        (16, 4, None, None, None, (4, 1)),
        (16, 4, 2, None, None, (2, 2)),
        (16, 4, None, 4, None, (1, 4)),
        (16, 1, None, None, 4, (4, 4)),
        (16, 1, 8, None, 4, (8, 2)),
        (5, 3, None, None, None, (2, 1)),
        (2, 3, None, None, None, (1, 1)),
        (4, 1, None, 3, None, (2, 3)),
    ],
)
def test_the_batch_is_split_over_processes_and_accumulation(batch, world, micro, profile, saved, expected):
    flags = ["--batch-size", str(batch), *(["--micro-batch-size", str(micro)] if micro else [])]
    batch_split = wanted_split(unplanned(*flags), profile_of(world, profile), saved)
    assert batch_split == BatchSplit(batch, world, *expected, is_fixed=any((micro, profile)))
    assert batch_split.micro_batch_size * batch_split.accumulation * world >= batch


@pytest.mark.parametrize(("micro", "steps"), [(4, 1), (1, 4)])
def test_a_flag_and_a_profile_that_disagree_are_refused(micro, steps):
    settings = unplanned("--batch-size", "16", "--micro-batch-size", str(micro))
    with pytest.raises(SettingsError, match=f"size {micro} makes {steps} accumulation steps .* launch profile sets 2"):
        wanted_split(settings, profile_of(4, 2), None)
