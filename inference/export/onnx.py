"""A model in ONNX."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inference.export.graph import ExportedNetwork, describe
from inference.export.proof import Answer, check_answers, expected_logits, import_package, proof_images
from inference.models import PREPARE, open_session
from runtime.errors import SettingsError
from runtime.files import replace_path
from unet.config import UNetConfig
from unet.model import UNet

INSTALL = "pip install onnx onnxruntime"
OPSET = 17
AXES = ("depth", "height", "width")


def export_onnx(model: UNet, path: Path) -> None:
    """Write `images` (B, C, *spatial) float32 raw pixel values -> `logits`, all but C dynamic.

    The metadata hold the content of config.json under `config`. Raises ModelError, and writes no file, if onnxruntime
    does not answer as `Predictor` does.
    """
    if path.suffix != ".onnx":
        raise SettingsError(f"{path}: the name must end in .onnx")
    model = model.cpu().float().eval()
    with replace_path(path) as temporary:
        write_onnx(model, temporary)
        batches = proof_images(model.config)
        expected = expected_logits(model, batches)
        check_answers("onnxruntime", lambda: [open_onnx(temporary)], batches, expected, hint(model.config))


def hint(config: UNetConfig) -> str:
    """The end of a message on a graph that does not answer as its network does."""
    if config.encoder is None:
        return ""
    return "; encoders with window attention (Swin) cannot be exported"


def write_onnx(model: UNet, path: Path) -> None:
    """Write a model, which is in evaluation mode, on the CPU and of float32, without proof."""
    onnx = import_package("onnx", INSTALL)
    import_package("onnxruntime", INSTALL)
    write_graph(ExportedNetwork(model), path)
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"config": json.dumps(model.config.to_json()), **describe(model.config)})
    if PREPARE in [graph_input.name for graph_input in proto.graph.input]:
        # an initializer of the same name is the default of an input that may be left out
        proto.graph.initializer.append(onnx.helper.make_tensor(PREPARE, onnx.TensorProto.BOOL, [], [True]))
    onnx.save(proto, path)


def open_onnx(path: Path) -> Answer:
    """A function that answers by onnxruntime."""
    session = open_session(path)

    def answer(images: np.ndarray) -> np.ndarray:
        (logits,) = session.run(["logits"], {"images": images.astype(np.float32)})
        return logits

    return answer


def write_graph(network: ExportedNetwork, path: Path, answer: str = "logits", *, can_prepare: bool = True) -> None:
    """Write a network as an ONNX graph, without any metadata.

    Args:
        answer: what the output is called.
        can_prepare: whether the graph has the input PREPARE, if it prepares images.
    """
    config = network.model.config
    inputs: list[Any] = [traced_images(config)]
    names = ["images"]
    if network.prepares and can_prepare:
        inputs.append(torch.tensor(True))
        names.append(PREPARE)
    sizes = {0: "batch"}
    for axis, name in enumerate(AXES[-config.dims :], start=2):
        sizes[axis] = name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns, but its results are checked
        torch.onnx.export(
            network.eval(),
            tuple(inputs),
            path,
            dynamo=False,  # the newer exporter fixes sizes where Python compares them
            opset_version=OPSET,
            input_names=names,
            output_names=[answer],
            dynamic_axes={"images": sizes, answer: sizes},
        )


def traced_images(config: UNetConfig) -> torch.Tensor:
    """Images (2, C, *spatial) of sides that are odd at every level, so that all of the padding is traced."""
    sides = [2 * divisor - 1 for divisor in config.divisors]
    sides[-1] += 2 * config.divisors[-1]
    return torch.zeros(2, config.in_channels, *sides)
