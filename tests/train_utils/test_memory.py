"""Micro-batches that fit, on every process alike, without changing the training; activation checkpointing.

Modules: train_utils/preflight.py, train_utils/microbatch.py, train_utils/step_memory.py,
train_utils/tuning.py.
"""

import gc
import json
import shutil
import subprocess
import sys
import weakref
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from class_loss import classes
from conftest import PROGRAMS, TINY, launch, losses, write_folder
from in_process import run_train
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

import inference.tiling.planning
import train
import train_utils.microbatch
import train_utils.preflight
import train_utils.step_memory
import train_utils.tuning
from data_utils.loading.augment import augment
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.draws import Draw, pack_draws
from data_utils.loading.loaders import NetworkShapes
from runtime.errors import MemoryShortage, SettingsError, one_line
from runtime.launch import tune_kernels
from runtime.memory import grow_segments, is_out_of_memory, memory_shortage
from tasks.classes import ClassTarget
from tasks.step_loss import StepLoss
from train_utils.microbatch import memory_limit, split_batch
from train_utils.preflight import (
    Copies,
    EvaluationFit,
    EvaluationSize,
    StepFit,
    _bytes_left,
    _free_bytes,
    check_evaluation,
    fit_batch_split,
    input_bytes,
    largest_evaluation,
    largest_tensor,
    step_bytes,
)
from train_utils.step_memory import StepMemory, can_repeat_steps
from unet import UNet, UNetConfig

SHORTAGES = [  # as they were reported
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"),
    torch.OutOfMemoryError(),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.50 GB, max allowed: 18.13 GB)."),
    torch.distributed.DistBackendError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"),
    torch.distributed.DistBackendError("NCCL error: unhandled cuda error\nFailed to CUDA calloc 6291456 bytes"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: Error code 12"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
]
OTHERS = [
    RuntimeError("a bug"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
    torch.distributed.DistBackendError("NCCL error: remote process exited or there was a network error"),
    ValueError("out of memory"),
]


def name_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:60]


def raised_within(kind: type[Exception], guard: AbstractContextManager, error: Exception) -> Exception:
    """What comes out where `error` is raised within `guard`: an error of that kind."""
    with pytest.raises(kind) as caught, guard:
        raise error
    return caught.value


def accelerator_like(device: str, processes: int = 1, kind: DistributedType = DistributedType.NO) -> SimpleNamespace:
    """What a trial asks of an Accelerator; no GPU in the test machine."""
    names = {"num_processes": processes, "distributed_type": kind, "autocast": nullcontext}
    return SimpleNamespace(device=torch.device(device), gather=lambda values: values, **names)


def training(folder: Path) -> AbstractContextManager:
    """As around a step of training in micro-batches of 4, also on a machine that does not have the run's folder."""
    network = UNet(UNetConfig(base_channels=4, depth=2))
    return StepMemory(accelerator_like("cpu"), folder / "run", network, BatchSplit(8, 1, 4, 2)).shortage_recorded(3)


@pytest.mark.parametrize("error", SHORTAGES, ids=name_of)
def test_running_out_of_memory_has_many_faces(tmp_path, error):
    assert is_out_of_memory(error)
    predicting = memory_shortage("a.png", "use tiles")
    for guard, line in ((predicting, "fit into memory; use tiles ("), (training(tmp_path), "micro-batches of 2 (")):
        said = str(raised_within(MemoryShortage, guard, error))
        assert line in said and "\n" not in said
        assert one_line(error, 60) in said
    assert memory_limit(tmp_path / "run") == (2, False)


@pytest.mark.parametrize("error", OTHERS, ids=name_of)
def test_another_error_is_left_as_it_is(tmp_path, error):
    assert not is_out_of_memory(error)
    for guard in (memory_shortage("a.png", "use tiles"), training(tmp_path)):
        assert raised_within(type(error), guard, error) is error
    assert memory_limit(tmp_path / "run") == (None, False)


@pytest.mark.parametrize(
    ("device", "variable", "grows"),
    [
        ("cuda", "", True),
        ("cuda", "PYTORCH_ALLOC_CONF", False),
        ("cuda", "PYTORCH_CUDA_ALLOC_CONF", False),
        ("cuda", "PYTORCH_HIP_ALLOC_CONF", False),
        ("cpu", "", False),
        ("mps", "", False),
    ],
)
def test_segments_grow_on_cuda_unless_the_user_has_settings(monkeypatch, device, variable, grows):
    settings = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:512")
    grow_segments(torch.device(device))
    assert settings == ["expandable_segments:True"] * grows


