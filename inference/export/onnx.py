"""A model in ONNX, for other programs."""

import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from inference.onnx_network import OnnxNetwork, import_onnx
from runtime.errors import ModelError, one_line
from runtime.files import replaced_path
from unet.model import UNet

OPSET = 17
TOLERANCE = 1e-4  # difference between the logits of torch and onnxruntime, relative where they are larger than 1
CHECKED = {  # number of axes -> batch size and sides
    2: ((1, 1, 1), (2, 37, 53), (1, 64, 64), (1, 101, 8), (3, 23, 130)),
    3: ((1, 1, 1, 1), (2, 9, 19, 26), (1, 16, 32, 32), (1, 33, 8, 21), (3, 3, 23, 40)),
}


class _AnySize(nn.Module):
    """The model with the padding of small sides as part of the graph, since a graph is made before sizes are known."""

    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, *spatial) raw pixel values -> logits (B, num_classes, *spatial)."""
        size = [torch.as_tensor(side) for side in images.shape[2:]]
        config = self.model.config
        shortest = [torch.tensor(divisor) for divisor in config.divisors]
        if config.norm == "instance":
            # whether each side leaves a single value
            single = torch.stack([side < 2 * least for side, least in zip(size, shortest, strict=True)]).all()
            shortest = [torch.where(single, 2 * least, least) for least in shortest]
        for axis, (side, least, divisor) in enumerate(zip(size, shortest, config.divisors, strict=True)):
            padded = torch.where(side >= least, side, 2 * divisor)
            if config.encoder is not None:
                padded = (side + least - 1) // least * least
            border = torch.arange(padded).clamp(max=side - 1)
            images = images.index_select(2 + axis, border)
        logits = self.model(images)
        window = [slice(side) for side in size]
        return logits[(..., *window)]


def export(model: UNet, path: Path) -> None:
    """Write `model` in ONNX: `images` (B, C, *spatial) float32 raw pixel values -> `logits`, all but C dynamic.

    The metadata holds the content of config.json under `config`. The file is written only if onnxruntime gives the
    same logits as torch on small, odd and uneven sizes; else ModelError.
    """
    onnx = import_onnx("onnx")
    model = model.cpu().float().eval()
    # sides that are odd at every level: all of the padding is traced
    sides = [2 * divisor - 1 for divisor in model.config.divisors]
    sides[-1] += 2 * model.config.divisors[-1]
    example = torch.zeros(2, model.config.in_channels, *sides)
    names = ("depth", "height", "width")[-model.config.dims :]
    sizes = {0: "batch"}
    for axis, name in enumerate(names, start=2):
        sizes[axis] = name
    with replaced_path(path) as temporary:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing warns, but its results are checked below
            torch.onnx.export(
                _AnySize(model).eval(),
                (example,),
                temporary,
                dynamo=False,  # the newer exporter fixes sizes where Python compares them
                opset_version=OPSET,
                input_names=["images"],
                output_names=["logits"],
                dynamic_axes={"images": sizes, "logits": sizes},
            )
        written = onnx.load(temporary)
        onnx.helper.set_model_props(written, {"config": json.dumps(model.config.to_json())})
        onnx.save(written, temporary)
        _check(model, OnnxNetwork(temporary))


@torch.inference_mode()
def _check(model: UNet, network: OnnxNetwork) -> None:
    generator = torch.Generator().manual_seed(0)
    for batch, *size in CHECKED[model.config.dims]:
        images = torch.rand(batch, model.config.in_channels, *size, generator=generator) * 255
        sides = " x ".join(map(str, size))
        expected = model(images)
        try:
            logits = network(images)
        except network.errors as error:
            raise ModelError(
                f"onnxruntime cannot compute images of {sides} pixels: {one_line(error, 150)}; encoders with window"
                " attention (Swin) cannot be exported"
            ) from error
        difference = (logits - expected).abs().max().item() / max(1.0, expected.abs().max().item())
        if difference > TOLERANCE:
            raise ModelError(f"onnxruntime's logits differ from torch's by {difference:.1e} at {sides} pixels")
