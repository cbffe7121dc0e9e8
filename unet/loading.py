"""Trained models by name: our folders and Hub ids, and Pytorch-UNet's checkpoints."""

from pathlib import Path

from runtime.errors import ModelError
from unet.model import UNet
from unet.pytorch_unet import SUFFIXES, load_pytorch_unet


def load_model(source: str | Path, scale: float | None = None) -> UNet:
    """A model in evaluation mode from a model folder, a Hub id or a Pytorch-UNet checkpoint (.pth, .safetensors).

    Args:
        scale: factor on height and width of the images, for Pytorch-UNet's checkpoints only.

    Raises ModelError that says in one line what is wrong.
    """
    path = Path(source)
    if path.suffix in SUFFIXES and not path.is_dir():
        return load_pytorch_unet(path, scale)
    if scale is not None:
        raise ModelError(f"{source}: its config.json says the scale; a scale can be given for Pytorch-UNet's only")
    return UNet.from_pretrained(source)