def test_torch_takes_the_setting_for_segments_that_grow():
    before = torch._C._accelerator_getAllocatorSettings()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch._C._accelerator_setAllocatorSettings(before)


@pytest.mark.parametrize(("sizes", "differ"), [([(8, 8), (8, 8)], False), ([(8, 8), (8, 16)], True)])
def test_segments_grow_where_shapes_differ(sizes, differ):
    shapes = np.array(sizes)
    assert NetworkShapes(shapes, shapes[:1]).differ == differ
    assert NetworkShapes(shapes[:1], shapes[1:]).differ == differ


def test_what_the_cpu_says_when_memory_runs_out_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("batch", "world", "micro", "profile", "saved", "expected"),
    [
        (16, 1, None, None, None, (16, 1)),
        (16, 4, None, None, None, (4, 1)),
        (16, 4, 2, None, None, (2, 2)),
        (16, 4, None, 4, None, (1, 4)),
        (16, 4, None, 2, None, (2, 2)),
        (16, 1, None, None, 4, (4, 4)),
        (5, 3, None, None, None, (2, 1)),
        (2, 3, None, None, None, (1, 1)),
        (4, 1, None, 3, None, (2, 3)),  # the third micro-batch is filled
        (4, 1, None, 3, 1, (2, 3)),
    ],
)
def test_the_batch_is_split_over_processes_and_accumulation(batch, world, micro, profile, saved, expected):
    split = split_batch(batch, world, micro, profile, saved)
    assert split == BatchSplit(batch, world, *expected, is_fixed=any((micro, profile)))
    assert split.micro_batch_size * split.accumulation * world >= batch


@pytest.mark.parametrize(("micro", "steps"), [(4, 1), (1, 4)])
def test_a_flag_and_a_profile_that_disagree_are_refused(micro, steps):
    with pytest.raises(SettingsError, match=f"size {micro} makes {steps} accumulation steps .* launch profile sets 2"):
        split_batch(16, 4, micro, accumulation=2)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_activation_checkpointing_keeps_gradients_and_running_statistics(norm):
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        network = UNet(UNetConfig(base_channels=4, depth=3, norm=norm, dropout=0.2)).double().train()
        network.activation_checkpointing = checkpointing
        for _ in range(2):
            images = torch.rand(2, 3, 40, 48, dtype=torch.float64)
            network(images).square().mean().backward()
        results.append((network, [parameter.grad for parameter in network.parameters()]))
    (plain, gradients), (recomputing, recomputed) = results
    for ours, theirs in zip(recomputed, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)  # float64: measured 0
    for name, value in plain.state_dict().items():
        assert torch.equal(value, recomputing.state_dict()[name]), name


def test_the_estimate_is_what_autograd_keeps_and_checkpointing_needs_far_less():
    network = UNet(UNetConfig(base_channels=8, depth=3))
    shape, kept = (2, 3, 64, 96), {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: held.append(tensor) or note(tensor), lambda t: t):
        network.train()(torch.rand(shape))
    weights = sum(parameter.numel() * 4 for parameter in network.parameters())
    estimate = step_bytes(network, shape, Copies(3))
    assert estimate == sum(kept.values()) + 4 * weights
    assert step_bytes(network, (4, *shape[1:]), Copies(3)) - 4 * weights == pytest.approx(
        2 * (estimate - 4 * weights),
        rel=0.05,  # but for what does not grow with the batch, its statistics: measured 3%
    )
    network.activation_checkpointing = True
    assert step_bytes(network, shape, Copies(3)) - 4 * weights < 0.6 * (estimate - 4 * weights)  # 0.59


