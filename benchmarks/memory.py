"""Peak memory and time of a training step with and without --activation-checkpointing.

python benchmarks/memory.py --base-channels 32 --micro-batch-size 4 --accumulation 1 --image-size 256

Each case is a process of its own. On CUDA the peak is the allocator's, on a CPU what the process grew by (its peak
resident memory less that before the step). AdamW, so weights, gradients and moments are in it, and the images of two
steps: as in training, the next ones are augmented before a step is over.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.loading.augment import augment
from data_utils.loading.augmentation import pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import BatchSplit
from runtime.memory import keep_freed_memory
from tasks.classes import Classes, ClassTarget
from tasks.step_loss import StepLoss
from train_utils.memory.estimate import Copies, input_bytes, step_bytes
from unet import UNet, UNetConfig

STEPS = 3


def fetch(batch_split: BatchSplit, shape: tuple[int, ...], device: str) -> list[tuple[Tensor, ClassTarget]]:
    """The augmented micro-batches of a step: images (B, C, H, W) and targets (B, H, W)."""
    size, (channels, height, width) = batch_split.micro_batch_size, shape
    raw = [
        (
            torch.randint(256, (size, *shape), dtype=torch.uint8).to(device),
            ClassTarget(torch.zeros((size, height, width), dtype=torch.uint8).to(device)),
        )
        for _ in range(batch_split.accumulation)
    ]
    fill, std = torch.full((2, channels), 100.0, device=device)
    how = {"strength": "basic", "seed": 0, "size": (height, width), "channels": channels}
    augmentations = [sample_augmentation((0, index), **how) for index in range(size)]
    numbers = pack_augmentations(augmentations, channels).to(device)
    return [augment(*batch, augmentations, numbers, fill=fill, std=std) for batch in raw]


def train(network: UNet, batch_split: BatchSplit, shape: tuple[int, ...], steps: int, device: str) -> float:
    """Train for some steps after a first one; returns the seconds of each."""
    optimizer = torch.optim.AdamW(network.parameters())
    criterion = StepLoss(Classes(("background", "foreground"), "ce+dice").to(torch.device(device)))
    fetched = fetch(batch_split, shape, device)
    for step in range(steps + 1):
        if step == 1:  # the first is warm-up
            begin = time.perf_counter()
        micro_batches, counts = fetched, sum(criterion.counts(targets) for _, targets in fetched)
        fetched = fetch(batch_split, shape, device)
        while micro_batches:
            images, targets = micro_batches.pop(0)
            criterion(network(images.contiguous(memory_format=torch.channels_last)), targets, counts).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps


def one_case(base_channels: int, batch_split: BatchSplit, image_size: int, checkpointing: bool) -> str:
    """A row of the table: the estimate of the preflight and the measured peak in MB, seconds of a step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    keep_freed_memory(torch.device(device))  # as training does
    small = UNet(UNetConfig(base_channels=4)).to(device, memory_format=torch.channels_last)
    train(small, BatchSplit(1, 1, 1, 1), (3, 32, 32), 1, device)  # libraries load what they need
    network = UNet(UNetConfig(base_channels=base_channels)).to(device, memory_format=torch.channels_last).train()
    network.activation_checkpointing = checkpointing
    shape = (3, image_size, image_size)
    estimate = step_bytes(network, (batch_split.micro_batch_size, *shape), Copies(trained=3)) + input_bytes(
        shape, batch_split
    )
    weights = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - weights
    seconds = train(network, batch_split, shape, STEPS, device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    name = "on" if checkpointing else "off"
    return f"| {name} | {batch_split.accumulation} | {estimate / 1e6:.0f} MB | {peak / 1e6:.0f} MB | {seconds:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-channels", type=int, default=32)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--case", choices=("off", "on"), help="one case, in this process")
    args = parser.parse_args()
    if args.case:
        batch = args.micro_batch_size * args.accumulation
        batch_split = BatchSplit(batch, 1, args.micro_batch_size, args.accumulation)
        print(one_case(args.base_channels, batch_split, args.image_size, args.case == "on"))
        return
    print(
        "| --activation-checkpointing | accumulation | estimate | peak memory | step |\n|---|---|---|---|---|",
        flush=True,
    )
    for case in ("off", "on"):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--case", case], check=True)


if __name__ == "__main__":
    main()
