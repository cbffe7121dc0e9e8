"""A model in OpenVINO's intermediate representation (IR)."""

import json
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inference.export.export_format import ExportFormat, Options, import_package
from inference.export.graph import ExportedNetwork, prepares_images
from inference.export.onnx import write_graph
from runtime.errors import ModelError
from unet.config import UNetConfig
from unet.model import UNet

INSTALL = "pip install onnx openvino"


class OpenVino(ExportFormat):
    """A folder with model.xml and model.bin: `images` (B, C, *spatial), all but C dynamic -> `logits`.

    Images have 8 bits if the training images had, else float32. With `mask` the output is `mask` instead, the
    class of each pixel, int32.
    """

    runtime = "OpenVINO"
    is_folder = True
    flags = ("mask",)

    def hint(self, config: UNetConfig) -> str:
        if prepares_images(config):
            return "OpenVINO computes in 32 bits, too few to resize images just as predict.py does: take --to onnx"
        return ""

    def write(self, model: UNet, path: Path, options: Options) -> None:
        openvino = import_package("openvino", INSTALL)
        import_package("onnx", INSTALL)
        config = model.config
        if options.mask and config.task is not None:
            raise ModelError(f"--mask is for models of classes, and the task is {config.task['name']}")
        with TemporaryDirectory(prefix="export-") as folder:
            graph = Path(folder) / "model.onnx"
            write_graph(ExportedNetwork(model), graph)
            steps = openvino.preprocess.PrePostProcessor(openvino.Core().read_model(graph))
            if config.preprocess.pixel_types == ("uint8",):
                steps.input().tensor().set_element_type(openvino.Type.u8)
                steps.input().preprocess().convert_element_type(openvino.Type.f32)
            if options.mask:
                steps.output().postprocess().custom(largest_class)
            network = steps.build()
            network.input(0).set_names({"images"})
            network.output(0).set_names({"mask" if options.mask else "logits"})
            network.set_rt_info(json.dumps(config.to_json()), ["unet_accelerate", "config"])
            for name, text in self.description(config).items():
                network.set_rt_info(text, ["unet_accelerate", name])
            openvino.save_model(network, path / "model.xml", compress_to_fp16=False)


def largest_class(logits: Any) -> Any:
    """The index (B, *spatial) of the largest logit, the first of equals."""
    ops = import_module("openvino.opset13")
    best = ops.topk(logits, ops.constant(1), 1, "max", "value", index_element_type="i32", stable=True)
    return ops.squeeze(best.output(1), ops.constant(1)).output(0)