@pytest.mark.parametrize(("kind", "shards"), [(DistributedType.MULTI_GPU, 1), (DistributedType.FSDP, 4)])
def test_the_trial_reserves_optimizer_state_the_images_of_two_steps_and_what_others_need(monkeypatch, kind, shards):
    reserved, empty = [], torch.empty

    def note(size, **options):
        if options.get("dtype") == torch.uint8:
            reserved.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", note)
    monkeypatch.setattr(train_utils.preflight, "_bytes_left", lambda accelerator: 77)
    network = UNet(UNetConfig(base_channels=4, depth=2))
    split = BatchSplit(24, 4, 2, 3)
    accelerator = accelerator_like("cpu", 4, kind)
    assert StepFit(accelerator, network, StepLoss(classes(2, "ce")), (3, 32, 40), Copies(3)).fits_by_trial(split)
    weights = sum(parameter.numel() * 4 for parameter in network.parameters())
    images = 2 * 3 * 2  # of two steps of three micro-batches of two
    assert reserved == [2 * weights // shards + images * 32 * 40 * 24 + 77]


@pytest.mark.parametrize(("channels", "per_pixel"), [(3, 24), (1, 14)])
def test_the_images_of_two_steps_are_counted_by_what_they_are_made_of(channels, per_pixel):
    raw = torch.zeros(channels, 6, 8, dtype=torch.uint8), torch.zeros(6, 8, dtype=torch.uint8)
    draws = [Draw()]
    given = raw[0][None], ClassTarget(raw[1][None]), draws, pack_draws(draws, channels)
    images, targets = augment(*given, fill=torch.zeros(channels), std=torch.ones(channels))
    assert per_pixel * 48 == sum(tensor.nbytes for tensor in (*raw, images, *targets.arrays()))
    assert input_bytes((channels, 6, 8), BatchSplit(40, 1, 4, 10)) == 2 * 40 * 48 * per_pixel


@pytest.mark.parametrize(
    ("device", "processes", "total", "left"),
    [
        ("cuda", 1, 16 * 10**9, 8 * 10**8),
        ("cuda", 8, 16 * 10**9, 10**9),
        ("cuda", 8, 80 * 10**9, 4 * 10**9),
        ("mps", 1, None, 0),
    ],
)
def test_a_trial_leaves_room_for_what_is_not_torchs(monkeypatch, device, processes, total, left):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, total))
    assert _bytes_left(accelerator_like(device, processes)) == left


def test_a_trial_trains_and_leaves_the_network_as_it_was():
    seen = []
    network = UNet(UNetConfig(base_channels=4, depth=2)).eval()
    network.stem.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    split = BatchSplit(2, 1, 2, 1)
    criterion = StepLoss(classes(2, "ce"))
    assert StepFit(accelerator_like("cpu"), network, criterion, (3, 32, 32), Copies(3)).fits_by_trial(split)
    assert seen == [True]
    assert not network.training and all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("is_short", [False, True])
def test_all_that_a_trial_held_is_free_when_the_memory_is_given_back(monkeypatch, is_short):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    criterion = StepLoss(classes(2, "ce"))
    accelerator = accelerator_like("cpu")
    accelerator.autocast = contextmanager(lambda: (yield))  # Accelerate's is a generator too
    forward, empty, forget = UNet.forward, torch.empty, train_utils.preflight._forget_trial
    held: list[weakref.ref] = []
    forgotten = []

    def forward_noted(self: UNet, images: torch.Tensor) -> torch.Tensor:
        held.extend([weakref.ref(self), weakref.ref(images)])
        logits = forward(self, images)
        if is_short:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return logits

    def empty_noted(*arguments, **options) -> torch.Tensor:
        tensor = empty(*arguments, **options)
        if options.get("dtype") == torch.uint8:
            held.append(weakref.ref(tensor))
        return tensor

    def forget_noted() -> None:
        forgotten.append(all(thing() is None for thing in held))
        forget()

    monkeypatch.setattr(UNet, "forward", forward_noted)
    monkeypatch.setattr(torch, "empty", empty_noted)
    monkeypatch.setattr(train_utils.preflight, "_forget_trial", forget_noted)
    step_fit = StepFit(accelerator, network, criterion, (3, 32, 32), Copies(3))
    evaluation_fit = EvaluationFit(accelerator, network, criterion, 3, Copies(1))
    size = EvaluationSize((40, 56), (80, 112), 3)
    gc.disable()  # no collection is to be needed
    try:
        assert step_fit.fits_by_trial(BatchSplit(2, 1, 2, 1)) is not is_short
        assert evaluation_fit.fits_by_trial(size) is not is_short
    finally:
        gc.enable()
    assert len(held) == 6 and forgotten == [True, True]


