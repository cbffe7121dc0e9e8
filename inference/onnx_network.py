"""A model in ONNX, for prediction."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runtime.documents import parse_json
from runtime.errors import ModelError, one_line
from runtime.machine import is_out_of_memory
from unet.config import UNetConfig

PREPARE = "prepare"  # the input, true by default, that says whether images are resized in the graph


def open_session(path: str | Path) -> Any:
    """A model in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need not be printed
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class OnnxNetwork(nn.Module):
    """An exported model for `Predictor`; onnxruntime runs it on the CPU."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = path
        if find_spec("onnxruntime") is None:
            raise ModelError("onnxruntime is not installed; ONNX needs: pip install onnx onnxruntime")
        if not Path(path).is_file():
            raise ModelError(f"{path}: no such file")
        try:
            self.session = open_session(path)
        except Exception as error:  # onnxruntime may raise any exception for a foreign file
            raise ModelError(f"{path}: cannot be loaded: {one_line(error)}") from error
        try:
            config = self.session.get_modelmeta().custom_metadata_map.get("config")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: its metadata are no text ({error})") from error
        if config is None:
            raise ModelError(
                f"{path}: lacks the preprocessing; it must be written by `python -m inference.export MODEL OUTPUT.onnx`"
            )
        try:
            self.config = UNetConfig.from_json(parse_json(config))
        except ValueError as error:
            raise ModelError(f"{path}: cannot be loaded: {one_line(error)}") from error
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
