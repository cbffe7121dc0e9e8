"""What fits into memory is tried before the first step: micro-batches become smaller, and no step has fewer images.

Modules: train_utils/memory/trial.py.
"""

import json

import pytest
import torch
from accelerate import Accelerator
from support.in_process import parsed, process_state_kept, run_train
from support.launches import PROGRAMS, TINY, launch
from support.run_files import losses

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import SettingsError
from tasks import task_of_model
from train_utils.memory import trial as trial_module
from train_utils.memory.trial import MemoryTrial, most_images
from unet import UNet, UNetConfig

SHAPE = (1, 12, 16)
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
        yield MemoryTrial(Accelerator(cpu=True), network, task_of_model(network.config), args, SHAPE)


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


def test_another_error_is_raised(monkeypatch, trial):
    has_room(monkeypatch, 1, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        trial.fit(BatchSplit(4, 1, 4, 1))


def test_a_trial_changes_no_weight(trial):
    before = {name: value.clone() for name, value in trial.network.state_dict().items()}
    trial.fit(BatchSplit(2, 1, 2, 1))
    assert all(torch.equal(value, before[name]) for name, value in trial.network.state_dict().items())
    assert all(parameter.grad is None for parameter in trial.network.parameters())


def test_what_is_held_beside_a_step_is_counted(trial):
    weights = sum(parameter.nbytes for parameter in trial.network.parameters())
    split = BatchSplit(4, 1, 2, 2)
    images = 2 * 4 * 12 * 16 * (4 + 1 + 4 + 8)  # of two steps, in float32, with masks, as they are loaded and augmented
    assert trial.reserved_bytes(split) == 2 * weights + images  # AdamW has two moments


@pytest.mark.parametrize("settings", [{}, {"num_classes": 9}, {"upsample": "bilinear"}, {"norm": "group", "dims": 3}])
def test_no_tensor_of_a_micro_batch_has_too_many_elements(monkeypatch, settings):
    network = UNet(UNetConfig(**{"in_channels": 1, "base_channels": 2, "depth": 2} | settings))
    shape = (1, *[8] * network.config.dims)
    counts = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: counts.append(tensor.numel()), lambda tensor: tensor):
        counts.append(network(torch.rand(3, *shape)).numel())
    for most, images in ((max(counts), 3), (max(counts) - 1, 2)):
        monkeypatch.setattr(trial_module, "MOST_ELEMENTS", most)
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
