"""A model as a program of torch.export, which torch alone runs."""

import copy
import json
from pathlib import Path

import torch
from torch.export import Dim

from inference.export.export_format import ExportFormat, Options
from inference.export.graph import ExportedNetwork
from runtime.errors import ModelError, one_line
from unet.blocks import fold_batch_norm
from unet.model import UNet


class Torch(ExportFormat):
    """`images` (B, C, *spatial) float32 raw pixel values -> logits, for any B and size.

    The extra file `config.json` in the archive holds the content of the model's, and `description.json` texts.
    """

    runtime = "torch"
    suffix = ".pt2"

    def write(self, model: UNet, path: Path, options: Options) -> None:
        config = model.config
        network = ExportedNetwork(fold_batch_norm(copy.deepcopy(model))).eval()
        # neither 0 nor 1, nor the same for two axes, which torch would take as a rule
        sides = [divisor + 5 + 2 * axis for axis, divisor in enumerate(config.divisors)]
        images = torch.zeros(2, config.in_channels, *sides)
        sizes = {0: Dim.DYNAMIC}
        for axis in range(config.dims):
            sizes[2 + axis] = Dim.DYNAMIC
        try:
            program = torch.export.export(network, (images,), dynamic_shapes=(sizes,))
        except Exception as error:  # torch may raise anything at the layers of an encoder
            raise ModelError(
                f"torch.export takes no such network: {one_line(error, 150)}; encoders whose layers depend on the"
                " size of the image cannot be exported"
            ) from error
        texts = {"config.json": json.dumps(config.to_json()), "description.json": json.dumps(self.description(config))}
        torch.export.save(program, path, extra_files=texts)
