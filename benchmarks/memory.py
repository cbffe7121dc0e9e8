"""Peak memory and time of a training step with and without --activation-checkpointing.

python benchmarks/memory.py --base-channels 32 --batch-size 4 --image-size 256

Each case is a process of its own. On CUDA the peak is the allocator's, on a CPU what the process grew by (its peak
resident memory less that before the step). AdamW, so weights, gradients and moments are in it.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train_utils.preflight import step_bytes
from unet import UNet, UNetConfig
from unet.losses import SegmentationLoss

STEPS = 3


def one_case(base_channels: int, batch_size: int, image_size: int, checkpointing: bool) -> str:
    """A row of the table: the estimate of the preflight and the measured peak in GB, seconds of a step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = UNet(UNetConfig(base_channels=base_channels)).to(device, memory_format=torch.channels_last).train()
    network.activation_checkpointing = checkpointing
    shape = (batch_size, 3, image_size, image_size)
    estimate = step_bytes(network, shape, copies=3)
    optimizer, criterion = torch.optim.AdamW(network.parameters()), SegmentationLoss(2)
    images = torch.rand(shape, device=device).contiguous(memory_format=torch.channels_last)
    masks = torch.zeros((batch_size, image_size, image_size), dtype=torch.int64, device=device)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - weights
    for step in range(STEPS + 1):
        if step == 1:  # the first is warm-up
            begin = time.perf_counter()
        criterion(network(images), masks, criterion.counts(masks)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / STEPS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return f"| {'on' if checkpointing else 'off'} | {estimate / 1e9:.2f} GB | {peak / 1e9:.2f} GB | {seconds:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-channels", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--case", choices=("off", "on"), help="one case, in this process")
    args = parser.parse_args()
    if args.case:
        print(one_case(args.base_channels, args.batch_size, args.image_size, args.case == "on"))
        return
    print("| --activation-checkpointing | estimate | peak memory | step |\n|---|---|---|---|", flush=True)
    for case in ("off", "on"):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--case", case], check=True)


if __name__ == "__main__":
    main()
