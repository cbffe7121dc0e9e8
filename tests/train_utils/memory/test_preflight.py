"""Before the first step: which micro-batch fits into the memory of all processes, and whether an evaluation does.

Module: train_utils/memory/preflight.py.
"""

import subprocess
import sys
from contextlib import nullcontext

import pytest
from support.accelerators import new_accelerator
from support.class_loss import classes
from support.in_process import run_train
from support.launches import PROGRAMS, TINY, launch
from support.run_files import losses

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import SettingsError
from tasks.step_loss import StepLoss
from train_utils.memory import preflight
from train_utils.memory.estimate import Copies, EvaluationSize, input_bytes, step_bytes
from train_utils.memory.preflight import Preflight
from unet import UNet, UNetConfig


def checked(
    monkeypatch,
    batch_split: BatchSplit,
    room: int,
    *,
    needs_recomputing: bool = False,
    recomputes: bool = False,
    agreed: int | None = None,
) -> tuple[BatchSplit, UNet]:
    """The split and the network after a check on a machine that has room for so many images."""
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = recomputes

    def fits_by_estimate(self: Preflight, shape: tuple[int, ...], candidate: BatchSplit) -> bool:
        return candidate.micro_batch_size <= room and self.network.activation_checkpointing >= needs_recomputing

    monkeypatch.setattr(Preflight, "step_fits_by_estimate", fits_by_estimate)
    criterion = StepLoss(classes(2))
    accelerator = new_accelerator(batch_split.groups, agreed)
    agreed_split = Preflight(accelerator, network, criterion, Copies(3)).fit_batch_split((3, 16, 24), batch_split)
    return agreed_split, network


def test_a_batch_that_fits_stays_as_it_is(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8)
    assert split == BatchSplit(8, 1, 8, 1)
    assert not network.activation_checkpointing
    line = "batch: 8 in a step = 8 in a micro-batch x 1 process x 1 accumulation step\n"
    assert capsys.readouterr().out == line


def test_activations_that_are_to_be_computed_again_are_so_where_all_would_fit(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8, recomputes=True)
    assert split.micro_batch_size == 8
    assert network.activation_checkpointing
    assert "micro-batches of 8 images of 16 x 24 fit with activation checkpointing" in capsys.readouterr().out


@pytest.mark.parametrize(("room", "size", "accumulation"), [(7, 4, 2), (3, 3, 3), (2, 2, 4), (1, 1, 8)])
def test_a_batch_that_does_not_fit_is_cut_into_equal_parts(monkeypatch, capsys, room, size, accumulation):
    split, _ = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room)
    assert split.micro_batch_size == size
    assert split.accumulation == accumulation
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"memory: micro-batches of {size} images of 16 x 24 fit, 8 were wanted"


def test_all_processes_take_the_smallest_micro_batch(monkeypatch):
    split, _ = checked(monkeypatch, BatchSplit(16, 2, 8, 1), room=8, agreed=2)
    assert split.micro_batch_size == 2
    assert split.accumulation == 4


@pytest.mark.parametrize("room", [4, 8])
def test_activations_are_computed_again_where_not_even_one_image_fits(monkeypatch, capsys, room):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=room, needs_recomputing=True)
    assert split.micro_batch_size == room
    assert network.activation_checkpointing
    first = capsys.readouterr().out.splitlines()[0]
    condition = "with activation checkpointing, 8 were wanted"  # said though nothing is smaller
    assert first == f"memory: micro-batches of {room} images of 16 x 24 fit {condition}"


def test_a_machine_without_room_for_one_image_is_an_error(monkeypatch):
    with pytest.raises(SettingsError, match="no memory for a micro-batch of 1 images of 16 x 24, not even with"):
        checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=0)


def test_a_fixed_micro_batch_that_does_not_fit_is_an_error(monkeypatch):
    with pytest.raises(SettingsError, match="no memory for a micro-batch of 8 images"):
        checked(monkeypatch, BatchSplit(8, 1, 8, 1, is_fixed=True), room=4)


def test_no_size_is_tried_twice_where_activations_are_computed_again_already(monkeypatch):
    tried = []
    monkeypatch.setattr(
        Preflight, "step_fits_by_estimate", lambda self, shape, split: tried.append(split.micro_batch_size)
    )
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = True
    with pytest.raises(SettingsError, match="no memory for a micro-batch of 1 images"):
        Preflight(new_accelerator(), network, None, Copies(3)).fit_batch_split((3, 16, 24), BatchSplit(8, 1, 8, 1))
    assert tried == [8, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("split", "line"),
    [
        (BatchSplit(3, 4, 1, 1), "1 of 4 processes have no image in a step, and compute a repeated one"),
        (BatchSplit(3, 4, 2, 1, is_fixed=True), "1 of 4 processes have no image in a step, and compute a repeated one"),
        (BatchSplit(10, 8, 1, 2), "6 of 8 processes have no image in the last micro-batch of a step, and compute"),
    ],
)
def test_processes_without_an_image_are_reported_with_the_batch_that_uses_all(monkeypatch, capsys, split, line):
    checked(monkeypatch, split, room=2)
    text = capsys.readouterr().out.splitlines()[-1]
    assert text.startswith(f"batch: {line}")
    wanted = split.groups * split.accumulation
    assert text.endswith(f"that counts nowhere; --batch-size {wanted} uses all of them")
    assert wanted in (4, 16)


