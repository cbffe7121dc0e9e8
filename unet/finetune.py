"""Training that starts from another model: its architecture, its normalisation, and the weights that fit."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.console import say
from runtime.errors import ModelError
from unet.config import Preprocess, UNetConfig
from unet.loading import load_model
from unet.model import UNet

ARCHITECTURE = ("base_channels", "depth", "norm", "upsample", "dropout")


class StartingPoint(NamedTuple):
    """What training starts from: the architecture to train, and the model to take weights from, if any."""

    architecture: UNetConfig
    source: str | None = None
    model: UNet | None = None

    def source_preprocess(self, channels: int) -> Preprocess | None:
        """How the model's images were prepared, for its weights expect that; None where it takes other channels."""
        if self.model is None or self.model.config.in_channels != channels:
            return None
        return self.model.config.preprocess

    def build(self, in_channels: int, num_classes: int, preprocess: Preprocess) -> UNet:
        """The network to train, in channels-last layout, with the weights that fit; says so."""
        config = replace(self.architecture, in_channels=in_channels, num_classes=num_classes, preprocess=preprocess)
        network = UNet(config)
        if self.model is not None:
            say(f"start: {copy_weights(self.model, network)} from {self.source}")
        network.to(memory_format=torch.channels_last)
        say(f"model: U-Net, {sum(p.numel() for p in network.parameters()):,} parameters")
        return network


def starting_point(source: str | None, asked: dict[str, Any]) -> StartingPoint:
    """Where training starts: fresh without `source`.

    Args:
        asked: a value, or None, for each of ARCHITECTURE; other keys do not matter. What is None is the source's, else
            UNetConfig's default.

    Raises ModelError where asked and source differ and the weights would not fit. Dropout and how a bilinear
    upsampling treats corners have no weights, and may differ.
    """
    model = None if source is None else load_model(source)
    config = UNetConfig() if model is None else model.config
    values: dict[str, Any] = {name: asked.get(name) for name in ARCHITECTURE}
    for name, value in values.items():
        has = getattr(config, name)
        weightless = name == "dropout" or (name == "upsample" and "transpose" not in (value, has))
        if model is not None and value not in (None, has) and not weightless:
            flag = "--" + name.replace("_", "-")
            raise ModelError(f"{flag} {value}: {source} has {has}; leave the flag out, or start from another model")
    values = {name: getattr(config, name) if value is None else value for name, value in values.items()}
    return StartingPoint(UNetConfig(**values), source, model)


def copy_weights(source: UNet, model: UNet) -> str:
    """Copy what fits in shape, and say what does not (classes, input channels) and so keeps its fresh values.

    Both have one architecture, as `starting_point` sees to.
    """
    weights, target = source.state_dict(), model.state_dict()
    fits = {name: weight for name, weight in weights.items() if weight.shape == target[name].shape}
    model.load_state_dict(target | fits)
    fresh = [
        f"{name} ({_shape(target[name])} here, {_shape(weight)} there)"
        for name, weight in weights.items()
        if name not in fits
    ]
    return f"{len(fits)} of {len(weights)} weights" + (f", fresh are {', '.join(fresh)}," if fresh else "")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
