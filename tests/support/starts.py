"""Where training starts, from flags given by name."""

from dataclasses import fields
from typing import Any

from inference.models import load_model
from train_utils.settings.starting_point import NetworkSettings, StartingPoint, starting_point
from unet.axes import NetworkAxes
from unet.config import UNetConfig


def start_from(source: str | None, flags: dict[str, Any], checkpoint: UNetConfig | None = None) -> StartingPoint:
    """`starting_point` from `source`; `flags` may hold `dims`, `kernels` and `strides` of the data too."""
    field_names = {field.name for field in fields(NetworkSettings)}
    settings = NetworkSettings(init_from=source, **{name: flags[name] for name in flags.keys() & field_names})
    axes = None
    if "dims" in flags:
        axes = NetworkAxes(**{name: flags[name] for name in NetworkAxes._fields if name in flags})
    model = None if source is None or checkpoint is not None else load_model(source)
    return starting_point(settings, axes, model=model, checkpoint=checkpoint)
