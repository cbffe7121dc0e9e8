"""A training step of our 3-D network against MONAI's and nnU-Net's network classes: same levels, widths and patch.

pip install monai && pip install dynamic-network-architectures
python benchmarks/volume_step.py --patch 40 56 40 --batch 2

Two convolutions a level, one norm, leaky or plain ReLU as each has it, strided convolutions or pooling as each has
it, transposed convolutions up. A step is the forward pass, cross-entropy and the backward pass in float32 on one core.
The networks take turns, and what is printed is the median over the rounds of the ratio to ours.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from unet import UNet, UNetConfig
from unet.blocks import channels_last

CLASSES = 3


def networks(base: int, depth: int, norm: str) -> dict[str, nn.Module]:
    """Ours first."""
    from dynamic_network_architectures.architectures.unet import PlainConvUNet
    from monai.networks.nets import BasicUNet, DynUNet

    widths = [base * 2**level for level in range(depth + 1)]
    strides = [1] + [2] * depth
    config = UNetConfig(1, CLASSES, base, depth, norm=norm, dims=3)
    networks_by_name = {"ours": UNet(config)}
    layer = {"batch": nn.BatchNorm3d, "instance": nn.InstanceNorm3d}[norm]
    networks_by_name["nnU-Net's PlainConvUNet"] = PlainConvUNet(
        1, depth + 1, widths, nn.Conv3d, 3, strides, 2, CLASSES, 2, False, layer,
        {"affine": True}, None, None, nn.LeakyReLU, {"inplace": True},
    )  # fmt: skip
    networks_by_name["MONAI's DynUNet"] = DynUNet(
        3, 1, CLASSES, [3] * (depth + 1), strides, strides[1:], filters=widths, norm_name=(norm, {"affine": True})
    )
    if depth == 4:  # it has no other
        networks_by_name["MONAI's BasicUNet"] = BasicUNet(
            3, 1, CLASSES, features=(*widths, base), norm=(norm, {"affine": True})
        )
    return networks_by_name


def seconds(network: nn.Module, images: Tensor, masks: Tensor) -> float:
    """Processor time of one step."""
    start = time.process_time()
    nn.functional.cross_entropy(network(images), masks).backward()
    return time.process_time() - start


def main() -> None:
    """Prints a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patch", type=int, nargs=3, default=[48, 48, 48])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--base-channels", type=int, default=16)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--norm", choices=("batch", "instance"), default="batch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    all_networks = networks(args.base_channels, args.depth, args.norm)
    images = torch.randn(args.batch, 1, *args.patch)
    masks = torch.randint(CLASSES, (args.batch, *args.patch))
    ours = channels_last(images)
    all_networks["ours"] = all_networks["ours"].to(memory_format=torch.channels_last_3d)
    inputs = {name: ours if name == "ours" else images for name in all_networks}
    times: dict[str, list[float]] = {name: [] for name in all_networks}
    for number in range(args.rounds + 1):
        for name, network in all_networks.items():
            step_seconds = seconds(network.train(), inputs[name], masks)
            if number:  # the first one warms up
                times[name].append(step_seconds)
    for name, network in all_networks.items():
        ratio = statistics.median(mine / other for mine, other in zip(times[name], times["ours"], strict=True))
        millions = sum(p.numel() for p in network.parameters()) / 1e6
        print(f"{name}: {millions:.2f} M parameters, {statistics.median(times[name]):.2f} s, {ratio:.2f} times ours")


if __name__ == "__main__":
    main()
