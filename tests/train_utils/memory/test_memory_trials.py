"""Trials of steps and evaluations on an accelerator: what they reserve, and what they leave behind.

Module: train_utils/memory/preflight.py.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from support.accelerators import new_accelerator
from support.class_loss import classes
from support.shortages import OTHERS, SHORTAGES, name_of

import inference.tiling.planning
from data_utils.loading.batch_sampler import BatchSplit
from tasks.classes import Classes
from tasks.step_loss import StepLoss
from train_utils.memory import preflight
from train_utils.memory.estimate import Copies, EvaluationSize, step_bytes
from train_utils.memory.preflight import Preflight
from unet import UNet, UNetConfig
from unet.model import DeeplySupervisedUNet


def small_network() -> UNet:
    return UNet(UNetConfig(base_channels=4, depth=2))


ADAMW = Copies(3)  # a gradient and two moments of each weight


def memory_check(network: UNet | None, copies: Copies = ADAMW, **options) -> Preflight:
    """The memory checks of a process; `options` as for `new_accelerator`."""
    return Preflight(new_accelerator(**options), network, StepLoss(classes(2, "ce")), copies)


@pytest.mark.parametrize(("needed", "is_hopeless"), [(3000, False), (3001, True)])
def test_a_trial_is_hopeless_beyond_three_times_the_free_memory(monkeypatch, needed, is_hopeless):
    without_copies = {(0, 0): needed}  # of the weights
    monkeypatch.setattr(preflight, "_free_bytes", lambda accelerator: 1000)
    monkeypatch.setattr(preflight, "step_bytes", lambda network, shape, copies: without_copies[copies])
    assert preflight._is_hopeless(None, None, (1,)) is is_hopeless


def test_sizes_that_are_hopeless_are_not_tried(monkeypatch):
    network = small_network()
    tried = []
    network.stem.register_forward_hook(lambda module, inputs, output: tried.append((output.device.type, len(output))))
    shape = (3, 32, 32)
    free = step_bytes(network, (5, *shape), Copies(0)) / preflight.MAX_ESTIMATE_FACTOR
    monkeypatch.setattr(preflight, "_free_bytes", lambda accelerator: free)
    monkeypatch.setattr(Preflight, "step_fits_by_estimate", Preflight.step_fits_by_trial)  # on the CPU as on a GPU
    batch_split = memory_check(network).fit_batch_split(shape, BatchSplit(16, 1, 16, 1))
    assert batch_split.micro_batch_size == 4  # of 16, 8, 6, 4, ...
    assert [size for device, size in tried if device == "cpu"] == [4]


@pytest.mark.parametrize(("device", "free"), [("cuda", 7), ("mps", None)])
def test_free_memory_is_known_of_cuda_alone(monkeypatch, device, free):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    assert preflight._free_bytes(new_accelerator(device=device)) == free


@pytest.fixture
def reserved(monkeypatch) -> list[int]:
    """The bytes that trials reserve beside the network, of which other processes need 77."""
    sizes = []
    empty = torch.empty

    def note(size, **options):
        if options.get("dtype") == torch.uint8:
            sizes.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", note)
    monkeypatch.setattr(preflight, "_bytes_left", lambda accelerator: 77)
    return sizes


@pytest.mark.parametrize(("kind", "shards"), [(DistributedType.MULTI_GPU, 1), (DistributedType.DEEPSPEED, 4)])
def test_an_evaluation_is_tried_beside_the_copies_of_the_weights(reserved, kind, shards):
    network = small_network()
    check = memory_check(network, Copies(3, all_weights=1), processes=4, kind=kind)
    assert check.evaluation_fits_by_trial(EvaluationSize((8, 8), (8, 8), 1))
    weights = sum(parameter.nbytes for parameter in network.parameters())
    assert reserved == [3 * weights // shards + 77]


@pytest.mark.parametrize(("kind", "shards"), [(DistributedType.MULTI_GPU, 1), (DistributedType.FSDP, 4)])
def test_a_step_is_tried_beside_optimizer_state_with_images_of_two_steps(reserved, kind, shards):
    network = small_network()
    check = memory_check(network, processes=4, kind=kind)
    assert check.step_fits_by_trial((3, 32, 40), BatchSplit(24, 4, 2, 3))
    weights = sum(parameter.numel() * 4 for parameter in network.parameters())
    images = 2 * 3 * 2  # of two steps of three micro-batches of two
    assert reserved == [2 * weights // shards + images * 32 * 40 * 24 + 77]


@pytest.mark.parametrize(
    ("device", "processes", "total", "left"),
    [
        ("cuda", 1, 16 * 10**9, 8 * 10**8),
        ("cuda", 2, 16 * 10**9, 10**9),
        ("cuda", 8, 80 * 10**9, 4 * 10**9),
        ("mps", 1, None, 0),
    ],
)
def test_a_trial_leaves_room_for_what_is_not_torchs(monkeypatch, device, processes, total, left):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, total))
    assert preflight._bytes_left(new_accelerator(processes, device=device)) == left


def test_a_trial_trains_a_copy_of_the_network():
    calls = []
    network = small_network().eval()

    def note(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        calls.append(module.training)
        output.register_hook(lambda gradient: calls.append(gradient.shape))

    network.stem.register_forward_hook(note)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert memory_check(network).step_fits_by_trial((3, 32, 32), BatchSplit(2, 1, 2, 1))
    assert calls == [True, (2, 4, 32, 32)]  # forward and backward
    assert not network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


TRIALS = {
    "step": lambda check: check.step_fits_by_trial((3, 32, 32), BatchSplit(2, 1, 2, 1)),
    "evaluation": lambda check: check.evaluation_fits_by_trial(EvaluationSize((40, 56), (80, 112), 3)),
}


def run_out_of_memory(logits: torch.Tensor) -> torch.Tensor:
    """What becomes of logits on an accelerator that is too small."""
    raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Within, memory is free as soon as nothing refers to it, or never."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("outcome", "fits"), [(torch.clone, True), (run_out_of_memory, False)], ids=["fits", "runs out of memory"]
)
@pytest.mark.parametrize("trial", TRIALS)
def test_memory_of_a_trial_is_free_when_it_is_given_back(monkeypatch, without_collections, trial, outcome, fits):
    references: list[weakref.ref] = []
    are_free: list[bool] = []
    forward, reserve, forget = UNet.forward, Preflight._reserve, preflight._forget_trial

    def forward_noted(self: UNet, images: torch.Tensor) -> torch.Tensor:
        references.extend([weakref.ref(self), weakref.ref(images)])
        return outcome(forward(self, images))

    def reserve_noted(self: Preflight, size: int) -> torch.Tensor:
        tensor = reserve(self, size)
        references.append(weakref.ref(tensor))
        return tensor

    def forget_noted() -> None:
        are_free.extend(reference() is None for reference in references)
        forget()

    monkeypatch.setattr(UNet, "forward", forward_noted)
    monkeypatch.setattr(Preflight, "_reserve", reserve_noted)
    monkeypatch.setattr(preflight, "_forget_trial", forget_noted)
    assert TRIALS[trial](memory_check(small_network())) is fits
    assert are_free == [True] * 3  # the network, the images, and what was reserved


@pytest.mark.parametrize("trial", TRIALS)
def test_what_training_keeps_is_held_while_a_network_is_tried(monkeypatch, trial):
    kept: list[weakref.ref] = []
    are_held: list[bool] = []
    empty, forward = torch.empty, UNet.forward

    def empty_noted(size, **options) -> torch.Tensor:
        tensor = empty(size, **options)
        if options.get("dtype") == torch.uint8:
            kept.append(weakref.ref(tensor))
        return tensor

    def forward_noted(self: UNet, images: torch.Tensor) -> torch.Tensor:
        are_held.extend(reference() is not None for reference in kept)
        return forward(self, images)

    monkeypatch.setattr(torch, "empty", empty_noted)
    monkeypatch.setattr(UNet, "forward", forward_noted)
    assert TRIALS[trial](memory_check(small_network()))
    assert are_held == [True]


@pytest.mark.parametrize(("dims", "memory_format"), [(2, torch.channels_last), (3, torch.channels_last_3d)])
def test_images_of_a_trial_lie_in_memory_as_those_of_a_step(dims, memory_format):
    network = UNet(UNetConfig(base_channels=4, depth=2, dims=dims))
    are_last: list[bool] = []
    network.stem.register_forward_hook(
        lambda module, inputs, output: are_last.append(inputs[0].is_contiguous(memory_format=memory_format))
    )
    assert memory_check(network).step_fits_by_trial((3, *[16] * dims), BatchSplit(2, 1, 2, 1))
    assert are_last == [True]


@pytest.mark.parametrize(("optimizer", "decay", "copies"), [("sgd", 0.9, Copies(2, 1)), ("adamw", 0.0, Copies(3, 0))])
def test_a_trial_of_a_run_is_made_with_its_settings(optimizer, decay, copies):
    network = DeeplySupervisedUNet(UNetConfig(base_channels=4, depth=3))
    args = SimpleNamespace(planned_optimizer=optimizer, ema_decay=decay)
    check = Preflight.from_args(new_accelerator(), network, classes(2, "ce"), args)
    assert check.copies == copies
    assert check.step_fits_by_trial((3, 32, 32), BatchSplit(2, 1, 2, 1))


@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_computes_in_the_precision_of_the_run(trial):
    precisions = []

    @contextmanager
    def autocast() -> Iterator[None]:  # Accelerate's is a generator too
        precisions.append("that of the run")
        yield

    check = memory_check(small_network())
    check.accelerator.autocast = autocast
    assert TRIALS[trial](check)
    assert precisions == ["that of the run"]


@pytest.fixture
def cuda_calls(monkeypatch) -> list[str]:
    """What is asked of CUDA after a trial."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append("reset_peak_memory_stats"))
    monkeypatch.setattr(Preflight, "_try_evaluation", lambda self, size: None)
    assert memory_check(None).evaluation_fits_by_trial(EvaluationSize((8, 8), (8, 8), 1))
    return calls


