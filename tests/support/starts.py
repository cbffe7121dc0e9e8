"""Where training starts, from flags given by name."""

from dataclasses import replace
from typing import Any

from inference.models import load_model
from support.in_process import parsed
from train_utils.settings.starting_point import StartingPoint, starting_point
from train_utils.settings.train_settings import TrainSettings
from unet.config import NetworkAxes, UNetConfig


def settings(**flags: Any) -> TrainSettings:
    """The settings of a run with these flags, without heads of coarser levels."""
    return replace(parsed("--dataset", "d", "--no-deep-supervision"), **flags)


def start_from(source: str | None, flags: dict[str, Any], checkpoint: UNetConfig | None = None) -> StartingPoint:
    """`starting_point` from `source`; `flags` may hold `dims`, `kernels` and `strides` of the data too."""
    axes = None
    if "dims" in flags:
        axes = NetworkAxes(**{name: flags[name] for name in NetworkAxes._fields if name in flags})
    model = None if source is None or checkpoint is not None else load_model(source)
    network_flags = {name: value for name, value in flags.items() if name not in NetworkAxes._fields}
    trained = checkpoint if model is None else model.config
    return starting_point(settings(init_from=source, **network_flags), axes, model=model, trained=trained)
