"""Trained models by name: our folders and Hub ids, Pytorch-UNet's checkpoints, ONNX files."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inference.pytorch_unet import SUFFIXES, load_pytorch_unet
from runtime.documents import parse_json
from runtime.errors import ModelError, one_line
from runtime.machine import is_out_of_memory
from tasks import task_of_model
from unet.blocks import fold_batch_norm
from unet.config import UNetConfig
from unet.model import UNet

PREPARE = "prepare"  # the input of an ONNX file, true by default, that says whether images are resized in the graph


def is_onnx(name: str | Path) -> bool:
    """Whether a model is an ONNX file, which computes in float32 on the CPU."""
    return Path(name).suffix == ".onnx"


def load_network(name: str | Path, device: str | torch.device = "cpu", scale: float | None = None) -> nn.Module:
    """A network to predict with, from an .onnx file or a source for `load_model`. Raises ModelError if that fails."""
    if is_onnx(name):
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
        if task_of_model(config).meaning != task_of_model(first).meaning:
            raise ModelError("an ensemble needs models of the same task")
        if _classes(config) != _classes(first):
            raise ModelError(f"an ensemble needs models of the same classes: {_classes(first)}, {_classes(config)}")
        bands = [first.preprocess.bands, config.preprocess.bands]
        if bands[0] != bands[1]:  # large images are read once for all networks
            raise ModelError(f"an ensemble needs models of the same bands: {bands[0]}, {bands[1]}")


def _classes(config: UNetConfig) -> tuple:
    return config.preprocess.class_names or config.num_classes, config.preprocess.class_values


class OnnxNetwork(nn.Module):
    """A model in ONNX, for `Predictor`; onnxruntime runs it on the CPU."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = path
        if find_spec("onnxruntime") is None:
            raise ModelError("onnxruntime is not installed; ONNX needs: pip install onnx onnxruntime")
        if not Path(path).is_file():
            raise ModelError(f"{path}: no such file")
        try:
            self.session = open_session(path)
            config = self.session.get_modelmeta().custom_metadata_map.get("config")
            if config is not None:
                self.config = UNetConfig.from_json(parse_json(config))
        except Exception as error:  # onnxruntime may raise any exception for a foreign file
            raise ModelError(f"{path}: cannot be loaded: {one_line(error)}") from error
        if config is None:
            raise ModelError(
                f"{path}: lacks the preprocessing; it must be written by `python -m inference.export MODEL OUTPUT.onnx`"
            )
        defaults = [entry.name for entry in self.session.get_overridable_initializers()]
        self.feeds = {PREPARE: np.array(False)} if PREPARE in defaults else {}  # images are already prepared
        self.register_buffer("mean", torch.zeros(()))  # inputs are moved to its device, as in UNet

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, *spatial) raw pixel values of any numeric type -> logits (B, num_classes, *spatial) float32.

        Raises ModelError if the file does not compute them.
        """
        feeds = self.feeds | {"images": images.float().contiguous().numpy()}
        try:
            (logits,) = self.session.run(["logits"], feeds)
        except Exception as error:  # onnxruntime may raise any exception for a foreign file
            if is_out_of_memory(error):
                raise
            raise ModelError(f"{self.path}: cannot be computed: {one_line(error)}") from error
        shape = (len(images), self.config.num_classes, *images.shape[2:])
        if logits.shape != shape:
            raise ModelError(f"{self.path}: answers {logits.shape} for images {tuple(images.shape)}, expected {shape}")
        return torch.from_numpy(logits)


def open_session(path: str | Path) -> Any:
    """A model in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need not be printed
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
