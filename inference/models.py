"""Trained models by name: our folders and Hub ids, Pytorch-UNet's checkpoints, ONNX files."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from inference.pytorch_unet import SUFFIXES, load_pytorch_unet
from runtime.errors import ModelError
from tasks import task_name, task_of_model
from unet.blocks import fold_batch_norm
from unet.config import UNetConfig
from unet.model import UNet


def load_network(name: str | Path, device: str | torch.device = "cpu", scale: float | None = None) -> nn.Module:
    """A network to predict with, from an .onnx file or a source for `load_model`. Raises ModelError if that fails."""
    if Path(name).suffix == ".onnx":
        from inference.onnx_network import OnnxNetwork

        if scale is not None:
            raise ModelError(f"{name}: holds its scale; --scale is for Pytorch-UNet's checkpoints only")
        return OnnxNetwork(name)
    network = load_model(name, scale)
    return fold_batch_norm(network).to(device, memory_format=network.memory_format)


def load_model(source: str | Path, scale: float | None = None) -> UNet:
    """A model in evaluation mode from a model folder, a Hub id or a Pytorch-UNet checkpoint (.pth, .safetensors).

    Args:
        scale: factor on height and width of the images, for Pytorch-UNet's checkpoints only.

    Raises ModelError with one line on the problem.
    """
    path = Path(source)
    if path.suffix in SUFFIXES and not path.is_dir():
        return load_pytorch_unet(path, scale)
    if scale is not None:
        raise ModelError(f"{source}: its config.json holds the scale; --scale is for Pytorch-UNet's checkpoints only")
    return UNet.from_pretrained(source)


def check_ensemble(configs: Sequence[UNetConfig]) -> None:
    """Raises ModelError unless models with these configs answer the same question on the same inputs."""
    first, *others = configs
    for config in others:
        if config.dims != first.dims:
            raise ModelError(f"an ensemble cannot mix a {first.dims}-D and a {config.dims}-D model")
        has_task = task_name(config) == task_name(first)
        if not (has_task and task_of_model(config).answers_as(task_of_model(first))):
            raise ModelError("an ensemble needs models of the same task")
        if _classes(config) != _classes(first):
            raise ModelError(f"an ensemble needs models of the same classes: {_classes(first)}, {_classes(config)}")
        bands = [first.preprocess.bands, config.preprocess.bands]
        if bands[0] != bands[1]:  # large images are read once for all networks
            raise ModelError(f"an ensemble needs models of the same bands: {bands[0]}, {bands[1]}")


def _classes(config: UNetConfig) -> tuple:
    return config.preprocess.class_names or config.num_classes, config.preprocess.class_values
