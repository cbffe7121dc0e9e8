"""Before the first step: which micro-batch fits into memory, whether an evaluation does, and what is said of it."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from accelerators import new_accelerator
from class_loss import classes

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import SettingsError
from tasks.step_loss import StepLoss
from train_utils import preflight as memory
from train_utils.preflight import Copies, EvaluationFit, EvaluationSize, StepFit, fit_batch_split
from unet import UNet, UNetConfig


@pytest.mark.parametrize(("optimizer", "trained"), [("adamw", 3), ("sgd", 2)])
def test_a_step_needs_a_gradient_and_moments_and_an_evaluation_no_gradient(monkeypatch, optimizer, trained):
    seen = []
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda values: values)
    split = BatchSplit(4, 1, 4, 1)
    for averages in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(StepFit, "fits_by_estimate", lambda self, split: seen.append(self.copies) or True)
            copies = Copies.of_training(optimizer, averages=averages)
            memory.fit_batch_split(accelerator, network, None, (1, 8, 8), split, copies)
    assert seen == [Copies(trained, 0), Copies(trained, 1)]
    weights = sum(parameter.nbytes for parameter in network.parameters())
    size = EvaluationSize((8, 8), (8, 8), 1)
    needed = size.bytes_for(network.config) + (1 + trained - 1 + 1) * weights
    for free, fits in ((needed, False), (needed + 1, True)):
        monkeypatch.setattr(memory, "available_bytes", lambda free=free: free)
        with nullcontext() if fits else pytest.raises(SettingsError, match="no memory to evaluate a validation image"):
            memory.check_evaluation(accelerator, network, None, 1, size, copies)


def test_a_trial_is_hopeless_beyond_three_times_the_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda accelerator: 1000)
    for needed, is_hopeless in ((3000, False), (3001, True)):
        monkeypatch.setattr(memory, "step_bytes", lambda *arguments, needed=needed: needed)
        assert memory._is_hopeless(None, None, (1,)) is is_hopeless
    assert memory.MOST_ELEMENTS == 2_147_483_647  # what 32 bits count


def test_a_pixel_on_the_device_takes_what_it_was_loaded_and_augmented_as():
    split = BatchSplit(8, 1, 2, accumulation=3)
    images = 2 * 3 * 2  # of this step and of the next one
    assert memory.input_bytes((3, 4, 5), split) == images * 20 * (3 + 1 + 12 + 8)
    assert memory.input_bytes((1, 2, 4, 5), split) == images * 40 * (4 + 1 + 4 + 8)


def test_the_largest_evaluation_has_as_many_images_as_there_are_and_targets_that_are_known():
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    inputs = np.array([(8, 8), (8, 8), (4, 4)])
    largest = memory.largest_evaluation(config, inputs, np.zeros_like(inputs), pixels=10**6)
    assert largest == EvaluationSize((8, 8), (8, 8), 2)
    targets = np.array([(8, 8), (0, 0), (400, 400)])
    assert memory.largest_evaluation(config, inputs, targets, 10**6) == EvaluationSize((4, 4), (400, 400), 1)


def checked(
    monkeypatch,
    split: BatchSplit,
    room: int,
    *,
    needs_recomputing: bool = False,
    recomputes: bool = False,
    agreed: int | None = None,
) -> tuple[BatchSplit, UNet]:
    """The split and the network after a check on a machine that has room for so many images."""
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = recomputes

    def fits_by_estimate(self: StepFit, candidate: BatchSplit) -> bool:
        return candidate.micro_batch_size <= room and self.network.activation_checkpointing >= needs_recomputing

    monkeypatch.setattr(StepFit, "fits_by_estimate", fits_by_estimate)
    criterion = StepLoss(classes(2))
    accelerator = new_accelerator(split.groups, agreed)
    return fit_batch_split(accelerator, network, criterion, (3, 16, 24), split, Copies(3)), network


def test_a_batch_that_fits_stays_as_it_is(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8)
    assert split == BatchSplit(8, 1, 8, 1) and not network.activation_checkpointing
    line = "batch: 8 in a step = 8 in a micro-batch x 1 processes x 1 accumulation steps\n"
    assert capsys.readouterr().out == line


def test_activations_that_are_to_be_computed_again_are_so_where_all_would_fit(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8, recomputes=True)
    assert split.micro_batch_size == 8 and network.activation_checkpointing
    assert "micro-batches of 8 images of 16 x 24 fit with activation checkpointing" in capsys.readouterr().out


@pytest.mark.parametrize(("room", "size", "accumulation"), [(7, 4, 2), (3, 3, 3), (2, 2, 4), (1, 1, 8)])
def test_a_batch_that_does_not_fit_is_cut_into_equal_parts(monkeypatch, capsys, room, size, accumulation):
    split, _ = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room)
    assert (split.micro_batch_size, split.accumulation) == (size, accumulation)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"memory: micro-batches of {size} images of 16 x 24 fit, 8 were wanted"


def test_all_processes_take_the_smallest_micro_batch(monkeypatch):
    split, _ = checked(monkeypatch, BatchSplit(16, 2, 8, 1), room=8, agreed=2)
    assert (split.micro_batch_size, split.accumulation) == (2, 4)


def test_activations_are_computed_again_where_not_even_one_image_fits(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=4, needs_recomputing=True)
    assert split.micro_batch_size == 4 and network.activation_checkpointing
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "memory: micro-batches of 4 images of 16 x 24 fit with activation checkpointing, 8 were wanted"
    checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8, needs_recomputing=True)  # said though nothing is smaller
    assert "micro-batches of 8 images of 16 x 24 fit with activation checkpointing" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="no memory for a micro-batch of 1 images of 16 x 24, not even with"):
        checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=0)
    with pytest.raises(SettingsError, match="no memory for a micro-batch of 8 images"):
        checked(monkeypatch, BatchSplit(8, 1, 8, 1, True), room=4)  # the user asks for it


@pytest.mark.parametrize(
    ("split", "line"),
    [
        (BatchSplit(3, 4, 1, 1), "1 of 4 processes have no image in a step, and compute a repeated one"),
        (BatchSplit(10, 8, 1, 2), "6 of 8 processes have no image in the last micro-batch of a step, and compute"),
    ],
)
def test_processes_without_an_image_are_said_with_the_batch_that_uses_all(monkeypatch, capsys, split, line):
    checked(monkeypatch, split, room=1)
    text = capsys.readouterr().out.splitlines()[-1]
    assert text.startswith(f"batch: {line}")
    wanted = split.groups * split.accumulation
    assert text.endswith(f"that counts nowhere; --batch-size {wanted} uses all of them") and wanted in (4, 16)


def test_an_evaluation_needs_activations_and_four_copies_of_its_logits():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1)
    size = EvaluationSize((10, 20), (40, 50), 2)
    assert size.bytes_for(config) == 2 * 10 * 20 * 4 * 8 * 2 + 4 * (4 * 3 * 40 * 50)


@pytest.mark.parametrize(("free", "fits"), [(1000, False), (1001, True)])
def test_an_estimate_of_activations_and_images_may_claim_two_thirds_of_the_free_memory(monkeypatch, free, fits):
    asked = []
    monkeypatch.setattr(memory, "step_bytes", lambda network, shape, copies: asked.append(shape) or 600)
    monkeypatch.setattr(memory, "input_bytes", lambda shape, split: asked.append(shape) or 50)
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    split = BatchSplit(8, 1, 4, 2)
    assert StepFit(None, None, None, (3, 16, 24), Copies(3)).fits_by_estimate(split) is fits
    assert asked == [(4, 3, 16, 24), (3, 16, 24)]


def test_an_evaluation_in_strips_has_two_rows_of_tiles_of_at_most_a_quarter_of_a_gibibyte():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1)
    small, large = (EvaluationSize((20_000, 20_000), (side, 1000), 1).bytes_for(config) for side in (1000, 50_000))
    assert large - small == 2 * 268_435_456 - 2 * 4 * 3 * 1000 * 1000


def test_a_shortage_of_patches_and_of_images_in_tiles_says_so(monkeypatch, capsys):
    monkeypatch.setattr(StepFit, "fits_by_estimate", lambda self, split: split.micro_batch_size <= 1)
    network = UNet(UNetConfig(in_channels=1, base_channels=2, depth=1, dims=3))
    criterion = StepLoss(classes(2))
    split = fit_batch_split(new_accelerator(), network, criterion, (1, 8, 16, 24), BatchSplit(2, 1, 2, 1), Copies(3))
    assert split.accumulation == 2
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "memory: micro-batches of 1 patches of 8 x 16 x 24 fit, 2 were wanted"
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    network = UNet(UNetConfig(base_channels=2, depth=1))
    size = EvaluationSize((9000, 10_000), (9000, 10_000), 1)
    line = "no memory to evaluate a validation image of 9000 x 10000, in [^;]*tiles[^;]*; choose a lower --scale or"
    with pytest.raises(SettingsError, match=line):
        memory.check_evaluation(new_accelerator(), network, criterion, 3, size, Copies(2))


@pytest.mark.parametrize(("agreed", "fits"), [(1, True), (0, False)])
def test_an_evaluation_must_fit_on_every_process(monkeypatch, agreed, fits):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    network = UNet(UNetConfig(base_channels=2, depth=1))
    size = EvaluationSize((8, 8), (8, 8), 1)
    with nullcontext() if fits else pytest.raises(SettingsError, match="no memory to evaluate"):
        memory.check_evaluation(new_accelerator(2, agreed), network, StepLoss(classes(2)), 3, size, Copies(2))


@pytest.mark.parametrize(("kind", "shards"), [(DistributedType.MULTI_GPU, 1), (DistributedType.DEEPSPEED, 4)])
def test_an_evaluation_is_tried_beside_the_copies_of_the_weights_and_what_others_need(monkeypatch, kind, shards):
    reserved, empty = [], torch.empty

    def note(size, **options):
        if options.get("dtype") == torch.uint8:
            reserved.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", note)
    monkeypatch.setattr(memory, "_bytes_left", lambda accelerator: 77)
    network = UNet(UNetConfig(base_channels=2, depth=1))
    accelerator = new_accelerator(4)
    accelerator.distributed_type = kind
    size = EvaluationSize((8, 8), (8, 8), 1)
    copies = Copies(2, all_weights=1)
    assert EvaluationFit(accelerator, network, StepLoss(classes(2)), 3, copies).fits_by_trial(size)
    weights = sum(parameter.nbytes for parameter in network.parameters())
    assert reserved == [3 * weights // shards + 77]


def test_frozen_weights_have_neither_gradients_nor_moments():
    network = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    network[0].requires_grad_(False)
    assert Copies(3).bytes_for(network) == 3 * 4 * 3
    assert Copies(3, all_weights=1).bytes_for(network) == 3 * 4 * 3 + 4 * 9
    assert Copies.of_training("muon", averages=True) == Copies(3, 1)
    assert Copies.of_training("muon", averages=True).without_gradients() == Copies(2, 1)
