"""Where training starts, from flags given by name."""

from dataclasses import replace
from typing import Any, NamedTuple

from inference.models import load_model
from support.in_process import parsed
from tasks.task import Task
from train_utils.settings.encoder import PretrainedEncoder
from train_utils.settings.starting_point import architecture, new_network
from train_utils.settings.train_settings import TrainSettings
from unet.config import NetworkAxes, Preprocess, UNetConfig
from unet.model import UNet


class Start(NamedTuple):
    """What `new_network` makes a network from."""

    settings: TrainSettings
    config: UNetConfig
    model: UNet | None
    encoder: PretrainedEncoder | None

    def network(self, channels: int, task: Task, preprocess: Preprocess) -> UNet:
        return new_network(
            self.config, self.settings, channels, task, preprocess, model=self.model, encoder=self.encoder
        )


def settings(**flags: Any) -> TrainSettings:
    """The settings of a run with these flags, without heads of coarser levels."""
    return replace(parsed("--dataset", "d", "--no-deep-supervision"), **flags)


def start_of(
    model: UNet | None = None,
    axes: NetworkAxes | None = None,
    checkpoint: UNetConfig | None = None,
    **flags: Any,
) -> Start:
    """The start from a model or the config of a checkpoint, if any, with these flags."""
    args = settings(**flags)
    trained = checkpoint if model is None else model.config
    axes = axes or NetworkAxes(2 if trained is None else trained.dims)
    config, encoder = architecture(args, axes, trained, is_copied=model is not None)
    return Start(args, config, model, encoder)


def start_from(source: str | None, flags: dict[str, Any], checkpoint: UNetConfig | None = None) -> Start:
    """The start from `source`; `flags` may hold `dims`, `kernels` and `strides` of the data too."""
    axes = None
    if "dims" in flags:
        axes = NetworkAxes(**{name: flags[name] for name in NetworkAxes._fields if name in flags})
    model = None if source is None or checkpoint is not None else load_model(source)
    network_flags = {name: value for name, value in flags.items() if name not in NetworkAxes._fields}
    return start_of(model, axes, checkpoint, init_from=source, **network_flags)