def test_a_trial_gives_its_memory_back(cuda_calls):
    assert cuda_calls[0] == "empty_cache"


def test_a_trial_is_no_peak_of_the_run(cuda_calls):
    assert cuda_calls[1:] == ["reset_peak_memory_stats"]


@pytest.fixture
def room_for_two(monkeypatch) -> Callable[[Exception], BatchSplit]:
    """A function that fits eight images where a forward pass of more than two raises an error."""
    forward = UNet.forward

    def fit(error: Exception) -> BatchSplit:
        def forward_if_few(self: UNet, images: torch.Tensor) -> torch.Tensor:
            if len(images) > 2:
                raise error
            return forward(self, images)

        monkeypatch.setattr(UNet, "forward", forward_if_few)
        monkeypatch.setattr(Preflight, "step_fits_by_estimate", Preflight.step_fits_by_trial)  # on the CPU too
        return memory_check(small_network()).fit_batch_split((3, 32, 32), BatchSplit(8, 1, 8, 1))

    return fit


@pytest.mark.parametrize("error", SHORTAGES, ids=name_of)
def test_a_trial_that_runs_out_of_memory_in_any_way_takes_fewer_images(room_for_two, error):
    batch_split = room_for_two(error)
    assert batch_split.micro_batch_size == 2
    assert batch_split.accumulation == 4


