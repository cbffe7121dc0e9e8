"""What becomes of a micro-batch that does not fit, and which shapes are worth timing, in numbers that are written out.

Modules: train_utils/preflight.py, train_utils/tuning.py, train_utils/step_memory.py, train_utils/microbatch.py.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from class_loss import classes
from in_process import parsed

import train_utils.preflight
from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import MemoryShortage, SettingsError
from tasks.classes import ClassTarget
from tasks.step_loss import StepLoss
from train_utils.microbatch import MemoryLimit, MicroBatch, memory_limit, split_batch
from train_utils.preflight import Copies, EvaluationSize, preflight
from train_utils.step_memory import StepMemory
from train_utils.tuning import KernelTuning
from unet import UNet, UNetConfig

SHAPES = np.array([(8, 8)] * 10 + [(8, 16)] * 6 + [(32, 32)] * 4)  # of twenty training images


def tuned(*flags: str, total_steps: int | None = None) -> set[tuple[int, ...]]:
    settings = parsed("--dataset", "shapes", "--plan", "none", "--batch-size", "4", *flags)
    return KernelTuning.from_args(settings, torch.device("cpu"), SHAPES, total_steps).shapes


@pytest.mark.parametrize(
    ("steps", "shapes"),
    [
        (1999, set()),
        (2000, {(8, 8)}),
        (3333, {(8, 8)}),
        (3334, {(8, 8), (8, 16)}),
        (4999, {(8, 8), (8, 16)}),
        (5000, {(8, 8), (8, 16), (32, 32)}),
    ],
)
def test_kernels_are_timed_for_shapes_of_a_thousand_steps(steps, shapes):
    assert tuned(total_steps=steps) == shapes
    assert tuned("--deterministic", total_steps=steps) == set()


def test_epochs_are_counted_in_steps_and_ten_minutes_pay_for_every_shape():
    assert tuned("--epochs", "399") == set() and tuned("--epochs", "400") == {(8, 8)}  # five steps each
    assert tuned("--max-minutes", "10") == {(8, 8), (8, 16), (32, 32)}
    assert tuned("--max-minutes", "9.9") == set()
    assert tuned("--max-minutes", "1", total_steps=2000) == {(8, 8)}  # a resumed run knows its steps


def new_accelerator(processes: int = 1, agreed: int | None = None) -> SimpleNamespace:
    """What a check of memory asks of an Accelerator on CPUs; another process has room for `agreed` images."""

    def gather(values: torch.Tensor) -> torch.Tensor:
        return values if agreed is None else torch.cat([values, torch.full_like(values, agreed)])

    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=processes,
        distributed_type=DistributedType.NO,
        autocast=nullcontext,
        gather=gather,
    )


def checked(
    monkeypatch, split: BatchSplit, room: int, *, needs_recomputing: bool = False, agreed: int | None = None
) -> tuple[BatchSplit, UNet]:
    """The split and the network after a check on a machine that has room for so many images."""
    network = UNet(UNetConfig(base_channels=2, depth=1))

    def fits(accelerator, network, criterion, shape, candidate, copies) -> bool:
        return candidate.micro_batch_size <= room and network.activation_checkpointing >= needs_recomputing

    monkeypatch.setattr(train_utils.preflight, "_estimate_fits", fits)
    criterion = StepLoss(classes(2))
    accelerator = new_accelerator(split.groups, agreed)
    return preflight(accelerator, network, criterion, (3, 16, 24), split, Copies(3)), network


def test_a_batch_that_fits_stays_as_it_is(monkeypatch, capsys):
    split, network = checked(monkeypatch, BatchSplit(8, 1, 8, 1), room=8)
    assert split == BatchSplit(8, 1, 8, 1) and not network.activation_checkpointing
    line = "batch: 8 in a step = 8 in a micro-batch x 1 processes x 1 accumulation steps\n"
    assert capsys.readouterr().out == line


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


def test_micro_batches_are_cut_where_a_step_can_be_made_again(tmp_path):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    images = torch.arange(5.0).view(5, 1, 1, 1)
    batch = MicroBatch(images, ClassTarget(torch.arange(5).view(5, 1, 1)), is_filler=False)
    gpu = SimpleNamespace(device=torch.device("cuda"), distributed_type=DistributedType.NO, num_processes=1)
    memory = StepMemory(gpu, tmp_path, network, BatchSplit(5, 1, 2, 3))
    parts = memory.cut([batch])
    assert [part.images.flatten().tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert [part.targets.mask.flatten().tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    batches = [batch]
    for accelerator, split in ((new_accelerator(), BatchSplit(5, 1, 2, 3)), (gpu, BatchSplit(5, 1, 2, 3, True))):
        assert StepMemory(accelerator, tmp_path, network, split).cut(batches) is batches


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_size_that_is_learned_is_recorded_with_activation_checkpointing_if_it_was_on(tmp_path, recomputes):
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = recomputes
    gpu = SimpleNamespace(device=torch.device("cuda"), distributed_type=DistributedType.NO, num_processes=1)
    memory = StepMemory(gpu, tmp_path, network, BatchSplit(6, 1, 6, 1))
    undone = []
    guard = SimpleNamespace(undo_passes=lambda: undone.append(True))
    with memory.shortage_halves(guard):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert undone == [True] and memory.size == 3
    assert memory_limit(tmp_path) == MemoryLimit(3, recomputes)


@pytest.mark.parametrize(
    ("size", "recomputes", "remedy", "limit"),
    [
        (5, False, "to continue with micro-batches of 3", MemoryLimit(3, False)),
        (1, False, "to continue with activation checkpointing", MemoryLimit(1, True)),
        (1, True, "lower --crop-size, --scale or --base-channels", MemoryLimit()),
    ],
)
def test_a_shortage_names_its_process_among_all_and_records_what_may_fit(
    tmp_path, monkeypatch, size, recomputes, remedy, limit
):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    network = UNet(UNetConfig(base_channels=2, depth=1))
    network.activation_checkpointing = recomputes
    memory = StepMemory(new_accelerator(16), tmp_path, network, BatchSplit(80, 16, size, 1))
    with pytest.raises(MemoryShortage) as caught, memory.shortage_recorded(7):
        raise MemoryError("full")
    line = f"process 9: out of memory in step 7 with micro-batches of {size}"
    assert str(caught.value).startswith(line) and remedy in str(caught.value)
    assert memory_limit(tmp_path) == limit


@pytest.mark.parametrize("content", ['{"micro_batch_size": 0}', '{"micro_batch_size": true}', '{"size": 2}', "[]", "{"])
def test_a_damaged_record_of_memory_is_said_and_left_out(tmp_path, capsys, content):
    (tmp_path / "memory.json").write_text(content)
    assert memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out


def test_a_batch_is_accumulated_over_no_more_micro_batches_than_it_has_images():
    split = split_batch(4, 2, None, 8)
    assert (split.micro_batch_size, split.accumulation) == (1, 2)


@pytest.mark.parametrize(("free", "fits"), [(1000, False), (1001, True)])
def test_an_estimate_of_activations_and_images_may_claim_two_thirds_of_the_free_memory(monkeypatch, free, fits):
    asked = []
    monkeypatch.setattr(train_utils.preflight, "step_bytes", lambda network, shape, copies: asked.append(shape) or 600)
    monkeypatch.setattr(train_utils.preflight, "input_bytes", lambda shape, split: asked.append(shape) or 50)
    monkeypatch.setattr(train_utils.preflight, "available_bytes", lambda: free)
    split = BatchSplit(8, 1, 4, 2)
    assert train_utils.preflight._estimate_fits(None, None, None, (3, 16, 24), split, Copies(3)) is fits
    assert asked == [(4, 3, 16, 24), (3, 16, 24)]