def test_sizes_that_are_hopeless_are_not_tried(monkeypatch):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    tried = []
    network.stem.register_forward_hook(lambda module, inputs, output: tried.append((output.device.type, len(output))))
    shape = (3, 32, 32)
    free = step_bytes(network, (5, *shape), Copies(0)) / train_utils.preflight.HOPELESS
    monkeypatch.setattr(train_utils.preflight, "_free_bytes", lambda accelerator: free)
    monkeypatch.setattr(StepFit, "fits_by_estimate", StepFit.fits_by_trial)  # on the CPU as on a GPU
    arguments = network, StepLoss(classes(2, "ce")), shape, BatchSplit(16, 1, 16, 1), Copies(3)
    split = fit_batch_split(accelerator_like("cpu"), *arguments)
    assert split.micro_batch_size == 4  # of 16, 8, 6, 4, ...
    assert [size for device, size in tried if device == "cpu"] == [4]


@pytest.mark.parametrize(("device", "free"), [("cuda", 7), ("mps", None)])
def test_free_memory_is_known_of_cuda_alone(monkeypatch, device, free):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    assert _free_bytes(accelerator_like(device)) == free


@pytest.mark.parametrize(("images", "fixed", "size"), [(5.9, False, 4), (0.5, False, 1), (5.9, True, 16)])
def test_no_tensor_on_an_accelerator_has_more_elements_than_32_bits_count(monkeypatch, capsys, images, fixed, size):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    largest = 32 * 40 * 8  # the upper level's feature maps beside their skip connection
    assert largest_tensor(network, (1, 3, 32, 40)) == largest
    monkeypatch.setattr(train_utils.preflight, "MOST_ELEMENTS", int(images * largest))
    monkeypatch.setattr(StepFit, "fits_by_trial", lambda *arguments: True)
    monkeypatch.setattr(train_utils.preflight, "upload", lambda tensor, device: tensor)
    arguments = network, StepLoss(classes(2, "ce")), (3, 32, 40), BatchSplit(16, 1, 16, 1, fixed), Copies(3)
    split = fit_batch_split(accelerator_like("meta"), *arguments)
    assert split.micro_batch_size == size
    assert capsys.readouterr().out.startswith("memory: trying how many images of 32 x 40 fit, at most 16\n")


