"""What an encoder costs: parameters, multiply-adds and images a second of networks with six encoders, on this CPU.

python benchmarks/encoders.py

It needs no weights. What an encoder is worth, benchmarks/speedrun.py measures.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import transformers

from train_utils.settings.encoder import load_encoder
from train_utils.settings.starting_point import BASE_CHANNELS
from unet import UNet, UNetConfig

TABLE = {
    "microsoft/resnet-18": transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "microsoft/resnet-50": transformers.ResNetConfig(),
    "facebook/convnextv2-tiny-22k-224": transformers.ConvNextV2Config(
        hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3]
    ),
    "microsoft/swin-tiny-patch4-window7-224": transformers.SwinConfig(),
    "microsoft/focalnet-tiny": transformers.FocalNetConfig(depths=[2, 2, 6, 2], hidden_sizes=[192, 384, 768, 768]),
    "OpenGVLab/pvt_v2_b0": transformers.PvtV2Config(),
}


def table(repeats: int) -> None:
    """A row of docs/encoders.md for each encoder, with random weights: neither size nor speed depends on them."""
    for name, config in TABLE.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = json.loads(config.to_json_string(use_diff=False)) | {"model_type": config.model_type}
            (Path(folder) / "config.json").write_text(json.dumps(settings))
            encoder = load_encoder(folder, pretrained=False)
        network = UNet(UNetConfig(base_channels=BASE_CHANNELS, depth=encoder.depth, encoder=encoder.config))
        network.eval().to(memory_format=torch.channels_last)
        parameters = [sum(p.numel() for p in part.parameters()) / 1e6 for part in (network, network.encoder)]
        image = torch.zeros(1, 3, 512, 512).to(memory_format=torch.channels_last)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            network(image)
        speeds = " | ".join(f"{rate:.2f}" for rate in images_a_second(network, image, repeats))
        row = f"| `{name}` | {parameters[0]:.1f} ({parameters[1]:.1f}) | {counter.get_total_flops() / 1e9:.0f}"
        print(f"{row} | {speeds} |", flush=True)


def images_a_second(network: UNet, image: Tensor, repeats: int) -> list[float]:
    """Of prediction, of a training step's forward and backward pass, and of one with a frozen encoder."""

    def predict() -> None:
        with torch.inference_mode():
            network.eval()(image)

    def train_once() -> None:
        network.train()(image).sum().backward()

    rates = []
    for work, frozen in ((predict, False), (train_once, False), (train_once, True)):
        if frozen:
            network.encoder.freeze()
        work()  # the first time takes longer
        rates.append(1 / min(seconds_of(work) for _ in range(repeats)))  # other programs only take time away
    return rates


def seconds_of(work: Callable[[], None]) -> float:
    """Of one call."""
    start = time.process_time()  # of which other programs take none
    work()
    return time.process_time() - start


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    table(parser.parse_args().repeats)


if __name__ == "__main__":
    main()