FOREIGN_SHORTAGES = [error for error in SHORTAGES if not isinstance(error, torch.OutOfMemoryError)]


@pytest.mark.parametrize("error", FOREIGN_SHORTAGES, ids=name_of)
def test_an_error_that_may_have_another_cause_is_reported(room_for_two, capsys, error):
    room_for_two(error)
    assert capsys.readouterr().out.count("no room for micro-batches of 4 images: ") == 1


def test_an_error_of_torch_about_memory_is_not_said(room_for_two, capsys):
    room_for_two(torch.OutOfMemoryError("CUDA out of memory."))
    assert "no room for micro-batches" not in capsys.readouterr().out


@pytest.mark.parametrize("error", [error for error in OTHERS if isinstance(error, RuntimeError)], ids=name_of)
def test_a_trial_that_fails_in_another_way_is_not_tried_again(monkeypatch, error):
    def fail(self: UNet, images: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(UNet, "forward", fail)
    with pytest.raises(type(error)) as caught:
        memory_check(small_network()).step_fits_by_trial((3, 32, 32), BatchSplit(8, 1, 8, 1))
    assert caught.value is error


@pytest.mark.parametrize(("images", "size"), [(5.9, 4), (0.5, 1)])
def test_no_tensor_of_a_step_has_more_elements_than_32_bits_count(monkeypatch, capsys, images, size):
    batch_split = fitted_on_accelerator(monkeypatch, images, BatchSplit(16, 1, 16, 1))
    assert batch_split.micro_batch_size == size
    assert capsys.readouterr().out.startswith("memory: trying how many images of 32 x 40 fit, at most 16\n")


def test_a_micro_batch_that_is_fixed_may_have_larger_tensors(monkeypatch):
    batch_split = fitted_on_accelerator(monkeypatch, 5.9, BatchSplit(16, 1, 16, 1, is_fixed=True))
    assert batch_split.micro_batch_size == 16


def fitted_on_accelerator(monkeypatch, images: float, batch_split: BatchSplit) -> BatchSplit:
    """The split on a device with much memory, on which a tensor has the elements of so many images at most."""
    monkeypatch.setattr(preflight, "MOST_ELEMENTS", int(images * 32 * 40 * 8))
    monkeypatch.setattr(Preflight, "step_fits_by_trial", lambda *arguments: True)
    monkeypatch.setattr(preflight, "upload", lambda tensor, device: tensor)
    return memory_check(small_network(), device="meta").fit_batch_split((3, 32, 40), batch_split)


def test_the_most_elements_of_a_tensor_are_what_32_bits_count():
    assert preflight.MOST_ELEMENTS == 2_147_483_647


def test_a_trial_of_an_evaluation_counts_the_pixels_of_its_target(monkeypatch):
    shapes = []
    counts = Classes.counts
    monkeypatch.setattr(Classes, "counts", lambda task, target: shapes.append(target.shape) or counts(task, target))
    assert memory_check(small_network()).evaluation_fits_by_trial(EvaluationSize((8, 8), (12, 16), 1))
    assert shapes == [(1, 12, 16)]


class EvaluationTrial:
    """Trials of evaluations of a network in training: the shapes of the images, and how they are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.network = small_network().train()
        self.shapes: list[tuple[int, ...]] = []
        self.error: Exception | None = None
        forward = UNet.forward

        def forward_noted(module: UNet, images: torch.Tensor) -> torch.Tensor:
            assert not module.training
            assert module is not self.network
            assert torch.is_inference_mode_enabled()  # nothing is kept for a backward pass
            self.shapes.append(tuple(images.shape))
            if self.error is not None:
                raise self.error
            return forward(module, images)

        monkeypatch.setattr(UNet, "forward", forward_noted)

    def fits(self, size: EvaluationSize) -> bool:
        return memory_check(self.network).evaluation_fits_by_trial(size)


@pytest.fixture
def evaluation(monkeypatch) -> EvaluationTrial:
    return EvaluationTrial(monkeypatch)


@pytest.fixture
def in_tiles(monkeypatch) -> None:
    """No image is evaluated whole."""
    for name in ("WHOLE_MEMORY", "TILE_MEMORY", "LARGE_TILE_MEMORY", "STRIP_MEMORY"):
        monkeypatch.setattr(inference.tiling.planning, name, 0)


def test_a_trial_of_an_evaluation_sees_the_largest_images_whole(evaluation):
    assert evaluation.fits(EvaluationSize((40, 56), (80, 112), 3))
    assert evaluation.shapes == [(3, 3, 40, 56)]
    assert evaluation.network.training


def test_a_trial_of_an_evaluation_sees_the_first_tiles_of_a_larger_image(evaluation, in_tiles):
    assert evaluation.fits(EvaluationSize((400, 56), (800, 112), 1))
    assert len(evaluation.shapes) == 2
    assert evaluation.shapes[0][2] < 200
    assert evaluation.network.training


@pytest.mark.parametrize("error", SHORTAGES[:3], ids=name_of)
def test_an_evaluation_that_runs_out_of_memory_does_not_fit(evaluation, error):
    evaluation.error = error
    assert not evaluation.fits(EvaluationSize((40, 56), (80, 112), 3))
    assert evaluation.network.training


@pytest.mark.parametrize("error", SHORTAGES[:3], ids=name_of)
def test_an_evaluation_in_tiles_that_runs_out_of_memory_does_not_fit(evaluation, in_tiles, error):
    evaluation.error = error
    assert not evaluation.fits(EvaluationSize((400, 56), (800, 112), 1))
    assert len(evaluation.shapes) == 1