@pytest.mark.parametrize("error", SHORTAGES, ids=name_of)
def test_a_trial_that_runs_out_of_memory_in_any_way_takes_fewer_images(monkeypatch, capsys, error):
    network, forward = UNet(UNetConfig(base_channels=4, depth=2)), UNet.forward

    def forward_if_few(self: UNet, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 2:
            raise error
        return forward(self, images)

    monkeypatch.setattr(UNet, "forward", forward_if_few)
    monkeypatch.setattr(StepFit, "fits_by_estimate", StepFit.fits_by_trial)  # on the CPU as on a GPU
    split = fit_batch_split(
        accelerator_like("cpu"),
        network,
        StepLoss(classes(2, "ce")),
        (3, 32, 32),
        BatchSplit(8, 1, 8, 1),
        Copies(3),
    )
    assert (split.micro_batch_size, split.accumulation) == (2, 4)
    is_torchs = isinstance(error, torch.OutOfMemoryError)
    assert capsys.readouterr().out.count("no room for micro-batches of 4 images: ") == (not is_torchs)


def test_kernels_are_timed_from_the_first_pass_of_a_shape_on_where_its_steps_pay_for_it(tmp_path, monkeypatch):
    """The trial of the memory check meets the largest shape first, and what it finds stays."""
    sizes = [(64, 72)] * 8 + [(24, 32)] * 4 + [(48, 48)] * 2  # 56 steps of batches of 1: 32, 16 and 8 of each
    for kind in ("train", "val"):
        write_folder(tmp_path / kind, 14, seed=0, size=(64, 72))
        for file in (tmp_path / kind).glob("*/*.png"):
            height, width = sizes[int(file.stem[-2:])]
            with Image.open(file) as image:
                cut = image.crop((0, 0, width, height))
            cut.save(file)
    first: dict[tuple[int, ...], bool] = {}  # whether kernels are timed in the first pass of a shape

    def note(module: torch.nn.Module, inputs: tuple) -> None:
        if isinstance(module, UNet) and module.training and inputs[0].device.type == "cpu":
            first.setdefault(tuple(inputs[0].shape[2:]), torch.backends.cudnn.benchmark)

    on_cuda = torch.device("cuda")
    monkeypatch.setattr(train_utils.tuning, "tune_kernels", lambda _, enabled: tune_kernels(on_cuda, enabled))
    monkeypatch.setattr(train_utils.tuning, "ENOUGH_STEPS", 16)
    monkeypatch.setattr(StepFit, "fits_by_estimate", StepFit.fits_by_trial)  # on the CPU as on a GPU
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    growing = []
    monkeypatch.setattr(train, "grow_segments", growing.append)
    flags = ["--dataset", tmp_path, *TINY, "--batch-size", "1", "--epochs", "4", "--tracker", "none"]
    with register_module_forward_pre_hook(note):
        run = run_train(tmp_path / "run", *flags, "--eval-every", "99", "--checkpoint-every", "99")
        assert run.exit_code == 0, run.output
        assert growing == [torch.device("cpu")]  # the shapes differ
        assert first == {(64, 72): True, (24, 32): True, (48, 48): False}
        first.clear()
        run = run_train(tmp_path / "repeatable", *flags, "--max-steps", "1", "--deterministic")
        assert run.exit_code == 0, run.output
    assert set(first.values()) == {False}


@pytest.mark.parametrize("error", [error for error in OTHERS if isinstance(error, RuntimeError)], ids=name_of)
def test_a_trial_that_fails_in_another_way_is_not_tried_again(monkeypatch, error):
    def fail(self: UNet, images: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(UNet, "forward", fail)
    network, split = UNet(UNetConfig(base_channels=4, depth=2)), BatchSplit(8, 1, 8, 1)
    step_fit = StepFit(accelerator_like("cpu"), network, StepLoss(classes(2, "ce")), (3, 32, 32), Copies(3))
    with pytest.raises(type(error)) as caught:
        step_fit.fits_by_trial(split)
    assert caught.value is error


def test_the_estimate_counts_the_images_that_accumulation_holds(monkeypatch):
    network, criterion, shape = UNet(UNetConfig(base_channels=4, depth=2)), StepLoss(classes(2, "ce")), (3, 32, 32)

    def found(split: BatchSplit, room: int) -> tuple[int, int, bool]:
        monkeypatch.setattr(train_utils.preflight, "available_bytes", lambda: room / 0.65)
        network.activation_checkpointing = False
        split = fit_batch_split(accelerator_like("cpu"), network, criterion, shape, split, Copies(3))
        return split.micro_batch_size, split.accumulation, network.activation_checkpointing

    for wanted, accumulation, less in [
        (BatchSplit(64, 1, 64, 1), 32, (1, 64, False)),  # smaller micro-batches, and more of them
        (BatchSplit(64, 1, 2, 40, is_fixed=True), 40, (2, 40, True)),  # as was asked, but recomputed
    ]:
        room = step_bytes(network, (2, *shape), Copies(3)) + 2 * accumulation * 2 * 32 * 32 * 24
        assert found(wanted, room + 10) == (2, accumulation, False)
        assert found(wanted, room - 10) == less


def run_with_room(tmp_path, name: str, room: float, dataset, rank: int, *flags: str) -> subprocess.CompletedProcess:
    """train.py on two processes, one of which believes that its machine has `room` bytes free."""
    arguments = ["train.py", "--dataset", dataset, "--output-dir", tmp_path / name, *TINY, "--max-steps", "5"]
    arguments += ["--log-every", "1", "--tracker", "none", "--optimizer", "sgd", "--batch-size", "8", *flags]
    return launch(PROGRAMS / "little_memory.py", rank, room, *arguments, profile="multi_cpu")


def test_a_process_without_room_lowers_the_micro_batch_of_all_and_changes_no_loss(tiny_folder, tmp_path):
    network = UNet(UNetConfig(base_channels=4, depth=2, norm="group"))
    needed = step_bytes(network, (2, 3, 40, 56), Copies(2)) + input_bytes((3, 40, 56), BatchSplit(8, 2, 2, 2))
    room = int(needed / 0.65) + 1000  # for two images, of four wanted
    roomy = run_with_room(tmp_path, "roomy", 1e12, tiny_folder, 0)
    tight = run_with_room(tmp_path, "tight", room, tiny_folder, 1)
    assert (roomy.returncode, tight.returncode) == (0, 0), tight.stderr
    assert "8 in a step = 4 in a micro-batch x 2 processes x 1 accumulation steps" in roomy.stdout
    assert "micro-batches of 2 images of 40 x 56 fit, 4 were wanted" in tight.stdout
    assert "8 in a step = 2 in a micro-batch x 2 processes x 2 accumulation steps" in tight.stdout
    # the documented promise, of SGD in fp32; measured 4e-7
    assert losses(tmp_path / "tight") == pytest.approx(losses(tmp_path / "roomy"), abs=1e-5)


def test_no_room_for_one_image_is_one_clear_line_on_all_processes(tiny_folder, tmp_path):
    result = run_with_room(tmp_path, "none", 1000, tiny_folder, 1)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "error: no memory for a micro-batch of 1 images" in line]
    assert len(errors) == 1, result.stderr
    result = run_with_room(tmp_path, "fixed", 1000, tiny_folder, 0, "--micro-batch-size", "3")
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "error: no memory for a micro-batch of 3 images" in line]
    assert len(errors) == 1, result.stderr


