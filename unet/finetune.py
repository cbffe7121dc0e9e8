"""Training that starts from another model: its architecture, its normalisation, and the weights that fit."""

from typing import Any

from torch import Tensor

from runtime.errors import ModelError
from unet.config import Preprocess, UNetConfig
from unet.loading import load_model
from unet.model import UNet

ARCHITECTURE = ("base_channels", "depth", "norm", "upsample", "dropout")


def starting_point(source: str | None, asked: dict[str, Any]) -> tuple[UNet | None, UNetConfig]:
    """The model that training starts from, None without `source`, and the architecture to train.

    Args:
        asked: a value, or None, for each of ARCHITECTURE. What is None is the source's, else UNetConfig's default.

    Raises ModelError where asked and source differ and the weights would not fit. Dropout and how a bilinear
    upsampling treats corners have no weights, and may differ.
    """
    model = None if source is None else load_model(source)
    config = UNetConfig() if model is None else model.config
    for name, value in asked.items():
        has = getattr(config, name)
        weightless = name == "dropout" or (name == "upsample" and "transpose" not in (value, has))
        if model is not None and value not in (None, has) and not weightless:
            flag = "--" + name.replace("_", "-")
            raise ModelError(f"{flag} {value}: {source} has {has}; leave the flag out, or start from another model")
    return model, UNetConfig(**{name: getattr(config, name) if value is None else value for name, value in asked.items()})


def normalization_of(source: UNet | None, channels: int) -> Preprocess | None:
    """How the source's images are normalised, for its weights expect that; None where it takes other channels."""
    return None if source is None or source.config.in_channels != channels else source.config.preprocess


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
