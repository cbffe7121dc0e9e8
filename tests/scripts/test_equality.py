"""How a step is split changes no loss: AdamW in float64, with the processes played by micro-batches in turn."""

from collections.abc import Iterator

import pytest
import torch
from support.class_loss import ClassLoss

from data_utils.loading.augmentation import augment, pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import BatchSplit, Slot, TrainingSampler
from tasks.classes.target import ClassTarget
from train_utils.optim import build_optimizer, learning_rate
from unet import UNet, UNetConfig

IMAGES = 14
CLASSES = 3
HEIGHT, WIDTH = 24, 32
STEPS = 6
BATCH = 8
SEED = 0


def micro_batches_of_a_step(sampler: Iterator[list[Slot]], processes: int) -> Iterator[list[Slot]]:
    """The micro-batches of all processes in a step; the last one of each ends the step."""
    processes_done = 0
    while processes_done < processes:
        slots = next(sampler)
        processes_done += slots[0].ends_step
        yield slots


def losses_of_a_run(processes: int, micro_batch_size: int, accumulation: int, name: str = "adamw") -> list[float]:
    """Steps as train.py makes them; what DDP averages is multiplied by the processes, so gradients add up."""
    torch.manual_seed(SEED)
    images = torch.randint(0, 256, (IMAGES, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    masks = torch.randint(0, CLASSES, (IMAGES, HEIGHT, WIDTH), dtype=torch.uint8)
    masks[:, :5] = 255
    fill = std = torch.full((3,), 50.0)
    config = UNetConfig(3, CLASSES, base_channels=4, depth=3, norm="group", block="residual")
    network = UNet(config, deep_supervision=True).double().train()
    weights = torch.tensor([0.5, 1.0, 3.0])
    criterion = ClassLoss(CLASSES, "ce+logdice", class_weights=weights, strides=network.head_strides)
    optimizer = build_optimizer(network, name, 1e-3, 1e-2)
    shapes = torch.tensor([[HEIGHT, WIDTH]]).expand(IMAGES, 2).numpy()
    batch_split = BatchSplit(BATCH, processes, micro_batch_size, accumulation)
    sampler = iter(TrainingSampler(shapes, batch_split, SEED, range(STEPS)))
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, 1e-3, 2, "cosine")
        micro_batches = []
        for slots in micro_batches_of_a_step(sampler, processes):
            indices = [slot.index for slot in slots]
            truth = masks[indices].clone()
            truth[[slot.is_filler for slot in slots]] = 255
            settings = {"strength": "strong", "seed": SEED, "size": (HEIGHT, WIDTH), "channels": 3}
            augmentations = [sample_augmentation((slot.epoch, slot.index), **settings) for slot in slots]
            arguments = images[indices], ClassTarget(truth), augmentations, pack_augmentations(augmentations, 3)
            inputs, targets = augment(*arguments, fill=fill, std=std)
            micro_batches.append((inputs.double(), targets.mask))
        counts = sum(criterion.step_counts(truth) for _, truth in micro_batches)
        shares = []
        for inputs, truth in micro_batches:
            shares.append(criterion(network(inputs), truth, counts))
            shares[-1].backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(shares).item())
    return losses


@pytest.fixture(scope="module")
def whole_adamw() -> list[float]:
    """The losses of AdamW in one micro-batch a step."""
    return losses_of_a_run(1, 8, 1)


@pytest.fixture(scope="module")
def whole_muon() -> list[float]:
    """The losses of Muon in one micro-batch a step."""
    return losses_of_a_run(1, 8, 1, "muon")


def test_losses_differ_from_step_to_step(whole_adamw, whole_muon):
    assert len(set(whole_adamw)) == STEPS
    assert len(set(whole_muon)) == STEPS


@pytest.mark.parametrize(("processes", "micro_batch_size", "accumulation"), [(3, 3, 1), (2, 1, 4), (1, 4, 3)])
def test_adamw_in_float64_gives_the_same_losses_for_any_split(whole_adamw, processes, micro_batch_size, accumulation):
    # promised to 1e-9; measured 7e-16, and AdamW may amplify it a thousandfold
    assert losses_of_a_run(processes, micro_batch_size, accumulation) == pytest.approx(whole_adamw, abs=1e-12)


def test_muon_in_float64_gives_the_same_losses_for_another_split(whole_muon):
    assert losses_of_a_run(3, 3, 1, "muon") == pytest.approx(whole_muon, abs=1e-9)