@pytest.mark.slow
def test_memory_that_runs_out_later_is_recorded_and_the_restart_goes_on_in_smaller_micro_batches(tiny_folder, tmp_path):
    program, output = PROGRAMS / "out_of_memory_later.py", tmp_path / "run"
    flags = ["--max-steps", "10", "--log-every", "1", "--checkpoint-every", "2", "--tracker", "none"]
    arguments = ["train.py", "--dataset", tiny_folder, "--output-dir", output, *TINY, *flags, "--batch-size", "8"]
    result = launch(
        program, *arguments, "--resume", "auto", profile="multi_cpu", options=["--max_restarts", "1"], forked=False
    )
    assert result.returncode == 0, result.stderr
    shortage = "process 1: out of memory in step 7 with micro-batches of 4; run the same command with --output-dir"
    assert len([line for line in result.stderr.splitlines() if shortage in line]) == 1, result.stderr
    assert "8 in a step = 4 in a micro-batch x 2 processes x 1 accumulation steps" in result.stdout
    assert "8 in a step = 2 in a micro-batch x 2 processes x 2 accumulation steps" in result.stdout
    assert "resumed from" in result.stdout
    assert len(losses(output)) == 10
    assert json.loads((output / "memory.json").read_text())["micro_batch_size"] == 2


def test_what_is_recorded_of_a_shortage_and_what_to_do_where_nothing_smaller_is_left(tmp_path):
    network = UNet(UNetConfig(base_channels=4, depth=2))

    def shortage(size: int, fixed: bool = False) -> str:
        with (
            pytest.raises(MemoryShortage) as caught,
            StepMemory(accelerator_like("cpu"), tmp_path, network, BatchSplit(8, 1, size, 1, fixed)).shortage_recorded(
                3
            ),
        ):
            raise torch.OutOfMemoryError
        return str(caught.value)

    assert memory_limit(tmp_path) == (None, False)
    assert "lower --micro-batch-size" in shortage(4, fixed=True)
    assert memory_limit(tmp_path) == (None, False)
    assert "to continue with micro-batches of 2" in shortage(3)
    assert memory_limit(tmp_path) == (2, False)
    assert "to continue with activation checkpointing" in shortage(1)
    assert memory_limit(tmp_path) == (1, True)
    network.activation_checkpointing = True
    assert "lower --crop-size" in shortage(1)


def evaluation_of(size: EvaluationSize, network: UNet) -> tuple:
    """The arguments of `check_evaluation`, with SGD."""
    return accelerator_like("cpu"), network, StepLoss(classes(2, "ce+logdice")), 3, size, Copies(2)


def test_the_largest_evaluation_is_that_of_the_most_memory_not_of_the_most_pixels():
    config = UNetConfig(base_channels=4, depth=2)  # computed whole up to 6.3 megapixels

    def largest(*sizes: tuple) -> EvaluationSize:
        inputs, targets = zip(*sizes, strict=True)
        return largest_evaluation(config, np.array(inputs), np.array(targets), pixels=2**17)

    small = ((100, 100), (100, 100))
    assert largest(small, small) == ((100, 100), (100, 100), 2)
    assert largest(*20 * [small]) == ((100, 100), (100, 100), 13)  # as many as share a forward pass
    whole, tiled = (2400, 2500), (9000, 9000)
    assert largest(small, (tiled, tiled), (whole, whole)) == (whole, whole, 1)
    assert largest(((50, 50), (4000, 4000)), ((300, 300), (300, 300))) == ((50, 50), (4000, 4000), 1)
    assert largest(((50, 60), (0, 0))) == ((50, 60), (50, 60), 1)  # a stream that was not looked at


