"""Bytes of steps and evaluations, counted without making them.

Module: train_utils/memory/estimate.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_utils.class_map import ClassMap
from data_utils.loading.augment import augment
from data_utils.loading.augmentation import Augmentation, pack_augmentations
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.targets.classes import ClassReader
from data_utils.targets.points import PointReader
from tasks.classes import ClassTarget
from tasks.landmarks import Landmarks
from train_utils.memory.estimate import (
    Copies,
    EvaluationSize,
    input_bytes,
    largest_evaluation,
    largest_tensor,
    largest_validation,
    step_bytes,
)
from unet import UNet, UNetConfig
from unet.model import DeeplySupervisedUNet


@pytest.mark.parametrize(
    ("optimizer", "averages", "copies"),
    [
        ("adamw", False, Copies(3, 0)),
        ("adamw", True, Copies(3, 1)),
        ("sgd", False, Copies(2, 0)),
        ("sgd", True, Copies(2, 1)),
        ("muon", True, Copies(3, 1)),
    ],
)
def test_training_needs_a_gradient_moments_an_average(optimizer, averages, copies):
    assert Copies.for_training(optimizer, averages=averages) == copies


def test_an_evaluation_needs_no_gradient():
    assert Copies.for_training("muon", averages=True).without_gradients() == Copies(2, 1)


def test_frozen_weights_have_neither_gradients_nor_moments():
    network = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    network[0].requires_grad_(False)
    assert Copies(3).bytes_for(network) == 3 * 4 * 3
    assert Copies(3, all_weights=1).bytes_for(network) == 3 * 4 * 3 + 4 * 9


def test_a_pixel_on_the_device_takes_what_it_was_loaded_and_augmented_as():
    batch_split = BatchSplit(8, 1, 2, accumulation=3)
    images = 2 * 3 * 2  # of this step and of the next one
    assert input_bytes((3, 4, 5), batch_split) == images * 20 * (3 + 1 + 12 + 8)
    assert input_bytes((1, 2, 4, 5), batch_split) == images * 40 * (4 + 1 + 4 + 8)


@pytest.mark.parametrize(("channels", "per_pixel"), [(3, 24), (1, 14)])
def test_the_images_of_two_steps_are_counted_by_what_they_are_made_of(channels, per_pixel):
    raw = torch.zeros(channels, 6, 8, dtype=torch.uint8), torch.zeros(6, 8, dtype=torch.uint8)
    augmentations = [Augmentation()]
    arguments = raw[0][None], ClassTarget(raw[1][None]), augmentations, pack_augmentations(augmentations, channels)
    images, targets = augment(*arguments, fill=torch.zeros(channels), std=torch.ones(channels))
    assert per_pixel * 48 == sum(tensor.nbytes for tensor in (*raw, images, *targets.arrays()))
    assert input_bytes((channels, 6, 8), BatchSplit(40, 1, 4, 10)) == 2 * 40 * 48 * per_pixel


SHAPE = (2, 3, 64, 96)


@pytest.fixture(params=[UNet, DeeplySupervisedUNet])
def network(request) -> UNet:
    return request.param(UNetConfig(base_channels=8, depth=3))


def activation_bytes(network: UNet, shape: tuple[int, ...]) -> int:
    """The estimate of a step without the weights and three copies of them."""
    weights = sum(parameter.numel() * 4 for parameter in network.parameters())
    return step_bytes(network, shape, Copies(3)) - 4 * weights


def test_the_estimate_of_a_step_is_what_autograd_keeps(network):
    storages = {}
    kept = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)  # so that no other storage has its address
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        network.train()(torch.rand(SHAPE))
    assert activation_bytes(network.eval(), SHAPE) == sum(storages.values())  # a step trains


def test_the_estimate_of_a_step_grows_with_the_images(network):
    twice = activation_bytes(network, (4, *SHAPE[1:]))
    # 5% for what does not grow with the batch, its statistics: measured 3%
    assert twice == pytest.approx(2 * activation_bytes(network, SHAPE), rel=0.05)


def test_activation_checkpointing_needs_far_less(network):
    whole = activation_bytes(network, SHAPE)
    network.activation_checkpointing = True
    assert 0.5 < activation_bytes(network, SHAPE) / whole < 0.62  # 0.59, and 0.61 with deep supervision


class TwoBlocks(torch.nn.Module):
    """A network of two blocks: one makes eight of eight numbers, the other, behind a sigmoid, two."""

    config = UNetConfig()
    activation_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU())
        self.second = torch.nn.Sequential(torch.nn.Linear(8, 2, bias=False), torch.nn.ReLU())

    @property
    def blocks(self) -> list[torch.nn.Module]:
        return [self.first, self.second]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        numbers = self.second(self.first(images).sigmoid())
        return numbers[:, :1] * numbers  # a view, whose storage is that of all


def test_with_checkpointing_inputs_of_blocks_are_kept_and_one_block():
    weights = 4 * (8 * 8 + 8 * 2)
    inputs = 4 * (3 * 8 + 3 * 8)
    between = 4 * (3 * 8 + 3 * 2)  # the sigmoid, and once what is multiplied with a part of itself
    first, second = 4 * (3 * 8 + 3 * 8), 4 * (3 * 8 + 8 * 2 + 3 * 2)  # input and result, of the second its weights too
    needed = inputs + between + max(first, second) + 3 * weights
    assert step_bytes(TwoBlocks(), (3, 8), Copies(2)) == needed


class SigmoidOfSum(torch.nn.Module):
    """A block of two inputs."""

    def forward(self, numbers: torch.Tensor, skipped: torch.Tensor) -> torch.Tensor:
        return (numbers + skipped).sigmoid()


class OneSkip(torch.nn.Module):
    """A network of two blocks: one makes eight of eight numbers, the other takes them with the images."""

    config = UNetConfig()
    activation_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU())
        self.blocks = [self.first, SigmoidOfSum()]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](images), images)


def test_with_checkpointing_all_inputs_of_a_block_are_kept():
    numbers, weights = 4 * 3 * 8, 4 * 8 * 8
    assert step_bytes(OneSkip(), (3, 8), Copies(2)) == (1 + 2) * numbers + 2 * numbers + 3 * weights


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_largest_tensor_is_that_beside_a_skip_connection(recomputes):
    network = UNet(UNetConfig(base_channels=4, depth=2))
    network.activation_checkpointing = recomputes
    assert largest_tensor(network, (1, 3, 32, 40)) == 32 * 40 * 8


@pytest.mark.parametrize("kind", [UNet, DeeplySupervisedUNet])
def test_logits_may_be_the_largest_tensor(kind):
    network = kind(UNetConfig(num_classes=100, base_channels=2, depth=3))
    assert largest_tensor(network, (1, 3, 16, 16)) == 100 * 16 * 16


def test_an_evaluation_needs_activations_and_four_copies_of_its_logits():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1)
    size = EvaluationSize((10, 20), (40, 50), 2)
    assert size.bytes_for(config) == 2 * 10 * 20 * 4 * 8 * 2 + 4 * (4 * 3 * 40 * 50)


def test_an_evaluation_of_a_volume_needs_logits_of_all_planes():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1, dims=3)
    flat, deep = (EvaluationSize((4, 10, 20), (planes, 40, 50), 1).bytes_for(config) for planes in (1, 6))
    assert deep - flat == 4 * (4 * 3 * 5 * 40 * 50)


def test_an_evaluation_in_strips_has_two_rows_of_tiles_of_a_quarter_of_a_gibibyte():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1)
    small, large = (EvaluationSize((20_000, 20_000), (side, 1000), 1).bytes_for(config) for side in (1000, 50_000))
    assert large - small == 2 * 268_435_456 - 2 * 4 * 3 * 1000 * 1000


def test_an_evaluation_whose_logits_alone_are_too_large_is_in_strips():
    config = UNetConfig(num_classes=3, base_channels=2, depth=1)
    whole = EvaluationSize((10, 20), (30_000, 30_000), 1).bytes_for(config)
    assert whole == 10 * 20 * 4 * 8 * 2 + 2 * 268_435_456


def test_the_largest_evaluation_has_as_many_images_as_there_are():
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    inputs = np.array([(8, 8), (8, 8), (4, 4)])
    largest = largest_evaluation(config, inputs, np.zeros_like(inputs), pixels=10**6)
    assert largest == EvaluationSize((8, 8), (8, 8), 2)


def test_the_largest_evaluation_may_be_that_of_the_largest_target():
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    inputs = np.array([(8, 8), (8, 8), (4, 4)])
    targets = np.array([(8, 8), (0, 0), (400, 400)])
    assert largest_evaluation(config, inputs, targets, 10**6) == EvaluationSize((4, 4), (400, 400), 1)


def test_images_share_an_evaluation_by_their_size_at_the_network():
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    inputs = np.array([(8, 8)] * 3)
    largest = largest_evaluation(config, inputs, 4 * inputs, pixels=2 * 64)
    assert largest == EvaluationSize((8, 8), (32, 32), 2)


SMALL = ((100, 100), (100, 100))
WHOLE = (2400, 2500)  # the network of LARGEST computes images whole up to 6.3 megapixels
TILED = (9000, 9000)


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [
        pytest.param([SMALL] * 2, ((100, 100), (100, 100), 2), id="all"),
        pytest.param([SMALL] * 20, ((100, 100), (100, 100), 13), id="as many as share a forward pass"),
        pytest.param([SMALL, (TILED, TILED), (WHOLE, WHOLE)], (WHOLE, WHOLE, 1), id="whole, not in tiles"),
        pytest.param(
            [((50, 50), (4000, 4000)), ((300, 300), (300, 300))], ((50, 50), (4000, 4000), 1), id="large target"
        ),
        pytest.param([((50, 60), (0, 0))], ((50, 60), (50, 60), 1), id="a stream that was not looked at"),
        pytest.param([((50, 60), (0, 0)), ((20, 20), (20, 20))], ((50, 60), (50, 60), 1), id="one not looked at"),
    ],
)
def test_the_largest_evaluation_is_that_of_the_most_memory_not_of_the_most_pixels(sizes, largest):
    inputs, targets = zip(*sizes, strict=True)
    config = UNetConfig(base_channels=4, depth=2)
    assert largest_evaluation(config, np.array(inputs), np.array(targets), pixels=2**17) == largest


@pytest.mark.parametrize(
    ("reader", "target"),
    [(ClassReader(ClassMap(("a", "b"), (1, 2), None)), (40, 56)), (PointReader(Landmarks(("a",)), (0,)), (20, 28))],
    ids=["classes", "landmarks"],
)
def test_landmarks_alone_are_evaluated_at_the_size_of_the_network(reader, target):
    info = SimpleNamespace(reader=reader, val=SimpleNamespace(sizes=np.array([(40, 56)])))
    shapes = SimpleNamespace(val=np.array([(20, 28)]))
    config = UNetConfig(in_channels=1, base_channels=2, depth=1)
    assert largest_validation(info, shapes, config, torch.device("cpu")) == EvaluationSize((20, 28), target, 1)


def test_volumes_are_evaluated_one_after_another():
    volumes = np.array([(8, 8, 8)] * 2)
    assert largest_evaluation(UNetConfig(dims=3, base_channels=2), volumes, volumes, pixels=2**17).images == 1