def test_patches_of_volumes_are_called_so(monkeypatch, capsys):
    monkeypatch.setattr(Preflight, "step_fits_by_estimate", lambda self, shape, split: split.micro_batch_size <= 1)
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1, dims=3))
    memory_check = Preflight(new_accelerator(), network, StepLoss(classes(2)), Copies(3))
    batch_split = memory_check.fit_batch_split((1, 8, 16, 24), BatchSplit(2, 1, 2, 1))
    assert batch_split.accumulation == 2
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "memory: micro-batches of 1 patches of 8 x 16 x 24 fit, 2 were wanted"


@pytest.mark.parametrize(("free", "fits"), [(1000, False), (1001, True)])
def test_an_estimate_of_a_step_may_claim_two_thirds_of_the_free_memory(monkeypatch, free, fits):
    calls = []
    monkeypatch.setattr(preflight, "step_bytes", lambda network, shape, copies: calls.append(shape) or 600)
    monkeypatch.setattr(preflight, "input_bytes", lambda shape, batch_split: calls.append(shape) or 50)
    monkeypatch.setattr(preflight, "available_bytes", lambda: free)
    batch_split = BatchSplit(8, 1, 4, 2)
    assert Preflight(None, None, None, Copies(3)).step_fits_by_estimate((3, 16, 24), batch_split) is fits
    assert calls == [(4, 3, 16, 24), (3, 16, 24)]


@pytest.mark.parametrize(
    ("wanted", "accumulation", "less"),
    [
        (BatchSplit(64, 1, 64, 1), 32, (1, 64, False)),  # smaller micro-batches, and more of them
        (BatchSplit(64, 1, 2, 40, is_fixed=True), 40, (2, 40, True)),  # as was asked, but recomputed
    ],
)
def test_the_estimate_counts_the_images_that_accumulation_holds(monkeypatch, wanted, accumulation, less):
    network, shape = UNet(UNetConfig(base_channels=4, depth=2)), (3, 32, 32)
    memory_check = Preflight(new_accelerator(), network, StepLoss(classes(2, "ce")), Copies(3))

    def fitted(batch_split: BatchSplit, room: int) -> tuple[int, int, bool]:
        monkeypatch.setattr(preflight, "available_bytes", lambda: room / 0.65)
        network.activation_checkpointing = False
        batch_split = memory_check.fit_batch_split(shape, batch_split)
        return batch_split.micro_batch_size, batch_split.accumulation, network.activation_checkpointing

    room = step_bytes(network, (2, *shape), Copies(3)) + 2 * accumulation * 2 * 32 * 32 * 24
    assert fitted(wanted, room + 10) == (2, accumulation, False)
    assert fitted(wanted, room - 10) == less


@pytest.mark.parametrize(("device", "way"), [("cpu", "estimate"), ("cuda", "trial"), ("mps", "trial")])
def test_a_cpu_has_an_estimate_and_an_accelerator_tries(monkeypatch, device, way):
    for name in ("step_fits", "evaluation_fits"):
        monkeypatch.setattr(Preflight, f"{name}_by_estimate", lambda *arguments: "estimate")
        monkeypatch.setattr(Preflight, f"{name}_by_trial", lambda *arguments: "trial")
    memory_check = Preflight(new_accelerator(device=device), None, None, Copies(3))
    assert memory_check.step_fits((3, 8, 8), None) == way
    assert memory_check.evaluation_fits(None) == way


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 2), ("sgd", 1)])
@pytest.mark.parametrize(("spare", "outcome"), [(1, nullcontext()), (0, pytest.raises(SettingsError))])
def test_an_evaluation_needs_weights_moments_average(monkeypatch, optimizer, moments, spare, outcome):
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    weights = sum(parameter.nbytes for parameter in network.parameters())
    size = EvaluationSize((8, 8), (8, 8), 1)
    needed = size.bytes_for(network.config) + (1 + moments + 1) * weights
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed + spare)
    copies = Copies.for_training(optimizer, averages=True)
    with outcome:
        Preflight(new_accelerator(), network, None, copies).check_evaluation(size)


@pytest.mark.parametrize(
    ("agreed", "outcome"), [(1, nullcontext()), (0, pytest.raises(SettingsError, match="no memory to evaluate"))]
)
def test_an_evaluation_must_fit_on_every_process(monkeypatch, agreed, outcome):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 10**9)
    network = UNet(UNetConfig(base_channels=2, depth=1))
    with outcome:
        memory_check = Preflight(new_accelerator(2, agreed), network, StepLoss(classes(2)), Copies(2))
        memory_check.check_evaluation(EvaluationSize((8, 8), (8, 8), 1))