def test_a_cpu_without_room_for_the_largest_validation_image_says_so(monkeypatch):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    size = EvaluationSize((400, 500), (800, 1000), 1)
    weights = sum(parameter.nbytes for parameter in network.parameters())
    # weights and a moment of each, activations, logits at the target's size and what becomes of them
    needed = 2 * weights + 400 * 500 * 32 * 4 + 4 * 800 * 1000 * 2 * 4
    monkeypatch.setattr(train_utils.preflight, "available_bytes", lambda: needed + 1)
    check_evaluation(*evaluation_of(size, network))
    monkeypatch.setattr(train_utils.preflight, "available_bytes", lambda: needed)
    line = "no memory to evaluate a validation image of 800 x 1000; choose a lower --scale or --base-channels, or cut"
    with pytest.raises(SettingsError, match=line):
        check_evaluation(*evaluation_of(size, network))
    volumes = UNet(UNetConfig(base_channels=2, depth=1, dims=3))
    line = "a validation volume of 160 x 180 x 150; choose a lower --base-channels, or cut such volumes into smaller"
    with pytest.raises(SettingsError, match=line):
        check_evaluation(*evaluation_of(EvaluationSize((160, 180, 150), (160, 180, 150), 1), volumes))


@pytest.mark.parametrize("error", [None, *SHORTAGES[:3]], ids=name_of)
def test_an_accelerator_tries_the_largest_validation_image_whole_or_its_first_tiles(monkeypatch, error):
    accelerator = accelerator_like("cpu")
    network = UNet(UNetConfig(base_channels=4, depth=2)).train()
    shapes = []
    forward = UNet.forward

    def remembered(self: UNet, images: torch.Tensor) -> torch.Tensor:
        assert not self.training and self is not network
        shapes.append(tuple(images.shape))
        if error is not None:
            raise error
        return forward(self, images)

    monkeypatch.setattr(UNet, "forward", remembered)

    def fits(size: EvaluationSize) -> bool:
        shapes.clear()
        evaluation_fit = EvaluationFit(accelerator, network, StepLoss(classes(2, "ce+logdice")), 3, Copies(1))
        return evaluation_fit.fits_by_trial(size)

    assert fits(EvaluationSize((40, 56), (80, 112), 3)) == (error is None)
    assert shapes == [(3, 3, 40, 56)]
    for name in ("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY", "STRIP_MEMORY"):
        monkeypatch.setattr(inference.tiling.planning, name, 0)
    assert fits(EvaluationSize((400, 56), (800, 112), 1)) == (error is None)
    assert len(shapes) <= 2 and shapes[0][2] < 200  # not all of it
    assert network.training


