"""Trained models by name: our folders and Hub ids, Pytorch-UNet's checkpoints, ONNX files."""

from pathlib import Path

import torch
from torch import nn

from inference.pytorch_unet import SUFFIXES, load_pytorch_unet
from runtime.errors import ModelError
from unet.blocks import fold_batch_norm
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
