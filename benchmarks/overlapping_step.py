"""A training step of classes that may overlap against one of exclusive classes: the same network, images and size.

python benchmarks/overlapping_step.py --size 256 256 --batch 2

A step is augmentation, the counts of the loss, the forward pass, the loss with deep supervision and the backward pass,
in float32 on one core. The two take turns; what is printed is the median over the rounds of the ratio of their
processor times.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.loading.augment import augment
from data_utils.loading.augmentation import pack_augmentations, sample_augmentation
from tasks.classes import Classes, ClassTarget
from tasks.overlapping import Overlapping, OverlapTarget
from tasks.step_loss import StepLoss
from tasks.target import Target
from tasks.task import Task
from unet.config import UNetConfig
from unet.model import DeeplySupervisedUNet


def targets_of(task: Task, shape: tuple[int, ...], classes: int) -> Target:
    """Random targets of (B, H, W), in the types that a loader gives."""
    rng = np.random.default_rng(0)
    if isinstance(task, Classes):
        return ClassTarget(torch.from_numpy(rng.integers(0, classes, shape, dtype=np.uint8)))
    all_bits = 2**classes - 1
    truth = torch.from_numpy(rng.integers(0, all_bits + 1, shape, dtype=np.int32))
    return OverlapTarget(truth, torch.full_like(truth, all_bits))


def seconds(network: DeeplySupervisedUNet, loss: StepLoss, images: torch.Tensor, targets: Target, step: int) -> float:
    """Processor time of one step."""
    size = tuple(images.shape[2:])
    augmentations = [
        sample_augmentation((step, i), strength="basic", seed=0, size=size, channels=3) for i in range(len(images))
    ]
    numbers = pack_augmentations(augmentations, 3)
    zero = torch.zeros(3)
    start = time.process_time()
    inputs, moved = augment(images, targets, augmentations, numbers, fill=zero, std=zero + 1)
    counts = loss.counts(moved)
    loss(network(inputs), moved, counts).backward()
    return time.process_time() - start


def main() -> None:
    """Prints the times of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=[256, 256])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--base-channels", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = tuple(map(str, range(args.classes)))
    tasks: dict[str, Task] = {"exclusive": Classes(names), "overlapping": Overlapping(names)}
    images = torch.randint(0, 256, (args.batch, 3, *args.size), dtype=torch.uint8)
    networks = {}
    losses = {}
    targets = {}
    for name, task in tasks.items():
        config = UNetConfig(3, args.classes, args.base_channels, block="residual", task=task.to_config())
        network = DeeplySupervisedUNet(config)
        networks[name] = network.to(memory_format=network.memory_format).train()
        losses[name] = StepLoss(task, network.head_strides)
        targets[name] = targets_of(task, (args.batch, *args.size), args.classes)
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for step in range(args.rounds + 1):
        for name, network in networks.items():
            step_seconds = seconds(network, losses[name], images, targets[name], step)
            if step:  # the first one warms up
                times[name].append(step_seconds)
    ratios = [ours / theirs for ours, theirs in zip(times["overlapping"], times["exclusive"], strict=True)]
    for name, task_times in times.items():
        print(f"{name}: {statistics.median(task_times):.3f} s a step")
    print(f"ratio: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds)")


if __name__ == "__main__":
    main()