def test_a_run_tries_its_largest_validation_image_before_the_first_step(tiny_folder, tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr("train.check_evaluation", lambda *given: sizes.append(given[4]) or sys.exit(3))
    run = run_train(tmp_path / "run", "--dataset", tiny_folder, *TINY, "--scale", "0.5", "--max-steps", "1")
    assert run.exit_code == 3 and sizes == [((20, 28), (40, 56), 5)]


@pytest.mark.parametrize("was_needed", [True, False])
def test_a_run_that_needed_activation_checkpointing_has_it_when_it_is_resumed(
    tiny_folder, tmp_path, monkeypatch, was_needed
):
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--checkpoint-every", "1"]
    assert run_train(tmp_path / "run", *flags, "--max-steps", "1").exit_code == 0
    limit = {"micro_batch_size": None, "activation_checkpointing": was_needed}
    (tmp_path / "run" / "memory.json").write_text(json.dumps(limit))
    monkeypatch.setattr(
        "train.fit_batch_split", lambda accelerator, network, *rest: sys.exit(network.activation_checkpointing)
    )
    resumed = run_train(tmp_path / "run", *flags, "--max-steps", "2", "--resume", "auto")
    assert resumed.exit_code == was_needed, resumed.output


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
    assert can_repeat_steps(accelerator_like(device, processes, kind)) == repeats


def test_a_step_that_runs_out_of_memory_is_made_again_in_smaller_micro_batches(tmp_path, monkeypatch):
    """Memory runs out in the second micro-batch of the second step: batch norm has seen the first one by then."""
    write_folder(tmp_path / "data" / "train", 16, seed=0)
    write_folder(tmp_path / "data" / "val", 1, seed=1)
    passes = []
    forward = UNet.forward

    def forward_if_few(self: UNet, images: torch.Tensor) -> torch.Tensor:
        if self.training and images.device.type == "cpu":
            passes.append(len(images))
            if passes == [4, 4, 4, 4]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, images)

    monkeypatch.setattr(UNet, "forward", forward_if_few)
    monkeypatch.setattr(train_utils.step_memory, "can_repeat_steps", lambda accelerator: True)
    monkeypatch.setattr(train.Publisher, "write_results", lambda *arguments: None)
    flags = ["--dataset", tmp_path / "data", *TINY, "--norm", "batch", "--no-deep-supervision", "--batch-size", "8"]
    flags += ["--tracker", "none", "--checkpoint-every", "1", "--keep-checkpoints", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(train_utils.microbatch, "split_batch", lambda *arguments: BatchSplit(8, 1, 4, 2))
        short = run_train(tmp_path / "short", *flags, "--max-steps", "3")
    assert short.exit_code == 0, short.output
    assert passes == [4, 4, 4, 4, *[2] * 4, *[2] * 4]
    line = "memory: no room for micro-batches of 4, the step is made again in micro-batches of 2; batch norm sees 2"
    assert f"{line} images at a time from now on, so results change (CUDA out of memory" in short.output
    assert memory_limit(tmp_path / "short") == (2, False)

    begun = tmp_path / "begun"  # the same from the second step on, as a run that is started again makes it
    shutil.copytree(tmp_path / "short", begun)
    for step in (2, 3):
        shutil.rmtree(begun / "checkpoints" / f"step-{step:08}")
    (begun / "finished.json").unlink()
    resumed = run_train(begun, *flags, "--max-steps", "3", "--resume", "auto")
    assert resumed.exit_code == 0 and "resumed from" in resumed.output
    for name, value in resumed.weights(3).items():
        assert torch.equal(value, short.weights(3)[name]), name


def test_where_no_smaller_micro_batch_is_left_a_shortage_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(train_utils.step_memory, "can_repeat_steps", lambda accelerator: True)
    network = UNet(UNetConfig(base_channels=4, depth=2))
    guard = SimpleNamespace(undo_passes=lambda: None)
    error = torch.OutOfMemoryError()
    smallest = StepMemory(accelerator_like("cuda"), tmp_path, network, BatchSplit(8, 1, 1, 8))
    with pytest.raises(torch.OutOfMemoryError):
        smallest.halve_or_raise(error, guard)
    fixed = StepMemory(accelerator_like("cuda"), tmp_path, network, BatchSplit(8, 1, 4, 2, is_fixed=True))
    with pytest.raises(torch.OutOfMemoryError):
        fixed.halve_or_raise(error, guard)
    halved = StepMemory(accelerator_like("cuda"), tmp_path, network, BatchSplit(8, 1, 3, 3))
    with pytest.raises(RuntimeError, match="a bug"):
        halved.halve_or_raise(RuntimeError("a bug"), guard)
    halved.halve_or_raise(error, guard)
    assert halved.size == 2 and memory_limit(tmp_path) == (2, False)
    assert "micro-batches of 2" in str(raised_within(MemoryShortage, halved.shortage_recorded(3), error))


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_where_a_cpu_computes_freed_memory_is_kept_for_the_next_tensor():
    cleared = {}
    for device in ("cpu", "cuda"):
        result = launch(PROGRAMS / "count_page_faults.py", device)
        assert result.returncode == 0, result.stderr
        cleared[device] = int(result.stdout)
    assert cleared["cpu"] < cleared["cuda"] / 10


def test_a_run_that_runs_out_of_memory_names_the_step_and_records_what_may_fit(tiny_folder, tmp_path, monkeypatch):
    def runs_out(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train, "train_step", runs_out)
    flags = ["--dataset", tiny_folder, *TINY, "--tracker", "none", "--batch-size", "4"]
    with pytest.raises(MemoryShortage, match="process 0: out of memory in step 1 with micro-batches of 4; run the"):
        run_train(tmp_path / "run", *flags)
    assert memory_limit(tmp_path / "run") == (2, False)
