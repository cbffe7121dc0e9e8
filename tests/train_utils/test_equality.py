"""How a step is split changes no loss: AdamW in float64, with the processes played by micro-batches in turn."""

from collections.abc import Iterator

import pytest
import torch
from class_loss import ClassLoss

from data_utils.loading.augment import augment
from data_utils.loading.augmentation import pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import BatchSplit, Slot, TrainingSampler
from tasks.classes import ClassTarget
from train_utils.optim import build_optimizer
from train_utils.schedule import learning_rate
from unet import UNetConfig
from unet.model import DeeplySupervisedUNet

IMAGES, CLASSES, HEIGHT, WIDTH, STEPS, BATCH = 14, 3, 24, 32, 6, 8


def micro_batches_of_a_step(sampler: Iterator[list[Slot]], processes: int) -> Iterator[list[Slot]]:
    """Those of all processes; the last one of each says that it ends the step."""
    processes_done = 0
    while processes_done < processes:
        slots = next(sampler)
        processes_done += slots[0].ends_step
        yield slots


def losses_of_a_run(
    processes: int, micro_batch_size: int, accumulation: int, seed: int, name: str = "adamw"
) -> list[float]:
    """Steps as train.py makes them; what DDP averages is multiplied by the processes, so gradients add up."""
    torch.manual_seed(seed)
    images = torch.randint(0, 256, (IMAGES, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    masks = torch.randint(0, CLASSES, (IMAGES, HEIGHT, WIDTH), dtype=torch.uint8)
    masks[:, :5] = 255
    fill = std = torch.full((3,), 50.0)
    config = UNetConfig(3, CLASSES, base_channels=4, depth=3, norm="group", block="residual")
    network = DeeplySupervisedUNet(config).double().train()
    weights = torch.tensor([0.5, 1.0, 3.0])
    criterion = ClassLoss(CLASSES, "ce+logdice", class_weights=weights, strides=network.head_strides)
    optimizer = build_optimizer(network, name, 1e-3, 1e-2)
    shapes = torch.tensor([[HEIGHT, WIDTH]]).expand(IMAGES, 2).numpy()
    batch_split = BatchSplit(BATCH, processes, micro_batch_size, accumulation)
    sampler = iter(TrainingSampler(shapes, batch_split, seed, range(STEPS)))
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, 1e-3, 2, "cosine")
        micro_batches = []
        for slots in micro_batches_of_a_step(sampler, processes):
            indices = [slot.index for slot in slots]
            truth = masks[indices].clone()
            truth[[slot.filler for slot in slots]] = 255
            settings = {"strength": "strong", "seed": seed, "size": (HEIGHT, WIDTH), "channels": 3}
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


def test_adamw_in_float64_gives_the_same_losses_for_any_split():
    seed = 0
    whole = losses_of_a_run(1, 8, 1, seed)
    assert len(set(whole)) == STEPS
    for processes, micro_batch_size, accumulation in [(2, 4, 1), (3, 3, 1), (2, 1, 4), (1, 4, 3)]:
        # promised to 1e-9; measured 7e-16, and AdamW may amplify it a thousandfold
        assert losses_of_a_run(processes, micro_batch_size, accumulation, seed) == pytest.approx(whole, abs=1e-12)


def test_muon_in_float64_gives_the_same_losses_for_any_split():
    seed = 0
    whole = losses_of_a_run(1, 8, 1, seed, "muon")
    assert len(set(whole)) == STEPS
    for processes, micro_batch_size, accumulation in [(3, 3, 1), (1, 4, 2)]:
        assert losses_of_a_run(processes, micro_batch_size, accumulation, seed, "muon") == pytest.approx(
            whole, abs=1e-9
        )
