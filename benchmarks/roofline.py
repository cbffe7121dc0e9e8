"""What a training step of the default U-Net can take at least: its convolutions, and the bytes that the rest moves.

python benchmarks/roofline.py --batch-size 4 --image-size 128 192 --precision bf16

Prints one line of JSON: seconds of a step for all convolutions, forward and backward, each alone and in the better of
both layouts, and all of them in channels-last; seconds of the rest by bytes moved and the memory bandwidth that a copy
reaches, with norm and ReLU as two operators (`eager`) and as one (`fused`); FLOPs, and seconds of them at the dense
peak where that is known. Left out are the loss and the network's input: a hundredth of the bytes.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.flops import peak_flops, training_flops
from runtime.memory import keep_freed_memory
from unet import UNet, UNetConfig

LAYOUTS = (torch.contiguous_format, torch.channels_last)
PRECISIONS = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# How often a step reads or writes an activation, forward and backward. A norm needs its statistics first: it reads its
# input twice and writes once; backward it reads input and gradient twice and writes once. A ReLU in place reads and
# writes; backward it reads output and gradient and writes. As one operator, the ReLU costs nothing beside the norm.
NORM, RELU = 8, 5
POOL = 2.5  # reads all, writes a quarter; backward the other way round
SKIP = 7  # concatenated with as much: reads 2, writes 2; backward its two gradients are added: reads 2, writes 1
INDEX = 8  # bytes, one for each value after the pooling, written and read
# Of a weight: AdamW reads it, its gradient and two moments and writes three of them; clipping reads twice, writes once.
# Half precision: a copy of the weight, and its gradient back.
WEIGHT_BYTES, CAST_BYTES = 10 * 4, 2 * (4 + 2)


def seconds_of(work: Callable[[], object], on_cuda: bool, repeats: int) -> float:
    """Median time of one call; a GPU gets several calls at once, so that it never waits for the host."""
    calls, times = 10 if on_cuda else 1, []
    for _ in range(repeats + 1):
        if on_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        if on_cuda:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times[1:])


def convolution_inputs(network: nn.Module, images: Tensor) -> list[tuple[nn.Module, torch.Size]]:
    """The convolutions in the order of the forward pass, with the shapes (B, C, H, W) of their inputs."""
    results: list[tuple[nn.Module, torch.Size]] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, _: results.append((module, inputs[0].shape)))
        for module in network.modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
    ]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    return results


def convolution_seconds(layer: nn.Module, inputs: Tensor, layout: torch.memory_format, repeats: int) -> float:
    """Forward and backward pass of one convolution alone; no gradient of inputs that require none."""
    layer = layer.to(dtype=inputs.dtype, memory_format=layout)
    inputs = inputs.detach().contiguous(memory_format=layout).requires_grad_(inputs.requires_grad)
    gradient_inputs = [*layer.parameters(), *([inputs] if inputs.requires_grad else [])]
    gradient = torch.rand_like(layer(inputs))
    return seconds_of(lambda: torch.autograd.grad(layer(inputs), gradient_inputs, gradient), inputs.is_cuda, repeats)


def layout_seconds(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, repeats: int) -> list[list[float]]:
    """Of each convolution of the network on images of `shape` (B, C, H, W): its time in each of LAYOUTS."""
    device, times = next(network.parameters()).device, []
    for layer, (_, *size) in convolution_inputs(network, torch.zeros(1, *shape[1:], device=device)):
        inputs = torch.rand(shape[0], *size, dtype=dtype, device=device, requires_grad=len(times) > 0)
        times.append([convolution_seconds(layer, inputs, layout, repeats) for layout in LAYOUTS])
    return times


def bytes_per_second(device: torch.device, repeats: int) -> float:
    """Memory bandwidth: what a copy of much more than the caches hold reads and writes."""
    source = torch.ones(2**28 if device.type == "cuda" else 2**26, device=device)
    target = torch.zeros_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device.type == "cuda", repeats)
    return 2 * source.numel() * source.element_size() / seconds


def other_bytes(config: UNetConfig, shape: tuple[int, int, int], weights: int, itemsize: int, *, fused: bool) -> float:
    """Bytes that a step moves beside its convolutions, of images (B, H, W) with values of `itemsize` bytes."""
    batch, height, width = shape
    total = weights * (WEIGHT_BYTES + (CAST_BYTES if itemsize < 4 else 0))
    for level in range(config.depth + 1):
        values = batch * (height >> level) * (width >> level) * config.base_channels * 2**level
        convolved = 4 if level < config.depth else 2  # two on the way down, two on the way up
        total += values * itemsize * convolved * (NORM if fused else NORM + RELU)
        if level < config.depth:
            total += values * itemsize * (POOL + SKIP) + 2 * INDEX * values / 4
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--image-size", type=int, nargs=2, default=(128, 192), metavar=("H", "W"))
    parser.add_argument("--precision", choices=PRECISIONS, default="no")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), PRECISIONS[args.precision]
    keep_freed_memory(device)
    torch.backends.cudnn.benchmark = True  # the limit, not what some heuristic picks
    network = UNet(UNetConfig()).to(device)
    channels, (height, width) = network.config.in_channels, args.image_size
    weights = sum(parameter.numel() for parameter in network.parameters())
    flops = training_flops(network, channels) * args.batch_size * height * width
    times = layout_seconds(network, (args.batch_size, channels, height, width), dtype, args.repeats)
    bandwidth = bytes_per_second(device, args.repeats)
    moved = {
        name: other_bytes(network.config, (args.batch_size, height, width), weights, dtype.itemsize, fused=fused)
        for name, fused in (("eager", False), ("fused", True))
    }
    peak = peak_flops(torch.cuda.get_device_name(), half=dtype != torch.float32) if device.type == "cuda" else None
    results = {
        "convolutions": sum(map(min, times)),
        "channels_last": sum(layout_times[1] for layout_times in times),
        **{name: count / bandwidth for name, count in moved.items()},
        "gigabytes_per_second": bandwidth / 1e9,
        "flops": flops,
    }
    print(json.dumps(results | ({"at_peak": flops / peak / 1e12} if peak else {})))


if __name__ == "__main__":
    main()
