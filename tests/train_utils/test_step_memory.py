"""A step that runs out of memory: it is cut and made again, or ends the run in a line that says what may fit."""

from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from accelerators import new_accelerator

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import MemoryShortage
from tasks.classes import ClassTarget
from train_utils.microbatch import MemoryLimit, MicroBatch, memory_limit
from train_utils.step_memory import StepMemory
from unet import UNet, UNetConfig


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


@pytest.mark.parametrize(("recomputes", "norm"), [(False, "batch"), (True, "group")])
def test_a_size_that_is_learned_is_recorded_with_activation_checkpointing_if_it_was_on(
    tmp_path, capsys, recomputes, norm
):
    network = UNet(UNetConfig(base_channels=2, depth=1, norm=norm))
    network.activation_checkpointing = recomputes
    gpu = SimpleNamespace(device=torch.device("cuda"), distributed_type=DistributedType.NO, num_processes=1)
    memory = StepMemory(gpu, tmp_path, network, BatchSplit(6, 1, 6, 1))
    undone = []
    guard = SimpleNamespace(undo_passes=lambda: undone.append(True))
    memory.halve_or_raise(torch.OutOfMemoryError("CUDA out of memory"), guard)
    assert undone == [True] and memory.size == 3
    line = "memory: no room for micro-batches of 6, the step is made again in micro-batches of 3"
    effect = "; batch norm sees 3 images at a time from now on, so results change" if norm == "batch" else ""
    assert capsys.readouterr().out == f"{line}{effect} (CUDA out of memory)\n"
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
    assert (
        str(caught.value).endswith(" (full)") and (" and activation checkpointing; " in str(caught.value)) is recomputes
    )
    command = f"; run the same command with --output-dir {tmp_path} --resume auto to continue with "
    assert (command in str(caught.value)) is not recomputes
    assert memory_limit(tmp_path) == limit