def check_evaluation(network: UNet, size: EvaluationSize) -> None:
    """The check of a process that trains with SGD."""
    Preflight(new_accelerator(), network, StepLoss(classes(2)), Copies(2)).check_evaluation(size)


def test_a_cpu_without_room_for_the_largest_validation_image_says_so(monkeypatch):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    size = EvaluationSize((400, 500), (800, 1000), 1)
    weights = sum(parameter.nbytes for parameter in network.parameters())
    # weights and a moment of each, activations, logits at the target's size and what becomes of them
    needed = 2 * weights + 400 * 500 * 32 * 4 + 4 * 800 * 1000 * 2 * 4
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed + 1)
    check_evaluation(network, size)
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed)
    with pytest.raises(SettingsError, match="no memory to evaluate a validation image of 800 x 1000; choose a lower"):
        check_evaluation(network, size)


@pytest.mark.parametrize(
    ("config", "size", "line"),
    [
        pytest.param(
            UNetConfig(base_channels=2, depth=1),
            EvaluationSize((9000, 10_000), (9000, 10_000), 1),
            "validation image of 9000 x 10000, in [^;]*tiles[^;]*; choose a lower --scale or --base-channels, or cut",
            id="in tiles",
        ),
        pytest.param(
            UNetConfig(base_channels=2, depth=1),
            EvaluationSize((10, 20), (9000, 10_000), 1),  # the network sees it whole
            "validation image of 9000 x 10000; choose a lower --scale or --base-channels, or cut such images",
            id="whole",
        ),
        pytest.param(
            UNetConfig(base_channels=2, depth=1, dims=3),
            EvaluationSize((160, 180, 150), (160, 180, 150), 1),
            "validation volume of 160 x 180 x 150; choose a lower --base-channels, or cut such volumes into smaller",
            id="volume",
        ),
    ],
)
def test_an_evaluation_without_room_is_reported_with_its_size(monkeypatch, config, size, line):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 0)
    with pytest.raises(SettingsError, match=f"^no memory to evaluate a {line}"):
        check_evaluation(UNet(config), size)


ROOM_FLAGS = ["--max-steps", "3", "--log-every", "1", "--tracker", "none", "--optimizer", "sgd", "--batch-size", "8"]


def run_with_room(tmp_path, room: float, dataset, rank: int, *flags: str) -> subprocess.CompletedProcess:
    """train.py on two processes, one of which believes that its machine has `room` bytes free."""
    arguments = ["train.py", "--dataset", dataset, "--output-dir", tmp_path / "tight", *TINY, *ROOM_FLAGS, *flags]
    return launch(PROGRAMS / "little_memory.py", rank, room, *arguments, profile="multi_cpu")


def test_a_process_without_room_lowers_the_micro_batch_of_all_but_no_loss(tiny_folder, tmp_path):
    network = UNet(UNetConfig(base_channels=4, depth=2, norm="group"))
    needed = step_bytes(network, (2, 3, 40, 56), Copies(2)) + input_bytes((3, 40, 56), BatchSplit(8, 2, 2, 2))
    room = int(needed / 0.65) + 1000  # for two images, of four wanted
    tight = run_with_room(tmp_path, room, tiny_folder, 1)
    assert tight.returncode == 0, tight.stderr
    assert "micro-batches of 2 images of 40 x 56 fit, 4 were wanted" in tight.stdout
    assert "8 in a step = 2 in a micro-batch x 2 processes x 2 accumulation steps" in tight.stdout
    roomy = run_train(tmp_path / "roomy", "--dataset", tiny_folder, *TINY, *ROOM_FLAGS)
    assert "8 in a step = 8 in a micro-batch x 1 process x 1 accumulation step" in roomy.output
    # the documented promise, of SGD in fp32; measured 4e-7
    assert losses(tmp_path / "tight") == pytest.approx(losses(tmp_path / "roomy"), abs=1e-5)


def test_no_room_for_one_image_is_one_clear_line_on_all_processes(tiny_folder, tmp_path):
    result = run_with_room(tmp_path, 1000, tiny_folder, 1)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "error: no memory for a micro-batch of 1 images" in line]
    assert len(errors) == 1, result.stderr


def test_a_micro_batch_that_was_typed_must_fit(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 1000)
    with pytest.raises(SettingsError, match=r"^no memory for a micro-batch of 3 images"):
        run_train(tmp_path / "fixed", "--dataset", tiny_folder, *TINY, *ROOM_FLAGS, "--micro-batch-size", "3")


def test_a_run_tries_its_largest_validation_image_before_the_first_step(tiny_folder, tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(Preflight, "check_evaluation", lambda self, size: sizes.append(size) or sys.exit(3))
    run = run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY, "--scale", "0.5", "--max-steps", "1")
    assert run.exit_code == 3
    assert sizes == [((20, 28), (40, 56), 5)]
